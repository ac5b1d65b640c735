//! How a text is cut. Every piece is a slice of it.

pub mod english;
pub mod lines;
mod sentences;
mod words;

pub use sentences::sentences;
pub use words::{UnknownWords, Words};
