//! The samples of a step, or of several steps of one program, for one rank.

use crate::TrainError;
use crate::evaluation::InBubbles;
use crate::preferences::PairWeights;
use crate::skipped::SkippedSamples;
use crate::state::TrainState;
use bessemer_loader::{
    Batch, BatchRequest, BatchRequests, LoadError, Loader, PrefetchShape, Prefetcher, TargetCounts,
};
use bessemer_parallel::{BatchSource, ParallelError, Plan, Worker};
use bessemer_recipe::BatchPlan;
use bessemer_runtime::{StepContext, TokenBatch};
use bessemer_schedule::Program;
use std::time::Instant;

/// Position of a program's begin in the run, and this rank's share of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepPlace {
    /// Samples before the first step.
    consumed: u64,
    /// Sequences of a step, over all ranks.
    sequences_per_step: u64,
    /// Micro-batches of a step.
    micro_batches: usize,
    /// Sequences of a rank in a step.
    sequences_per_rank: u64,
    /// First sequence of this rank within a step.
    first: u64,
    /// Sequences of a micro-batch.
    sequences: usize,
    seed: u64,
    step: u64,
}

/// Targets of the steps of a program, over all ranks and micro-batches. Every rank counts them by itself: the order of samples is a function
/// of their counter.
#[derive(Debug, Default)]
pub(super) struct StepTargets {
    /// By step; each has a scored target.
    pub(super) counts: Vec<TargetCounts>,
    /// Seconds that counting took.
    pub(super) seconds: f64,
}

/// The ring of prepared batches of a rank. Chunks of a rank that are stages of one pipeline request a micro-batch one after the
/// other; those between are as many as the pipeline has ranks, or twice as many. A step on pairs requests each micro-batch twice.
pub(super) fn prefetch_shape(
    plan: &BatchPlan,
    layout: &Plan,
    program: &Program,
    pairs: bool,
) -> PrefetchShape {
    let pipeline = layout.pipeline();
    let chunks = (0..pipeline).map(|rank| program.chunks(rank)).max().unwrap_or(1);
    let kept = if pairs {
        plan.accumulation as usize
    } else if chunks > 1 {
        (2 * pipeline).min(plan.accumulation as usize)
    } else {
        1
    };
    PrefetchShape { sequences: plan.micro_batch as usize, seq_len: plan.seq_len as usize, kept }
}

impl StepPlace {
    pub(super) fn new(plan: &BatchPlan, state: &TrainState, worker: &Worker, seed: u64) -> StepPlace {
        StepPlace {
            consumed: state.loader.samples,
            sequences_per_step: plan.sequences_per_step,
            micro_batches: plan.accumulation as usize,
            sequences_per_rank: plan.sequences_per_rank,
            first: worker.plan().data_index(worker.coord()) as u64 * plan.sequences_per_rank,
            sequences: plan.micro_batch as usize,
            seed,
            step: state.step,
        }
    }

    /// Update of a micro-batch, and its first sequence in the step.
    fn locate(&self, micro: usize) -> (u64, u64) {
        let (update, within) = ((micro / self.micro_batches) as u64, micro % self.micro_batches);
        // A sample's position in the step does not depend on the layout, so neither does the update that it is trained in.
        (update, self.first + (within * self.sequences) as u64)
    }

    /// Samples of a micro-batch.
    fn request(&self, micro: usize) -> BatchRequest {
        let (update, first_sequence) = self.locate(micro);
        let first = self.consumed + update * self.sequences_per_step + first_sequence;
        BatchRequest { first, sequences: self.sequences }
    }

    /// Samples of a micro-batch of a data-parallel rank.
    pub(super) fn request_of(&self, rank: usize, micro: usize) -> BatchRequest {
        StepPlace { first: rank as u64 * self.sequences_per_rank, ..*self }.request(micro)
    }

    /// Micro-batches of a step.
    pub(super) fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Sequences of a step, over all ranks.
    pub(super) fn sequences_of_step(&self) -> u64 {
        self.sequences_per_step
    }

    /// Samples of this rank's micro-batches in this step and those after it, `steps` steps in all.
    fn requests(self, steps: u64, skipped: SkippedSamples) -> BatchRequests {
        let mut at = self.consumed;
        let begins = (0..steps).map(move |_| {
            let begin = skipped.first_of_step(at, self.sequences_per_step);
            at = begin.saturating_add(self.sequences_per_step);
            begin
        });
        let of_step = move |consumed| {
            let step = StepPlace { consumed, ..self };
            (0..self.micro_batches).map(move |micro| step.request(micro))
        };
        Box::new(begins.flat_map(of_step))
    }
}

/// Batch source of the trainer: yields this rank's micro-batches of the steps of one program, in program order.
pub(super) struct Samples<'a> {
    loader: &'a Loader,
    batches: &'a mut Prefetcher,
    place: StepPlace,
    targets: &'a StepTargets,
    /// Seconds that the passes waited for data.
    seconds: f64,
    failed: Option<LoadError>,
    /// Batches that are evaluated in the step's bubbles.
    evaluation: Option<InBubbles<'a>>,
    /// Weights of the tokens, where the step trains on pairs.
    pub(super) weights: Option<&'a PairWeights>,
}

impl<'a> Samples<'a> {
    /// The batches of a program that begins at `place`, `steps` steps before the end of the run, whose steps have these targets. Batches are
    /// prepared ahead for these.
    pub(super) fn new(
        loader: &'a Loader,
        batches: &'a mut Prefetcher,
        place: StepPlace,
        targets: &'a StepTargets,
        steps: u64,
        skipped: &SkippedSamples,
    ) -> Samples<'a> {
        batches.begin(place.request(0), || place.requests(steps, skipped.clone()));
        let seconds = targets.seconds;
        Samples { loader, batches, place, targets, seconds, failed: None, evaluation: None, weights: None }
    }

    /// Adds the batches that the step evaluates in its bubbles.
    pub(super) fn evaluating(self, evaluation: Option<InBubbles<'a>>) -> Samples<'a> {
        Samples { evaluation, ..self }
    }

    pub(super) fn loader(&self) -> &'a Loader {
        self.loader
    }

    pub(super) fn place(&self) -> StepPlace {
        self.place
    }

    /// Scored targets of the first step, over all ranks.
    pub(super) fn scored(&self) -> u64 {
        self.targets.counts.first().map_or(0, |counts| counts.scored)
    }

    /// A micro-batch of this rank.
    pub(super) fn batch(&mut self, micro: usize) -> Result<&Batch, LoadError> {
        let fetch = Instant::now();
        let batch = self.batches.get(self.place.request(micro))?;
        self.seconds += fetch.elapsed().as_secs_f64();
        Ok(batch)
    }

    /// Seconds that the passes waited for data, or the error of the data.
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
        let (update, first_sequence) = place.locate(micro);
        let batch = match self.batches.get(place.request(micro)) {
            Ok(batch) => batch,
            Err(e) => return Err(failed(&mut self.failed, micro, e)),
        };
        self.seconds += fetch.elapsed().as_secs_f64();
        let scored = self.targets.counts.get(update as usize).map_or(0, |counts| counts.scored);
        if scored == 0 {
            let problem = format!("the scored targets of step {} were not counted", place.step + update + 1);
            return Err(ParallelError::BatchSource { micro, problem });
        }
        let batch = TokenBatch { ids: &batch.inputs, targets: &batch.targets, positions: None };
        let context = StepContext {
            seed: place.seed,
            step: place.step + update,
            first_sequence,
            // One factor for all micro-batches of all ranks, however the scored targets are distributed over them.
            loss_scale: 1.0 / scored as f32,
            // The worker sets it.
            accumulate: false,
        };
        Ok((batch, context))
    }

    fn scored_share(&self, micro: usize) -> f64 {
        let (update, _) = self.place.locate(micro);
        self.targets.counts.get(update as usize).map_or(1.0, TargetCounts::scored_share)
    }

    fn target_weights(&self, micro: usize) -> Option<&[f32]> {
        self.weights.and_then(|weights| weights.of(micro))
    }

    fn length(&mut self, micro: usize) -> Result<Option<usize>, ParallelError> {
        if !self.loader.has_documents() {
            return Ok(None);
        }
        let fetch = Instant::now();
        let length = self.batches.length(self.place.request(micro));
        self.seconds += fetch.elapsed().as_secs_f64();
        length.map(Some).map_err(|e| failed(&mut self.failed, micro, e))
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

/// Notes why a batch could not be read, of which the passes only learn the text.
fn failed(noted: &mut Option<LoadError>, micro: usize, e: LoadError) -> ParallelError {
    let problem = e.to_string();
    *noted = Some(e);
    ParallelError::BatchSource { micro, problem }
}
