//! The register tile of fp16 multiply-adds: 14 rows of A by 32 rows of B.
//!
//! A panel is cut into blocks of [`BLOCK`] k. A block is a line of words for each pair of k, a word being the two fp16
//! values of one row, then a line of f32: the factors of the sums of this block, for each row. Lines of A hold its
//! rows in order, lines of B the even rows and then the odd ones.
//!
//! A sum of a block is kept in the two halves of a word, of the even and of the odd k, so that each half sums 64
//! products; one fp16 addition joins them, the result is widened, scaled and added to C in f32.
#![allow(unsafe_code)] // panels and vectors by address

use std::arch::x86_64::*;

/// Elements of k that are summed in fp16 before they are added to C.
pub(super) const BLOCK: usize = 128;
/// Rows of a panel of A.
pub(super) const MR: usize = 14;
/// Rows of a panel of B.
pub(super) const NR: usize = 32;

/// Lines of a panel of `k` elements.
pub(super) const fn lines(k: usize) -> usize {
    let (whole, rest) = (k / BLOCK, k % BLOCK);
    whole * (BLOCK / 2 + 1) + if rest > 0 { rest.div_ceil(2) + 1 } else { 0 }
}

/// True if the processor has the instructions.
pub(crate) fn available() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f")
        && has!("avx512bw")
        && has!("avx512dq")
        && has!("avx512vl")
        && has!("avx512vbmi2")
        && has!("avx512fp16")
}

/// One register tile.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) k: usize,
    pub(super) a: *const u32,
    pub(super) b: *const u32,
    /// `[MR][NR]`.
    pub(super) c: *mut f32,
    /// Memory to prefetch for later reads: so many bytes for each pair of k.
    pub(super) ahead: *const u8,
    pub(super) pace: usize,
}

impl Tile {
    /// `c = A B` of the first `rows` rows. `before(r)` is called for every row, spread over the blocks.
    ///
    /// # Safety
    /// [`available`]; the panels have `k` elements, and `c` holds a tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
    pub(super) unsafe fn run(&self, rows: usize, before: impl Fn(usize)) {
        // SAFETY: by contract.
        unsafe {
            match rows {
                1 => self.sums::<1>(before),
                2 => self.sums::<2>(before),
                3 => self.sums::<3>(before),
                4 => self.sums::<4>(before),
                5 => self.sums::<5>(before),
                6 => self.sums::<6>(before),
                7 => self.sums::<7>(before),
                8 => self.sums::<8>(before),
                9 => self.sums::<9>(before),
                10 => self.sums::<10>(before),
                11 => self.sums::<11>(before),
                12 => self.sums::<12>(before),
                13 => self.sums::<13>(before),
                14 => self.sums::<14>(before),
                _ => unreachable!("a register tile of {rows} rows"),
            }
        }
    }

    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
    unsafe fn sums<const M: usize>(&self, before: impl Fn(usize)) {
        let Tile { k, mut a, mut b, c, mut ahead, pace } = *self;
        let blocks = k.div_ceil(BLOCK).max(1);
        for block in 0..blocks {
            (M * block / blocks..M * (block + 1) / blocks).for_each(&before);
            let pairs = BLOCK.min(k - block * BLOCK).div_ceil(2);
            let mut acc = [[_mm512_setzero_ph(); 2]; MR];
            // SAFETY: the lines of this block, by contract; a prefetch may name any address.
            unsafe {
                for _ in 0..pairs {
                    let b0 = _mm512_castsi512_ph(_mm512_loadu_si512(b.cast()));
                    let b1 = _mm512_castsi512_ph(_mm512_loadu_si512(b.add(16).cast()));
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    ahead = ahead.wrapping_add(pace);
                    for (i, acc) in acc.iter_mut().enumerate().take(M) {
                        let x = _mm512_castsi512_ph(_mm512_set1_epi32(a.add(i).read().cast_signed()));
                        acc[0] = _mm512_fmadd_ph(x, b0, acc[0]);
                        acc[1] = _mm512_fmadd_ph(x, b1, acc[1]);
                    }
                    a = a.add(MR);
                    b = b.add(NR);
                }
                // Written out, because a loop would keep all sums in memory.
                macro_rules! rows {
                    ($($i:literal)*) => {$(
                        if $i < M {
                            flush(acc[$i], *a.add($i).cast(), b.cast(), c.add($i * NR), block > 0);
                        }
                    )*};
                }
                rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
                a = a.add(MR);
                b = b.add(NR);
            }
        }
    }
}

/// Adds the sums of one row of A to a row of C, scaled.
///
/// # Safety
/// [`available`]; NR scales of B, and a row of C. Compiled into a function that has the instructions.
#[inline(always)]
unsafe fn flush([even, odd]: [__m512h; 2], a: f32, b: *const f32, c: *mut f32, accumulate: bool) {
    /// The upper halves of words.
    const UPPER: u32 = 0xaaaa_aaaa;
    // SAFETY: by contract.
    unsafe {
        let (even, odd) = (_mm512_castph_si512(even), _mm512_castph_si512(odd));
        // Word j: row 2j of B in the lower half, row 2j + 1 in the upper one.
        let x = _mm512_castsi512_ph(_mm512_mask_blend_epi16(UPPER, even, odd));
        let y = _mm512_castsi512_ph(_mm512_shrdi_epi32::<16>(even, odd));
        let sum = _mm512_castph_si512(_mm512_add_ph(x, y));
        let a = _mm512_set1_ps(a);
        for (i, sum) in
            [_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum)].into_iter().enumerate()
        {
            let c = c.add(i * 16);
            let sum = _mm512_mul_ps(_mm512_cvtph_ps(sum), _mm512_loadu_ps(b.add(i * 16)));
            let prior = if accumulate { _mm512_loadu_ps(c) } else { _mm512_setzero_ps() };
            _mm512_storeu_ps(c, _mm512_fmadd_ps(sum, a, prior));
        }
    }
}
