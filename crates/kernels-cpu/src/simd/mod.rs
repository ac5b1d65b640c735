//! Vectors of f32 as a trait, so that a kernel is written once and compiled for each instruction set.
//!
//! A kernel is a [`Kernel`]: a plain value whose `run` is generic over [`Simd`]. [`dispatch`] calls it inside a function
//! that has the instruction set enabled; every function between is `#[inline(always)]`, so the generic code
//! is inlined into that function and compiled to its instructions.
//!
//! Invariant: an implementation for an instruction set is called only if the processor has it. Only [`dispatch`]
//! picks implementations, and a [`crate::CpuBackend`] is not made for an instruction set that is not available.
#![allow(unsafe_code)] // processor intrinsics

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod portable;

use crate::Rung;
use crate::element::Element;
pub(crate) use portable::Portable;

/// Vectors of [`Simd::LANES`] f32 values.
///
/// # Safety
/// All functions need the instructions of the implementation; pointers need as many elements as are read or written.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// A vector.
    type V: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Rows of the register tile of attention's products.
    const MR: usize;
    /// Columns of that register tile: two vectors.
    const NR: usize = 2 * Self::LANES;
    /// Queries of a panel of attention, which share the loads of keys and values: a multiple of NR. Gradients of keys are
    /// summed panel by panel, so bits depend on it.
    const PANEL: usize;
    /// Rows, and vectors of columns, of the register tile of a matrix product, [`Simd::tile`].
    const TILE: (usize, usize);
    /// Columns of the register tile of a matrix product.
    const TILE_COLUMNS: usize = Self::TILE.1 * Self::LANES;
    /// Steps of k for which a register tile prefetches one line. With four panels of A and more, which share the work, a line
    /// for four steps is enough where a row of a panel of B is one line; more cost AVX2 some hundredths.
    const AHEAD: usize = if Self::TILE_COLUMNS > 16 { 1 } else { UNROLL };
    /// Chains of multiply-adds side by side that hide their latency: four or five cycles on two pipes.
    const CHAINS: usize = 12;
    /// Rows and columns of a block of attention scores: a multiple of MR and of LANES.
    const BLOCK: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    /// The first `n <= LANES` elements, zeros after them; reads no further.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Writes the first `n <= LANES` elements only.
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    /// LANES values of bf16 (the upper halves of f32).
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// The first `n <= LANES` values of bf16, zeros after them; reads no further.
    unsafe fn load_bf16_n(p: *const u16, n: usize) -> Self::V;
    /// Rounded to the nearest bf16, ties to even; NaN stays NaN.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// Writes the first `n <= LANES` values only, as bf16.
    unsafe fn store_bf16_n(p: *mut u16, v: Self::V, n: usize);
    /// LANES values of IEEE binary16, subnormal ones included.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Rounds to the nearest binary16, ties to even; values that are too large become infinite, NaN stays NaN.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the processor can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Larger of the two; `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Smaller of the two; `b` if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// Nearest integer, ties to even. For |a| < 2^22.
    unsafe fn round(a: Self::V) -> Self::V;
    /// 2^n for integral n in -126 ..= 127.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// `p * 2^n` for an integer n that was added to 1.5 * 2^23 to give `shifted`; p and the result normal numbers.
    unsafe fn times_pow2(p: Self::V, shifted: Self::V) -> Self::V;
    /// `if a < b { x } else { y }`, lane by lane; y if either is NaN.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The largest power of two that is at most `a`, a positive normal number.
    unsafe fn power_of_two(a: Self::V) -> Self::V;
    /// `a`, a positive number, with the sign of `b`.
    unsafe fn with_sign(a: Self::V, b: Self::V) -> Self::V;
    /// `table[codes[i]]` in lane i, of LANES codes.
    unsafe fn look_up(table: &[f32; 256], codes: *const u8) -> Self::V;
    /// The integral parts of 4 LANES numbers from 256 up to 512, less 256, as bytes.
    unsafe fn store_bytes(p: *mut u8, numbers: [Self::V; 4]);
    /// Whether one of 4 LANES lanes has no bit in common with `bits`.
    unsafe fn any_without(bits: u32, lanes: [Self::V; 4]) -> bool;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(a: Self::V) -> f32;
    /// Largest lane.
    unsafe fn hmax(a: Self::V) -> f32;
    /// Sum of the squares of the lanes in f64, added to `acc`, in a fixed order.
    unsafe fn add_squares_f64(acc: f64, a: Self::V) -> f64;

    /// Runs a kernel as a function of its own, compiled once for all that call it.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out;

    /// Transposes a block: for k below `nk <= LANES`, the `nr <= LANES` values `src[r * ld + k]` go to
    /// `dst[k * dst_ld ..]`, followed by zeros up to `width <= LANES` values. Reads and writes nothing else.
    unsafe fn transpose(
        src: *const f32,
        ld: usize,
        nr: usize,
        nk: usize,
        dst: *mut f32,
        dst_ld: usize,
        width: usize,
    );

    /// Prefetches the cache line at `p`, which is read later, into the L2 cache. Any address will do.
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        let _ = p;
    }

    /// Prefetches as [`Simd::prefetch`] does, for a line that is written later.
    #[inline(always)]
    unsafe fn prefetch_write(p: *const f32) {
        let _ = p;
    }

    /// `c = A B` for a register tile: `c` is `[rows, TILE_COLUMNS]` without gaps, of which `rows` rows and `vectors` vectors
    /// of columns are computed; `a` holds `[k][rows of TILE]`, `b` holds `[k][TILE_COLUMNS]`. On the way the lines from
    /// `ahead.0` on are prefetched, `ahead.1` bytes for each k, and `before(r)` is called for every row, evenly spread.
    unsafe fn tile(
        rows: usize,
        vectors: usize,
        k: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        ahead: (*const f32, usize),
        before: impl Fn(usize),
    );
}

/// The first `n <= LANES` elements of f32 or bf16, by a plain load where that is all of them.
///
/// # Safety
/// Same requirements as [`Element::load_n`].
#[inline(always)]
pub(crate) unsafe fn load_part<S: Simd>(p: *const impl Element, n: usize) -> S::V {
    // SAFETY: by contract.
    unsafe { if n == S::LANES { Element::load::<S>(p) } else { Element::load_n::<S>(p, n) } }
}

/// Writes the first `n <= LANES` elements as f32 or bf16, by a plain store where that is all of them.
///
/// # Safety
/// Same requirements as [`Element::store_n`].
#[inline(always)]
pub(crate) unsafe fn store_part<S: Simd>(p: *mut impl Element, v: S::V, n: usize) {
    // SAFETY: by contract.
    unsafe { if n == S::LANES { Element::store::<S>(p, v) } else { Element::store_n::<S>(p, v, n) } }
}

/// A computation that can be compiled for every instruction set.
pub(crate) trait Kernel {
    /// Return value.
    type Out;
    /// Computes. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor must have the instructions of `S`; pointers inside the kernel must fulfil its documentation.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
#[inline(never)]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the features are enabled here, and the caller of `dispatch` vouches for the rest.
    unsafe { kernel.run::<avx512::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the features are enabled here, and the caller of `dispatch` vouches for the rest.
    unsafe { kernel.run::<avx2::Avx2>() }
}

/// Needs no instructions that a processor of the architecture may lack.
#[inline(never)]
unsafe fn run_plain<S: Simd, K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for the pointers.
    unsafe { kernel.run::<S>() }
}

/// Runs `kernel` compiled for `rung`; [`Rung::Reference`] uses the portable code.
///
/// # Safety
/// The instruction set must be available on this processor, and the pointers inside the kernel must fulfil its documentation.
#[inline]
pub(crate) unsafe fn dispatch<K: Kernel>(rung: Rung, kernel: K) -> K::Out {
    // SAFETY: by contract.
    unsafe {
        match rung {
            #[cfg(target_arch = "x86_64")]
            Rung::Avx512 => run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Rung::Avx2 => run_avx2(kernel),
            #[cfg(target_arch = "aarch64")]
            Rung::Neon => run_plain::<neon::Neon, K>(kernel),
            _ => run_plain::<Portable, K>(kernel),
        }
    }
}

/// Steps of k that the loop of a register tile takes at a time: its counters cost a tenth with one, and with eight the loop
/// is too long for the processor's cache of decoded instructions.
const UNROLL: usize = 4;

/// The register tile of a matrix product, in the form that each implementation instantiates for its sizes: M rows, N
/// vectors of columns; else as [`Simd::tile`].
///
/// # Safety
/// `[k][rows of TILE]` floats of `a`, `[k][TILE_COLUMNS]` floats of `b` and `[M][TILE_COLUMNS]` floats of `c`.
#[inline(always)]
pub(super) unsafe fn register_tile<S: Simd, const M: usize, const N: usize>(
    k: usize,
    mut a: *const f32,
    mut b: *const f32,
    c: *mut f32,
    (mut ahead, pace): (*const f32, usize),
    before: impl Fn(usize),
) {
    /// One k.
    ///
    /// # Safety
    /// Elements of this k at `a` and `b`.
    #[inline(always)]
    unsafe fn step<S: Simd, const M: usize, const N: usize>(
        acc: &mut [[S::V; N]; M],
        a: *const f32,
        b: *const f32,
    ) {
        // SAFETY: by contract.
        unsafe {
            let mut bv = [S::splat(0.0); N];
            for (j, bv) in bv.iter_mut().enumerate() {
                *bv = S::load(b.add(j * S::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let av = S::splat(*a.add(i));
                for (x, &bv) in row.iter_mut().zip(&bv) {
                    *x = S::fma(av, bv, *x);
                }
            }
        }
    }
    // SAFETY: by contract; a prefetch may name any address.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; M];
        let rounds = k / UNROLL;
        for part in 0..M {
            before(part);
            for _ in rounds * part / M..rounds * (part + 1) / M {
                for u in 0..UNROLL {
                    if u % S::AHEAD == 0 {
                        S::prefetch(ahead);
                        ahead = ahead.wrapping_byte_add(S::AHEAD * pace);
                    }
                    step::<S, M, N>(&mut acc, a.add(u * S::TILE.0), b.add(u * S::TILE_COLUMNS));
                }
                a = a.add(UNROLL * S::TILE.0);
                b = b.add(UNROLL * S::TILE_COLUMNS);
            }
        }
        for u in 0..k % UNROLL {
            step::<S, M, N>(&mut acc, a.add(u * S::TILE.0), b.add(u * S::TILE_COLUMNS));
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, &x) in row.iter().enumerate() {
                S::store(c.add(i * S::TILE_COLUMNS + j * S::LANES), x);
            }
        }
    }
}

/// The register tiles of an instruction set: `$mr` rows, panels of `$panel` and blocks of `$block` for attention; for products every number
/// `$m` of rows of every number `$n` of vectors, the largest first.
macro_rules! tiles {
    ($mr:literal, $panel:literal, $block:literal, [$($m:literal)*] x $n:tt) => {
        const MR: usize = $mr;
        const PANEL: usize = $panel;
        const BLOCK: usize = $block;
        const TILE: (usize, usize) = ([$($m),*][0], $n[0]);

        #[inline(always)]
        unsafe fn tile(
            rows: usize,
            vectors: usize,
            k: usize,
            a: *const f32,
            b: *const f32,
            c: *mut f32,
            ahead: (*const f32, usize),
            before: impl Fn(usize),
        ) {
            unsafe {
                match rows {
                    $($m => $crate::simd::tiles!(@vectors $m, $n, vectors, (k, a, b, c, ahead, before)),)*
                    _ => unreachable!("a register tile of {rows} rows"),
                }
            }
        }
    };
    (@vectors $m:literal, [$($n:literal),*], $vectors:ident, $args:tt) => {
        match $vectors {
            $($n => $crate::simd::tiles!(@one $m, $n, $args),)*
            _ => unreachable!("a register tile of {} vectors", $vectors),
        }
    };
    (@one $m:literal, $n:literal, ($($arg:ident),*)) => {
        $crate::simd::register_tile::<Self, $m, $n>($($arg),*)
    };
}
pub(super) use tiles;

#[cfg(test)]
mod tests;
