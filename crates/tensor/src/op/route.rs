//! Gates of mixtures of experts: scores, choices and weights of each token, loads of the experts, and the losses that balance them.

use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};

/// `p = softmax(logits)`; `experts[t]` are the k experts with the largest logits, in falling order, equal ones by number;
/// `weights[t, s] = p[t, experts[t, s]]`, divided by the sum of the k if `renormalise` (Shazeer et al. 2017; Fedus et al. 2021).
///
/// A logit that is not a number comes last. Everything is f32, whatever the type of the activations: rounded logits tie.
///
/// Sharding: logits, probabilities (n, e), experts, weights (n, k), lse (n); n free, e, k whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// `[N, E]`.
    pub logits: View,
    /// `[N, E]`.
    pub probabilities: View,
    /// u32 `[N, K]`.
    pub experts: View,
    /// `[N, K]`.
    pub weights: View,
    /// `[1, N]`, if asked: log-sum-exp of each row of logits.
    pub lse: Option<View>,
    /// Weights of a token sum to 1.
    pub renormalise: bool,
}

impl Describe for Route {
    const NAME: &'static str = "route";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "logits", &mut self.logits);
        write(see, "probabilities", &mut self.probabilities);
        write(see, "experts", &mut self.experts);
        write(see, "weights", &mut self.weights);
        if let Some(lse) = &mut self.lse {
            write(see, "lse", lse);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.free("n", self.logits.rows);
        let (e, k) = (rule.whole("e", self.logits.cols), rule.whole("k", self.experts.cols));
        for name in ["logits", "probabilities"] {
            rule.dims(name, &[n], &[e]);
        }
        for name in ["experts", "weights"] {
            rule.dims(name, &[n], &[k]);
        }
        rule.dims("lse", &[], &[n]);
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * self.logits.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, e, k) = (self.logits.rows, self.logits.cols, self.experts.cols);
        expect_shape(Self::NAME, "probabilities", &self.probabilities, n, e)?;
        expect_shape(Self::NAME, "experts", &self.experts, n, k.clamp(1, e.max(1)))?;
        expect_shape(Self::NAME, "weights", &self.weights, n, k)?;
        self.lse.map_or(Ok(()), |lse| expect_shape(Self::NAME, "lse", &lse, 1, n))
    }
}

/// Tokens of whole sequences, of which a device has some, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSpan {
    /// T, tokens of a sequence.
    pub sequence: usize,
    /// Number of the first token that is here among those of all sequences.
    pub first: usize,
}

impl TokenSpan {
    /// All tokens of sequences of `sequence` tokens.
    pub fn whole(sequence: usize) -> TokenSpan {
        TokenSpan { sequence, first: 0 }
    }

    /// Number of the sequence of token `token` here.
    pub fn sequence_of(&self, token: usize) -> usize {
        (self.first + token) / self.sequence.max(1)
    }

    /// Those of `here` tokens that belong to a sequence.
    pub fn tokens_of(&self, sequence: usize, here: usize) -> std::ops::Range<usize> {
        let local = |token: usize| token.saturating_sub(self.first).min(here);
        local(sequence * self.sequence)..local((sequence + 1) * self.sequence)
    }

    /// Errors unless there is a row of counts for the sequence of each of `here` tokens.
    fn expect_counts(
        &self,
        op: &'static str,
        counts: &View,
        (here, experts): (usize, usize),
    ) -> Result<(), TensorError> {
        let wanted = (self.first + here).div_ceil(self.sequence.max(1));
        expect_shape(op, "counts", counts, counts.rows.max(wanted), experts)
    }
}

/// A loss of a router whose gradient [`RouteBackward`] adds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BalanceTerm {
    /// u32 `[B, E]`, as in [`BalanceLoss`].
    pub counts: View,
    /// `[1, 2]`: weight of the loss, and its weight times the factor of a token.
    pub weight: View,
}

/// Gradient of [`Route`]'s logits from that of its weights, with p the probabilities and w the weights:
/// `dp[e_s] += dw[s]`, or `(dw[s] - sum_j dw[j] w[j]) / sum_j p[e_j]` of renormalised weights; with a balance loss
/// `dp[i] += factor E counts[b, i] / (k T)`; `dlogits = p (dp - <dp, p>)`; with a z-loss `dlogits += 2 factor lse p`
/// (Zoph et al. 2022, ST-MoE).
///
/// Sharding: probabilities, dlogits (n, e), experts, weights, dweights (n, k), lse (n), counts (b, e); n free, b, e, k whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteBackward {
    /// `[N, E]`.
    pub probabilities: View,
    /// u32 `[N, K]`.
    pub experts: View,
    /// `[N, K]`.
    pub weights: View,
    /// `[N, K]`.
    pub dweights: View,
    /// The balance loss, if there is one.
    pub balance: Option<BalanceTerm>,
    /// The z-loss, if there is one: `[1, N]` log-sum-exps, and its weight as in [`BalanceTerm::weight`].
    pub z_loss: Option<(View, View)>,
    /// Weights of a token sum to 1, as in [`Route`].
    pub renormalise: bool,
    /// Which tokens of which sequences are here.
    pub span: TokenSpan,
    /// `[N, E]`.
    pub dlogits: View,
}

impl Describe for RouteBackward {
    const NAME: &'static str = "route_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "probabilities", &mut self.probabilities);
        read(see, "experts", &mut self.experts);
        read(see, "weights", &mut self.weights);
        read(see, "dweights", &mut self.dweights);
        if let Some(balance) = &mut self.balance {
            read(see, "counts", &mut balance.counts);
            read(see, "balance.weight", &mut balance.weight);
        }
        if let Some((lse, weight)) = &mut self.z_loss {
            read(see, "lse", lse);
            read(see, "z_loss.weight", weight);
        }
        write(see, "dlogits", &mut self.dlogits);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.free("n", self.probabilities.rows);
        if self.balance.is_some() {
            rule.needs_offset(n);
        }
        let (e, k) = (rule.whole("e", self.probabilities.cols), rule.whole("k", self.experts.cols));
        for name in ["probabilities", "dlogits"] {
            rule.dims(name, &[n], &[e]);
        }
        for name in ["experts", "weights", "dweights"] {
            rule.dims(name, &[n], &[k]);
        }
        if let Some(balance) = &self.balance {
            let b = rule.whole("b", balance.counts.rows);
            rule.dims("counts", &[b], &[e]);
        }
        rule.dims("lse", &[], &[n]);
        for name in ["balance.weight", "z_loss.weight"] {
            if rule.operand(name).is_some() {
                let all = rule.whole(name, 2);
                rule.dims(name, &[], &[all]);
            }
        }
        rule
    }
    fn flops(&self) -> f64 {
        4.0 * self.dlogits.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, e, k) = (self.probabilities.rows, self.probabilities.cols, self.experts.cols);
        for (name, view) in
            [("experts", &self.experts), ("weights", &self.weights), ("dweights", &self.dweights)]
        {
            expect_shape(Self::NAME, name, view, n, k)?;
        }
        if let Some(BalanceTerm { counts, weight }) = &self.balance {
            self.span.expect_counts(Self::NAME, counts, (n, e))?;
            expect_shape(Self::NAME, "balance.weight", weight, 1, 2)?;
        }
        if let Some((lse, weight)) = &self.z_loss {
            expect_shape(Self::NAME, "lse", lse, 1, n)?;
            expect_shape(Self::NAME, "z_loss.weight", weight, 1, 2)?;
        }
        expect_shape(Self::NAME, "dlogits", &self.dlogits, n, e)
    }
}

/// `counts[b, i]`: choices of expert i by the tokens of sequence b, before any is dropped.
///
/// Sharding: experts (n, k), counts (b, e); n summed, k, b, e whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CountChoices {
    /// u32 `[N, K]`, N = B T.
    pub experts: View,
    /// Which tokens of which sequences are here.
    pub span: TokenSpan,
    /// u32 `[B, E]`.
    pub counts: View,
}

impl Describe for CountChoices {
    const NAME: &'static str = "count_choices";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "experts", &mut self.experts);
        write(see, "counts", &mut self.counts);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.sum("n", self.experts.rows);
        rule.needs_offset(n);
        let (k, e) = (rule.whole("k", self.experts.cols), rule.whole("e", self.counts.cols));
        let b = rule.whole("b", self.counts.rows);
        rule.dims("experts", &[n], &[k]);
        rule.dims("counts", &[b], &[e]);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        self.span.expect_counts(Self::NAME, &self.counts, (self.experts.rows, self.counts.cols))
    }
}

/// The balance loss of each sequence times its tokens, `value[b] = E / (k T) sum_i counts[b, i] sum_t p[t, i]`: T at perfect balance
/// (Shazeer et al. 2017; Lepikhin et al. 2020; of one choice Fedus et al. 2021, equation 4).
///
/// Sharding: probabilities (n, e), counts (b, e), value (b); n summed, b, e whole; linear in the probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BalanceLoss {
    /// `[N, E]`, N = B T.
    pub probabilities: View,
    /// u32 `[B, E]`, of whole sequences.
    pub counts: View,
    /// k, choices of a token.
    pub choices: usize,
    /// Which tokens of which sequences are here.
    pub span: TokenSpan,
    /// `[1, B]`.
    pub value: View,
}

impl Describe for BalanceLoss {
    const NAME: &'static str = "balance_loss";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "probabilities", &mut self.probabilities);
        read(see, "counts", &mut self.counts);
        write(see, "value", &mut self.value);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.sum("n", self.probabilities.rows);
        rule.needs_offset(n);
        let (b, e) = (rule.whole("b", self.counts.rows), rule.whole("e", self.counts.cols));
        rule.dims("probabilities", &[n], &[e]);
        rule.dims("counts", &[b], &[e]);
        rule.dims("value", &[], &[b]);
        rule.linear("probabilities", super::rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        self.probabilities.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, e) = (self.probabilities.rows, self.counts.cols);
        self.span.expect_counts(Self::NAME, &self.counts, (n, e))?;
        expect_shape(Self::NAME, "probabilities", &self.probabilities, n, e)?;
        expect_shape(Self::NAME, "value", &self.value, 1, self.counts.rows)
    }
}
