//! The integration tests of this crate as one program: each test program costs a link.

mod log;
mod prometheus;
mod tensorboard;
mod trace;
