//! Rules that work line by line: they keep, cut or drop lines, and some drop the document.

mod c4;
mod corrections;
mod urls;

pub(crate) use c4::C4Lines;
pub use c4::C4Options;
pub(crate) use corrections::Correction;
pub use corrections::{CorrectionOptions, PhrasePosition};

use crate::evaluate::RuleResult;

/// Result of an edit.
#[derive(Debug, Default)]
pub(crate) struct Edited {
    /// The new text, if it differs.
    pub(crate) text: Option<String>,
    /// Words of the new text, where the edit counted them anyway.
    pub(crate) words: Option<u64>,
    /// What was found, and which of it drops the document.
    pub(crate) results: Vec<RuleResult>,
}
