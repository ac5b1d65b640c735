//! The losses of tokens, computed by all ranks together.
//!
//! A batch for evaluation holds one micro-batch for each data-parallel rank. Each rank scores its own and all get the
//! others' losses, so every sum of them has the same bits on every rank and in every layout.

use super::Runner;
use crate::TrainError;
use bessemer_collectives::{CollectiveError, Parts};
use bessemer_eval::EvalError;
use bessemer_eval::score::TokenLosses;
use bessemer_parallel::ParallelError;
use bessemer_runtime::TokenBatch;
use bessemer_tensor::{Backend, TensorError};
use std::sync::atomic::{AtomicBool, Ordering};

/// A rank as a model for evaluation.
pub(crate) struct RankLosses<'a> {
    runner: &'a mut Runner,
    backend: &'a mut dyn Backend,
    /// Position of each rank's losses, by rank of the world; neighbours of the tensor axis have the same ones,
    /// and of a pipeline only the rank with the head has any.
    parts: Parts,
    /// Request to stop, which may arrive at any rank. Without one every pass is made.
    stop: Option<&'a AtomicBool>,
    /// Error that ended a pass; evaluation returns its text alone.
    failed: Option<TrainError>,
}

impl<'a> RankLosses<'a> {
    pub(crate) fn new(
        runner: &'a mut Runner,
        backend: &'a mut dyn Backend,
        stop: Option<&'a AtomicBool>,
    ) -> RankLosses<'a> {
        let worker = &runner.worker;
        let tokens = worker.decoder().shape().tokens();
        let plan = worker.plan();
        let has = |r: usize| {
            let at = plan.coord(r);
            at.tensor == 0 && worker.has_losses(at.pipeline)
        };
        let parts = Parts::of((0..plan.ranks()).map(|r| if has(r) { tokens } else { 0 }));
        RankLosses { runner, backend, parts, stop, failed: None }
    }

    /// Returns the result of an evaluation, or the error of the rank that failed in it.
    pub(crate) fn with_cause<T>(self, result: Result<T, EvalError>) -> Result<T, TrainError> {
        match (result, self.failed) {
            (Err(_), Some(failed)) => Err(failed),
            (result, _) => Ok(result?),
        }
    }

    /// The losses of a batch, or [`EvalError::Stopped`] on all ranks if one of them was requested to stop.
    pub(crate) fn losses(
        &mut self,
        inputs: &[u32],
        targets: &[u32],
        losses: &mut [f32],
    ) -> Result<(), TrainError> {
        if let Some(stop) = self.stop {
            let asked = u64::from(stop.load(Ordering::Relaxed));
            if self.runner.worker.or_over_ranks("stop evaluating", asked)? != 0 {
                return Err(EvalError::Stopped.into());
            }
        }
        let (plan, at) = (self.runner.worker.plan(), self.runner.worker.coord());
        let tokens = inputs.len() / plan.data_ranks();
        let first = plan.data_index(at) * tokens;
        let mine = first..first + tokens;
        let batch =
            TokenBatch { ids: &inputs[mine.clone()], targets: &targets[mine.clone()], positions: None };
        self.runner.evaluate(&mut *self.backend, &batch, Some(&mut losses[mine]))?;
        Ok(self.gather(losses)?)
    }

    /// Every rank has the losses of those that have them.
    pub(crate) fn gather(&mut self, losses: &mut [f32]) -> Result<(), ParallelError> {
        let gathered: Result<(), CollectiveError> =
            self.runner.worker.world().all_gather("losses of tokens", losses, &self.parts);
        Ok(gathered?)
    }
}

impl TokenLosses for RankLosses<'_> {
    fn shape(&self) -> (usize, usize) {
        let shape = self.runner.worker.decoder().shape();
        (shape.sequences * self.runner.worker.plan().data_ranks(), shape.seq)
    }

    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        self.losses(inputs, targets, losses).map_err(|e| {
            let text = e.to_string().into();
            self.failed = Some(e);
            EvalError::Model(TensorError::Outside(text).into())
        })
    }
}
