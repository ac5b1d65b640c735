//! A look into a training pass: the residual stream by depth, how far normalisations scale it, what attention compares.

use crate::activations::LayerActivations;
use crate::decoder::{Decoder, Layer, Purpose};
use bessemer_tensor::View;

/// What the last forward pass of a decoder made to train has left of one layer.
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
    /// Views of what the last forward pass has left, layer by layer; empty for a decoder made to score, whose layers
    /// share their memory.
    pub fn traces(&self) -> Vec<LayerTrace> {
        if self.shape.purpose != Purpose::Train {
            return Vec::new();
        }
        let trace = |(layer, a): (&Layer, &LayerActivations)| {
            let [queries, keys, _] =
                layer.attention.split(a.attention.qkv_nj, a.attention.qk.map(|r| r.rows_nk));
            LayerTrace {
                stream: a.attention.stream.x_nd,
                queries,
                keys,
                attention_rstd: a.attention.stream.stats.map(|s| s.rstd),
                mlp_rstd: a.mlp.stream.stats.map(|s| s.rstd),
            }
        };
        self.layers.iter().zip(&self.act.slots[0].layers).map(trace).collect()
    }

    /// `[n, d]`: the residual stream that leaves the last layer (of a stage's first slot), as the last forward pass has left it.
    pub fn stream_end(&self) -> View {
        self.act.slots[0].end_nd
    }
}
