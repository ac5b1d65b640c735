//! `out[e] = factor[e] x[e]`, factor = 1/(1-p) where uniform(key, e) >= p and 0 elsewhere (Srivastava et al. 2014), or uniform in
//! [1-p, 1+p); the backward pass is the same operator on the gradient. Nothing is saved: factors are computed again.
//!
//! Cost: one read, one write, ten Philox rounds for four elements.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::{Indices, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Dropout, DropoutMask, Noise};
use bessemer_tensor::rng::{RngKey, unit};

/// A mask with the values of its counters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mask {
    p: f32,
    key: RngKey,
    first: u64,
}

impl Mask {
    /// # Panics
    /// If there are not [`DropoutMask::WORDS`] counters, which a checked operator has.
    pub(crate) fn new(mask: &DropoutMask, counters: &Indices<'_>) -> Mask {
        let (key, element) = DropoutMask::stream(std::array::from_fn(|i| counters.0[i]));
        Mask { p: mask.p, key, first: element.wrapping_add(mask.first) }
    }
}

/// Uniform number of element `e` (counted from the operand's first).
pub(crate) fn uniform(mask: &Mask, e: u64) -> f32 {
    mask.key.uniform(mask.first + e)
}

/// Factor of element `e`.
pub(crate) fn factor(mask: &Mask, e: u64) -> f32 {
    if uniform(mask, e) >= mask.p { 1.0 / (1.0 - mask.p) } else { 0.0 }
}

/// Philox blocks computed side by side: as many as the widest vector has lanes.
const SIDE: usize = 16;

/// The Philox 4x32-10 blocks `first .. first + SIDE`, word by word. Words are in the lower halves of 64-bit lanes, where
/// the widening multiplication of every vector unit reads them; the contents of the upper halves are ignored.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // four arrays walked together: iterators would hide the lanes
fn philox_blocks(mask: &Mask, first: u64) -> [[u64; SIDE]; 4] {
    const LOW: u64 = 0xffff_ffff;
    let mut c = [[0u64; SIDE]; 4];
    for i in 0..SIDE {
        let block = first.wrapping_add(i as u64);
        c[0][i] = block;
        c[1][i] = block >> 32;
        c[2][i] = mask.key.step;
        c[3][i] = mask.key.step >> 32;
    }
    let [mut k0, mut k1] = mask.key.key;
    for round in 0..10 {
        if round > 0 {
            k0 = k0.wrapping_add(0x9E37_79B9);
            k1 = k1.wrapping_add(0xBB67_AE85);
        }
        for i in 0..SIDE {
            let p0 = (c[0][i] & LOW) * 0xD251_1F53;
            let p1 = (c[2][i] & LOW) * 0xCD9E_8D57;
            c[0][i] = (p1 >> 32) ^ c[1][i] ^ u64::from(k0);
            c[1][i] = p1;
            c[2][i] = (p0 >> 32) ^ c[3][i] ^ u64::from(k1);
            c[3][i] = p0;
        }
    }
    c
}

/// Writes the factors of elements `e .. e + count` to `out`.
///
/// # Safety
/// `out` holds `count` floats.
#[inline(always)]
pub(crate) unsafe fn factors(mask: &Mask, e: u64, count: usize, out: *mut f32) {
    let kept = 1.0 / (1.0 - mask.p);
    // SAFETY: by contract.
    unsafe { of_uniform(mask, e, count, out, &|u| if u >= mask.p { kept } else { 0.0 }) };
}

/// Writes `of` of the uniform numbers of elements `e .. e + count` to `out`.
///
/// # Safety
/// `out` holds `count` floats.
#[inline(always)]
unsafe fn of_uniform(mask: &Mask, e: u64, count: usize, out: *mut f32, of: &impl Fn(f32) -> f32) {
    let start = mask.first + e;
    let (mut block, mut lane) = (start / 4, (start % 4) as usize);
    let mut done = 0;
    while done < count {
        let words = philox_blocks(mask, block);
        let mut all = [0.0f32; 4 * SIDE];
        for i in 0..SIDE {
            for (w, word) in words.iter().enumerate() {
                all[4 * i + w] = of(unit(word[i] as u32));
            }
        }
        let n = (4 * SIDE - lane).min(count - done);
        // SAFETY: done + n <= count.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr().add(lane), out.add(done), n) };
        done += n;
        block += SIDE as u64;
        lane = 0;
    }
}

struct Masked<'a, T> {
    x: &'a Mat<T>,
    out: &'a Mat<T>,
    mask: Mask,
    noise: Noise,
    global_cols: usize,
    block: Block,
}

/// A factor in [1-p, 1+p).
#[inline(always)]
fn jitter(p: f32, uniform: f32) -> f32 {
    1.0 + p * (2.0 * uniform - 1.0)
}

impl<T: Element> Kernel for Masked<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const CHUNK: usize = 256;
        let Masked { x, out, mask, noise, global_cols, block } = self;
        let mut buffer = [0.0f32; CHUNK];
        for r in block.rows.clone() {
            for c0 in block.cols.clone().step_by(CHUNK) {
                let len = CHUNK.min(block.cols.end - c0);
                // SAFETY: columns c0 .. c0 + len of row r of both; the buffer holds len <= CHUNK.
                unsafe {
                    let first = (r * global_cols + c0) as u64;
                    match noise {
                        Noise::Bernoulli => factors(&mask, first, len, buffer.as_mut_ptr()),
                        Noise::Uniform => {
                            of_uniform(&mask, first, len, buffer.as_mut_ptr(), &|u| jitter(mask.p, u));
                        }
                    }
                    let (from, to) = (x.row(r).add(c0), out.row(r).add(c0));
                    for c in (0..len).step_by(S::LANES) {
                        let n = S::LANES.min(len - c);
                        let m = load_part::<S>(buffer.as_ptr().add(c), n);
                        store_part::<S>(to.add(c), S::mul(load_part::<S>(from.add(c), n), m), n);
                    }
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Dropout) {
    with_element!(op.x.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &Dropout) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
    let (mask, global_cols) = (Mask::new(&op.mask, &ctx.u32(&op.mask.counters)), op.global_cols);
    blocks(ctx, x.rows, x.cols, &|block| {
        let masked = Masked { x: &x, out: &out, mask, noise: op.noise, global_cols, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, masked) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Dropout) {
    with_element!(op.x.dtype(), T => typed_reference::<T>(arena, op));
}

fn typed_reference<T: Element>(arena: &Arena, op: &Dropout) {
    let (x, out) = (arena.mat::<T>(&op.x), arena.mat::<T>(&op.out));
    let mask = Mask::new(&op.mask, &arena.u32(&op.mask.counters));
    for r in 0..x.rows {
        for c in 0..x.cols {
            let e = (r * op.global_cols + c) as u64;
            let factor = match op.noise {
                Noise::Bernoulli => factor(&mask, e),
                Noise::Uniform => jitter(mask.p, uniform(&mask, e)),
            };
            out.set(r, c, x.get(r, c) * factor);
        }
    }
}
