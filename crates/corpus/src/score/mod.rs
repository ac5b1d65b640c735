//! The scores of `[corpus.scores]` as columns of the rows.

mod parts;

use crate::error::{Error, Result};
use crate::output::documents::own_fields;
use arrow_array::builder::{Float64Builder, StringBuilder};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, Stage, optional, with_columns};
use bessemer_documents::{Rows, text_schema};
use bessemer_score::{ColumnType, Document, ScoreConfig, ScoreKind, Scorer, ScoresConfig, Value};
use std::path::Path;
use std::sync::Arc;

/// Names that stages give to columns of their own.
const TAKEN: &[&str] = &[
    "copies",
    "numbers",
    "secrets",
    "evaluation_sets",
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

/// Checks every value; the message names the key.
pub(crate) fn check(config: &ScoresConfig) -> std::result::Result<(), String> {
    config.check().map_err(|error| format!("corpus.{error}"))?;
    let schema = text_schema();
    let own = own_fields();
    for field in columns(config) {
        let name = field.name().as_str();
        let of_rows = schema.field_with_name(name).is_ok() || own.iter().any(|own| own.name() == name);
        if of_rows || TAKEN.contains(&name) {
            return Err(format!(
                "corpus.scores: the column {name:?} is one that documents have already: expected another name"
            ));
        }
    }
    Ok(())
}

/// The map of these scores, if there are any.
///
/// # Errors
/// A model that is missing, damaged, or lacks the label.
pub(crate) fn stage<'a>(scores: impl Iterator<Item = &'a ScoreConfig>) -> Result<Option<Stage>> {
    let open = |score: &ScoreConfig| {
        Scorer::open(score, Path::new(""))
            .map_err(|error| Error::Config(format!("corpus.scores, score {:?}: {error}", score.name)))
    };
    let scorers = scores.map(open).collect::<Result<Vec<Scorer>>>()?;
    if scorers.is_empty() {
        return Ok(None);
    }
    let fields = scorers.iter().flat_map(|scorer| own_columns(scorer.config())).collect();
    Ok(Some(Stage::Map(Arc::new(Scores { scorers, fields }))))
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

/// The map.
struct Scores {
    scorers: Vec<Scorer>,
    fields: Vec<Field>,
}

/// Values of a column that is being made.
enum Column {
    Number(Float64Builder),
    Text(StringBuilder),
}

impl Column {
    fn new(field: &Field) -> Column {
        match field.data_type() {
            DataType::Float64 => Column::Number(Float64Builder::new()),
            _ => Column::Text(StringBuilder::new()),
        }
    }

    fn push(&mut self, value: Value) -> bessemer_dataflow::Result<()> {
        match (self, value) {
            (Column::Number(numbers), Value::Number(number)) => numbers.append_value(number),
            (Column::Number(numbers), Value::Missing) => numbers.append_null(),
            (Column::Text(texts), Value::Text(text)) => texts.append_value(text),
            (Column::Text(texts), Value::Missing) => texts.append_null(),
            (_, value) => {
                let problem = format!("{value:?} is not of the type that its score promises");
                return Err(bessemer_dataflow::Error::plan("scores", problem));
            }
        }
        Ok(())
    }

    fn finish(self) -> ArrayRef {
        match self {
            Column::Number(mut numbers) => Arc::new(numbers.finish()),
            Column::Text(mut texts) => Arc::new(texts.finish()),
        }
    }
}

impl BatchMap for Scores {
    fn name(&self) -> &str {
        "scores"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let rows = Rows::of(self.name(), &batch)?;
        let mut columns: Vec<Column> = self.fields.iter().map(Column::new).collect();
        for index in 0..batch.num_rows() {
            if rows.reason.is_valid(index) {
                // What is dropped is not scored: only its head is left.
                columns.iter_mut().try_for_each(|column| column.push(Value::Missing))?;
                continue;
            }
            let document = Document {
                text: rows.text.value(index),
                url: optional(rows.url, index),
                fetched: optional(rows.fetched, index),
            };
            let values = self.scorers.iter().flat_map(|scorer| scorer.score(&document));
            for (column, value) in columns.iter_mut().zip(values) {
                column.push(value)?;
            }
        }
        let made = self.fields.iter().cloned().zip(columns.into_iter().map(Column::finish)).collect();
        with_columns(&batch, made)
    }
}
