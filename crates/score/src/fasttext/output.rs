//! From the hidden vector to probabilities of labels.

use super::args::Loss;
use super::matrix::Matrix;

/// One node of the Huffman tree of hierarchical softmax; leaves are the labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Node {
    pub(crate) parent: i32,
    pub(crate) left: i32,
    pub(crate) right: i32,
    /// True for a right child.
    pub(crate) binary: bool,
    count: i64,
}

/// The tree that the original builds from the counts of the labels, which must fall.
///
/// Node `i < labels` is a label, node `labels + r` has row `r` of the output matrix, the last node is the root.
/// `None` for counts that do not fall, whose tree would be no tree.
pub(crate) fn huffman(counts: &[i64]) -> Option<Vec<Node>> {
    /// More than any count, as in the original.
    const UNMADE: i64 = 1_000_000_000_000_000;
    let labels = counts.len();
    let falls = counts.windows(2).all(|pair| pair[0] >= pair[1]);
    let total = counts.iter().try_fold(0i64, |sum, &count| sum.checked_add(count));
    if labels == 0 || !falls || counts.iter().any(|&c| c < 0) || total.is_none_or(|total| total >= UNMADE) {
        return None;
    }
    let empty = Node { parent: -1, left: -1, right: -1, binary: false, count: UNMADE };
    let mut nodes = vec![empty; 2 * labels - 1];
    for (node, &count) in nodes.iter_mut().zip(counts) {
        node.count = count;
    }
    let (mut leaf, mut inner) = (labels as i64 - 1, labels);
    for made in labels..2 * labels - 1 {
        let mut child = [0usize; 2];
        for child in &mut child {
            if leaf >= 0 && nodes[leaf as usize].count < nodes[inner].count {
                *child = leaf as usize;
                leaf -= 1;
            } else {
                *child = inner;
                inner += 1;
            }
        }
        nodes[made].left = child[0] as i32;
        nodes[made].right = child[1] as i32;
        nodes[made].count = nodes[child[0]].count + nodes[child[1]].count;
        nodes[child[0]].parent = made as i32;
        nodes[child[1]].parent = made as i32;
        nodes[child[1]].binary = true;
    }
    Some(nodes)
}

/// Logarithm with the offset of the original: a probability p is reported as p + 0.00001.
fn log_of(p: f32) -> f32 {
    (p as f64 + 1e-5).ln() as f32
}

/// The best labels found so far, best first.
struct Best {
    k: usize,
    found: Vec<(f32, usize)>,
}

impl Best {
    /// True if a label with this logarithm would be kept.
    fn takes(&self, log: f32) -> bool {
        self.found.len() < self.k || self.found.last().is_some_and(|worst| log > worst.0)
    }

    fn put(&mut self, log: f32, label: usize) {
        if self.takes(log) {
            let at = self.found.partition_point(|other| other.0 >= log);
            self.found.insert(at, (log, label));
            self.found.truncate(self.k);
        }
    }
}

/// The sigmoid of the original: a table of 513 values over -8..8.
#[derive(Debug, Clone)]
pub(crate) struct Sigmoid {
    table: Vec<f32>,
}

impl Sigmoid {
    pub(crate) fn new() -> Sigmoid {
        let value = |i: usize| {
            let x = (i as f32 * 2.0 * 8.0) / 512.0 - 8.0;
            (1.0 / (1.0 + (-x).exp() as f64)) as f32
        };
        Sigmoid { table: (0..=512).map(value).collect() }
    }

    pub(crate) fn at(&self, x: f32) -> f32 {
        if x < -8.0 {
            0.0
        } else if x > 8.0 {
            1.0
        } else {
            self.table[((x + 8.0) * 512.0 / 8.0 / 2.0) as usize]
        }
    }
}

/// Probabilities of all labels for `softmax`, and for the binary losses, in `scores`.
pub(crate) fn all(loss: Loss, output: &Matrix, sigmoid: &Sigmoid, hidden: &[f32], scores: &mut Vec<f32>) {
    scores.clear();
    scores.extend((0..output.rows()).map(|row| output.dot_row(row, hidden)));
    match loss {
        Loss::Ns | Loss::Ova => {
            for score in scores.iter_mut() {
                *score = sigmoid.at(*score);
            }
        }
        Loss::Softmax | Loss::Hs => softmax(scores),
    }
}

/// exp(x - max) / sum, in place.
pub(crate) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f32;
    for score in scores.iter_mut() {
        *score = ((*score - max) as f64).exp() as f32;
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score /= sum;
    }
}

/// The `k` labels of `scores` with the highest probability of at least `threshold`, as (logarithm, label).
pub(crate) fn best_of(scores: &[f32], k: usize, threshold: f32) -> Vec<(f32, usize)> {
    let mut best = Best { k, found: Vec::with_capacity(k.min(scores.len()) + 1) };
    // The logarithm is taken of candidates only; it grows with the probability.
    let mut least = f32::NEG_INFINITY;
    for (label, &score) in scores.iter().enumerate() {
        if score >= threshold && (best.found.len() < k || score > least) {
            best.put(log_of(score), label);
            if best.found.len() == k {
                least = best.found.last().map_or(least, |&(_, worst)| scores[worst]);
            }
        }
    }
    best.found
}

/// The same for hierarchical softmax: depth first, leaving out branches that cannot win.
pub(crate) fn best_of_tree(
    tree: &[Node],
    output: &Matrix,
    hidden: &[f32],
    k: usize,
    threshold: f32,
) -> Vec<(f32, usize)> {
    let labels = tree.len().div_ceil(2);
    let mut best = Best { k, found: Vec::new() };
    let least = log_of(threshold);
    // A stack and not recursion: the tree of a strange file may be as deep as it has labels.
    let mut open = vec![(tree.len() - 1, 0.0f32)];
    while let Some((node, log)) = open.pop() {
        if log < least || !best.takes(log) {
            continue;
        }
        if tree[node].left < 0 {
            best.put(log, node);
            continue;
        }
        let f = 1.0 / (1.0 + (-output.dot_row(node - labels, hidden)).exp());
        open.push((tree[node].right as usize, log + log_of(f)));
        open.push((tree[node].left as usize, log + log_of((1.0 - f as f64) as f32)));
    }
    best.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_falling_counts_is_the_huffman_tree() {
        let tree = huffman(&[5, 3, 1, 1]).expect("falling");
        // 1 and 1 make node 4; it and 3 make node 5; 5 and node 5 make the root.
        assert_eq!(tree.len(), 7);
        assert_eq!((tree[3].parent, tree[2].parent), (4, 4));
        assert_eq!((tree[4].parent, tree[1].parent), (5, 5));
        assert_eq!((tree[5].parent, tree[0].parent), (6, 6));
        assert_eq!(tree[6].parent, -1);
        assert!(huffman(&[1, 2]).is_none());
        assert_eq!(huffman(&[7]).expect("one").len(), 1);
    }

    #[test]
    fn the_best_are_sorted_and_ties_go_to_the_lower_label() {
        let best = best_of(&[0.1, 0.4, 0.4, 0.1], 3, 0.0);
        assert_eq!(best.iter().map(|b| b.1).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(best_of(&[0.1, 0.4, 0.4, 0.1], 9, 0.2).len(), 2);
        assert!((best[0].0.exp() - 0.40001).abs() < 1e-6);
    }
}
