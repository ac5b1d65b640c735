//! Exact minima of cost graphs without a limit of memory, by variable elimination.
//!
//! A decision is removed: its neighbours get a table of the least that it costs for each of their options, and which of its own options
//! that is (Bertele and Brioschi 1972, Nonserial Dynamic Programming). At the end the options are read off backwards. Tables are as large as
//! the options of the neighbours multiplied; a transformer's residual blocks have two neighbours at a time.

use super::graph::{CostGraph, Edge, Entangled, Price, Solution, Weights};

/// Entries of the largest table.
pub(super) const MOST_ENTRIES: usize = 1 << 24;

/// A table over options of some decisions, the last of which varies fastest.
#[derive(Debug, Clone)]
pub(super) struct Factor<T> {
    pub(super) scope: Vec<usize>,
    pub(super) table: Vec<T>,
}

/// Walks through the options of some decisions, and finds what factors say about them.
pub(super) struct Walk {
    /// The decisions, the last of which varies fastest.
    pub(super) scope: Vec<usize>,
    sizes: Vec<usize>,
    at: Vec<usize>,
    /// By factor: entries from one option of a decision of the scope to the next.
    strides: Vec<Vec<usize>>,
    /// By factor: entries from one option of the removed decision to the next.
    pub(super) inner: Vec<usize>,
    /// By factor: the entry of the first option of the removed decision.
    pub(super) base: Vec<usize>,
}

impl Walk {
    /// Over the decisions of the factors but `removed`.
    pub(super) fn new<T>(
        graph: &CostGraph,
        factors: &[Factor<T>],
        removed: Option<usize>,
    ) -> Result<Walk, Entangled> {
        let mut scope: Vec<usize> = factors.iter().flat_map(|f| f.scope.iter().copied()).collect();
        scope.sort_unstable();
        scope.dedup();
        scope.retain(|node| Some(*node) != removed);
        let sizes: Vec<usize> = scope.iter().map(|node| graph.nodes[*node].len()).collect();
        let entries = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        if entries.is_none_or(|entries| entries > MOST_ENTRIES) {
            return Err(Entangled { nodes: graph.nodes.len(), scope: scope.len(), most: MOST_ENTRIES });
        }
        let stride = |factor: &Factor<T>, node: usize| {
            let after = factor.scope.iter().skip_while(|other| **other != node).skip(1);
            match factor.scope.contains(&node) {
                true => after.map(|other| graph.nodes[*other].len()).product(),
                false => 0,
            }
        };
        let strides = factors.iter().map(|f| scope.iter().map(|node| stride(f, *node)).collect()).collect();
        let inner = factors.iter().map(|f| removed.map_or(0, |node| stride(f, node))).collect();
        let base = vec![0; factors.len()];
        Ok(Walk { at: vec![0; scope.len()], scope, sizes, strides, inner, base })
    }

    /// Entries of the table over the scope.
    pub(super) fn entries(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Goes on to the next options.
    pub(super) fn advance(&mut self) {
        for dim in (0..self.scope.len()).rev() {
            self.at[dim] += 1;
            let step = |base: &mut usize, stride: usize| *base += stride;
            self.base.iter_mut().zip(&self.strides).for_each(|(base, of)| step(base, of[dim]));
            if self.at[dim] < self.sizes[dim] {
                return;
            }
            let back = |base: &mut usize, stride: usize| *base -= stride * self.sizes[dim];
            self.base.iter_mut().zip(&self.strides).for_each(|(base, of)| back(base, of[dim]));
            self.at[dim] = 0;
        }
    }
}

/// Takes the factors that are about a decision out of the list.
pub(super) fn take<T>(factors: &mut Vec<Factor<T>>, node: usize) -> Vec<Factor<T>> {
    factors.extract_if(.., |factor| factor.scope.contains(&node)).collect()
}

/// The best option of a decision, by options of its neighbours.
struct Choice {
    node: usize,
    scope: Vec<usize>,
    best: Vec<u32>,
}

/// Returns the options whose weighted price is least, or none where every combination is infinite.
///
/// # Errors
/// [`Entangled`].
pub fn minimum(graph: &CostGraph, weights: Weights) -> Result<Option<Solution>, Entangled> {
    let weigh = |price: &Price| price.weighted(weights);
    let unary = |(node, options): (usize, &Vec<Price>)| Factor {
        scope: vec![node],
        table: options.iter().map(weigh).collect(),
    };
    let mut factors: Vec<Factor<f64>> = graph.nodes.iter().enumerate().map(unary).collect();
    let weigh = |seconds: &f64| Price { seconds: *seconds, memory: 0.0 }.weighted(weights);
    let edge =
        |edge: &Edge| Factor { scope: edge.nodes.to_vec(), table: edge.seconds.iter().map(weigh).collect() };
    factors.extend(graph.edges().iter().map(edge));
    let mut choices = Vec::new();
    for node in graph.order(None) {
        let about = take(&mut factors, node);
        let mut walk = Walk::new(graph, &about, Some(node))?;
        let (entries, options) = (walk.entries(), graph.nodes[node].len());
        let (mut table, mut best) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        for _ in 0..entries {
            let mut least = (f64::INFINITY, 0);
            for option in 0..options {
                let of = |(factor, (base, inner)): (&Factor<f64>, (&usize, &usize))| {
                    factor.table[base + option * inner]
                };
                let seconds: f64 = about.iter().zip(walk.base.iter().zip(&walk.inner)).map(of).sum();
                if seconds < least.0 {
                    least = (seconds, option as u32);
                }
            }
            table.push(least.0);
            best.push(least.1);
            walk.advance();
        }
        choices.push(Choice { node, scope: walk.scope.clone(), best });
        factors.push(Factor { scope: walk.scope, table });
    }
    // Only factors without a scope are left.
    let least: f64 = factors.iter().flat_map(|f| &f.table).sum();
    if least.is_infinite() {
        return Ok(None);
    }
    let mut options = vec![0; graph.nodes.len()];
    for Choice { node, scope, best } in choices.iter().rev() {
        let at = scope.iter().fold(0, |at, other| at * graph.nodes[*other].len() + options[*other]);
        options[*node] = best[at] as usize;
    }
    let price: Price = graph.price(&options);
    Ok(Some(Solution { price, options }))
}
