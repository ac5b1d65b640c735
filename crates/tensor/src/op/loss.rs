//! The output projection fused with softmax cross-entropy: logits are made, used and dropped in chunks of rows.

use super::{Describe, Rule, Visit, expect_indices, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Target that is not scored: its row has loss 0 and gradient 0.
pub const IGNORED: u32 = u32::MAX;

/// Gradients made together with the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossBackward {
    /// `[1, 1]` f32, written by the host before the pass: factor on every row's gradient, usually 1 / (scored targets of the
    /// whole batch), times the loss scale.
    pub step: View,
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
/// with p = softmax, `dlogits = step (p (1 + 2 z_loss lse) - onehot)`, `dx = dlogits W`, `dW = dlogits^T x`. The z-loss
/// changes the gradients only: `loss` is always the cross-entropy.
///
/// The whole `[N, V]` matrix of logits is never stored.
///
/// Sharding: x, dx (n, d), weight, dweight (v, d), loss (n); n summed for dweight, v, d whole.
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

/// Adds the factor of the tokens to the rule of a loss, gives its output `loss` its dims, and returns the factor. Gradients
/// of weights are sums over tokens.
pub(super) fn rule_of_loss(rule: &mut Rule, x: &View, loss: &View, backward: bool) -> usize {
    let n = if backward { rule.sum("n", x.rows) } else { rule.free("n", x.rows) };
    match loss.rows {
        1 => rule.dims("loss", &[], &[n]),
        rows => {
            let kinds = rule.whole("kinds", rows);
            rule.dims("loss", &[kinds], &[n]);
        }
    }
    n
}

impl Describe for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "targets", &mut self.targets);
        write(see, "loss", &mut self.loss);
        if let Some(b) = &mut self.backward {
            read(see, Rule::STEP, &mut b.step);
            write(see, "dx", &mut b.dx);
            result(see, "dweight", &mut b.dweight, b.accumulate);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule_of_loss(&mut rule, &self.x, &self.loss, self.backward.is_some());
        let (v, d) = (rule.whole("v", self.weight.rows), rule.whole("d", self.x.cols));
        rule.dims("x", &[n], &[d]);
        rule.dims("weight", &[v], &[d]);
        rule.dims("targets", &[], &[n]);
        rule.dims("dx", &[n], &[d]);
        rule.dims("dweight", &[v], &[d]);
        rule.accumulated("dweight");
        rule
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
            expect_shape(Self::NAME, Rule::STEP, &b.step, 1, 1)?;
            expect_shape(Self::NAME, "dx", &b.dx, n, d)?;
            expect_shape(Self::NAME, "dweight", &b.dweight, v, d)?;
        }
        Ok(())
    }
}
