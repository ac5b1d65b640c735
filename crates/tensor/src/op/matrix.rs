//! Matrix work of optimizers: sums of matrices, norms, Cholesky factors. Products are those of [`super::Linear`] and its
//! backward halves, which compute `A B^T`, `A B` and `A^T B`.

use super::rule;
use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};

/// `out = alpha a + beta b`; `out` may be `a` or `b`. With a step `beta` is multiplied by its factor, and nothing is written if
/// its apply flag is 0.
///
/// Sharding: (r, c), both free, step whole; linear in a and b jointly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Combine {
    /// `[r, c]`.
    pub a: View,
    /// Factor on a.
    pub alpha: f32,
    /// `[r, c]`.
    pub b: View,
    /// Factor on b.
    pub beta: f32,
    /// `[1, 2]` f32, if the factor on b varies from step to step: apply flag, factor.
    pub step: Option<View>,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for Combine {
    const NAME: &'static str = "combine";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "a", &mut self.a);
        read(see, "b", &mut self.b);
        if let Some(view) = &mut self.step {
            read(see, Rule::STEP, view);
        }
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.a.rows, self.a.cols);
        rule.linear("a", rule::Linear::Jointly);
        rule.linear("b", rule::Linear::Jointly);
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * self.out.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "b", &self.b, self.a.rows, self.a.cols)?;
        self.step.map_or(Ok(()), |s| expect_shape(Self::NAME, Rule::STEP, &s, 1, 2))?;
        expect_shape(Self::NAME, "out", &self.out, self.a.rows, self.a.cols)
    }
}

/// `out = sum of a b`, element by element, added in a fixed order that does not depend on threads.
///
/// Sharding: a, b (r, c), both summed; linear in a or b.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// `[r, c]`.
    pub a: View,
    /// `[r, c]`.
    pub b: View,
    /// `[1, 1]`.
    pub out: View,
}

impl Describe for Dot {
    const NAME: &'static str = "dot";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "a", &mut self.a);
        read(see, "b", &mut self.b);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.sum("r", self.a.rows), rule.sum("c", self.a.cols));
        for name in ["a", "b"] {
            rule.dims(name, &[r], &[c]);
            rule.linear(name, rule::Linear::Alone);
        }
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.a.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "b", &self.b, self.a.rows, self.a.cols)?;
        expect_shape(Self::NAME, "out", &self.out, 1, 1)
    }
}

/// `out = x / (slack sqrt(squares) + eps)`: x over its norm, whose square a [`super::SumSquares`] left on the device.
/// `out` may be `x`.
///
/// Sharding: (r, c), both free, squares complete; linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DivideByNorm {
    /// `[r, c]`.
    pub x: View,
    /// `[1, 1]`: sum of the squares of x.
    pub squares: View,
    /// Factor on the norm.
    pub slack: f32,
    /// Added to the norm.
    pub eps: f32,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for DivideByNorm {
    const NAME: &'static str = "divide_by_norm";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "squares", &mut self.squares);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.free("r", self.x.rows), rule.free("c", self.x.cols));
        for name in ["x", "out"] {
            rule.dims(name, &[r], &[c]);
        }
        rule.linear("x", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "squares", &self.squares, 1, 1)?;
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.x.cols)
    }
}

/// `l l^T = a + shift I` with l lower triangular, zeros above. Only the lower triangle of `a` is read. A matrix that is
/// not positive definite leaves NaN on the diagonal of l from the first bad pivot on.
///
/// Sharding: (n, n), whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cholesky {
    /// `[n, n]`.
    pub a: View,
    /// Added to the diagonal of a.
    pub shift: f32,
    /// `[n, n]`.
    pub l: View,
}

impl Describe for Cholesky {
    const NAME: &'static str = "cholesky";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "a", &mut self.a);
        write(see, "l", &mut self.l);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.whole("n", self.a.rows);
        for name in ["a", "l"] {
            rule.dims(name, &[n], &[n]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        (self.a.rows as f64).powi(3) / 3.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "a", &self.a, self.a.rows, self.a.rows)?;
        expect_shape(Self::NAME, "l", &self.l, self.a.rows, self.a.rows)
    }
}

/// `out = l^-1` of a lower triangular l, zeros above. Only the lower triangle of `l` is read.
///
/// Sharding: (n, n), whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TriangularInverse {
    /// `[n, n]`.
    pub l: View,
    /// `[n, n]`.
    pub out: View,
}

impl Describe for TriangularInverse {
    const NAME: &'static str = "triangular_inverse";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "l", &mut self.l);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.whole("n", self.l.rows);
        for name in ["l", "out"] {
            rule.dims(name, &[n], &[n]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        (self.l.rows as f64).powi(3) / 3.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "l", &self.l, self.l.rows, self.l.rows)?;
        expect_shape(Self::NAME, "out", &self.out, self.l.rows, self.l.rows)
    }
}
