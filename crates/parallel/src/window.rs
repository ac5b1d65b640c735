//! Updates while micro-batches are in flight: a program of several updates, from full weights to full weights.
//!
//! A stage steps as soon as its gradients of an update are there, whatever the others do. So there is no global norm to clip
//! by: one would be a barrier at every update, and what the schedule is for would be lost. A stage whose own gradient is
//! not finite leaves its update out. At the program's end nothing is in flight and every stage has had every update.

use crate::error::ParallelError;
use crate::prepare::ExecOp;
use crate::worker::{BatchSource, Worker, parallel_error};
use bessemer_model::LossSum;
use bessemer_tensor::Backend;
use std::time::Instant;

/// Result of an update, known when its program is over.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Update {
    /// Losses of its micro-batches, over all ranks.
    pub loss: LossSum,
    /// Norm of its gradient over all stages, each taken when the stage stepped.
    pub grad_norm: f64,
    /// Stages of this rank that left it out.
    pub skipped: usize,
}

impl Worker {
    /// Runs a program of several updates ([`bessemer_schedule::Program::updates`]), the first of which is update `t`, counted
    /// from 1; `rate` gives the learning rate of an update. What became of each update, the same on every rank (but
    /// for what this rank left out).
    ///
    /// # Errors
    /// What the model, the feed, the optimizer or another rank answers.
    pub fn window(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn BatchSource,
        t: u64,
        rate: &dyn Fn(u64) -> f64,
    ) -> Result<Vec<Update>, ParallelError> {
        let mut updates = vec![Update::default(); self.program.updates];
        let mut squares = vec![0.0f64; self.program.updates];
        self.next = 0;
        self.forget_reloads();
        while let Some(&order) = self.prepared.ops.get(self.next) {
            match order {
                ExecOp::Step { chunk, update, stash } => {
                    let begun = self.intervals.is_some().then(Instant::now);
                    let (sum, skipped) =
                        self.step_alone(backend, (chunk, stash), (t + update as u64, rate))?;
                    squares[update] += sum;
                    updates[update].skipped += usize::from(skipped);
                    self.note(begun, &order);
                }
                ExecOp::Gather { chunk, .. } => {
                    let begun = self.intervals.is_some().then(Instant::now);
                    parallel_error(self.chunks[chunk].transfers(backend, |lists| &lists.spread))?;
                    self.note(begun, &order);
                }
                _ => {
                    let sum = self.run_pass(backend, feed, order)?;
                    if let ExecOp::Backward { run, .. } = order {
                        updates[run.update].loss += sum;
                    }
                }
            }
            self.next += 1;
        }
        self.next = 0;
        for chunk in &mut self.chunks {
            chunk.stash.read(&mut chunk.decoder, None)?;
        }
        for (update, squares) in updates.iter_mut().zip(squares) {
            update.loss = self.sum_over_data(update.loss)?;
            update.grad_norm = self.sum_over_stages(squares)?.sqrt();
        }
        Ok(updates)
    }

    /// The update of one chunk: the squares of its gradient, over the ranks that share it, and whether it was left out.
    fn step_alone(
        &mut self,
        backend: &mut dyn Backend,
        (chunk, stash): (usize, Option<usize>),
        (t, rate): (u64, &dyn Fn(u64) -> f64),
    ) -> Result<(f64, bool), ParallelError> {
        let chunk = &mut self.chunks[chunk];
        parallel_error(chunk.transfers(backend, |lists| &lists.finish))?;
        let mut sum = chunk.squares.sum(backend)?;
        if self.plan.shard() > 1 {
            sum = self.control.sum(&mut *chunk.exchange.shard().idle()?, "norm of the gradient", sum)?;
        }
        sum = self.control.sum(&mut *chunk.tensor.idle()?, "norm of the gradient", sum)?;
        sum /= self.loss_scale.powi(2);
        if let Some(stash) = stash {
            chunk.stash.keep(backend, &chunk.memory, stash)?;
        }
        let stats = chunk.step(backend, (t, rate(t)), sum.sqrt(), 0.0)?;
        Ok((sum, stats.skipped))
    }
}
