//! Gates of mixtures of experts: scores, choices and weights of each token, loads of the experts, and the losses that balance them.

use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};
use bessemer_units::DType;

/// How logits become scores of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// A token's scores are probabilities: they sum to 1.
    Softmax,
    /// Each expert has a score of its own in (0, 1) (DeepSeek-V3, arXiv 2412.19437, equation 15).
    Sigmoid,
}

/// Choices and weights from scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// Scores.
    pub score: Score,
    /// Weights of a token are divided by their sum.
    pub renormalise: bool,
    /// Equal groups of experts, at most [`Gate::GROUPS`]; 1: no groups.
    pub groups: usize,
    /// Groups in which a token may choose: those with the largest sums of their two largest keys, equal ones by number.
    pub kept: usize,
    /// Factor on the weights.
    pub scale: f32,
}

impl Gate {
    /// Most groups.
    pub const GROUPS: usize = 64;

    /// The gate of softmax probabilities without groups.
    pub fn softmax(renormalise: bool) -> Gate {
        Gate { score: Score::Softmax, renormalise, groups: 1, kept: 1, scale: 1.0 }
    }

    /// Errors unless k of `experts` experts can be chosen.
    fn check(&self, op: &'static str, experts: usize, choices: usize) -> Result<(), TensorError> {
        let Gate { groups, kept, .. } = *self;
        let divides = (1..=Gate::GROUPS).contains(&groups) && experts.is_multiple_of(groups);
        if divides && (1..=groups).contains(&kept) && choices <= kept * (experts / groups) {
            return Ok(());
        }
        let wanted =
            format!("groups that divide {experts} experts, of which the kept have {choices} experts or more");
        Err(TensorError::Shape { op, operand: "groups", wanted, found: format!("{kept} of {groups} groups") })
    }
}

/// `p = softmax(logits)` or `sigmoid(logits)`; `experts[t]` are the k experts with the largest keys, in falling order, equal ones by
/// number; `weights[t, s] = scale p[t, experts[t, s]]`, p divided by the sum of the k if the gate renormalises (Shazeer et al. 2017; Fedus
/// et al. 2021). Keys are scores, or scores and biases; of groups of experts only some may be chosen ([`Gate::kept`]).
///
/// A key that is not a number comes last. Everything is f32, whatever the type of the activations: rounded logits tie.
///
/// Sharding: logits, probabilities (n, e), experts, preferred, weights (n, k), bias (e), lse (n); n free, e, k whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// `[N, E]`.
    pub logits: View,
    /// f32 `[1, E]`, if there is one: what the keys have besides scores. Weights do not contain it.
    pub bias: Option<View>,
    /// `[N, E]`: the scores.
    pub probabilities: View,
    /// u32 `[N, K]`.
    pub experts: View,
    /// u32 `[N, K]`, if asked: the choices by scores alone, without biases and groups.
    pub preferred: Option<View>,
    /// `[N, K]`.
    pub weights: View,
    /// `[1, N]`, if asked: log-sum-exp of each row of logits.
    pub lse: Option<View>,
    /// Scores, choices and weights.
    pub gate: Gate,
}

impl Describe for Route {
    const NAME: &'static str = "route";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "logits", &mut self.logits);
        if let Some(bias) = &mut self.bias {
            read(see, "bias", bias);
        }
        write(see, "probabilities", &mut self.probabilities);
        write(see, "experts", &mut self.experts);
        if let Some(preferred) = &mut self.preferred {
            write(see, "preferred", preferred);
        }
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
        for name in ["experts", "preferred", "weights"] {
            rule.dims(name, &[n], &[k]);
        }
        rule.dims("bias", &[], &[e]);
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
        self.gate.check(Self::NAME, e, k)?;
        for (name, view, rows, cols) in [("bias", self.bias, 1, e), ("preferred", self.preferred, n, k)] {
            view.map_or(Ok(()), |view| expect_shape(Self::NAME, name, &view, rows, cols))?;
        }
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

    /// Tokens among `here` that belong to a sequence.
    pub fn tokens_of(&self, sequence: usize, here: usize) -> std::ops::Range<usize> {
        let local = |token: usize| token.saturating_sub(self.first).min(here);
        local(sequence * self.sequence)..local((sequence + 1) * self.sequence)
    }

    /// Errors unless there is a row of counts for the sequence of each of `here` tokens, or one of loads.
    fn expect_counts(
        &self,
        op: &'static str,
        counts: &View,
        (here, experts): (usize, usize),
    ) -> Result<(), TensorError> {
        let wanted = (self.first + here).div_ceil(self.sequence.max(1));
        let rows = if by_sequence(counts) { counts.rows.max(wanted) } else { 1 };
        expect_shape(op, loads_name(counts), counts, rows, experts)
    }
}

/// A loss of a router whose gradient [`RouteBackward`] adds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BalanceTerm {
    /// Counts, as [`BalanceLoss`] reads them.
    pub counts: View,
    /// `[1, 2]`: weight of the loss, and its weight times the factor of a token.
    pub weight: View,
}

/// Gradient of [`Route`]'s logits from that of its weights, with p the scores and w the weights:
/// `dp[e_s] += scale dw[s]`, or `(scale dw[s] - sum_j dw[j] w[j]) / sum_j p[e_j]` of renormalised weights; with a balance loss
/// `dq[i] += factor L[b, i]`, q the scores divided by their sum and L the loads of [`BalanceLoss`]; `dlogits = p (dp - <dp, p>)` of a
/// softmax, `dlogits = dp p (1 - p)` of a sigmoid; with a z-loss, of a softmax, `dlogits += 2 factor lse p` (Zoph et al. 2022, ST-MoE).
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
    /// Gate, as [`Route`] has it.
    pub gate: Gate,
    /// Tokens that are here, and their sequences.
    pub span: TokenSpan,
    /// `[N, E]`.
    pub dlogits: View,
}

impl BalanceTerm {
    /// Name of the operand: counts, or loads.
    fn name(&self) -> &'static str {
        loads_name(&self.counts)
    }
}

/// Name of an operand that holds counts of choices, or loads.
fn loads_name(counts: &View) -> &'static str {
    if by_sequence(counts) { "counts" } else { "loads" }
}

/// Counts of each sequence, of which a token has its own; loads are the same for all tokens.
fn by_sequence(counts: &View) -> bool {
    counts.dtype() == DType::U32
}

impl Describe for RouteBackward {
    const NAME: &'static str = "route_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "probabilities", &mut self.probabilities);
        read(see, "experts", &mut self.experts);
        read(see, "weights", &mut self.weights);
        read(see, "dweights", &mut self.dweights);
        if let Some(balance) = &mut self.balance {
            read(see, balance.name(), &mut balance.counts);
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
        if self.balance.is_some_and(|balance| by_sequence(&balance.counts)) {
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
            rule.dims(balance.name(), &[b], &[e]);
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
        self.gate.check(Self::NAME, e, k)?;
        if let (Score::Sigmoid, Some((lse, _))) = (self.gate.score, &self.z_loss) {
            let found = format!("[{}, {}]", lse.rows, lse.cols);
            let wanted = "no operand, because a gate of sigmoids has no z-loss".into();
            return Err(TensorError::Shape { op: Self::NAME, operand: "lse", wanted, found });
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
    /// Tokens that are here, and their sequences.
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

/// The balance loss of each sequence times its tokens, `value[b] = sum_i L[b, i] sum_t q[t, i]`: T at perfect balance. L are loads as
/// multiples of the mean load, `E counts[b, i] / (k T)`, q the scores of a token, divided by their sum if `normalise` (Shazeer et al. 2017;
/// Lepikhin et al. 2020; of one choice Fedus et al. 2021, equation 4; of sigmoids DeepSeek-V3, arXiv 2412.19437, equations 17 to 20).
///
/// Sharding: probabilities (n, e), counts (b, e), value (b); n summed, b, e whole; linear in the probabilities, unless they are
/// normalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BalanceLoss {
    /// `[N, E]`, N = B T.
    pub probabilities: View,
    /// u32 `[B, E]`, of whole sequences; or f32: L.
    pub counts: View,
    /// k, choices of a token.
    pub choices: usize,
    /// Scores are divided by their sum over the experts.
    pub normalise: bool,
    /// Tokens that are here, and their sequences.
    pub span: TokenSpan,
    /// `[1, B]`.
    pub value: View,
}

impl Describe for BalanceLoss {
    const NAME: &'static str = "balance_loss";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "probabilities", &mut self.probabilities);
        read(see, loads_name(&self.counts), &mut self.counts);
        write(see, "value", &mut self.value);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let n = rule.sum("n", self.probabilities.rows);
        if by_sequence(&self.counts) {
            rule.needs_offset(n);
        }
        let (b, e) = (rule.whole("b", self.counts.rows), rule.whole("e", self.counts.cols));
        rule.dims("probabilities", &[n], &[e]);
        rule.dims(loads_name(&self.counts), &[b], &[e]);
        rule.dims("value", &[], &[b]);
        if !self.normalise {
            rule.linear("probabilities", super::rule::Linear::Alone);
        }
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
