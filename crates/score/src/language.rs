//! Language identification: one trait, two ways.

use crate::error::{Result, ScoreError};
use crate::fasttext::FastText;
use std::path::Path;

/// Names the language of a text.
pub trait LanguageId: Send + Sync {
    /// The language (as the model calls it, without a prefix; `und` where it cannot tell) and how sure the model is, in
    /// 0..=1.
    fn identify(&self, text: &str) -> (&str, f32);
}

/// What a text without a language is called (ISO 639-2).
pub const UNDETERMINED: &str = "und";

/// A fastText model whose labels are languages, such as lid.176.bin, lid.176.ftz or GlotLID.
#[derive(Debug, Clone)]
pub struct FastTextLanguages {
    model: FastText,
    names: Vec<String>,
}

impl FastTextLanguages {
    /// Reads the model.
    ///
    /// # Errors
    /// As [`FastText::open`].
    pub fn open(path: &Path) -> Result<FastTextLanguages> {
        FastTextLanguages::new(FastText::open(path)?)
    }

    /// The languages of a model with labels such as `__label__en`.
    ///
    /// # Errors
    /// A label without that prefix.
    pub fn new(model: FastText) -> Result<FastTextLanguages> {
        let name = |label: &String| match label.strip_prefix("__label__") {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => Err(ScoreError::Config(format!(
                "label {label:?} of the language model does not begin with __label__"
            ))),
        };
        let names = model.labels().iter().map(name).collect::<Result<_>>()?;
        Ok(FastTextLanguages { model, names })
    }
}

impl LanguageId for FastTextLanguages {
    fn identify(&self, text: &str) -> (&str, f32) {
        match self.model.best_label(text) {
            // The model reports up to 1.00001; a probability is at most 1.
            Some((label, probability)) => (&self.names[label], probability.clamp(0.0, 1.0)),
            None => (UNDETERMINED, 0.0),
        }
    }
}

/// The built-in identification: trigrams and scripts of about 70 languages, by the crate `whatlang`. It needs no file; on
/// short or mixed text it is clearly weaker than lid.176.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuiltInLanguages;

impl LanguageId for BuiltInLanguages {
    fn identify(&self, text: &str) -> (&str, f32) {
        match whatlang::detect(text) {
            Some(info) => (two_letters(info.lang().code()), (info.confidence() as f32).clamp(0.0, 1.0)),
            None => (UNDETERMINED, 0.0),
        }
    }
}

/// ISO 639-1 where there is such a code, as lid.176 uses it; `code` (ISO 639-3) otherwise.
fn two_letters(code: &'static str) -> &'static str {
    let mut pairs = include_str!("languages.txt").lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(three, _)| *three == code).map_or(code, |(_, two)| two)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_identification_knows_long_sentences() {
        for (text, language) in [
            (
                "The quick brown fox jumps over the lazy dog while the farmer looks at the clouds in the sky.",
                "en",
            ),
            (
                "Der schnelle braune Fuchs springt über den faulen Hund, während der Bauer in den Himmel schaut.",
                "de",
            ),
            (
                "Le renard brun rapide saute par-dessus le chien paresseux pendant que le fermier regarde le ciel.",
                "fr",
            ),
            ("Быстрая коричневая лиса прыгает через ленивую собаку, пока фермер смотрит на облака.", "ru"),
            ("敏捷的棕色狐狸跳过了懒狗，而农夫正看着天上的云。", "zh"),
        ] {
            let (found, score) = BuiltInLanguages.identify(text);
            assert_eq!(found, language);
            assert!((0.0..=1.0).contains(&score));
        }
        assert_eq!(BuiltInLanguages.identify("12 34 !?"), (UNDETERMINED, 0.0));
    }

    #[test]
    fn every_language_of_the_crate_has_a_code() {
        for language in whatlang::Lang::all() {
            let code = two_letters(language.code());
            assert!(code.len() == 2 || code == "cym", "{code}");
        }
    }
}
