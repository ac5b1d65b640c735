//! The integration tests of this crate as one program: each test program costs a link.

mod evaluation;
mod mixture;
mod order;
mod support;
mod training;
