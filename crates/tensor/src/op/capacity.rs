//! Capacities of experts: which choices of tokens are kept where an expert takes so many of a group of tokens at most.

use super::rule::Rule;
use super::{Describe, DropoutMask, Positions, Visit, expect_indices, expect_shape, read, write};
use crate::{TensorError, View};

/// Uniform numbers in [0, 1), one for each element: those of the stream and the element that `counters` name.
///
/// Sharding: whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomNumbers {
    /// u32 `[1, 6]`, as in [`DropoutMask::counters`].
    pub counters: View,
    /// f32 `[r, c]`.
    pub out: View,
}

impl Describe for RandomNumbers {
    const NAME: &'static str = "random_numbers";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, Rule::COUNTERS, &mut self.counters);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, c) = (rule.whole("r", self.out.rows), rule.whole("c", self.out.cols));
        let words = rule.whole("words", DropoutMask::WORDS);
        rule.dims(Rule::COUNTERS, &[], &[words]);
        rule.dims("out", &[r], &[c]);
        rule
    }
    fn flops(&self) -> f64 {
        self.out.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_indices(Self::NAME, Rule::COUNTERS, &self.counters, DropoutMask::WORDS)
    }
}

/// Which choices of an expert are dropped where there are more than its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropRule {
    /// The last in the order of tokens, of a token in the order of its choices. Causal within a group.
    Position,
    /// The last in the order of choices first, of tokens then: all first choices come before all second ones (Lepikhin et al. 2020,
    /// GShard, algorithm 1).
    Choice,
    /// The smallest scores, of equal ones the later tokens.
    Score,
}

/// A second choice is sent with probability `2 w`, w its weight: if `2 weights[t, 1] > random[t]` (Lepikhin et al. 2020, GShard). It
/// takes its place in the order of choices in any case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomSecond {
    /// `[N, K]`, K at least 2.
    pub weights: View,
    /// `[N, 1]`.
    pub random: View,
}

/// Tokens that a device has of all: row i is token `positions.at(skip + i, count)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRows {
    /// Tokens of the devices that share these.
    pub positions: Positions,
    /// Their number.
    pub count: usize,
    /// Tokens before the ones of this device.
    pub skip: usize,
}

impl TokenRows {
    /// All of `count` tokens.
    pub fn whole(count: usize) -> TokenRows {
        TokenRows { positions: Positions::from(0), count, skip: 0 }
    }

    /// Row of a token, if it is one of the `rows` here.
    #[inline]
    pub fn row_of(&self, token: usize, rows: usize) -> Option<usize> {
        let number = self.positions.before(token, self.count);
        let row = number.checked_sub(self.skip).filter(|row| *row < rows)?;
        (number < self.count && self.positions.at(number, self.count) == token).then_some(row)
    }

    /// Errors unless `rows` rows are some of `tokens` tokens.
    pub(super) fn check(
        &self,
        op: &'static str,
        operand: &'static str,
        tokens: usize,
        rows: usize,
    ) -> Result<(), TensorError> {
        let TokenRows { positions, count, skip } = *self;
        let wrong = |wanted, found| Err(TensorError::Shape { op, operand, wanted, found });
        if let Some(wanted) = positions.problem(count) {
            return wrong(wanted, format!("{positions:?}"));
        }
        let last = count.checked_sub(1).map_or(0, |last| positions.at(last, count) + 1);
        if last > tokens || skip.checked_add(rows).is_none_or(|end| end > count) {
            let found =
                format!("rows {skip} to {} of {count} tokens up to token {last}", skip.saturating_add(rows));
            return wrong(format!("some of {tokens} tokens, with a row each"), found);
        }
        Ok(())
    }
}

/// `kept[i, s] = 1` where expert `experts[t, s]` takes the choice of token t, row i of `here`, of each group of consecutive tokens at most
/// `capacity`; 0 elsewhere.
///
/// Sharding: experts, weights (m, k), scores (m, e), random (m), kept (n, k); n free, the others whole: a choice's place depends on all
/// tokens of its group. Offset: n (`here`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepChoices {
    /// u32 `[N, K]`, each below `count`.
    pub experts: View,
    /// `[N, E]`, which the rule by scores reads.
    pub scores: Option<View>,
    /// Second choices that are sent at random.
    pub second: Option<RandomSecond>,
    /// E.
    pub count: usize,
    /// Choices of a group that an expert takes.
    pub capacity: usize,
    /// Tokens of a group; divides N.
    pub group: usize,
    /// Rule by which choices are dropped.
    pub drop: DropRule,
    /// Tokens of the rows of `kept`.
    pub here: TokenRows,
    /// u32 `[rows, K]`.
    pub kept: View,
}

impl Describe for KeepChoices {
    const NAME: &'static str = "keep_choices";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "experts", &mut self.experts);
        if let Some(scores) = &mut self.scores {
            read(see, "scores", scores);
        }
        if let Some(second) = &mut self.second {
            read(see, "weights", &mut second.weights);
            read(see, "random", &mut second.random);
        }
        write(see, "kept", &mut self.kept);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (m, n) = (rule.whole("m", self.experts.rows), rule.free("n", self.kept.rows));
        rule.needs_offset(n);
        let k = rule.whole("k", self.experts.cols);
        rule.dims("experts", &[m], &[k]);
        rule.dims("weights", &[m], &[k]);
        rule.dims("kept", &[n], &[k]);
        if self.scores.is_some() {
            let e = rule.whole("e", self.count);
            rule.dims("scores", &[m], &[e]);
        }
        rule.dims("random", &[m], &[]);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, k) = (self.experts.rows, self.experts.cols);
        expect_shape(Self::NAME, "kept", &self.kept, self.kept.rows, k)?;
        if let Some(RandomSecond { weights, random }) = &self.second {
            expect_shape(Self::NAME, "weights", weights, n, k.max(2))?;
            expect_shape(Self::NAME, "random", random, n, 1)?;
        }
        let wrong = |operand, wanted: &str, found: String| {
            Err(TensorError::Shape { op: Self::NAME, operand, wanted: wanted.into(), found })
        };
        if self.group == 0 || !n.is_multiple_of(self.group) {
            return wrong(
                "group",
                "tokens that divide the rows of experts",
                format!("{} of {n}", self.group),
            );
        }
        self.here.check(Self::NAME, "here", n, self.kept.rows)?;
        match (&self.scores, self.drop) {
            (Some(scores), _) => expect_shape(Self::NAME, "scores", scores, n, self.count),
            (None, DropRule::Score) => wrong("scores", "the scores that the rule reads", "none".into()),
            (None, _) => Ok(()),
        }
    }
}
