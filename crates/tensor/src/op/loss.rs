//! The output projection fused with softmax cross-entropy: logits are made, used and dropped in chunks of rows.

use super::{Describe, Operands, expect_indices, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Target that is not scored: its row has loss 0 and gradient 0.
pub const IGNORED: u32 = u32::MAX;

/// Gradients made together with the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossBackward {
    /// Factor on every row's gradient, usually 1 / (scored targets of the whole batch).
    pub scale: f32,
    /// Weight of the z-loss `lse^2` in the gradients (Chowdhery et al. 2022, PaLM: 1e-4); 0 leaves it out.
    pub z_loss: f32,
    /// `[N, D]`, replaced.
    pub dx: View,
    /// `[V, D]`.
    pub dweight: View,
    /// Add to `dweight` instead of replacing it.
    pub accumulate: bool,
}

/// `loss[n] = logsumexp_v(x[n] . weight[v]) - x[n] . weight[targets[n]]` in nats, and its gradients if asked:
/// with p = softmax, `dlogits = scale (p (1 + 2 z_loss lse) - onehot)`, `dx = dlogits W`, `dW = dlogits^T x`. The z-loss
/// changes the gradients only: `loss` is always the cross-entropy.
///
/// The whole `[N, V]` matrix of logits is never stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearCrossEntropy {
    /// `[N, D]`.
    pub x: View,
    /// `[V, D]`.
    pub weight: View,
    /// u32 `[1, N]`, each below V or [`IGNORED`].
    pub targets: View,
    /// `[1, N]`, or `[2, N]`: the second row then takes the log-sum-exp of each row's logits, 0 where nothing is scored.
    pub loss: View,
    /// The gradients, if asked.
    pub backward: Option<LossBackward>,
}

impl Describe for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";
    fn operands(&self) -> Operands {
        let mut v = Operands::of([
            read("x", self.x),
            read("weight", self.weight),
            read("targets", self.targets),
            write("loss", self.loss),
        ]);
        if let Some(b) = self.backward {
            v.extend([write("dx", b.dx), result("dweight", b.dweight, b.accumulate)]);
        }
        v
    }
    fn flops(&self) -> f64 {
        let product = 2.0 * self.x.len() as f64 * self.weight.rows as f64;
        if self.backward.is_some() { 3.0 * product } else { product }
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d, v) = (self.x.rows, self.x.cols, self.weight.rows);
        expect_shape(Self::NAME, "weight", &self.weight, v, d)?;
        expect_indices(Self::NAME, "targets", &self.targets, n)?;
        expect_shape(Self::NAME, "loss", &self.loss, self.loss.rows.clamp(1, 2), n)?;
        if let Some(b) = &self.backward {
            expect_shape(Self::NAME, "dx", &b.dx, n, d)?;
            expect_shape(Self::NAME, "dweight", &b.dweight, v, d)?;
        }
        Ok(())
    }
}
