//! Partial results of an attention over different keys, merged: for every query and head `lse' = lse - logsigmoid(lse - lse2)`,
//! `out' = out - w (out - out2)`, `w = sigmoid(lse2 - lse)` (Liu et al. 2023; Dao et al. 2022). A side that has seen no key has
//! lse -infinity and weight 0. No backward pass: that of attention takes `out` and `lse` of all keys.
//! Cost: an exponential and a logarithm a query and head, three operations an element.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::AttentionMerge;

/// Elements of a tile, about.
const ELEMENTS: usize = 16 << 10;

/// The merged log-sum-exp, and the weight of the second result; `None` if it changes nothing.
fn weight(lse: f32, other: f32) -> Option<(f32, f32)> {
    if other == f32::NEG_INFINITY {
        return None;
    }
    if lse == f32::NEG_INFINITY {
        return Some((other, 1.0));
    }
    let d = f64::from(other) - f64::from(lse);
    let merged = f64::from(lse.max(other)) + (-d.abs()).exp().ln_1p();
    // The maximum of a number and NaN is the number.
    Some((if d.is_nan() { f32::NAN } else { merged as f32 }, (1.0 / (1.0 + (-d).exp())) as f32))
}

/// Operands, and the rows of one tile.
struct Tile<'a>(&'a AttentionMerge, [Mat; 4], std::ops::Range<usize>);

impl Kernel for Tile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile(op, [out, lse, part, part_lse], rows) = self;
        let s = &op.shape;
        for row in rows {
            let (b, t) = (row / s.seq, row % s.seq);
            for h in 0..s.heads {
                let of = b * s.heads + h;
                let Some((merged, w)) = weight(lse.get(of, t), part_lse.get(of, t)) else { continue };
                lse.set(of, t, merged);
                for c in (0..s.head_dim).step_by(S::LANES) {
                    let (n, at) = (S::LANES.min(s.head_dim - c), h * s.head_dim + c);
                    // SAFETY: columns of head h, whose shapes were checked; this tile alone writes the row.
                    unsafe {
                        let to = out.row(row).add(at);
                        let (a, b) =
                            (load_part::<S>(to.cast_const(), n), load_part::<S>(part.row(row).add(at), n));
                        let merged = if w == 1.0 { b } else { S::fma(S::splat(w), S::sub(b, a), a) };
                        store_part::<S>(to, merged, n);
                    }
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &AttentionMerge) {
    let mats = [op.out, op.lse, op.part, op.part_lse].map(|view| ctx.f32(&view));
    let (rows, each) = (op.out.rows, (ELEMENTS / op.out.cols.max(1)).max(1));
    ctx.pool.run(rows.div_ceil(each), &|tile, _| {
        let rows = tile * each..((tile + 1) * each).min(rows);
        // SAFETY: the instruction set is available; operands are checked views; tiles have different rows.
        unsafe { dispatch(ctx.rung, Tile(op, mats, rows)) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &AttentionMerge) {
    let [out, lse, part, part_lse] = [op.out, op.lse, op.part, op.part_lse].map(|view| arena.f32(&view));
    let s = &op.shape;
    for row in 0..out.rows {
        for h in 0..s.heads {
            let (of, t) = (row / s.seq * s.heads + h, row % s.seq);
            let (a, b) = (f64::from(lse.get(of, t)), f64::from(part_lse.get(of, t)));
            let most = if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
            if most == f64::NEG_INFINITY {
                continue;
            }
            let (ea, eb) = ((a - most).exp(), (b - most).exp());
            lse.set(of, t, (most + (ea + eb).ln()) as f32);
            for c in h * s.head_dim..(h + 1) * s.head_dim {
                let sum = ea * f64::from(out.get(row, c)) + eb * f64::from(part.get(row, c));
                out.set(row, c, (sum / (ea + eb)) as f32);
            }
        }
    }
}
