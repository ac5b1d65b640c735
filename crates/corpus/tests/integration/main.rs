//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod copies;
mod corpus;
mod delete;
mod golden;
mod hostile;
mod integrity;
mod mixture;
mod outputs;
mod papers;
mod remote;
mod resume;
mod scores;
mod sources;
#[cfg(feature = "remote")]
#[path = "../../../object-store/tests/integration/store.rs"]
mod store;
mod urls;
mod web;
