//! What a split backward pass keeps between its input part and its weight part: inputs x and output gradients dy of the
//! four linear maps of each layer, `[n, inputs]` and `[n, outputs]`.
//!
//! Nothing is copied that can change hands instead: where a slot stores an input itself (the attention's result always,
//! normalised rows and hidden values without recomputation), slot and set exchange their buffers; where it makes one again
//! (with recomputation), it is made in the set; the gradients dy are made in the set, but for those that are the residual
//! stream's own, and inputs that are the stream itself (no normalisation, or one after the sum), which are copied.

use crate::activations::{Arena, BackwardScratch, LayerActivations, SlotActivations};
use crate::attention::AttentionScratch;
use crate::error::ModelError;
use crate::mlp::MlpActivations;
use crate::residual::{KeptStream, StreamActivations};
use bessemer_arch::{MlpKind, Model, NormChoice, Placement, Span};
use bessemer_tensor::View;

/// The input and the output's gradient of one linear map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) x: View,
    pub(crate) dy: View,
}

impl Kept {
    pub(crate) fn pair(&self) -> (View, View) {
        (self.x, self.dy)
    }
}

/// One layer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPending {
    pub(crate) qkv: Kept,
    pub(crate) out: Kept,
    pub(crate) up: Kept,
    pub(crate) down: Kept,
}

/// One pending set.
#[derive(Debug)]
pub(crate) struct PendingActivations {
    pub(crate) layers: Vec<LayerPending>,
}

/// True if the block's input is a matrix of its own beside the stream, with all of its rows.
fn has_side(model: &Model, stream: &StreamActivations) -> bool {
    model.norm != NormChoice::None && model.placement == Placement::Pre && stream.whole_nd.is_none()
}

impl PendingActivations {
    pub(crate) fn alloc(
        arena: &mut Arena<'_>,
        model: &Model,
        n: usize,
        span: &Span,
    ) -> Result<PendingActivations, ModelError> {
        let (d, j, a) = (model.width, model.qkv_width(), model.attention_width());
        let (p, f) = (model.mlp_in_width(), model.ffn_width);
        let mut layers = Vec::with_capacity(span.layers.len());
        for i in span.layers.clone() {
            let mut kept = |map: &str, x: usize, dy: usize| -> Result<Kept, ModelError> {
                let name = |what: &str| format!("layers.{i}.{map}.{what}.pending");
                Ok(Kept { x: arena.matrix(&name("in"), n, x)?, dy: arena.matrix(&name("gradient"), n, dy)? })
            };
            layers.push(LayerPending {
                qkv: kept("attention.qkv", d, j)?,
                out: kept("attention.out", a, d)?,
                up: kept("mlp.up", d, p)?,
                down: kept("mlp.down", f, d)?,
            });
        }
        Ok(PendingActivations { layers })
    }

    /// Gives the set what the slot has stored of inputs, for other memory of the same shape.
    pub(crate) fn exchange(&mut self, model: &Model, slot: &mut SlotActivations) {
        for (kept, a) in self.layers.iter_mut().zip(&mut slot.layers) {
            std::mem::swap(&mut kept.out.x, &mut a.attention.mixed_na);
            if !a.mlp.recompute {
                std::mem::swap(&mut kept.down.x, &mut a.mlp.hidden_nf);
            }
            for (x, stream) in
                [(&mut kept.qkv.x, &mut a.attention.stream), (&mut kept.up.x, &mut a.mlp.stream)]
            {
                if has_side(model, stream) && !stream.recompute {
                    std::mem::swap(x, &mut stream.side_nd);
                }
            }
        }
    }
}

impl LayerPending {
    /// The layer's activations and scratch with the set's memory in place of what the weight part will need, after
    /// [`PendingActivations::exchange`].
    pub(crate) fn in_place_of(
        &self,
        model: &Model,
        a: &LayerActivations,
        scratch: &BackwardScratch,
    ) -> (LayerActivations, BackwardScratch) {
        let stream = |stream: StreamActivations, x_nd: View, dproduct_nd: View| StreamActivations {
            side_nd: if has_side(model, &stream) { x_nd } else { stream.side_nd },
            kept: Some(KeptStream { x_nd, dproduct_nd }),
            ..stream
        };
        let mut attention = a.attention;
        attention.stream = stream(attention.stream, self.qkv.x, self.out.dy);
        attention.mixed_na = self.out.x;
        let mlp = MlpActivations {
            stream: stream(a.mlp.stream, self.up.x, self.down.dy),
            hidden_nf: self.down.x,
            dpre_np: Some(self.up.dy),
            ..a.mlp
        };
        let plain = model.mlp() == MlpKind::Plain;
        let scratch = BackwardScratch {
            attention: AttentionScratch { dqkv_nj: self.qkv.dy, ..scratch.attention },
            // The plain block's gradient of hidden values is that of pre-activations.
            dhidden_nf: if plain { self.up.dy } else { scratch.dhidden_nf },
        };
        (LayerActivations { attention, mlp }, scratch)
    }
}
