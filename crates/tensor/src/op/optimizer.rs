//! Operators of the optimizer step.
//!
//! What varies from step to step is read from an operand `step` in device memory, which the host writes before the launches
//! of a step: the launches themselves are equal in every step. Its first number is the apply flag. If it is 0, the launch
//! leaves parameter and state as they are, bit for bit.

use super::{Describe, Rule, Visit, expect_shape, read, result, update};
use crate::{TensorError, View};

/// `out (+)= sum of x^2`, added in a fixed order that does not depend on threads.
///
/// Sharding: x (r, c), both summed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumSquares {
    /// `[r, c]`.
    pub x: View,
    /// `[1, 1]`.
    pub out: View,
    /// Add to what `out` holds.
    pub accumulate: bool,
}

impl Describe for SumSquares {
    const NAME: &'static str = "sum_squares";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        result(see, "out", &mut self.out, self.accumulate);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.sum("r", self.x.rows), rule.sum("c", self.x.cols));
        rule.dims("x", &[r], &[c]);
        rule.accumulated("out");
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, 1, 1)
    }
}

/// One AdamW update (Loshchilov & Hutter 2019), in the order of PyTorch:
/// `g = factor * grad; p *= 1 - lr*weight_decay; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// p -= lr (m/correction1) / (sqrt(v/correction2) + eps)`, with correction_i = 1 - b_i^t at update t.
///
/// Sharding: (r, c), both free; step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// `[r, c]`, the values that the model computes with.
    pub param: View,
    /// `[r, c]` f32 master copy, when `param` is stored in fewer bits; updated first, then rounded into `param`.
    pub master: Option<View>,
    /// `[r, c]`.
    pub grad: View,
    /// `[r, c]` f32, first moment.
    pub m: View,
    /// `[r, c]` f32, second moment.
    pub v: View,
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

impl Describe for AdamW {
    const NAME: &'static str = "adamw";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "param", &mut self.param);
        read(see, "grad", &mut self.grad);
        update(see, "m", &mut self.m);
        update(see, "v", &mut self.v);
        if let Some(view) = &mut self.master {
            update(see, "master", view);
        }
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.param.rows, self.param.cols)
    }
    fn flops(&self) -> f64 {
        14.0 * self.param.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.param.rows, self.param.cols);
        for (name, view) in [("grad", &self.grad), ("m", &self.m), ("v", &self.v)] {
            expect_shape(Self::NAME, name, view, r, c)?;
        }
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 5)?;
        match &self.master {
            Some(x) => expect_shape(Self::NAME, "master", x, r, c),
            None => Ok(()),
        }
    }
}

/// Stochastic gradient descent with momentum as in PyTorch (dampening 0) and decoupled decay (Loshchilov & Hutter 2019):
/// `g = (factor scale) grad; p *= 1 - lr weight_decay; m = momentum m + g; p -= lr m`, or with `nesterov`
/// `p -= lr (g + momentum m)` (Sutskever et al. 2013). Without m: `p -= lr g`.
///
/// Sharding: (r, c), both free; step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// `[r, c]`.
    pub param: View,
    /// `[r, c]`.
    pub grad: View,
    /// `[r, c]`, the velocity; none without momentum.
    pub m: Option<View>,
    /// Decay of m.
    pub momentum: f32,
    /// Look ahead by one step of m.
    pub nesterov: bool,
    /// `[1, 3]` f32: apply flag, factor on the gradient, lr.
    pub step: View,
    /// Decoupled decay.
    pub weight_decay: f32,
    /// Factor on the gradient that is the same in every step.
    pub scale: f32,
}

impl Describe for Sgd {
    const NAME: &'static str = "sgd";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "param", &mut self.param);
        read(see, "grad", &mut self.grad);
        if let Some(view) = &mut self.m {
            update(see, "m", view);
        }
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.param.rows, self.param.cols)
    }
    fn flops(&self) -> f64 {
        if self.m.is_some() { 6.0 * self.param.len() as f64 } else { 4.0 * self.param.len() as f64 }
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.param.rows, self.param.cols);
        expect_shape(Self::NAME, "grad", &self.grad, r, c)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 3)?;
        self.m.map_or(Ok(()), |m| expect_shape(Self::NAME, "m", &m, r, c))
    }
}

/// One Lion update (Chen et al. 2023): `g = factor grad; p *= 1 - lr weight_decay;
/// p -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g`, with sign(0) = 0.
///
/// Sharding: (r, c), both free; step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// `[r, c]`.
    pub param: View,
    /// `[r, c]`.
    pub grad: View,
    /// `[r, c]`.
    pub m: View,
    /// `[1, 3]` f32: apply flag, factor on the gradient, lr.
    pub step: View,
    /// b1.
    pub beta1: f32,
    /// b2.
    pub beta2: f32,
    /// Decoupled decay.
    pub weight_decay: f32,
}

impl Describe for Lion {
    const NAME: &'static str = "lion";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "param", &mut self.param);
        read(see, "grad", &mut self.grad);
        update(see, "m", &mut self.m);
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.param.rows, self.param.cols)
    }
    fn flops(&self) -> f64 {
        10.0 * self.param.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.param.rows, self.param.cols);
        expect_shape(Self::NAME, "grad", &self.grad, r, c)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 3)?;
        expect_shape(Self::NAME, "m", &self.m, r, c)
    }
}
