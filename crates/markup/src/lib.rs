//! Papers, encyclopedias and forums as plain text: LaTeX, JATS XML, MediaWiki dumps, Stack Exchange dumps.
//!
//! Every function here takes text that strangers wrote and returns plain text or a [`MarkupError`]. Time is linear in the
//! input, memory and output are bounded by [`MarkupLimits`], and nothing recurses, so no nesting exhausts a stack. XML entities
//! that a document declares are never expanded.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod error;
pub mod jats;
pub mod latex;
pub mod stack_exchange;
pub mod wikipedia;
mod writer;
mod xml;

pub use error::{MarkupError, MarkupLimits};

/// Version of the texts that this crate makes. Raised whenever the text of the same input changes: finished corpora are reused
/// under it.
pub const VERSION: u32 = 2;

/// A paper: an article in LaTeX or JATS XML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paper {
    /// Title, where the paper states one.
    pub title: Option<String>,
    /// Title, abstract and sections, paragraphs apart by an empty line.
    pub text: String,
}
