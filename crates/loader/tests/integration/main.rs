//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod cache;
mod documents;
mod evaluation;
mod grouped;
mod masks;
mod mixture;
mod order;
mod prefetch;
mod support;
mod training;
