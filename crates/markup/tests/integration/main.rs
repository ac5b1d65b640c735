//! The integration tests of this crate as one program.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod jats;
mod latex;
mod wikipedia;
