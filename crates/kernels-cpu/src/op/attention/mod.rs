//! Causal attention and its backward pass (Vaswani et al. 2017; tiles, running maxima and recomputation as in Dao et al.
//! 2022, 2023), with sliding windows, linear biases (Press et al. 2022) and packed documents.
//!
//! Forward, for each (b, h), query t at position p and key s that it sees: `z = scale q_t . k_s - slope_h (p - s)`,
//! `lse_t = log sum_s exp z`, `p = exp(z - lse_t)`, `out_t = sum_s m p v_s`, m the dropout factor or 1. Backward:
//! `D_t = dout_t . out_t`, `dp = m (dout_t . v_s)`, `dz = p (dp - D_t)`, `dq_t = scale sum_s dz k_s`,
//! `dk_s = scale sum_t dz q_t`, `dv_s = sum_t m p dout_t`; dk and dv are summed over the query heads of their group in the
//! order of h.
//!
//! Saved for the backward pass: q, k, v, out, lse. Cost: two products forward, five backward, over the pairs that see each
//! other; blocks of keys that no query of a panel sees are skipped; no T x S matrix is stored. A query that sees no key has out 0, lse
//! -infinity and dq 0.
//!
//! Legend: B sequences, T queries and S keys of each (all positions, or with context parallelism some of them), H query heads, G key/value heads, E head width; t query row, s key row; a panel is some
//! queries, one a lane; a strip some panels, or some blocks of keys.

#[cfg(target_arch = "x86_64")]
mod amx;
mod backward;
pub(crate) mod cached;
mod forward;
mod mask;
mod panel;
mod products;
pub(crate) mod reference;
mod rows;

use super::dropout::Mask;
use crate::Rung;
use crate::ctx::{Ctx, Machine};
use crate::operand::Indices;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use crate::simd::neon::Neon;
use crate::simd::{Portable, Simd};
use bessemer_tensor::op::{Attention, AttentionBackward, AttentionDropout};
use bessemer_tensor::{TensorError, View};
use forward::Forward;
use mask::Sight;
use rows::Rows;

/// Dropout of attention weights, as [`AttentionDropout`], with the values of the counters.
#[derive(Debug, Clone, Copy)]
struct WeightDropout {
    mask: Mask,
    heads: usize,
    first: usize,
}

impl WeightDropout {
    fn new<'a>(dropout: &AttentionDropout, read: impl Fn(&View) -> Indices<'a>) -> WeightDropout {
        let AttentionDropout { mask, heads, first } = dropout;
        WeightDropout { mask: Mask::new(mask, &read(&mask.counters)), heads: *heads, first: *first }
    }
}

/// Partition of scores for an instruction set.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Elements of a vector.
    lanes: usize,
    /// Queries of a panel.
    panel: usize,
    /// BLOCK.
    block: usize,
}

impl Sizes {
    fn of<S: Simd>() -> Sizes {
        Sizes { lanes: S::LANES, panel: S::PANEL, block: S::BLOCK }
    }

    fn new(rung: Rung) -> Sizes {
        match rung {
            #[cfg(target_arch = "x86_64")]
            Rung::Avx512 => Sizes::of::<Avx512>(),
            #[cfg(target_arch = "x86_64")]
            Rung::Avx2 => Sizes::of::<Avx2>(),
            #[cfg(target_arch = "aarch64")]
            Rung::Neon => Sizes::of::<Neon>(),
            _ => Sizes::of::<Portable>(),
        }
    }
}

/// Scratch floats of a forward pass.
pub(crate) fn forward_workspace(machine: Machine, op: &Attention) -> usize {
    forward::workspace(machine, &op.shape, op.dropout.is_some())
}

/// Scratch floats of a backward pass.
pub(crate) fn backward_workspace(machine: Machine, op: &AttentionBackward) -> usize {
    backward::workspace(machine, op)
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Attention) -> Result<(), TensorError> {
    let s = op.shape;
    let sight = Sight::new(&s, &op.mask, op.k.rows, op.mask.documents.as_ref().map(|view| ctx.u32(view)));
    sight.check("attention")?;
    let rows = |view| Rows::new(ctx.arena, view);
    let scratch = ctx.scratch().take(forward_workspace(ctx.machine(), op));
    let forward = Forward {
        shape: &s,
        sight,
        q: rows(&op.q),
        k: rows(&op.k),
        v: rows(&op.v),
        out: rows(&op.out),
        lse: Some(ctx.f32(&op.lse)),
        dropout: op.dropout.map(|d| WeightDropout::new(&d, |view| ctx.u32(view))),
        capacity: s.keys(op.k.rows),
        scratch,
    };
    forward::run(ctx, &forward);
    Ok(())
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &AttentionBackward) -> Result<(), TensorError> {
    let documents = op.mask.documents.as_ref().map(|view| ctx.u32(view));
    let sight = Sight::new(&op.shape, &op.mask, op.k.rows, documents);
    sight.check("attention_backward")?;
    backward::run(ctx, op, sight);
    Ok(())
}
