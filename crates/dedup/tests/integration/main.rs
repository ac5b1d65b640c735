//! The integration tests of this crate as one program: each test program costs a link.

mod common;
mod methods;
mod parts;
mod planted;
