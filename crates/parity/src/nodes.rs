//! Experts that the topology-aware gate closes to tokens, recorded on one rank, and how close these decisions were.

use bessemer_tensor::op::KeepInNode;
use std::ops::Range;

/// Experts that are closed to the tokens of a layer in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeRoutes {
    /// `[N, E]`.
    pub(crate) closed: Vec<bool>,
    /// `[N]`: the smallest difference of logits by which a token's experts are open or closed.
    pub(crate) margins: Vec<f64>,
}

/// The best expert of these and its logit; of equal ones the first.
fn best(logits: &[f32], experts: impl Iterator<Item = usize>) -> Option<f64> {
    experts.map(|expert| f64::from(logits[expert])).reduce(f64::max)
}

impl NodeRoutes {
    /// Of the operator's `logits` and `out`, both `[N, E]`; `first` is the number of the first token.
    pub(crate) fn of(op: &KeepInNode, first: u64, logits: &[f32], out: &[f32]) -> NodeRoutes {
        let experts = op.logits.cols;
        let mut margins = Vec::with_capacity(op.logits.rows);
        for (number, group) in logits.chunks(op.group * experts).enumerate() {
            let node = op.experts_of(first + (number * op.group) as u64);
            margins.extend(group_margins(group, experts, &node, op.leaving));
        }
        NodeRoutes { closed: out.iter().map(|logit| *logit == KeepInNode::CLOSED).collect(), margins }
    }
}

/// A token leaves by its best expert inside the node and the best one outside, and by its place among those that would leave.
fn group_margins(logits: &[f32], experts: usize, node: &Range<usize>, leaving: usize) -> Vec<f64> {
    let inside = |row: &[f32]| best(row, node.clone()).unwrap_or(f64::NEG_INFINITY);
    let outside =
        |row: &[f32]| best(row, (0..experts).filter(|e| !node.contains(e))).unwrap_or(f64::NEG_INFINITY);
    let gaps: Vec<f64> = logits.chunks(experts).map(|row| outside(row) - inside(row)).collect();
    let mut would: Vec<f64> = logits
        .chunks(experts)
        .map(outside)
        .zip(&gaps)
        .filter(|(_, gap)| **gap > 0.0)
        .map(|(top, _)| top)
        .collect();
    would.sort_by(|a, b| b.total_cmp(a));
    let edge = leaving.checked_sub(1).and_then(|last| Some((*would.get(last)?, *would.get(leaving)?)));
    let of = |(row, gap): (&[f32], &f64)| {
        let (top, sides) = (outside(row), gap.abs());
        match edge {
            // The distance from the token on the other side of the edge.
            Some((last, next)) if *gap > 0.0 => sides.min(if top >= last { top - next } else { last - top }),
            _ => sides,
        }
    };
    logits.chunks(experts).zip(&gaps).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two experts; the tokens are of the first one.
    #[test]
    fn a_margin_is_that_of_the_sides_or_of_the_edge() {
        let logits = [
            [0.5, 0.0, 0.1, 0.0], // stays
            [0.1, 0.0, 0.9, 0.0], // leaves
            [0.1, 0.0, 0.0, 0.7], // leaves, the last that may
            [0.1, 0.0, 0.0, 0.4], // would leave
        ];
        let margins = |leaving| group_margins(&logits.concat(), 4, &(0..2), leaving);
        let near = |found: Vec<f64>, wanted: [f64; 4]| {
            assert!(
                found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6),
                "{found:?}, wanted {wanted:?}"
            );
        };
        near(margins(2), [0.4, 0.5, 0.3, 0.3]);
        // As many as may leave: only sides decide.
        near(margins(3), [0.4, 0.8, 0.6, 0.3]);
        near(margins(0), [0.4, 0.8, 0.6, 0.3]);
    }
}
