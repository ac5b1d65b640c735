use super::{MeasureSpec, compile_pattern};
use crate::error::Result;
use bessemer_text::hash::xxh3_seeded;
use bessemer_units::splitmix::unit;
use regex::Regex;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "bad-words",
    parameters: &["list", "anywhere", "keep"],
    value: "1 if a word of the list occurs in lower case, else 0; 0 also for a share `keep` of these texts, by their hash",
    formula: "match of (\\W\\|^)(words)(\\W\\|$)",
    origin: "C4 (Raffel et al. 2020)",
    pattern: Some(|parameters| {
        pattern(parameters.list.as_deref().unwrap_or_default(), parameters.anywhere.unwrap_or(false))
    }),
    compute: |measure, text, _| {
        let found =
            measure.pattern.as_ref()?.is_match(&text.to_lowercase()) && !is_let_through(measure.keep, text);
        Some(f64::from(u8::from(found)))
    },
};

/// Seed of the hash that chooses the texts that are kept in spite of a bad word: not that of other choices by hash.
const KEEP_SEED: u64 = 0x6b65_6570;

/// `(?:\W|^)(w1|w2|...)(?:\W|$)`, or the words anywhere.
fn pattern(list: &[String], anywhere: bool) -> Result<Regex> {
    let words: Vec<String> =
        list.iter().filter(|word| !word.is_empty()).map(|word| regex::escape(word)).collect();
    if words.is_empty() {
        // Nothing is bad: a pattern that matches nothing.
        return compile_pattern(r"[^\s\S]");
    }
    let words = words.join("|");
    compile_pattern(&if anywhere { words } else { format!(r"(?:\W|^)(?:{words})(?:\W|$)") })
}

/// Whether the hash of the text is among the share `keep`: the same for every order of documents and any run.
fn is_let_through(keep: f64, text: &str) -> bool {
    keep > 0.0 && unit(xxh3_seeded(text.as_bytes(), KEEP_SEED)) < keep
}
