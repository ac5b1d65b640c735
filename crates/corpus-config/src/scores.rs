//! `[corpus.scores]`: which scores a corpus gets. Every doc comment is printed to users as the key's documentation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `[corpus.scores]`: columns that are computed for every document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScoresConfig {
    /// The scores, each a table `[[corpus.scores.list]]` with `name`, `kind`, `model`, `label`, `pieces`, `parts`, `head` and
    /// `tail` (docs/scores.md).
    pub list: Vec<ScoreConfig>,
}

/// Kinds of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScoreKind {
    /// The language (column `name`) and the probability (column `name_score`): by the fastText model `model`, or built
    /// in without one.
    #[default]
    Language,
    /// The probability of `label` under the fastText model `model`.
    Fasttext,
    /// Perplexity under the KenLM model `model`, as cc_net computes it: over words between white space, or over the pieces of
    /// the SentencePiece model `pieces`.
    Perplexity,
    /// log10 probability per word under the KenLM model `model`, line by line.
    LogProbability,
    /// The importance weight under the DSIR model `model`, per feature of the document.
    Importance,
    /// Mean log frequency of words under the table `model` of words and counts.
    Unigram,
    /// What kind of site the URL names; `model` may add lines of domains and tags.
    Domain,
    /// The date of the document, and in the column `name_source` where it was found: url, text or fetched.
    Date,
}

impl ScoresConfig {
    /// Paths of files that the keys name, each with its key.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        let mut paths = Vec::new();
        for score in &mut self.list {
            let key = |what: &str| format!("scores, score {:?}: {what}", score.name);
            paths.extend([(key("model"), &mut score.model), (key("pieces"), &mut score.pieces)]);
        }
        paths.retain(|(_, path)| !path.is_empty());
        paths
    }

    /// Checks every value; the error names score, key, value and what is allowed.
    ///
    /// # Errors
    /// Where a value is out of range or two columns have one name.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for score in &self.list {
            score.check()?;
            for name in score.columns().into_iter().map(|(name, _)| name).chain(score.part_column()) {
                if names.contains(&name) {
                    return Err(format!("two scores write the column {name:?}: rename one"));
                }
                names.insert(name);
            }
        }
        Ok(())
    }
}

/// One score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScoreConfig {
    /// Name of the column that is written: lower-case letters, digits and `_`, not beginning with a digit.
    pub name: String,
    /// language, fasttext, perplexity, log-probability, importance, unigram, domain or date.
    pub kind: ScoreKind,
    /// Path of the model file; empty where the kind needs none.
    pub model: String,
    /// For `fasttext`: the label whose probability is the score, with its prefix.
    pub label: String,
    /// For `perplexity`: path of the SentencePiece model (unigram) over whose pieces `model` was made, as those of cc_net are.
    /// Empty: words between white space.
    pub pieces: String,
    /// For `perplexity`: a second column `name_part` with head, middle or tail of the whole corpus, by language where
    /// a score of kind `language` stands before.
    pub parts: bool,
    /// For `parts`: share of documents that are head.
    pub head: f64,
    /// For `parts`: share of documents that are head or middle.
    pub tail: f64,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        ScoreConfig {
            name: String::new(),
            kind: ScoreKind::Language,
            model: String::new(),
            label: "__label__positive".into(),
            pieces: String::new(),
            parts: false,
            head: 0.3,
            tail: 0.6,
        }
    }
}

/// Types of score columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// f64.
    Number,
    /// UTF-8.
    Text,
}

impl ScoreConfig {
    /// The columns that a scorer of this configuration gives, in order. The column `name_part` is not among them: it is
    /// known only when all documents are.
    pub fn columns(&self) -> Vec<(String, ColumnType)> {
        let name = &self.name;
        match self.kind {
            ScoreKind::Language => {
                vec![(name.clone(), ColumnType::Text), (format!("{name}_score"), ColumnType::Number)]
            }
            ScoreKind::Domain => vec![(name.clone(), ColumnType::Text)],
            ScoreKind::Date => {
                vec![(name.clone(), ColumnType::Text), (format!("{name}_source"), ColumnType::Text)]
            }
            _ => vec![(name.clone(), ColumnType::Number)],
        }
    }

    /// Column of the part of the corpus, if there is to be one.
    pub fn part_column(&self) -> Option<String> {
        self.parts.then(|| format!("{}_part", self.name))
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let told = |what: String| Err(format!("score {name:?}: {what}"));
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(letters) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return told("name: wanted lower-case letters, digits and _, not beginning with a digit".into());
        }
        let needs_model = !matches!(self.kind, ScoreKind::Language | ScoreKind::Domain | ScoreKind::Date);
        if needs_model && self.model.is_empty() {
            return told(
                "model: this kind needs the path of a model (docs/scores.md says how to make one)".into(),
            );
        }
        if self.kind == ScoreKind::Date && !self.model.is_empty() {
            return told(format!("model = {:?}: dates need none", self.model));
        }
        if self.kind == ScoreKind::Fasttext && self.label.is_empty() {
            return told("label: wanted the label whose probability is the score".into());
        }
        if !self.pieces.is_empty() && self.kind != ScoreKind::Perplexity {
            return told(format!("pieces = {:?}: only a perplexity is over pieces", self.pieces));
        }
        if self.parts && self.kind != ScoreKind::Perplexity {
            return told("parts: only a perplexity cuts the corpus into head, middle and tail".into());
        }
        if !(self.head > 0.0 && self.head < self.tail && self.tail < 1.0) {
            return told(format!(
                "head = {} and tail = {}: wanted 0 < head < tail < 1",
                self.head, self.tail
            ));
        }
        Ok(())
    }
}
