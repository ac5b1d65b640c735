//! Signatures of datatrove, bit for bit.
//!
//! ```text
//! h_i(x)  = ((a_i x + b_i) mod 2^64) mod (2^61 − 1)        [& (2^32 − 1) at 32 bits]
//! sig_i   = min over shingles x of h_i(x)
//! ```
//! a in [1, 2^61 − 1), b in [0, 2^61 − 1), drawn by NumPy's `RandomState(seed)`, all a first. The wrap at 2^64 comes
//! before the modulus, so this is not the universal family of Carter and Wegman; it stays, because signatures that
//! are written elsewhere could not be compared otherwise. [`Sketcher`](super::Sketcher) is ours.
//!
//! Cost: one multiplication and about six cheap operations per shingle and permutation; blocks of permutations stay in
//! registers while the shingles pass. Processors with AVX-512 multiply eight 64-bit numbers at once, which is what most of the
//! time goes to elsewhere; the values are the same.

use bessemer_mersenne::Mt19937;

/// The Mersenne prime 2^61 − 1.
pub const PRIME: u64 = (1 << 61) - 1;

/// Bits of a signature's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Width {
    /// 64-bit values (of which 61 are used): datatrove's default.
    #[default]
    W64,
    /// 32-bit values.
    W32,
}

/// Permutations that a block holds in registers: two registers' worth with AVX-512.
const BLOCK: usize = 16;

/// Instructions that blocks are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// All that this processor has.
    fn available() -> Vec<Instructions> {
        let mut found = vec![Instructions::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                found.push(Instructions::Avx2);
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                found.push(Instructions::Avx512);
            }
        }
        found
    }
}

/// NumPy's `RandomState.randint(low, high, dtype=uint64)` for ranges above 2^32: 64 bits are masked to the range's width and drawn again while
/// they are too large. Signatures that other tools wrote compare with ours only if these are the same numbers.
fn below(twister: &mut Mt19937, low: u64, high: u64) -> u64 {
    let range = high - 1 - low;
    let mask = u64::MAX >> range.leading_zeros().min(63);
    loop {
        let value = twister.next_u64() & mask;
        if value <= range {
            return low + value;
        }
    }
}

/// A family of permutations.
#[derive(Debug, Clone)]
pub struct Permutations {
    a: Vec<u64>,
    b: Vec<u64>,
    width: Width,
    /// Available on this processor: nothing but [`Instructions::available`] names them.
    instructions: Instructions,
}

impl Permutations {
    /// `count` permutations of this seed. datatrove's: `new(112, 1, Width::W64)`.
    pub fn new(count: usize, seed: u32, width: Width) -> Self {
        let mut twister = Mt19937::new(seed);
        let a = (0..count).map(|_| below(&mut twister, 1, PRIME)).collect();
        let b = (0..count).map(|_| below(&mut twister, 0, PRIME)).collect();
        let best = Instructions::available().pop().unwrap_or(Instructions::Portable);
        Permutations { a, b, width, instructions: best }
    }

    /// Number of permutations.
    pub fn count(&self) -> usize {
        self.a.len()
    }

    /// Multipliers and addends.
    pub fn parameters(&self) -> (&[u64], &[u64]) {
        (&self.a, &self.b)
    }

    /// The signature of hashed shingles into `out`, one value per permutation. Without shingles there is none, and
    /// every value is `u64::MAX`.
    ///
    /// # Panics
    /// If `out` has another length than there are permutations.
    pub fn signature(&self, shingles: &[u64], out: &mut [u64]) {
        assert_eq!(out.len(), self.count(), "one value for each permutation");
        out.fill(u64::MAX);
        match self.width {
            Width::W64 => self.minima::<u64>(shingles, out),
            Width::W32 => self.minima::<u32>(shingles, out),
        }
    }

    fn minima<C: Cut>(&self, shingles: &[u64], out: &mut [u64]) {
        let (a, last_a) = self.a.as_chunks::<BLOCK>();
        let (b, last_b) = self.b.as_chunks::<BLOCK>();
        let (out, last) = out.as_chunks_mut::<BLOCK>();
        for ((a, b), low) in a.iter().zip(b).zip(out) {
            *low = match self.instructions {
                Instructions::Portable => block::<C, BLOCK>(a, b, shingles),
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code, reason = "`new` has asked the processor for these instructions")]
                Instructions::Avx2 => unsafe { avx2::<C>(a, b, shingles) },
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code, reason = "`new` has asked the processor for these instructions")]
                Instructions::Avx512 => unsafe { avx512::<C>(a, b, shingles) },
            };
        }
        for ((a, b), low) in last_a.iter().zip(last_b).zip(last) {
            [*low] = block::<C, 1>(&[*a], &[*b], shingles);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<C: Cut>(a: &[u64; BLOCK], b: &[u64; BLOCK], shingles: &[u64]) -> [u64; BLOCK] {
    // Half a block: sixteen registers hold no more.
    let halves = [0, 1].map(|half| {
        let (a, b) = (&a.as_chunks::<{ BLOCK / 2 }>().0[half], &b.as_chunks::<{ BLOCK / 2 }>().0[half]);
        block::<C, { BLOCK / 2 }>(a, b, shingles)
    });
    std::array::from_fn(|lane| halves.as_flattened()[lane])
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn avx512<C: Cut>(a: &[u64; BLOCK], b: &[u64; BLOCK], shingles: &[u64]) -> [u64; BLOCK] {
    block::<C, BLOCK>(a, b, shingles)
}

/// Part of a value that is kept.
trait Cut {
    const MASK: u64;
}

impl Cut for u64 {
    const MASK: u64 = u64::MAX;
}

impl Cut for u32 {
    const MASK: u64 = u32::MAX as u64;
}

/// The minima of `B` permutations.
///
/// y mod (2^61 − 1) without division: the high three bits of y are added to the low 61 (2^61 is 1), which leaves a
/// value of at most 2^61 + 6, and one subtraction at most. `t.wrapping_sub(PRIME)` is huge unless t is at least the
/// prime, so the lower of the two is the remainder.
///
/// Always inlined, so that it is compiled with the instructions of its caller.
#[inline(always)]
fn block<C: Cut, const B: usize>(a: &[u64; B], b: &[u64; B], shingles: &[u64]) -> [u64; B] {
    let mut low = [u64::MAX; B];
    for &x in shingles {
        for lane in 0..B {
            let y = x.wrapping_mul(a[lane]).wrapping_add(b[lane]);
            let t = (y & PRIME) + (y >> 61);
            low[lane] = low[lane].min(t.min(t.wrapping_sub(PRIME)) & C::MASK);
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_text::hash::sha1_64;
    use bessemer_text::ngram::Joined;

    fn fox() -> Vec<u64> {
        let words = "the quick brown fox jumps over the lazy dog".split(' ');
        Joined::spaced(words).hashes(5, sha1_64).collect()
    }

    #[test]
    fn parameters_and_signature_are_those_of_datatrove() {
        let family = Permutations::new(112, 1, Width::W64);
        let (a, b) = family.parameters();
        assert_eq!(a[..3], [775_169_054_918_279_404, 1_758_426_461_858_698_313, 2_109_959_069_025_162]);
        assert_eq!(b[..3], [1_062_448_801_025_099_917, 1_324_811_268_927_594_100, 1_217_488_311_597_731_462]);
        let mut signature = vec![0; 112];
        family.signature(&fox(), &mut signature);
        assert_eq!(
            signature[..8],
            [
                585_594_454_516_184_072,
                284_080_765_670_708_113,
                594_234_408_324_153_881,
                226_360_113_463_360_020,
                42_312_182_183_823_545,
                295_150_809_832_830_541,
                316_606_424_307_206_655,
                439_255_022_718_586_444
            ]
        );
        // The reference gives SHA-256 5111488576fd07f0… of the 112 values; ours of the same bytes is XXH3, and was
        // taken from the array whose SHA-256 was that.
        let bytes: Vec<u8> = signature.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bessemer_text::hash::xxh3(&bytes), GOLDEN_XXH3);
    }

    const GOLDEN_XXH3: u64 = 164_905_656_225_167_143;

    #[test]
    fn edges_of_the_modulus_and_odd_counts_agree_with_division() {
        let shingles = [0, 1, PRIME - 1, PRIME, PRIME + 1, u64::MAX, u64::MAX - 7, 1 << 61, 1 << 63];
        for (count, width, mask) in [(35, Width::W64, u64::MAX), (16, Width::W32, u64::from(u32::MAX))] {
            let mut family = Permutations::new(count, 3, width);
            // Identity-like permutations reach values at the edge of the modulus.
            (family.a[0], family.b[0]) = (1, 0);
            (family.a[1], family.b[1]) = (1, PRIME - 1);
            for take in 0..shingles.len() {
                for instructions in Instructions::available() {
                    family.instructions = instructions;
                    let mut found = vec![0; count];
                    family.signature(&shingles[take..], &mut found);
                    for (at, value) in found.iter().enumerate() {
                        let hash = |x: &u64| {
                            (x.wrapping_mul(family.a[at]).wrapping_add(family.b[at]) % PRIME) & mask
                        };
                        assert_eq!(Some(*value), shingles[take..].iter().map(hash).min(), "{instructions:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_shingles_no_signature() {
        let mut signature = vec![0; 9];
        Permutations::new(9, 1, Width::W64).signature(&[], &mut signature);
        assert_eq!(signature, vec![u64::MAX; 9]);
    }
}
