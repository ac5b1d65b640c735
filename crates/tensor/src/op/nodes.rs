//! The topology-aware gate of FasterMoE: few tokens leave the node that has them.

use super::rule::Rule;
use super::{Describe, DropoutMask, TokenRows, Visit, expect_indices, expect_shape, read, write};
use crate::{TensorError, View};

/// `out[i] = logits[t]`, t the token of row i of `here`, where a token that may not choose an expert has [`KeepInNode::CLOSED`] for it.
/// Nodes have equal consecutive parts of the experts, and take turns at `turn` consecutive tokens of the batch, of which `counters` name
/// the first that is here. A token would leave its node if its largest logit is that of an expert of another node. If fewer than `leaving`
/// tokens of a group would leave, nothing is closed to it. Otherwise the `leaving` ones with the largest of these logits keep the best
/// expert of their node and the best of the others, and all other tokens keep the experts of their node (He et al. 2022, FasterMoE). Equal
/// logits: the earlier token, the expert of the smaller number; what is not a number comes last.
///
/// Sharding: logits (m, e), out (n, e), counters whole; n free, m, e whole: a token's row depends on all tokens of its group. Offset: n (`here`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepInNode {
    /// f32 `[M, E]`.
    pub logits: View,
    /// u32 `[1, 6]`, as in [`DropoutMask::counters`]: their element is the number of the first token.
    pub counters: View,
    /// Nodes: a divisor of E.
    pub nodes: usize,
    /// Tokens of a group: a divisor of M.
    pub group: usize,
    /// Tokens after which the next node has its turn: a multiple of `group`, as is the number of the first token.
    pub turn: usize,
    /// Tokens of a group that may leave their node.
    pub leaving: usize,
    /// Tokens of the rows of `out`.
    pub here: TokenRows,
    /// f32 `[rows, E]`.
    pub out: View,
}

impl KeepInNode {
    /// Logit of an expert that a token may not choose: its probability is 0, and unlike an infinity it can be subtracted from itself.
    pub const CLOSED: f32 = f32::MIN;

    /// Experts of the node that has the token of this number of the batch.
    pub fn experts_of(&self, token: u64) -> std::ops::Range<usize> {
        let node = (token / self.turn as u64 % self.nodes as u64) as usize;
        let experts = self.logits.cols / self.nodes;
        node * experts..(node + 1) * experts
    }
}

impl Describe for KeepInNode {
    const NAME: &'static str = "keep_in_node";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "logits", &mut self.logits);
        read(see, Rule::COUNTERS, &mut self.counters);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (m, n) = (rule.whole("m", self.logits.rows), rule.free("n", self.out.rows));
        rule.needs_offset(n);
        let e = rule.whole("e", self.logits.cols);
        let words = rule.whole("words", DropoutMask::WORDS);
        rule.dims("logits", &[m], &[e]);
        rule.dims(Rule::COUNTERS, &[], &[words]);
        rule.dims("out", &[n], &[e]);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (m, e) = (self.logits.rows, self.logits.cols);
        expect_shape(Self::NAME, "out", &self.out, self.out.rows, e)?;
        let wrong = |operand, wanted: String, found: String| {
            Err(TensorError::Shape { op: Self::NAME, operand, wanted, found })
        };
        let divides = |part: usize, of: usize| part > 0 && of.is_multiple_of(part);
        if !divides(self.nodes, e) {
            return wrong("nodes", format!("nodes that divide {e} experts"), self.nodes.to_string());
        }
        if !divides(self.group, m) {
            return wrong("group", format!("tokens that divide {m}"), self.group.to_string());
        }
        if self.turn == 0 || !divides(self.group, self.turn) {
            return wrong(
                "turn",
                format!("a multiple of the {} of a group", self.group),
                self.turn.to_string(),
            );
        }
        expect_indices(Self::NAME, Rule::COUNTERS, &self.counters, DropoutMask::WORDS)?;
        self.here.check(Self::NAME, "here", m, self.out.rows)
    }
}
