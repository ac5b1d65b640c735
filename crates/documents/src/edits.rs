//! Edits of documents: how many of each kind were made, as one map column.

use arrow_array::builder::{MapBuilder, MapFieldNames, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, MapArray, RecordBatch};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{Result, column};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Column of the edits: kind to count; null where there are none.
pub const EDITS: &str = "edits";

/// E-mail addresses replaced.
pub const EMAILS: &str = "emails";
/// IP addresses replaced.
pub const IPS: &str = "ips";
/// Lines removed.
pub const LINES: &str = "lines";
/// Phone, card and account numbers replaced.
pub const NUMBERS: &str = "numbers";
/// Keys and tokens replaced.
pub const SECRETS: &str = "secrets";
/// WARC records whose `Content-Length` is not that of their block.
pub const LENGTHS: &str = "lengths";
/// The kinds of edits of texts: predicates name them like columns.
pub const EDIT_KINDS: [&str; 5] = [EMAILS, IPS, LINES, NUMBERS, SECRETS];

/// What the kind of the places of an evaluation set begins with; the set's name follows.
const EVALUATION_SET: &str = "evaluation-set:";

/// Edits of one document: kind to count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits(BTreeMap<Cow<'static, str>, u64>);

impl Edits {
    /// Counts edits of a kind.
    pub fn add(&mut self, kind: impl Into<Cow<'static, str>>, count: u64) {
        if count > 0 {
            *self.0.entry(kind.into()).or_default() += count;
        }
    }

    /// Counts places that an evaluation set holds.
    pub fn add_evaluation_set(&mut self, name: &str, places: u64) {
        self.add(format!("{EVALUATION_SET}{name}"), places);
    }

    /// Edits of a kind.
    pub fn get(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Evaluation sets that hold parts of the document, with the number of places.
    pub fn evaluation_sets(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(|(kind, count)| Some((kind.strip_prefix(EVALUATION_SET)?, *count)))
    }
}

fn keys() -> Field {
    Field::new("keys", DataType::Utf8, false)
}

fn values() -> Field {
    Field::new("values", DataType::UInt64, false)
}

/// The column [`EDITS`].
pub(crate) fn edits_field() -> Field {
    let entries = DataType::Struct(vec![keys(), values()].into());
    Field::new(EDITS, DataType::Map(Arc::new(Field::new("entries", entries, false)), false), true)
}

/// The column of these edits, one row each.
pub(crate) fn edits_column(rows: &[Edits]) -> Result<ArrayRef> {
    let names = MapFieldNames { entry: "entries".into(), key: "keys".into(), value: "values".into() };
    let mut column = MapBuilder::new(Some(names), StringBuilder::new(), UInt64Builder::new())
        .with_keys_field(keys())
        .with_values_field(values());
    for edits in rows {
        for (kind, count) in &edits.0 {
            column.keys().append_value(kind);
            column.values().append_value(*count);
        }
        column.append(!edits.0.is_empty())?;
    }
    Ok(Arc::new(column.finish()))
}

/// Typed access to the column [`EDITS`]; a batch without it has no edits.
pub struct EditsColumn<'a>(Option<&'a MapArray>);

impl<'a> EditsColumn<'a> {
    /// The column of a batch; `stage` names who asks.
    ///
    /// # Errors
    /// The column has another type.
    pub fn of(stage: &str, batch: &'a RecordBatch) -> Result<EditsColumn<'a>> {
        let found = batch.column_by_name(EDITS).map(|_| column(stage, batch, EDITS)).transpose()?;
        Ok(EditsColumn(found))
    }

    /// Edits of a row.
    pub fn get(&self, row: usize) -> Edits {
        let Some(map) = self.0.filter(|map| map.is_valid(row)) else { return Edits::default() };
        let entries = map.value(row);
        let (Some(kinds), Some(counts)) =
            (entries.column(0).as_string_opt::<i32>(), entries.column(1).as_primitive_opt::<UInt64Type>())
        else {
            return Edits::default();
        };
        let mut edits = Edits::default();
        (0..entries.len()).for_each(|entry| edits.add(kinds.value(entry).to_string(), counts.value(entry)));
        edits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Schema;

    #[test]
    fn edits_survive_the_column_and_a_row_without_edits_is_null() {
        let mut some = Edits::default();
        some.add(LINES, 2);
        some.add(LINES, 1);
        some.add(EMAILS, 0);
        some.add_evaluation_set("mmlu: \"é\"", 4);
        let rows = [Edits::default(), some.clone(), Edits::default()];
        let schema = Arc::new(Schema::new(vec![edits_field()]));
        let batch = RecordBatch::try_new(schema, vec![edits_column(&rows).unwrap()]).unwrap();
        let column = EditsColumn::of("test", &batch.slice(1, 2)).map(|column| (column.get(0), column.get(1)));
        assert_eq!(column.unwrap(), (some.clone(), Edits::default()));
        assert_eq!((some.get(LINES), some.get(EMAILS)), (3, 0));
        assert_eq!(some.evaluation_sets().collect::<Vec<_>>(), [("mmlu: \"é\"", 4)]);
        assert_eq!(batch.column(0).null_count(), 2);
    }
}
