//! Timings that a rank records while it is watched: instructions of its program, and communication with other ranks.

use crate::error::ParallelError;
use crate::worker::Worker;
use bessemer_collectives::{CallSpan, Parts};
use std::time::Instant;

/// Time in which one order of the program ran.
#[derive(Debug, Clone)]
pub struct OrderSpan {
    /// Name of the order ([`Notes::orders`]).
    pub name: String,
    /// Start.
    pub start: Instant,
    /// End.
    pub end: Instant,
}

/// Notes since they were last taken.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Instructions of the schedule that have nodes: "F 3.0" for the forward pass of micro-batch 3 through chunk 0, "B", "I" and "W"
    /// for backward passes and their parts, "R" and "S" for receives and sends, "reduce", "step" and "gather" with the chunk,
    /// "Evaluate 2.0" and other fillers with unit and chunk; "complete" and "norm" between the passes and the updates. In order.
    pub orders: Vec<OrderSpan>,
    /// Collectives and messages, by group. Those that run concurrently with the computation overlap with orders, the others are within one.
    pub calls: Vec<CallSpan>,
}

impl Worker {
    /// Starts or stops recording when orders and calls run. While nothing is recorded, no memory is allocated.
    pub fn keep_notes(&mut self, on: bool) {
        self.watch.switch(on);
        self.intervals = on.then(Vec::new);
        self.watch.take();
    }

    /// Returns the intervals recorded since the last call.
    pub fn take_notes(&mut self) -> Notes {
        Notes {
            orders: self.intervals.as_mut().map(std::mem::take).unwrap_or_default(),
            calls: self.watch.take(),
        }
    }

    /// Every rank's numbers, in the order of the ranks; all ranks give equally many.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn gather_numbers(&mut self, name: &str, numbers: &[u64]) -> Result<Vec<u64>, ParallelError> {
        Ok(self.control.gather(&mut *self.world, name, numbers)?.to_vec())
    }

    /// Gathers every rank's bytes, in the order of the ranks. Meant for small and rare data.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn gather_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        let lengths = self.gather_numbers(name, &[bytes.len() as u64])?;
        let parts = Parts::of(lengths.iter().map(|l| *l as usize));
        let mut all = vec![0u8; parts.len()];
        all[parts.range(self.world.rank())].copy_from_slice(bytes);
        self.world.all_gather(name, &mut all, &parts)?;
        Ok((0..parts.count()).map(|rank| all[parts.range(rank)].to_vec()).collect())
    }
}
