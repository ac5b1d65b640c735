//! Closed forms for n ranks, S bytes, B bytes a second in each direction of a rank, and latency a. They hold where nothing
//! contends; the simulation is held against them.

use bessemer_units::Link;

/// Time of a message that no other meets.
pub fn point_to_point(bytes: f64, link: Link) -> f64 {
    link.latency + bytes / link.bandwidth
}

/// Reduce-scatter or all-gather on a ring: (n-1) a + (n-1)/n S/B.
pub fn ring_pass(n: u32, bytes: f64, link: Link) -> f64 {
    let n = f64::from(n);
    (n - 1.0) * link.latency + (n - 1.0) / n * bytes / link.bandwidth
}

/// All-reduce on a ring: 2(n-1) a + 2(n-1)/n S/B.
pub fn ring_all_reduce(n: u32, bytes: f64, link: Link) -> f64 {
    2.0 * ring_pass(n, bytes, link)
}

/// All-reduce by recursive halving and doubling, n a power of two: 2 log2(n) a + 2(n-1)/n S/B.
pub fn halving_doubling(n: u32, bytes: f64, link: Link) -> f64 {
    let steps = 2.0 * f64::from(n.ilog2());
    steps * link.latency + 2.0 * (f64::from(n) - 1.0) / f64::from(n) * bytes / link.bandwidth
}

/// All-reduce by recursive doubling, n a power of two: log2(n) (a + S/B).
pub fn recursive_doubling(n: u32, bytes: f64, link: Link) -> f64 {
    f64::from(n.ilog2()) * point_to_point(bytes, link)
}

/// All-reduce on a double binary tree, pipelined: 2 depth a + 2 S/B, with depth log2(n) for a power of two.
pub fn double_tree(n: u32, bytes: f64, link: Link) -> f64 {
    2.0 * f64::from(super::trees::depth(n as usize)) * link.latency + 2.0 * bytes / link.bandwidth
}

/// All-reduce within nodes of g ranks and between N nodes: RS(g, S) + AR(N, S/g) + AG(g, S).
pub fn two_level(g: u32, nodes: u32, bytes: f64, inside: Link, between: Link) -> f64 {
    2.0 * ring_pass(g, bytes, inside) + ring_all_reduce(nodes, bytes / f64::from(g), between)
}

/// All-reduce on a torus of k devices in each of d dims: 2d (k-1) a + 2(n-1)/n S/(2d B), k > 2.
pub fn torus(k: u32, d: u32, bytes: f64, link: Link) -> f64 {
    let n = f64::from(k).powi(d as i32);
    let d = f64::from(d);
    2.0 * d * (f64::from(k) - 1.0) * link.latency + 2.0 * (n - 1.0) / n * bytes / (2.0 * d * link.bandwidth)
}

/// Reduce-scatter or all-gather on a torus with these sides, all of 2 or more: in stage s slice j, a share x_j of the buffer, is reduced along dim
/// j + s, and the stage ends with its last dim:
/// `sum_s max_j ((k - 1) a + x_j/(k_j ... k_(j+s-1)) (k - 1)/k S/(c B))`, k the side of dim j + s and c the directions of its rings, 2 or, for
/// two devices with one cable, 1. Dims count in ascending order of their sides.
pub fn torus_pass(sides: &[u32], bytes: f64, link: Link) -> f64 {
    let mut sides: Vec<f64> = sides.iter().map(|side| f64::from(*side)).collect();
    sides.sort_by(f64::total_cmp);
    let dims = sides.len();
    let whole: Vec<f64> = sides.iter().map(|k| (k - 1.0) / k / if *k > 2.0 { 2.0 } else { 1.0 }).collect();
    let slices = torus_slices(&whole);
    let seconds = |stage: usize, slice: usize| {
        let dim = (slice + stage) % dims;
        let before: f64 = (0..stage).map(|earlier| sides[(slice + earlier) % dims]).product();
        (sides[dim] - 1.0) * link.latency + slices[slice] / before * whole[dim] * bytes / link.bandwidth
    };
    (0..dims).map(|stage| (0..dims).map(|slice| seconds(stage, slice)).fold(0.0, f64::max)).sum()
}

/// Shares of a buffer for the dims of a torus, in which reducing the whole buffer would take these times: such that all take equally long.
pub(super) fn torus_slices(seconds: &[f64]) -> Vec<f64> {
    let rates: f64 = seconds.iter().map(|seconds| 1.0 / seconds).sum();
    seconds.iter().map(|seconds| 1.0 / seconds / rates).collect()
}

/// All-reduce in a tree of C levels of switches: 2C a + S/B, a being the latency of one link.
pub fn switch_tree(levels: u32, bytes: f64, link: Link) -> f64 {
    2.0 * f64::from(levels) * link.latency + bytes / link.bandwidth
}

/// All-to-all in n - 1 phases: (n-1) a + (n-1)/n S/B.
pub fn pairwise(n: u32, bytes: f64, link: Link) -> f64 {
    ring_pass(n, bytes, link)
}

/// Least time of an all-to-all in which each of n ranks sends S: half of all bytes of one half cross the bisection,
/// (S n/4) / bisection, with the bytes a second of one direction.
pub fn all_to_all_bound(n: u32, bytes: f64, bisection: f64) -> f64 {
    bytes * f64::from(n) / 4.0 / bisection
}
