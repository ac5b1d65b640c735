//! Products of groups of rows, each with a matrix of its own: the linear maps of experts.
//!
//! Legend: R rows, E matrices, S groups, a multiple of E, I/O inputs and outputs. Rows `offsets[s] .. offsets[s + 1]` are those of
//! group s, whose matrix is s mod E; rows from the last offset on are neither read nor written. Matrices are stacked: rows `e O ..` of
//! `[E O, I]`.

use super::rule::Linear;
use super::{Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// `out[r] = x[r] W_e^T` for the rows r of each group of matrix e (Gale et al. 2022, MegaBlocks).
///
/// Sharding: x (r, i), weight (e o, i), offsets (s), out (r, o); r free, with offsets of these rows, o free, i summed, e, s whole; linear
/// in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedLinear {
    /// `[R, I]`.
    pub x: View,
    /// `[E O, I]`.
    pub weight: View,
    /// u32 `[1, S + 1]`, not falling, the last at most R.
    pub offsets: View,
    /// `[R, O]`.
    pub out: View,
}

/// Errors unless a stack consists of matrices of so many rows, of each of which there are equally many groups.
fn expect_stack(
    op: &'static str,
    (name, stack): (&'static str, &View),
    offsets: &View,
    (outputs, inputs): (usize, usize),
) -> Result<(), TensorError> {
    expect_shape(op, name, stack, matrices(stack, outputs).max(1) * outputs, inputs)?;
    let groups = offsets.cols.max(2) - 1;
    expect_shape(op, "offsets", offsets, 1, groups.next_multiple_of(matrices(stack, outputs)) + 1)
}

/// E, matrices of so many rows in a stack.
fn matrices(stack: &View, outputs: usize) -> usize {
    stack.rows / outputs.max(1)
}

impl Describe for GroupedLinear {
    const NAME: &'static str = "grouped_linear";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "offsets", &mut self.offsets);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, s) = (rule.free(Rule::TOKENS, self.x.rows), rule.whole("s", self.offsets.cols));
        let e = rule.whole("e", matrices(&self.weight, self.out.cols));
        let o = rule.free(Rule::OUTPUTS, self.out.cols);
        let i = rule.sum("i", self.x.cols);
        rule.dims("x", &[r], &[i]);
        rule.dims("weight", &[e, o], &[i]);
        rule.dims("offsets", &[], &[s]);
        rule.dims("out", &[r], &[o]);
        rule.linear("x", Linear::Alone);
        rule.own("offsets", r);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64 * self.out.cols as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.out.cols)?;
        expect_stack(Self::NAME, ("weight", &self.weight), &self.offsets, (self.out.cols, self.x.cols))
    }
}

/// `dx[r] = dy[r] W_e` for the rows r of each group of matrix e.
///
/// Sharding: dy (r, o), weight (e o, i), offsets (s), dx (r, i); r free, with offsets of these rows, i free, o summed, e, s whole; linear
/// in dy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedLinearBackwardInput {
    /// `[R, O]`.
    pub dy: View,
    /// `[E O, I]`.
    pub weight: View,
    /// u32 `[1, S + 1]`.
    pub offsets: View,
    /// `[R, I]`.
    pub dx: View,
}

impl Describe for GroupedLinearBackwardInput {
    const NAME: &'static str = "grouped_linear_backward_input";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dy", &mut self.dy);
        read(see, "weight", &mut self.weight);
        read(see, "offsets", &mut self.offsets);
        write(see, "dx", &mut self.dx);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, s) = (rule.free(Rule::TOKENS, self.dy.rows), rule.whole("s", self.offsets.cols));
        let e = rule.whole("e", matrices(&self.weight, self.dy.cols));
        let o = rule.sum(Rule::OUTPUTS, self.dy.cols);
        let i = rule.free("i", self.dx.cols);
        rule.dims("dy", &[r], &[o]);
        rule.dims("weight", &[e, o], &[i]);
        rule.dims("offsets", &[], &[s]);
        rule.dims("dx", &[r], &[i]);
        rule.linear("dy", Linear::Alone);
        rule.own("offsets", r);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.dy.len() as f64 * self.dx.cols as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "dx", &self.dx, self.dy.rows, self.dx.cols)?;
        expect_stack(Self::NAME, ("weight", &self.weight), &self.offsets, (self.dy.cols, self.dx.cols))
    }
}

/// `dW_e (+)= sum over the groups of matrix e of the sum over their rows r of dy[r]^T x[r]`; zeros of a matrix without rows. The sum of
/// each group is formed first in f32, and the sums are added in the order of the groups: rows that come from several devices give the
/// bits of a reduction over these. A gradient in fewer bits is rounded after each.
///
/// Sharding: x (r, i), dy (r, o), offsets (s), dweight (e o, i); r summed, with offsets of these rows, o, i free, e, s whole; linear in
/// dy, in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedLinearBackwardWeight {
    /// `[R, I]`.
    pub x: View,
    /// `[R, O]`.
    pub dy: View,
    /// u32 `[1, S + 1]`.
    pub offsets: View,
    /// `[E O, I]`.
    pub dweight: View,
    /// Add to what the gradient holds instead of replacing it.
    pub accumulate: bool,
}

impl Describe for GroupedLinearBackwardWeight {
    const NAME: &'static str = "grouped_linear_backward_weight";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "dy", &mut self.dy);
        read(see, "offsets", &mut self.offsets);
        result(see, "dweight", &mut self.dweight, self.accumulate);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, s) = (rule.sum(Rule::TOKENS, self.dy.rows), rule.whole("s", self.offsets.cols));
        let e = rule.whole("e", matrices(&self.dweight, self.dy.cols));
        let o = rule.free(Rule::OUTPUTS, self.dy.cols);
        let i = rule.free("i", self.x.cols);
        rule.dims("x", &[r], &[i]);
        rule.dims("dy", &[r], &[o]);
        rule.dims("offsets", &[], &[s]);
        rule.dims("dweight", &[e, o], &[i]);
        rule.linear("x", Linear::Alone);
        rule.linear("dy", Linear::Alone);
        rule.own("offsets", r);
        rule.accumulated("dweight");
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64 * self.dy.cols as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "dy", &self.dy, self.x.rows, self.dy.cols)?;
        expect_stack(Self::NAME, ("dweight", &self.dweight), &self.offsets, (self.dy.cols, self.x.cols))
    }
}
