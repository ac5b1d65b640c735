//! Working memory of an encoder: what was encoded before, and space for merging.
//!
//! Text repeats its words (Zipf), so most pieces have been merged already. A piece of at most 15 bytes and at most
//! three ids is found in a two-way set-associative table of 64-byte sets, one cache line a look-up, the older entry
//! giving way; other pieces up to 256 bytes in a map that is emptied when full. Both are bounded (1 MiB and at
//! most 21 MiB), and a collision costs a repeated merge, never a wrong id.

use crate::bpe::{Bpe, MergeSpace};
use crate::word_key::{FoldHash, MAX_KEY_BYTES, key_of};
use std::collections::HashMap;

/// Number of two-entry sets: 1 MiB, the size of a core's second-level cache on current servers.
const SETS: usize = 1 << 14;
/// Ids held inside an entry.
const INLINE_IDS: usize = 3;
/// Longest piece that is remembered.
const MAX_CACHED_BYTES: usize = 256;
/// Entries of the map of longer pieces.
const MAX_LONG: usize = 1 << 14;

const HASH: FoldHash = FoldHash::fixed();

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// 0 when empty.
    key: u128,
    ids: [u32; INLINE_IDS],
    len: u32,
}

/// Two entries in one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Set([Entry; 2]);

/// Working memory for [`crate::Tokenizer::encode_into`]: one per thread, reused from text to text. It belongs to the
/// tokenizer that used it last; handing it to another one empties it.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    /// Fingerprint of the tokenizer whose ids are remembered.
    owner: [u8; 32],
    sets: Vec<Set>,
    long: HashMap<Box<[u8]>, Box<[u32]>, FoldHash>,
    merge: MergeSpace,
}

impl Scratch {
    /// Empty working memory; it grows to its full size at the first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the memory if it belongs to another tokenizer.
    pub(crate) fn claim(&mut self, owner: &[u8; 32]) {
        if self.owner != *owner || self.sets.is_empty() {
            self.owner = *owner;
            self.sets.clear();
            self.sets.resize(SETS, Set::default());
            self.long.clear();
        }
    }

    /// Appends the ids of the piece `text[start..end]`.
    #[inline(always)]
    pub(crate) fn encode_piece(
        &mut self,
        bpe: &Bpe,
        text: &[u8],
        start: usize,
        end: usize,
        out: &mut Vec<u32>,
    ) {
        if end - start > MAX_KEY_BYTES {
            return self.encode_long(bpe, &text[start..end], out);
        }
        let key = key_of(text, start, end);
        let at = HASH.of_key(key) as usize % SETS;
        let Set([first, second]) = &self.sets[at];
        let hit = if first.key == key {
            first
        } else if second.key == key {
            second
        } else {
            return self.encode_short(bpe, &text[start..end], key, at, out);
        };
        if hit.len == 1 {
            out.push(hit.ids[0]);
        } else {
            out.extend_from_slice(&hit.ids[..hit.len as usize]);
        }
    }

    #[inline(never)]
    fn encode_short(&mut self, bpe: &Bpe, piece: &[u8], key: u128, at: usize, out: &mut Vec<u32>) {
        let before = out.len();
        // Pieces that need more ids than an entry holds live in the map.
        if let Some(ids) = self.long.get(piece) {
            return out.extend_from_slice(ids);
        }
        bpe.encode_piece(piece, &mut self.merge, out);
        let ids = &out[before..];
        if ids.len() <= INLINE_IDS {
            let mut entry = Entry { key, ids: [0; INLINE_IDS], len: ids.len() as u32 };
            entry.ids[..ids.len()].copy_from_slice(ids);
            let set = &mut self.sets[at].0;
            set[1] = set[0];
            set[0] = entry;
        } else {
            self.remember(piece, ids);
        }
    }

    #[inline(never)]
    fn encode_long(&mut self, bpe: &Bpe, piece: &[u8], out: &mut Vec<u32>) {
        if piece.len() > MAX_CACHED_BYTES {
            return bpe.encode_piece(piece, &mut self.merge, out);
        }
        if let Some(ids) = self.long.get(piece) {
            return out.extend_from_slice(ids);
        }
        let before = out.len();
        bpe.encode_piece(piece, &mut self.merge, out);
        self.remember(piece, &out[before..]);
    }

    fn remember(&mut self, piece: &[u8], ids: &[u32]) {
        if self.long.len() >= MAX_LONG {
            self.long.clear();
        }
        self.long.insert(piece.into(), ids.into());
    }
}
