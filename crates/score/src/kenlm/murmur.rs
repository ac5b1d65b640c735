//! MurmurHash64A (Austin Appleby, public domain), by which KenLM names words.

/// The hash of `bytes` with `seed`.
pub(crate) fn murmur64(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut h = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let eights = bytes.chunks_exact(8);
    let rest = eights.remainder();
    for eight in eights {
        let mut k = u64::from_le_bytes(eight.try_into().expect("eight bytes")).wrapping_mul(M);
        k = (k ^ (k >> 47)).wrapping_mul(M);
        h = (h ^ k).wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate() {
            h ^= (byte as u64) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 47)).wrapping_mul(M);
    h ^ (h >> 47)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_words_are_those_of_kenlm() {
        assert_eq!(murmur64(b"a", 0), 510_903_276_987_443_985);
        assert_eq!(murmur64(b"hello", 0), 2_191_231_550_387_646_743);
        assert_eq!(murmur64(b"</s>", 0), 7_773_339_941_609_106_442);
    }
}
