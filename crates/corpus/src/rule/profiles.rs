//! The profiles of the `rules` crate as a pass over documents.

use crate::check::TAG;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_schema::DataType;
use bessemer_dataflow::Result;
use bessemer_documents::{
    self as documents, Document, DocumentPass, EDIT_KINDS, LINES, METADATA, TAGS, TRAIN, head,
};
use bessemer_rules::{DocumentView, METADATA_PREFIX, Profile, Row, RuleResult, Scratch, Value, Verdict};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Profiles that documents go through one after the other; each sees the text as the one before left it. The first rule that
/// drops gives the reason.
pub(crate) struct Profiles(pub(crate) Vec<Profile>);

/// A document as a row of columns, for predicates: columns of the batch, values that earlier passes set, and kinds of edits.
/// `split` reads as its name, as in the names of the output's files. A name that begins with `tag.` is a tag of the document's
/// source, one that begins with `meta.` metadata of the input.
pub(crate) struct DocumentRow<'a, 'b>(pub(crate) &'a Document<'b>);

impl DocumentRow<'_, '_> {
    fn tag(&self, name: &str) -> Option<Value<'static>> {
        let mut tags: BTreeMap<String, String> = serde_json::from_str(self.0.string(TAGS)?).ok()?;
        Some(tags.remove(name).map_or(Value::Null, |value| Value::Text(Cow::Owned(value))))
    }

    fn metadata(&self, column: &str) -> Option<Value<'static>> {
        let mut object: Map<String, Json> = serde_json::from_str(self.0.string(METADATA)?).ok()?;
        Some(match object.remove(column)? {
            Json::String(text) => Value::Text(Cow::Owned(text)),
            Json::Bool(value) => Value::Bool(value),
            value => value.as_f64().map_or(Value::Null, Value::Number),
        })
    }

    /// The values of these columns in words, but that of the text.
    fn in_words(&self, columns: &[&str]) -> String {
        let one = |name: &&str| {
            let value = match self.value(name)? {
                Value::Null => "missing".to_string(),
                Value::Bool(value) => value.to_string(),
                Value::Number(value) => value.to_string(),
                Value::Text(value) => format!("{:?}", head(&value)),
            };
            Some(format!("{name} = {value}"))
        };
        let words: Vec<String> = columns.iter().filter(|name| **name != "text").filter_map(one).collect();
        if words.is_empty() { "not true".into() } else { words.join(", ") }
    }
}

impl Row for DocumentRow<'_, '_> {
    fn value(&self, column: &str) -> Option<Value<'_>> {
        if let Some(name) = column.strip_prefix(TAG) {
            return self.tag(name);
        }
        if column.starts_with(METADATA_PREFIX) {
            return Some(self.metadata(column).unwrap_or(Value::Null));
        }
        if column == "text" {
            return Some(Value::Text(Cow::Borrowed(self.0.text())));
        }
        if EDIT_KINDS.contains(&column) {
            return Some(Value::Number(self.0.edits().get(column) as f64));
        }
        match self.0.value(column) {
            Some(documents::Value::Number(number)) => return Some(Value::Number(*number)),
            Some(documents::Value::Text(text)) => return Some(Value::Text(Cow::Borrowed(text))),
            Some(documents::Value::Null) => return Some(Value::Null),
            None => {}
        }
        let (array, index) = (self.0.batch().column_by_name(column)?, self.0.index());
        if array.is_null(index) {
            return Some(Value::Null);
        }
        Some(match array.data_type() {
            DataType::Utf8 => Value::Text(Cow::Borrowed(array.as_string::<i32>().value(index))),
            DataType::Boolean => Value::Bool(array.as_boolean().value(index)),
            DataType::UInt8 if column == "split" => {
                let train = array.as_primitive::<UInt8Type>().value(index) == TRAIN;
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
        self.0.batch().schema_ref().fields().iter().map(|field| field.name().as_str()).collect()
    }
}

impl Profiles {
    /// Says why a profile drops a document.
    fn why(document: &Document<'_>, profile: &Profile, failed: Option<RuleResult>) -> String {
        failed.map_or_else(String::new, |rule| {
            let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value}"));
            if rule.rule.starts_with("where ") {
                return format!("{}: {}", profile.name(), DocumentRow(document).in_words(&profile.columns()));
            }
            let (value, min, max) = (number(rule.value), number(rule.min), number(rule.max));
            format!("{}: {} is {value}, allowed {min} to {max}", profile.name(), rule.rule)
        })
    }
}

impl DocumentPass for Profiles {
    fn name(&self) -> &str {
        "profiles"
    }

    fn visit(
        &self,
        document: &mut Document<'_>,
        scratch: &mut documents::Scratch,
    ) -> Result<documents::Verdict> {
        let scratch = scratch.get::<Scratch>();
        let mut edited: Option<String> = None;
        let mut dropped = None;
        for profile in &self.0 {
            let text = edited.as_deref().unwrap_or(document.text());
            let view = DocumentView { text, columns: &DocumentRow(document) };
            let outcome = profile.evaluate_with(&view, scratch);
            match outcome.verdict {
                Verdict::Keep => {}
                Verdict::Edit(text) => edited = Some(text),
                Verdict::Drop(reason) => {
                    let detail = Profiles::why(document, profile, outcome.failed);
                    dropped = Some(documents::Verdict::drop(reason, detail));
                    break;
                }
            }
        }
        if let Some(edited) = edited {
            let removed = document.text().lines().count().saturating_sub(edited.lines().count());
            document.edits_mut().add(LINES, removed as u64);
            document.set_text(edited);
        }
        Ok(dropped.unwrap_or(documents::Verdict::Keep))
    }
}
