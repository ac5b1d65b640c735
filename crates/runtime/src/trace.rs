//! A look into a training pass: the residual stream by depth, how far normalisations scale it, the operands of attention.

use crate::decoder::{Decoder, Purpose};
use crate::units::StageUnit;
use bessemer_arch::Unit;
use bessemer_tensor::View;

/// Activations of one layer after the last forward pass of a decoder made to train.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerTrace {
    /// `[n, d]`: the residual stream that enters the layer.
    pub stream: View,
    /// `[n, H E]`: queries as attention reads them, normalised and rotated where the model does that.
    pub queries: View,
    /// `[n, G E]`: keys as attention reads them.
    pub keys: View,
    /// `[1, n]`: 1/sigma of the attention block's normalisation in each row, if there is one.
    pub attention_rstd: Option<View>,
    /// `[1, n]`: 1/sigma of the feed-forward block's normalisation.
    pub mlp_rstd: Option<View>,
}

impl Decoder {
    /// Views of the activations of the last forward pass, layer by layer; empty for a decoder made to score, whose layers
    /// share their memory.
    pub fn traces(&self) -> Vec<LayerTrace> {
        let slot = self.slot(0);
        if self.shape.purpose != Purpose::Train {
            return Vec::new();
        }
        let (queries, keys) = (self.model.attention_width(), self.model.kv_heads * self.model.head_dim);
        let layers = self.units.iter().enumerate().filter(|(_, u)| matches!(u.unit, Unit::Layer(_)));
        let trace = |(layer, (at, _)): (usize, (usize, &StageUnit))| {
            let program = &self.unit(at, Some(0)).program;
            let saved = |name: &str| slot.saved[at][program.find(name)?];
            let qk = saved("attention.qk.out").or_else(|| saved("attention.qkv.out"))?;
            Some(LayerTrace {
                stream: slot.stream[layer],
                queries: qk.columns(0, queries),
                keys: qk.columns(queries, keys),
                attention_rstd: saved("attention_norm.rstd"),
                mlp_rstd: saved("mlp_norm.rstd"),
            })
        };
        layers.enumerate().filter_map(trace).collect()
    }

    /// `[n, d]`: the residual stream that leaves the last layer (of a stage's first slot), as the last forward pass has left it.
    pub fn stream_end(&self) -> View {
        self.stream_of(0)
    }

    /// `[n, d]`: the gradient of the residual stream (of a stage's first slot). When a layer begins its backward pass it is that
    /// of the stream after the layer.
    pub fn stream_gradient(&self) -> View {
        self.slot(0).gradient
    }
}
