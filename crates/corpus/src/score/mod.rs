//! The scores of `[corpus.scores]` as columns of the rows.

mod parts;

use crate::error::{Error, Result};
use crate::output::series::own_fields;
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::scores::{ColumnType, ScoreConfig, ScoreKind, ScoresConfig};
use bessemer_dataflow::Stage;
use bessemer_documents::{Document, DocumentPass, EDIT_KINDS, Scratch, Value, Verdict, text_schema};
use bessemer_score::Scorer;
use std::path::Path;

/// Names that stages give to columns of their own.
const TAKEN: &[&str] = &[
    "copies",
    "order",
    "fingerprint",
    "bands",
    "component",
    "tags",
    "group",
    "shingles",
    "simhash",
    "embedding",
    "first_file",
    "first_row",
    "similarity",
    "gained",
    "repeated",
    "repeated_share",
    "grams",
];

/// The columns that a score writes, but for that of the part.
fn own_columns(score: &ScoreConfig) -> impl Iterator<Item = Field> {
    score.columns().into_iter().map(|(name, kind)| {
        let kind = match kind {
            ColumnType::Number => DataType::Float64,
            ColumnType::Text => DataType::Utf8,
        };
        Field::new(name, kind, true)
    })
}

/// Every column that the scores write.
pub(crate) fn columns(config: &ScoresConfig) -> Vec<Field> {
    let of = |score: &ScoreConfig| {
        let part = score.part_column().map(|name| Field::new(name, DataType::Utf8, true));
        own_columns(score).chain(part).collect::<Vec<Field>>()
    };
    config.list.iter().flat_map(of).collect()
}

/// Names of the columns that predicates may read: all but the parts of the corpus, which are known at the end.
pub(crate) fn predicate_columns(config: &ScoresConfig) -> impl Iterator<Item = String> {
    config.list.iter().flat_map(own_columns).map(|field| field.name().clone())
}

/// Whether some score looks at more than the text.
pub(crate) fn reads_urls(config: &ScoresConfig) -> bool {
    config.list.iter().any(|score| matches!(score.kind, ScoreKind::Domain | ScoreKind::Date))
}

/// Checks that no score writes a column that documents have already.
pub(crate) fn check(config: &ScoresConfig) -> std::result::Result<(), String> {
    let schema = text_schema();
    let own = own_fields();
    for field in columns(config) {
        let name = field.name().as_str();
        let of_rows = schema.field_with_name(name).is_ok() || own.iter().any(|own| own.name() == name);
        if of_rows || TAKEN.contains(&name) || EDIT_KINDS.contains(&name) {
            return Err(format!(
                "corpus.scores: the column {name:?} is one that documents have already: expected another name"
            ));
        }
    }
    Ok(())
}

/// What cuts the corpus into head, middle and tail: a stage for each score that is to do so.
pub(crate) fn parts(config: &ScoresConfig) -> Vec<Stage> {
    let mut language: Option<&str> = None;
    let mut stages = Vec::new();
    for score in &config.list {
        if score.kind == ScoreKind::Language {
            language = Some(&score.name);
        }
        stages.extend(parts::stage(score, language));
    }
    stages
}

/// Scores of one document, each in its columns.
pub(crate) struct Scores(Vec<Scorer>);

impl Scores {
    /// Opens these scores, if there are any.
    ///
    /// # Errors
    /// A model that is missing, damaged, or lacks the label.
    pub(crate) fn open<'a>(scores: impl Iterator<Item = &'a ScoreConfig>) -> Result<Option<Scores>> {
        let open = |score: &ScoreConfig| {
            Scorer::open(score, Path::new(""))
                .map_err(|error| Error::Config(format!("corpus.scores, score {:?}: {error}", score.name)))
        };
        let scorers = scores.map(open).collect::<Result<Vec<Scorer>>>()?;
        Ok((!scorers.is_empty()).then_some(Scores(scorers)))
    }
}

impl DocumentPass for Scores {
    fn name(&self) -> &str {
        "scores"
    }

    fn columns(&self) -> Vec<Field> {
        self.0.iter().flat_map(|scorer| own_columns(scorer.config())).collect()
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> bessemer_dataflow::Result<Verdict> {
        for scorer in &self.0 {
            let values = scorer.score(&bessemer_score::Document {
                text: document.text(),
                url: document.string("url"),
                fetched: document.string("fetched"),
            });
            for ((column, _), value) in scorer.config().columns().iter().zip(values) {
                document.set(
                    column,
                    match value {
                        bessemer_score::Value::Number(number) => Value::Number(number),
                        bessemer_score::Value::Text(text) => Value::Text(text),
                        bessemer_score::Value::Missing => Value::Null,
                    },
                );
            }
        }
        Ok(Verdict::Keep)
    }
}
