//! Random numbers as functions of a seed and a key, so that no order of work changes them.

use bessemer_units::splitmix::{SplitMix64, mix};

/// The numbers of one key: SplitMix64 from a state that mixes seed and key.
#[derive(Debug, Clone)]
pub(crate) struct Uniform(SplitMix64);

impl Uniform {
    pub(crate) fn new(seed: u64, key: u64) -> Uniform {
        Uniform(SplitMix64(mix(seed ^ 0x6a09_e667_f3bc_c909).wrapping_add(mix(key))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in 0..bound; `bound` is at least 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// Uniform in the open interval from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }
}
