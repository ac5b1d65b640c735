//! Adafactor (Shazeer & Stern 2018): moments, direction, update. Their operand `step` is that of [`super::optimizer`]'s.

use super::rule;
use super::{Describe, Rule, Visit, expect_shape, read, update, write};
use crate::{TensorError, View};

/// Row and column means of squared gradients (Shazeer & Stern 2018), with `h = (factor grad)^2 + eps`:
/// `row_i = decay row_i + (1 - decay) mean_j h_ij`, `col_j = decay col_j + (1 - decay) mean_i h_ij`.
///
/// Sharding: grad (r, c), row (r), col (c); both whole: c for row, r for col; step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactoredMoments {
    /// `[r, c]`.
    pub grad: View,
    /// `[1, r]`.
    pub row: View,
    /// `[1, c]`.
    pub col: View,
    /// `[1, 3]` f32: apply flag, factor on the gradient, decay of both means.
    pub step: View,
    /// Added to every square.
    pub eps: f32,
}

impl Describe for FactoredMoments {
    const NAME: &'static str = "factored_moments";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "grad", &mut self.grad);
        update(see, "row", &mut self.row);
        update(see, "col", &mut self.col);
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.whole("r", self.grad.rows), rule.whole("c", self.grad.cols));
        rule.dims("grad", &[r], &[c]);
        rule.dims("row", &[], &[r]);
        rule.dims("col", &[], &[c]);
        rule.with_host_numbers(&self.operands())
    }
    fn flops(&self) -> f64 {
        4.0 * self.grad.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "row", &self.row, 1, self.grad.rows)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 3)?;
        expect_shape(Self::NAME, "col", &self.col, 1, self.grad.cols)
    }
}

/// `out_ij = factor grad_ij / sqrt(row_i col_j / mean(row))`; `out` may be `grad`.
///
/// Sharding: grad, out (r, c), row (r), col (c); c free, r whole (mean of row), step whole; linear in grad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactoredDirection {
    /// `[r, c]`.
    pub grad: View,
    /// `[1, r]`.
    pub row: View,
    /// `[1, c]`.
    pub col: View,
    /// `[1, 2]` f32: apply flag, factor on the gradient.
    pub step: View,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for FactoredDirection {
    const NAME: &'static str = "factored_direction";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "grad", &mut self.grad);
        read(see, "row", &mut self.row);
        read(see, "col", &mut self.col);
        read(see, Rule::STEP, &mut self.step);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.whole("r", self.grad.rows), rule.free("c", self.grad.cols));
        for name in ["grad", "out"] {
            rule.dims(name, &[r], &[c]);
        }
        rule.dims("row", &[], &[r]);
        rule.dims("col", &[], &[c]);
        rule.linear("grad", rule::Linear::Alone);
        rule.with_host_numbers(&self.operands())
    }
    fn flops(&self) -> f64 {
        3.0 * self.grad.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "row", &self.row, 1, self.grad.rows)?;
        expect_shape(Self::NAME, "col", &self.col, 1, self.grad.cols)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 2)?;
        expect_shape(Self::NAME, "out", &self.out, self.grad.rows, self.grad.cols)
    }
}

/// `g = factor grad; v = decay v + (1 - decay)(g^2 + eps); out = g / sqrt(v)`; `out` may be `grad`.
///
/// Sharding: (r, c), both free; step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentDirection {
    /// `[r, c]`.
    pub grad: View,
    /// `[r, c]`.
    pub v: View,
    /// `[1, 3]` f32: apply flag, factor on the gradient, decay of v.
    pub step: View,
    /// Added to every square.
    pub eps: f32,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for MomentDirection {
    const NAME: &'static str = "moment_direction";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "grad", &mut self.grad);
        update(see, "v", &mut self.v);
        read(see, Rule::STEP, &mut self.step);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.grad.rows, self.grad.cols)
    }
    fn flops(&self) -> f64 {
        7.0 * self.grad.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "v", &self.v, self.grad.rows, self.grad.cols)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 3)?;
        expect_shape(Self::NAME, "out", &self.out, self.grad.rows, self.grad.cols)
    }
}

/// The end of an Adafactor step (Shazeer & Stern 2018), with u the direction, `rms(x)^2 = squares / values`:
/// `alpha = lr max(eps, rms(p))` (or lr without `param_squares`), `u' = alpha u / max(1, rms(u) / threshold)`,
/// `m = beta m + (1 - beta) u'` (or u' without m), `p = p (1 - alpha weight_decay) - m`.
///
/// Sharding: (r, c), both free, sums of squares complete, step whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdafactorUpdate {
    /// `[r, c]`.
    pub param: View,
    /// `[r, c]`.
    pub direction: View,
    /// `[1, 1]`: sum of the squares of the direction.
    pub direction_squares: View,
    /// `[1, 1]`: sum of the squares of the parameter before the step, to scale the rate by its size.
    pub param_squares: Option<View>,
    /// Values that both sums of squares are over: those of the whole parameter, also if only a part of it is here.
    pub values: usize,
    /// `[r, c]`, mean of past updates.
    pub m: Option<View>,
    /// Decay of m.
    pub beta: f32,
    /// `[1, 2]` f32: apply flag, lr.
    pub step: View,
    /// Least size of a parameter that the rate is scaled by.
    pub eps: f32,
    /// Root mean square that a direction may have.
    pub threshold: f32,
    /// Decoupled decay.
    pub weight_decay: f32,
}

impl Describe for AdafactorUpdate {
    const NAME: &'static str = "adafactor_update";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "param", &mut self.param);
        read(see, "direction", &mut self.direction);
        read(see, "direction_squares", &mut self.direction_squares);
        if let Some(view) = &mut self.param_squares {
            read(see, "param_squares", view);
        }
        if let Some(view) = &mut self.m {
            update(see, "m", view);
        }
        read(see, Rule::STEP, &mut self.step);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.free("r", self.param.rows), rule.free("c", self.param.cols));
        for name in ["param", "direction", "m"] {
            rule.dims(name, &[r], &[c]);
        }
        rule.with_host_numbers(&self.operands())
    }
    fn flops(&self) -> f64 {
        6.0 * self.param.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.param.rows, self.param.cols);
        expect_shape(Self::NAME, "direction", &self.direction, r, c)?;
        expect_shape(Self::NAME, "direction_squares", &self.direction_squares, 1, 1)?;
        expect_shape(Self::NAME, Rule::STEP, &self.step, 1, 2)?;
        self.param_squares.map_or(Ok(()), |s| expect_shape(Self::NAME, "param_squares", &s, 1, 1))?;
        self.m.map_or(Ok(()), |m| expect_shape(Self::NAME, "m", &m, r, c))
    }
}
