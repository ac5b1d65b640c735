//! Products by fp16 multiply-adds (AVX512-FP16: 32 lanes, twice the rate of f32), sums of short blocks of k in fp16, all
//! else in f32.
//!
//! `C(m, n) = sum_blocks 2^-(s(m) + t(n)) (sum_k fp16(2^s(m) A(m, k)) fp16(2^t(n) B(n, k)))`, where a block is 128
//! k, and 2^s(m) and 2^t(n) bring the largest element of a row in this block to 8 .. 16 ([`pack`]). The inner sum is
//! that of the even k plus that of the odd k, each of up to 64 fused multiply-adds in fp16 in the order of k
//! ([`tile`]): at most 128 x 16 x 16 = 2^15, half of the range of fp16, so it cannot overflow. Scaling by powers of two is exact.
//!
//! Error, with u = 2^-11, of each block, to first order:
//! `|error| <= (2 + 65) u sum |A B| + 2^-28 sum_k (max|A| |B| + |A| max|B|)`, the maxima over the block, and f32's own of
//! the sum over blocks. The first term is the rounding of operands and of partial sums, which are mostly smaller and
//! round at random: the rms error of normal data is 1.2e-3 of the result's rms for any k, half of the error that rounding operands to bf16
//! gives. Where all products have one sign it is 8e-4 for k = 128 and 2e-4 for 3072, more than twice that of bf16. The second
//! term is the loss of elements below 2^-17 of their row's largest.
//!
//! Magnitudes of rows as wholes do not matter, from 1e-38 on: gradients of 1e-8 are as exact as those of 1. Infinities and NaN
//! make their row or column infinite or NaN. Elements of B above 2^118 may give infinities where f32 does not.
//!
//! Structure as in [`super::fma`], whose panels of f32 are panels of pairs of fp16 here.
#![allow(unsafe_code)] // packed panels and register tiles by address

mod pack;
pub(crate) mod tile;

use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_parameter};
use crate::gemm::{Factor, Gemm, Shape, expect, finish_row};
use crate::simd::avx512::Avx512;
use pack::{Source, pack};
use std::ops::Range;
use tile::{BLOCK, MR, NR, Tile, lines};

/// Longest k that is summed in one pass.
pub(super) const K_PART: usize = 1024;
/// Words of packed B at a time: 16 MiB.
const PACK_LIMIT: usize = 4 << 20;
/// Words of a block of A: half a megabyte, so that it fits L2 together with two panels of B.
const A_BLOCK: usize = 128 << 10;
/// Panels of a block of A at most, and those that it keeps when work is cut smaller so that threads share it evenly.
const A_PANELS: (usize, usize) = (16, 8);
/// Panels of B that a block of C passes over at least, so that packing A costs little.
const B_PANELS: usize = 16;
/// Blocks for each thread at least, where the shape allows.
const BLOCKS: usize = 4;
/// Words that one packing task writes, about.
const PACK_TASK: usize = 16 << 10;

/// Partition of a product: by its shape and, as far as bits do not depend on it, the threads.
#[derive(Debug, Clone, Copy)]
struct Plan {
    m: usize,
    k: usize,
    /// Panels of B packed at a time.
    b_panels: usize,
    /// Panels of A in a block of C at most.
    tile_a: usize,
    /// Blocks that the panels of A are cut into, as evenly as possible.
    blocks: usize,
    /// Panels of B in a block of C.
    tile_b: usize,
}

impl Plan {
    fn new(m: usize, n: usize, k: usize, threads: usize) -> Plan {
        let even = |whole: usize, most: usize| whole.div_ceil(whole.div_ceil(most).max(1)).max(1);
        let lines = lines(k).max(1);
        let b_panels = even(n.div_ceil(NR), (PACK_LIMIT / (lines * NR)).max(1));
        let a_panels = m.div_ceil(MR).max(1);
        let (mut tile_a, mut tile_b) =
            (even(a_panels, (A_BLOCK / (lines * MR)).clamp(1, A_PANELS.0)), b_panels);
        if threads > 1 {
            // First blocks of fewer rows, then of fewer columns, then of fewer rows again.
            let wanted = BLOCKS * threads;
            tile_a = even(a_panels, a_panels.div_ceil(wanted).max(A_PANELS.1).min(tile_a));
            let columns = wanted.div_ceil(a_panels.div_ceil(tile_a));
            tile_b = even(b_panels, b_panels.div_ceil(columns).max(B_PANELS).min(b_panels));
            let wanted = wanted.div_ceil(b_panels.div_ceil(tile_b));
            tile_a = even(a_panels, a_panels.div_ceil(wanted).min(tile_a));
        }
        // No thread waits at the end if all threads get the same number.
        let blocks = a_panels.div_ceil(tile_a).next_multiple_of(threads).min(a_panels);
        Plan { m, k, b_panels, tile_a: a_panels.div_ceil(blocks), blocks, tile_b }
    }

    fn packed_b(&self) -> usize {
        self.b_panels * lines(self.k) * NR
    }

    /// Scratch words of one thread: a register tile, then a packed block of A.
    fn scratch(&self) -> usize {
        MR * NR + padded(self.tile_a * lines(self.k) * MR)
    }
}

/// Scratch floats for a product.
pub(crate) fn workspace(shape: &Shape, threads: usize) -> usize {
    let plan = Plan::new(shape.m, shape.n, shape.k, threads);
    padded(plan.packed_b()) + padded(threads * plan.scratch())
}

/// Most scratch words for a product with at most these dims on one thread.
pub(crate) fn most_workspace(shape: &Shape) -> usize {
    let lines = lines(shape.k).max(1);
    let a = A_BLOCK.max(lines * MR).min(shape.m.next_multiple_of(MR) * lines);
    padded(shape.n.next_multiple_of(NR) * lines) + padded(MR * NR + padded(a))
}

/// Packs blocks of k of rows `first .. first + rows` of a factor.
///
/// # Safety
/// The rows are inside the factor; `dst` holds whole panels; [`tile::available`].
unsafe fn pack_factor<const AS_B: bool>(
    f: &Factor,
    (first, rows): (usize, usize),
    k: usize,
    blocks: Range<usize>,
    dst: *mut f32,
) {
    let (rs, ks) = f.strides();
    // SAFETY: by contract.
    with_parameter!(f.dtype(), T => unsafe {
        pack::<T, AS_B>(Source { at: f.at::<T>(first, 0), rs, ks }, rows, k, blocks, dst.cast());
    });
}

/// Rows `first .. first + rows` of B, in panels.
struct Panels<'a> {
    factor: Factor,
    plan: &'a Plan,
    first: usize,
    rows: usize,
    to: Span,
}

impl Panels<'_> {
    fn count(&self) -> usize {
        self.rows.div_ceil(NR)
    }

    /// Panels and blocks of k of one packing task. Those of an operand that runs along k span all of it.
    fn group(&self) -> (usize, usize) {
        if self.factor.strides().1 == 1 {
            ((PACK_TASK / (lines(self.plan.k).max(1) * NR)).max(1), self.plan.k.div_ceil(BLOCK))
        } else {
            (pack::ROWS / NR, 1)
        }
    }

    fn tasks(&self) -> usize {
        let (panels, blocks) = self.group();
        self.count().div_ceil(panels) * self.plan.k.div_ceil(BLOCK).div_ceil(blocks)
    }

    /// Packed panels `first .. first + count`.
    fn at(&self, first: usize, count: usize) -> *mut f32 {
        let panel = lines(self.plan.k) * NR;
        self.to.at(first * panel, count * panel)
    }

    /// Packs the operand rows of one task.
    ///
    /// # Safety
    /// The operand was checked, and no other thread works on this task; [`tile::available`].
    unsafe fn pack(&self, task: usize) {
        let ((panels, blocks), all) = (self.group(), self.plan.k.div_ceil(BLOCK));
        let across = self.count().div_ceil(panels);
        let (panel, block) = (task % across * panels, task / across * blocks);
        let panels = panels.min(self.count() - panel);
        let (row, blocks) = (panel * NR, block..(block + blocks).min(all));
        let rows = (self.first + row, (panels * NR).min(self.rows - row));
        // SAFETY: by contract; the rows are inside B, and this task alone writes these blocks of these panels.
        unsafe { pack_factor::<true>(&self.factor, rows, self.plan.k, blocks, self.at(panel, panels)) };
    }
}

/// One block of C.
struct Block<'a, T> {
    gemm: &'a Gemm<T>,
    plan: &'a Plan,
    b: &'a Panels<'a>,
    scratch: *mut f32,
    block: usize,
}

impl<T: Element> Block<'_, T> {
    /// # Safety
    /// [`tile::available`]; the operands were checked; no other thread works at this block or in its scratch.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
    unsafe fn run(&self) {
        let Block { gemm, plan, b, scratch: c, block } = *self;
        let (k, e) = (gemm.k, &gemm.epilogue);
        let across = b.count().div_ceil(plan.tile_b);
        let (ib, jb) = (block / across, block % across * plan.tile_b);
        let panel = |ib: usize| ib * plan.m.div_ceil(MR) / plan.blocks;
        let (first, end) = (panel(ib) * MR, (panel(ib + 1) * MR).min(plan.m));
        let (rows, nb) = (end - first, plan.tile_b.min(b.count() - jb));
        let (a_panel, b_panel) = (lines(k) * MR, lines(k) * NR);
        let a = c.wrapping_add(MR * NR);
        let panels = b.at(jb, nb);
        // SAFETY: the rows are inside A; the scratch memory of this thread holds a register tile and a block of A.
        unsafe { pack_factor::<false>(&gemm.a, (first, rows), k, 0..k.div_ceil(BLOCK), a) };
        let na = rows.div_ceil(MR);
        for j in 0..nb {
            let col = b.first + (jb + j) * NR;
            let cols = NR.min(b.first + b.rows - col);
            // The panel after the last one is the first one of the next block, most often.
            let next = panels.wrapping_add(if j + 1 < nb { (j + 1) * b_panel } else { 0 });
            for i in 0..na {
                let row = first + i * MR;
                let rows = MR.min(plan.m - row);
                let tile = Tile {
                    k,
                    a: a.wrapping_add(i * a_panel).cast(),
                    b: panels.wrapping_add(j * b_panel).cast(),
                    c,
                    ahead: next.wrapping_add(i * b_panel / na).cast(),
                    pace: (4 * NR).div_ceil(na),
                };
                // SAFETY: panels of k elements; the rows and columns are inside C, and only this call writes there.
                unsafe {
                    tile.run(rows, |r| expect::<Avx512, T>(e, row + r, col, cols));
                    for r in 0..rows {
                        finish_row::<Avx512, T>(e, c.add(r * NR), row + r, col, cols);
                    }
                }
            }
        }
    }
}

/// Computes a product of k > 0. Takes [`workspace`] floats from the start of the workspace after `skip` floats.
pub(crate) fn run<T: Element>(ctx: &Ctx<'_>, gemm: &Gemm<T>, skip: usize) {
    let (m, n) = (gemm.epilogue.out.rows, gemm.epilogue.out.cols);
    let threads = ctx.pool.threads();
    let plan = Plan::new(m, n, gemm.k, threads);
    let mut scratch = ctx.scratch();
    scratch.take(skip);
    let to = scratch.take(plan.packed_b());
    let own = scratch.take(threads * plan.scratch());
    let step = plan.b_panels * NR;
    for first in (0..n).step_by(step) {
        let b = Panels { factor: gemm.b, plan: &plan, first, rows: step.min(n - first), to };
        ctx.pool.run(b.tasks(), &|task, _| {
            // SAFETY: the engine is available (checked when the backend was made); the operand is a view that the launch
            // found inside its buffer, and the packed panels are workspace of this launch.
            unsafe { b.pack(task) }
        });
        let blocks = plan.blocks * b.count().div_ceil(plan.tile_b);
        ctx.pool.run(blocks, &|block, worker| {
            let scratch = own.at(worker * plan.scratch(), plan.scratch());
            // SAFETY: as above; blocks of C are disjoint, and scratch memory is the worker's own.
            unsafe { Block { gemm, plan: &plan, b: &b, scratch, block }.run() }
        });
    }
}
