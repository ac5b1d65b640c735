//! The integration tests of this crate as one program: each test program costs a link.

mod compare;
mod page;
mod study;
