//! A configured score, ready to be asked about documents.

use crate::date::date_of;
use crate::domain::DomainTags;
use crate::dsir::Importance;
use crate::error::{Result, ScoreError};
use crate::fasttext::FastText;
use crate::kenlm::{LanguageModel, Pieces, WhiteSpace, perplexity_of_document};
use crate::language::{BuiltInLanguages, FastTextLanguages, LanguageId};
use crate::sentencepiece::SentencePiece;
use crate::unigram::Unigrams;
use bessemer_corpus_config::scores::{ScoreConfig, ScoreKind, ScoresConfig};
use bessemer_text::Words;
use std::path::Path;

/// Properties of a document that a score may read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Document<'d> {
    /// The text.
    pub text: &'d str,
    /// Address of the document.
    pub url: Option<&'d str>,
    /// When it was fetched, as WARC writes it (ISO 8601).
    pub fetched: Option<&'d str>,
}

/// The value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A finite number.
    Number(f64),
    /// A name.
    Text(String),
    /// The document does not have it.
    Missing,
}

/// A score with its model in memory. It may be asked from many threads at once.
pub struct Scorer {
    config: ScoreConfig,
    model: Model,
}

enum Model {
    Language(Box<dyn LanguageId>),
    FastText(Box<FastText>),
    Perplexity(Box<LanguageModel>, Box<dyn Pieces>),
    LogProbability(Box<LanguageModel>),
    Importance(Importance),
    Unigram(Unigrams),
    Domain(DomainTags),
    Date,
}

impl std::fmt::Debug for Scorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scorer").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Scorer {
    /// Reads the model of a score; a relative path is taken from `folder`.
    ///
    /// # Errors
    /// Where the configuration is wrong, or the model is missing, broken or lacks the label.
    pub fn open(config: &ScoreConfig, folder: &Path) -> Result<Scorer> {
        ScoresConfig { list: vec![config.clone()] }.check().map_err(ScoreError::Config)?;
        let path = folder.join(&config.model);
        let built_in = config.model.is_empty();
        let model = match config.kind {
            ScoreKind::Language if built_in => Model::Language(Box::new(BuiltInLanguages)),
            ScoreKind::Language => Model::Language(Box::new(FastTextLanguages::open(&path)?)),
            ScoreKind::Fasttext => {
                let model = FastText::open(&path)?;
                if !model.labels().contains(&config.label) {
                    let some: Vec<&str> = model.labels().iter().take(8).map(String::as_str).collect();
                    return Err(ScoreError::Config(format!(
                        "score {:?}: {} has no label {:?}; it has {}",
                        config.name,
                        path.display(),
                        config.label,
                        some.join(", ")
                    )));
                }
                Model::FastText(Box::new(model))
            }
            ScoreKind::Perplexity => {
                let pieces: Box<dyn Pieces> = if config.pieces.is_empty() {
                    Box::new(WhiteSpace)
                } else {
                    Box::new(SentencePiece::open(&folder.join(&config.pieces))?)
                };
                Model::Perplexity(Box::new(LanguageModel::open(&path)?), pieces)
            }
            ScoreKind::LogProbability => Model::LogProbability(Box::new(LanguageModel::open(&path)?)),
            ScoreKind::Importance => Model::Importance(Importance::open(&path)?),
            ScoreKind::Unigram => Model::Unigram(Unigrams::open(&path, Words::English)?),
            ScoreKind::Domain => {
                let read =
                    || bessemer_durable::read_to_string(&path).map_err(|e| ScoreError::io("read", &path, e));
                let text = if built_in { String::new() } else { read()? };
                Model::Domain(DomainTags::with_lines(&text, &path.display().to_string())?)
            }
            ScoreKind::Date => Model::Date,
        };
        Ok(Scorer { config: config.clone(), model })
    }

    /// The configuration that this was opened with.
    pub fn config(&self) -> &ScoreConfig {
        &self.config
    }

    /// The values of the columns that [`ScoreConfig::columns`] lists, in that order.
    pub fn score(&self, document: &Document<'_>) -> Vec<Value> {
        let text = document.text;
        match &self.model {
            Model::Language(model) => {
                let (language, score) = model.identify(text);
                vec![Value::Text(language.to_owned()), number(score as f64)]
            }
            // What has no token that the model knows is not what the label says.
            Model::FastText(model) => {
                vec![number(model.probability(text, &self.config.label).unwrap_or(0.0) as f64)]
            }
            Model::Perplexity(model, pieces) => {
                vec![number(perplexity_of_document(model, &**pieces, text))]
            }
            Model::LogProbability(model) => {
                let (mut log10, mut count) = (0.0, 0);
                for (line, words) in text.lines().map(|line| model.score_sentence(line)) {
                    log10 += line;
                    count += words;
                }
                vec![if count == 0 { Value::Missing } else { number(log10 / count as f64) }]
            }
            Model::Importance(model) => vec![number(model.mean_weight(text))],
            Model::Unigram(model) => vec![number(model.score(text))],
            Model::Domain(tags) => {
                vec![document.url.map_or(Value::Missing, |url| Value::Text(tags.tag(url).to_owned()))]
            }
            Model::Date => match date_of(document.url, text, document.fetched) {
                Some((date, source)) => {
                    vec![Value::Text(date.to_string()), Value::Text(source.name().to_owned())]
                }
                None => vec![Value::Missing, Value::Missing],
            },
        }
    }
}

fn number(value: f64) -> Value {
    if value.is_finite() { Value::Number(value) } else { Value::Missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> String {
        format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn every_kind_gives_the_columns_that_it_promises() {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("counts.csv"), "the,10\ncat,1\n").expect("written");
        let mut importance = Vec::new();
        let (mut a, b) = (crate::dsir::Bag::default(), crate::dsir::Bag::default());
        a.add("the cat");
        Importance::new(&a, &b).write(&mut importance).expect("a vector takes all");
        std::fs::write(folder.path().join("dsir.bin"), importance).expect("written");
        let lm = data("kenlm/trie.bin");
        for (kind, model, label) in [
            (ScoreKind::Language, String::new(), ""),
            (ScoreKind::Language, data("fasttext/pruned.ftz"), ""),
            (ScoreKind::Fasttext, data("fasttext/hs.bin"), "__label__fr"),
            (ScoreKind::Perplexity, lm.clone(), ""),
            (ScoreKind::LogProbability, lm, ""),
            (ScoreKind::Importance, "dsir.bin".into(), ""),
            (ScoreKind::Unigram, "counts.csv".into(), ""),
            (ScoreKind::Domain, String::new(), ""),
            (ScoreKind::Date, String::new(), ""),
        ] {
            let config =
                ScoreConfig { name: "s".into(), kind, model, label: label.into(), ..ScoreConfig::default() };
            let scorer = Scorer::open(&config, folder.path()).expect("opens");
            let document = Document {
                text: "the cat likes a river\nMay 5, 2018",
                url: Some("https://en.wikipedia.org/x"),
                fetched: None,
            };
            let values = scorer.score(&document);
            assert_eq!(values.len(), config.columns().len());
            assert!(!values.contains(&Value::Missing), "{kind:?}: {values:?}");
            assert_eq!(scorer.score(&Document::default()).len(), values.len());
        }
    }

    #[test]
    fn wrong_configurations_are_told() {
        let told =
            |config: ScoreConfig| Scorer::open(&config, Path::new(".")).expect_err("wrong").to_string();
        let base = || ScoreConfig { name: "q".into(), ..ScoreConfig::default() };
        assert!(told(ScoreConfig { name: "1x".into(), ..base() }).contains("not beginning with a digit"));
        assert!(told(ScoreConfig { kind: ScoreKind::Perplexity, ..base() }).contains("model"));
        assert!(told(ScoreConfig { head: 0.7, ..base() }).contains("head = 0.7"));
        assert!(told(ScoreConfig { parts: true, ..base() }).contains("parts"));
        assert!(told(ScoreConfig { pieces: "x.model".into(), ..base() }).contains("pieces"));
        let missing = ScoreConfig {
            kind: ScoreKind::Perplexity,
            model: data("kenlm/trie.bin"),
            pieces: "none.model".into(),
            ..base()
        };
        assert!(told(missing).contains("none.model"));
        let model = data("fasttext/hs.bin");
        let lost = ScoreConfig { kind: ScoreKind::Fasttext, model, label: "__label__xx".into(), ..base() };
        assert!(told(lost).contains("__label__fr"));
        let missing = ScoreConfig { kind: ScoreKind::Fasttext, model: "none.bin".into(), ..base() };
        assert!(told(missing).contains("none.bin"));
        let twice = ScoresConfig { list: vec![base(), base()] };
        assert!(twice.check().expect_err("twice").contains("rename"));
    }
}
