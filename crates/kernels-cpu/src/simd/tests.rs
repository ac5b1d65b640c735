#![allow(unsafe_code)] // vectors of the rungs that this processor has

use super::*;
use crate::op::activation::{derivative, value};
use bessemer_tensor::op::ActivationKind;

/// Applies a vector function to `x` in place.
struct Map<'a, F>(&'a mut [f32], F);

trait VectorFn: Copy {
    unsafe fn call<S: Simd>(self, x: S::V) -> S::V;
}

impl<F: VectorFn> Kernel for Map<'_, F> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for chunk in self.0.chunks_mut(S::LANES) {
            // SAFETY: the chunk holds the elements that are read and written.
            unsafe {
                let y = self.1.call::<S>(S::load_n(chunk.as_ptr(), chunk.len()));
                S::store_n(chunk.as_mut_ptr(), y, chunk.len());
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Exp;
impl VectorFn for Exp {
    #[inline(always)]
    unsafe fn call<S: Simd>(self, x: S::V) -> S::V {
        unsafe { math::exp::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct Act(ActivationKind);
impl VectorFn for Act {
    #[inline(always)]
    unsafe fn call<S: Simd>(self, x: S::V) -> S::V {
        unsafe { math::activate::<S>(self.0, x) }
    }
}

#[derive(Clone, Copy)]
struct Derivative(ActivationKind);
impl VectorFn for Derivative {
    #[inline(always)]
    unsafe fn call<S: Simd>(self, x: S::V) -> S::V {
        unsafe { math::activate_with_derivative::<S>(self.0, x).1 }
    }
}

fn rungs() -> impl Iterator<Item = Rung> {
    Rung::ALL.into_iter().filter(|r| *r != Rung::Reference && r.available())
}

fn apply<F: VectorFn>(rung: Rung, x: &[f32], f: F) -> Vec<f32> {
    let mut y = x.to_vec();
    // SAFETY: `rungs` yields only what this processor has.
    unsafe { dispatch(rung, Map(&mut y, f)) };
    y
}

fn grid(low: f32, high: f32, count: usize) -> Vec<f32> {
    (0..=count).map(|i| low + (high - low) * i as f32 / count as f32).collect()
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let x = grid(-86.5, 88.72, 400_003);
    for rung in rungs() {
        let worst = apply(rung, &x, Exp)
            .iter()
            .zip(&x)
            .map(|(&y, &x)| {
                let truth = f64::from(x).exp();
                let nearest = truth as f32;
                let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
                (f64::from(y) - truth).abs() / ulp
            })
            .fold(0.0, f64::max);
        assert!(worst <= 2.0, "{rung}: {worst} ulp");
    }
}

#[derive(Clone, Copy)]
struct Exp2;
impl VectorFn for Exp2 {
    #[inline(always)]
    unsafe fn call<S: Simd>(self, x: S::V) -> S::V {
        unsafe { math::exp2::<S>(x) }
    }
}

#[test]
fn exp2_is_near_and_ends_in_zero() {
    let x = grid(-124.9, 0.0, 400_003);
    let edge = [-125.1, -1e4, -1e30, f32::NEG_INFINITY, f32::NAN];
    for rung in rungs() {
        for (y, x) in apply(rung, &x, Exp2).iter().zip(&x) {
            let truth = f64::from(*x).exp2();
            assert!((f64::from(*y) / truth - 1.0).abs() < 2.5e-7, "{rung}: 2^{x} = {y}, not {truth}");
        }
        let y = apply(rung, &edge, Exp2);
        assert_eq!(y[..4], [0.0; 4], "{rung}");
        assert!(y[4].is_nan(), "{rung}");
    }
}

#[test]
fn exp_saturates_and_keeps_nan() {
    let x = [f32::NEG_INFINITY, -1e30, -90.0, 0.0, -0.0, 89.0, 1e30, f32::INFINITY, f32::NAN];
    for rung in rungs() {
        let y = apply(rung, &x, Exp);
        assert_eq!(y[..8], [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY], "{rung}");
        assert!(y[8].is_nan(), "{rung}");
    }
}

const KINDS: [ActivationKind; 5] = [
    ActivationKind::Relu,
    ActivationKind::ReluSquared,
    ActivationKind::GeluTanh,
    ActivationKind::GeluErf,
    ActivationKind::Silu,
];

#[test]
fn activations_and_derivatives_agree_with_f64() {
    let mut x = grid(-20.0, 20.0, 100_001);
    x.extend([1e5, -1e5, 1e20, -1e20, -1e38, 80.0, -80.0, 100.0, -100.0]);
    for rung in rungs() {
        for kind in KINDS {
            let check = |y: &[f32], f: fn(ActivationKind, f64) -> f64, what: &str| {
                for (&y, &x) in y.iter().zip(&x) {
                    let truth = f(kind, f64::from(x));
                    let error = (f64::from(y) - truth).abs();
                    // A square of 1e20 is infinite in f32, and must be.
                    assert!(
                        error <= 4e-7 * truth.abs().max(1.0) || y == truth as f32,
                        "{rung} {kind:?} {what}({x}) = {y}, not {truth}"
                    );
                }
            };
            check(&apply(rung, &x, Act(kind)), value, "f");
            check(&apply(rung, &x, Derivative(kind)), derivative, "f'");
        }
    }
}

#[test]
fn activations_keep_nan() {
    for rung in rungs() {
        for kind in KINDS {
            assert!(apply(rung, &[f32::NAN], Act(kind))[0].is_nan(), "{rung} {kind:?}");
            assert!(apply(rung, &[f32::NAN], Derivative(kind))[0].is_nan(), "{rung} {kind:?}");
        }
    }
}

struct Transpose<'a> {
    src: &'a [f32],
    ld: usize,
    nr: usize,
    nk: usize,
    width: usize,
    dst: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    type Out = usize;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        let (nr, nk, width) = (self.nr.min(S::LANES), self.nk.min(S::LANES), self.width.min(S::LANES));
        unsafe { S::transpose(self.src.as_ptr(), self.ld, nr, nk, self.dst.as_mut_ptr(), width, width) };
        S::LANES
    }
}

#[test]
fn transposes_touch_exactly_their_block() {
    let ld = 19;
    let src: Vec<f32> = (0..16 * ld).map(|i| i as f32 + 1.0).collect();
    for rung in rungs() {
        for (nr, nk, width) in [
            (16, 16, 16),
            (14, 16, 14),
            (6, 8, 6),
            (3, 5, 14),
            (1, 1, 1),
            (14, 3, 14),
            (8, 16, 8),
            (6, 16, 6),
            (5, 16, 6),
            (0, 11, 6),
            (7, 13, 8),
        ] {
            let mut dst = vec![-1.0; 400];
            // SAFETY: `rungs` yields what this processor has, and both slices hold more than 16 x 16 values.
            let lanes = unsafe { dispatch(rung, Transpose { src: &src, ld, nr, nk, width, dst: &mut dst }) };
            let (nr, nk, width) = (nr.min(lanes), nk.min(lanes), width.min(lanes));
            for k in 0..nk {
                for r in 0..width {
                    let wanted = if r < nr { src[r * ld + k] } else { 0.0 };
                    assert_eq!(dst[k * width + r], wanted, "{rung} {nr} {nk} {width} at {k} {r}");
                }
            }
            assert!(
                dst[nk * width..].iter().all(|&x| x == -1.0),
                "{rung} {nr} {nk} {width} wrote past its block"
            );
        }
    }
}

/// The operations on bits, of four vectors.
struct Bits<'a> {
    numbers: &'a [f32],
    table: &'a [f32; 256],
    codes: &'a [u8],
    bits: u32,
    bytes: &'a mut [u8],
    looked_up: &'a mut [f32],
    powers: &'a mut [f32],
    signed: &'a mut [f32],
}

impl Kernel for Bits<'_> {
    type Out = (usize, bool);
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (usize, bool) {
        // SAFETY: every slice holds 64 elements, which is at least four vectors.
        unsafe {
            let mut lanes = [S::splat(0.0); 4];
            for (j, lane) in lanes.iter_mut().enumerate() {
                let at = j * S::LANES;
                *lane = S::load(self.numbers.as_ptr().add(at));
                let minus = S::sub(S::splat(383.0), *lane);
                S::store(self.powers.as_mut_ptr().add(at), S::power_of_two(*lane));
                S::store(self.signed.as_mut_ptr().add(at), S::with_sign(*lane, minus));
                S::store(
                    self.looked_up.as_mut_ptr().add(at),
                    S::look_up(self.table, self.codes.as_ptr().add(at)),
                );
            }
            S::store_bytes(self.bytes.as_mut_ptr(), lanes);
            (4 * S::LANES, S::any_without(self.bits, lanes))
        }
    }
}

#[test]
fn bytes_and_bits_of_numbers_are_those_of_their_lanes() {
    let table: [f32; 256] = std::array::from_fn(|i| i as f32 * 0.5 - 3.0);
    let codes: Vec<u8> = (0..64).map(|i| (i * 91 + 7) as u8).collect();
    // Every integral part somewhere, with fractions that have a bit of 2^-1 or 2^-15, but for one lane.
    for without in 0..64 {
        let number = |i: usize| 256.0 + ((i * 67 + 3 * without) % 256) as f32;
        let fraction = |i: usize| if i.is_multiple_of(3) { 0.5 } else { 1.0 / 32768.0 };
        let numbers: Vec<f32> =
            (0..64).map(|i| number(i) + if i == without { 0.25 } else { fraction(i) }).collect();
        for rung in rungs() {
            let mut bytes = [0; 65];
            let (mut looked_up, mut powers, mut signed) = ([0.0; 64], [0.0; 64], [0.0; 64]);
            let kernel = Bits {
                numbers: &numbers,
                table: &table,
                codes: &codes,
                bits: 1 << 14 | 1,
                bytes: &mut bytes,
                looked_up: &mut looked_up,
                powers: &mut powers,
                signed: &mut signed,
            };
            // SAFETY: `rungs` yields only what this processor has.
            let (count, found) = unsafe { dispatch(rung, kernel) };
            assert_eq!(found, without < count, "{rung}, lane {without}");
            for i in 0..count {
                let x = numbers[i];
                assert_eq!(bytes[i], (x - 256.0) as u8, "{rung}, {x}");
                assert_eq!(looked_up[i], table[usize::from(codes[i])], "{rung}");
                assert_eq!(powers[i], 256.0, "{rung}, {x}");
                assert_eq!(signed[i], if x <= 383.0 { x } else { -x }, "{rung}, {x}");
            }
            assert!(bytes[count..].iter().all(|b| *b == 0), "{rung} wrote past its vectors");
        }
    }
}
