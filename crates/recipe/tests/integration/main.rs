//! The integration tests of this crate as one program: each test program costs a link.

mod docs;
mod hostile;
mod machinery;
mod recipes;
