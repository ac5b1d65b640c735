//! Rotary positions and scaled dot-product attention: whole sequences, their backward pass, and decoding with a cache.

use super::{Describe, DropoutMask, Operands, expect_indices, expect_shape, read, update, write};
use crate::{TensorError, View};

/// Rotates every head of `x` in place by its position (Su et al. 2021), in the layout that pairs i with i + E/2:
/// `(a, b) <- (a cos - b sin, b cos + a sin)`, angle = position * theta^(-2i/E). `inverse` rotates back (the backward pass).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// `[N, heads * E]`.
    pub x: View,
    /// u32 `[1, N]`.
    pub positions: View,
    /// Heads in a row of `x`.
    pub heads: usize,
    /// Base of the angles, 10000 in the paper.
    pub theta: f32,
    /// Rotate by the negative angle.
    pub inverse: bool,
}

impl Describe for Rope {
    const NAME: &'static str = "rope";
    fn operands(&self) -> Operands {
        Operands::of([update("x", self.x), read("positions", self.positions)])
    }
    fn flops(&self) -> f64 {
        3.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_indices(Self::NAME, "positions", &self.positions, self.x.rows)?;
        if self.heads == 0
            || !self.x.cols.is_multiple_of(self.heads)
            || !(self.x.cols / self.heads).is_multiple_of(2)
        {
            return Err(TensorError::Shape {
                op: Self::NAME,
                operand: "x",
                wanted: format!("{} heads of even width", self.heads),
                found: format!("{} columns", self.x.cols),
            });
        }
        Ok(())
    }
}

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// B, sequences.
    pub batch: usize,
    /// T, query positions of each sequence.
    pub seq: usize,
    /// H, query heads.
    pub heads: usize,
    /// G, key/value heads; divides H. Query head h reads key/value head h / (H/G).
    pub kv_heads: usize,
    /// E, width of a head.
    pub head_dim: usize,
    /// Factor on the scores, usually 1/sqrt(E).
    pub scale: f32,
}

impl AttentionShape {
    fn check(&self, op: &'static str) -> Result<(), TensorError> {
        if self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads) && self.heads > 0 {
            return Ok(());
        }
        Err(TensorError::Shape {
            op,
            operand: "kv_heads",
            wanted: format!("a divisor of {} query heads", self.heads),
            found: self.kv_heads.to_string(),
        })
    }
}

/// Causal attention over B sequences of T positions, row n = b*T + t (Vaswani et al. 2017; computed in tiles with
/// running maxima as in Dao et al. 2022, so that no T x T matrix is ever stored).
///
/// `out[b,t,h] = sum_s softmax_s(scale q[b,t,h] . k[b,s,g]) v[b,s,g]` over s <= t.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Sizes.
    pub shape: AttentionShape,
    /// `[B*T, H*E]`.
    pub q: View,
    /// `[B*T, G*E]`.
    pub k: View,
    /// `[B*T, G*E]`.
    pub v: View,
    /// `[B*T, H*E]`.
    pub out: View,
    /// `[B*H, T]`: logarithm of the sum of exponentials of each row of scores, for the backward pass.
    pub lse: View,
    /// Dropout of the attention weights; element number ((b*H + h)*T + t)*T + s.
    pub dropout: Option<DropoutMask>,
}

/// Floating-point operations of one product over the causal half (T(T+1)/2 pairs).
fn causal_product(s: &AttentionShape) -> f64 {
    let pairs = s.seq as f64 * (s.seq as f64 + 1.0) / 2.0;
    2.0 * s.batch as f64 * s.heads as f64 * pairs * s.head_dim as f64
}

impl Describe for Attention {
    const NAME: &'static str = "attention";
    fn operands(&self) -> Operands {
        Operands::of([
            read("q", self.q),
            read("k", self.k),
            read("v", self.v),
            write("out", self.out),
            write("lse", self.lse),
        ])
    }
    fn flops(&self) -> f64 {
        2.0 * causal_product(&self.shape)
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        let (n, hq, hk) = (s.batch * s.seq, s.heads * s.head_dim, s.kv_heads * s.head_dim);
        expect_shape(Self::NAME, "q", &self.q, n, hq)?;
        expect_shape(Self::NAME, "k", &self.k, n, hk)?;
        expect_shape(Self::NAME, "v", &self.v, n, hk)?;
        expect_shape(Self::NAME, "out", &self.out, n, hq)?;
        expect_shape(Self::NAME, "lse", &self.lse, s.batch * s.heads, s.seq)
    }
}

/// Gradients of [`Attention`]; scores are computed again from q, k and `lse`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionBackward {
    /// Sizes.
    pub shape: AttentionShape,
    /// `[B*T, H*E]`.
    pub q: View,
    /// `[B*T, G*E]`.
    pub k: View,
    /// `[B*T, G*E]`.
    pub v: View,
    /// `[B*T, H*E]`, the forward result.
    pub out: View,
    /// `[B*H, T]`, the forward result.
    pub lse: View,
    /// `[B*T, H*E]`.
    pub dout: View,
    /// `[B*T, H*E]`, replaced.
    pub dq: View,
    /// `[B*T, G*E]`, replaced.
    pub dk: View,
    /// `[B*T, G*E]`, replaced.
    pub dv: View,
    /// As in the forward pass.
    pub dropout: Option<DropoutMask>,
}

impl Describe for AttentionBackward {
    const NAME: &'static str = "attention_backward";
    fn operands(&self) -> Operands {
        Operands::of([
            read("q", self.q),
            read("k", self.k),
            read("v", self.v),
            read("out", self.out),
            read("lse", self.lse),
            read("dout", self.dout),
            write("dq", self.dq),
            write("dk", self.dk),
            write("dv", self.dv),
        ])
    }
    fn flops(&self) -> f64 {
        // Five products: scores again, dP, dQ, dK, dV.
        5.0 * causal_product(&self.shape)
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        let (n, hq, hk) = (s.batch * s.seq, s.heads * s.head_dim, s.kv_heads * s.head_dim);
        for (name, view) in [("q", &self.q), ("out", &self.out), ("dout", &self.dout), ("dq", &self.dq)] {
            expect_shape(Self::NAME, name, view, n, hq)?;
        }
        for (name, view) in [("k", &self.k), ("v", &self.v), ("dk", &self.dk), ("dv", &self.dv)] {
            expect_shape(Self::NAME, name, view, n, hk)?;
        }
        expect_shape(Self::NAME, "lse", &self.lse, s.batch * s.heads, s.seq)
    }
}

/// Attention of `shape.seq` new positions to a cache that already holds them: the query at new position i of sequence b
/// reads cache rows `b*capacity .. b*capacity + past + i + 1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionCached {
    /// Sizes; `seq` is the number of new positions.
    pub shape: AttentionShape,
    /// Positions that were in the cache before the new ones.
    pub past: usize,
    /// Rows of the cache for each sequence.
    pub capacity: usize,
    /// `[B*new, H*E]`.
    pub q: View,
    /// `[B*capacity, G*E]`.
    pub k_cache: View,
    /// `[B*capacity, G*E]`.
    pub v_cache: View,
    /// `[B*new, H*E]`.
    pub out: View,
}

impl Describe for AttentionCached {
    const NAME: &'static str = "attention_cached";
    fn operands(&self) -> Operands {
        Operands::of([
            read("q", self.q),
            read("k_cache", self.k_cache),
            read("v_cache", self.v_cache),
            write("out", self.out),
        ])
    }
    fn flops(&self) -> f64 {
        let s = &self.shape;
        let pairs = s.seq as f64 * (self.past as f64 + (s.seq as f64 + 1.0) / 2.0);
        4.0 * s.batch as f64 * s.heads as f64 * pairs * s.head_dim as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        s.check(Self::NAME)?;
        if self.past + s.seq > self.capacity {
            return Err(TensorError::Shape {
                op: Self::NAME,
                operand: "capacity",
                wanted: format!("room for {} positions", self.past + s.seq),
                found: self.capacity.to_string(),
            });
        }
        let (n, rows) = (s.batch * s.seq, s.batch * self.capacity);
        expect_shape(Self::NAME, "q", &self.q, n, s.heads * s.head_dim)?;
        expect_shape(Self::NAME, "out", &self.out, n, s.heads * s.head_dim)?;
        expect_shape(Self::NAME, "k_cache", &self.k_cache, rows, s.kv_heads * s.head_dim)?;
        expect_shape(Self::NAME, "v_cache", &self.v_cache, rows, s.kv_heads * s.head_dim)
    }
}
