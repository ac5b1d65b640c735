//! Rows that are added with a gate for each: the shared experts of a layer (Qwen2-MoE).
//!
//! Legend: N tokens, D width.

use super::rule::Linear;
use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};

/// `out[t] = x[t] + sigmoid(gates[t]) y[t]`; `out` may be `x`.
///
/// Sharding: x, y, out (n, d), gates (n); n, d free; linear in x and y jointly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddGatedRows {
    /// `[N, D]`.
    pub x: View,
    /// `[N, D]`.
    pub y: View,
    /// `[N, 1]`.
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
        for name in ["x", "y", "out"] {
            rule.dims(name, &[n], &[d]);
        }
        rule.dims("gates", &[n], &[]);
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
        expect_shape(Self::NAME, "gates", &self.gates, n, 1)?;
        expect_shape(Self::NAME, "out", &self.out, n, d)
    }
}

/// Gradients of [`AddGatedRows`], with s = sigmoid(gates\[t\]): `dy[t] = s dout[t]`, `dgates[t] = s (1 - s) <dout[t], y[t]>`; that of x is
/// `dout`.
///
/// Sharding: dout, y, dy (n, d), gates, dgates (n); n free, d free, summed for dgates; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddGatedRowsBackward {
    /// `[N, D]`.
    pub dout: View,
    /// `[N, D]`.
    pub y: View,
    /// `[N, 1]`.
    pub gates: View,
    /// `[N, D]`.
    pub dy: View,
    /// `[N, 1]`.
    pub dgates: View,
}

impl Describe for AddGatedRowsBackward {
    const NAME: &'static str = "add_gated_rows_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dout", &mut self.dout);
        read(see, "y", &mut self.y);
        read(see, "gates", &mut self.gates);
        write(see, "dy", &mut self.dy);
        write(see, "dgates", &mut self.dgates);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.dout.rows), rule.sum("d", self.dout.cols));
        for name in ["dout", "y", "dy"] {
            rule.dims(name, &[n], &[d]);
        }
        for name in ["gates", "dgates"] {
            rule.dims(name, &[n], &[]);
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
        expect_shape(Self::NAME, "gates", &self.gates, n, 1)?;
        expect_shape(Self::NAME, "dy", &self.dy, n, d)?;
        expect_shape(Self::NAME, "dgates", &self.dgates, n, 1)
    }
}
