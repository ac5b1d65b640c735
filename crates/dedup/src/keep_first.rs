//! Lists every row of a group but the first as a duplicate, and counts the group for the first. Rows arrive sorted by (group, order).

use crate::verdict::{Verdicts, weight};
use arrow_array::RecordBatch;
use bessemer_dataflow::{Fold, Reducer, Result};
use bessemer_documents::{DocKey, doc_key_column};
use std::ops::Range;

/// The reduction; its rows carry `order` (16-byte places) and perhaps `copies`.
pub(crate) struct KeepFirst;

impl Reducer for KeepFirst {
    fn name(&self) -> &str {
        "keep-first"
    }

    fn fold(&self) -> Box<dyn Fold> {
        Box::new(KeepFirstFold::default())
    }
}

#[derive(Default)]
struct KeepFirstFold(Verdicts);

impl Fold for KeepFirstFold {
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        let KeepFirstFold(found) = self;
        if first {
            found.end_group();
        }
        let orders = doc_key_column("keep-first", batch, "order")?;
        for row in rows {
            let place = DocKey::of_bytes(orders.value(row));
            match found.kept() {
                0 => found.keep(place),
                _ => found.drop(place, weight("keep-first", batch, row)?, 0, None),
            }
        }
        found.full()
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.0.finish()
    }
}
