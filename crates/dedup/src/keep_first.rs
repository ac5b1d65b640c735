//! Lists every row of a group but the first as a duplicate, and counts the group for the first.
//!
//! Rows arrive sorted by (group, order). For each group of two or more rows the fold gives out one row for each of
//! them: (file, row, place of the first, or null for the first itself, copies gained by the first, or null).

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
struct KeepFirstFold {
    first: Option<DocKey>,
    gained: u64,
    found: Verdicts,
}

impl KeepFirstFold {
    fn end_group(&mut self) {
        if let Some(first) = self.first.take()
            && self.gained > 0
        {
            self.found.kept(first, self.gained);
        }
        self.gained = 0;
    }
}

impl Fold for KeepFirstFold {
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        if first {
            self.end_group();
        }
        let orders = doc_key_column("keep-first", batch, "order")?;
        for row in rows {
            let place = DocKey::of_bytes(orders.value(row));
            match self.first {
                None => self.first = Some(place),
                Some(first) => {
                    self.gained += weight("keep-first", batch, row)?;
                    self.found.dropped(place, first, None);
                }
            }
        }
        self.found.full()
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.end_group();
        self.found.flush()
    }
}
