//! LayerNorm and RMSNorm over rows.

use super::rule;
use super::{Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Kind of normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `(x - mean) / sqrt(var + eps) * weight + bias`, biased variance (Ba et al. 2016).
    Layer,
    /// `x / sqrt(mean(x^2) + eps) * weight` (Zhang & Sennrich 2019).
    Rms,
}

/// Normalises every row of `x`; a row of several heads, each as wide as the weight, head by head with the same weight
/// (QK-norm: Henry et al. 2020; Qwen3).
///
/// Sharding: x, out (n, h d), weight, bias (d), mean, rstd (h, n); n, h free, d whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// `[N, heads D]`.
    pub x: View,
    /// `[1, D]`.
    pub weight: View,
    /// `[1, D]`; LayerNorm only, may be absent there too.
    pub bias: Option<View>,
    /// `[N, heads D]`.
    pub out: View,
    /// `[heads, N]`, written by LayerNorm, ignored by RMSNorm.
    pub mean: Option<View>,
    /// `[heads, N]`: 1/sqrt(var + eps).
    pub rstd: View,
    /// Added to the variance.
    pub eps: f32,
}

impl Norm {
    /// Heads of a row that are normalised by themselves; 1 if the weight is as wide as the row.
    pub fn heads(&self) -> usize {
        self.x.cols / self.weight.cols.max(1)
    }

    /// The normalisation of head `head` alone.
    pub fn head(&self, head: usize) -> Norm {
        let d = self.weight.cols;
        Norm {
            x: self.x.columns(head * d, d),
            out: self.out.columns(head * d, d),
            mean: self.mean.map(|m| m.rows(head, 1)),
            rstd: self.rstd.rows(head, 1),
            ..*self
        }
    }
}

impl Describe for Norm {
    const NAME: &'static str = "norm";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        write(see, "out", &mut self.out);
        write(see, "rstd", &mut self.rstd);
        if let Some(view) = &mut self.bias {
            read(see, "bias", view);
        }
        if let Some(view) = &mut self.mean {
            write(see, "mean", view);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, h) = (rule.free("n", self.x.rows), rule.free("h", self.heads()));
        let d = rule.whole("d", self.weight.cols);
        rule.dims("x", &[n], &[h, d]);
        rule.dims("out", &[n], &[h, d]);
        for name in ["weight", "bias"] {
            rule.dims(name, &[], &[d]);
        }
        for name in ["rstd", "mean"] {
            rule.dims(name, &[h], &[n]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        8.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, heads) = (self.x.rows, self.heads());
        let d = check_heads(Self::NAME, &self.x, &self.weight)?;
        expect_shape(Self::NAME, "out", &self.out, n, self.x.cols)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, heads, n)?;
        if let Some(b) = &self.bias {
            expect_shape(Self::NAME, "bias", b, 1, d)?;
        }
        check_mean(Self::NAME, self.kind, self.mean.as_ref(), heads, n)
    }
}

/// Gradients of [`Norm`]: `dx (+)= ...`, `dweight (+)= sum dout * xhat`, `dbias (+)= sum dout`.
///
/// With g = dout * weight and xhat the normalised row: LayerNorm `dx = rstd (g - mean(g) - xhat mean(g xhat))`,
/// RMSNorm `dx = rstd (g - xhat mean(g xhat))`.
///
/// Sharding: x, dout, dx (n, h d), dweight, dbias (d), mean, rstd (h, n); n, h summed for dweight and dbias, d whole; linear
/// in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormBackward {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// `[N, heads D]`, the input of the forward pass.
    pub x: View,
    /// `[1, D]`.
    pub weight: View,
    /// `[heads, N]` as the forward pass left it; LayerNorm only.
    pub mean: Option<View>,
    /// `[heads, N]` as the forward pass left it.
    pub rstd: View,
    /// `[N, heads D]`.
    pub dout: View,
    /// `[N, heads D]`.
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

impl NormBackward {
    /// Heads of a row, as in [`Norm::heads`].
    pub fn heads(&self) -> usize {
        self.x.cols / self.weight.cols.max(1)
    }

    /// The gradients of head `head` alone, which the heads before it have begun.
    pub fn head(&self, head: usize) -> NormBackward {
        let d = self.weight.cols;
        NormBackward {
            x: self.x.columns(head * d, d),
            mean: self.mean.map(|m| m.rows(head, 1)),
            rstd: self.rstd.rows(head, 1),
            dout: self.dout.columns(head * d, d),
            dx: self.dx.columns(head * d, d),
            accumulate: self.accumulate || head > 0,
            ..*self
        }
    }
}

impl Describe for NormBackward {
    const NAME: &'static str = "norm_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "rstd", &mut self.rstd);
        read(see, "dout", &mut self.dout);
        result(see, "dx", &mut self.dx, self.accumulate_dx);
        result(see, "dweight", &mut self.dweight, self.accumulate);
        if let Some(view) = &mut self.mean {
            read(see, "mean", view);
        }
        if let Some(view) = &mut self.dbias {
            result(see, "dbias", view, self.accumulate);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, h) = (rule.sum("n", self.x.rows), rule.sum("h", self.heads()));
        let d = rule.whole("d", self.weight.cols);
        for name in ["x", "dout", "dx"] {
            rule.dims(name, &[n], &[h, d]);
        }
        for name in ["weight", "dweight", "dbias"] {
            rule.dims(name, &[], &[d]);
        }
        for name in ["rstd", "mean"] {
            rule.dims(name, &[h], &[n]);
        }
        rule.linear("dout", rule::Linear::Alone);
        for name in ["dx", "dweight", "dbias"] {
            rule.accumulated(name);
        }
        rule
    }
    fn flops(&self) -> f64 {
        14.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, cols, heads) = (self.x.rows, self.x.cols, self.heads());
        let d = check_heads(Self::NAME, &self.x, &self.weight)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, heads, n)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, cols)?;
        expect_shape(Self::NAME, "dx", &self.dx, n, cols)?;
        expect_shape(Self::NAME, "dweight", &self.dweight, 1, d)?;
        if let Some(b) = &self.dbias {
            expect_shape(Self::NAME, "dbias", b, 1, d)?;
        }
        check_mean(Self::NAME, self.kind, self.mean.as_ref(), heads, n)
    }
}

/// The width of a head: the weight's; errors unless rows of `x` are a number of such heads.
fn check_heads(op: &'static str, x: &View, weight: &View) -> Result<usize, TensorError> {
    let d = weight.cols;
    let heads = if d > 0 && x.cols.is_multiple_of(d) { d } else { x.cols };
    expect_shape(op, "weight", weight, 1, heads)?;
    Ok(d)
}

/// LayerNorm keeps the means of its rows, RMSNorm has none.
fn check_mean(
    op: &'static str,
    kind: NormKind,
    mean: Option<&View>,
    heads: usize,
    rows: usize,
) -> Result<(), TensorError> {
    match (mean, kind) {
        (Some(m), _) => expect_shape(op, "mean", m, heads, rows),
        (None, NormKind::Rms) => Ok(()),
        (None, NormKind::Layer) => Err(TensorError::Shape {
            op,
            operand: "mean",
            wanted: format!("[{heads}, {rows}] for LayerNorm"),
            found: "nothing".into(),
        }),
    }
}
