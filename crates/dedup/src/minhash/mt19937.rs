//! The Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), as NumPy's `RandomState` seeds and reads it: signatures
//! that other tools wrote can be compared with ours only if the permutations are the same numbers.

const LENGTH: usize = 624;
const MIDDLE: usize = 397;

/// The generator.
#[derive(Debug, Clone)]
pub struct Mt19937 {
    state: [u32; LENGTH],
    next: usize,
}

impl Mt19937 {
    /// `init_genrand(seed)`: what `numpy.random.RandomState(seed)` does with an integer.
    pub fn new(seed: u32) -> Self {
        let mut state = [0; LENGTH];
        state[0] = seed;
        for at in 1..LENGTH {
            let last: u32 = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(at as u32);
        }
        Mt19937 { state, next: LENGTH }
    }

    fn renew(&mut self) {
        for at in 0..LENGTH {
            let y = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % LENGTH] & 0x7fff_ffff);
            let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + MIDDLE) % LENGTH] ^ (y >> 1) ^ twist;
        }
        self.next = 0;
    }

    /// 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == LENGTH {
            self.renew();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// 64 bits: the first draw is the high word.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) << 32 | u64::from(self.next_u32())
    }

    /// `RandomState.randint(low, high, dtype=uint64)` for ranges above 2^32: 64 bits are masked to the range's width
    /// and drawn again while they are too large.
    pub fn below(&mut self, low: u64, high: u64) -> u64 {
        let range = high - 1 - low;
        let mask = u64::MAX >> range.leading_zeros().min(63);
        loop {
            let value = self.next_u64() & mask;
            if value <= range {
                return low + value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        // The first output for the default seed of the reference code.
        let mut twister = Mt19937::new(5489);
        assert_eq!(twister.next_u32(), 3_499_211_612);
        for _ in 1..9_999 {
            twister.next_u32();
        }
        // The value that C++11 prescribes for the 10,000th output.
        assert_eq!(twister.next_u32(), 4_123_659_995);
    }
}
