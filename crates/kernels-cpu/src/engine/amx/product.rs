//! The product of a packed panel of A and a packed panel of B, 32 x 32 sums in four tile registers.
#![allow(unsafe_code)] // packed panels and tiles by address

use super::tile::{self, ROWS, TILE};
use crate::engine::Parts;
use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T1, _mm_prefetch};

/// `c (+)= A B` over `steps` steps of a panel of A and one of B.
pub(crate) struct PanelProduct {
    pub(crate) steps: usize,
    pub(crate) a: *const u8,
    pub(crate) b: *const u8,
    /// 32 rows of 32 sums, `c_step` floats apart.
    pub(crate) c: *mut f32,
    pub(crate) c_step: usize,
    pub(crate) accumulate: bool,
    /// Memory to prefetch for later reads.
    pub(crate) ahead: Ahead,
    /// Memory to prefetch for later writes.
    pub(crate) written: Ahead,
}

/// Memory that is prefetched while a product is computed: at every step `pieces` pieces of `lines` lines, `stride` bytes apart, the
/// first of them `advance` bytes after that of the step before.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) at: *const u8,
    pub(crate) pieces: usize,
    pub(crate) lines: usize,
    pub(crate) stride: usize,
    pub(crate) advance: usize,
}

impl Ahead {
    pub(crate) const NOTHING: Ahead =
        Ahead { at: std::ptr::null(), pieces: 0, lines: 0, stride: 0, advance: 0 };

    /// `pace` lines at every step, one after the other.
    pub(crate) fn lines(at: *const u8, pace: usize) -> Ahead {
        Ahead { at, pieces: 1, lines: pace, stride: 0, advance: 64 * pace }
    }

    #[inline(always)]
    fn each_line(&mut self, prefetch: impl Fn(*const i8)) {
        for piece in 0..self.pieces {
            for line in 0..self.lines {
                prefetch(self.at.wrapping_add(piece * self.stride + 64 * line).cast());
            }
        }
        self.at = self.at.wrapping_add(self.advance);
    }
}

impl PanelProduct {
    /// Computes the tiles of `c` that hold `rows` rows and `cols` columns from panels of any parts.
    ///
    /// # Safety
    /// Same requirements as [`PanelProduct::run`], and [`tile::available`]; the parts are 1 and anything, or equal.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    pub(crate) unsafe fn run_parts(&self, parts: Parts, rows: usize, cols: usize) {
        // SAFETY: by contract.
        unsafe {
            match (parts.a, parts.b) {
                (1, 1) => self.run_tiles::<1, 1>(rows, cols),
                (1, 2) => self.run_tiles::<1, 2>(rows, cols),
                (2, 1) => self.run_tiles::<2, 1>(rows, cols),
                (2, 2) => self.run_tiles::<2, 2>(rows, cols),
                (1, _) => self.run_tiles::<1, 3>(rows, cols),
                (_, 1) => self.run_tiles::<3, 1>(rows, cols),
                _ => self.run_tiles::<3, 3>(rows, cols),
            }
        }
    }

    /// Computes the tiles of `c` that hold `rows` rows and `cols` columns.
    ///
    /// # Safety
    /// Same requirements as [`PanelProduct::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_tiles<const A: usize, const B: usize>(&self, rows: usize, cols: usize) {
        // SAFETY: by contract.
        unsafe {
            match (rows > ROWS, cols > ROWS) {
                (true, true) => self.run::<A, B, 2, 2>(),
                (true, false) => self.run::<A, B, 2, 1>(),
                (false, true) => self.run::<A, B, 1, 2>(),
                (false, false) => self.run::<A, B, 1, 1>(),
            }
        }
    }

    /// Computes M x N tiles of `c` from A and B parts.
    ///
    /// # Safety
    /// A [`Configured`] is alive on this thread; the panels have as many steps.
    #[inline(always)]
    pub(crate) unsafe fn run<const A: usize, const B: usize, const M: usize, const N: usize>(&self) {
        let PanelProduct { mut a, mut b, mut ahead, mut written, .. } = *self;
        let row = 4 * self.c_step;
        let at = |i: usize, j: usize| self.c.wrapping_add(i * ROWS * self.c_step + j * 16).cast::<u8>();
        // SAFETY: by contract.
        unsafe {
            if self.accumulate {
                tile::load::<0>(at(0, 0), row);
                if N > 1 {
                    tile::load::<1>(at(0, 1), row);
                }
                if M > 1 {
                    tile::load::<2>(at(1, 0), row);
                    if N > 1 {
                        tile::load::<3>(at(1, 1), row);
                    }
                }
            } else {
                tile::zero::<0>();
                tile::zero::<1>();
                tile::zero::<2>();
                tile::zero::<3>();
            }
            for _ in 0..self.steps {
                // A prefetch may name any address.
                ahead.each_line(
                    #[inline(always)]
                    |at| _mm_prefetch::<_MM_HINT_T1>(at),
                );
                written.each_line(
                    #[inline(always)]
                    |at| _mm_prefetch::<_MM_HINT_ET0>(at),
                );
                step::<A, B, M, N>(a, b);
                a = a.add(2 * A * TILE);
                b = b.add(2 * B * TILE);
            }
            tile::store::<0>(at(0, 0), row);
            if N > 1 {
                tile::store::<1>(at(0, 1), row);
            }
            if M > 1 {
                tile::store::<2>(at(1, 0), row);
                if N > 1 {
                    tile::store::<3>(at(1, 1), row);
                }
            }
        }
    }
}

/// The products of one step. Their order lets each part be loaded once, the first of A twice, and small products come
/// before the largest.
///
/// # Safety
/// Same requirements as [`PanelProduct::run`].
#[inline(always)]
unsafe fn step<const A: usize, const B: usize, const M: usize, const N: usize>(a: *const u8, b: *const u8) {
    // SAFETY: by contract.
    unsafe {
        let load_a = |part: usize| {
            tile::load::<4>(a.add(2 * part * TILE), 64);
            if M > 1 {
                tile::load::<5>(a.add((2 * part + 1) * TILE), 64);
            }
        };
        let load_b = |part: usize| {
            tile::load::<6>(b.add(2 * part * TILE), 64);
            if N > 1 {
                tile::load::<7>(b.add((2 * part + 1) * TILE), 64);
            }
        };
        let multiply = || {
            tile::mul_add::<0, 4, 6>();
            if N > 1 {
                tile::mul_add::<1, 4, 7>();
            }
            if M > 1 {
                tile::mul_add::<2, 5, 6>();
                if N > 1 {
                    tile::mul_add::<3, 5, 7>();
                }
            }
        };
        match (A, B) {
            (1, _) => {
                load_a(0);
                for part in (0..B).rev() {
                    load_b(part);
                    multiply();
                }
            }
            (_, 1) => {
                load_b(0);
                for part in (0..A).rev() {
                    load_a(part);
                    multiply();
                }
            }
            (2, _) => {
                load_a(1);
                load_b(0);
                multiply();
                load_a(0);
                multiply();
                load_b(1);
                multiply();
            }
            _ => {
                load_a(0);
                load_b(2);
                multiply();
                load_b(1);
                multiply();
                load_a(1);
                multiply();
                load_b(0);
                multiply();
                load_a(2);
                multiply();
                load_a(0);
                multiply();
            }
        }
    }
}
