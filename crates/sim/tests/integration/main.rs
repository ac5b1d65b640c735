//! The integration tests of this crate as one program: each test program costs a link.

mod energy;
mod fill;
mod golden;
mod hand;
mod properties;
