//! The loop of an operator that an axis shards, as its sharding rule ([`bessemer_tensor::op::Op::rule`]) names it.

use crate::rank::AxisRole;
use bessemer_tensor::op::{FactorKind, OperandRule, Rule};

/// The loop of an operator that is sharded: factors of its rule, all of which one dim of an operand names.
pub type Loop = Vec<usize>;

/// The loop that a dim of an operand is sharded by, if it is: heads for columns of heads, all of its factors otherwise, but for
/// those of one iteration before the last.
pub fn sharded_loop(rule: &Rule, operand: &OperandRule, dim: usize, role: AxisRole) -> Loop {
    let factors = if dim == 0 { &operand.rows } else { &operand.cols };
    let named = |name: &str| factors.iter().copied().find(|f| rule.factors[*f].name == name);
    // Sequences come before their positions and heads.
    if let Some(factor) = named("b").filter(|_| role.by_sequences()) {
        return vec![factor];
    }
    // Groups of heads that share keys come before the heads of a group, blocks with a scale before the elements of a block, tokens before
    // their choices; the outputs of each matrix of a stack are shared by themselves.
    let first = || [Rule::BLOCK, Rule::TOKENS, Rule::OUTPUTS].into_iter().find_map(named);
    match named("g").or_else(|| named("h")).or_else(first) {
        Some(factor) => vec![factor],
        None => {
            let counts = |f: &usize| rule.factors[*f].size != 1 || Some(f) == factors.last();
            factors.iter().copied().filter(counts).collect()
        }
    }
}

/// Returns the obstacle to sharding an operator along a loop: the name of a factor that it needs whole, or one of several whose offset
/// an operator needs; consecutive elements of all of them are no part of one.
pub fn unshardable(rule: &Rule, along: &Loop) -> Option<&'static str> {
    let problem = |f: &&usize| {
        let factor = rule.factors[**f];
        factor.kind == FactorKind::Whole || (along.len() > 1 && factor.offset)
    };
    along.iter().find(problem).map(|f| rule.factors[*f].name)
}

/// The dim of an operand that has the loop.
pub fn dim_of(rule: &Rule, operand: &OperandRule, sharded: &Loop, role: AxisRole) -> Option<usize> {
    (0..2).find(|dim| !sharded.is_empty() && sharded_loop(rule, operand, *dim, role) == *sharded)
}
