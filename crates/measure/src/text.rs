//! Random tokens, the same in every step, as the batch source of benchmarks.

use crate::Job;
use bessemer_parallel::{BatchSource, ParallelError};
use bessemer_runtime::{Shape, StepContext, TokenBatch};
use bessemer_tensor::rng::RngKey;

/// Seed of weights and tokens.
pub const SEED: u64 = 0;

/// A rank's tokens of a step.
pub struct RandomText {
    /// Of all ranks: inputs, then the target of the last one.
    stream: Vec<u32>,
    /// This rank's first sequence.
    first: usize,
    /// Of a micro-batch.
    shape: Shape,
    /// The step at hand, from 0.
    pub step: u64,
}

impl RandomText {
    /// Steps of `tokens` tokens over all ranks, in micro-batches of `shape`; this rank's begin with sequence `first`.
    pub fn new(job: &Job, tokens: usize, shape: Shape, first: usize) -> RandomText {
        let (key, vocab) = (RngKey::new(SEED, 0, "bench.tokens"), job.model.vocab_size as u32);
        let stream = (0..=tokens as u64).map(|i| key.block(i)[0] % vocab).collect();
        RandomText { stream, first, shape, step: 0 }
    }

    /// Inputs of all ranks, then the target of the last one.
    pub fn stream(&self) -> &[u32] {
        &self.stream
    }
}

impl BatchSource for RandomText {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let (tokens, first) = (self.shape.tokens(), self.first + micro * self.shape.sequences);
        let at = first * self.shape.seq;
        let (ids, targets) = (&self.stream[at..at + tokens], &self.stream[at + 1..=at + tokens]);
        let ctx = StepContext {
            seed: SEED,
            step: self.step,
            first_sequence: first as u64,
            loss_scale: 1.0 / (self.stream.len() - 1) as f32,
            accumulate: false,
        };
        Ok((TokenBatch { ids, targets, positions: None }, ctx))
    }
}
