//! Byte-pair encoding of a piece token by token, without merging: the longest token that fits, a shorter one where it does not
//! (the backtracking encoder of van Antwerpen and Neubeck, "So many tokens, so little time", GitHub 2024).
//!
//! Merging in the order of ranks gives the tokens `t1 .. tn` exactly if it gives each `ti` from its own bytes and each
//! `ti, ti+1` from the bytes of the two. Before a merge crosses a boundary, what happens on one side does not depend on the
//! other; so the first merge that crosses it also does so when the two neighbours are merged alone. Hence a piece has one
//! such sequence, and each of its prefixes that ends at a boundary has too: a place from which no token goes on never needs a
//! second visit, and time grows with the length.
//!
//! Whether two tokens are neighbours is found by taking apart the ends that meet, the last merge first: a pair of ends crosses
//! the boundary if its rank is below those of the merges that use up either of them. This needs merges in which every part
//! is complete before it is used, as training makes them; other lists are left to [`crate::bpe`].

use crate::bpe::PairRanks;
use crate::pair_table::Pair;
use crate::trie::{NONE, Trie};

/// Most bytes of all tokens together: a trie has at most as many nodes. Published vocabularies have up to about 2 million.
const MAX_BYTES: usize = 1 << 24;

/// Steps of taking tokens apart that are spent on each byte of a piece at most; text takes about one. Tokens made to be long and
/// to share their beginnings could take as many as the square of their length.
const STEPS_PER_BYTE: usize = 32;

/// A token that merging gives from its own bytes. Its parts lie together: as the next token of a piece its left part is looked
/// at, then, as the last one, its right part, and time goes into fetching from memory.
#[derive(Debug, Clone, Copy)]
struct Token {
    /// 1 + the rank of the last merge that makes it; 0 for a single byte.
    made: u32,
    /// Parts of that merge.
    left: u32,
    right: u32,
    /// Longest other token that this one begins with, or [`NONE`].
    shorter: u32,
}

/// Places of a piece from which no token goes on, one bit each.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadEnds(Vec<u64>);

impl DeadEnds {
    fn clear(&mut self, places: usize) {
        self.0.clear();
        self.0.resize(places / 64 + 1, 0);
        // A huge piece must not leave a huge workspace behind.
        self.0.shrink_to(1 << 10);
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }
}

/// Tokens by their bytes, and how they were made.
#[derive(Debug, Clone)]
pub(crate) struct TokenMatcher {
    trie: Trie,
    tokens: Vec<Token>,
    /// Bytes of each token; 0 for an id that merging never gives.
    lengths: Vec<u32>,
}

impl TokenMatcher {
    /// `None` for merges that use a token before the last merge that makes it, for bytes that share an id, and for more than
    /// [`MAX_BYTES`].
    pub(crate) fn new(byte_ids: &[u32; 256], merges: &[(Pair, u32)], ranks: &PairRanks) -> Option<Self> {
        let ids = merges.iter().flat_map(|&((left, right), whole)| [left, right, whole]).chain(*byte_ids);
        let ids = ids.max()? as usize + 1;
        let byte = Token { made: 0, left: NONE, right: NONE, shorter: NONE };
        let mut matcher =
            TokenMatcher { trie: Trie::new(Vec::new())?, tokens: vec![byte; ids], lengths: vec![0; ids] };
        let mut bytes: Vec<Box<[u8]>> = vec![Box::default(); ids];
        for (byte, &id) in byte_ids.iter().enumerate() {
            if !bytes[id as usize].is_empty() {
                return None;
            }
            matcher.lengths[id as usize] = 1;
            bytes[id as usize] = [byte as u8].into();
        }
        let mut used = vec![false; ids];
        let mut total = 0;
        for (rank, &((left, right), whole)) in merges.iter().enumerate() {
            used[left as usize] = true;
            used[right as usize] = true;
            if used[whole as usize] {
                return None;
            }
            let known = |id: u32| matcher.lengths[id as usize];
            let rank = rank as u32;
            if known(left) == 0
                || known(right) == 0
                || !matcher.are_neighbours(ranks, (left, right), rank, &mut 0)
            {
                continue;
            }
            let len = known(left) + known(right);
            total += len as usize;
            if total > MAX_BYTES {
                return None;
            }
            matcher.lengths[whole as usize] = len;
            matcher.tokens[whole as usize] = Token { made: rank + 1, left, right, shorter: NONE };
            bytes[whole as usize] = [&bytes[left as usize][..], &bytes[right as usize]].concat().into();
        }
        let entries = bytes.iter().zip(0..).filter(|(bytes, _)| !bytes.is_empty());
        matcher.trie = Trie::new(entries.map(|(bytes, id)| (&**bytes, id)).collect())?;
        for (token, bytes) in matcher.tokens.iter_mut().zip(&bytes).filter(|(_, bytes)| !bytes.is_empty()) {
            token.shorter = matcher.trie.longest(&bytes[..bytes.len() - 1]).0;
        }
        Some(matcher)
    }

    /// Whether no pair of a rank below `limit` crosses the boundary while the bytes of two tokens are merged. Counts `steps`.
    #[inline]
    fn are_neighbours(
        &self,
        ranks: &PairRanks,
        (mut left, mut right): Pair,
        mut limit: u32,
        steps: &mut usize,
    ) -> bool {
        loop {
            *steps += 1;
            if ranks.rank(left, right).is_some_and(|rank| rank < limit) {
                return false;
            }
            let (ending, beginning) = (&self.tokens[left as usize], &self.tokens[right as usize]);
            if ending.made > beginning.made {
                // Where both use up a part by the same merge, the left one comes first.
                limit = ending.made - 1;
                left = ending.right;
            } else if beginning.made > 0 {
                limit = beginning.made;
                right = beginning.left;
            } else {
                return true;
            }
        }
    }

    /// Appends the ids of one non-empty piece to `out`, or nothing and returns false after too many steps.
    pub(crate) fn encode_piece(
        &self,
        ranks: &PairRanks,
        piece: &[u8],
        dead_ends: &mut DeadEnds,
        out: &mut Vec<u32>,
    ) -> bool {
        let (mut candidate, mut len) = self.trie.longest(piece);
        if len == piece.len() {
            out.push(candidate);
            return true;
        }
        dead_ends.clear(piece.len());
        let before = out.len();
        let (mut at, mut steps) = (0, 0);
        while at < piece.len() {
            if candidate == NONE {
                // Every byte is a token and a piece has its tokens, so there is one to take back.
                let Some(last) = out.pop() else { unreachable!("a piece without tokens") };
                dead_ends.insert(at);
                at -= self.len(last);
                candidate = self.tokens[last as usize].shorter;
                len = self.len(candidate);
                continue;
            }
            let end = at + len;
            let fits = !dead_ends.contains(end)
                && (at == 0 || self.are_neighbours(ranks, (out[out.len() - 1], candidate), NONE, &mut steps));
            if fits {
                out.push(candidate);
                at = end;
                (candidate, len) = self.trie.longest(&piece[at..]);
            } else if steps > STEPS_PER_BYTE * piece.len() {
                out.truncate(before);
                return false;
            } else {
                candidate = self.tokens[candidate as usize].shorter;
                len = self.len(candidate);
            }
        }
        true
    }

    /// Bytes of a token, 0 for [`NONE`].
    fn len(&self, token: u32) -> usize {
        self.lengths.get(token as usize).map_or(0, |len| *len as usize)
    }
}
