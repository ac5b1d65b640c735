//! An evaluation, some batches of which run in the bubbles of the next training step.
//!
//! ```text
//! step s ─► evaluation is due: the batches that do not fit into the bubbles are scored at once
//! step s+1: its passes read the weights of step s, and so do the others in its bubbles (parallel.fill = "evaluation")
//!           ─► losses are gathered and summed in the order of the text: the record of step s
//! ```
//! The numbers are those of an evaluation between the two steps, bit by bit.

use crate::TrainError;
use crate::runner::{RankLosses, Runner};
use bessemer_eval::EvalError;
use bessemer_eval::score::{TokenLosses, score};
use bessemer_filling::RankFill;
use bessemer_loader::EvaluationWindows;
use bessemer_parallel::{ParallelError, Worker};
use bessemer_runtime::TokenBatch;
use bessemer_tensor::Backend;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Inputs and targets of a batch, of all ranks.
type Batch = (Vec<u32>, Vec<u32>);

/// The batches of every evaluation of a run, and the one that is pending.
pub(crate) struct Bubbles {
    batches: Vec<Batch>,
    pending: Option<Pending>,
}

/// An evaluation that is not over.
struct Pending {
    /// Steps and tokens.
    at: (u64, u64),
    /// Losses of every token, by batch.
    losses: Vec<Vec<f32>>,
    /// Number of batches that run in the bubbles of the step, the first ones.
    capacity: usize,
    /// Spent on it besides bubbles.
    seconds: f64,
}

/// An evaluation that is over.
pub(super) struct Ended {
    /// Steps and tokens.
    pub(super) at: (u64, u64),
    pub(super) known: Known,
    /// Spent on it besides bubbles.
    pub(super) seconds: f64,
}

/// Inputs and outputs of a step that evaluates in its bubbles: this rank's part of each batch.
pub(crate) struct InBubbles<'a> {
    batches: &'a [Batch],
    losses: &'a mut [Vec<f32>],
    first: usize,
    tokens: usize,
}

impl InBubbles<'_> {
    pub(crate) fn batch(&self, unit: usize) -> Result<TokenBatch<'_>, ParallelError> {
        let Some((inputs, targets)) = self.batches.get(unit) else {
            let problem = format!("there are {} batches to evaluate", self.batches.len());
            return Err(ParallelError::BatchSource { micro: unit, problem });
        };
        let mine = self.first..self.first + self.tokens;
        Ok(TokenBatch { ids: &inputs[mine.clone()], targets: &targets[mine], positions: None })
    }

    pub(crate) fn record_losses(&mut self, unit: usize, losses: &[f32]) {
        if let Some(all) = self.losses.get_mut(unit) {
            all[self.first..self.first + self.tokens].copy_from_slice(losses);
        }
    }
}

/// Collects the batches of an evaluation instead of scoring them.
struct Collector {
    shape: (usize, usize),
    batches: Vec<Batch>,
}

impl TokenLosses for Collector {
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        self.batches.push((inputs.to_vec(), targets.to_vec()));
        losses.fill(0.0);
        Ok(())
    }
}

/// Losses that are already computed, as a model for evaluation.
pub(super) struct Known {
    shape: (usize, usize),
    losses: std::vec::IntoIter<Vec<f32>>,
}

impl TokenLosses for Known {
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn token_losses(&mut self, _: &[u32], _: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        match self.losses.next() {
            Some(known) => losses.copy_from_slice(&known),
            None => losses.fill(f32::NAN),
        }
        Ok(())
    }
}

impl Bubbles {
    /// The batches of an evaluation of at most `most` tokens by ranks that take `shape` (sequences, tokens) at a time.
    pub(crate) fn new(
        windows: &EvaluationWindows,
        byte_lengths: &[u32],
        most: Option<u64>,
        shape: (usize, usize),
    ) -> Result<Bubbles, TrainError> {
        let mut collector = Collector { shape, batches: Vec::new() };
        score(&mut collector, windows, byte_lengths, most, &mut |_, _| ())?;
        Ok(Bubbles { batches: collector.batches, pending: None })
    }

    /// Batches of an evaluation.
    pub(crate) fn count(&self) -> usize {
        self.batches.len()
    }

    /// Begins an evaluation: batches that do not fit into the bubbles are scored now.
    pub(crate) fn begin(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        at: (u64, u64),
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        let begun = Instant::now();
        let losses = self.batches.iter().map(|(inputs, _)| vec![0.0; inputs.len()]).collect();
        let capacity = RankFill::of(&runner.worker).map_or(0, RankFill::fitting_evaluations);
        let mut pending = Pending { at, losses, capacity, seconds: 0.0 };
        let mut ranks = RankLosses::new(runner, backend, Some(stop));
        for ((inputs, targets), losses) in self.batches.iter().zip(&mut pending.losses).skip(capacity) {
            ranks.losses(inputs, targets, losses)?;
        }
        pending.seconds = begun.elapsed().as_secs_f64();
        self.pending = Some(pending);
        Ok(())
    }

    /// The batches that the current step evaluates.
    pub(crate) fn in_bubbles(&mut self, worker: &Worker) -> Option<InBubbles<'_>> {
        let losses = &mut self.pending.as_mut()?.losses;
        let tokens = worker.decoder().shape().tokens();
        let first = worker.plan().data_index(worker.coord()) * tokens;
        Some(InBubbles { batches: &self.batches, losses, first, tokens })
    }

    /// Whether an evaluation is pending.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Forgets the pending evaluation.
    pub(crate) fn forget(&mut self) {
        self.pending = None;
    }

    /// Ends the evaluation. `passed`: the batches that fit have run in a step's bubbles; otherwise they are scored now,
    /// unless a rank is requested to `stop`.
    pub(super) fn end(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        passed: bool,
        stop: Option<&AtomicBool>,
    ) -> Result<Option<Ended>, TrainError> {
        let Some(mut pending) = self.pending.take() else { return Ok(None) };
        let begun = Instant::now();
        let mut ranks = RankLosses::new(runner, backend, stop);
        let shape = ranks.shape();
        let in_bubbles = self.batches.iter().zip(&mut pending.losses).take(pending.capacity);
        for ((inputs, targets), losses) in in_bubbles {
            match passed {
                true => ranks.gather(losses)?,
                false => ranks.losses(inputs, targets, losses)?,
            }
        }
        let known = Known { shape, losses: pending.losses.into_iter() };
        let seconds = pending.seconds + begun.elapsed().as_secs_f64();
        Ok(Some(Ended { at: pending.at, known, seconds }))
    }
}
