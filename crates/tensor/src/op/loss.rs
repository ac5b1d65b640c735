//! The output projection fused with softmax cross-entropy: logits are made, used and dropped in chunks of rows.

use super::{Describe, Rule, Visit, expect_indices, expect_shape, read, result, write};
use crate::{TensorError, View};

/// Target that is not scored: its row has loss 0 and gradient 0.
pub const IGNORED: u32 = u32::MAX;

/// Gradients made together with the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossBackward {
    /// `[1, N]` f32, written by the host before the pass: factor on each row's gradient, usually 1 / (scored targets of the whole
    /// batch), times the loss scale.
    pub factors: View,
    /// `[1, 1]` f32, written by the host before the pass: weight of the z-loss `lse^2` in the gradients (Chowdhery et al. 2022,
    /// PaLM: 1e-4). `None`: no z-loss.
    pub z_loss: Option<View>,
    /// `[N, D]`, replaced.
    pub dx: View,
    /// `[V, D]`.
    pub dweight: View,
    /// Add to `dweight` instead of replacing it.
    pub accumulate: bool,
}

/// Distillation (Hinton et al. 2015, equation 4, with the divergence for the cross-entropy, which differs by a constant): a second model's
/// logits `t[n,v] = x[n] . weight[v]`, which have no gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Teacher {
    /// `[N, D']` f32: rows that the teacher's output projection reads.
    pub x: View,
    /// `[V, D']`: the teacher's output projection.
    pub weight: View,
    /// `[1, 1]` f32, written by the host before the pass: weight of the divergence in the gradients. With 0 the teacher is not read, and
    /// everything has the bits of a loss without a teacher.
    pub factor: View,
    /// tau, by which the logits of both are divided; above 0.
    pub temperature: f32,
    /// `[1, N]`: `tau^2 KL(softmax(t / tau) || softmax(z / tau))`; 0 where nothing is scored, or where `factor` is 0.
    pub divergence: View,
}

impl Teacher {
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "teacher.x", &mut self.x);
        read(see, "teacher.weight", &mut self.weight);
        read(see, Rule::STEP, &mut self.factor);
        write(see, "divergence", &mut self.divergence);
    }

    fn shapes(&self, op: &'static str, (n, v): (usize, usize)) -> Result<(), TensorError> {
        let d = self.x.cols;
        expect_shape(op, "teacher.x", &self.x, n, d)?;
        expect_shape(op, "teacher.weight", &self.weight, v, d)?;
        expect_shape(op, Rule::STEP, &self.factor, 1, 1)?;
        expect_shape(op, "divergence", &self.divergence, 1, n)
    }
}

/// `loss[n] = logsumexp_v(x[n] . weight[v]) - x[n] . weight[targets[n]]` in nats, and its gradients if asked:
/// with p = softmax, `dlogits = factor (p (1 + 2 z_loss lse) - onehot)`, `dx = dlogits W`, `dW = dlogits^T x`. The z-loss
/// changes the gradients only: `loss` is always the cross-entropy. A teacher adds
/// `factor teacher.factor tau (softmax(z / tau) - softmax(t / tau))` to dlogits, the gradient of its divergence.
///
/// The whole `[N, V]` matrix of logits is never stored, of the teacher as little.
///
/// Sharding: x, dx (n, d), weight, dweight (v, d), teacher.x (n, d'), teacher.weight (v, d'), loss, scored_lse, factors, divergence (n);
/// n summed for dweight, v, d, d' whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearCrossEntropy {
    /// `[N, D]`.
    pub x: View,
    /// `[V, D]`.
    pub weight: View,
    /// u32 `[1, N]`, each below V or [`IGNORED`].
    pub targets: View,
    /// `[1, N]`.
    pub loss: View,
    /// `[1, N]`, if asked: log-sum-exp of each row's logits, 0 where nothing is scored.
    pub scored_lse: Option<View>,
    /// The gradients, if asked.
    pub backward: Option<LossBackward>,
    /// The model whose predictions are a second target, if there is one.
    pub teacher: Option<Teacher>,
}

/// Adds the loop over tokens to the rule of a loss, gives the operands with a number for each token their dims, and returns the loop.
/// Gradients of weights are sums over tokens.
pub(super) fn rule_of_loss(rule: &mut Rule, x: &View, backward: bool) -> usize {
    let n = if backward { rule.sum("n", x.rows) } else { rule.free("n", x.rows) };
    for name in ["targets", "loss", "scored_lse", "factors"] {
        rule.dims(name, &[], &[n]);
    }
    n
}

impl LossBackward {
    pub(super) fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "factors", &mut self.factors);
        if let Some(weight) = &mut self.z_loss {
            read(see, Rule::STEP, weight);
        }
        write(see, "dx", &mut self.dx);
        result(see, "dweight", &mut self.dweight, self.accumulate);
    }

    pub(super) fn shapes(
        &self,
        op: &'static str,
        (n, d, v): (usize, usize, usize),
    ) -> Result<(), TensorError> {
        expect_shape(op, "factors", &self.factors, 1, n)?;
        self.z_loss.map_or(Ok(()), |weight| expect_shape(op, Rule::STEP, &weight, 1, 1))?;
        expect_shape(op, "dx", &self.dx, n, d)?;
        expect_shape(op, "dweight", &self.dweight, v, d)
    }
}

impl Describe for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "targets", &mut self.targets);
        write(see, "loss", &mut self.loss);
        if let Some(lse) = &mut self.scored_lse {
            write(see, "scored_lse", lse);
        }
        if let Some(b) = &mut self.backward {
            b.visit(see);
        }
        if let Some(teacher) = &mut self.teacher {
            teacher.visit(see);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule_of_loss(&mut rule, &self.x, self.backward.is_some());
        let (v, d) = (rule.whole("v", self.weight.rows), rule.whole("d", self.x.cols));
        if let Some(teacher) = &self.teacher {
            let d = rule.whole("d'", teacher.x.cols);
            rule.dims("teacher.x", &[n], &[d]);
            rule.dims("teacher.weight", &[v], &[d]);
            rule.dims("divergence", &[], &[n]);
        }
        rule.dims("x", &[n], &[d]);
        rule.dims("weight", &[v], &[d]);
        rule.dims("dx", &[n], &[d]);
        rule.dims("dweight", &[v], &[d]);
        rule.accumulated("dweight");
        rule
    }
    fn flops(&self) -> f64 {
        let product = |x: &View| 2.0 * x.len() as f64 * self.weight.rows as f64;
        let teacher = self.teacher.map_or(0.0, |teacher| product(&teacher.x));
        teacher + if self.backward.is_some() { 3.0 } else { 1.0 } * product(&self.x)
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d, v) = (self.x.rows, self.x.cols, self.weight.rows);
        expect_shape(Self::NAME, "weight", &self.weight, v, d)?;
        expect_indices(Self::NAME, "targets", &self.targets, n)?;
        expect_shape(Self::NAME, "loss", &self.loss, 1, n)?;
        self.scored_lse.map_or(Ok(()), |lse| expect_shape(Self::NAME, "scored_lse", &lse, 1, n))?;
        self.backward.map_or(Ok(()), |b| b.shapes(Self::NAME, (n, d, v)))?;
        self.teacher.map_or(Ok(()), |teacher| teacher.shapes(Self::NAME, (n, v)))
    }
}
