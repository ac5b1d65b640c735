//! The attention block f: `Attention(rope(x Wqkv + b)) Wo + b`; how it joins the stream is [`Residual`]'s.
//!
//! Queries, keys and values are one fused product; its columns are all query heads, all key heads, all value heads.
//! Rotation happens in place on the first two parts at once, so the stored queries and keys are the rotated ones, as
//! the backward pass of the attention wants them.
//!
//! Cost forward: 2 n D (H + 2G) E + 2 n H E D FLOPs of products and 4 E H FLOPs for each attended pair.

use crate::params::{LinearWeights, ParamTable};
use crate::pass::Pass;
use crate::residual::{Residual, StreamActivations, weight_gradients};
use crate::seams::{SeamAt, SeamPlace};
use bessemer_arch::{Model, PositionChoice};
use bessemer_tensor::op::{
    Attention, AttentionBackward, AttentionMask, AttentionShape, DropoutMask, Linear, LinearBackwardInput,
    Rope, RopeScaling,
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
    /// Base of the rotary angles, if positions are rotary.
    theta: Option<f32>,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionActivations {
    pub(crate) stream: StreamActivations,
    /// Rotated queries and keys, and values.
    pub(crate) qkv_nj: View,
    pub(crate) mixed_na: View,
    /// `[B*H, T]`.
    pub(crate) lse: View,
}

/// Scratch of the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionScratch {
    pub(crate) branch_nd: View,
    pub(crate) dqkv_nj: View,
    pub(crate) dmixed_na: View,
}

/// Dropout masks of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionMasks {
    pub(crate) weights: DropoutMask,
    pub(crate) out: DropoutMask,
}

impl AttentionBlock {
    pub(crate) fn new(model: &Model, table: &ParamTable, layer: usize) -> AttentionBlock {
        AttentionBlock {
            layer,
            residual: Residual::new(model, table, &format!("layers.{layer}.attention_norm")),
            qkv: table.linear(&format!("layers.{layer}.attention.qkv")),
            out: table.linear(&format!("layers.{layer}.attention.out")),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            scale: model.attention_scale() as f32,
            theta: (model.positions == PositionChoice::Rope).then_some(model.rope_theta as f32),
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

    /// The queries', keys' and values' columns of a fused matrix.
    pub(crate) fn split(&self, qkv_nj: View) -> [View; 3] {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        [qkv_nj.columns(0, q), qkv_nj.columns(q, kv), qkv_nj.columns(q + kv, kv)]
    }

    fn at(&self, place: SeamPlace) -> SeamAt {
        SeamAt { layer: self.layer, place }
    }

    fn rotate(
        &self,
        pass: &mut Pass<'_>,
        qkv_nj: View,
        positions: View,
        inverse: bool,
    ) -> Result<(), TensorError> {
        let Some(theta) = self.theta else { return Ok(()) };
        let heads = self.heads + self.kv_heads;
        pass.launch(Rope {
            x: qkv_nj.columns(0, heads * self.head_dim),
            positions,
            heads,
            theta,
            scaling: RopeScaling::None,
            inverse,
        })
    }

    /// Queries, keys and values of the rows of x.
    pub(crate) fn project(
        &self,
        pass: &mut Pass<'_>,
        stream: &StreamActivations,
        qkv_nj: View,
        positions: View,
    ) -> Result<(), TensorError> {
        let input_nd = self.residual.enter(pass, stream)?;
        pass.seam_forward(self.at(SeamPlace::AttentionIn), input_nd)?;
        pass.launch(Linear {
            x: input_nd,
            weight: self.qkv.weight.value,
            bias: self.qkv.bias.map(|b| b.value),
            activation: None,
            residual: None,
            out: qkv_nj,
        })?;
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
        positions: View,
        branch_nd: View,
        masks: Option<AttentionMasks>,
    ) -> Result<(), TensorError> {
        self.project(pass, &a.stream, a.qkv_nj, positions)?;
        let [q, k, v] = self.split(a.qkv_nj);
        let dropout = masks.map(|m| m.weights);
        pass.launch(Attention {
            shape,
            q,
            k,
            v,
            out: a.mixed_na,
            lse: a.lse,
            mask: AttentionMask::default(),
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
        positions: View,
        s: &AttentionScratch,
        dx_nd: View,
        masks: Option<AttentionMasks>,
        accumulate: bool,
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
        let [q, k, v] = self.split(a.qkv_nj);
        let [dq, dk, dv] = self.split(s.dqkv_nj);
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
            mask: AttentionMask::default(),
            dropout: masks.map(|m| m.weights),
        })?;
        self.rotate(pass, s.dqkv_nj, positions, true)?;
        let input_nd = self.residual.input_again(pass, self.at(SeamPlace::AttentionIn), &a.stream)?;
        weight_gradients(pass, &self.qkv, input_nd, s.dqkv_nj, accumulate)?;
        pass.launch(LinearBackwardInput {
            dy: s.dqkv_nj,
            weight: self.qkv.weight.value,
            activation: None,
            dx: g.input_nd,
            accumulate: false,
        })?;
        self.residual.enter_backward(pass, self.at(SeamPlace::AttentionIn), &a.stream, &g, accumulate)
    }
}
