//! Sorts each partition: sorted runs, then a merge.
//!
//! Rows are collected up to a run's size, ordered by their encoded keys, and kept as a run that may go to disk.
//! Runs are merged by a heap; when there are more than [`FAN_IN`] of them, neighbours are merged first. Rows of
//! equal key keep their order, because runs are numbered in the order of their rows.
//! Cost: n log n comparisons; each row is written and read once per merge level.

use super::Executor;
use super::budget::Budget;
use super::key::Keys;
use super::spool::{Spool, SpoolReader, held_bytes};
use crate::error::Result;
use crate::source::{Morsel, Scan, morsel};
use arrow_array::RecordBatch;
use arrow_select::interleave::interleave_record_batch;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs that are merged at once: bounds the open files.
const FAN_IN: usize = 64;
/// Rows of a merged batch.
const BATCH_ROWS: usize = 4096;
/// Bytes of rows that are sorted at once.
const RUN_BYTES: usize = 16 << 20;

impl Executor<'_> {
    /// Sorts lazily: a partition is sorted by whoever reads it.
    pub(super) fn sort(&self, stream: Vec<Box<dyn Scan>>, by: &[String]) -> Vec<Box<dyn Scan>> {
        stream
            .into_iter()
            .map(|input| {
                Box::new(Sorted {
                    state: State::Input(input),
                    by: by.to_vec(),
                    budget: self.budget.clone(),
                    folder: self.spill.clone(),
                }) as Box<dyn Scan>
            })
            .collect()
    }
}

enum State {
    Input(Box<dyn Scan>),
    Merging(Merge),
    Ended,
}

/// A partition in order.
struct Sorted {
    state: State,
    by: Vec<String>,
    budget: Arc<Budget>,
    folder: PathBuf,
}

impl Sorted {
    fn spool(&self) -> Spool {
        Spool::with(self.budget.clone(), self.folder.clone())
    }

    /// Orders the collected batches and keeps them as a run.
    fn run(&self, batches: &mut Vec<RecordBatch>) -> Result<Spool> {
        let keys =
            batches.iter().map(|batch| Keys::of("sort", batch, &self.by)).collect::<Result<Vec<Keys>>>()?;
        let mut order: Vec<(usize, usize)> = batches
            .iter()
            .enumerate()
            .flat_map(|(index, batch)| (0..batch.num_rows()).map(move |row| (index, row)))
            .collect();
        order.sort_by(|a, b| keys[a.0].get(a.1).cmp(keys[b.0].get(b.1)));
        let views: Vec<&RecordBatch> = batches.iter().collect();
        let mut spool = self.spool();
        for chunk in order.chunks(BATCH_ROWS) {
            spool.push(interleave_record_batch(&views, chunk)?)?;
        }
        batches.clear();
        Ok(spool)
    }

    fn merge(&self, runs: Vec<Spool>) -> Result<Merge> {
        let mut inputs = Vec::with_capacity(runs.len());
        for mut run in runs {
            inputs.push(Input::new(run.reader()?, &self.by)?);
        }
        Ok(Merge::new(inputs))
    }

    /// Reads the input to its end.
    fn collect(&self, mut input: Box<dyn Scan>) -> Result<Merge> {
        let mut runs = Vec::new();
        let mut batches = Vec::new();
        let mut bytes = 0;
        while let Some(morsel) = input.next()? {
            let batch = morsel()?;
            if batch.num_rows() == 0 {
                continue;
            }
            bytes += held_bytes(&batch);
            batches.push(batch);
            if bytes >= RUN_BYTES {
                runs.push(self.run(&mut batches)?);
                bytes = 0;
            }
        }
        if !batches.is_empty() {
            runs.push(self.run(&mut batches)?);
        }
        while runs.len() > FAN_IN {
            let mut merged = Vec::new();
            let mut rest = runs.into_iter().peekable();
            while rest.peek().is_some() {
                let group: Vec<Spool> = rest.by_ref().take(FAN_IN).collect();
                let mut merge = self.merge(group)?;
                let mut spool = self.spool();
                while let Some(batch) = merge.next_batch()? {
                    spool.push(batch)?;
                }
                merged.push(spool);
            }
            runs = merged;
        }
        self.merge(runs)
    }
}

impl Scan for Sorted {
    fn next(&mut self) -> Result<Option<Morsel>> {
        if let State::Input(_) = self.state
            && let State::Input(input) = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Merging(self.collect(input)?);
        }
        match &mut self.state {
            State::Merging(merge) => Ok(merge.next_batch()?.map(morsel)),
            State::Input(_) | State::Ended => Ok(None),
        }
    }
}

/// One run while it is merged.
struct Input {
    reader: SpoolReader,
    by: Vec<String>,
    /// The batch being read, with its keys and the next row.
    current: Option<(RecordBatch, Keys, usize)>,
}

impl Input {
    fn new(reader: SpoolReader, by: &[String]) -> Result<Input> {
        let mut input = Input { reader, by: by.to_vec(), current: None };
        input.refill()?;
        Ok(input)
    }

    fn refill(&mut self) -> Result<()> {
        self.current = match self.reader.next_batch()? {
            Some(batch) => {
                let keys = Keys::of("sort", &batch, &self.by)?;
                Some((batch, keys, 0))
            }
            None => None,
        };
        Ok(())
    }

    fn key(&self) -> Option<Vec<u8>> {
        self.current.as_ref().map(|(_, keys, row)| keys.get(*row).to_vec())
    }
}

/// Merges runs.
struct Merge {
    inputs: Vec<Input>,
    /// Smallest key of each run that has rows left; ties go to the earlier run.
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Merge {
    fn new(inputs: Vec<Input>) -> Merge {
        let heap = inputs
            .iter()
            .enumerate()
            .filter_map(|(index, input)| input.key().map(|key| Reverse((key, index))))
            .collect();
        Merge { inputs, heap }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        // Batches that the rows of this output come from, and the rows themselves.
        let mut batches: Vec<RecordBatch> = Vec::new();
        let mut place: Vec<Option<usize>> = vec![None; self.inputs.len()];
        let mut rows: Vec<(usize, usize)> = Vec::new();
        let mut bytes = 0;
        while rows.len() < BATCH_ROWS && bytes < RUN_BYTES {
            let Some(Reverse((_, index))) = self.heap.pop() else { break };
            let input = &mut self.inputs[index];
            let Some((batch, _, row)) = &mut input.current else { continue };
            let slot = *place[index].get_or_insert_with(|| {
                bytes += held_bytes(batch);
                batches.push(batch.clone());
                batches.len() - 1
            });
            rows.push((slot, *row));
            *row += 1;
            if *row == batch.num_rows() {
                place[index] = None;
                input.refill()?;
            }
            if let Some(key) = input.key() {
                self.heap.push(Reverse((key, index)));
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let views: Vec<&RecordBatch> = batches.iter().collect();
        Ok(Some(interleave_record_batch(&views, &rows)?))
    }
}
