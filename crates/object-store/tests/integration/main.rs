//! The integration tests of this crate as one program: each test program costs a link. They need the feature `remote`.

#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod moto;
mod reading;
mod store;
mod writing;
