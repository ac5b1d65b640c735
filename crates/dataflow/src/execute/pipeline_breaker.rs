//! Runs a pipeline breaker, which sees all rows: it pulls its input while the workers produce it, and its result waits in a
//! spool.

use super::Executor;
use super::drive::guarded;
use super::spool::Spool;
use crate::error::{Error, Result};
use crate::plan::{BreakerContext, PipelineBreaker};
use crate::source::Scan;
use std::path::PathBuf;

/// A directory that vanishes with its owner.
struct SpillFolder(PathBuf);

impl Drop for SpillFolder {
    fn drop(&mut self) {
        // What cannot be removed lies below the executor's spill folder, which its owner clears.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Executor<'_> {
    pub(super) fn pipeline_breaker(
        &self,
        stream: Vec<Box<dyn Scan>>,
        breaker: &dyn PipelineBreaker,
    ) -> Result<Vec<Box<dyn Scan>>> {
        let path = self.spill.join(format!("breaker-{}", self.budget.file_number()));
        std::fs::create_dir(&path).map_err(Error::io("create folder", &path))?;
        let folder = SpillFolder(path);
        // What is free, but never less than a quarter: operators that follow each other must not starve.
        let limit = self.budget.limit();
        let memory = limit.saturating_sub(self.budget.used()).max(limit / 4);
        let context = BreakerContext { memory, spill: &folder.0, threads: self.threads, stop: self.stop };
        let mut result = Spool::new(self);
        // While it runs, its share is taken: its result goes to disk unless it is small.
        let share = memory - memory / 8;
        self.budget.hold(share);
        let outcome = self.pull(stream, &mut |input| {
            guarded("pipeline breaker", || breaker.run(input, &context, &mut |batch| result.push(batch)))
        });
        self.budget.release(share);
        outcome?;
        Ok(vec![result.scan()?])
    }
}
