//! The linear map `y = x W^T + b` with its epilogues, and its two backward halves.

use super::rule;
use super::{ActivationKind, Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// `out = f(x W^T + bias) + residual`, weights stored `[outputs, inputs]`.
///
/// Sharding: x (n, i), weight (o, i), out (n, o); n, o free, i summed, or whole with an activation; linear in x, bias
/// and residual once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// `[N, I]`.
    pub x: View,
    /// `[O, I]`.
    pub weight: View,
    /// `[1, O]`.
    pub bias: Option<View>,
    /// f and where `x W^T + bias` is kept for the backward pass, `[N, O]`; `None` is the identity.
    pub activation: Option<(ActivationKind, View)>,
    /// `[N, O]`, added last.
    pub residual: Option<View>,
    /// True if the bits of a row of the result must not depend on how many rows there are, as where rows of several
    /// sequences are decoded together. Costs speed where there are many rows.
    pub rowwise: bool,
    /// `[N, O]`.
    pub out: View,
}

impl Describe for Linear {
    const NAME: &'static str = "linear";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        write(see, "out", &mut self.out);
        if let Some(view) = &mut self.bias {
            read(see, "bias", view);
        }
        if let Some((_, pre)) = &mut self.activation {
            write(see, "pre", pre);
        }
        if let Some(view) = &mut self.residual {
            read(see, "residual", view);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, o) = (rule.free("n", self.x.rows), rule.free("o", self.weight.rows));
        let inputs = self.x.cols;
        // The activation of a term is no term of the activation.
        let through = self.activation.is_some();
        let i = if through { rule.whole("i", inputs) } else { rule.sum("i", inputs) };
        rule.dims("x", &[n], &[i]);
        rule.dims("weight", &[o], &[i]);
        rule.dims("out", &[n], &[o]);
        rule.dims("bias", &[], &[o]);
        rule.dims("pre", &[n], &[o]);
        rule.dims("residual", &[n], &[o]);
        if !through {
            rule.linear("x", rule::Linear::Alone);
            rule.once("bias");
            rule.once("residual");
        }
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64 * self.weight.rows as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, i, o) = (self.x.rows, self.x.cols, self.weight.rows);
        expect_shape(Self::NAME, "weight", &self.weight, o, i)?;
        expect_shape(Self::NAME, "out", &self.out, n, o)?;
        if let Some(b) = &self.bias {
            expect_shape(Self::NAME, "bias", b, 1, o)?;
        }
        if let Some((_, pre)) = &self.activation {
            expect_shape(Self::NAME, "pre", pre, n, o)?;
        }
        if let Some(r) = &self.residual {
            expect_shape(Self::NAME, "residual", r, n, o)?;
        }
        Ok(())
    }
}

/// `dx (+)= (dy W) * f'(pre)`: gradient of a linear map's input, through the activation f that made that input.
///
/// Sharding: dy (n, o), weight (o, i), dx (n, i); n, i free, o summed; linear in dy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearBackwardInput {
    /// `[N, O]`.
    pub dy: View,
    /// `[O, I]`.
    pub weight: View,
    /// If the input was `f(pre)`: f and pre `[N, I]`; dx is then the gradient of `pre`.
    pub activation: Option<(ActivationKind, View)>,
    /// `[N, I]`.
    pub dx: View,
    /// Add to what `dx` holds instead of replacing it.
    pub accumulate: bool,
}

impl Describe for LinearBackwardInput {
    const NAME: &'static str = "linear_backward_input";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dy", &mut self.dy);
        read(see, "weight", &mut self.weight);
        result(see, "dx", &mut self.dx, self.accumulate);
        if let Some((_, pre)) = &mut self.activation {
            read(see, "pre", pre);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, i) = (rule.free("n", self.dy.rows), rule.free("i", self.weight.cols));
        let o = rule.sum("o", self.weight.rows);
        rule.dims("dy", &[n], &[o]);
        rule.dims("weight", &[o], &[i]);
        rule.dims("dx", &[n], &[i]);
        rule.dims("pre", &[n], &[i]);
        rule.linear("dy", rule::Linear::Alone);
        rule.accumulated("dx");
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.dy.len() as f64 * self.weight.cols as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, i, o) = (self.dy.rows, self.weight.cols, self.weight.rows);
        expect_shape(Self::NAME, "dy", &self.dy, n, o)?;
        expect_shape(Self::NAME, "dx", &self.dx, n, i)?;
        if let Some((_, pre)) = &self.activation {
            expect_shape(Self::NAME, "pre", pre, n, i)?;
        }
        Ok(())
    }
}

/// `dweight (+)= dy^T x`, `dbias (+)= sum over rows of dy`.
///
/// Sharding: x (n, i), dy (n, o), dweight (o, i); o, i free, n summed; linear in dy, and in x without dbias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearBackwardWeight {
    /// `[N, I]`.
    pub x: View,
    /// `[N, O]`.
    pub dy: View,
    /// `[O, I]`.
    pub dweight: View,
    /// `[1, O]`.
    pub dbias: Option<View>,
    /// Add to what the gradients hold instead of replacing it (micro-batches after the first).
    pub accumulate: bool,
}

impl Describe for LinearBackwardWeight {
    const NAME: &'static str = "linear_backward_weight";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "dy", &mut self.dy);
        result(see, "dweight", &mut self.dweight, self.accumulate);
        if let Some(view) = &mut self.dbias {
            result(see, "dbias", view, self.accumulate);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (o, i) = (rule.free("o", self.dy.cols), rule.free("i", self.x.cols));
        let n = rule.sum("n", self.x.rows);
        rule.dims("x", &[n], &[i]);
        rule.dims("dy", &[n], &[o]);
        rule.dims("dweight", &[o], &[i]);
        rule.dims("dbias", &[], &[o]);
        // dbias does not depend on x: with a partial x every device would have all of it.
        if self.dbias.is_none() {
            rule.linear("x", rule::Linear::Alone);
        }
        rule.linear("dy", rule::Linear::Alone);
        rule.accumulated("dweight");
        rule.accumulated("dbias");
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64 * self.dy.cols as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, i, o) = (self.x.rows, self.x.cols, self.dy.cols);
        expect_shape(Self::NAME, "dy", &self.dy, n, o)?;
        expect_shape(Self::NAME, "dweight", &self.dweight, o, i)?;
        match &self.dbias {
            Some(b) => expect_shape(Self::NAME, "dbias", b, 1, o),
            None => Ok(()),
        }
    }
}
