//! Costs from measured times.

use crate::{Costs, PassTimes, SimError};
use bessemer_schedule::Program;
use std::collections::BTreeMap;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Forward pass.
    Forward,
    /// Full backward pass.
    Backward,
    /// Its input part.
    BackwardInput,
    /// Its weight part.
    BackwardWeight,
    /// A forward through the sample's chunk and a full backward through this one, together.
    Together {
        /// Chunk that goes backward.
        backward: usize,
    },
    /// Gradients summed.
    Reduce,
    /// The optimizer's step.
    Step,
    /// Weights brought together.
    Gather,
}

/// One measured instruction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Rank that did it.
    pub rank: usize,
    /// Its chunk.
    pub chunk: usize,
    /// What it did.
    pub kind: Kind,
    /// How long it took.
    pub time: f64,
}

/// Measured times, collected until costs are made of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples {
    times: BTreeMap<(usize, usize, Kind), Vec<f64>>,
}

impl Samples {
    /// Adds one.
    pub fn add(&mut self, sample: &Sample) {
        self.times.entry((sample.rank, sample.chunk, sample.kind)).or_default().push(sample.time);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Median of what was measured.
    pub fn median(&self, rank: usize, chunk: usize, kind: Kind) -> Option<f64> {
        let mut all = self.times.get(&(rank, chunk, kind))?.clone();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        Some(if all.len() % 2 == 1 { all[middle] } else { (all[middle - 1] + all[middle]) / 2.0 })
    }

    /// The medians as costs of a program whose messages take no time of their own. A backward pass that was only
    /// measured in parts is their sum; parts that were only measured together are half of it each.
    ///
    /// # Errors
    /// [`SimError::Missing`] for a chunk without a forward or backward time, [`SimError::Value`] for a time that is none.
    pub fn costs(&self, program: &Program) -> Result<Costs, SimError> {
        let mut costs = Costs::per_rank(program, &PassTimes::new(0.0, 0.0, 0.0));
        for rank in 0..program.ranks() {
            for chunk in 0..program.chunks(rank) {
                let median = |kind| self.median(rank, chunk, kind);
                let missing = SimError::Missing { rank, chunk, have: chunk };
                let parts = median(Kind::BackwardInput).zip(median(Kind::BackwardWeight));
                let whole = median(Kind::Backward);
                let (input, weight) = parts
                    .or_else(|| whole.map(|b| (b / 2.0, b / 2.0)))
                    .or_else(|| median(Kind::Together { backward: chunk }).map(|t| (t / 3.0, t / 3.0)))
                    .ok_or(missing.clone())?;
                let t = &mut costs.chunks[rank][chunk];
                // Where a chunk only ever goes forward together with a backward, the pair's own time is what counts.
                t.forward = median(Kind::Forward)
                    .or_else(|| median(Kind::Together { backward: chunk }).map(|t| t / 3.0))
                    .ok_or(missing)?;
                (t.backward_input, t.backward_weight) = (input, weight);
                t.backward = whole.unwrap_or(input + weight);
                t.reduce = median(Kind::Reduce).unwrap_or(0.0);
                t.step = median(Kind::Step).unwrap_or(0.0);
                t.gather = median(Kind::Gather).unwrap_or(0.0);
            }
        }
        for (rank, chunk, kind) in self.times.keys().copied() {
            if let (Kind::Together { backward }, Some(time)) = (kind, self.median(rank, chunk, kind)) {
                costs.together.insert((rank, chunk, backward), time);
            }
        }
        costs.check(program)?;
        Ok(costs)
    }
}
