//! Runs pipeline breakers, which see all rows before they answer: of the whole stream, or of one partition each.
//!
//! The breaker of a stream pulls its input while the workers produce it. That of a partition runs when the partition is read, on the
//! thread that reads it, as a sort does. The result waits in a spool.

use super::drive::{Body, guarded, pull_here};
use super::spool::{Spool, SpoolReader};
use super::{Executor, Stream};
use crate::error::{Error, Result};
use crate::plan::{BreakerContext, PipelineBreaker};
use crate::source::{Morsel, Scan};
use arrow_array::RecordBatch;
use bessemer_durable::ConfinedDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A directory that vanishes with its owner.
struct SpillFolder<'a> {
    above: &'a ConfinedDir,
    name: String,
}

impl Drop for SpillFolder<'_> {
    fn drop(&mut self) {
        // What cannot be removed lies below the executor's spill folder, which its owner clears.
        let _ = self.above.remove_tree(&self.name, &|_, _| true);
    }
}

/// Resources of a pipeline breaker.
struct Share<'a> {
    budget: Arc<super::budget::Budget>,
    spill: ConfinedDir,
    stop: &'a AtomicBool,
    /// Threads that the breaker may use.
    threads: usize,
    /// Breakers that run at the same time and divide the memory among them.
    at_once: usize,
}

impl Share<'_> {
    /// Runs a breaker on the batches that `pull` gives it.
    fn run(
        &self,
        breaker: &dyn PipelineBreaker,
        pull: impl FnOnce(&mut Body<'_, RecordBatch, ()>) -> Result<()>,
    ) -> Result<SpoolReader> {
        let name = format!("breaker-{}", self.budget.file_number());
        let spill = self.spill.create_dir(&name).map_err(Error::System)?;
        let _folder = SpillFolder { above: &self.spill, name };
        // What is free, but never less than a quarter: operators that follow each other must not starve.
        let limit = self.budget.limit();
        let memory = limit.saturating_sub(self.budget.used()).max(limit / 4) / self.at_once;
        let context = BreakerContext { memory, spill: &spill, threads: self.threads, stop: self.stop };
        let mut result = Spool::with(self.budget.clone(), self.spill.clone());
        // While it runs, its share is taken: its result goes to disk unless it is small.
        let held = memory - memory / 8;
        self.budget.hold(held);
        let outcome = pull(&mut |input| {
            guarded("pipeline breaker", || breaker.run(input, &context, &mut |batch| result.push(batch)))
        });
        self.budget.release(held);
        outcome?;
        result.reader()
    }
}

impl<'a> Executor<'a> {
    /// The share of one of `at_once` breakers.
    fn share(&self, threads: usize, at_once: usize) -> Share<'a> {
        let (budget, spill) = (self.budget.clone(), self.spill.clone());
        Share { budget, spill, stop: self.stop, threads, at_once }
    }

    pub(super) fn pipeline_breaker(
        &self,
        stream: Stream<'a>,
        breaker: &dyn PipelineBreaker,
    ) -> Result<Stream<'a>> {
        let share = self.share(self.threads, 1);
        Ok(vec![Box::new(share.run(breaker, |body| self.pull(stream, &Ok, body))?)])
    }

    /// Runs lazily: a partition's breaker is run by whoever reads the partition.
    pub(super) fn per_partition(&self, stream: Stream<'a>, breaker: &Arc<dyn PipelineBreaker>) -> Stream<'a> {
        let at_once = self.threads.min(stream.len()).max(1);
        let begin = |input| {
            let share = self.share(self.threads / at_once, at_once);
            Box::new(Broken { share, breaker: breaker.clone(), scan: input, has_run: false })
                as Box<dyn Scan + 'a>
        };
        stream.into_iter().map(begin).collect()
    }
}

/// A partition behind its breaker.
struct Broken<'a> {
    share: Share<'a>,
    breaker: Arc<dyn PipelineBreaker>,
    /// The input, and after the breaker has run its result.
    scan: Box<dyn Scan + 'a>,
    has_run: bool,
}

impl Scan for Broken<'_> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        if !std::mem::replace(&mut self.has_run, true) {
            let (scan, stop) = (self.scan.as_mut(), self.share.stop);
            let result = self.share.run(self.breaker.as_ref(), |body| pull_here(scan, stop, &Ok, body))?;
            self.scan = Box::new(result);
        }
        self.scan.next()
    }
}
