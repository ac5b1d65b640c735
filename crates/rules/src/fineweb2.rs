//! The profiles `fineweb2-LANGUAGE`: FineWeb-2's values for a language (Penedo et al. 2025, arXiv:2506.20920) on the frame
//! of the profile `fineweb2`.

use crate::error::{Error, Result};
use crate::profile::{ProfileFile, StepFile};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Prefix of the names of these profiles.
pub(crate) const PREFIX: &str = "fineweb2-";

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    /// Least `language_score`.
    score: f64,
    /// Most lines that have come before, as a share.
    lines: f64,
    /// Most characters in the most frequent 2-, 3- and 4-gram.
    top: [f64; 3],
    /// Most characters in repeated 5- to 10-grams.
    repeats: [f64; 6],
    /// Least share of lines that end with a sentence-ending sign.
    terminated: f64,
    /// Most newlines a word.
    newlines: f64,
    /// Least and greatest mean length of words.
    length: [f64; 2],
    /// Least share of words with a letter.
    letters: f64,
    /// Frequent words of which two different ones must come, between spaces.
    common: String,
}

static TABLE: LazyLock<std::result::Result<BTreeMap<String, Values>, String>> = LazyLock::new(|| {
    toml::from_str(include_str!("../profiles/fineweb2-languages.toml")).map_err(|error| error.to_string())
});

fn table() -> Result<&'static BTreeMap<String, Values>> {
    TABLE.as_ref().map_err(|error| Error::new(format!("the table of FineWeb-2: {error}")))
}

/// The languages of the table, as GlotLID names them, in order.
pub(crate) fn languages() -> Vec<&'static str> {
    table().map_or_else(|_| Vec::new(), |table| table.keys().map(String::as_str).collect())
}

/// The profile of a language: `frame` with its values; nothing if the table lacks it.
pub(crate) fn profile(language: &str, frame: ProfileFile) -> Result<Option<ProfileFile>> {
    let Some(values) = table()?.get(language) else { return Ok(None) };
    let mut file = frame;
    file.name = format!("{PREFIX}{language}");
    file.about = format!(
        "FineWeb-2 with its values for {language}; upstream cuts words with a tokenizer of the language, here UAX #29 does"
    );
    file.source = format!("{}, configs/{language}.yml", file.source);
    for step in &mut file.step {
        values.set(step);
    }
    let score = StepFile {
        condition: Some(format!("language_score >= {}", values.score)),
        label: Some("language_score".into()),
        ..StepFile::default()
    };
    let common = StepFile {
        rule: Some("distinct-listed-words".into()),
        list: Some(values.common.split(' ').map(str::to_owned).collect()),
        min: Some(2.0),
        label: Some("gopher_enough_stop_words".into()),
        ..StepFile::default()
    };
    file.step.insert(1, score);
    file.step.push(common);
    Ok(Some(file))
}

impl Values {
    /// Replaces the limits of a step of the frame by those of the language.
    fn set(&self, step: &mut StepFile) {
        let n = step.n.unwrap_or(0);
        match step.rule.as_deref() {
            Some("later-duplicates") => step.max = Some(self.lines),
            Some("top-ngram-chars") => step.max = self.top.get(n.wrapping_sub(2)).copied(),
            Some("duplicate-ngram-chars") => step.max = self.repeats.get(n.wrapping_sub(5)).copied(),
            Some("lines-terminated") => step.min = Some(self.terminated),
            Some("newlines-per-word") => step.max = Some(self.newlines),
            Some("mean-nonsymbol-word-length") => {
                (step.min, step.max) = (Some(self.length[0]), Some(self.length[1]));
            }
            Some("letter-words") => step.min = Some(self.letters),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn every_language_compiles_and_has_its_own_values() {
        let frame = Profile::named("fineweb2").unwrap_or_else(|error| panic!("{error}"));
        assert!(languages().len() >= 25, "{:?}", languages());
        for language in languages() {
            let name = format!("{PREFIX}{language}");
            let profile = Profile::named(&name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((profile.name(), profile.len()), (name.as_str(), frame.len() + 2));
            assert_eq!(profile.columns(), ["language_score"]);
            let steps = &profile.file().step;
            // Shares, falling with the length of the window as in the frame; a step without a limit would let all pass.
            let limit = |rule: &str, n| {
                let step = steps.iter().find(|step| step.rule.as_deref() == Some(rule) && step.n == Some(n));
                step.and_then(|step| step.max).unwrap_or_else(|| panic!("{name}: {rule} of {n}"))
            };
            let falling = |values: &[f64]| values.windows(2).all(|pair| pair[0] > pair[1]);
            assert!(falling(&[2, 3, 4].map(|n| limit("top-ngram-chars", n))), "{name}");
            assert!(falling(&[5, 6, 7, 8, 9, 10].map(|n| limit("duplicate-ngram-chars", n))), "{name}");
            let words = steps.last().and_then(|step| step.list.clone()).unwrap_or_default();
            assert!(words.len() >= 8 && words.iter().all(|word| !word.is_empty()), "{name}: {words:?}");
        }
    }

    /// The values of the reference for Chinese, and the order of the pipeline that FineWeb-2 publishes.
    #[test]
    fn chinese_has_the_published_values_in_the_published_order() {
        let profile = Profile::named("fineweb2-cmn_Hani").unwrap_or_else(|error| panic!("{error}"));
        let labels: Vec<(&str, Option<f64>, Option<f64>)> = profile
            .file()
            .step
            .iter()
            .map(|step| {
                let label = step.label.as_deref().or(step.above.as_deref()).unwrap_or_default();
                (label, step.min, step.max)
            })
            .collect();
        let published = [
            ("empty", Some(1.0), None),
            ("language_score", None, None),
            ("dup_line_frac", None, Some(0.287)),
            ("top_2_gram", None, Some(0.256)),
            ("top_3_gram", None, Some(0.201)),
            ("top_4_gram", None, Some(0.171)),
            ("duplicated_5_n_grams", None, Some(0.198)),
            ("duplicated_6_n_grams", None, Some(0.182)),
            ("duplicated_7_n_grams", None, Some(0.167)),
            ("duplicated_8_n_grams", None, Some(0.154)),
            ("duplicated_9_n_grams", None, Some(0.14)),
            ("duplicated_10_n_grams", None, Some(0.127)),
            ("empty", Some(1.0), None),
            ("line_punct_ratio", Some(0.106), None),
            ("char_dup_ratio", None, Some(0.1)),
            ("list_ratio", None, Some(0.178)),
            ("gopher_long_doc", Some(50.0), Some(100_000.0)),
            ("gopher_above_avg_threshold", Some(1.0), Some(5.0)),
            ("gopher_too_many_hashes", None, Some(0.1)),
            ("gopher_too_many_ellipsis", None, Some(0.1)),
            ("gopher_too_many_bullets", None, Some(0.9)),
            ("gopher_too_many_end_ellipsis", None, Some(0.3)),
            ("gopher_below_alpha_threshold", Some(0.735), None),
            ("gopher_enough_stop_words", Some(2.0), None),
        ];
        assert_eq!(labels, published);
        let condition = profile.file().step[1].condition.as_deref();
        assert_eq!(condition, Some("language_score >= 0.692"));
    }
}
