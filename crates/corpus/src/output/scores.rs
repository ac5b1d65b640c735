//! How the scores of the kept documents are distributed, for `corpus.json` and the data card.

use super::summary::{Count, ScoreSummary, most_documents_first};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field};
use bessemer_documents::{COMPONENT, METADATA};
use bessemer_score::quantile::Sketch;
use std::collections::BTreeMap;

/// Values of a column of names that are listed.
const LISTED: usize = 100;
/// Quantiles that are listed: 0, 5, ..., 100 per cent.
const STEPS: u32 = 20;

/// The distribution of one column.
pub(crate) struct Distribution {
    name: String,
    numbers: Option<Sketch>,
    values: BTreeMap<String, Count>,
    known: u64,
    missing: u64,
}

impl Distribution {
    /// Returns none for a column that is no score.
    pub(crate) fn new(field: &Field) -> Option<Distribution> {
        let numbers = match field.data_type() {
            DataType::Float64 => Some(Sketch::default()),
            DataType::Utf8 if !["url", METADATA, COMPONENT].contains(&field.name().as_str()) => None,
            _ => return None,
        };
        let name = field.name().clone();
        Some(Distribution { name, numbers, values: BTreeMap::new(), known: 0, missing: 0 })
    }

    /// Takes the value of a kept document of so many bytes.
    pub(crate) fn add(&mut self, batch: &RecordBatch, index: usize, bytes: u64) {
        let array = batch.column_by_name(&self.name).filter(|array| array.is_valid(index));
        let Some(array) = array else {
            self.missing += 1;
            return;
        };
        self.known += 1;
        if let Some(sketch) = &mut self.numbers {
            if let Some(numbers) = array.as_primitive_opt::<Float64Type>() {
                sketch.add(numbers.value(index));
            }
        } else if let Some(texts) = array.as_string_opt::<i32>() {
            Count::add_to(&mut self.values, texts.value(index), bytes);
        }
    }

    /// Its name and summary.
    pub(crate) fn finish(self) -> (String, ScoreSummary) {
        let quantiles = self.numbers.map(|sketch| {
            (0..=STEPS).filter_map(|step| sketch.quantile(f64::from(step) / f64::from(STEPS))).collect()
        });
        let values = most_documents_first(&self.values);
        let (listed, others) = values.split_at(values.len().min(LISTED));
        let rest: Count = others.iter().map(|(_, count)| count).sum();
        let summary = ScoreSummary {
            documents: self.known,
            missing: self.missing,
            quantiles: quantiles.unwrap_or_default(),
            values: listed.iter().map(|&(name, count)| (name.to_string(), count)).collect(),
            other_values: (rest.documents > 0).then_some(rest),
        };
        (self.name, summary)
    }
}
