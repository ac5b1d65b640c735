//! Folds runs of equal key in sorted partitions.

use super::Stream;
use super::key::Keys;
use crate::error::Result;
use crate::plan::{Fold, Reducer};
use crate::source::{Morsel, Scan};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn reduce<'a>(stream: Stream<'a>, key: &[String], reducer: &Arc<dyn Reducer>) -> Stream<'a> {
    stream
        .into_iter()
        .map(|input| {
            Box::new(Reduced {
                input,
                key: key.to_vec(),
                fold: reducer.fold(),
                last: None,
                ready: VecDeque::new(),
                ended: false,
            }) as Box<dyn Scan + 'a>
        })
        .collect()
}

struct Reduced<'a> {
    input: Box<dyn Scan + 'a>,
    key: Vec<String>,
    fold: Box<dyn Fold>,
    /// Key of the last row of the previous batch.
    last: Option<Vec<u8>>,
    ready: VecDeque<arrow_array::RecordBatch>,
    ended: bool,
}

impl Scan for Reduced<'_> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(Box::new(move || Ok(batch))));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(morsel) = self.input.next()? else {
                self.ended = true;
                self.ready.extend(self.fold.finish()?);
                continue;
            };
            let batch = morsel()?;
            let keys = Keys::of("reduce", &batch, &self.key)?;
            let mut start = 0;
            while start < batch.num_rows() {
                let key = keys.get(start);
                let length = (start..batch.num_rows()).take_while(|&row| keys.get(row) == key).count();
                let first = self.last.as_deref() != Some(key);
                self.ready.extend(self.fold.take(&batch, start..start + length, first)?);
                if first {
                    self.last = Some(key.to_vec());
                }
                start += length;
            }
        }
    }
}
