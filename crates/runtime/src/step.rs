//! Inputs and results of a pass.

use crate::decoder::{Decoder, Loads};
use crate::error::ModelError;
use crate::memory::{Slot, shaped};
use bessemer_mesh::{Axis, Placement};
use bessemer_program::{Class, Phase, Value};
use bessemer_tensor::op::IGNORED;
use bessemer_tensor::{Backend, Stream, TensorError, View};

/// Tokens of one micro-batch: `sequences` rows of `seq` tokens, row-major.
#[derive(Debug, Clone, Copy)]
pub struct TokenBatch<'a> {
    /// Input tokens, each below the vocabulary size.
    pub ids: &'a [u32],
    /// The token that follows each input token, or [`IGNORED`] where none is scored.
    pub targets: &'a [u32],
    /// Position of each token; left out: 0, 1, ... in every row.
    pub positions: Option<&'a [u32]>,
}

/// Position of a micro-batch in the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepContext {
    /// Seed of the run (dropout).
    pub seed: u64,
    /// Optimizer step, from 0 (dropout).
    pub step: u64,
    /// Number of this micro-batch's first sequence within the step's global batch: micro-batch index times sequences
    /// in a micro-batch, plus the sequences of lower ranks. Dropout then does not depend on the cut.
    pub first_sequence: u64,
    /// Factor on every token's gradient: 1 / (scored targets of the step's global batch).
    pub loss_scale: f32,
    /// False for the step's first micro-batch, which overwrites the gradients; true for the others, which add.
    pub accumulate: bool,
}

/// Whether a backward pass adds to the existing gradients, for those of each of its parts ([`Decoder::stage_backward`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accumulate {
    /// Gradients that the input part writes: norms, tables, output projection.
    pub input: bool,
    /// Gradients that the weight part writes: the layers' matrices and their biases.
    pub weight: bool,
}

impl From<bool> for Accumulate {
    fn from(all: bool) -> Accumulate {
        Accumulate { input: all, weight: all }
    }
}

/// An auxiliary loss ([`bessemer_program::AuxiliaryLoss`]) as a term of the objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeighedLoss {
    /// Its name, such as [`bessemer_model::Z_LOSS`].
    pub name: &'static str,
    /// Factor on its mean over the scored targets; of a loss of routers, over all tokens ([`Decoder::stage_scored_share`]).
    pub weight: f64,
    /// The first step in which the weight is 0; `None`: it is never 0.
    pub until: Option<u64>,
}

impl WeighedLoss {
    /// A loss that has the same weight in every step.
    pub const fn new(name: &'static str, weight: f64) -> WeighedLoss {
        WeighedLoss { name, weight, until: None }
    }

    /// The z-loss.
    pub const fn z_loss(weight: f64) -> WeighedLoss {
        WeighedLoss::new(bessemer_model::Z_LOSS, weight)
    }

    /// Factor that makes its sum over scored targets the mean that it is: of a loss of routers `scored_share`, the share of the tokens of
    /// the step that are scored targets.
    pub fn share_of_mean(&self, scored_share: f64) -> f64 {
        if is_of_router(self.name) { scored_share } else { 1.0 }
    }

    /// Its weight in a step, from 0.
    pub fn weight_at(&self, step: u64) -> f64 {
        match self.until {
            Some(until) if step >= until => 0.0,
            _ => self.weight,
        }
    }
}

/// A sum of token losses.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct LossSum {
    /// Sum of negative log-likelihoods, in the order of the tokens.
    pub nats: f64,
    /// Targets that were scored.
    pub scored: u64,
    /// Sums of the auxiliary losses, without their weights, in the order of [`Decoder::weigh_losses`]. Of a pass on one of several
    /// ranks: the rank's term. 0 where nothing was trained.
    pub auxiliary: [f64; LossSum::MOST_AUXILIARY],
}

impl LossSum {
    /// Auxiliary losses of different names that a job may have.
    pub const MOST_AUXILIARY: usize = 4;

    /// Nats per scored target; NaN if there is none.
    pub fn mean(&self) -> f64 {
        self.nats / self.scored as f64
    }

    /// Mean of an auxiliary loss per scored target, without its weight.
    pub fn mean_auxiliary(&self, number: usize) -> f64 {
        self.auxiliary[number] / self.scored as f64
    }
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: LossSum) {
        self.nats += other.nats;
        self.scored += other.scored;
        self.auxiliary.iter_mut().zip(other.auxiliary).for_each(|(sum, term)| *sum += term);
    }
}

/// Errors unless every index is below `below` (or [`IGNORED`], where that means something).
pub(crate) fn check_indices(
    what: &'static str,
    indices: &[u32],
    below: usize,
    may_be_ignored: bool,
) -> Result<(), ModelError> {
    let outside = |&i: &u32| i as usize >= below && !(may_be_ignored && i == IGNORED);
    match indices.iter().position(outside) {
        None => Ok(()),
        Some(at) => Err(ModelError::Index { what, at, found: indices[at], below }),
    }
}

/// Whether an auxiliary loss is computed from a router's logits or probabilities.
fn is_of_router(loss: &str) -> bool {
    [bessemer_model::BALANCE_LOSS, bessemer_model::ROUTER_Z_LOSS].contains(&loss)
}

/// Counts that are read from the device at a time.
const COUNTED_AT_ONCE: usize = 256;

impl Decoder {
    /// Errors unless the batch has this decoder's shape and the model's indices.
    pub(crate) fn check_batch(&self, batch: &TokenBatch<'_>) -> Result<(), ModelError> {
        let (sequences, seq) = match self.length_of_tokens(batch.ids.len())? {
            Some(at) => (self.shape.sequences, self.shorter[at].seq),
            None => (self.shape.sequences, self.shape.seq),
        };
        let tokens = sequences * seq;
        let lists =
            [("ids", Some(batch.ids)), ("targets", Some(batch.targets)), ("positions", batch.positions)];
        let weights = self.held.weights.len();
        if ![0, tokens].contains(&weights) {
            let wanted = format!("{sequences} sequences of {seq} tokens = {tokens}");
            return Err(ModelError::Shape { what: "weights of targets", wanted, found: weights.to_string() });
        }
        for (what, list) in lists {
            let found = list.map_or(tokens, <[u32]>::len);
            if found != tokens {
                let wanted = format!("{sequences} sequences of {seq} tokens = {tokens}");
                return Err(ModelError::Shape { what, wanted, found: found.to_string() });
            }
        }
        let vocab_size = self.vocab_size();
        check_indices("ids", batch.ids, vocab_size, false)?;
        check_indices("targets", batch.targets, vocab_size, true)?;
        check_indices("positions", batch.positions.unwrap_or(&[]), self.model.context, false)
    }

    /// Copies a checked batch to a slot, in the order of the ranks that share it; to train, with factors on the tokens' gradients.
    pub(crate) fn upload(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        batch: &TokenBatch<'_>,
        ctx: Option<&StepContext>,
    ) -> Result<(), TensorError> {
        let (tokens, seq) = (self.tokens_of(slot), self.seq_of(slot));
        // Ranks that share sequences define the order of positions.
        let ranks = self.ranks();
        let rank = *ranks.iter().find(|rank| rank.axis == Axis::Context).unwrap_or(&ranks[0]);
        let Slot { ids, targets, positions, factors, documents, .. } = *self.slot(slot);
        if let (Some(ctx), Some(view)) = (ctx, factors) {
            let numbers = &mut self.numbers[..tokens];
            numbers.fill(ctx.loss_scale);
            if !self.held.weights.is_empty() {
                // In the order of the targets.
                let stretches = (0..rank.degree).flat_map(|r| rank.order.stretches(tokens, rank.degree, r));
                let weights = stretches.flat_map(|stretch| &self.held.weights[stretch.range()]);
                numbers.iter_mut().zip(weights).for_each(|(number, weight)| *number *= weight);
            }
            backend.write_f32(view, numbers)?;
        }
        let mut write = |view: View, values: &[u32]| {
            let mut at = 0;
            let all = |r| rank.order.stretches(tokens, rank.degree, r);
            (0..rank.degree).flat_map(all).try_for_each(|stretch| {
                at += stretch.len;
                backend.write_u32(view.columns(at - stretch.len, stretch.len), &values[stretch.range()])
            })
        };
        if !self.shorter.is_empty() {
            // The positions of the preceding micro-batch may be for another length.
            let rows = self.default_positions[..tokens].chunks_mut(seq);
            rows.for_each(|row| row.iter_mut().enumerate().for_each(|(t, position)| *position = t as u32));
        }
        if let (Some(end), Some(view)) = (self.model.document_end, documents) {
            self.find_documents(batch.ids, seq, end);
            write(view, &self.documents[..tokens])?;
        }
        if self.stage.span.embedding {
            write(ids, batch.ids)?;
        }
        if self.stage.span.head {
            write(targets, batch.targets)?;
        }
        write(positions, batch.positions.unwrap_or(&self.default_positions[..tokens]))
    }

    /// Finds where documents start within their sequences, and with that the positions: a document ends with its `end` token.
    fn find_documents(&mut self, ids: &[u32], seq: usize, end: u32) {
        let mut start = 0;
        for (n, document) in self.documents[..ids.len()].iter_mut().enumerate() {
            let t = n % seq;
            if t == 0 || ids[n - 1] == end {
                start = t;
            }
            *document = start as u32;
            self.default_positions[n] = (t - start) as u32;
        }
    }

    /// Memory of the token losses of the micro-batch in a slot, `[1, n]`.
    pub(crate) fn losses_of(&self, slot: usize) -> Option<View> {
        let cols = self.tokens_of(slot);
        self.buffers.losses.map(|losses| View { cols, stride: cols, ..losses })
    }

    /// The sum of the token losses of the last pass, that of the micro-batch in a slot, of which so many were scored.
    pub(crate) fn read_losses(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        scored: u64,
    ) -> Result<LossSum, ModelError> {
        let Some(loss) = self.losses_of(slot) else { return Ok(LossSum::default()) };
        let losses = &mut self.numbers[..loss.len()];
        backend.read_f32(loss, losses)?;
        Ok(LossSum { nats: losses.iter().map(|&l| f64::from(l)).sum(), scored, ..LossSum::default() })
    }

    /// This rank's terms of the auxiliary losses that the last pass has made, that of the micro-batch in a slot.
    pub(crate) fn read_auxiliary_losses(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        phase: Phase,
    ) -> Result<[f64; LossSum::MOST_AUXILIARY], ModelError> {
        let mut numbers = std::mem::take(&mut self.numbers);
        let sums = self.auxiliary_losses(backend, slot, phase, &mut numbers);
        self.numbers = numbers;
        let (sums, router) = sums?;
        let earlier = self.router_not_finite;
        self.router_not_finite = router.into_iter().chain(earlier).min();
        Ok(sums)
    }

    /// The first layer whose router has computed values that are not finite in the training passes since the last call, as far as this
    /// rank has processed them.
    pub fn take_router_not_finite(&mut self) -> Option<usize> {
        self.router_not_finite.take()
    }

    /// Whether forward passes compute losses of routers, which are not finite where a router is not.
    pub(crate) fn has_routers(&self) -> bool {
        self.units.iter().flat_map(|unit| &unit.program.losses).any(|loss| is_of_router(loss.name))
    }

    /// Adds the counts of the last forward pass, that of the micro-batch in a slot.
    pub(crate) fn read_counts(&mut self, backend: &mut dyn Backend, slot: usize) -> Result<(), ModelError> {
        let mut loads = std::mem::take(&mut self.loads);
        let mut bytes = [0; COUNTED_AT_ONCE * size_of::<u32>()];
        let mut read = |at: usize, loads: &mut Loads| -> Result<(), ModelError> {
            let program = &self.unit(at, Some(slot)).program;
            let value = program.values.iter().find(|value| value.class == Class::Counts);
            let (Some(view), Some(_)) = (self.buffers.counts[at], value.filter(|value| self.counts(value)))
            else {
                return Ok(());
            };
            for (number, counts) in loads.counts.chunks_mut(COUNTED_AT_ONCE).enumerate() {
                let bytes = &mut bytes[..size_of_val(counts)];
                let part = view.columns(number * COUNTED_AT_ONCE, counts.len());
                backend.read_bytes(Stream::Compute, part, bytes)?;
                for (count, bytes) in counts.iter_mut().zip(bytes.as_chunks().0) {
                    *count = count.saturating_add(u32::from_le_bytes(*bytes));
                }
            }
            Ok(())
        };
        let result = loads.iter_mut().enumerate().try_for_each(|(at, loads)| read(at, loads));
        self.loads = loads;
        result
    }

    /// Passes the choices of each expert by the tokens of the forward passes since the last call to `take`, layer by layer, as this rank
    /// counts them, and clears them. After them come those that a capacity has dropped and those that it has kept, if there is one.
    pub fn take_loads(&mut self, take: &mut dyn FnMut(usize, &[u32])) {
        for Loads { layer, counts } in &mut self.loads {
            if let (Some(layer), false) = (layer, counts.is_empty()) {
                take(*layer, counts);
                counts.fill(0);
            }
        }
    }

    fn auxiliary_losses(
        &self,
        backend: &mut dyn Backend,
        slot: usize,
        phase: Phase,
        host: &mut [f32],
    ) -> Result<([f64; LossSum::MOST_AUXILIARY], Option<usize>), ModelError> {
        let mut sums = [0.0; LossSum::MOST_AUXILIARY];
        let (mut first, mut router) = (0, None);
        for at in 0..self.units.len() {
            let views = &self.buffers.auxiliary[at];
            let numbers = &self.loss_numbers[first..first + views.len()];
            first += views.len();
            let program = &self.unit(at, Some(slot)).program;
            for (loss, (view, weighed)) in views.iter().zip(numbers).enumerate() {
                let of_router = is_of_router(program.losses[loss].name);
                if !program.makes_loss(phase, loss) || (weighed.is_none() && !of_router) {
                    continue;
                }
                let value = program.values.iter().find(|v| v.class == Class::AuxiliaryLoss(loss));
                let Some(value) = value.filter(|value| self.counts(value)) else { continue };
                let read = &mut host[..value.len()];
                backend.read_f32(shaped(*view, value), read)?;
                let values = read.iter().map(|&v| f64::from(v));
                let sum = match program.losses[loss].squared {
                    true => values.map(|v| v.powi(2)).sum::<f64>(),
                    false => values.sum(),
                };
                if of_router && !sum.is_finite() {
                    router = router.or(self.layer_of(at));
                }
                if let Some(weighed) = weighed {
                    sums[*weighed] += sum;
                }
            }
        }
        Ok((sums, router))
    }

    /// Whether this rank counts a value in a sum over the ranks that share a micro-batch: of ranks with the same values the first
    /// does.
    fn counts(&self, value: &Value) -> bool {
        self.ranks().iter().all(|rank| rank.index == 0 || value.placement(rank.axis) != Placement::Replicate)
    }
}
