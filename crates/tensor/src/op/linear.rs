//! The linear map `y = x W^T + b` with its epilogues, and its two backward halves.

use super::{ActivationKind, Describe, Operands, expect_shape, read, result, write};
use crate::{TensorError, View};

/// `out = f(x W^T + bias) + residual`, weights stored `[outputs, inputs]`.
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
    /// `[N, O]`.
    pub out: View,
}

impl Describe for Linear {
    const NAME: &'static str = "linear";
    fn operands(&self) -> Operands {
        let mut v = Operands::of([read("x", self.x), read("weight", self.weight), write("out", self.out)]);
        v.extend(self.bias.map(|b| read("bias", b)));
        v.extend(self.activation.map(|(_, pre)| write("pre", pre)));
        v.extend(self.residual.map(|r| read("residual", r)));
        v
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
    fn operands(&self) -> Operands {
        let mut v = Operands::of([
            read("dy", self.dy),
            read("weight", self.weight),
            result("dx", self.dx, self.accumulate),
        ]);
        v.extend(self.activation.map(|(_, pre)| read("pre", pre)));
        v
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
    fn operands(&self) -> Operands {
        let mut v = Operands::of([
            read("x", self.x),
            read("dy", self.dy),
            result("dweight", self.dweight, self.accumulate),
        ]);
        v.extend(self.dbias.map(|b| result("dbias", b, self.accumulate)));
        v
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
