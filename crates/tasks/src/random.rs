//! CPython's `random.Random(seed)`: `random`, `randrange` and `sample` over the Mersenne Twister. The harness draws few-shot examples and bootstrap
//! samples with it, so equal prompts need the same numbers.

use bessemer_mersenne::Mt19937;

/// `random.Random`.
#[derive(Debug, Clone)]
pub(crate) struct Random(Mt19937);

impl Random {
    /// `random.Random(seed)` of an integer.
    pub(crate) fn new(seed: u64) -> Random {
        Random(Mt19937::of_number(seed))
    }

    /// `random()`: 53 bits in [0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        let (a, b) = (self.0.next_u32() >> 5, self.0.next_u32() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }

    /// `randrange(n)` for 1 <= n < 2^32.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let value = (self.0.next_u32() >> (32 - bits.clamp(1, 32))) as usize;
            if value < n {
                return value;
            }
        }
    }

    /// Places of `sample(population, k)` in a population of `n`, in the order drawn. `k` is at most `n`.
    pub(crate) fn sample(&mut self, n: usize, k: usize) -> Vec<usize> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPython 3.11: `r = random.Random(1234); r.sample(range(10), 3), r.sample(range(1000), 7), r.random(), r.randrange(5)`.
    #[test]
    fn numbers_are_those_of_cpython() {
        let mut r = Random::new(1234);
        assert_eq!(r.sample(10, 3), SMALL);
        assert_eq!(r.sample(1000, 7), LARGE);
        assert_eq!(r.uniform(), UNIFORM);
        assert_eq!(r.below(5), BELOW);
        let mut wide = Random::new(1 << 40);
        assert_eq!(wide.uniform(), WIDE);
    }

    const SMALL: [usize; 3] = [7, 1, 0];
    const LARGE: [usize; 7] = [92, 932, 965, 961, 826, 596, 35];
    const UNIFORM: f64 = 0.6715634814879851;
    const BELOW: usize = 0;
    const WIDE: f64 = 0.1036394562812375;
}
