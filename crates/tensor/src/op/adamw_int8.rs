//! AdamW with moments in 8 bits.

use super::{Describe, Rule, Visit, expect_shape, read, update};
use crate::quantise::MOMENT_BLOCK;
use crate::{TensorError, View};

/// One [`super::AdamW`] update of a parameter whose moments are codes of 8 bits by blocks ([`crate::quantise`]; Dettmers et al. 2022):
/// each block is decoded, stepped in f32 and encoded. The parameter is stepped by the moments before they are encoded, so
/// the first update from zero moments has the bits of [`super::AdamW`].
///
/// Elements are counted in the order of rows, and blocks from the first element on; every operand but `step` has no gaps.
///
/// Sharding: everything whole, because blocks run over rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWInt8 {
    /// `[r, c]`, the values that the model computes with.
    pub param: View,
    /// `[r, c]` f32 master copy, when `param` is stored in fewer bits; updated first, then rounded into `param`.
    pub master: Option<View>,
    /// `[r, c]`.
    pub grad: View,
    /// `[r, c]` u8, codes of the first moment.
    pub m: View,
    /// `[1, blocks]` f32, its scales.
    pub m_scales: View,
    /// `[r, c]` u8, codes of the second moment.
    pub v: View,
    /// `[1, blocks]` f32, its scales.
    pub v_scales: View,
    /// `[1, 5]` f32: apply flag, factor on the gradient (clipping, loss scale), lr, correction1, correction2.
    pub step: View,
    /// b1.
    pub beta1: f32,
    /// b2.
    pub beta2: f32,
    /// Added to the square root.
    pub eps: f32,
    /// Decoupled decay.
    pub weight_decay: f32,
}

impl Describe for AdamWInt8 {
    const NAME: &'static str = "adamw_int8";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "param", &mut self.param);
        read(see, "grad", &mut self.grad);
        update(see, "m_codes", &mut self.m);
        update(see, "m_scales", &mut self.m_scales);
        update(see, "v_codes", &mut self.v);
        update(see, "v_scales", &mut self.v_scales);
        if let Some(view) = &mut self.master {
            update(see, "master", view);
        }
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        let operands = self.operands();
        let mut rule = Rule::new(&operands);
        let (r, c) = (rule.whole("r", self.param.rows), rule.whole("c", self.param.cols));
        let b = rule.whole(Rule::BLOCK, self.m_scales.cols);
        for name in ["param", "grad", "m_codes", "v_codes", "master"] {
            rule.dims(name, &[r], &[c]);
        }
        rule.dims("m_scales", &[], &[b]);
        rule.dims("v_scales", &[], &[b]);
        rule.with_host_numbers(&operands)
    }
    fn flops(&self) -> f64 {
        20.0 * self.param.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.param.rows, self.param.cols);
        let same = [("grad", &self.grad), ("m_codes", &self.m), ("v_codes", &self.v)];
        for (name, view) in same.into_iter().chain(self.master.iter().map(|view| ("master", view))) {
            expect_shape(Self::NAME, name, view, r, c)?;
        }
        for (name, view) in [("m_scales", &self.m_scales), ("v_scales", &self.v_scales)] {
            expect_shape(Self::NAME, name, view, 1, (r * c).div_ceil(MOMENT_BLOCK))?;
        }
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 5)?;
        let gaps = self.operands();
        match gaps.iter().find(|o| !o.view.is_contiguous()) {
            None => Ok(()),
            Some(o) => Err(TensorError::Shape {
                op: Self::NAME,
                operand: o.name,
                wanted: format!("rows of {c} elements without gaps"),
                found: format!("rows {} elements apart", o.view.stride),
            }),
        }
    }
}
