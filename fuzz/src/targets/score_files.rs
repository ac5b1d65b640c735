//! Importance weights of DSIR and tables of unigrams.

use bessemer_score::dsir::Importance;
use bessemer_score::unigram::Unigrams;
use bessemer_text::split::Words;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(weights) = Importance::read(data, data.len() as u64, "fuzz") {
        weights.weight("some words and others");
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(table) = Unigrams::parse(text, Words::Whitespace, "fuzz")
    {
        table.score("some words and others");
    }
}
