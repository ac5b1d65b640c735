//! The integration tests of this crate as one program: each test program costs a link.

mod extract;
mod memory;
mod remote;
#[cfg(feature = "remote")]
mod store;
mod technical;
mod warc;
