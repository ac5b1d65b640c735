//! Rings, hypercubes and nodes.

use super::{TrafficKind, between, phase};
use crate::{Network, TransferPhase};
use std::collections::BTreeMap;

/// Rounds of a ring of n ranks.
pub(super) fn rounds(kind: TrafficKind, n: usize) -> u64 {
    let passes = if kind == TrafficKind::AllReduce { 2 } else { 1 };
    passes * (n as u64 - 1)
}

/// S/n from each rank to the next.
pub(super) fn ring(group: &[u32], bytes: f64, rounds: u64) -> Vec<TransferPhase> {
    let n = group.len();
    let flows = (0..n).map(|i| between(group[i], group[(i + 1) % n], bytes / n as f64)).collect();
    vec![phase(flows, rounds)]
}

/// Halving: partners at distance n/2, n/4, ... exchange S/2, S/4, ...; doubling is the same backwards.
pub(super) fn halving_doubling(group: &[u32], bytes: f64, kind: TrafficKind) -> Vec<TransferPhase> {
    let n = group.len();
    let exchange = |distance: usize| {
        // At distance n/2 half the buffer is exchanged.
        let part = bytes * distance as f64 / n as f64;
        phase((0..n).map(|i| between(group[i], group[i ^ distance], part)).collect(), 1)
    };
    let distances: Vec<usize> = (0..n.ilog2()).map(|bit| 1 << bit).collect();
    let halving = distances.iter().rev().map(|d| exchange(*d));
    let doubling = distances.iter().map(|d| exchange(*d));
    match kind {
        TrafficKind::ReduceScatter => halving.collect(),
        TrafficKind::AllGather => doubling.collect(),
        _ => halving.chain(doubling).collect(),
    }
}

/// Partners at distance 1, 2, 4, ... exchange S.
pub(super) fn recursive_doubling(group: &[u32], bytes: f64) -> Vec<TransferPhase> {
    let n = group.len();
    let exchange =
        |bit: u32| phase((0..n).map(|i| between(group[i], group[i ^ (1 << bit)], bytes)).collect(), 1);
    (0..n.ilog2()).map(exchange).collect()
}

/// In phase j rank i sends S/n to rank i + j.
pub(super) fn pairwise(group: &[u32], bytes: f64) -> Vec<TransferPhase> {
    let n = group.len();
    let step = |j: usize| {
        phase((0..n).map(|i| between(group[i], group[(i + j) % n], bytes / n as f64)).collect(), 1)
    };
    (1..n).map(step).collect()
}

/// S from each rank but the last to the next.
pub(super) fn neighbours(group: &[u32], bytes: f64) -> Vec<TransferPhase> {
    vec![phase(group.windows(2).map(|pair| between(pair[0], pair[1], bytes)).collect(), 1)]
}

/// Reduce-scatter in the nodes, the collective between equal local ranks, all-gather in the nodes; `None` unless several
/// nodes have the same number of ranks each, more than one.
pub(super) fn two_level(
    network: &Network,
    group: &[u32],
    bytes: f64,
    kind: TrafficKind,
) -> Option<Vec<TransferPhase>> {
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for device in group {
        nodes.entry(network.node_of(*device)).or_default().push(*device);
    }
    let nodes: Vec<Vec<u32>> = nodes.into_values().collect();
    let g = nodes[0].len();
    if nodes.len() < 2 || g < 2 || nodes.iter().any(|n| n.len() != g) {
        return None;
    }
    let merged = |groups: &[Vec<u32>], bytes: f64, rounds: u64| {
        super::merged(groups.iter().map(|group| ring(group, bytes, rounds)))
    };
    let inside = merged(&nodes, bytes, g as u64 - 1);
    let across: Vec<Vec<u32>> = (0..g).map(|local| nodes.iter().map(|n| n[local]).collect()).collect();
    let between_nodes = merged(&across, bytes / g as f64, rounds(kind, nodes.len()));
    Some(match kind {
        TrafficKind::ReduceScatter => [inside, between_nodes].concat(),
        TrafficKind::AllGather => [between_nodes, inside].concat(),
        _ => [inside.clone(), between_nodes, inside].concat(),
    })
}
