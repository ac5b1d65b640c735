//! The Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), for numbers that must equal those of other programs: NumPy and CPython seed it
//! differently and read the same words. [`PythonRandom`]: what CPython's `random.Random` makes of them. Nothing in training draws from it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod python;

pub use python::PythonRandom;

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
    pub fn new(seed: u32) -> Mt19937 {
        let mut state = [0; LENGTH];
        state[0] = seed;
        for at in 1..LENGTH {
            let last: u32 = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(at as u32);
        }
        Mt19937 { state, next: LENGTH }
    }

    /// `init_by_array` with the one or two 32-bit words of a number: what CPython's `random.Random(seed)` does with an integer.
    pub fn of_number(seed: u64) -> Mt19937 {
        Mt19937::of_words(&[seed as u32, (seed >> 32) as u32])
    }

    /// `init_by_array` with the 32-bit words of a number, the lowest first; words of 0 at the end do not count.
    pub(crate) fn of_words(words: &[u32]) -> Mt19937 {
        let length = words.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
        let zero = [0];
        let key = words.get(..length).unwrap_or(&zero);
        let Mt19937 { mut state, .. } = Mt19937::new(19_650_218);
        let (mut i, mut j) = (1, 0);
        let mix = |state: &[u32; LENGTH], i: usize, factor: u32| {
            let last = state[i - 1];
            state[i] ^ (last ^ (last >> 30)).wrapping_mul(factor)
        };
        let advance = |state: &mut [u32; LENGTH], i: usize| match i + 1 {
            LENGTH => {
                state[0] = state[LENGTH - 1];
                1
            }
            next => next,
        };
        for _ in 0..LENGTH.max(key.len()) {
            state[i] = mix(&state, i, 1_664_525).wrapping_add(key[j]).wrapping_add(j as u32);
            i = advance(&mut state, i);
            j = (j + 1) % key.len();
        }
        for _ in 1..LENGTH {
            state[i] = mix(&state, i, 1_566_083_941).wrapping_sub(i as u32);
            i = advance(&mut state, i);
        }
        state[0] = 0x8000_0000;
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

    /// 53 bits in [0, 1): `random()` of CPython, `random_sample()` of NumPy's `RandomState`.
    pub fn uniform(&mut self) -> f64 {
        let (a, b) = (self.next_u32() >> 5, self.next_u32() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
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
