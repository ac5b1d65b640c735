//! Random numbers as functions of a seed and a key, so that no order of work changes them.

/// The numbers of one key: SplitMix64 (Steele, Lea, Flood 2014) from a state that mixes seed and key.
#[derive(Debug, Clone)]
pub(crate) struct Uniform {
    state: u64,
}

impl Uniform {
    pub(crate) fn new(seed: u64, key: u64) -> Uniform {
        Uniform { state: mix(seed ^ 0x6a09_e667_f3bc_c909).wrapping_add(mix(key)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
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

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
