//! Mixing of 64-bit words: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection in which every bit of
//! the argument changes each bit of the result with a probability near one half.

/// The finaliser of SplitMix64.
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Word `index` of the stream of SplitMix64 that `seed` starts.
#[inline]
pub(crate) fn stream(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::stream;

    #[test]
    fn golden_values() {
        // The first outputs of java.util.SplittableRandom's generator for seed 1234567 (Vigna's splitmix64.c).
        assert_eq!(
            [0, 1, 2, 3, 4].map(|index| stream(1_234_567, index)),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }
}
