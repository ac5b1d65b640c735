//! Personal data and secrets in text: finding, replacing; decontamination against evaluation sets.
//!
//! - [`Finder`] says where e-mail and IP addresses, phone, card and account numbers, keys and tokens stand in a text;
//!   [`Scrubber`] replaces them. Both are functions of one text and linear in its length.
//! - [`decontaminate`] holds n-grams of evaluation sets and says which documents, or which parts of them, hold questions
//!   and answers that a model is to be judged on.
//!
//! Deletion of documents by id is done where corpora are written, in the crate `corpus`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod decontaminate;
mod find;
mod kind;
mod scrub;

pub use find::{Finder, is_global_v4, is_global_v6, luhn};
pub use kind::{Counts, Kind, Span};
pub use scrub::{Scrubbed, Scrubber};

/// Version of the edited texts and verdicts that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 2;
