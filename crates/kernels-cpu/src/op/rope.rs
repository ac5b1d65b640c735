//! Rotary positions (Su et al. 2021) in place, pairing i with i + E/2: `(a, b) <- (a cos - b sin, b cos + a sin)`,
//! angle = position [`Rope::frequency`]. The backward pass is the inverse rotation. Cost: one read, one write.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::{Ctx, Machine, padded};
use crate::element::{Element, with_element};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::Rope;

/// Rows of a tile.
const ROWS: usize = 32;

struct Rotate<'a, T> {
    op: &'a Rope,
    x: &'a Mat<T>,
    positions: &'a [u32],
    /// E/2 frequencies, f64.
    frequencies: *const f64,
    /// E/2 cosines, then E/2 sines.
    table: *mut f32,
    tile: usize,
}

impl<T: Element> Kernel for Rotate<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (x, heads) = (self.x, self.op.heads);
        let half = x.cols / heads / 2;
        let sign = if self.op.inverse { -1.0 } else { 1.0 };
        // SAFETY: `frequencies` and `table` hold `half` and 2 `half` values; columns of row n of x, which belongs to this
        // tile alone.
        unsafe {
            let (cosines, sines) = (self.table, self.table.add(half));
            for n in self.tile * ROWS..((self.tile + 1) * ROWS).min(x.rows) {
                let position = f64::from(self.positions[n]);
                for i in 0..half {
                    let (s, c) = sin_cos(position * *self.frequencies.add(i));
                    *cosines.add(i) = c;
                    *sines.add(i) = sign * s;
                }
                for h in 0..heads {
                    let row = x.row(n).add(h * 2 * half);
                    for i in (0..half).step_by(S::LANES) {
                        let w = S::LANES.min(half - i);
                        let (c, s) = (load_part::<S>(cosines.add(i), w), load_part::<S>(sines.add(i), w));
                        let a = load_part::<S>(row.add(i), w);
                        let b = load_part::<S>(row.add(half + i), w);
                        store_part::<S>(row.add(i), S::sub(S::mul(a, c), S::mul(b, s)), w);
                        store_part::<S>(row.add(half + i), S::add(S::mul(b, c), S::mul(a, s)), w);
                    }
                }
            }
        }
    }
}

/// Sine and cosine of an angle below 2^31 quarter turns, in a form that compilers vectorise: the quarter turns are
/// subtracted in f64 (Cody & Waite), the rest of at most pi/4 goes through Taylor polynomials in f64, whose error there
/// is below 1e-9, and the quadrant swaps and signs them.
#[inline(always)]
fn sin_cos(angle: f64) -> (f32, f32) {
    const PIO2_HI: f64 = std::f64::consts::FRAC_PI_2;
    /// pi/2 - PIO2_HI.
    const PIO2_LO: f64 = 6.123_233_995_736_766e-17;
    /// 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let shifted = angle * std::f64::consts::FRAC_2_PI + SHIFT;
    let quarter = shifted.to_bits() as u32;
    let turns = shifted - SHIFT;
    let r = (angle - turns * PIO2_HI) - turns * PIO2_LO;
    let r2 = r * r;
    let s =
        r * (1.0 + r2 * (-1.0 / 6.0 + r2 * (1.0 / 120.0 + r2 * (-1.0 / 5040.0 + r2 * (1.0 / 362_880.0)))));
    let c = 1.0 + r2 * (-0.5 + r2 * (1.0 / 24.0 + r2 * (-1.0 / 720.0 + r2 * (1.0 / 40_320.0))));
    let (s, c) = (s as f32, c as f32);
    let swap = quarter & 1 == 1;
    let (sin, cos) = (if swap { c } else { s }, if swap { s } else { c });
    let sin_sign = (quarter & 2) << 30;
    let cos_sign = (quarter.wrapping_add(1) & 2) << 30;
    (f32::from_bits(sin.to_bits() ^ sin_sign), f32::from_bits(cos.to_bits() ^ cos_sign))
}

/// Scratch floats: f64 frequencies, and cosines and sines for each thread.
pub(crate) fn workspace(machine: Machine, op: &Rope) -> usize {
    let e = op.x.cols / op.heads;
    padded(e) + machine.threads * padded(e)
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Rope) {
    with_element!(op.x.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &Rope) {
    let (x, positions) = (ctx.mat::<T>(&op.x), ctx.u32(&op.positions));
    let e = x.cols / op.heads;
    let mut scratch = ctx.scratch();
    let frequencies = scratch.take(e);
    let tables = scratch.take(ctx.pool.threads() * padded(e));
    for i in 0..e / 2 {
        // SAFETY: E floats of aligned workspace hold E/2 f64.
        unsafe { *frequencies.at(2 * i, 2).cast::<f64>() = op.frequency(i) };
    }
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, worker| {
        let rotate = Rotate {
            op,
            x: &x,
            positions: positions.0,
            frequencies: frequencies.at(0, e).cast(),
            table: tables.at(worker * padded(e), padded(e)),
            tile,
        };
        // SAFETY: the instruction set is available; x is a checked view; tiles are disjoint rows; tables belong to workers.
        unsafe { dispatch(ctx.rung, rotate) }
    });
}

/// Cosine and sine of the angle of pair `i` at `position`, negated angle for the inverse.
fn rotation(op: &Rope, position: u32, i: usize) -> (f64, f64) {
    let angle = f64::from(position) * op.frequency(i);
    let (s, c) = angle.sin_cos();
    (c, if op.inverse { -s } else { s })
}

pub(crate) fn reference(arena: &Arena, op: &Rope) {
    with_element!(op.x.dtype(), T => typed_reference::<T>(arena, op));
}

fn typed_reference<T: Element>(arena: &Arena, op: &Rope) {
    let (x, positions) = (arena.mat::<T>(&op.x), arena.u32(&op.positions));
    let head_dim = x.cols / op.heads;
    for (n, &position) in positions.0.iter().enumerate() {
        for i in 0..head_dim / 2 {
            let (c, s) = rotation(op, position, i);
            for h in 0..op.heads {
                let (at, bt) = (h * head_dim + i, h * head_dim + i + head_dim / 2);
                let (a, b) = (f64::from(x.get(n, at)), f64::from(x.get(n, bt)));
                x.set(n, at, (a * c - b * s) as f32);
                x.set(n, bt, (b * c + a * s) as f32);
            }
        }
    }
}
