//! Byte-pair encoding of one piece, given its learned merges.
//!
//! Start from the piece's bytes; while some adjacent pair has a merge, apply the one of lowest rank (leftmost among
//! equals). Merges as training makes them need no merging to find the result: see [`crate::backtracking`]. Any other
//! list is followed literally, with a linked list of symbols and a heap of (rank, position), O(n log n). In both, a
//! megabyte without a boundary costs time in proportion.

use crate::backtracking::{DeadEnds, TokenMatcher};
use crate::error::{Result, TokenizerError};
use crate::pair_table::{Pair, PairTable};
use crate::word_key::FoldHash;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// No merge for this pair. Ranks are below it.
const NONE: u64 = u64::MAX;

/// Whole pieces that are tokens.
pub(crate) type WholePieces = HashMap<Box<[u8]>, u32, FoldHash>;

/// Merges by the pair that they join.
#[derive(Debug, Clone)]
pub(crate) struct PairRanks {
    /// `rank << 32 | id of the whole`.
    table: PairTable<u64>,
    /// A bit for each pair that has a merge, at a hash of it (a Bloom filter of one hash). Most pairs that are asked for have
    /// none, and these bits are a sixteenth of the table: they stay in a core's cache.
    filter: Vec<u64>,
}

/// Bits of the filter for each merge, at least.
const FILTER_BITS: usize = 16;

impl PairRanks {
    fn new(merges: &[(Pair, u32)]) -> Result<Self> {
        let words = (merges.len() * FILTER_BITS / 64).next_power_of_two();
        let mut ranks = PairRanks { table: PairTable::with_capacity(merges.len()), filter: vec![0; words] };
        for (rank, &(pair, whole)) in merges.iter().enumerate() {
            if ranks.table.get(pair).is_some() {
                return Err(TokenizerError::Inconsistent(format!(
                    "merge {rank} joins the ids {} and {} a second time",
                    pair.0, pair.1
                )));
            }
            let slot = ranks.table.slot(pair);
            *ranks.table.value(slot) = ((rank as u64) << 32) | u64::from(whole);
            let (word, bit) = ranks.filter_place(pair);
            ranks.filter[word] |= bit;
        }
        Ok(ranks)
    }

    #[inline(always)]
    fn filter_place(&self, pair: Pair) -> (usize, u64) {
        let hash = PairTable::<u64>::hash(pair);
        ((hash >> 32) as usize & (self.filter.len() - 1), 1 << (hash >> 58))
    }

    #[inline(always)]
    fn get(&self, left: u32, right: u32) -> u64 {
        let (word, bit) = self.filter_place((left, right));
        if self.filter[word] & bit == 0 {
            return NONE;
        }
        self.table.get((left, right)).unwrap_or(NONE)
    }

    /// Rank of the merge that joins two tokens.
    #[inline(always)]
    pub(crate) fn rank(&self, left: u32, right: u32) -> Option<u32> {
        Some(self.get(left, right)).filter(|value| *value != NONE).map(|value| (value >> 32) as u32)
    }
}

/// Merges by rank.
#[derive(Debug, Clone)]
pub(crate) struct Bpe {
    /// Id of each single byte.
    byte_ids: [u32; 256],
    ranks: PairRanks,
    /// Merges in rank order.
    merges: Vec<(Pair, u32)>,
    /// `None` where merges must be followed literally.
    matcher: Option<TokenMatcher>,
    /// Looked at before merging, in files that ask for it (`ignore_merges`).
    whole_pieces: Option<WholePieces>,
}

/// Working memory of [`Bpe::encode_piece`].
#[derive(Debug, Clone, Default)]
pub(crate) struct MergeSpace {
    dead_ends: DeadEnds,
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
        whole_pieces: Option<WholePieces>,
    ) -> Result<Self> {
        let ranks = PairRanks::new(&merges)?;
        let matcher = TokenMatcher::new(&byte_ids, &merges, &ranks);
        Ok(Bpe { byte_ids, ranks, merges, matcher, whole_pieces })
    }

    pub(crate) fn merges(&self) -> &[(Pair, u32)] {
        &self.merges
    }

    /// Whether whole pieces are looked up before merging.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.whole_pieces.is_some()
    }

    /// Appends the ids of one non-empty piece to `out`.
    pub(crate) fn encode_piece(&self, piece: &[u8], space: &mut MergeSpace, out: &mut Vec<u32>) {
        if let Some(whole_pieces) = &self.whole_pieces
            && let Some(&id) = whole_pieces.get(piece)
        {
            return out.push(id);
        }
        let matcher = self.matcher.as_ref();
        if !matcher.is_some_and(|m| m.encode_piece(&self.ranks, piece, &mut space.dead_ends, out)) {
            self.merge_by_heap(piece, space, out);
        }
    }

    fn merge_by_heap(&self, piece: &[u8], space: &mut MergeSpace, out: &mut Vec<u32>) {
        let MergeSpace { nodes, heap, .. } = space;
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
        let pair = if next == END { NONE } else { self.ranks.get(nodes[at].symbol, nodes[next].symbol) };
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

    /// Ids of the alphabet of the tests: four bytes. Other bytes have the ids from 4 on.
    const ALPHABET: u32 = 4;

    /// Random merges over the alphabet. Ids grow, so every merge is possible. With `shared`, merges that give the same bytes
    /// give the same id, as in files, and a token may be made again after it was used.
    fn random_bpe(choices: &[(u32, u32)], shared: bool) -> Bpe {
        let byte_ids = std::array::from_fn(|b| b as u32);
        let mut tokens: Vec<(Vec<u8>, u32)> = (0..ALPHABET).map(|id| (vec![id as u8], id)).collect();
        let mut merges: Vec<(Pair, u32)> = Vec::new();
        for &(a, b) in choices {
            let (left, right) = (&tokens[a as usize % tokens.len()], &tokens[b as usize % tokens.len()]);
            let (pair, bytes) = ((left.1, right.1), [&left.0[..], &right.0].concat());
            if bytes.len() > 64 || merges.iter().any(|merge| merge.0 == pair) {
                continue;
            }
            let known = tokens.iter().find(|token| shared && token.0 == bytes).map(|token| token.1);
            let whole = known.unwrap_or(256 + merges.len() as u32);
            merges.push((pair, whole));
            tokens.push((bytes, whole));
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
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn matching_and_merging_both_follow_the_definition(
            choices in prop::collection::vec((any::<u32>(), any::<u32>()), 0..60),
            shared in any::<bool>(),
            piece in prop::collection::vec(0u8..ALPHABET as u8, 1..100),
        ) {
            let bpe = random_bpe(&choices, shared);
            let want = plain(&bpe, &piece);
            let (mut encoded, mut merged) = (Vec::new(), Vec::new());
            bpe.encode_piece(&piece, &mut MergeSpace::default(), &mut encoded);
            bpe.merge_by_heap(&piece, &mut MergeSpace::default(), &mut merged);
            prop_assert_eq!(&encoded, &want);
            prop_assert_eq!(&merged, &want);
            prop_assert!(shared || bpe.matcher.is_some());
        }

        #[test]
        fn runs_of_one_byte_follow_the_definition(
            choices in prop::collection::vec((0u32..6, 0u32..6), 1..12),
            len in 1usize..90,
        ) {
            let bpe = random_bpe(&choices.iter().map(|&(a, b)| (a / 2 * 4, b / 2 * 4)).collect::<Vec<_>>(), true);
            let mut encoded = Vec::new();
            bpe.encode_piece(&vec![0; len], &mut MergeSpace::default(), &mut encoded);
            prop_assert_eq!(encoded, plain(&bpe, &vec![0; len]));
        }
    }

    #[test]
    fn a_token_that_is_used_before_it_is_made_is_merged_literally() {
        // "a ba" is joined before the merge that makes "ba": it takes part only where "ba" is made later.
        let byte_ids = std::array::from_fn(|b| b as u32);
        let bpe = Bpe::new(byte_ids, vec![((0, 256), 257), ((1, 0), 256)], None).unwrap();
        assert!(bpe.matcher.is_none());
        for piece in [&[0u8, 1, 0][..], &[1, 0, 1, 0], &[0, 0, 1, 0, 1, 0], &[1]] {
            let mut encoded = Vec::new();
            bpe.encode_piece(piece, &mut MergeSpace::default(), &mut encoded);
            assert_eq!(encoded, plain(&bpe, piece));
        }
    }

    #[test]
    fn a_part_that_nothing_makes_takes_part_in_nothing() {
        let byte_ids = std::array::from_fn(|b| b as u32);
        let bpe = Bpe::new(byte_ids, vec![((0, 9000), 256), ((256, 1), 257), ((1, 0), 258)], None).unwrap();
        let mut encoded = Vec::new();
        bpe.encode_piece(&[0, 1, 0, 1], &mut MergeSpace::default(), &mut encoded);
        assert_eq!(encoded, [0, 258, 1]);
    }

    #[test]
    fn the_same_merge_twice_is_refused() {
        let error = Bpe::new([0; 256], vec![((0, 0), 1), ((0, 0), 2)], None).unwrap_err();
        assert!(error.to_string().contains("second time"));
    }
}
