//! A Bloom filter (Bloom 1970) in shards.
//!
//! ```text
//! k = ⌈m/n ln 2⌉      p = (1 − (1 − 1/m)^{kn})^k      positions (h1 + i h2) mod m, i = 0 … k − 1
//! ```
//! h1 is the key itself, a well-mixed 64-bit hash; h2 is the finaliser of SplitMix64 of it, made odd (Kirsch,
//! Mitzenmacher, "Less Hashing, Same Performance", 2006). The highest six bits of the key choose the shard.

use super::SHARDS;
use bessemer_units::splitmix::mix;

/// Bits of the smallest filter: 1 MiB.
const SMALLEST: u64 = 8 << 20;

/// Bits and hashes of a filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Bits, a power of two.
    pub bits: u64,
    /// Positions of a key.
    pub hashes: u32,
    /// Share of false answers when the expected number of keys is in.
    pub false_positives: f64,
}

impl Size {
    /// The smallest size, doubled from 1 MiB, at which `expected` keys give at most `target` false answers.
    pub fn for_keys(expected: u64, target: f64) -> Size {
        let mut bits = SMALLEST;
        loop {
            let (m, n) = (bits as f64, expected.max(1) as f64);
            let hashes = (m / n * std::f64::consts::LN_2).ceil().clamp(1.0, 64.0);
            // (1 − 1/m)^(kn) without losing 1/m in the rounding of 1.
            let empty = (hashes * n * (-1.0 / m).ln_1p()).exp();
            let false_positives = (1.0 - empty).powf(hashes);
            if false_positives <= target || bits >= 1 << 50 {
                return Size { bits, hashes: hashes as u32, false_positives };
            }
            bits *= 2;
        }
    }
}

/// The filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    hashes: u32,
    words: Vec<u64>,
}

/// One shard of a filter while several threads work on different ones.
pub(super) struct Shard<'f> {
    words: &'f mut [u64],
    hashes: u32,
}

impl Shard<'_> {
    fn positions(&self, key: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let mask = self.words.len() as u64 * 64 - 1;
        let step = mix(key) | 1;
        (0..u64::from(self.hashes)).map(move |i| {
            let bit = key.wrapping_add(i.wrapping_mul(step)) & mask;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.positions(key).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub(super) fn insert(&mut self, key: u64) {
        for (word, bit) in self.positions(key) {
            self.words[word] |= bit;
        }
    }
}

/// The shard of a key.
pub(super) fn shard_of(key: u64) -> usize {
    (key >> 58) as usize
}

impl Filter {
    /// An empty filter.
    pub fn new(size: Size) -> Filter {
        Filter { hashes: size.hashes, words: vec![0; (size.bits / 64) as usize] }
    }

    /// All shards, each to be given to one thread.
    pub(super) fn shards(&mut self) -> Vec<Shard<'_>> {
        let length = self.words.len() / SHARDS;
        let hashes = self.hashes;
        self.words.chunks_exact_mut(length).map(|words| Shard { words, hashes }).collect()
    }

    fn shard(&mut self, key: u64) -> Shard<'_> {
        let length = self.words.len() / SHARDS;
        let at = shard_of(key) * length;
        Shard { words: &mut self.words[at..at + length], hashes: self.hashes }
    }

    /// Whether a key may have been inserted.
    pub fn contains(&mut self, key: u64) -> bool {
        self.shard(key).contains(key)
    }

    /// Inserts a key.
    pub fn insert(&mut self, key: u64) {
        self.shard(key).insert(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::splitmix::nth;

    #[test]
    fn sizes_are_those_of_dolma() {
        let million = Size::for_keys(1_000_000, 0.01);
        assert_eq!((million.bits, million.hashes), (2 << 23, 12));
        assert!((million.false_positives - 3.165e-4).abs() < 5e-8, "{}", million.false_positives);
        let billion = Size::for_keys(1_000_000_000, 0.01);
        assert_eq!((billion.bits, billion.hashes), (2 << 33, 12));
        assert!((billion.false_positives - 2.602e-4).abs() < 5e-8, "{}", billion.false_positives);
    }

    #[test]
    fn false_answers_are_as_rare_as_the_formula_says() {
        let size = Size { bits: 1 << 18, hashes: 5, false_positives: 0.0 };
        let mut filter = Filter::new(size);
        let keys = 30_000;
        (0..keys).for_each(|i| filter.insert(nth(1, i)));
        assert!((0..keys).all(|i| filter.contains(nth(1, i))), "none is forgotten");
        let wrong = (0..100_000).filter(|&i| filter.contains(nth(2, i))).count() as f64 / 100_000.0;
        let (m, n, k) = ((1 << 18) as f64, keys as f64, 5.0);
        let expected = (1.0 - (1.0 - 1.0 / m).powf(k * n)).powf(k);
        assert!((wrong - expected).abs() < 5.0 * (expected / 100_000.0).sqrt(), "{wrong} {expected}");
    }
}
