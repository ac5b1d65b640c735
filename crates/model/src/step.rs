//! Inputs and results of a pass.

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::memory::Slot;
use bessemer_mesh::Axis;
use bessemer_tensor::op::IGNORED;
use bessemer_tensor::{Backend, TensorError, View};

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

/// Whether a backward pass adds to the gradients that are there, for those of each of its parts ([`Decoder::stage_backward`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accumulate {
    /// What the input part writes: norms, tables, output projection.
    pub input: bool,
    /// What the weight part writes: the layers' matrices and their biases.
    pub weight: bool,
}

impl From<bool> for Accumulate {
    fn from(all: bool) -> Accumulate {
        Accumulate { input: all, weight: all }
    }
}

/// A sum of token losses.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct LossSum {
    /// Sum of negative log-likelihoods, in the order of the tokens.
    pub nats: f64,
    /// Targets that were scored.
    pub scored: u64,
    /// Sum over these targets of the squared log-sum-exp of their logits: what the z-loss weighs. 0 where it is not
    /// asked for.
    pub lse_squared: f64,
}

impl LossSum {
    /// Nats per scored target; NaN if there is none.
    pub fn mean(&self) -> f64 {
        self.nats / self.scored as f64
    }

    /// Mean of the squared log-sum-exp per scored target.
    pub fn mean_lse_squared(&self) -> f64 {
        self.lse_squared / self.scored as f64
    }
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: LossSum) {
        self.nats += other.nats;
        self.scored += other.scored;
        self.lse_squared += other.lse_squared;
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

    /// Copies a checked batch to a slot, in the order of the ranks that share it.
    pub(crate) fn upload(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        batch: &TokenBatch<'_>,
    ) -> Result<(), TensorError> {
        let (tokens, seq) = (self.tokens_of(slot), self.seq_of(slot));
        // Ranks that share sequences say in which order positions lie.
        let ranks = self.ranks();
        let rank = *ranks.iter().find(|rank| rank.axis == Axis::Context).unwrap_or(&ranks[0]);
        let mut write = |view: View, values: &[u32]| {
            let mut at = 0;
            let all = |r| rank.order.stretches(tokens, rank.degree, r);
            (0..rank.degree).flat_map(all).try_for_each(|stretch| {
                at += stretch.len;
                backend.write_u32(view.columns(at - stretch.len, stretch.len), &values[stretch.range()])
            })
        };
        let Slot { ids, targets, positions, documents, .. } = *self.slot(slot);
        if !self.shorter.is_empty() {
            // Those of the micro-batch before may have had another length.
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

    /// Where documents start within their sequences, and with that the positions: a document ends with its `end` token.
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

    /// Memory of the token losses of the micro-batch in a slot, `[rows, n]`.
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
        with_lse: bool,
    ) -> Result<LossSum, ModelError> {
        let Some(loss) = self.losses_of(slot) else { return Ok(LossSum::default()) };
        let n = self.tokens_of(slot);
        let read = &mut self.losses[..if with_lse { 2 * n } else { n }];
        backend.read_f32(loss.rows(0, read.len() / n), read)?;
        let (losses, lse) = read.split_at(n);
        Ok(LossSum {
            nats: losses.iter().map(|&l| f64::from(l)).sum(),
            scored,
            lse_squared: lse.iter().map(|&l| f64::from(l).powi(2)).sum(),
        })
    }
}
