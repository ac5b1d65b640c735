//! How often each distinct piece of text occurs: the only thing that BPE training needs to know of a corpus.
//!
//! Short pieces live in an open-addressing table of 128-bit keys (32 bytes an entry, one cache line touched a piece),
//! longer ones in a map of byte strings. Memory grows with the number of distinct pieces, not with the text.

use crate::pretokenize::Pretokenizer;
use crate::word_key::{FoldHash, MAX_KEY_BYTES, bytes_of, key_of};
use std::collections::HashMap;

/// Counts of distinct pieces.
#[derive(Debug, Clone)]
pub(crate) struct WordCounts {
    hash: FoldHash,
    /// Key (0 = free) and count; a power of two, at most half full.
    short: Vec<(u128, u64)>,
    short_len: usize,
    long: HashMap<Box<[u8]>, u64, FoldHash>,
}

impl WordCounts {
    pub(crate) fn new() -> Self {
        let hash = FoldHash::unpredictable();
        WordCounts { hash, short: vec![(0, 0); 1 << 12], short_len: 0, long: HashMap::with_hasher(hash) }
    }

    /// Number of distinct pieces.
    pub(crate) fn len(&self) -> usize {
        self.short_len + self.long.len()
    }

    /// Cuts `text` and counts its pieces.
    pub(crate) fn count(&mut self, pretokenizer: Pretokenizer, text: &[u8]) {
        pretokenizer.for_each_piece(text, |start, end| {
            if end - start <= MAX_KEY_BYTES {
                self.add_short(key_of(text, start, end), 1);
            } else {
                self.add_long(&text[start..end], 1);
            }
        });
    }

    #[inline(always)]
    fn add_short(&mut self, key: u128, count: u64) {
        let mask = self.short.len() - 1;
        let mut at = self.hash.of_key(key) as usize & mask;
        loop {
            let slot = &mut self.short[at];
            if slot.0 == key {
                slot.1 += count;
                return;
            }
            if slot.0 == 0 {
                *slot = (key, count);
                self.short_len += 1;
                if self.short_len * 2 > self.short.len() {
                    self.grow();
                }
                return;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let grown = vec![(0, 0); self.short.len() * 2];
        let old = std::mem::replace(&mut self.short, grown);
        let mask = self.short.len() - 1;
        for (key, count) in old.into_iter().filter(|slot| slot.0 != 0) {
            let mut at = self.hash.of_key(key) as usize & mask;
            while self.short[at].0 != 0 {
                at = (at + 1) & mask;
            }
            self.short[at] = (key, count);
        }
    }

    fn add_long(&mut self, piece: &[u8], count: u64) {
        match self.long.get_mut(piece) {
            Some(total) => *total += count,
            None => {
                self.long.insert(piece.into(), count);
            }
        }
    }

    /// Adds the counts of another part of the text.
    pub(crate) fn merge(&mut self, other: WordCounts) {
        for (key, count) in other.short.into_iter().filter(|slot| slot.0 != 0) {
            self.add_short(key, count);
        }
        for (piece, count) in other.long {
            self.add_long(&piece, count);
        }
    }

    /// Calls `visit` with every distinct piece and its count, most frequent first, then by the bytes of the piece.
    pub(crate) fn for_each_sorted(self, mut visit: impl FnMut(&[u8], u64)) {
        let mut short: Vec<(u128, u64)> = self.short.into_iter().filter(|slot| slot.0 != 0).collect();
        short.sort_unstable_by_key(|&(key, count)| (std::cmp::Reverse(count), key.swap_bytes()));
        let mut long: Vec<(Box<[u8]>, u64)> = self.long.into_iter().collect();
        long.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        for (key, count) in short {
            let (bytes, len) = bytes_of(key);
            visit(&bytes[..len], count);
        }
        for (piece, count) in long {
            visit(&piece, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn counts_every_piece_of_any_length_once() {
        let text: String = (0..30_000).map(|i| format!("w{} {} ", "x".repeat(i % 23), i * i % 911)).collect();
        let mut want = BTreeMap::new();
        for piece in Pretokenizer::Gpt2.pieces(text.as_bytes()) {
            *want.entry(piece.to_vec()).or_insert(0u64) += 2;
        }
        let mut counts = WordCounts::new();
        counts.count(Pretokenizer::Gpt2, text.as_bytes());
        let mut other = WordCounts::new();
        other.count(Pretokenizer::Gpt2, text.as_bytes());
        counts.merge(other);
        assert_eq!(counts.len(), want.len());
        let mut got = BTreeMap::new();
        counts.for_each_sorted(|piece, count| assert!(got.insert(piece.to_vec(), count).is_none()));
        assert_eq!(got, want);
    }
}
