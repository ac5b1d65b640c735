//! The foreign edge, in three layers: `raw` is the shim as the linker sees it, `checked` looks at every return code,
//! `owned` keeps memory alive for as long as MPI uses it. Above them no code is unsafe.

mod checked;
mod owned;
mod raw;

pub(crate) use checked::Mpi;
