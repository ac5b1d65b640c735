//! Every operator on every rung: against the reference loop over a list of shapes, bit for bit for any number of threads,
//! and against finite differences.

mod harness;
mod linear;
