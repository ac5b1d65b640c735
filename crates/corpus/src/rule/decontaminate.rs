//! Documents that hold parts of evaluation sets are dropped, or the parts are cut out: the `privacy` room as a map over
//! batches.

use arrow_array::RecordBatch;
use arrow_array::builder::StringBuilder;
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, optional, with_columns};
use bessemer_documents::{EVALUATION_SETS, Rows, head};
use bessemer_privacy::decontaminate::{Decontaminated, Hit, Index};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reason of documents that hold a part of an evaluation set.
pub(crate) const CONTAMINATED: &str = "contaminated";

/// The map. It writes the column `evaluation_sets`: the sets that a document held parts of, with the number of places.
pub(crate) struct Decontaminate(pub(crate) Index);

impl Decontaminate {
    /// Places by set, as JSON.
    fn sets(&self, hits: &[Hit]) -> String {
        let mut places: BTreeMap<&str, u64> = BTreeMap::new();
        for hit in hits {
            *places.entry(self.0.name(hit.set)).or_default() += 1;
        }
        serde_json::json!(places).to_string()
    }
}

impl BatchMap for Decontaminate {
    fn name(&self) -> &str {
        "decontaminate"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let rows = Rows::of(self.name(), &batch)?;
        let count = batch.num_rows();
        let mut texts = StringBuilder::with_capacity(count, rows.text.value_data().len());
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        let mut sets = StringBuilder::new();
        for index in 0..count {
            let text = rows.text.value(index);
            let outcome = match optional(rows.reason, index) {
                None => self.0.check(text),
                Some(_) => Decontaminated::Clean,
            };
            if let Decontaminated::Dropped(hit) = &outcome {
                reasons.append_value(CONTAMINATED);
                details.append_value(format!("{}: {}", self.0.name(hit.set), head(&hit.words)));
            } else {
                reasons.append_option(optional(rows.reason, index));
                details.append_option(optional(rows.detail, index));
            }
            match outcome {
                Decontaminated::Clean => {
                    texts.append_value(text);
                    sets.append_null();
                }
                Decontaminated::Dropped(hit) => {
                    texts.append_value(head(text));
                    sets.append_value(self.sets(&[hit]));
                }
                Decontaminated::Cut(left, hits) => {
                    texts.append_value(left);
                    sets.append_value(self.sets(&hits));
                }
            }
        }
        let nullable = |name: &str| Field::new(name, DataType::Utf8, true);
        with_columns(
            &batch,
            vec![
                (nullable("reason"), Arc::new(reasons.finish())),
                (nullable("detail"), Arc::new(details.finish())),
                (nullable(EVALUATION_SETS), Arc::new(sets.finish())),
                (Field::new("text", DataType::Utf8, false), Arc::new(texts.finish())),
            ],
        )
    }
}
