//! KenLM binaries, probing and trie; what is read scores sentences.
#![no_main]

use bessemer_score::kenlm::LanguageModel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(model) = LanguageModel::read_binary(data, data.len() as u64, "fuzz") {
        model.perplexity("some words and others");
        model.score_sentence("a b c");
    }
});
