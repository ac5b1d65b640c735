//! SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): numbers as a function of a seed and a counter.
//!
//! Stored data, orders of samples and golden files depend on these numbers: they never change.

/// Increment of the counter: 2^64 divided by the golden ratio, odd.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Finalizer of SplitMix64 (variant 13 of D. Stafford): a bijection in which every bit of the argument changes each
/// bit of the result with a probability near one half. 0 is mixed to 0.
#[inline]
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Number `index` of the sequence that starts at `seed`, without those before it.
#[inline]
pub const fn nth(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(GAMMA.wrapping_mul(index.wrapping_add(1))))
}

/// Scales a word to [0, 1): its upper 53 bits, so that every value is an f64 of its own.
#[inline]
pub const fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// The sequence that starts at a seed, one number after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns the next number.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number below `end` by remainder; the bias is below `end` / 2^64.
    #[inline]
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns an index of a sequence of `len` elements; 0 if it is empty.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // splitmix64.c by S. Vigna with seed 1234567.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut generator = SplitMix64(1_234_567);
        assert_eq!(std::array::from_fn(|_| generator.next_u64()), published);
        assert_eq!([0, 1, 2, 3, 4].map(|index| nth(1_234_567, index)), published);
        assert_eq!((unit(0), unit(u64::MAX)), (0.0, 1.0 - f64::EPSILON / 2.0));
    }
}
