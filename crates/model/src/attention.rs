//! The attention block f: `Attention(rope(x Wqkv + b)) Wo + b`; how it joins the stream is [`Residual`]'s.
//!
//! Queries, keys and values are one fused product; its columns are all query heads, all key heads, all value heads.
//! Rotation happens in place on the first two parts at once, so the stored queries and keys are the rotated ones, as
//! the backward pass of the attention wants them.
//!
//! Cost forward: 2 n D (H + 2G) E + 2 n H E D FLOPs of products and 4 E H FLOPs for each attended pair.

use crate::params::{LinearWeights, ParamTable, Weight};
use crate::pass::Pass;
use crate::portion::Cut;
use crate::qk_norm::{QkNorm, QkRows};
use crate::residual::{Residual, StreamActivations, weight_gradients};
use crate::seams::{SeamAt, SeamPlace};
use crate::step::Accumulate;
use bessemer_arch::{Model, PositionChoice, RopeScalingKind, Unit};
use bessemer_tensor::op::{
    Alibi, Attention, AttentionBackward, AttentionDropout, AttentionMask, AttentionShape, DropoutMask,
    Linear, Rope, RopeScaling,
};
use bessemer_tensor::{TensorError, View};

/// Parameters and sizes of one attention block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionBlock {
    layer: usize,
    residual: Residual,
    qkv: LinearWeights,
    out: LinearWeights,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Factor on the scores.
    scale: f32,
    /// Base of the rotary angles and how they are stretched, if positions are rotary.
    rope: Option<(f32, RopeScaling)>,
    pub(crate) window: Option<usize>,
    pub(crate) alibi: Option<Alibi>,
    qk_norm: Option<QkNorm>,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionActivations {
    pub(crate) stream: StreamActivations,
    /// Rotated queries and keys, and values; with QK-norm the first two as they were projected.
    pub(crate) qkv_nj: View,
    /// With QK-norm: queries and keys, normalised and rotated.
    pub(crate) qk: Option<QkRows>,
    pub(crate) mixed_na: View,
    /// `[B*H, T]`.
    pub(crate) lse: View,
}

/// Scratch of the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionScratch {
    pub(crate) branch_nd: View,
    pub(crate) dqkv_nj: View,
    /// With QK-norm: gradients of normalised queries and keys.
    pub(crate) dqk_nk: Option<View>,
    pub(crate) dmixed_na: View,
}

/// Where the rows of a pass stand: u32 `[1, n]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) positions: View,
    /// First position, within the sequence, of each row's document, if attention stays within documents.
    pub(crate) documents: Option<View>,
}

/// Dropout masks of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionMasks {
    pub(crate) weights: AttentionDropout,
    pub(crate) out: DropoutMask,
}

impl AttentionBlock {
    pub(crate) fn new(model: &Model, cut: &Cut, table: &ParamTable, layer: usize) -> AttentionBlock {
        AttentionBlock {
            layer,
            residual: Residual::new(model, table, &format!("layers.{layer}.attention_norm")),
            qkv: table.linear(&format!("layers.{layer}.attention.qkv")),
            out: table.linear(&format!("layers.{layer}.attention.out")),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            scale: model.attention_scale() as f32,
            rope: (model.positions == PositionChoice::Rope)
                .then(|| (model.rope_theta as f32, rope_scaling(model))),
            window: model.window,
            alibi: (model.positions == PositionChoice::Alibi).then(|| cut.alibi()),
            qk_norm: QkNorm::new(model, table, layer),
        }
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        self.residual.each(visit);
        self.qkv.each(visit);
        self.out.each(visit);
        if let Some(norm) = &mut self.qk_norm {
            norm.each(visit);
        }
    }

    pub(crate) fn shape(&self, batch: usize, seq: usize) -> AttentionShape {
        AttentionShape {
            batch,
            seq,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
        }
    }

    /// The queries', keys' and values' columns of a fused matrix; with QK-norm the first two of `qk_nk`.
    pub(crate) fn split(&self, qkv_nj: View, qk_nk: Option<View>) -> [View; 3] {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let qk = qk_nk.unwrap_or(qkv_nj);
        [qk.columns(0, q), qk.columns(q, kv), qkv_nj.columns(q + kv, kv)]
    }

    fn mask(&self, places: &Places) -> AttentionMask {
        AttentionMask { window: self.window, alibi: self.alibi, documents: places.documents }
    }

    fn at(&self, place: SeamPlace) -> SeamAt {
        SeamAt { unit: Unit::Layer(self.layer), place }
    }

    fn rotate(
        &self,
        pass: &mut Pass<'_>,
        qk_nk: View,
        positions: View,
        inverse: bool,
    ) -> Result<(), TensorError> {
        let Some((theta, scaling)) = self.rope else { return Ok(()) };
        let heads = self.heads + self.kv_heads;
        pass.launch(Rope {
            x: qk_nk.columns(0, heads * self.head_dim),
            positions,
            heads,
            theta,
            scaling,
            inverse,
        })
    }

    /// Queries, keys and values of the rows of x.
    pub(crate) fn project(
        &self,
        pass: &mut Pass<'_>,
        stream: &StreamActivations,
        qkv_nj: View,
        qk: Option<QkRows>,
        positions: View,
    ) -> Result<(), TensorError> {
        let at = self.at(SeamPlace::AttentionIn);
        let input_nd = self.residual.enter(pass, at, stream)?;
        let linear = Linear {
            x: input_nd,
            weight: self.qkv.weight.value,
            bias: self.qkv.bias.map(|b| b.value),
            activation: None,
            residual: None,
            out: qkv_nj,
        };
        Residual::first(pass, at, stream, linear)?;
        if let (Some(norm), Some(qk)) = (&self.qk_norm, qk) {
            norm.forward(pass, qkv_nj, &qk)?;
            return self.rotate(pass, qk.rows_nk, positions, false);
        }
        self.rotate(pass, qkv_nj, positions, false)
    }

    /// Output projection and residual.
    pub(crate) fn finish(
        &self,
        pass: &mut Pass<'_>,
        mixed_na: View,
        stream: &StreamActivations,
        branch_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let at = self.at(SeamPlace::AttentionOut);
        self.residual.leave(pass, at, &self.out, mixed_na, stream, branch_nd, dropout)
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        a: &AttentionActivations,
        shape: AttentionShape,
        places: Places,
        branch_nd: View,
        masks: Option<AttentionMasks>,
    ) -> Result<(), TensorError> {
        self.project(pass, &a.stream, a.qkv_nj, a.qk, places.positions)?;
        let [q, k, v] = self.split(a.qkv_nj, a.qk.map(|r| r.rows_nk));
        let dropout = masks.map(|m| m.weights);
        pass.launch(Attention {
            shape,
            q,
            k,
            v,
            out: a.mixed_na,
            lse: a.lse,
            mask: self.mask(&places),
            dropout,
        })?;
        self.finish(pass, a.mixed_na, &a.stream, branch_nd, masks.map(|m| m.out))
    }

    /// `dx_nd` holds the gradient of x_out and then that of x.
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        a: &AttentionActivations,
        shape: AttentionShape,
        places: Places,
        s: &AttentionScratch,
        dx_nd: View,
        masks: Option<AttentionMasks>,
        accumulate: Accumulate,
    ) -> Result<(), TensorError> {
        let at = self.at(SeamPlace::AttentionOut);
        let mask = masks.map(|m| m.out);
        let (gradients_nd, dmixed_na) = ((dx_nd, s.branch_nd), s.dmixed_na);
        let g = self.residual.leave_backward(
            pass,
            at,
            &self.out,
            a.mixed_na,
            None,
            &a.stream,
            gradients_nd,
            dmixed_na,
            mask,
            accumulate,
        )?;
        let [q, k, v] = self.split(a.qkv_nj, a.qk.map(|r| r.rows_nk));
        let [dq, dk, dv] = self.split(s.dqkv_nj, s.dqk_nk);
        pass.launch(AttentionBackward {
            shape,
            q,
            k,
            v,
            out: a.mixed_na,
            lse: a.lse,
            dout: dmixed_na,
            dq,
            dk,
            dv,
            mask: self.mask(&places),
            dropout: masks.map(|m| m.weights),
        })?;
        self.rotate(pass, s.dqk_nk.unwrap_or(s.dqkv_nj), places.positions, true)?;
        if let (Some(norm), Some(kept), Some(dqk_nk)) = (&self.qk_norm, &a.qk, s.dqk_nk) {
            norm.backward(pass, a.qkv_nj, kept, dqk_nk, s.dqkv_nj, accumulate.input)?;
        }
        let input_nd = self.residual.input_again(pass, self.at(SeamPlace::AttentionIn), &a.stream)?;
        let (at, views) = (self.at(SeamPlace::AttentionIn), (input_nd, s.dqkv_nj, g.input_nd));
        Residual::first_gradients(pass, at, &self.qkv, &a.stream, views, accumulate.weight)?;
        self.residual.enter_backward(pass, self.at(SeamPlace::AttentionIn), &a.stream, &g, accumulate.input)
    }

    /// The gradients of both matrices, from what a split backward pass has kept: (x, dy) of queries, keys and values, and
    /// of the output projection.
    pub(crate) fn backward_weight(
        &self,
        pass: &mut Pass<'_>,
        [qkv, out]: [(View, View); 2],
        accumulate: bool,
    ) -> Result<(), TensorError> {
        weight_gradients(pass, &self.out, out.0, out.1, accumulate)?;
        weight_gradients(pass, &self.qkv, qkv.0, qkv.1, accumulate)
    }
}

/// The operator's description of the model's stretched angles.
fn rope_scaling(model: &Model) -> RopeScaling {
    let Some(s) = model.rope_scaling else { return RopeScaling::None };
    let factor = s.factor as f32;
    match s.kind {
        RopeScalingKind::Linear => RopeScaling::Linear { factor },
        RopeScalingKind::Llama3 => RopeScaling::Llama3 {
            factor,
            low_freq_factor: s.low_freq_factor as f32,
            high_freq_factor: s.high_freq_factor as f32,
            original_positions: s.original_context as usize,
        },
    }
}
