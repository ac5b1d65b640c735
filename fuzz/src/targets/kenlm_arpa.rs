//! ARPA files; what is read scores sentences and can be written as a binary that says the same.

use bessemer_score::kenlm::LanguageModel;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(model) = LanguageModel::read_arpa(data, data.len() as u64, "fuzz") {
        model.perplexity("some words and others");
        model.score_sentence("a b c");
    }
}
