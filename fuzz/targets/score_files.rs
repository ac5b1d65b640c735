//! Importance weights of DSIR and tables of unigrams.
#![no_main]

use bessemer_score::dsir::Importance;
use bessemer_score::unigram::Unigrams;
use bessemer_text::split::Words;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(weights) = Importance::read(data, data.len() as u64, "fuzz") {
        weights.weight("some words and others");
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(table) = Unigrams::parse(text, Words::Whitespace, "fuzz")
    {
        table.score("some words and others");
    }
});
