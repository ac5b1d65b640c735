//! The integration tests of this crate as one program: each test program costs a link.

mod bubbles;
mod mixture;
mod parity;
mod place;
mod ranks;
mod resume;
mod run;
