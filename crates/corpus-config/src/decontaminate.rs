//! What documents are compared with, and what happens to those that agree.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Semantics of the search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecontaminateProfile {
    /// Words of UAX #29 in normal form; short questions and answers are found too.
    #[default]
    Native,
    /// datatrove: English words of the simplified text, n-grams only; a hit drops the document.
    Datatrove,
}

/// What happens to a document that holds a part of an evaluation set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecontaminateAction {
    /// The document is dropped.
    #[default]
    Drop,
    /// The part is cut out, with a margin; a document that is cut too often is dropped.
    Window,
}

/// One evaluation set: a file of JSON lines or Parquet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSource {
    /// Its name in reports; the file's name if empty.
    pub name: String,
    /// The file: `.jsonl`, `.json` (one object a line) or `.parquet`.
    pub path: String,
    /// Fields of the question, joined by a space; a dot leads into an object.
    pub query: Vec<String>,
    /// Field of the answer, or of its number or letter among `choices`. A list is several answers.
    pub answer: String,
    /// Field of the list of choices, where `answer` is a number (from 0) or a letter.
    pub choices: String,
}

/// Removal of what evaluation sets hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DecontaminateConfig {
    /// The evaluation sets, each a table `[[corpus.decontaminate.sets]]` with `name`, `path`, `query`, `answer` and `choices`; none:
    /// nothing is done.
    pub sets: Vec<EvaluationSource>,
    /// Semantics: native or datatrove.
    pub profile: DecontaminateProfile,
    /// Words of an n-gram: datatrove uses 12, GPT-3 13.
    pub ngram: u32,
    /// N-grams that lie within the question count too.
    pub query_ngrams: bool,
    /// N-grams that begin in the question and end in the answer count too.
    pub overlap_ngrams: bool,
    /// What happens to a document with a hit: drop or window.
    pub action: DecontaminateAction,
    /// With `window`: characters cut on either side of a hit (GPT-3: 200).
    pub window_chars: u32,
    /// With `window`: a document with more cuts than this is dropped (GPT-3: 10).
    pub max_cuts: u32,
    /// With `window`: pieces with fewer characters than this go too.
    pub min_piece_chars: u32,
    /// Question and answer with fewer words than `ngram` together count where the question stands whole and an answer begins
    /// within so many words after it.
    pub answer_within: u32,
}

impl Default for DecontaminateConfig {
    fn default() -> Self {
        DecontaminateConfig {
            sets: Vec::new(),
            profile: DecontaminateProfile::Native,
            ngram: 13,
            query_ngrams: true,
            overlap_ngrams: true,
            action: DecontaminateAction::Drop,
            window_chars: 200,
            max_cuts: 10,
            min_piece_chars: 200,
            answer_within: 16,
        }
    }
}

impl DecontaminateConfig {
    /// datatrove's defaults: 12 words, answers and overlaps.
    pub fn datatrove() -> DecontaminateConfig {
        DecontaminateConfig {
            profile: DecontaminateProfile::Datatrove,
            ngram: 12,
            query_ngrams: false,
            ..DecontaminateConfig::default()
        }
    }

    /// Paths of files that the keys name, each with its key.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        self.sets.iter_mut().map(|set| ("decontaminate.sets.path".into(), &mut set.path)).collect()
    }

    /// Checks every value. The message begins with `key`, the name of this table.
    pub fn check(&self, key: &str) -> Result<(), String> {
        for (index, set) in self.sets.iter().enumerate() {
            if set.path.is_empty() || (set.answer.is_empty() && set.query.is_empty()) {
                return Err(format!(
                    "{key}.sets[{index}]: expected a path, and the fields of the question or of the answer"
                ));
            }
        }
        if !(8..=50).contains(&self.ngram) {
            return Err(format!("{key}.ngram = {}: expected 8 to 50 words", self.ngram));
        }
        if self.max_cuts == 0 {
            return Err(format!(
                "{key}.max_cuts = 0: expected at least 1; to drop documents set action = \"drop\""
            ));
        }
        if self.window_chars > 10_000 {
            return Err(format!("{key}.window_chars = {}: expected at most 10000", self.window_chars));
        }
        if !(1..=1000).contains(&self.answer_within) {
            return Err(format!("{key}.answer_within = {}: expected 1 to 1000 words", self.answer_within));
        }
        Ok(())
    }
}
