#![allow(unsafe_code)] // vectors of the rungs that this processor has

use super::*;
use crate::Rung;
use crate::simd::{Kernel, dispatch};

/// Encodes blocks of values.
struct Encode<'a> {
    code: &'a VectorCode,
    values: &'a [f32],
    codes: &'a mut [u8],
    scales: &'a mut [f32],
}

impl Kernel for Encode<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let blocks = self.values.chunks(MOMENT_BLOCK).zip(self.codes.chunks_mut(MOMENT_BLOCK));
        for ((values, codes), scale) in blocks.zip(self.scales) {
            let mut block = [0.0; MOMENT_BLOCK];
            block.copy_from_slice(values);
            // SAFETY: as many values as the block has.
            unsafe {
                let mut extremes = Extremes::<S>::new();
                for at in (0..MOMENT_BLOCK).step_by(S::LANES) {
                    extremes.see(S::load(block.as_ptr().add(at)));
                }
                *scale = self.code.encode(&block, &extremes, codes);
            }
        }
    }
}

fn rungs() -> impl Iterator<Item = Rung> {
    Rung::ALL.into_iter().filter(|r| *r != Rung::Reference && r.available())
}

/// Compares the codes and the scales of blocks with the reference, on every instruction set.
fn check(what: &str, code: &VectorCode, values: &[f32]) {
    // Only whole blocks are encoded by vectors; zeros change no scale.
    let mut values = values.to_vec();
    values.resize(values.len().next_multiple_of(MOMENT_BLOCK), 0.0);
    let (values, blocks) = (&values, values.len() / MOMENT_BLOCK);
    let (mut wanted, mut wanted_scales) = (vec![0; values.len()], Vec::new());
    for (values, codes) in values.chunks(MOMENT_BLOCK).zip(wanted.chunks_mut(MOMENT_BLOCK)) {
        wanted_scales.push(code.plain.encode(values, codes).to_bits());
    }
    for rung in rungs() {
        let (mut codes, mut scales) = (vec![0; values.len()], vec![0.0; blocks]);
        // SAFETY: `rungs` yields only what this processor has.
        unsafe { dispatch(rung, Encode { code, values, codes: &mut codes, scales: &mut scales }) };
        let scales: Vec<u32> = scales.into_iter().map(f32::to_bits).collect();
        assert_eq!(scales, wanted_scales, "{what} on {rung}");
        for (i, (found, wanted)) in codes.iter().zip(&wanted).enumerate() {
            let scale = f32::from_bits(wanted_scales[i / MOMENT_BLOCK]);
            assert_eq!(found, wanted, "{what} on {rung}: {:e} of a block with scale {scale:e}", values[i]);
        }
    }
}

/// Blocks of the values that `scale` is not less than in magnitude, each with `scale` as its first value.
fn blocks(code: &VectorCode, scale: f32, values: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut all = Vec::new();
    for x in values.filter(|x| x.abs() <= scale.abs() && (code.signed || *x >= 0.0)) {
        if all.len() % MOMENT_BLOCK == 0 {
            all.push(scale);
        }
        all.push(x);
    }
    all
}

/// Scales of every kind: powers of two, others, the smallest and the largest that lines serve and those beyond.
const SCALES: [f32; 12] = [
    1.0,
    -1.0,
    0.3,
    -2.7,
    1.7e-3,
    -3.9e-20,
    LEAST_SCALE,
    -1.3 * LEAST_SCALE,
    MOST_SCALE,
    -0.99 * MOST_SCALE,
    1.01 * MOST_SCALE,
    f32::MAX,
];

fn scales_of(code: &VectorCode) -> impl Iterator<Item = f32> {
    SCALES.into_iter().filter(|s| code.signed || *s > 0.0)
}

/// Every upper half of an f32 with some lower halves: all signs, exponents and leading bits.
#[test]
fn all_upper_halves_have_the_codes_of_the_reference() {
    for code in [&FIRST, &SECOND] {
        for scale in scales_of(code) {
            let bits = (0..=0xffffu32).flat_map(|high| {
                [0, 1, 0x3fff, 0x7fff, 0x8000, 0xc123, 0xffff].map(|low| f32::from_bits(high << 16 | low))
            });
            check("upper halves", code, &blocks(code, scale, bits));
        }
    }
}

/// Around every middle of two values and every value of the table: the 40 nearest floats, and those that rounding of the lines could
/// take to the wrong side, in steps.
#[test]
fn values_beside_every_middle_have_the_codes_of_the_reference() {
    for code in [&FIRST, &SECOND] {
        let table = code.plain.values();
        let middles = table.windows(2).map(|w| (w[0] + w[1]) / 2.0);
        let points: Vec<f32> = middles.chain(table.iter().copied()).collect();
        for scale in scales_of(code) {
            let near = points.iter().flat_map(|p| {
                let bits = (p * scale).to_bits();
                let steps = (-20..=20).chain((-30_000..30_000).step_by(977));
                steps.map(move |step: i32| f32::from_bits(bits.saturating_add_signed(step)))
            });
            let near = near.flat_map(|x| [x, -x]);
            check("middles", code, &blocks(code, scale, near));
        }
    }
}

/// A stride through all magnitudes from 2^-24 to 1 and all shapes of scales.
#[test]
fn values_between_have_the_codes_of_the_reference() {
    for code in [&FIRST, &SECOND] {
        for (i, scale) in (0..97).map(|i| (i, 1.0 + i as f32 / 97.0)) {
            let first = f32::to_bits(scale) - (24 << 23) + i;
            let values = (first..=scale.to_bits()).step_by(9973).map(f32::from_bits);
            check("stride", code, &blocks(code, scale, values.flat_map(|x| [x, -x])));
        }
    }
}

/// Every float from 0 to 1, for a scale of 1: two thousand million values on each instruction set.
#[test]
#[ignore = "takes minutes"]
fn every_magnitude_has_the_code_of_the_reference() {
    for code in [&FIRST, &SECOND] {
        let one = 1.0f32.to_bits();
        for first in (0..=one).step_by(1 << 20) {
            let values = (first..first + (1 << 20)).map(f32::from_bits);
            check("every magnitude", code, &blocks(code, 1.0, values.flat_map(|x| [x, -x])));
        }
    }
}

#[test]
fn what_lines_do_not_serve_is_left_to_the_reference() {
    for code in [&FIRST, &SECOND] {
        let small = [1e-31, 0.0, -0.0, 3e-31, f32::MIN_POSITIVE / 2.0];
        let broken = [[1.0, f32::NAN, -2.0], [f32::INFINITY, 0.0, 1.0], [0.5, -f32::NAN, f32::NEG_INFINITY]];
        check("nothing", code, &[]);
        check("zeros", code, &[0.0; 300]);
        check("negative zeros", code, &[-0.0; 300]);
        check("small", code, &small);
        check("largest of both signs", code, &[0.5, -0.5, 0.0, -0.0, 0.25]);
        check("below zero", code, &[0.5, -0.1, -0.5, 0.2]);
        for (i, values) in broken.iter().enumerate() {
            check("broken", code, values);
            // A value in the last lane of a whole block.
            let mut block = [0.1; MOMENT_BLOCK];
            block[MOMENT_BLOCK - 1] = values[i.min(1)];
            check("broken at the end", code, &block);
        }
    }
}

/// The share of values near a middle that the head of the file promises.
#[test]
fn few_values_are_left_to_the_reference() {
    struct Unsure<'a>(&'a VectorCode, &'a [f32]);
    impl Kernel for Unsure<'_> {
        type Out = usize;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> usize {
            let mut count = 0;
            for x in self.1.chunks_exact(S::LANES) {
                // SAFETY: a vector of values.
                unsafe {
                    let x = S::load(x.as_ptr());
                    let numbers = self.0.numbers::<S>([x; 4], S::splat(1.0));
                    let mut lanes = [0.0f32; 16];
                    S::store(lanes.as_mut_ptr(), numbers[0]);
                    let unsure = (1 << FRACTION_BITS) - 2 * self.0.window;
                    count += lanes[..S::LANES].iter().filter(|n| n.to_bits() & unsure == 0).count();
                }
            }
            count
        }
    }
    let values: Vec<f32> = (0..1 << 20).map(|i| i as f32 / (1 << 20) as f32).collect();
    for rung in rungs() {
        for (code, most) in [(&FIRST, 300), (&SECOND, 600)] {
            // SAFETY: `rungs` yields only what this processor has.
            let count = unsafe { dispatch(rung, Unsure(code, &values)) };
            assert!(count > 0 && count < most, "{rung}: {count} of 2^20");
        }
    }
}
