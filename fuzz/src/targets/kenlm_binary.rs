//! KenLM binaries, probing and trie; what is read scores sentences.

use bessemer_score::kenlm::LanguageModel;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(model) = LanguageModel::read_binary(data, data.len() as u64, "fuzz") {
        model.perplexity("some words and others");
        model.score_sentence("a b c");
    }
}
