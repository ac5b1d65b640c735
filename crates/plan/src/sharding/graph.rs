//! Cost graphs: decisions with a few options each, prices of options, and prices of pairs of options.

use std::collections::BTreeMap;

/// Price of an option.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Price {
    /// Seconds; infinite for an option that cannot be taken.
    pub seconds: f64,
    /// Bytes of memory.
    pub memory: f64,
}

impl Price {
    /// A weighted sum; infinite for an option that cannot be taken, whatever the weights.
    pub(super) fn weighted(self, weights: Weights) -> f64 {
        match self.seconds.is_infinite() {
            true => f64::INFINITY,
            false => weights.seconds * self.seconds + weights.memory * self.memory,
        }
    }
}

/// Weights of what is minimised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of a second.
    pub seconds: f64,
    /// Of a byte.
    pub memory: f64,
}

impl Weights {
    /// Seconds alone.
    pub const SECONDS: Weights = Weights { seconds: 1.0, memory: 0.0 };
}

/// A pair of decisions whose options have a price together.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// The decisions, the lower number first.
    pub nodes: [usize; 2],
    /// Seconds, by option of the first decision and then of the second.
    pub seconds: Vec<f64>,
}

/// Decisions, of each of which one option is to be taken, and what the options cost.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostGraph {
    /// By decision: the price of each option.
    pub nodes: Vec<Vec<Price>>,
    /// At most one for each pair.
    edges: Vec<Edge>,
}

/// One option of each decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// Price of all decisions and pairs.
    pub price: Price,
    /// By decision.
    pub options: Vec<usize>,
}

/// A graph that is too entangled to be solved by elimination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the graph of {nodes} decisions is too entangled: a table over {scope} of them at once would have more than {most} entries; \
     wanted a graph of lower treewidth, as chains of blocks have"
)]
pub struct Entangled {
    /// Decisions of the graph.
    pub nodes: usize,
    /// Decisions of the table.
    pub scope: usize,
    /// Entries that a table may have.
    pub most: usize,
}

impl CostGraph {
    /// A decision with these options; returns its number.
    pub fn add(&mut self, options: Vec<Price>) -> usize {
        self.nodes.push(options);
        self.nodes.len() - 1
    }

    /// Adds seconds for pairs of options of two decisions, by option of `a` and then of `b`.
    ///
    /// # Panics
    /// If `a` is `b`, or there is not one number for each pair.
    pub fn join(&mut self, a: usize, b: usize, seconds: &[f64]) {
        let [rows, columns] = [a, b].map(|node| self.nodes[node].len());
        assert!(a != b && seconds.len() == rows * columns, "one number for each pair of options");
        let ordered: Vec<f64> = match a < b {
            true => seconds.to_vec(),
            false => (0..rows * columns).map(|at| seconds[at % rows * columns + at / rows]).collect(),
        };
        let nodes = [a.min(b), a.max(b)];
        match self.edges.iter_mut().find(|edge| edge.nodes == nodes) {
            Some(edge) => edge.seconds.iter_mut().zip(ordered).for_each(|(sum, more)| *sum += more),
            None => self.edges.push(Edge { nodes, seconds: ordered }),
        }
    }

    /// The pairs that have a price.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Price of one option of each decision.
    pub fn price(&self, options: &[usize]) -> Price {
        let nodes = self.nodes.iter().zip(options).map(|(prices, option)| prices[*option]);
        let mut sum = nodes.fold(Price::default(), |sum, price| Price {
            seconds: sum.seconds + price.seconds,
            memory: sum.memory + price.memory,
        });
        for Edge { nodes: [a, b], seconds } in &self.edges {
            sum.seconds += seconds[options[*a] * self.nodes[*b].len() + options[*b]];
        }
        sum
    }

    /// The decisions but `kept`, in an order of elimination: always one that has fewest neighbours (of equal ones the lowest number),
    /// whose neighbours are neighbours of each other from then on.
    pub(crate) fn order(&self, kept: Option<usize>) -> Vec<usize> {
        let mut neighbours: BTreeMap<usize, Vec<usize>> =
            (0..self.nodes.len()).map(|node| (node, Vec::new())).collect();
        for Edge { nodes: [a, b], .. } in &self.edges {
            neighbours.entry(*a).or_default().push(*b);
            neighbours.entry(*b).or_default().push(*a);
        }
        let mut order = Vec::new();
        let next = |of: &BTreeMap<usize, Vec<usize>>| {
            let free = of.iter().filter(|(node, _)| Some(**node) != kept);
            free.min_by_key(|(_, others)| others.len()).map(|(node, _)| *node)
        };
        while let Some(node) = next(&neighbours) {
            let others = neighbours.remove(&node).unwrap_or_default();
            for a in &others {
                let of = neighbours.entry(*a).or_default();
                of.retain(|b| *b != node);
                let new: Vec<usize> = others.iter().copied().filter(|b| b != a && !of.contains(b)).collect();
                of.extend(new);
            }
            order.push(node);
        }
        order
    }
}
