//! Pieces of at most 15 bytes as one 128-bit integer: the bytes, zero-padded, with the length in the top byte. Pieces of
//! at most 31 bytes as two.
//!
//! Nearly all pre-tokens are that short, so counting and caching compare one integer instead of following a pointer.
//! The hash is one 64 x 64 -> 128 bit product folded by exclusive or (the step of wyhash and its descendants).

use std::hash::{BuildHasher, Hasher, RandomState};

/// Longest piece that has a key.
pub(crate) const MAX_KEY_BYTES: usize = 15;

const LOW_BYTES: [u128; 16] = {
    let mut masks = [0u128; 16];
    let mut n = 1;
    while n < 16 {
        masks[n] = (masks[n - 1] << 8) | 0xFF;
        n += 1;
    }
    masks
};

/// Key of the piece `text[start..end]`, which has 1 to [`MAX_KEY_BYTES`] bytes. Never 0.
#[inline(always)]
pub(crate) fn key_of(text: &[u8], start: usize, end: usize) -> u128 {
    let len = end - start;
    debug_assert!((1..=MAX_KEY_BYTES).contains(&len));
    let bytes = match text.get(start..start + 16) {
        // Reads past the piece, within the text, and masks what does not belong to it.
        Some(block) => {
            u128::from_le_bytes(block.try_into().expect("a slice of 16 bytes")) & LOW_BYTES[len & 15]
        }
        None => {
            let mut block = [0; 16];
            block[..len].copy_from_slice(&text[start..end]);
            u128::from_le_bytes(block)
        }
    };
    bytes | ((len as u128) << 120)
}

/// Longest piece that has a [`LongKey`].
pub(crate) const MAX_LONG_KEY_BYTES: usize = 31;

/// Bytes of a piece, zero-padded, with the length in the last byte.
pub(crate) type LongKey = [u128; 2];

/// Key of the piece `text[start..end]`, which has 1 to [`MAX_LONG_KEY_BYTES`] bytes. Never all 0.
#[inline(always)]
pub(crate) fn long_key_of(text: &[u8], start: usize, end: usize) -> LongKey {
    let len = end - start;
    debug_assert!((1..=MAX_LONG_KEY_BYTES).contains(&len));
    if len <= MAX_KEY_BYTES {
        return [key_of(text, start, end), 0];
    }
    let (first, rest) = text[start..].split_first_chunk::<16>().expect("a piece of more than 15 bytes");
    let rest = if len == 16 { 0 } else { key_of(rest, 0, len - 16) };
    // The lengths of short pieces stand in the first half, which is full here.
    [u128::from_le_bytes(*first), rest | 0x80 << 120]
}

/// The bytes behind a key and their number.
pub(crate) fn bytes_of(key: u128) -> ([u8; 16], usize) {
    ((key & LOW_BYTES[15]).to_le_bytes(), (key >> 120) as usize)
}

/// A seeded hash of keys and byte strings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoldHash {
    seed: [u64; 2],
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl FoldHash {
    /// Fixed seed, for tables where a collision costs a recomputation at most.
    pub(crate) const fn fixed() -> Self {
        // First 128 bits of the fraction of pi.
        FoldHash { seed: [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344] }
    }

    /// Seed that text cannot be prepared against, for tables that grow with their input. Nothing that this crate
    /// returns depends on the seed.
    pub(crate) fn unpredictable() -> Self {
        let state = RandomState::new();
        FoldHash { seed: [state.hash_one(0u64), state.hash_one(1u64)] }
    }

    /// Hash of a key.
    #[inline(always)]
    pub(crate) fn of_key(&self, key: u128) -> u64 {
        fold(key as u64 ^ self.seed[0], (key >> 64) as u64 ^ self.seed[1])
    }

    /// Hash of a long key.
    #[inline(always)]
    pub(crate) fn of_long_key(&self, [first, second]: LongKey) -> u64 {
        let state = self.of_key(first);
        fold(second as u64 ^ self.seed[0] ^ state, (second >> 64) as u64 ^ self.seed[1])
    }
}

impl Default for FoldHash {
    fn default() -> Self {
        Self::unpredictable()
    }
}

impl BuildHasher for FoldHash {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher { seed: self.seed, state: self.seed[0] }
    }
}

/// Hasher of [`FoldHash`] for byte strings.
pub(crate) struct FoldHasher {
    seed: [u64; 2],
    state: u64,
}

impl Hasher for FoldHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (blocks, tail) = bytes.as_chunks::<16>();
        let mut last = [0u8; 16];
        last[..tail.len()].copy_from_slice(tail);
        for block in blocks.iter().chain([&last]) {
            let word = u128::from_le_bytes(*block);
            self.state = fold(word as u64 ^ self.seed[0] ^ self.state, (word >> 64) as u64 ^ self.seed[1]);
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.state = fold(self.state ^ value, self.seed[1] | 1);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_depends_on_the_piece_alone_and_gives_it_back() {
        let text = b"abcdefghijklmnopqrstuvwxyz\0\0\0";
        for start in 0..text.len() {
            for end in start + 1..=(start + MAX_KEY_BYTES).min(text.len()) {
                let piece = &text[start..end];
                let key = key_of(text, start, end);
                assert_eq!(key, key_of(piece, 0, piece.len()));
                let (bytes, len) = bytes_of(key);
                assert_eq!(&bytes[..len], piece);
            }
        }
        assert_ne!(key_of(b"a", 0, 1), key_of(b"a\0", 0, 2));
    }

    #[test]
    fn long_keys_differ_for_every_two_pieces() {
        let texts = [&b"abcdefghijklmnopqrstuvwxyzabcdefghijkl"[..], &[0; 40], &[0x80; 40]];
        let mut keys = std::collections::HashMap::new();
        for text in texts {
            for start in 0..text.len() {
                for end in start + 1..=(start + MAX_LONG_KEY_BYTES).min(text.len()) {
                    let piece = &text[start..end];
                    let key = long_key_of(text, start, end);
                    assert_eq!(key, long_key_of(piece, 0, piece.len()));
                    assert_eq!(keys.entry(key).or_insert(piece), &piece);
                    assert_ne!(key, LongKey::default());
                }
            }
        }
    }
}
