//! The profiles of the `rules` crate as a map over batches.

use crate::mix::TAG;
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, optional, with_columns};
use bessemer_documents::{METADATA, Rows, TAGS, head};
use bessemer_rules::{DocumentView, METADATA_PREFIX, Profile, Row, Scratch, Value, Verdict};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Profiles that documents go through one after the other; each sees the text as the one before left it. The first rule that
/// drops gives the reason.
pub(crate) struct Profiles(pub(crate) Vec<Profile>);

/// One row of a batch, for predicates. `split` reads as its name, as in the names of the output's files.
/// A name that begins with `tag.` is a tag of the document's source, one that begins with `meta.` metadata of the input.
pub(crate) struct BatchRow<'a> {
    batch: &'a RecordBatch,
    index: usize,
}

impl<'a> BatchRow<'a> {
    fn tag(&self, name: &str) -> Option<Value<'static>> {
        let tags = self.batch.column_by_name(TAGS)?.as_string_opt::<i32>()?.value(self.index);
        let mut tags: BTreeMap<String, String> = serde_json::from_str(tags).ok()?;
        Some(tags.remove(name).map_or(Value::Null, |value| Value::Text(Cow::Owned(value))))
    }
}

impl BatchRow<'_> {
    fn metadata(&self, column: &str) -> Option<Value<'static>> {
        let array = self.batch.column_by_name(METADATA)?.as_string_opt::<i32>()?;
        let mut object: Map<String, Json> = serde_json::from_str(optional(array, self.index)?).ok()?;
        Some(match object.remove(column)? {
            Json::String(text) => Value::Text(Cow::Owned(text)),
            Json::Bool(value) => Value::Bool(value),
            value => value.as_f64().map_or(Value::Null, Value::Number),
        })
    }
}

impl Row for BatchRow<'_> {
    fn value(&self, column: &str) -> Option<Value<'_>> {
        if let Some(name) = column.strip_prefix(TAG) {
            return self.tag(name);
        }
        if column.starts_with(METADATA_PREFIX) {
            return Some(self.metadata(column).unwrap_or(Value::Null));
        }
        let array = self.batch.column_by_name(column)?;
        if array.is_null(self.index) {
            return Some(Value::Null);
        }
        let index = self.index;
        Some(match array.data_type() {
            DataType::Utf8 => Value::Text(Cow::Borrowed(array.as_string::<i32>().value(index))),
            DataType::Boolean => Value::Bool(array.as_boolean().value(index)),
            DataType::UInt8 if column == "split" => {
                let train = array.as_primitive::<UInt8Type>().value(index) == bessemer_documents::TRAIN;
                Value::Text(Cow::Borrowed(if train { "train" } else { "validation" }))
            }
            DataType::UInt8 => Value::Number(array.as_primitive::<UInt8Type>().value(index).into()),
            DataType::UInt32 => Value::Number(array.as_primitive::<UInt32Type>().value(index).into()),
            DataType::UInt64 => Value::Number(array.as_primitive::<UInt64Type>().value(index) as f64),
            DataType::Int64 => Value::Number(array.as_primitive::<Int64Type>().value(index) as f64),
            DataType::Float32 => Value::Number(array.as_primitive::<Float32Type>().value(index).into()),
            DataType::Float64 => Value::Number(array.as_primitive::<Float64Type>().value(index)),
            _ => Value::Null,
        })
    }

    fn names(&self) -> Vec<&str> {
        self.batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect()
    }
}

impl<'a> BatchRow<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, index: usize) -> BatchRow<'a> {
        BatchRow { batch, index }
    }

    /// The values of these columns in words, but that of the text.
    fn told(&self, columns: &[&str]) -> String {
        let one = |name: &&str| {
            let value = match self.value(name)? {
                Value::Null => "missing".to_string(),
                Value::Bool(value) => value.to_string(),
                Value::Number(value) => value.to_string(),
                Value::Text(value) => format!("{:?}", head(&value)),
            };
            Some(format!("{name} = {value}"))
        };
        let told: Vec<String> = columns.iter().filter(|name| **name != "text").filter_map(one).collect();
        if told.is_empty() { "not true".into() } else { told.join(", ") }
    }
}

/// What became of a document.
enum Outcome<'t> {
    Kept(Cow<'t, str>),
    Dropped { reason: String, detail: String, text: Cow<'t, str> },
}

impl Profiles {
    fn judge<'t>(&self, text: &'t str, row: &BatchRow<'_>, scratch: &mut Scratch) -> Outcome<'t> {
        let mut text = Cow::Borrowed(text);
        for profile in &self.0 {
            let view = DocumentView { text: &text, columns: row };
            match profile.judge_with(&view, scratch).verdict {
                Verdict::Keep => {}
                Verdict::Edit(edited) => text = Cow::Owned(edited),
                Verdict::Drop(reason) => {
                    // Only what is dropped pays for being explained.
                    let rules = profile.explain(&view, scratch).rules;
                    let failed = rules.iter().find(|rule| rule.failed());
                    let detail = failed.map_or_else(String::new, |rule| {
                        let number =
                            |value: Option<f64>| value.map_or("-".into(), |value| format!("{value}"));
                        if rule.rule.starts_with("where ") {
                            return format!("{}: {}", profile.name(), row.told(&profile.columns()));
                        }
                        let (value, min, max) = (number(rule.value), number(rule.min), number(rule.max));
                        format!("{}: {} is {value}, allowed {min} to {max}", profile.name(), rule.rule)
                    });
                    return Outcome::Dropped { reason, detail, text };
                }
            }
        }
        Outcome::Kept(text)
    }
}

impl BatchMap for Profiles {
    fn name(&self) -> &str {
        "profiles"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let rows = Rows::of(self.name(), &batch)?;
        let count = batch.num_rows();
        let mut texts = StringBuilder::with_capacity(count, rows.text.value_data().len());
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        let mut lines: Vec<u32> = rows.lines.values().to_vec();
        let mut scratch = Scratch::new();
        for (index, removed) in lines.iter_mut().enumerate() {
            let text = rows.text.value(index);
            if let Some(reason) = optional(rows.reason, index) {
                reasons.append_value(reason);
                details.append_option(optional(rows.detail, index));
                texts.append_value(text);
                continue;
            }
            match self.judge(text, &BatchRow::new(&batch, index), &mut scratch) {
                Outcome::Kept(kept) => {
                    if let Cow::Owned(edited) = &kept {
                        let gone = text.lines().count().saturating_sub(edited.lines().count());
                        *removed += u32::try_from(gone).unwrap_or(u32::MAX);
                    }
                    reasons.append_null();
                    details.append_null();
                    texts.append_value(&kept);
                }
                Outcome::Dropped { reason, detail, text } => {
                    reasons.append_value(reason);
                    details.append_value(detail);
                    texts.append_value(head(&text));
                }
            }
        }
        let lines: ArrayRef = Arc::new(UInt32Array::from(lines));
        with_columns(
            &batch,
            vec![
                (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
                (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
                (Field::new("lines", DataType::UInt32, false), lines),
                (Field::new("text", DataType::Utf8, false), Arc::new(texts.finish())),
            ],
        )
    }
}
