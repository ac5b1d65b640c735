//! Byte-pair encoding of one piece, given its learned merges.
//!
//! Start from the piece's bytes; while some adjacent pair has a merge, apply the one of lowest rank (leftmost among
//! equals). Two ways, one result:
//! - up to [`SHORT`] symbols: the ranks of all pairs in an array, smallest found by scanning, O(n^2) with a tiny
//!   constant and no memory but the stack;
//! - longer: a linked list of symbols and a heap of (rank, position), O(n log n), so that a megabyte without a
//!   boundary costs time in proportion.

use crate::error::{Result, TokenizerError};
use crate::pair_table::{Pair, PairTable};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Longest piece that is merged by scanning.
const SHORT: usize = 48;

/// No merge for this pair. Ranks are below it.
const NONE: u64 = u64::MAX;

/// Merges by rank.
#[derive(Debug, Clone)]
pub(crate) struct Bpe {
    /// Id of each single byte.
    byte_ids: [u32; 256],
    /// `rank << 32 | id of the whole`.
    ranks: PairTable<u64>,
    /// Merges in rank order.
    merges: Vec<(Pair, u32)>,
    /// Whole pieces that are tokens, for files that ask to look there before merging (`ignore_merges`).
    whole_pieces: Option<HashMap<Box<[u8]>, u32>>,
}

/// Working memory of [`Bpe::encode_piece`] for long pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct MergeSpace {
    /// Symbol at each position, `rank << 32 | whole` of the pair that starts there, and neighbours.
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, usize)>>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    symbol: u32,
    previous: usize,
    next: usize,
    pair: u64,
}

const END: usize = usize::MAX;

impl Bpe {
    pub(crate) fn new(
        byte_ids: [u32; 256],
        merges: Vec<(Pair, u32)>,
        whole_pieces: Option<HashMap<Box<[u8]>, u32>>,
    ) -> Result<Self> {
        let mut ranks = PairTable::with_capacity(merges.len());
        for (rank, &(pair, whole)) in merges.iter().enumerate() {
            if ranks.get(pair).is_some() {
                return Err(TokenizerError::Inconsistent(format!(
                    "merge {rank} joins the ids {} and {} a second time",
                    pair.0, pair.1
                )));
            }
            let slot = ranks.slot(pair);
            *ranks.value(slot) = ((rank as u64) << 32) | u64::from(whole);
        }
        Ok(Bpe { byte_ids, ranks, merges, whole_pieces })
    }

    pub(crate) fn merges(&self) -> &[(Pair, u32)] {
        &self.merges
    }

    /// Whether whole pieces are looked up before merging.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.whole_pieces.is_some()
    }

    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u64 {
        self.ranks.get((left, right)).unwrap_or(NONE)
    }

    /// Appends the ids of one non-empty piece to `out`.
    pub(crate) fn encode_piece(&self, piece: &[u8], space: &mut MergeSpace, out: &mut Vec<u32>) {
        if let Some(whole_pieces) = &self.whole_pieces
            && let Some(&id) = whole_pieces.get(piece)
        {
            out.push(id);
        } else if piece.len() <= SHORT {
            self.merge_by_scanning(piece, out);
        } else {
            self.merge_by_heap(piece, space, out);
        }
    }

    fn merge_by_scanning(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut symbols = [0u32; SHORT];
        let mut pairs = [NONE; SHORT];
        let mut len = piece.len();
        for (symbol, byte) in symbols.iter_mut().zip(piece) {
            *symbol = self.byte_ids[usize::from(*byte)];
        }
        for i in 1..len {
            pairs[i - 1] = self.rank(symbols[i - 1], symbols[i]);
        }
        while len > 1 {
            let (mut best, mut at) = (NONE, 0);
            for (i, &pair) in pairs[..len - 1].iter().enumerate() {
                if pair < best {
                    (best, at) = (pair, i);
                }
            }
            if best == NONE {
                break;
            }
            symbols[at] = best as u32;
            symbols.copy_within(at + 2..len, at + 1);
            pairs.copy_within(at + 1..len - 1, at);
            len -= 1;
            pairs[len - 1] = NONE;
            if at > 0 {
                pairs[at - 1] = self.rank(symbols[at - 1], symbols[at]);
            }
            if at + 1 < len {
                pairs[at] = self.rank(symbols[at], symbols[at + 1]);
            }
        }
        out.extend_from_slice(&symbols[..len]);
    }

    fn merge_by_heap(&self, piece: &[u8], space: &mut MergeSpace, out: &mut Vec<u32>) {
        let MergeSpace { nodes, heap } = space;
        nodes.clear();
        heap.clear();
        nodes.extend(piece.iter().enumerate().map(|(i, byte)| Node {
            symbol: self.byte_ids[usize::from(*byte)],
            previous: i.wrapping_sub(1),
            next: if i + 1 < piece.len() { i + 1 } else { END },
            pair: NONE,
        }));
        for at in 0..nodes.len() - 1 {
            self.renew(nodes, heap, at);
        }
        while let Some(Reverse((rank, at))) = heap.pop() {
            // A rank names one pair, so an entry is current iff the pair that starts here still has that rank.
            let Node { pair, next, .. } = nodes[at];
            if (pair >> 32) as u32 != rank || pair == NONE {
                continue;
            }
            let after = nodes[next].next;
            nodes[next].pair = NONE;
            nodes[at].symbol = pair as u32;
            nodes[at].next = after;
            if after != END {
                nodes[after].previous = at;
            }
            self.renew(nodes, heap, at);
            if nodes[at].previous != END {
                let previous = nodes[at].previous;
                self.renew(nodes, heap, previous);
            }
        }
        let mut at = 0;
        while at != END {
            out.push(nodes[at].symbol);
            at = nodes[at].next;
        }
        // A huge piece must not leave a huge workspace behind.
        if nodes.capacity() > 1 << 16 {
            *space = MergeSpace::default();
        }
    }

    /// Looks up the pair that starts at `at` and enters it into the heap.
    #[inline]
    fn renew(&self, nodes: &mut [Node], heap: &mut BinaryHeap<Reverse<(u32, usize)>>, at: usize) {
        let next = nodes[at].next;
        let pair = if next == END { NONE } else { self.rank(nodes[at].symbol, nodes[next].symbol) };
        nodes[at].pair = pair;
        if pair != NONE {
            heap.push(Reverse(((pair >> 32) as u32, at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Random merges over a small alphabet; ids grow, so every merge is possible.
    fn random_bpe(choices: &[(u32, u32)]) -> Bpe {
        let byte_ids = std::array::from_fn(|b| (b % 4) as u32);
        let mut merges: Vec<(Pair, u32)> = Vec::new();
        for (i, &(a, b)) in choices.iter().enumerate() {
            let known = 4 + i as u32;
            let pair = (a % known, b % known);
            let whole = known;
            if merges.iter().all(|merge| merge.0 != pair) {
                merges.push((pair, whole));
            }
        }
        Bpe::new(byte_ids, merges, None).unwrap()
    }

    /// The definition: rescan everything for each merge.
    fn plain(bpe: &Bpe, piece: &[u8]) -> Vec<u32> {
        let mut symbols: Vec<u32> = piece.iter().map(|b| bpe.byte_ids[usize::from(*b)]).collect();
        loop {
            let best = bpe.merges.iter().find_map(|&(pair, whole)| {
                symbols.windows(2).position(|two| (two[0], two[1]) == pair).map(|at| (at, whole))
            });
            let Some((at, whole)) = best else { return symbols };
            symbols.splice(at..at + 2, [whole]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn scanning_and_heap_both_follow_the_definition(
            choices in prop::collection::vec((any::<u32>(), any::<u32>()), 0..60),
            piece in prop::collection::vec(0u8..4, 1..SHORT + 1),
        ) {
            let bpe = random_bpe(&choices);
            let want = plain(&bpe, &piece);
            let (mut scanned, mut heaped) = (Vec::new(), Vec::new());
            bpe.merge_by_scanning(&piece, &mut scanned);
            bpe.merge_by_heap(&piece, &mut MergeSpace::default(), &mut heaped);
            prop_assert_eq!(&scanned, &want);
            prop_assert_eq!(&heaped, &want);
        }
    }

    #[test]
    fn the_same_merge_twice_is_refused() {
        let error = Bpe::new([0; 256], vec![((0, 0), 1), ((0, 0), 2)], None).unwrap_err();
        assert!(error.to_string().contains("second time"));
    }
}
