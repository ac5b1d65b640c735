//! External merge sort of each partition.
//!
//! Rows are collected up to the size of a run, ordered by their encoded keys, and kept as a run that may go to disk.
//! A run is stored in blocks, so that [`FAN_IN`] of them have the size of a run; a row that is larger is a block of
//! its own. [`Merge`] merges the runs. When more than [`FAN_IN`] runs exist, or when one block of each would exceed
//! the size of a run, neighbouring runs are merged first. Rows of equal key keep their order, because runs are numbered in the order of their rows.
//!
//! Only files that are written or merged are open. Memory: one run while it is collected and sorted (twice its bytes); one block of each merged run and a
//! merged batch afterwards. Cost: n log n comparisons; each row is written and read once per merge level.

use super::budget::Budget;
use super::key::Keys;
use super::spool::{Spool, SpoolReader, held_bytes};
use super::{Executor, Stream};
use crate::error::{Error, Result};
use crate::source::{Morsel, Scan, morsel};
use arrow_array::RecordBatch;
use arrow_select::interleave::interleave_record_batch;
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{Merge, SortedRun, merge_in_groups};
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs that are merged at once: bounds the open files.
const FAN_IN: usize = 64;
/// Most rows of a block and of a merged batch.
const BATCH_ROWS: usize = 4096;
/// Most bytes of rows that are sorted at once.
const RUN_BYTES: usize = 16 << 20;
/// Fewest bytes of rows that are sorted at once, whatever the budget.
const MIN_RUN_BYTES: usize = 1 << 20;

impl Executor<'_> {
    /// Sorts lazily: a partition is sorted by whoever reads it.
    pub(super) fn sort<'a>(&self, stream: Stream<'a>, by: &[String]) -> Stream<'a> {
        stream
            .into_iter()
            .map(|input| {
                Box::new(Sorted {
                    state: State::Input(input),
                    by: by.to_vec(),
                    budget: self.budget.clone(),
                    folder: self.spill.clone(),
                }) as Box<dyn Scan + 'a>
            })
            .collect()
    }
}

enum State<'a> {
    Input(Box<dyn Scan + 'a>),
    Merging(MergedBatches),
    Ended,
}

/// A partition in order.
struct Sorted<'a> {
    state: State<'a>,
    by: Vec<String>,
    budget: Arc<Budget>,
    folder: ConfinedDir,
}

impl Sorted<'_> {
    fn spool(&self) -> Spool {
        Spool::with(self.budget.clone(), self.folder.clone())
    }

    /// Bytes of rows that are sorted at once: an eighth of the budget, within limits.
    fn run_bytes(&self) -> usize {
        (self.budget.limit() / 8).clamp(MIN_RUN_BYTES, RUN_BYTES)
    }

    /// Bytes of a block; twice as many at most, unless one row has more.
    fn block_bytes(&self) -> usize {
        self.run_bytes() / FAN_IN
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
        let bytes: usize = batches.iter().map(held_bytes).sum();
        let rows = (self.block_bytes() * order.len() / bytes.max(1)).clamp(1, BATCH_ROWS);
        let mut spool = self.spool();
        for block in order.chunks(rows) {
            split_block(&views, block, self.block_bytes(), &mut |block| spool.push(block))?;
        }
        batches.clear();
        spool.close()?;
        Ok(spool)
    }

    /// Number of leading runs that [`FAN_IN`] and the memory of their blocks allow to be merged together.
    fn group(&self, runs: &[Spool]) -> usize {
        let mut held = 0;
        let fits = |run: &&Spool| {
            held += run.largest_batch();
            held <= self.run_bytes()
        };
        runs.iter().take(FAN_IN).take_while(fits).count()
    }

    fn merge(&self, runs: Vec<Spool>) -> Result<MergedBatches> {
        let mut inputs = Vec::with_capacity(runs.len());
        for mut run in runs {
            inputs.push(Input::new(run.reader()?, &self.by)?);
        }
        Ok(MergedBatches::new(inputs, self.block_bytes()))
    }

    /// Reads the input to its end.
    fn collect(&self, mut input: Box<dyn Scan + '_>) -> Result<MergedBatches> {
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
            if bytes >= self.run_bytes() {
                runs.push(self.run(&mut batches)?);
                bytes = 0;
            }
        }
        if !batches.is_empty() {
            runs.push(self.run(&mut batches)?);
        }
        let merge_group = |group| {
            let mut merge = self.merge(group)?;
            let mut spool = self.spool();
            while let Some(batch) = merge.next_batch()? {
                spool.push(batch)?;
            }
            spool.close()?;
            Ok::<Spool, Error>(spool)
        };
        self.merge(merge_in_groups(runs, |runs| self.group(runs), merge_group)?)
    }
}

impl Scan for Sorted<'_> {
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
    current: Option<CurrentBlock>,
}

/// The block of a run that is being read.
struct CurrentBlock {
    block: RecordBatch,
    keys: Keys,
    /// Next row.
    row: usize,
    /// Bytes of a row on average.
    row_bytes: usize,
}

impl Input {
    fn new(reader: SpoolReader, by: &[String]) -> Result<Input> {
        let mut input = Input { reader, by: by.to_vec(), current: None };
        input.refill()?;
        Ok(input)
    }

    fn refill(&mut self) -> Result<()> {
        self.current = match self.reader.next_batch()? {
            Some(block) => {
                let keys = Keys::of("sort", &block, &self.by)?;
                let row_bytes = held_bytes(&block) / block.num_rows().max(1);
                Some(CurrentBlock { block, keys, row: 0, row_bytes })
            }
            None => None,
        };
        Ok(())
    }
}

impl SortedRun for Input {
    type Unit = u8;
    type Error = Error;

    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().map(|current| current.keys.get(current.row))
    }

    fn advance(&mut self) -> Result<()> {
        match &mut self.current {
            Some(current) if current.row + 1 < current.block.num_rows() => current.row += 1,
            _ => self.refill()?,
        }
        Ok(())
    }
}

/// Batches of the merge of runs.
struct MergedBatches {
    merge: Merge<Input>,
    runs: usize,
    /// Bytes of a merged batch; twice as many at most, unless one row has more.
    block_bytes: usize,
    /// Merged batches that were not taken yet.
    ready: VecDeque<RecordBatch>,
}

impl MergedBatches {
    fn new(inputs: Vec<Input>, block_bytes: usize) -> Self {
        MergedBatches { runs: inputs.len(), merge: Merge::new(inputs), block_bytes, ready: VecDeque::new() }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.ready.is_empty() {
            self.merge_rows()?;
        }
        Ok(self.ready.pop_front())
    }

    /// Merges the rows of about one block.
    fn merge_rows(&mut self) -> Result<()> {
        // Blocks that the rows of this output come from, and the rows themselves.
        let mut blocks: Vec<RecordBatch> = Vec::new();
        let mut block_of: Vec<Option<usize>> = vec![None; self.runs];
        let mut rows: Vec<(usize, usize)> = Vec::new();
        let mut bytes = 0;
        while rows.len() < BATCH_ROWS && bytes < self.block_bytes {
            let Some(index) = self.merge.smallest() else { break };
            let Some(current) = &self.merge.run(index).current else { break };
            let number = *block_of[index].get_or_insert_with(|| {
                blocks.push(current.block.clone());
                blocks.len() - 1
            });
            rows.push((number, current.row));
            bytes += current.row_bytes;
            if current.row + 1 == current.block.num_rows() {
                block_of[index] = None;
            }
            self.merge.advance()?;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let views: Vec<&RecordBatch> = blocks.iter().collect();
        split_block(&views, &rows, self.block_bytes, &mut |block| {
            self.ready.push_back(block);
            Ok(())
        })
    }
}

/// Gives these rows out as one block, or as halves until a block is small enough.
fn split_block(
    batches: &[&RecordBatch],
    rows: &[(usize, usize)],
    block_bytes: usize,
    push: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let block = interleave_record_batch(batches, rows)?;
    if rows.len() == 1 || held_bytes(&block) <= 2 * block_bytes {
        return push(block);
    }
    drop(block);
    let (first, second) = rows.split_at(rows.len() / 2);
    split_block(batches, first, block_bytes, push)?;
    split_block(batches, second, block_bytes, push)
}
