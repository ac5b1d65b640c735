//! Operators that treat every element alike: fill, copy, add, scale, dropout, activations.

use super::rule;
use super::{Describe, Rule, Visit, expect_indices, expect_shape, read, write};
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
    /// u32 `[1, 6]`, the numbers of [`DropoutMask::words`], which the host writes before a pass; the same in forward and
    /// backward.
    pub counters: View,
    /// Number of the operand's first element, counted from the element that `counters` name.
    pub first: u64,
}

impl DropoutMask {
    /// Words of `counters`.
    pub const WORDS: usize = 6;

    /// What `counters` hold: the words of the stream's key and of its step, and those of the
    /// number of an element within the global tensor. Low words come first.
    pub fn words(key: RngKey, element: u64) -> [u32; DropoutMask::WORDS] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let ([k0, k1], [s0, s1], [e0, e1]) = (key.key, halves(key.step), halves(element));
        [k0, k1, s0, s1, e0, e1]
    }

    /// The stream and the element of these words.
    pub fn stream([k0, k1, s0, s1, e0, e1]: [u32; DropoutMask::WORDS]) -> (RngKey, u64) {
        let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        (RngKey { key: [k0, k1], step: whole(s0, s1) }, whole(e0, e1))
    }

    pub(super) fn check(&self, op: &'static str) -> Result<(), TensorError> {
        expect_indices(op, Rule::COUNTERS, &self.counters, DropoutMask::WORDS)
    }
}

/// Random factors of a [`Dropout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    /// 0 with probability p, else 1/(1-p) (Srivastava et al., "Dropout", JMLR 2014, in the inverted form).
    Bernoulli,
    /// Uniform in [1-p, 1+p) (Fedus et al. 2021, Switch, the jitter of a router's input).
    Uniform,
}

/// `out[e] = factor[e] * x[e]`; forward on activations and backward on gradients alike. `out` may be `x`.
///
/// Sharding: (r, c), both free and with offsets (`mask.first`), counters whole; linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// `[r, c]`.
    pub x: View,
    /// `[r, c]`.
    pub out: View,
    /// The mask.
    pub mask: DropoutMask,
    /// Factors, of the mask's p.
    pub noise: Noise,
    /// Columns of the global tensor: element (i, j) of x is its element `mask.first + i * global_cols + j`.
    pub global_cols: usize,
}

impl Describe for Dropout {
    const NAME: &'static str = "dropout";
    const IN_PLACE: bool = true;
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, Rule::COUNTERS, &mut self.mask.counters);
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
        self.mask.check(Self::NAME)?;
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
    /// If only some rows count, u32 `[1, 1]`, how many of the first ones, or `[1, n]`, offsets: from the first number on, before the last.
    /// The others are neither read nor written.
    pub live: Option<View>,
    /// `[N, F]`.
    pub out: View,
}

impl Describe for Gated {
    const NAME: &'static str = "gated";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "gate", &mut self.gate);
        read(see, "up", &mut self.up);
        read_live(see, &mut self.live);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.gate.rows, self.gate.cols);
        rule.own(Rule::LIVE, 0);
        rule
    }
    fn flops(&self) -> f64 {
        11.0 * self.gate.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_live(Self::NAME, &self.live)?;
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
    /// As in [`Gated`].
    pub live: Option<View>,
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
        read_live(see, &mut self.live);
        write(see, "dgate", &mut self.dgate);
        write(see, "dup", &mut self.dup);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::elementwise(&self.operands(), self.gate.rows, self.gate.cols);
        rule.linear("dout", rule::Linear::Alone);
        rule.own(Rule::LIVE, 0);
        rule
    }
    fn flops(&self) -> f64 {
        16.0 * self.gate.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_live(Self::NAME, &self.live)?;
        let (r, c) = (self.gate.rows, self.gate.cols);
        for (name, view) in
            [("up", &self.up), ("dout", &self.dout), ("dgate", &self.dgate), ("dup", &self.dup)]
        {
            expect_shape(Self::NAME, name, view, r, c)?;
        }
        Ok(())
    }
}

/// The operand that counts the rows that an operator touches, if it has one.
fn read_live(see: &mut Visit<'_>, live: &mut Option<View>) {
    if let Some(live) = live {
        read(see, Rule::LIVE, live);
    }
}

fn expect_live(op: &'static str, live: &Option<View>) -> Result<(), TensorError> {
    live.map_or(Ok(()), |live| expect_shape(op, Rule::LIVE, &live, 1, live.cols.max(1)))
}
