//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod energy;
mod fill;
mod fill_mutations;
mod golden;
mod hand;
mod properties;
mod replay;
mod shadow;
