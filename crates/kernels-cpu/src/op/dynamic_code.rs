//! Vectors of the dynamic tree code of [`bessemer_tensor::quantise`], which is the reference: the same codes and scales, for every input.
//!
//! The code of a value x in a block with scale s follows from the magnitude y = |x / s|. Magnitudes are numbered from below; decade d of the
//! table, from 10^(d-7) to 10^(d-6), holds k(d) of them, and k(d) = 2 k(d-1). With n + 1 for n in the code of second moments, the
//! first number of a decade is k(d) too. So y has the fractional number
//!
//! `g(y) = min over d of k(d) + k(d) (y - 10^(d-7)) / (0.9 10^(d-6))`,
//!
//! because decades are lines with falling slopes, which intersect at powers of ten. In a decade the code changes where g is integral.
//! Between two decades it changes in the middle of their neighbouring values, which is 0.2 above the intersection: numbers up to 0.5 above a
//! power of two are lowered by 0.2, and the code is the integral part everywhere. The value 1 is alone above the last decade: a
//! steeper line, which is taken where it is larger, passes 0.2 above its number at its middle. A value that is exactly on a middle, or
//! so near that rounding could decide, is found by [`DynamicCode::nearest`].
//!
//! How near that is: u = 2^-24. The reciprocal of the scale, the product, the quotient of the reference and the middles of its table are
//! within 7 u of y together, 142 of whose units are the widest decade of 128 numbers (256 on the steeper line). Slopes,
//! intercepts, the line itself (without fused multiply-add), the subtraction and the last sum round by at most 9e-5 more. In all less than
//! 2e-4 of a number for second moments and 1e-4 for first ones, of which there are half as many; [`VectorCode::window`] is 2.4e-4 and
//! 1.2e-4. Four in ten thousand values are so near.
#![allow(unsafe_code)] // elements by address

use crate::simd::Simd;
use bessemer_tensor::quantise::{DynamicCode, LEAST_SCALE, MOMENT_BLOCK, SIGNED, UNSIGNED};

/// Largest scale whose reciprocal is a normal number.
const MOST_SCALE: f32 = f32::from_bits((127 + 126) << 23);

/// Bits of a number from 256 up to 512 below its integral part.
const FRACTION_BITS: u32 = 15;

/// Replacement of [`DynamicCode::values`] where the scale is 0: all values are then +0.
static ZEROS: [f32; 256] = [0.0; 256];

/// The number of a magnitude as a function of it.
#[derive(Clone, Copy)]
struct Line {
    slope: f32,
    intercept: f32,
}

/// The line through two points.
const fn through(x0: f64, y0: f64, x1: f64, y1: f64) -> Line {
    let slope = (y1 - y0) / (x1 - x0);
    Line { slope: slope as f32, intercept: (y0 - slope * x0) as f32 }
}

/// A [`DynamicCode`] in the form that vectors compute it by.
pub(super) struct VectorCode {
    plain: &'static DynamicCode,
    signed: bool,
    decades: [Line; 7],
    /// The last value, which is 1.
    one: Line,
    /// Half of the width of the windows around middles in which [`DynamicCode::nearest`] decides, in units of the last fraction bit.
    window: u32,
}

/// The code of first moments.
pub(super) static FIRST: VectorCode = VectorCode::new(&SIGNED, true);

/// The code of second moments.
pub(super) static SECOND: VectorCode = VectorCode::new(&UNSIGNED, false);

impl VectorCode {
    const fn new(plain: &'static DynamicCode, signed: bool) -> VectorCode {
        let mut decades = [Line { slope: 0.0, intercept: 0.0 }; 7];
        let (mut count, mut end, mut d) = (if signed { 1.0 } else { 2.0 }, 1e-6, 0);
        while d < decades.len() {
            decades[d] = through(0.1 * end, count, end, 2.0 * count);
            count *= 2.0;
            // Powers of ten as the compiler reads them, not as products.
            end = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 0.0][d];
            d += 1;
        }
        if signed {
            // The middle between 0 and the only value of the first decade, which is 5.5e-7, is 0.2 above number 1. In the other code
            // the numbers of 0 and of the least value are not separated by a line.
            decades[0] = through(2.75e-7, 1.2, 1e-6, 2.0);
        }
        // The last middle is 0.45 / count below 1.
        let one = through(1.0 - 0.45 / count, count + 0.2, 1.0, count + 0.65);
        VectorCode { plain, signed, decades, one, window: if signed { 4 } else { 8 } }
    }

    /// The values that the codes of a block with this scale are multiplied by the scale.
    pub(super) fn values(&self, scale: f32) -> &'static [f32; 256] {
        if scale == 0.0 { &ZEROS } else { self.plain.values() }
    }

    /// [`Self::window`] as a part of a number.
    const fn margin(&self) -> f32 {
        self.window as f32 / (1 << FRACTION_BITS) as f32
    }

    /// Computes for each value of four vectors a number from 256 up to 512: its code, and its fractional position between the middles
    /// on both sides of the code, plus [`Self::margin`].
    ///
    /// # Safety
    /// Same requirements as [`Simd`]. `inverse` is the reciprocal of the scale, whose magnitude is the largest of the block.
    #[inline(always)]
    unsafe fn numbers<S: Simd>(&self, x: [S::V; 4], inverse: S::V) -> [S::V; 4] {
        // Four vectors in lockstep: a chain of one vector alone leaves the processor idle.
        // SAFETY: register arithmetic only.
        unsafe {
            let (mut y, mut g) = (x, x);
            for y in &mut y {
                *y = S::mul(*y, inverse);
            }
            let mut magnitude = y;
            if self.signed {
                for y in &mut magnitude {
                    *y = S::abs(*y);
                }
            }
            for (d, line) in self.decades.iter().enumerate() {
                let (slope, intercept) = (S::splat(line.slope), S::splat(line.intercept));
                for j in 0..4 {
                    let number = S::fma(magnitude[j], slope, intercept);
                    g[j] = if d == 0 { number } else { S::min(g[j], number) };
                }
            }
            let (slope, intercept) = (S::splat(self.one.slope), S::splat(self.one.intercept));
            for j in 0..4 {
                // Skips -1: there is no such value.
                g[j] = S::max(g[j], S::fma(y[j], slope, intercept));
                if !self.signed {
                    // Above the number of 0.
                    g[j] = S::max(g[j], S::splat(2.6));
                }
            }
            let (half, lower) = (S::splat(0.5), S::splat(0.7));
            for g in &mut g {
                let above = S::sub(*g, S::power_of_two(*g));
                *g = S::sub(*g, S::select_lt(above, half, lower, half));
            }
            for j in 0..4 {
                g[j] = if self.signed {
                    // Rounded down, 128 - number below zero is 127 less its integral part.
                    S::add(S::with_sign(g[j], y[j]), S::splat(256.0 + 127.5 + self.margin()))
                } else {
                    let number = S::add(g[j], S::splat(256.0 - 0.5 + self.margin()));
                    S::select_lt(S::splat(0.0), x[j], number, S::splat(256.5))
                };
            }
            g
        }
    }

    /// [`DynamicCode::encode`] of a whole block. `extremes` has seen all of its values.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn encode<S: Simd>(
        &self,
        values: &[f32; MOMENT_BLOCK],
        extremes: &Extremes<S>,
        codes: &mut [u8],
    ) -> f32 {
        assert_eq!(codes.len(), MOMENT_BLOCK);
        // SAFETY: a block has a multiple of 4 LANES values, and as many codes.
        unsafe {
            let Some(scale) = extremes.scale(self.signed) else {
                return self.plain.encode(values, codes);
            };
            let inverse = S::splat(1.0 / scale);
            // A fraction below twice the margin.
            let unsure = (1 << FRACTION_BITS) - 2 * self.window;
            for first in (0..MOMENT_BLOCK).step_by(4 * S::LANES) {
                let at = values.as_ptr().add(first);
                let x = [
                    S::load(at),
                    S::load(at.add(S::LANES)),
                    S::load(at.add(2 * S::LANES)),
                    S::load(at.add(3 * S::LANES)),
                ];
                let numbers = self.numbers::<S>(x, inverse);
                S::store_bytes(codes.as_mut_ptr().add(first), numbers);
                if S::any_without(unsure, numbers) {
                    let mut lanes = [0.0f32; 64];
                    for (j, numbers) in numbers.into_iter().enumerate() {
                        S::store(lanes.as_mut_ptr().add(j * S::LANES), numbers);
                    }
                    let group = first..first + 4 * S::LANES;
                    self.decide(&lanes, unsure, &values[group.clone()], scale, &mut codes[group]);
                }
            }
            scale
        }
    }

    /// Recomputes by the reference the codes of the values whose numbers have none of the bits `unsure`.
    #[cold]
    fn decide(&self, numbers: &[f32; 64], unsure: u32, values: &[f32], scale: f32, codes: &mut [u8]) {
        for ((code, x), number) in codes.iter_mut().zip(values).zip(numbers) {
            if number.to_bits() & unsure == 0 {
                *code = self.plain.nearest(*x, scale);
            }
        }
    }
}

/// The largest and the smallest value of a block, and whether all are finite, lane by lane.
pub(super) struct Extremes<S: Simd> {
    most: S::V,
    least: S::V,
    /// 0, or not a number.
    broken: S::V,
}

impl<S: Simd> Extremes<S> {
    /// Returns the extremes of no values.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn new() -> Extremes<S> {
        // SAFETY: register arithmetic only.
        let zero = unsafe { S::splat(0.0) };
        Extremes { most: zero, least: zero, broken: zero }
    }

    /// Takes a vector of values in.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn see(&mut self, x: S::V) {
        // SAFETY: register arithmetic only.
        unsafe {
            self.most = S::max(x, self.most);
            self.least = S::min(x, self.least);
            self.broken = S::fma(x, S::splat(0.0), self.broken);
        }
    }

    /// The scale as [`DynamicCode::encode`] finds it, where lines serve: its reciprocal is a normal number, all values are finite, and
    /// in the code of second moments none is negative.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    unsafe fn scale(&self, signed: bool) -> Option<f32> {
        // SAFETY: register arithmetic only.
        let (most, least, broken) = unsafe {
            let zero = S::splat(0.0);
            (S::hmax(self.most), -S::hmax(S::sub(zero, self.least)), S::sum(self.broken))
        };
        let scale = if most > -least { most } else { least };
        let serves = broken == 0.0 && (LEAST_SCALE..=MOST_SCALE).contains(&scale.abs());
        (serves && (signed || least == 0.0)).then_some(scale)
    }
}

#[cfg(test)]
mod tests;
