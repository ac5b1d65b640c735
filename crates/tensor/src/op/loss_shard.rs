//! The output projection and softmax cross-entropy where the vocabulary is cut over several devices, each of which holds
//! some rows of the projection (Shoeybi et al. 2019, section 3).
//!
//! [`LogitSums`] says what the rows that are here add to each token's log-sum-exp and target logit. Combined over the
//! devices (`lse = log sum_i exp lse_i`, `target = sum_i target_i`), these are the `lse` and `target_logit` of
//! [`LinearCrossEntropyShard`]. No row of logits is ever gathered; the price is that they are made twice.

use super::loss::rule_of_loss;
use super::{
    Describe, LossBackward, Rule, TermReduction, Visit, VocabularyShard, expect_indices, expect_shape, read,
    write,
};
use crate::{TensorError, View};

/// `lse[n] = logsumexp_v(x[n] . weight[v])` over the rows that are here, and
/// `target_logit[n] = x[n] . weight[targets[n] - first]`, or 0 if that row is not here. Both are 0 where the target is
/// [`IGNORED`](super::IGNORED).
///
/// Sharding: x (n, d), weight (v, d), lse, target_logit (n); n free, d whole, v summed with an offset (`tensor_shard`): the
/// terms of lse by log-sum-exp. Ignored targets have 0 in every term, which their reduced lse does not mean anything after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitSums {
    /// `[N, D]`.
    pub x: View,
    /// `[V, D]`: rows of the projection.
    pub weight: View,
    /// Their rows of the whole projection.
    pub tensor_shard: VocabularyShard,
    /// u32 `[1, N]`, each a row of the whole projection or [`IGNORED`](super::IGNORED).
    pub targets: View,
    /// `[1, N]`.
    pub lse: View,
    /// `[1, N]`.
    pub target_logit: View,
}

impl Describe for LogitSums {
    const NAME: &'static str = "logit_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "targets", &mut self.targets);
        write(see, "lse", &mut self.lse);
        write(see, "target_logit", &mut self.target_logit);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.x.rows), rule.whole("d", self.x.cols));
        let v = rule.sum("v", self.weight.rows);
        rule.needs_offset(v);
        rule.dims("x", &[n], &[d]);
        rule.dims("weight", &[v], &[d]);
        for name in ["targets", "lse", "target_logit"] {
            rule.dims(name, &[], &[n]);
        }
        rule.reduce("lse", TermReduction::LogSumExp);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * self.x.len() as f64 * self.weight.rows as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let n = self.x.rows;
        expect_shape(Self::NAME, "weight", &self.weight, self.weight.rows, self.x.cols)?;
        expect_indices(Self::NAME, "targets", &self.targets, n)?;
        expect_shape(Self::NAME, "lse", &self.lse, 1, n)?;
        expect_shape(Self::NAME, "target_logit", &self.target_logit, 1, n)?;
        self.tensor_shard.check(Self::NAME, &self.weight)
    }
}

/// `loss[n] = lse[n] - target_logit[n]`, both of the whole vocabulary, and the gradients of the rows that are here: with
/// `p[v] = exp(x[n] . weight[v] - lse[n])`, `dlogits = factor (p (1 + 2 z_loss lse) - onehot)`, `dweight = dlogits^T x` is
/// complete and `dx = dlogits W` is one term of a sum over the devices. [`IGNORED`](super::IGNORED) targets have loss and
/// gradient 0.
///
/// Sharding: x, dx (n, d), weight, dweight (v, d), loss, scored_lse, factors, lse, target_logit (n); n summed for dweight, d whole,
/// v summed for dx with an offset (`tensor_shard`), while loss is the same everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearCrossEntropyShard {
    /// `[N, D]`.
    pub x: View,
    /// `[V, D]`: rows of the projection.
    pub weight: View,
    /// Their rows of the whole projection.
    pub tensor_shard: VocabularyShard,
    /// u32 `[1, N]`, each a row of the whole projection or [`IGNORED`](super::IGNORED).
    pub targets: View,
    /// `[1, N]`: log-sum-exp of all logits.
    pub lse: View,
    /// `[1, N]`.
    pub target_logit: View,
    /// `[1, N]`.
    pub loss: View,
    /// `[1, N]`, if asked: the lse of rows whose target is scored, 0 elsewhere.
    pub scored_lse: Option<View>,
    /// The gradients, if asked.
    pub backward: Option<LossBackward>,
}

impl Describe for LinearCrossEntropyShard {
    const NAME: &'static str = "linear_cross_entropy_shard";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "weight", &mut self.weight);
        read(see, "targets", &mut self.targets);
        read(see, "lse", &mut self.lse);
        read(see, "target_logit", &mut self.target_logit);
        write(see, "loss", &mut self.loss);
        if let Some(lse) = &mut self.scored_lse {
            write(see, "scored_lse", lse);
        }
        if let Some(b) = &mut self.backward {
            b.visit(see);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule_of_loss(&mut rule, &self.x, self.backward.is_some());
        // Without gradients neither x nor the projection is read.
        let (d, v) = match self.backward {
            Some(_) => (rule.whole("d", self.x.cols), rule.sum("v", self.weight.rows)),
            None => (rule.free("d", self.x.cols), rule.free("v", self.weight.rows)),
        };
        if self.backward.is_some() {
            rule.needs_offset(v);
        }
        rule.dims("x", &[n], &[d]);
        rule.dims("weight", &[v], &[d]);
        for name in ["lse", "target_logit"] {
            rule.dims(name, &[], &[n]);
        }
        rule.dims("dx", &[n], &[d]);
        rule.dims("dweight", &[v], &[d]);
        rule.accumulated("dweight");
        // Made from the complete sums alone.
        for name in ["loss", "scored_lse"] {
            rule.reduce(name, TermReduction::Equal);
        }
        rule
    }
    fn flops(&self) -> f64 {
        if self.backward.is_none() {
            return 0.0;
        }
        6.0 * self.x.len() as f64 * self.weight.rows as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d, v) = (self.x.rows, self.x.cols, self.weight.rows);
        expect_shape(Self::NAME, "weight", &self.weight, v, d)?;
        expect_indices(Self::NAME, "targets", &self.targets, n)?;
        expect_shape(Self::NAME, "lse", &self.lse, 1, n)?;
        expect_shape(Self::NAME, "target_logit", &self.target_logit, 1, n)?;
        expect_shape(Self::NAME, "loss", &self.loss, 1, n)?;
        self.scored_lse.map_or(Ok(()), |lse| expect_shape(Self::NAME, "scored_lse", &lse, 1, n))?;
        self.backward.map_or(Ok(()), |b| b.shapes(Self::NAME, (n, d, v)))?;
        self.tensor_shard.check(Self::NAME, &self.weight)
    }
}
