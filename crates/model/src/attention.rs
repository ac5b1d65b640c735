//! The attention block: `x_out = x + dropout(Attention(rope(Norm(x) Wqkv + b)) Wo + b)`.
//!
//! Queries, keys and values are one fused product; its columns are all query heads, all key heads, all value heads.
//! Rotation happens in place on the first two parts at once, so the stored queries and keys are the rotated ones, as
//! the backward pass of the attention wants them.
//!
//! Cost forward: 2 n D (H + 2G) E + 2 n H E D FLOPs of products and 4 E H FLOPs for each attended pair.

use crate::norm::{NormStats, NormWeights};
use crate::params::{LinearWeights, ParamTable};
use crate::pass::Pass;
use crate::residual;
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
    norm: NormWeights,
    qkv: LinearWeights,
    out: LinearWeights,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Base of the rotary angles, if positions are rotary.
    theta: Option<f32>,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionActivations {
    pub(crate) x_nd: View,
    pub(crate) stats: NormStats,
    pub(crate) normed_nd: View,
    /// The normalised rows are not kept: the backward pass makes them again.
    pub(crate) recompute: bool,
    /// Rotated queries and keys, and values.
    pub(crate) qkv_nj: View,
    pub(crate) mixed_na: View,
    /// `[B*H, T]`.
    pub(crate) lse: View,
    pub(crate) x_out_nd: View,
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
            norm: NormWeights::new(model, table, &format!("layers.{layer}.attention_norm")),
            qkv: table.linear(&format!("layers.{layer}.attention.qkv")),
            out: table.linear(&format!("layers.{layer}.attention.out")),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
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
            scale: 1.0 / (self.head_dim as f32).sqrt(),
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
        x_nd: View,
        stats: NormStats,
        normed_nd: View,
        qkv_nj: View,
        positions: View,
    ) -> Result<(), TensorError> {
        self.norm.forward(pass, x_nd, stats, normed_nd)?;
        pass.seam_forward(self.at(SeamPlace::AttentionIn), normed_nd)?;
        pass.launch(Linear {
            x: normed_nd,
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
        x_nd: View,
        branch_nd: View,
        x_out_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let at = self.at(SeamPlace::AttentionOut);
        residual::forward(pass, at, &self.out, mixed_na, x_nd, branch_nd, x_out_nd, dropout)
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
        self.project(pass, a.x_nd, a.stats, a.normed_nd, a.qkv_nj, positions)?;
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
        self.finish(pass, a.mixed_na, a.x_nd, branch_nd, a.x_out_nd, masks.map(|m| m.out))
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
        let (branch_nd, dmixed_na) = (s.branch_nd, s.dmixed_na);
        residual::backward(
            pass, at, &self.out, a.mixed_na, None, dx_nd, branch_nd, dmixed_na, mask, accumulate,
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
        if a.recompute {
            self.norm.forward(pass, a.x_nd, a.stats, a.normed_nd)?;
            pass.seam_forward(self.at(SeamPlace::AttentionIn), a.normed_nd)?;
        }
        residual::weight_gradients(pass, &self.qkv, a.normed_nd, s.dqkv_nj, accumulate)?;
        pass.launch(LinearBackwardInput {
            dy: s.dqkv_nj,
            weight: self.qkv.weight.value,
            activation: None,
            dx: branch_nd,
            accumulate: false,
        })?;
        pass.seam_backward(self.at(SeamPlace::AttentionIn), branch_nd)?;
        self.norm.backward(pass, a.x_nd, a.stats, branch_nd, dx_nd, true, accumulate)
    }
}
