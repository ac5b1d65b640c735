//! LayerNorm and RMSNorm over rows.

use super::{Describe, Operands, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Which normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `(x - mean) / sqrt(var + eps) * weight + bias`, biased variance (Ba et al. 2016).
    Layer,
    /// `x / sqrt(mean(x^2) + eps) * weight` (Zhang & Sennrich 2019).
    Rms,
}

/// Normalises every row of `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Which.
    pub kind: NormKind,
    /// `[N, D]`.
    pub x: View,
    /// `[1, D]`.
    pub weight: View,
    /// `[1, D]`; LayerNorm only, may be absent there too.
    pub bias: Option<View>,
    /// `[N, D]`.
    pub out: View,
    /// `[1, N]`, written by LayerNorm, ignored by RMSNorm.
    pub mean: Option<View>,
    /// `[1, N]`: 1/sqrt(var + eps).
    pub rstd: View,
    /// Added to the variance.
    pub eps: f32,
}

impl Describe for Norm {
    const NAME: &'static str = "norm";
    fn operands(&self) -> Operands {
        let mut v = Operands::of([
            read("x", self.x),
            read("weight", self.weight),
            write("out", self.out),
            write("rstd", self.rstd),
        ]);
        v.extend(self.bias.map(|b| read("bias", b)));
        v.extend(self.mean.map(|m| write("mean", m)));
        v
    }
    fn flops(&self) -> f64 {
        8.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "weight", &self.weight, 1, d)?;
        expect_shape(Self::NAME, "out", &self.out, n, d)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, 1, n)?;
        if let Some(b) = &self.bias {
            expect_shape(Self::NAME, "bias", b, 1, d)?;
        }
        check_mean(Self::NAME, self.kind, self.mean.as_ref(), n)
    }
}

/// Gradients of [`Norm`]: `dx (+)= ...`, `dweight (+)= sum dout * xhat`, `dbias (+)= sum dout`.
///
/// With g = dout * weight and xhat the normalised row: LayerNorm `dx = rstd (g - mean(g) - xhat mean(g xhat))`,
/// RMSNorm `dx = rstd (g - xhat mean(g xhat))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormBackward {
    /// Which.
    pub kind: NormKind,
    /// `[N, D]`, the input of the forward pass.
    pub x: View,
    /// `[1, D]`.
    pub weight: View,
    /// `[1, N]` as the forward pass left it; LayerNorm only.
    pub mean: Option<View>,
    /// `[1, N]` as the forward pass left it.
    pub rstd: View,
    /// `[N, D]`.
    pub dout: View,
    /// `[N, D]`.
    pub dx: View,
    /// Add to `dx` (the residual stream's gradient) instead of replacing it.
    pub accumulate_dx: bool,
    /// `[1, D]`.
    pub dweight: View,
    /// `[1, D]`.
    pub dbias: Option<View>,
    /// Add to the parameter gradients instead of replacing them.
    pub accumulate: bool,
}

impl Describe for NormBackward {
    const NAME: &'static str = "norm_backward";
    fn operands(&self) -> Operands {
        let mut v = Operands::of([
            read("x", self.x),
            read("weight", self.weight),
            read("rstd", self.rstd),
            read("dout", self.dout),
            result("dx", self.dx, self.accumulate_dx),
            result("dweight", self.dweight, self.accumulate),
        ]);
        v.extend(self.mean.map(|m| read("mean", m)));
        v.extend(self.dbias.map(|b| result("dbias", b, self.accumulate)));
        v
    }
    fn flops(&self) -> f64 {
        14.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "weight", &self.weight, 1, d)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, 1, n)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, d)?;
        expect_shape(Self::NAME, "dx", &self.dx, n, d)?;
        expect_shape(Self::NAME, "dweight", &self.dweight, 1, d)?;
        if let Some(b) = &self.dbias {
            expect_shape(Self::NAME, "dbias", b, 1, d)?;
        }
        check_mean(Self::NAME, self.kind, self.mean.as_ref(), n)
    }
}

/// LayerNorm keeps the means of its rows, RMSNorm has none.
fn check_mean(op: &'static str, kind: NormKind, mean: Option<&View>, rows: usize) -> Result<(), TensorError> {
    match (mean, kind) {
        (Some(m), _) => expect_shape(op, "mean", m, 1, rows),
        (None, NormKind::Rms) => Ok(()),
        (None, NormKind::Layer) => Err(TensorError::Shape {
            op,
            operand: "mean",
            wanted: format!("[1, {rows}] for LayerNorm"),
            found: "nothing".into(),
        }),
    }
}
