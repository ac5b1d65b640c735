//! The local executor: runs a plan on the threads of one machine within a memory budget.
//!
//! Stages turn streams into streams. A stream is a list of partitions, each a [`Scan`]. Maps and reductions are
//! lazy and fuse with what follows. Shuffles, sorts, pipeline breakers and side joins drive their input to the end and hold the
//! rows in spools, which go to disk as Arrow IPC when the budget is spent. What is held outside the budget is
//! bounded: (2 threads + 2) morsels of about a megabyte, or of one document where that is larger; a run of 16 MiB
//! per thread during a sort; a row group of 8 MiB per output file.

mod budget;
mod drive;
mod join;
mod key;
mod pipeline_breaker;
mod reduce;
mod shuffle;
mod side_join;
mod sort;
mod spool;

use budget::Budget;
pub use join::join;
pub use shuffle::{partitions_of, scatter};
use side_join::{Rows, Steps};
pub use spool::held_bytes;

use crate::error::{Error, Result};
use crate::plan::{BatchMap, FlatMap, Plan, Sink, Stage};
use crate::source::{Morsel, Scan};
use bessemer_durable::ConfinedDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Partitions of rows.
type Stream<'a> = Vec<Box<dyn Scan + 'a>>;

/// Runs plans.
pub struct Executor<'a> {
    threads: usize,
    budget: Arc<Budget>,
    spill: ConfinedDir,
    stop: &'a AtomicBool,
    /// Called on the thread that runs the plan, after each batch.
    tick: &'a dyn Fn(),
}

impl<'a> Executor<'a> {
    /// An executor with `threads` worker threads that holds at most about `memory_budget` bytes of rows and
    /// spills to files in the folder `spill`.
    /// `tick` is called after each batch, on the thread that calls [`Executor::run`].
    pub fn new(
        threads: usize,
        memory_budget: usize,
        spill: &ConfinedDir,
        stop: &'a AtomicBool,
        tick: &'a dyn Fn(),
    ) -> Self {
        Executor {
            threads: threads.max(1),
            budget: Arc::new(Budget::new(memory_budget)),
            spill: spill.clone(),
            stop,
            tick,
        }
    }

    /// Runs the plan to its end; the sink gets every row, in the plan's order, on the calling thread.
    pub fn run(&self, plan: &Plan, sink: &mut dyn Sink) -> Result<()> {
        let rows = match plan.source.kept() {
            Some(kept) => Rows::Again(Steps::of(kept)),
            None => Rows::Once(vec![plan.source.scan()?]),
        };
        let stream = self.stages(rows, &plan.stages)?.once()?;
        self.drive(stream, &Ok, &mut |batch| sink.write(&batch))
    }

    /// Bytes that were written to spill files.
    pub fn spilled_bytes(&self) -> u64 {
        self.budget.spilled()
    }

    /// The rows behind `stages`.
    fn stages(&self, mut rows: Rows<'a>, stages: &[Stage]) -> Result<Rows<'a>> {
        for (index, stage) in stages.iter().enumerate() {
            rows = match stage {
                Stage::Map(map) => rows.map(map),
                Stage::FlatMap(map) => Rows::Once(
                    rows.once()?
                        .into_iter()
                        .map(|input| Box::new(FlatMapped { input, map: map.clone() }) as Box<dyn Scan + 'a>)
                        .collect(),
                ),
                Stage::Shuffle { key, partitions } => {
                    Rows::Once(self.shuffle(rows.once()?, key, *partitions)?)
                }
                Stage::Sort { by } => Rows::Once(self.sort(rows.once()?, by)),
                Stage::Reduce { key, reducer } => Rows::Once(reduce::reduce(rows.once()?, key, reducer)),
                Stage::PipelineBreaker(breaker) => {
                    Rows::Once(self.pipeline_breaker(rows.once()?, breaker.as_ref())?)
                }
                Stage::PerPartition(breaker) => Rows::Once(self.per_partition(rows.once()?, breaker)),
                Stage::SideJoin { name, project, side, adds } => {
                    let steps = self.keep(rows, &stages[index..])?;
                    Rows::Again(self.side_join(steps, name, project, side, adds)?)
                }
            };
        }
        Ok(rows)
    }
}

/// A scan whose morsels also apply a function.
struct Mapped<'a> {
    input: Box<dyn Scan + 'a>,
    map: Arc<dyn BatchMap>,
}

impl Scan for Mapped<'_> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let map = self.map.clone();
        Ok(self.input.next()?.map(|morsel| {
            Box::new(move || {
                let batch = morsel()?;
                let rows = batch.num_rows();
                let result = map.apply(batch)?;
                if result.num_rows() == rows {
                    Ok(result)
                } else {
                    let problem = format!("a map of {rows} rows gave {}", result.num_rows());
                    Err(Error::plan(map.name(), problem))
                }
            }) as Morsel
        }))
    }
}

/// A scan whose morsels also apply a function under which rows vanish or multiply.
struct FlatMapped<'a> {
    input: Box<dyn Scan + 'a>,
    map: Arc<dyn FlatMap>,
}

impl Scan for FlatMapped<'_> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let map = self.map.clone();
        Ok(self.input.next()?.map(|morsel| Box::new(move || map.apply(morsel()?)) as Morsel))
    }
}
