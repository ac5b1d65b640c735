//! A look into a training pass: the residual stream by depth, and how far normalisations scale it.

use crate::decoder::{Decoder, Purpose};
use bessemer_tensor::View;

/// What the last forward pass of a decoder made to train has left of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerTrace {
    /// `[n, d]`: the residual stream that enters the layer.
    pub stream: View,
    /// `[1, n]`: 1/sigma of the attention block's normalisation in each row, if there is one.
    pub attention_rstd: Option<View>,
    /// `[1, n]`: 1/sigma of the feed-forward block's normalisation.
    pub mlp_rstd: Option<View>,
}

impl Decoder {
    /// Views of what the last forward pass has left, layer by layer; empty for a decoder made to score, whose layers
    /// share their memory.
    pub fn traces(&self) -> Vec<LayerTrace> {
        if self.shape.purpose != Purpose::Train {
            return Vec::new();
        }
        let trace = |a: &crate::activations::LayerActivations| LayerTrace {
            stream: a.attention.stream.x_nd,
            attention_rstd: a.attention.stream.stats.map(|s| s.rstd),
            mlp_rstd: a.mlp.stream.stats.map(|s| s.rstd),
        };
        self.act.layers.iter().map(trace).collect()
    }

    /// `[n, d]`: the residual stream that leaves the last layer, as the last forward pass has left it.
    pub fn stream_end(&self) -> View {
        self.act.head.x_nd
    }
}
