//! Rows that are added with a gate for each: the shared experts of a layer (Qwen2-MoE), residual experts (PR-MoE).
//!
//! Legend: N tokens, D width.

use super::rule::Linear;
use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};

/// `out[t] = x[t] + sigmoid(gates[t]) y[t]`, or with two gates a row `out[t] = c_0 x[t] + c_1 y[t]`, c = softmax(gates\[t\]) (Rajbhandari
/// et al. 2022, PR-MoE); `out` may be `x`.
///
/// Sharding: x, y, out (n, d), gates (n, g); n, d free, g whole; linear in x and y jointly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddGatedRows {
    /// `[N, D]`.
    pub x: View,
    /// `[N, D]`.
    pub y: View,
    /// `[N, 1]`, or `[N, 2]`.
    pub gates: View,
    /// `[N, D]`.
    pub out: View,
}

impl Describe for AddGatedRows {
    const NAME: &'static str = "add_gated_rows";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "y", &mut self.y);
        read(see, "gates", &mut self.gates);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.x.rows), rule.free("d", self.x.cols));
        let g = rule.whole("g", self.gates.cols);
        for name in ["x", "y", "out"] {
            rule.dims(name, &[n], &[d]);
        }
        rule.dims("gates", &[n], &[g]);
        rule.linear("x", Linear::Jointly);
        rule.linear("y", Linear::Jointly);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.x.rows, self.x.cols);
        expect_shape(Self::NAME, "y", &self.y, n, d)?;
        expect_shape(Self::NAME, "gates", &self.gates, n, self.gates.cols.clamp(1, 2))?;
        expect_shape(Self::NAME, "out", &self.out, n, d)
    }
}

/// The first rows of an [`AddGatedRows`] with two gates a row, which its gradients read and make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixedRows {
    /// `[N, D]`.
    pub x: View,
    /// `[N, D]`.
    pub dx: View,
}

/// Gradients of [`AddGatedRows`], with s = sigmoid(gates\[t\]): `dy[t] = s dout[t]`, `dgates[t] = s (1 - s) <dout[t], y[t]>`; that of x is
/// `dout`. With two gates `dx[t] = c_0 dout[t]`, `dy[t] = c_1 dout[t]`, `dgates[t, 1] = c_0 c_1 <dout[t], y[t] - x[t]> = -dgates[t, 0]`.
///
/// Sharding: dout, x, y, dx, dy (n, d), gates, dgates (n, g); n free, d free, summed for dgates, g whole; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddGatedRowsBackward {
    /// `[N, D]`.
    pub dout: View,
    /// `[N, D]`.
    pub y: View,
    /// `[N, 1]`, or `[N, 2]`.
    pub gates: View,
    /// The first rows, where there are two gates.
    pub mixed: Option<MixedRows>,
    /// `[N, D]`.
    pub dy: View,
    /// As the gates.
    pub dgates: View,
}

impl Describe for AddGatedRowsBackward {
    const NAME: &'static str = "add_gated_rows_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dout", &mut self.dout);
        read(see, "y", &mut self.y);
        read(see, "gates", &mut self.gates);
        if let Some(mixed) = &mut self.mixed {
            read(see, "x", &mut mixed.x);
            write(see, "dx", &mut mixed.dx);
        }
        write(see, "dy", &mut self.dy);
        write(see, "dgates", &mut self.dgates);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.dout.rows), rule.sum("d", self.dout.cols));
        let g = rule.whole("g", self.gates.cols);
        for name in ["dout", "x", "y", "dx", "dy"] {
            rule.dims(name, &[n], &[d]);
        }
        for name in ["gates", "dgates"] {
            rule.dims(name, &[n], &[g]);
        }
        rule.linear("dout", Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * self.dout.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.dout.rows, self.dout.cols);
        expect_shape(Self::NAME, "y", &self.y, n, d)?;
        let gates = if self.mixed.is_some() { 2 } else { 1 };
        if let Some(MixedRows { x, dx }) = &self.mixed {
            expect_shape(Self::NAME, "x", x, n, d)?;
            expect_shape(Self::NAME, "dx", dx, n, d)?;
        }
        expect_shape(Self::NAME, "gates", &self.gates, n, gates)?;
        expect_shape(Self::NAME, "dy", &self.dy, n, d)?;
        expect_shape(Self::NAME, "dgates", &self.dgates, n, gates)
    }
}
