//! The result of an attention from two partial ones, each of which has seen other keys.

use super::{AttentionShape, Describe, Rule, Visit, expect_shape, read, update};
use crate::{TensorError, View};

/// `lse' = lse - logsigmoid(lse - lse2)`, `out' = out - sigmoid(lse2 - lse) (out - out2)` for every query and head: what one
/// [`Attention`](super::Attention) over the keys of both gives (Liu et al. 2023, Ring Attention; Dao et al. 2022, section 3.1), in the form
/// that does not overflow. A side that has seen no key has an lse of -infinity and changes nothing; where neither has, nothing changes.
///
/// All operands are f32 whatever the activations are stored in: rounded partial results drift with their number.
///
/// Sharding: out, part (b t, g r e), lse, part_lse (b g r, t); all free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionMerge {
    /// Sizes, as the partial results have them.
    pub shape: AttentionShape,
    /// f32 `[B*T, H*E]`, updated.
    pub out: View,
    /// f32 `[B*H, T]`, updated.
    pub lse: View,
    /// f32 `[B*T, H*E]`: `out2`.
    pub part: View,
    /// f32 `[B*H, T]`: `lse2`.
    pub part_lse: View,
}

impl Describe for AttentionMerge {
    const NAME: &'static str = "attention_merge";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "part", &mut self.part);
        read(see, "part_lse", &mut self.part_lse);
        update(see, "out", &mut self.out);
        update(see, "lse", &mut self.lse);
    }
    fn rule(&self) -> Rule {
        let (mut rule, s) = (Rule::new(&self.operands()), &self.shape);
        let group = s.heads.checked_div(s.kv_heads).unwrap_or(0);
        let (b, t) = (rule.free("b", s.batch), rule.free("t", s.seq));
        let (g, r, e) = (rule.free("g", s.kv_heads), rule.free("r", group), rule.free("e", s.head_dim));
        for name in ["out", "part"] {
            rule.dims(name, &[b, t], &[g, r, e]);
        }
        for name in ["lse", "part_lse"] {
            rule.dims(name, &[b, g, r], &[t]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        // A difference, a product and a difference an element.
        3.0 * self.out.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        for (name, view) in [("out", &self.out), ("part", &self.part)] {
            expect_shape(Self::NAME, name, view, s.batch * s.seq, s.heads * s.head_dim)?;
        }
        for (name, view) in [("lse", &self.lse), ("part_lse", &self.part_lse)] {
            expect_shape(Self::NAME, name, view, s.batch * s.heads, s.seq)?;
        }
        Ok(())
    }
}
