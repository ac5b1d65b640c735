//! Operators that treat every element alike: fill, copy, add, scale, dropout, activations.

use super::rule;
use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::rng::RngKey;
use crate::{TensorError, View};

/// `dst = value`.
///
/// Sharding: (r, c), both free; a zero fits partial values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// `[r, c]`.
    pub dst: View,
    /// The value.
    pub value: f32,
}

impl Describe for Fill {
    const NAME: &'static str = "fill";
    fn visit(&mut self, see: &mut Visit<'_>) {
        write(see, "dst", &mut self.dst);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.dst.rows, self.dst.cols);
        if self.value == 0.0 {
            rule.linear("dst", rule::Linear::Alone);
        }
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        Ok(())
    }
}

/// `dst = src`, with conversion if the types differ.
///
/// Sharding: (r, c), both free; linear in src (a narrowing copy rounds each term).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copy {
    /// `[r, c]`.
    pub src: View,
    /// `[r, c]`.
    pub dst: View,
}

impl Describe for Copy {
    const NAME: &'static str = "copy";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "src", &mut self.src);
        write(see, "dst", &mut self.dst);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.src.rows, self.src.cols);
        rule.linear("src", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "dst", &self.dst, self.src.rows, self.src.cols)
    }
}

/// `out = a + b`; `out` may be `a` or `b`.
///
/// Sharding: (r, c), both free; linear in a and b jointly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Add {
    /// `[r, c]`.
    pub a: View,
    /// `[r, c]`.
    pub b: View,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for Add {
    const NAME: &'static str = "add";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "a", &mut self.a);
        read(see, "b", &mut self.b);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.a.rows, self.a.cols);
        rule.linear("a", rule::Linear::Jointly);
        rule.linear("b", rule::Linear::Jointly);
        rule
    }
    fn flops(&self) -> f64 {
        self.a.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "b", &self.b, self.a.rows, self.a.cols)?;
        expect_shape(Self::NAME, "out", &self.out, self.a.rows, self.a.cols)
    }
}

/// `out = factor * x`, forward on activations and backward on gradients alike; `out` may be `x`.
///
/// Sharding: (r, c), both free; linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// `[r, c]`.
    pub x: View,
    /// `[r, c]`.
    pub out: View,
    /// The factor.
    pub factor: f32,
}

impl Describe for Scale {
    const NAME: &'static str = "scale";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.x.rows, self.x.cols);
        rule.linear("x", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.x.cols)
    }
}

/// A dropout mask that is computed, not stored: element e is kept iff uniform(key, e) >= p, and then scaled by 1/(1-p).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutMask {
    /// Probability of dropping, in [0, 1).
    pub p: f32,
    /// Stream of random numbers; the same in forward and backward.
    pub key: RngKey,
    /// Number of the operand's first element within the global tensor.
    pub first: u64,
}

/// `out[e] = mask[e] * x[e]`; forward on activations and backward on gradients alike. `out` may be `x`.
///
/// Srivastava et al., "Dropout", JMLR 2014, in the inverted form.
///
/// Sharding: (r, c), both free and with offsets (`mask.first`); linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// `[r, c]`.
    pub x: View,
    /// `[r, c]`.
    pub out: View,
    /// The mask.
    pub mask: DropoutMask,
    /// Columns of the global tensor: element (i, j) of x is its element `mask.first + i * global_cols + j`.
    pub global_cols: usize,
}

impl Describe for Dropout {
    const NAME: &'static str = "dropout";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.x.rows, self.x.cols);
        rule.linear("x", rule::Linear::Alone);
        rule.needs_offset(0);
        rule.needs_offset(1);
        rule
    }
    fn flops(&self) -> f64 {
        self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.x.cols)
    }
}

/// Element-wise non-linearities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationKind {
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al. 2021, Primer).
    ReluSquared,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, "gelu_new" (Hendrycks & Gimpel 2016).
    GeluTanh,
    /// `x/2 (1 + erf(x / sqrt 2))`.
    GeluErf,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// `out = f(x)`.
///
/// Sharding: (r, c), both free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activation {
    /// f.
    pub kind: ActivationKind,
    /// `[r, c]`.
    pub x: View,
    /// `[r, c]`.
    pub out: View,
}

impl Describe for Activation {
    const NAME: &'static str = "activation";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.x.rows, self.x.cols)
    }
    fn flops(&self) -> f64 {
        10.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.x.cols)
    }
}

/// `dx = dout * f'(x)`; `dx` may be `dout`.
///
/// Sharding: (r, c), both free; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationBackward {
    /// f.
    pub kind: ActivationKind,
    /// `[r, c]`, the input of the forward pass.
    pub x: View,
    /// `[r, c]`.
    pub dout: View,
    /// `[r, c]`.
    pub dx: View,
}

impl Describe for ActivationBackward {
    const NAME: &'static str = "activation_backward";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "dout", &mut self.dout);
        write(see, "dx", &mut self.dx);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.x.rows, self.x.cols);
        rule.linear("dout", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        14.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "dout", &self.dout, self.x.rows, self.x.cols)?;
        expect_shape(Self::NAME, "dx", &self.dx, self.x.rows, self.x.cols)
    }
}

/// `out = f(gate) * up` (Shazeer 2020, "GLU variants improve Transformer": SwiGLU with f = SiLU, GeGLU with GELU).
///
/// Sharding: (r, c), both free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gated {
    /// f.
    pub kind: ActivationKind,
    /// `[N, F]`.
    pub gate: View,
    /// `[N, F]`.
    pub up: View,
    /// `[N, F]`.
    pub out: View,
}

impl Describe for Gated {
    const NAME: &'static str = "gated";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "gate", &mut self.gate);
        read(see, "up", &mut self.up);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        Rule::elementwise(&self.operands(), self.gate.rows, self.gate.cols)
    }
    fn flops(&self) -> f64 {
        11.0 * self.gate.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "up", &self.up, self.gate.rows, self.gate.cols)?;
        expect_shape(Self::NAME, "out", &self.out, self.gate.rows, self.gate.cols)
    }
}

/// `dgate = dout * up * f'(gate)`, `dup = dout * f(gate)`. `dgate` and `dup` may be `gate` and `up` themselves.
///
/// Sharding: (r, c), both free; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedBackward {
    /// f.
    pub kind: ActivationKind,
    /// `[N, F]`.
    pub gate: View,
    /// `[N, F]`.
    pub up: View,
    /// `[N, F]`.
    pub dout: View,
    /// `[N, F]`.
    pub dgate: View,
    /// `[N, F]`.
    pub dup: View,
}

impl Describe for GatedBackward {
    const NAME: &'static str = "gated_backward";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "gate", &mut self.gate);
        read(see, "up", &mut self.up);
        read(see, "dout", &mut self.dout);
        write(see, "dgate", &mut self.dgate);
        write(see, "dup", &mut self.dup);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.gate.rows, self.gate.cols);
        rule.linear("dout", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        16.0 * self.gate.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (r, c) = (self.gate.rows, self.gate.cols);
        for (name, view) in
            [("up", &self.up), ("dout", &self.dout), ("dgate", &self.dgate), ("dup", &self.dup)]
        {
            expect_shape(Self::NAME, name, view, r, c)?;
        }
        Ok(())
    }
}
