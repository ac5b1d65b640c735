//! Columns of values that have been written, for [`crate::verify()`].
//!
//! Operators and collectives fill some columns of a fused value each: queries, keys, values. Whether one of them is missing does not
//! show in the layout of the value.

use crate::value::Value;
use bessemer_tensor::View;
use std::ops::Range;

/// Indexed by value: columns that have been written, in the order in which they were.
#[derive(Debug)]
pub(crate) struct WrittenColumns(Vec<Vec<Range<usize>>>);

fn columns(value: &Value, view: &View) -> Range<usize> {
    let first = view.offset % value.cols.max(1);
    first..(first + view.cols).min(value.cols)
}

impl WrittenColumns {
    pub(crate) fn none(values: usize) -> WrittenColumns {
        WrittenColumns(vec![Vec::new(); values])
    }

    /// The value is there as a whole.
    pub(crate) fn all(&mut self, id: usize, value: &Value) {
        self.clear(id);
        self.0[id].push(0..value.cols);
    }

    /// Forgets all columns of the value.
    pub(crate) fn clear(&mut self, id: usize) {
        self.0[id].clear();
    }

    pub(crate) fn add(&mut self, value: &Value, view: &View) {
        let new = columns(value, view);
        let written = &mut self.0[view.buffer.id as usize];
        if !written.contains(&new) {
            written.push(new);
        }
    }

    /// Whether all columns of the view have been written.
    pub(crate) fn has(&self, value: &Value, view: &View) -> bool {
        let mut wanted = columns(value, view);
        let written = &self.0[view.buffer.id as usize];
        while !wanted.is_empty() {
            match written.iter().find(|w| w.contains(&wanted.start)) {
                Some(found) => wanted.start = found.end,
                None => return false,
            }
        }
        true
    }
}
