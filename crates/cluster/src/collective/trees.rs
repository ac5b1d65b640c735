//! The double binary tree (Sanders, Speck and Träff 2009).
//!
//! In the first tree a rank with lowest set bit b hangs below the one in the middle of its block of 4b; rank 0 is the root.
//! Odd ranks are leaves. The second tree is the first mirrored (n even) or shifted by one (n odd), so that almost every rank is
//! a leaf in one tree and has two children in the other. Both are pipelined: every edge carries S/2 up and S/2 down at once,
//! in the end each rank has sent at most 2 S, and the latency is that of the way up and down.

use super::between;
use crate::TransferPhase;

/// Parent of a rank in the first tree; `None` for the root.
fn parent(rank: usize, n: usize) -> Option<usize> {
    if rank == 0 {
        return None;
    }
    let bit = rank & rank.wrapping_neg();
    let up = (rank ^ bit) | (bit << 1);
    Some(if up < n { up } else { rank ^ bit })
}

/// Edges from the deepest rank of the first tree to its root.
pub(super) fn depth(n: usize) -> u32 {
    let length = |rank| std::iter::successors(parent(rank, n), |r| parent(*r, n)).count() as u32;
    (0..n).map(length).max().unwrap_or(0)
}

pub(super) fn double_tree(group: &[u32], bytes: f64) -> Vec<TransferPhase> {
    let n = group.len();
    let other = |rank: usize| if n.is_multiple_of(2) { n - 1 - rank } else { (rank + 1) % n };
    let mut flows = Vec::new();
    for rank in 1..n {
        let Some(up) = parent(rank, n) else { continue };
        for (child, parent) in [(rank, up), (other(rank), other(up))] {
            flows.push(between(group[child], group[parent], bytes / 2.0));
            flows.push(between(group[parent], group[child], bytes / 2.0));
        }
    }
    vec![TransferPhase { flows, rounds: 1, depth: 2 * depth(n) }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_children_in_one_tree_has_none_in_the_other() {
        for n in 2..200 {
            let inner = |rank: usize| (1..n).any(|r| parent(r, n) == Some(rank));
            let mirrored = |rank: usize| if n % 2 == 0 { n - 1 - rank } else { (rank + n - 1) % n };
            let both = (0..n).filter(|r| inner(*r) && inner(mirrored(*r))).count();
            // The roots have one child each.
            assert!(both <= 2, "{n}: {both}");
            let children = |rank: usize| (1..n).filter(|r| parent(*r, n) == Some(rank)).count();
            assert!((0..n).all(|r| children(r) <= 2));
            assert_eq!((0..n).map(children).sum::<usize>(), n - 1);
        }
        assert_eq!([2, 3, 4, 8, 16, 1024].map(depth), [1, 2, 2, 3, 4, 10]);
    }
}
