//! Activations and gradients as integers of 8 bits by blocks of a row: `s = max |x| / 127; code = round(x 127 / max |x|) + 128`, ties to
//! even, and back: `x = (code - 128) s`, or `x += (code - 128) s`, rounded twice in f32. With `keep_sign` a value that would be rounded to 0
//! becomes s or -s. Not differentiated: a backward pass reads the decoded values in place of the original ones.
//!
//! Multiplication and addition are exactly rounded and the maximum is one of integers, so all instruction sets give the same bits. Cost: two
//! reads of a block that stays in the cache, and one write of a quarter of its bytes.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use crate::operand::{Codes, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Dequantise, Quantise};
use bessemer_tensor::quantise::{ACTIVATION_BLOCK, LEAST_SCALE};
use std::ops::Range;

/// Codes from 1 to 255 are integers from -127 to 127.
const ZERO: u8 = 128;

/// 1.5 2^23: a float that is added to it keeps the nearest integer in its lowest bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// Rows of one task: about 16 thousand elements.
fn rows_at_once(cols: usize) -> usize {
    ((16 << 10) / cols.max(1)).max(1)
}

/// Calls `work` for rows of a matrix, on the pool.
fn by_rows(ctx: &Ctx<'_>, rows: usize, cols: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    let at_once = rows_at_once(cols);
    ctx.pool.run(rows.div_ceil(at_once), &|number, _| {
        work(number * at_once..((number + 1) * at_once).min(rows));
    });
}

struct Quantising<'a, T> {
    src: &'a Mat<T>,
    codes: &'a Codes,
    scales: &'a Mat,
    rows: Range<usize>,
    keep_sign: bool,
}

/// The scale of a block, and the factor that leads from values to integers.
#[inline(always)]
fn scale(largest: f32) -> (f32, f32) {
    match largest < LEAST_SCALE {
        true => (0.0, 0.0),
        // A block with a non-finite value keeps only that fact: it decodes to NaN.
        false if !largest.is_finite() => (f32::NAN, 0.0),
        false => (largest / 127.0, 127.0 / largest),
    }
}

/// The code of a value. Where the scale is not a number, any code is as good. Without branches, so that it is computed for several
/// values at once.
#[inline(always)]
fn code(x: f32, factor: f32, keep_sign: bool) -> u8 {
    let integer = (x * factor + TO_INTEGER).to_bits() as u8;
    // 1 or -1.
    let sign = 1u8.wrapping_sub(2 * (x.to_bits() >> 31) as u8);
    let lost = u8::from(integer == 0) & u8::from(x != 0.0) & u8::from(keep_sign);
    integer.wrapping_add(lost.wrapping_mul(sign)).wrapping_add(ZERO)
}

impl<T: Element> Kernel for Quantising<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Quantising { src, codes, scales, rows, keep_sign } = self;
        let width = src.cols / scales.cols;
        let mut buffer = [0.0f32; ACTIVATION_BLOCK];
        let values = &mut buffer[..width];
        for r in rows {
            for b in 0..scales.cols {
                for (i, part) in values.chunks_mut(S::LANES).enumerate() {
                    // SAFETY: columns of block b of row r, as many as the buffer has.
                    unsafe {
                        let x = load_part::<S>(src.row(r).add(b * width + i * S::LANES), part.len());
                        store_part::<S>(part.as_mut_ptr(), x, part.len());
                    }
                }
                let bits = values.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
                let (scale, factor) = scale(f32::from_bits(bits));
                scales.set(r, b, scale);
                // SAFETY: the same columns of the codes; tasks have rows of their own.
                let out = unsafe { codes.slice(r, b * width, width) };
                out.iter_mut().zip(&*values).for_each(|(out, x)| *out = code(*x, factor, keep_sign));
            }
        }
    }
}

struct Dequantising<'a, T> {
    codes: &'a Codes,
    scales: &'a Mat,
    dst: &'a Mat<T>,
    rows: Range<usize>,
    accumulate: bool,
}

impl<T: Element> Kernel for Dequantising<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Dequantising { codes, scales, dst, rows, accumulate } = self;
        let width = dst.cols / scales.cols;
        let mut buffer = [0.0f32; ACTIVATION_BLOCK];
        let values = &mut buffer[..width];
        for r in rows {
            for b in 0..scales.cols {
                let scale = scales.get(r, b);
                // SAFETY: columns of block b of row r; no thread writes codes in this operator.
                let from = unsafe { codes.slice(r, b * width, width) };
                for (x, code) in values.iter_mut().zip(&*from) {
                    *x = (i32::from(*code) - i32::from(ZERO)) as f32 * scale;
                }
                for (i, part) in values.chunks(S::LANES).enumerate() {
                    // SAFETY: as above, of the result; tasks have rows of their own.
                    unsafe {
                        let to = dst.row(r).add(b * width + i * S::LANES);
                        let mut x = load_part::<S>(part.as_ptr(), part.len());
                        if accumulate {
                            x = S::add(load_part::<S>(to, part.len()), x);
                        }
                        store_part::<S>(to, x, part.len());
                    }
                }
            }
        }
    }
}

pub(crate) fn quantise(ctx: &Ctx<'_>, op: &Quantise) {
    with_parameter!(op.src.dtype(), T => {
        let (src, codes, scales) = (&ctx.mat::<T>(&op.src), &ctx.arena.codes(&op.codes), &ctx.f32(&op.scales));
        by_rows(ctx, src.rows, src.cols, &|rows| {
            // SAFETY: the instruction set is available; operands are checked views; tasks have rows of their own.
            unsafe { dispatch(ctx.rung, Quantising { src, codes, scales, rows, keep_sign: op.keep_sign }) }
        });
    });
}

pub(crate) fn dequantise(ctx: &Ctx<'_>, op: &Dequantise) {
    with_parameter!(op.dst.dtype(), T => {
        let (dst, codes, scales) = (&ctx.mat::<T>(&op.dst), &ctx.arena.codes(&op.codes), &ctx.f32(&op.scales));
        by_rows(ctx, dst.rows, dst.cols, &|rows| {
            // SAFETY: as in `quantise`.
            unsafe { dispatch(ctx.rung, Dequantising { codes, scales, dst, rows, accumulate: op.accumulate }) }
        });
    });
}

pub(crate) fn quantise_reference(arena: &Arena, op: &Quantise) {
    with_parameter!(op.src.dtype(), T => {
        let (src, codes, scales) = (arena.mat::<T>(&op.src), arena.codes(&op.codes), arena.f32(&op.scales));
        let width = src.cols / scales.cols;
        for (r, b) in (0..src.rows).flat_map(|r| (0..scales.cols).map(move |b| (r, b))) {
            let block: Vec<f32> = (0..width).map(|c| src.get(r, b * width + c)).collect();
            let broken = block.iter().any(|x| !x.is_finite());
            let largest = if broken { f32::NAN } else { block.iter().fold(0.0, |most, x| x.abs().max(most)) };
            let (scale, factor) = scale(largest);
            scales.set(r, b, scale);
            // SAFETY: block b of row r.
            let out = unsafe { codes.slice(r, b * width, width) };
            for (out, x) in out.iter_mut().zip(block) {
                let integer = if factor == 0.0 { 0.0 } else { (x * factor).round_ties_even() };
                let lost = op.keep_sign && integer == 0.0 && x != 0.0;
                let integer = if lost { 1f32.copysign(x) } else { integer };
                *out = (integer as i32 + i32::from(ZERO)) as u8;
            }
        }
    });
}

pub(crate) fn dequantise_reference(arena: &Arena, op: &Dequantise) {
    with_parameter!(op.dst.dtype(), T => {
        let (dst, codes, scales) = (arena.mat::<T>(&op.dst), arena.codes(&op.codes), arena.f32(&op.scales));
        let width = dst.cols / scales.cols;
        for (r, c) in (0..dst.rows).flat_map(|r| (0..dst.cols).map(move |c| (r, c))) {
            // SAFETY: element (r, c).
            let code = unsafe { codes.slice(r, c, 1) }[0];
            let value = (i32::from(code) - i32::from(ZERO)) as f32 * scales.get(r, c / width);
            dst.set(r, c, if op.accumulate { dst.get(r, c) + value } else { value });
        }
    });
}
