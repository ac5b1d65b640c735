//! The samples of a step, or of several steps of one program, for one rank.

use crate::TrainError;
use crate::evaluation::InBubbles;
use crate::state::TrainState;
use bessemer_loader::{Batch, LoadError, Loader};
use bessemer_parallel::{BatchSource, ParallelError, Worker};
use bessemer_recipe::BatchPlan;
use bessemer_runtime::{StepContext, TokenBatch};
use std::time::Instant;

/// Where a program begins in the run, and what a rank has of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepPlace {
    /// Samples before the first step.
    consumed: u64,
    /// Sequences of a step, over all ranks.
    sequences_per_step: u64,
    /// Micro-batches of a step.
    micro_batches: usize,
    /// First sequence of this rank within a step.
    first: u64,
    /// Sequences of a micro-batch.
    sequences: usize,
    seed: u64,
    step: u64,
    loss_scale: f32,
}

impl StepPlace {
    pub(super) fn new(
        plan: &BatchPlan,
        state: &TrainState,
        worker: &Worker,
        loader: &Loader,
        seed: u64,
    ) -> Result<StepPlace, TrainError> {
        // Documents of a step have the batch's tokens in the mean only.
        let scored = match loader.has_documents() {
            true => loader.scored(state.loader.samples, plan.sequences_per_step)?,
            false => plan.tokens_per_step.0,
        };
        Ok(StepPlace {
            consumed: state.loader.samples,
            sequences_per_step: plan.sequences_per_step,
            micro_batches: plan.accumulation as usize,
            first: worker.plan().data_index(worker.coord()) as u64 * plan.sequences_per_rank,
            sequences: plan.micro_batch as usize,
            seed,
            step: state.step,
            loss_scale: 1.0 / scored as f32,
        })
    }

    /// Numbers of a micro-batch: of the update, of its first sequence in the step, and of its first sample.
    fn locate(&self, micro: usize) -> (u64, u64, u64) {
        let (update, within) = ((micro / self.micro_batches) as u64, micro % self.micro_batches);
        // A sample's place in the step does not depend on the layout, so neither does what it is trained with.
        let first_sequence = self.first + (within * self.sequences) as u64;
        (update, first_sequence, self.consumed + update * self.sequences_per_step + first_sequence)
    }
}

/// Batch source of the trainer: yields this rank's micro-batches of the steps of one program, in program order.
pub(super) struct Samples<'a> {
    loader: &'a mut Loader,
    batch: &'a mut Batch,
    place: StepPlace,
    /// Seconds spent on data.
    seconds: f64,
    failed: Option<LoadError>,
    /// Batches that are evaluated in the step's bubbles.
    evaluation: Option<InBubbles<'a>>,
}

impl<'a> Samples<'a> {
    pub(super) fn new(loader: &'a mut Loader, batch: &'a mut Batch, place: StepPlace) -> Samples<'a> {
        Samples { loader, batch, place, seconds: 0.0, failed: None, evaluation: None }
    }

    /// With what the step evaluates in its bubbles.
    pub(super) fn evaluating(self, evaluation: Option<InBubbles<'a>>) -> Samples<'a> {
        Samples { evaluation, ..self }
    }

    /// Seconds spent on data, or what went wrong with it.
    pub(super) fn seconds(self) -> Result<f64, TrainError> {
        match self.failed {
            Some(e) => Err(e.into()),
            None => Ok(self.seconds),
        }
    }
}

impl BatchSource for Samples<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let (fetch, place) = (Instant::now(), self.place);
        let (update, first_sequence, sample) = place.locate(micro);
        if let Err(e) = self.loader.batch(sample, place.sequences, self.batch) {
            let problem = e.to_string();
            self.failed = Some(e);
            return Err(ParallelError::BatchSource { micro, problem });
        }
        self.seconds += fetch.elapsed().as_secs_f64();
        let batch = TokenBatch { ids: &self.batch.inputs, targets: &self.batch.targets, positions: None };
        let context = StepContext {
            seed: place.seed,
            step: place.step + update,
            first_sequence,
            loss_scale: place.loss_scale,
            // The worker sets it.
            accumulate: false,
        };
        Ok((batch, context))
    }

    fn length(&mut self, micro: usize) -> Result<Option<usize>, ParallelError> {
        if !self.loader.has_documents() {
            return Ok(None);
        }
        let (.., sample) = self.place.locate(micro);
        match self.loader.padded_length(sample, self.place.sequences) {
            Ok(length) => Ok(Some(length)),
            Err(e) => {
                let problem = e.to_string();
                self.failed = Some(e);
                Err(ParallelError::BatchSource { micro, problem })
            }
        }
    }

    fn evaluation(&mut self, unit: usize) -> Result<TokenBatch<'_>, ParallelError> {
        match &self.evaluation {
            Some(evaluation) => evaluation.batch(unit),
            None => Err(ParallelError::BatchSource {
                micro: unit,
                problem: "no evaluation is in progress".into(),
            }),
        }
    }

    fn evaluated(&mut self, unit: usize, losses: &[f32]) {
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.record_losses(unit, losses);
        }
    }
}
