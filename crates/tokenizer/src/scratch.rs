//! Working memory of an encoder: what was encoded before, and space for merging.
//!
//! Text repeats its words (Zipf), so most pieces have been encoded already. A piece of at most 15 bytes and at most
//! three ids is found in a two-way set-associative table of 64-byte sets, one cache line a look-up, the older entry
//! giving way; a piece of at most 31 bytes and at most seven ids in a direct-mapped table of as long entries. Longer
//! ones are encoded each time. Both tables are bounded (1 MiB each), and a collision costs a repeated encoding, never
//! a wrong id.

use crate::bpe::{Bpe, MergeSpace};
use crate::prefetch::prefetch;
use crate::pretokenize::Pretokenizer;
use crate::word_key::{FoldHash, LongKey, MAX_KEY_BYTES, MAX_LONG_KEY_BYTES, key_of, long_key_of};

/// Number of two-entry sets: 1 MiB, the size of a core's second-level cache on current servers.
const SETS: usize = 1 << 14;
/// Ids held inside an entry.
const INLINE_IDS: usize = 3;
/// Number of entries for longer pieces.
const LONG_ENTRIES: usize = 1 << 14;
/// Ids held inside an entry for longer pieces.
const LONG_IDS: usize = 7;

/// Pieces that are cut, and their entries asked for, before the first of these entries is read: the table is as large as a
/// second-level cache, and so the waits for memory overlap.
const AHEAD: usize = 16;

const HASH: FoldHash = FoldHash::fixed();

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// 0 when empty.
    key: u128,
    ids: [u32; INLINE_IDS],
    /// 0 where the ids are among those of longer pieces, because there are too many.
    len: u32,
}

/// Two entries in one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Set([Entry; 2]);

/// A longer piece in a cache line of its own.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct LongEntry {
    /// All 0 when empty.
    key: LongKey,
    ids: [u32; LONG_IDS],
    len: u32,
}

/// A piece `text[start..end]` whose ids are wanted.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    start: usize,
    end: usize,
    /// 0 if it is too long to have one.
    key: u128,
    /// Its set, if it has a key.
    set: usize,
}

/// Working memory for [`crate::Tokenizer::encode_into`]: one per thread, reused from text to text. It belongs to the
/// tokenizer that used it last; handing it to another one empties it.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    /// Fingerprint of the tokenizer whose ids are remembered.
    owner: [u8; 32],
    sets: Vec<Set>,
    long: Vec<LongEntry>,
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
            self.long.resize(LONG_ENTRIES, LongEntry::default());
        }
    }

    /// Appends the ids of all pieces of `text`.
    #[inline(always)]
    pub(crate) fn encode(&mut self, bpe: &Bpe, pretokenizer: Pretokenizer, text: &[u8], out: &mut Vec<u32>) {
        let mut waiting = [Piece::default(); AHEAD];
        let mut count = 0;
        pretokenizer.for_each_piece(text, |start, end| {
            waiting[count] = self.ask_for(text, start, end);
            count += 1;
            if count == AHEAD {
                count = 0;
                for piece in &waiting {
                    self.encode_piece(bpe, text, piece, out);
                }
            }
        });
        for piece in &waiting[..count] {
            self.encode_piece(bpe, text, piece, out);
        }
    }

    /// Begins to load the cache line in which the ids of the piece `text[start..end]` are if they are remembered.
    #[inline(always)]
    fn ask_for(&self, text: &[u8], start: usize, end: usize) -> Piece {
        if end - start > MAX_KEY_BYTES {
            return Piece { start, end, key: 0, set: 0 };
        }
        let key = key_of(text, start, end);
        let set = HASH.of_key(key) as usize % SETS;
        prefetch(&self.sets[set]);
        Piece { start, end, key, set }
    }

    /// Appends the ids of a piece.
    #[inline(always)]
    fn encode_piece(&mut self, bpe: &Bpe, text: &[u8], piece: &Piece, out: &mut Vec<u32>) {
        let Piece { start, end, key, set } = *piece;
        if key == 0 {
            return self.encode_long(bpe, text, start, end, out);
        }
        let Set(entries) = &self.sets[set];
        // The way is chosen without a branch: which of the two it is cannot be foretold.
        let hit = &entries[usize::from(entries[0].key != key)];
        if hit.key != key {
            return self.encode_short(bpe, text, start, end, out);
        }
        if hit.len == 0 {
            return self.encode_long(bpe, text, start, end, out);
        }
        // A copy of constant length, then what is not part of it taken back: no call and no branch on the length.
        out.extend_from_slice(&hit.ids);
        out.truncate(out.len() + hit.len as usize - INLINE_IDS);
    }

    #[inline(never)]
    fn encode_short(&mut self, bpe: &Bpe, text: &[u8], start: usize, end: usize, out: &mut Vec<u32>) {
        let before = out.len();
        bpe.encode_piece(&text[start..end], &mut self.merge, out);
        let key = key_of(text, start, end);
        let mut entry = Entry { key, ..Entry::default() };
        let ids = &out[before..];
        if ids.len() <= INLINE_IDS {
            entry.ids[..ids.len()].copy_from_slice(ids);
            entry.len = ids.len() as u32;
        } else {
            self.remember_long(long_key_of(text, start, end), ids);
        }
        let set = &mut self.sets[HASH.of_key(key) as usize % SETS].0;
        set[1] = set[0];
        set[0] = entry;
    }

    #[inline(never)]
    fn encode_long(&mut self, bpe: &Bpe, text: &[u8], start: usize, end: usize, out: &mut Vec<u32>) {
        if end - start > MAX_LONG_KEY_BYTES {
            return bpe.encode_piece(&text[start..end], &mut self.merge, out);
        }
        let key = long_key_of(text, start, end);
        let entry = &self.long[HASH.of_long_key(key) as usize % LONG_ENTRIES];
        if entry.key == key {
            return out.extend_from_slice(&entry.ids[..entry.len as usize]);
        }
        let before = out.len();
        bpe.encode_piece(&text[start..end], &mut self.merge, out);
        self.remember_long(key, &out[before..]);
    }

    fn remember_long(&mut self, key: LongKey, ids: &[u32]) {
        if ids.len() <= LONG_IDS {
            let mut entry = LongEntry { key, ids: [0; LONG_IDS], len: ids.len() as u32 };
            entry.ids[..ids.len()].copy_from_slice(ids);
            self.long[HASH.of_long_key(key) as usize % LONG_ENTRIES] = entry;
        }
    }
}
