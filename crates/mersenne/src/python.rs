//! CPython's `random.Random` over the Mersenne Twister: the lm-evaluation-harness draws few-shot examples and bootstrap samples with it, NL-Augmenter and
//! HELM their perturbations, so equal prompts need the same numbers.

use crate::Mt19937;
use sha2::{Digest, Sha512};

/// `random.Random`.
#[derive(Debug, Clone)]
pub struct PythonRandom(Mt19937);

impl PythonRandom {
    /// `random.Random(seed)` of an integer.
    pub fn new(seed: u64) -> PythonRandom {
        PythonRandom(Mt19937::of_number(seed))
    }

    /// `random.Random(seed)` of a text: the number whose bytes, the highest first, are those of the text and of its SHA-512.
    pub fn of_text(seed: &str) -> PythonRandom {
        let mut bytes = seed.as_bytes().to_vec();
        bytes.extend(Sha512::digest(seed.as_bytes()));
        let word = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let words: Vec<u32> = bytes.rchunks(4).map(word).collect();
        PythonRandom(Mt19937::of_words(&words))
    }

    /// `getrandbits(32)`.
    pub fn bits(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// `random()`: 53 bits in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0.uniform()
    }

    /// `randrange(n)` for 1 <= n < 2^32.
    pub fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let value = (self.0.next_u32() >> (32 - bits.clamp(1, 32))) as usize;
            if value < n {
                return value;
            }
        }
    }

    /// Places of `sample(population, k)` in a population of `n`, in the order drawn. `k` is at most `n`.
    pub fn sample(&mut self, n: usize, k: usize) -> Vec<usize> {
        let mut set_size = 21;
        if k > 5 {
            // 4 ** ceil(log(3 k, 4)).
            let mut power = 1;
            while power < 3 * k {
                power *= 4;
            }
            set_size += power;
        }
        if n <= set_size {
            let mut pool: Vec<usize> = (0..n).collect();
            return (0..k)
                .map(|i| {
                    let j = self.below(n - i);
                    let drawn = pool[j];
                    pool[j] = pool[n - i - 1];
                    drawn
                })
                .collect();
        }
        let mut drawn = Vec::with_capacity(k);
        let mut seen = std::collections::HashSet::new();
        while drawn.len() < k {
            let j = self.below(n);
            if seen.insert(j) {
                drawn.push(j);
            }
        }
        drawn
    }

    /// Places of `choices(population, k=k)` in a population of `n`, which is 1 or more.
    pub fn choices(&mut self, n: usize, k: usize) -> Vec<usize> {
        (0..k).map(|_| ((self.uniform() * n as f64) as usize).min(n.saturating_sub(1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPython 3.11: `r = random.Random(1234); r.sample(range(10), 3), r.sample(range(1000), 7), r.random(), r.randrange(5)`.
    #[test]
    fn numbers_are_those_of_cpython() {
        let mut r = PythonRandom::new(1234);
        assert_eq!(r.sample(10, 3), SMALL);
        assert_eq!(r.sample(1000, 7), LARGE);
        assert_eq!(r.uniform(), UNIFORM);
        assert_eq!(r.below(5), BELOW);
        let mut wide = PythonRandom::new(1 << 40);
        assert_eq!(wide.uniform(), WIDE);
    }

    const SMALL: [usize; 3] = [7, 1, 0];
    const LARGE: [usize; 7] = [92, 932, 965, 961, 826, 596, 35];
    const UNIFORM: f64 = 0.6715634814879851;
    const BELOW: usize = 0;
    const WIDE: f64 = 0.1036394562812375;

    /// CPython 3.11: `random.Random("id0").random()`, `random.Random("").random()`, `random.Random("é").getrandbits(32)`.
    #[test]
    fn texts_are_seeds_as_in_cpython() {
        assert_eq!(PythonRandom::of_text("id0").uniform(), ID0);
        assert_eq!(PythonRandom::of_text("").uniform(), EMPTY);
        assert_eq!(PythonRandom::of_text("é").bits(), ACCENT);
        // random.Random(7).choices(range(10), k=5)
        assert_eq!(PythonRandom::new(7).choices(10, 5), CHOICES);
    }

    const ID0: f64 = 0.51172047939132;
    const EMPTY: f64 = 0.9602256525641875;
    const ACCENT: u32 = 4_161_502_405;
    const CHOICES: [usize; 5] = [3, 1, 6, 0, 5];
}
