//! Operators that treat every element alike: fill, copy, add, scale, dropout, activations.

use super::{Describe, Operands, expect_shape, read, write};
use crate::rng::RngKey;
use crate::{TensorError, View};

/// `dst = value`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// `[r, c]`.
    pub dst: View,
    /// The value.
    pub value: f32,
}

impl Describe for Fill {
    const NAME: &'static str = "fill";
    fn operands(&self) -> Operands {
        Operands::of([write("dst", self.dst)])
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        Ok(())
    }
}

/// `dst = src`, with conversion if the types differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copy {
    /// `[r, c]`.
    pub src: View,
    /// `[r, c]`.
    pub dst: View,
}

impl Describe for Copy {
    const NAME: &'static str = "copy";
    fn operands(&self) -> Operands {
        Operands::of([read("src", self.src), write("dst", self.dst)])
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "dst", &self.dst, self.src.rows, self.src.cols)
    }
}

/// `out = a + b`; `out` may be `a` or `b`.
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
    fn operands(&self) -> Operands {
        Operands::of([read("a", self.a), read("b", self.b), write("out", self.out)])
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
    fn operands(&self) -> Operands {
        Operands::of([read("x", self.x), write("out", self.out)])
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
    /// Number of the operand's first element within the global tensor (rows are `cols` apart).
    pub first: u64,
}

/// `out[e] = mask[e] * x[e]`; forward on activations and backward on gradients alike. `out` may be `x`.
///
/// Srivastava et al., "Dropout", JMLR 2014, in the inverted form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// `[r, c]`.
    pub x: View,
    /// `[r, c]`.
    pub out: View,
    /// The mask.
    pub mask: DropoutMask,
}

impl Describe for Dropout {
    const NAME: &'static str = "dropout";
    const IN_PLACE: bool = true;
    fn operands(&self) -> Operands {
        Operands::of([read("x", self.x), write("out", self.out)])
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
    fn operands(&self) -> Operands {
        Operands::of([read("x", self.x), write("out", self.out)])
    }
    fn flops(&self) -> f64 {
        10.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "out", &self.out, self.x.rows, self.x.cols)
    }
}

/// `dx = dout * f'(x)`; `dx` may be `dout`.
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
    fn operands(&self) -> Operands {
        Operands::of([read("x", self.x), read("dout", self.dout), write("dx", self.dx)])
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
    fn operands(&self) -> Operands {
        Operands::of([read("gate", self.gate), read("up", self.up), write("out", self.out)])
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
    fn operands(&self) -> Operands {
        Operands::of([
            read("gate", self.gate),
            read("up", self.up),
            read("dout", self.dout),
            write("dgate", self.dgate),
            write("dup", self.dup),
        ])
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
