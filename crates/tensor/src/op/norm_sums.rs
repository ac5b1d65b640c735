//! LayerNorm and RMSNorm over rows whose columns several devices share: sums over the columns that are here, which are summed over
//! the devices, and what follows from the sums over all columns.
//!
//! With D columns in all: `mean = sum x / D`, `var = sum (x - mean)^2 / D`, for RMSNorm `var = sum x^2 / D`; the squares are summed
//! about the mean, so a large mean costs no digits. Backward, with g = dout weight and xhat the normalised row, both variants need
//! `sum g xhat`, LayerNorm `sum g` as well. A rank sends numbers for rows, none for elements.

use super::norm::NormKind;
use super::rule;
use super::{Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Terms of [`RowSums`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowTerm {
    /// The elements.
    Value,
    /// Their squares, or those of their distances from a mean.
    Square,
}

/// `out[n] = sum_d x[n, d]`, or `sum_d (x[n, d] - m[n])^2` with m the mean if there are sums to form it from, and 0 otherwise.
///
/// Sharding: x (n, d), about, out (n); n free, d summed; linear in x for values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSums {
    /// Terms of the sums.
    pub term: RowTerm,
    /// `[N, D]`: the columns that are here.
    pub x: View,
    /// `[1, N]`: sums over all columns, of which `width` make a row. For squares only.
    pub about: Option<View>,
    /// Columns of a whole row.
    pub width: usize,
    /// `[1, N]`.
    pub out: View,
}

impl Describe for RowSums {
    const NAME: &'static str = "row_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        if let Some(view) = &mut self.about {
            read(see, "about", view);
        }
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.x.rows), rule.sum("d", self.x.cols));
        rule.dims("x", &[n], &[d]);
        rule.dims("about", &[], &[n]);
        rule.dims("out", &[], &[n]);
        if self.term == RowTerm::Value {
            rule.linear("x", rule::Linear::Alone);
        }
        rule
    }
    fn flops(&self) -> f64 {
        let each = if self.term == RowTerm::Value { 1.0 } else { 3.0 };
        each * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, 1, self.x.rows)?;
        match (&self.about, self.term) {
            (Some(about), RowTerm::Square) => expect_shape(Self::NAME, "about", about, 1, self.x.rows),
            (Some(_), RowTerm::Value) => Err(TensorError::Shape {
                op: Self::NAME,
                operand: "about",
                wanted: "no operand for a sum of values".into(),
                found: "sums".into(),
            }),
            (None, _) => Ok(()),
        }
    }
}

/// The columns of [`super::Norm`] that are here, from sums over all columns: `out = (x - mean) rstd weight + bias` with
/// `rstd = 1/sqrt(squares / width + eps)`.
///
/// Sharding: x, out (n, d), weight, bias (d), sums, squares, mean, rstd (n); n, d free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormOfSums {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// `[N, D]`: the columns that are here.
    pub x: View,
    /// `[1, N]`: sums of rows; LayerNorm only.
    pub sums: Option<View>,
    /// `[1, N]`: sums of squares of rows, about their means for LayerNorm.
    pub squares: View,
    /// Columns of a whole row.
    pub width: usize,
    /// `[1, D]`.
    pub weight: View,
    /// `[1, D]`; LayerNorm only, may be absent there too.
    pub bias: Option<View>,
    /// `[N, D]`.
    pub out: View,
    /// `[1, N]`, written by LayerNorm.
    pub mean: Option<View>,
    /// `[1, N]`.
    pub rstd: View,
    /// Added to the variance.
    pub eps: f32,
}

impl Describe for NormOfSums {
    const NAME: &'static str = "norm_of_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "squares", &mut self.squares);
        read(see, "weight", &mut self.weight);
        write(see, "out", &mut self.out);
        write(see, "rstd", &mut self.rstd);
        if let Some(view) = &mut self.sums {
            read(see, "sums", view);
        }
        if let Some(view) = &mut self.bias {
            read(see, "bias", view);
        }
        if let Some(view) = &mut self.mean {
            write(see, "mean", view);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.x.rows), rule.free("d", self.x.cols));
        for name in ["x", "out"] {
            rule.dims(name, &[n], &[d]);
        }
        for name in ["weight", "bias"] {
            rule.dims(name, &[], &[d]);
        }
        for name in ["sums", "squares", "mean", "rstd"] {
            rule.dims(name, &[], &[n]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        4.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "out", &self.out, n, d)?;
        expect_shape(Self::NAME, "weight", &self.weight, 1, d)?;
        expect_shape(Self::NAME, "squares", &self.squares, 1, n)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, 1, n)?;
        if let Some(bias) = &self.bias {
            expect_shape(Self::NAME, "bias", bias, 1, d)?;
        }
        check_row_numbers(Self::NAME, self.kind, ("sums", self.sums.as_ref()), n)?;
        check_row_numbers(Self::NAME, self.kind, ("mean", self.mean.as_ref()), n)
    }
}

/// What the columns that are here add to the sums of [`super::NormBackward`]: `sum g xhat`, and for LayerNorm `sum g` in a row before.
///
/// Sharding: x, dout (n, d), weight (d), mean, rstd (n), sums (kinds, n); n free, d summed; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormGradientSums {
    /// Kind of normalisation.
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
    /// `[2, N]` for LayerNorm, `[1, N]` for RMSNorm.
    pub sums: View,
}

/// Rows of the sums of a backward pass.
fn kinds(kind: NormKind) -> usize {
    if kind == NormKind::Layer { 2 } else { 1 }
}

impl Describe for NormGradientSums {
    const NAME: &'static str = "norm_gradient_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "rstd", &mut self.rstd);
        read(see, "dout", &mut self.dout);
        write(see, "sums", &mut self.sums);
        if let Some(view) = &mut self.mean {
            read(see, "mean", view);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.x.rows), rule.sum("d", self.x.cols));
        for name in ["x", "dout"] {
            rule.dims(name, &[n], &[d]);
        }
        rule.dims("weight", &[], &[d]);
        for name in ["rstd", "mean"] {
            rule.dims(name, &[], &[n]);
        }
        match self.sums.rows {
            1 => rule.dims("sums", &[], &[n]),
            rows => {
                let kinds = rule.whole("kinds", rows);
                rule.dims("sums", &[kinds], &[n]);
            }
        }
        rule.linear("dout", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        6.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "weight", &self.weight, 1, d)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, 1, n)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, d)?;
        expect_shape(Self::NAME, "sums", &self.sums, kinds(self.kind), n)?;
        check_row_numbers(Self::NAME, self.kind, ("mean", self.mean.as_ref()), n)
    }
}

/// The columns of [`super::NormBackward`] that are here, from sums over all columns (those of [`NormGradientSums`], in its order):
/// `dx (+)= rstd (g - sum g / width - xhat sum(g xhat) / width)`, without `sum g` for RMSNorm; `dweight (+)= sum_n dout xhat`,
/// `dbias (+)= sum_n dout`.
///
/// Sharding: x, dout, dx (n, d), weight, dweight, dbias (d), mean, rstd (n), sums (kinds, n); n summed for dweight and dbias, d free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormBackwardOfSums {
    /// Kind of normalisation.
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
    /// As in [`NormGradientSums`], over all columns.
    pub sums: View,
    /// Columns of a whole row.
    pub width: usize,
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

impl Describe for NormBackwardOfSums {
    const NAME: &'static str = "norm_backward_of_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "rstd", &mut self.rstd);
        read(see, "dout", &mut self.dout);
        read(see, "sums", &mut self.sums);
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
        let (n, d) = (rule.sum("n", self.x.rows), rule.free("d", self.x.cols));
        for name in ["x", "dout", "dx"] {
            rule.dims(name, &[n], &[d]);
        }
        for name in ["weight", "dweight", "dbias"] {
            rule.dims(name, &[], &[d]);
        }
        for name in ["rstd", "mean"] {
            rule.dims(name, &[], &[n]);
        }
        match self.sums.rows {
            1 => rule.dims("sums", &[], &[n]),
            rows => {
                let kinds = rule.whole("kinds", rows);
                rule.dims("sums", &[kinds], &[n]);
            }
        }
        for name in ["dx", "dweight", "dbias"] {
            rule.accumulated(name);
        }
        rule
    }
    fn flops(&self) -> f64 {
        10.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "weight", &self.weight, 1, d)?;
        expect_shape(Self::NAME, "rstd", &self.rstd, 1, n)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, d)?;
        expect_shape(Self::NAME, "sums", &self.sums, kinds(self.kind), n)?;
        expect_shape(Self::NAME, "dx", &self.dx, n, d)?;
        expect_shape(Self::NAME, "dweight", &self.dweight, 1, d)?;
        if let Some(dbias) = &self.dbias {
            expect_shape(Self::NAME, "dbias", dbias, 1, d)?;
        }
        check_row_numbers(Self::NAME, self.kind, ("mean", self.mean.as_ref()), n)
    }
}

/// LayerNorm has these numbers for its rows, RMSNorm may do without.
fn check_row_numbers(
    op: &'static str,
    kind: NormKind,
    (operand, view): (&'static str, Option<&View>),
    rows: usize,
) -> Result<(), TensorError> {
    match (view, kind) {
        (Some(view), _) => expect_shape(op, operand, view, 1, rows),
        (None, NormKind::Rms) => Ok(()),
        (None, NormKind::Layer) => Err(TensorError::Shape {
            op,
            operand,
            wanted: format!("[1, {rows}] for LayerNorm"),
            found: "nothing".into(),
        }),
    }
}
