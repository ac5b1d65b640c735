//! The walks through a decoder's units, each for one slot of activations.

use crate::activations::{BackwardScratch, SlotActivations};
use crate::attention::AttentionMasks;
use crate::decoder::{Decoder, Layer};
use crate::dropout::Masks;
use crate::embedding::EmbeddingTables;
use crate::head::{Head, HeadActivations};
use crate::pass::Pass;
use crate::pending::PendingActivations;
use crate::seams::Phase;
use crate::step::{Accumulate, StepContext};
use bessemer_arch::Unit;
use bessemer_tensor::op::DropoutMask;
use bessemer_tensor::{Backend, TensorError};

/// What a backward pass adds to, and where it leaves what is put off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackwardHow<'a> {
    /// The micro-batch's place in the run, as the forward pass had it.
    pub(crate) ctx: &'a StepContext,
    pub(crate) accumulate: Accumulate,
    /// Only the input part: where the weight part finds its operands.
    pub(crate) pending: Option<&'a PendingActivations>,
}

impl Decoder {
    /// Reserves the workspace of every pass.
    pub(crate) fn plan(&self, backend: &mut dyn Backend) -> Result<(), TensorError> {
        Pass::plan(backend, |pass| {
            let Some(slot) = self.act.slots.first() else { return Ok(()) };
            self.forward(pass, slot, None)?;
            if let (Some(head), Some(a)) = (&self.head, &slot.head) {
                head.loss(pass, a, slot.targets, slot.dx_nd)?;
            }
            for rows in 1..=self.act.logits_nv.rows {
                self.logits_rows(pass, 0, rows)?;
            }
            if let Some(scratch) = &self.act.backward {
                let ctx =
                    StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
                self.forward(pass, slot, self.masks(&ctx))?;
                let how = BackwardHow { ctx: &ctx, accumulate: false.into(), pending: None };
                self.backward(pass, slot, scratch, how)?;
                if let Some(pending) = self.act.pending.first() {
                    self.backward(pass, slot, scratch, BackwardHow { pending: Some(pending), ..how })?;
                    self.backward_weight(pass, pending, false)?;
                }
            }
            Ok(())
        })
    }

    /// The embedding of a span that has it.
    pub(crate) fn embedding(&self) -> Result<&EmbeddingTables, TensorError> {
        self.embedding.as_ref().ok_or_else(|| TensorError::Outside("this stage has no embedding".into()))
    }

    /// The head of a span that has it.
    pub(crate) fn head(&self) -> Result<&Head, TensorError> {
        self.head.as_ref().ok_or_else(|| TensorError::Outside("this stage has no head".into()))
    }

    /// The head of a span that has it, with a slot's activations.
    pub(crate) fn head_of<'a>(
        &'a self,
        slot: &'a SlotActivations,
    ) -> Result<(&'a Head, &'a HeadActivations), TensorError> {
        let a = slot.head.as_ref();
        Ok((self.head()?, a.ok_or_else(|| TensorError::Outside("this stage has no head".into()))?))
    }

    pub(crate) fn logits_rows(
        &self,
        pass: &mut Pass<'_>,
        first: usize,
        rows: usize,
    ) -> Result<(), TensorError> {
        let slot = &self.act.slots[0];
        let (head, a) = self.head_of(slot)?;
        head.logits(
            pass,
            a.x_nd.rows(first, rows),
            a.stats.map(|s| s.rows(rows)),
            slot.dx_nd.rows(0, rows),
            self.act.logits_nv.rows(0, rows),
        )
    }

    pub(crate) fn masks(&self, ctx: &StepContext) -> Option<Masks> {
        (self.model.dropout > 0.0).then_some(Masks {
            p: self.model.dropout as f32,
            seed: ctx.seed,
            step: ctx.step,
            first_sequence: ctx.first_sequence,
        })
    }

    /// Dropout after the embedding.
    fn embedding_mask(&self, masks: Option<Masks>) -> Option<DropoutMask> {
        masks.map(|m| self.hidden_mask(m, "embed.dropout"))
    }

    /// Dropout within a layer: attention weights `[B, H, T, T]`, and the two outputs `[n, d]`.
    fn layer_masks(
        &self,
        layer: &Layer,
        masks: Option<Masks>,
    ) -> (Option<AttentionMasks>, Option<DropoutMask>) {
        let attention = masks.map(|m| AttentionMasks {
            weights: self.cut.attention_mask(m, &layer.dropout.attention, self.shape.seq),
            out: self.hidden_mask(m, &layer.dropout.attention_out),
        });
        (attention, masks.map(|m| self.hidden_mask(m, &layer.dropout.mlp_out)))
    }

    /// Dropout of the stream's rows at a place.
    fn hidden_mask(&self, masks: Masks, place: &str) -> DropoutMask {
        let width = self.model.width;
        self.cut.hidden_mask(masks, place, self.shape.seq * width, width)
    }

    /// From ids, or from what the caller has put there, to the residual stream's end.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        slot: &SlotActivations,
        masks: Option<Masks>,
    ) -> Result<(), TensorError> {
        let scratch = &self.act.scratch;
        if let Some(embedding) = &self.embedding {
            let mask = self.embedding_mask(masks);
            pass.unit(Unit::Embedding, Phase::Forward, |pass| {
                let positions = self.cut.local(slot.places.positions);
                embedding.forward(
                    pass,
                    slot.ids,
                    positions,
                    slot.x_nd,
                    (scratch.branch_nd, scratch.whole_nd),
                    mask,
                )
            })?;
        }
        for (layer, a) in self.layers.iter().zip(&slot.layers) {
            let (attention_masks, mlp_mask) = self.layer_masks(layer, masks);
            let shape = layer.attention.shape(self.shape.sequences, self.shape.seq);
            pass.unit(Unit::Layer(layer.index), Phase::Forward, |pass| {
                let (attention, branch_nd) = (&layer.attention, scratch.branch_nd);
                attention.forward(pass, &a.attention, shape, slot.places, branch_nd, attention_masks)?;
                layer.mlp.forward(pass, &a.mlp, branch_nd, mlp_mask)
            })?;
        }
        Ok(())
    }

    /// From the residual stream's end to the loss, or from the gradient there that the caller has put into the slot, and
    /// back to the span's input or the embedding tables.
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        slot: &SlotActivations,
        scratch: &BackwardScratch,
        how: BackwardHow<'_>,
    ) -> Result<(), TensorError> {
        pass.defer(how.pending.is_some());
        let (masks, accumulate) = (self.masks(how.ctx), how.accumulate);
        let phase = if how.pending.is_some() { Phase::BackwardInput } else { Phase::Backward };
        let (branch_nd, dx_nd) = (self.act.scratch.branch_nd, slot.dx_nd);
        if self.head.is_some() {
            let (head, a) = self.head_of(slot)?;
            pass.unit(Unit::Head, phase, |pass| {
                let (targets, scale) = (slot.targets, how.ctx.loss_scale);
                head.loss_and_backward(pass, a, targets, scale, branch_nd, dx_nd, accumulate.input)
            })?;
        }
        for (i, (layer, a)) in self.layers.iter().zip(&slot.layers).enumerate().rev() {
            let (attention_masks, mlp_mask) = self.layer_masks(layer, masks);
            let shape = layer.attention.shape(self.shape.sequences, self.shape.seq);
            let (a, scratch) = match how.pending {
                Some(pending) => pending.layers[i].in_place_of(&self.model, a, scratch),
                None => (*a, *scratch),
            };
            pass.unit(Unit::Layer(layer.index), phase, |pass| {
                let (mlp, attention) = (&layer.mlp, &layer.attention);
                mlp.backward(pass, &a.mlp, branch_nd, scratch.dhidden_nf, dx_nd, mlp_mask, accumulate)?;
                attention.backward(
                    pass,
                    &a.attention,
                    shape,
                    slot.places,
                    &scratch.attention,
                    dx_nd,
                    attention_masks,
                    accumulate,
                )
            })?;
        }
        if let Some(embedding) = &self.embedding {
            let mask = self.embedding_mask(masks);
            pass.unit(Unit::Embedding, phase, |pass| {
                let positions = self.cut.local(slot.places.positions);
                embedding.backward(
                    pass,
                    slot.ids,
                    positions,
                    (dx_nd, self.act.scratch.whole_nd),
                    mask,
                    accumulate.input,
                )
            })?;
        }
        pass.defer(false);
        Ok(())
    }

    /// What [`Decoder::backward`] has put off.
    pub(crate) fn backward_weight(
        &self,
        pass: &mut Pass<'_>,
        pending: &PendingActivations,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let phase = Phase::BackwardWeight;
        if self.head.is_some() {
            pass.unit(Unit::Head, phase, |pass| self.others_ready(pass, Unit::Head))?;
        }
        for (layer, kept) in self.layers.iter().zip(&pending.layers).rev() {
            let unit = Unit::Layer(layer.index);
            pass.unit(unit, phase, |pass| {
                layer.mlp.backward_weight(pass, [kept.up.pair(), kept.down.pair()], accumulate)?;
                layer.attention.backward_weight(pass, [kept.qkv.pair(), kept.out.pair()], accumulate)?;
                self.others_ready(pass, unit)
            })?;
        }
        if self.embedding.is_some() {
            pass.unit(Unit::Embedding, phase, |pass| self.others_ready(pass, Unit::Embedding))?;
        }
        Ok(())
    }

    /// Says that the gradients are complete that the input part has made in this unit.
    fn others_ready(&self, pass: &mut Pass<'_>, unit: Unit) -> Result<(), TensorError> {
        for (_, weight) in self.others.iter().filter(|(of, _)| *of == unit) {
            pass.gradient_ready(weight)?;
        }
        Ok(())
    }
}
