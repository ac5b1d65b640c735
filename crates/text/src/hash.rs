//! Hashes of text, each under the name by which tools of the field know it.

use sha1::{Digest, Sha1};

/// xxHash64, seed 0: datatrove's `xxhash` at 64 bits.
#[inline]
pub fn xxh64(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(bytes, 0)
}

/// XXH3, 64 bits, seed 0.
#[inline]
pub fn xxh3(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// XXH3, 64 bits, with a seed.
#[inline]
pub fn xxh3_seeded(bytes: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

/// XXH3, 128 bits, seed 0.
#[inline]
pub fn xxh3_128(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

/// The first 8 bytes of SHA-1 as a little-endian number: datatrove's `sha1` at 64 bits, and `cc_net`'s key.
#[inline]
pub fn sha1_64(bytes: &[u8]) -> u64 {
    let digest = Sha1::digest(bytes);
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// Most bytes of [`packed`].
pub const PACKED: usize = 16;

/// Masks of the first bytes of a little-endian number.
const MASKS: [u128; PACKED + 1] = {
    let mut masks = [0; PACKED + 1];
    let mut len = 1;
    while len <= PACKED {
        masks[len] = u128::MAX >> (128 - 8 * len);
        len += 1;
    }
    masks
};

/// At most 16 bytes of a text as one number, little-endian, filled up with zeros; none for more bytes. With the number of
/// bytes beside it, the number tells short words apart without a comparison of bytes.
#[inline]
pub fn packed(text: &[u8], start: usize, end: usize) -> Option<u128> {
    let mask = MASKS.get(end - start)?;
    // Reading a constant number of bytes and masking them is faster than reading the right number.
    Some(match text[start..].first_chunk::<PACKED>() {
        Some(bytes) => u128::from_le_bytes(*bytes) & mask,
        None => {
            let mut bytes = [0; PACKED];
            bytes[..end - start].copy_from_slice(&text[start..end]);
            u128::from_le_bytes(bytes)
        }
    })
}

/// A hash of bytes, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// [`sha1_64`].
    Sha1,
    /// [`xxh64`].
    Xxh64,
    /// [`xxh3`].
    Xxh3,
}

impl Hash {
    /// Every hash.
    pub const ALL: [Hash; 3] = [Hash::Sha1, Hash::Xxh64, Hash::Xxh3];

    /// `sha1`, `xxh64` or `xxh3`.
    pub const fn name(self) -> &'static str {
        match self {
            Hash::Sha1 => "sha1",
            Hash::Xxh64 => "xxh64",
            Hash::Xxh3 => "xxh3",
        }
    }

    /// The hash of this name.
    pub fn named(name: &str) -> Option<Hash> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// 64 bits of these bytes.
    #[inline]
    pub fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Hash::Sha1 => sha1_64(bytes),
            Hash::Xxh64 => xxh64(bytes),
            Hash::Xxh3 => xxh3(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        assert_eq!(sha1_64(b"hello"), 11_738_849_977_924_252_842);
        assert_eq!(xxh64(b"hello"), 2_794_345_569_481_354_659);
        // xxhash.xxh3_64_intdigest("hello") and xxhash.xxh3_128_intdigest("hello") of python-xxhash.
        assert_eq!(xxh3(b"hello"), 0x9555_e855_5c62_dcfd);
        assert_eq!(xxh3_128(b"hello"), 0xb5e9_c1ad_071b_3e7f_c779_cfaa_5e52_3818);
    }

    #[test]
    fn packed_bytes() {
        let text: Vec<u8> = (1..=20).collect();
        for start in 0..=20 {
            for end in start..=20 {
                let mut bytes = [0; 16];
                let short = end - start <= 16;
                if short {
                    bytes[..end - start].copy_from_slice(&text[start..end]);
                }
                assert_eq!(packed(&text, start, end), short.then(|| u128::from_le_bytes(bytes)));
            }
        }
    }

    #[test]
    fn names() {
        for hash in Hash::ALL {
            assert_eq!(Hash::named(hash.name()), Some(hash));
        }
        assert_eq!(Hash::named("md5"), None);
        assert_eq!(Hash::Sha1.of(b"hello"), sha1_64(b"hello"));
    }
}
