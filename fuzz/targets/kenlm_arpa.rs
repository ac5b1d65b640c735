//! ARPA files; what is read scores sentences and can be written as a binary that says the same.
#![no_main]

use bessemer_score::kenlm::LanguageModel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(model) = LanguageModel::read_arpa(data, data.len() as u64, "fuzz") {
        model.perplexity("some words and others");
        model.score_sentence("a b c");
    }
});
