//! Weights in magnitude and direction (Liu et al. 2024, DoRA, section 4): a matrix `W + s B A` whose rows are divided by their norms and
//! multiplied by trained magnitudes m. The product with `W + s B A` has been formed; its columns are scaled here.
//!
//! Legend: N tokens, I inputs, O outputs, R rank. Norms are constants in the backward pass (section 4.3 of the paper). A row of zeros has the
//! factor 0.

use super::{Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// `out[o] = sum_i (weight[o, i] + scale sum_r b[o, r] a[r, i])^2`: squares of the norms of the rows of an adapted matrix, which is not formed.
///
/// Sharding: weight (o, i), a (r, i), b (o, r), out (o); o free, i summed, r whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptedSquares {
    /// `[O, I]`.
    pub weight: View,
    /// `[R, I]`.
    pub a: View,
    /// `[O, R]`.
    pub b: View,
    /// s.
    pub scale: f32,
    /// `[1, O]`.
    pub out: View,
}

impl Describe for AdaptedSquares {
    const NAME: &'static str = "adapted_squares";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "weight", &mut self.weight);
        read(see, "a", &mut self.a);
        read(see, "b", &mut self.b);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (o, i) = (rule.free("o", self.weight.rows), rule.sum("i", self.weight.cols));
        let r = rule.whole("r", self.a.rows);
        rule.dims("weight", &[o], &[i]);
        rule.dims("a", &[r], &[i]);
        rule.dims("b", &[o], &[r]);
        rule.dims("out", &[], &[o]);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.weight.len() as f64 * (self.a.rows + 1) as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (o, i, r) = (self.weight.rows, self.weight.cols, self.a.rows);
        expect_shape(Self::NAME, "a", &self.a, r, i)?;
        expect_shape(Self::NAME, "b", &self.b, o, r)?;
        expect_shape(Self::NAME, "out", &self.out, 1, o)
    }
}

/// `out[n, o] = (x[n, o] - bias[o]) magnitude[o] / sqrt(squares[o]) + bias[o]`, without a bias as if it were 0. `out` may be `x`.
///
/// Sharding: x, out (n, o), bias, magnitude, squares (o); n, o free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Magnitudes {
    /// `[N, O]`: products with the adapted matrix, with the bias.
    pub x: View,
    /// `[1, O]`.
    pub bias: Option<View>,
    /// `[1, O]`.
    pub magnitude: View,
    /// `[1, O]`, as [`AdaptedSquares`] makes them.
    pub squares: View,
    /// `[N, O]`.
    pub out: View,
}

impl Describe for Magnitudes {
    const NAME: &'static str = "magnitudes";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        if let Some(view) = &mut self.bias {
            read(see, "bias", view);
        }
        read(see, "magnitude", &mut self.magnitude);
        read(see, "squares", &mut self.squares);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, o) = (rule.free("n", self.x.rows), rule.free("o", self.x.cols));
        for name in ["x", "out"] {
            rule.dims(name, &[n], &[o]);
        }
        for name in ["bias", "magnitude", "squares"] {
            rule.dims(name, &[], &[o]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, o) = (self.x.rows, self.x.cols);
        check_columns(Self::NAME, self.bias.as_ref(), &self.magnitude, &self.squares, o)?;
        expect_shape(Self::NAME, "out", &self.out, n, o)
    }
}

/// Gradients of [`Magnitudes`] with constant squares: `dx[n, o] = dout[n, o] magnitude[o] / sqrt(squares[o])`,
/// `dmagnitude[o] (+)= sum_n dout[n, o] (x[n, o] - bias[o]) / sqrt(squares[o])`; that of the bias is the sum of `dout - dx`. `dx` may be
/// `dout`.
///
/// Sharding: dout, x, dx (n, o), bias, magnitude, squares, dmagnitude (o); n summed for dmagnitude, o free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MagnitudesBackward {
    /// `[N, O]`.
    pub dout: View,
    /// `[N, O]`, the input of the forward pass.
    pub x: View,
    /// `[1, O]`.
    pub bias: Option<View>,
    /// `[1, O]`.
    pub magnitude: View,
    /// `[1, O]`, as the forward pass read them.
    pub squares: View,
    /// `[N, O]`.
    pub dx: View,
    /// `[1, O]`.
    pub dmagnitude: View,
    /// Add to the gradient of the magnitudes instead of replacing it.
    pub accumulate: bool,
}

impl Describe for MagnitudesBackward {
    const NAME: &'static str = "magnitudes_backward";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dout", &mut self.dout);
        read(see, "x", &mut self.x);
        if let Some(view) = &mut self.bias {
            read(see, "bias", view);
        }
        read(see, "magnitude", &mut self.magnitude);
        read(see, "squares", &mut self.squares);
        write(see, "dx", &mut self.dx);
        result(see, "dmagnitude", &mut self.dmagnitude, self.accumulate);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, o) = (rule.sum("n", self.x.rows), rule.free("o", self.x.cols));
        for name in ["dout", "x", "dx"] {
            rule.dims(name, &[n], &[o]);
        }
        for name in ["bias", "magnitude", "squares", "dmagnitude"] {
            rule.dims(name, &[], &[o]);
        }
        rule.accumulated("dmagnitude");
        rule
    }
    fn flops(&self) -> f64 {
        4.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, o) = (self.x.rows, self.x.cols);
        check_columns(Self::NAME, self.bias.as_ref(), &self.magnitude, &self.squares, o)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, o)?;
        expect_shape(Self::NAME, "dx", &self.dx, n, o)?;
        expect_shape(Self::NAME, "dmagnitude", &self.dmagnitude, 1, o)
    }
}

/// One number for each output.
fn check_columns(
    op: &'static str,
    bias: Option<&View>,
    magnitude: &View,
    squares: &View,
    outputs: usize,
) -> Result<(), TensorError> {
    if let Some(bias) = bias {
        expect_shape(op, "bias", bias, 1, outputs)?;
    }
    expect_shape(op, "magnitude", magnitude, 1, outputs)?;
    expect_shape(op, "squares", squares, 1, outputs)
}
