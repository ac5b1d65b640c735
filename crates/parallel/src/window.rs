//! Updates while micro-batches are in flight: a program of several updates that begins and ends with nothing in flight.
//!
//! A stage steps as soon as its gradients of an update are complete, whatever the other stages do. So there is no global norm to clip
//! by: one would be a barrier at every update, which defeats the purpose of the schedule. A stage whose own gradient is
//! not finite leaves its update out. At the program's end nothing is in flight and every stage has had every update.

use crate::error::ParallelError;
use crate::execute::{StepRun, UpdateRule};
use crate::worker::{BatchSource, Worker};
use bessemer_runtime::LossSum;
use bessemer_tensor::Backend;
use std::sync::Arc;

/// Result of an update, known when its program is over.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Update {
    /// Losses of its micro-batches, over all ranks.
    pub loss: LossSum,
    /// Norm of its gradient over all stages, each taken when the stage stepped.
    pub grad_norm: f64,
    /// Stages of this rank that left it out.
    pub skipped: usize,
    /// Squares of the gradients of this rank's stages.
    pub(crate) squares: f64,
}

impl Worker {
    /// Runs a program of several updates ([`bessemer_schedule::Program::updates`]), the first of which is update `t`, counted
    /// from 1; `rate` gives the learning rate of an update. Returns the results of the updates, the same on every rank (but
    /// for what this rank left out).
    ///
    /// # Errors
    /// An error of the model, the source, the optimizer or another rank.
    pub fn window(
        &mut self,
        backend: &mut dyn Backend,
        source: &mut dyn BatchSource,
        t: u64,
        rate: &dyn Fn(u64) -> f64,
    ) -> Result<Vec<Update>, ParallelError> {
        let mut updates = vec![Update::default(); self.program.updates];
        self.forget_reloads();
        let step = Arc::clone(&self.step);
        let mut run = StepRun::new(source, UpdateRule::Alone { t, rate }, &mut updates);
        self.run_nodes(backend, &step, 0..step.program.nodes.len(), &mut run)?;
        for chunk in &mut self.chunks {
            chunk.stash.read(&mut chunk.decoder, None)?;
        }
        for update in &mut updates {
            update.loss = self.sum_over_data(update.loss)?;
            update.grad_norm = self.sum_over_stages(update.squares)?.sqrt();
        }
        Ok(updates)
    }
}
