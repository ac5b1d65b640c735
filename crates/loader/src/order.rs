//! A keyed bijection of [0, N): the order of samples within an epoch.
//!
//! Formula: write x in [0, a·b) as a pair (l, r) with l = x div b, r = x mod b, where a = ⌈√N⌉ and b = ⌈N/a⌉.
//! Rounds i = 0..8 alternate
//!
//! ```text
//! l ← l + F_i(r) mod a        (i even)
//! r ← r + F_i(l) mod b        (i odd)
//! ```
//!
//! with F_i(v) = mix(v xor key_i) scaled to the modulus. Every round can be undone by subtraction, so their
//! composition is a bijection of [0, a·b). Values at N or above are sent through again (*cycle walking*) until
//! they fall below N, which keeps it a bijection of [0, N); as a·b − N < a, a value is sent again with
//! probability below 1/√N.
//!
//! Cost: 8 mixes and 8 multiplications a sample, no memory, any position at once.
//!
//! Sources: J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002 (the generalised Feistel
//! network with addition modulo a and b, and cycle walking); mix is the finaliser of SplitMix64 (G. Steele,
//! D. Lea, C. Flood, OOPSLA 2014, with the constants of D. Stafford's variant 13). The aim is a good shuffle, not
//! secrecy.

use bessemer_units::splitmix::{GAMMA, mix, nth};

/// Version of the sample order: (seed, counter) means the same sample as long as this stays the same.
pub const ORDER_VERSION: u32 = 1;

const ROUNDS: usize = 8;

/// A seed for what has a name.
pub(crate) fn fold(seed: u64, name: &str) -> u64 {
    let step = |seed: u64, byte: u8| mix(seed.wrapping_add(GAMMA) ^ u64::from(byte));
    // The length keeps the seed of a name without bytes apart from the seed itself.
    name.bytes().fold(mix(seed ^ (name.len() as u64 + 1).wrapping_mul(GAMMA)), step)
}

/// A 64-bit value scaled to [0, modulus).
fn scale(value: u64, modulus: u64) -> u64 {
    ((u128::from(value) * u128::from(modulus)) >> 64) as u64
}

/// (l + f) mod m for l, f < m, without overflow.
fn add(l: u64, f: u64, m: u64) -> u64 {
    if l >= m - f { l - (m - f) } else { l + f }
}

/// (l − f) mod m for l, f < m, without overflow.
fn subtract(l: u64, f: u64, m: u64) -> u64 {
    if l >= f { l - f } else { l + (m - f) }
}

/// A permutation of [0, N) that belongs to (seed, epoch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    a: u64,
    b: u64,
    keys: [u64; ROUNDS],
    /// A further value of the key, for choices that belong to the epoch as a whole.
    extra: u64,
}

impl Permutation {
    /// The permutation of [0, n) for an epoch. `n` may be 0 (nothing to permute) and at most 2^63.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Permutation {
        assert!(n <= 1 << 63, "a permutation of more than 2^63 samples");
        let root = n.isqrt();
        let a = if root * root < n { root + 1 } else { root.max(1) };
        let b = n.div_ceil(a).max(1);
        let key = mix(nth(seed, 0) ^ epoch.wrapping_mul(GAMMA).wrapping_add(GAMMA));
        let sub_key = |i: usize| nth(key, i as u64);
        Permutation { n, a, b, keys: std::array::from_fn(sub_key), extra: sub_key(ROUNDS) }
    }

    /// Position that `i` is mapped to.
    ///
    /// # Panics
    /// If `i` is not below n.
    pub fn apply(&self, i: u64) -> u64 {
        assert!(i < self.n, "position {i} of a permutation of {}", self.n);
        let mut x = i;
        loop {
            let (mut l, mut r) = (x / self.b, x % self.b);
            for pair in self.keys.chunks_exact(2) {
                l = add(l, scale(mix(r ^ pair[0]), self.a), self.a);
                r = add(r, scale(mix(l ^ pair[1]), self.b), self.b);
            }
            x = l * self.b + r;
            if x < self.n {
                return x;
            }
        }
    }

    /// Position that is mapped to `x`: the inverse of [`Permutation::apply`], by rounds that subtract.
    ///
    /// # Panics
    /// If `x` is not below n.
    pub fn invert(&self, x: u64) -> u64 {
        assert!(x < self.n, "value {x} of a permutation of {}", self.n);
        let mut i = x;
        loop {
            let (mut l, mut r) = (i / self.b, i % self.b);
            for pair in self.keys.chunks_exact(2).rev() {
                r = subtract(r, scale(mix(l ^ pair[1]), self.b), self.b);
                l = subtract(l, scale(mix(r ^ pair[0]), self.a), self.a);
            }
            i = l * self.b + r;
            if i < self.n {
                return i;
            }
        }
    }

    /// A value of [0, bound) that belongs to the epoch as a whole and is independent of the order.
    pub(crate) fn epoch_value(&self, bound: u64) -> u64 {
        scale(self.extra, bound)
    }
}
