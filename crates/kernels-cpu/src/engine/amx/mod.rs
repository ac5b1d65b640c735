//! Products on the tile unit (Intel AMX, bf16 operands, f32 sums).
//!
//! An f32 operand is packed as 1, 2 or 3 bf16 parts ([`pack`]). The products whose part numbers sum to less than the number
//! of parts are added: `hh`, `hh + hm + mh`, or `hh + hm + mh + mm + hl + lh`. An operand that is stored as bf16 has one part, so
//! its product with an operand of three parts is exact with three, and the product of two such operands with one.
//! The omitted terms are, relative to |a b|, at most 2^-8, 2^-15 and 2^-23 (h alone; `mm`; `ml + lm`): the last is the
//! rounding of one f32 product. See Henry, Tang & Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for
//! Higher-Precision Computations", 2019.
//!
//! Structure as in [`super::fma`]: panels of B packed by all threads (by a single thread, just before they are read), blocks of A
//! packed by each thread into its L2 cache, panels of 32 rows. For every panel of B and every panel of A, 32 x 32 sums stay in four
//! tile registers; with one part, where the tile unit is faster than the L2 cache, for a block of k at a time, so that the panel of B
//! stays in L1. Unlike the other engines this one does not prefetch C where the epilogue only adds a bias: tiles finish so soon that
//! pending lines delay the panels of A.
#![allow(unsafe_code)] // packed panels and tiles by address

pub(crate) mod pack;
pub(crate) mod product;
pub(crate) mod tile;

use super::Parts;
use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_parameter};
use crate::gemm::{Epilogue, Factor, Gemm, Shape, expect, finish_row};
use crate::simd::avx512::Avx512;
use crate::simd::{load_part, store_part};
use bessemer_units::DType;
pub(super) use pack::transpose;
use pack::{PANEL, Source, pack, pairs_in_order, panel_bytes};
use product::{Ahead, PanelProduct};
use std::arch::x86_64::{_mm512_add_ps, _mm512_loadu_ps, _mm512_mask_storeu_epi16};
use std::ops::Range;
use tile::{Configured, DEPTH, TILE};

/// Steps of a block of k with one part: the panels of A and B take 16 KiB each of an L1 cache of 48.
const BLOCK: usize = 8;
/// Bytes of a block of A, so that it fits an L2 cache of 2 MiB together with two panels of B.
const A_BLOCK: usize = 1 << 20;
/// Panels of a block of A at most, and the panels that it keeps when work is cut smaller so that threads share it evenly.
const A_PANELS: (usize, usize) = (16, 4);
/// Bytes of packed B at a time.
const PACK_LIMIT: usize = 32 << 20;
/// Panels of B that a block passes over at least, so that packing A costs little.
const B_PANELS: usize = 16;
/// Blocks for each thread at least, where the shape allows.
const BLOCKS: usize = 4;
/// Elements that one task of packing reads, about.
const PACK_TASK: usize = 32 << 10;
/// Panels of a task of packing at most, where rows are contiguous.
const PACK_PANELS: usize = 64;

/// Longest k that is summed in one pass.
pub(super) fn k_part(parts: Parts) -> usize {
    if parts.a.max(parts.b) == 1 { 3072 } else { 1024 }
}

/// Partition of a product: by its shape and, as far as bits do not depend on it, the threads.
#[derive(Debug, Clone, Copy)]
struct Plan {
    m: usize,
    k: usize,
    parts: Parts,
    /// Steps of k.
    steps: usize,
    /// Steps that sums stay in registers for.
    block: usize,
    /// Panels of B packed at a time.
    b_panels: usize,
    /// Panels of A in a block of C.
    tile_a: usize,
    /// Panels of B in a block of C.
    tile_b: usize,
}

impl Plan {
    fn new(m: usize, n: usize, k: usize, parts: Parts, threads: usize) -> Plan {
        let steps = k.div_ceil(DEPTH);
        let even = |whole: usize, most: usize| whole.div_ceil(whole.div_ceil(most).max(1)).max(1);
        let block = if parts.a * parts.b == 1 { even(steps, BLOCK) } else { steps.max(1) };
        let bytes = |parts| panel_bytes(steps.max(1), parts);
        let b_panels = even(n.div_ceil(PANEL), (PACK_LIMIT / bytes(parts.b)).max(1));
        let a_panels = m.div_ceil(PANEL).max(1);
        let (mut tile_a, mut tile_b) =
            (even(a_panels, (A_BLOCK / bytes(parts.a)).clamp(1, A_PANELS.0)), b_panels);
        if threads > 1 {
            // First blocks of fewer columns, then of fewer rows.
            let wanted = BLOCKS * threads;
            let columns = wanted.div_ceil(a_panels.div_ceil(tile_a));
            tile_b = even(b_panels, b_panels.div_ceil(columns).max(B_PANELS).min(b_panels));
            let rows = wanted.div_ceil(b_panels.div_ceil(tile_b));
            tile_a = even(a_panels, a_panels.div_ceil(rows).max(A_PANELS.1).min(tile_a));
        }
        Plan { m, k, parts, steps, block, b_panels, tile_a, tile_b }
    }

    fn packed_b(&self) -> usize {
        self.b_panels * panel_bytes(self.steps, self.parts.b) / size_of::<f32>()
    }

    /// Scratch floats of one thread: sums of all panels of a block of A, or of one if none wait; then the packed block of A.
    fn scratch(&self) -> usize {
        self.sums() + self.tile_a * panel_bytes(self.steps, self.parts.a) / size_of::<f32>()
    }

    fn sums(&self) -> usize {
        let waiting = if self.block < self.steps { self.tile_a } else { 1 };
        waiting * PANEL * PANEL
    }
}

/// Scratch floats for a product.
pub(crate) fn workspace(shape: &Shape, parts: Parts, threads: usize) -> usize {
    let plan = Plan::new(shape.m, shape.n, shape.k, parts, threads);
    padded(plan.packed_b()) + padded(threads * plan.scratch())
}

/// Most scratch floats for a product with at most these dims on one thread.
pub(crate) fn most_workspace(shape: &Shape, parts: Parts) -> usize {
    let bytes = |parts| panel_bytes(shape.k.div_ceil(DEPTH).max(1), parts);
    let b = shape.n.div_ceil(PANEL) * bytes(parts.b) / size_of::<f32>();
    let a =
        A_BLOCK.max(bytes(parts.a)).min(shape.m.div_ceil(PANEL).max(1) * bytes(parts.a)) / size_of::<f32>();
    padded(b) + padded(A_PANELS.0 * PANEL * PANEL + a)
}

/// Packs `rows` rows of a factor from `first` on and `steps` steps of its k elements from `step` on.
///
/// # Safety
/// The rows are inside the factor; `dst` is the position of the first step in the first panel of enough whole ones of `all`
/// steps; the processor has the tile unit.
pub(crate) unsafe fn pack_factor<const AS_B: bool>(
    f: &Factor,
    (first, rows): (usize, usize),
    (step, steps): (usize, usize),
    k: usize,
    parts: usize,
    dst: *mut u8,
) {
    let (rs, ks) = f.strides();
    let k0 = step * DEPTH;
    let (depth, stride) = ((steps * DEPTH).min(k - k0), panel_bytes(k.div_ceil(DEPTH), parts));
    with_parameter!(f.dtype(), T => {
        let from = Source { at: f.at::<T>(first, k0), rs, ks };
        // SAFETY: by contract.
        unsafe {
            match parts {
                1 => pack::<T, 1, AS_B>(from, rows, depth, dst, stride),
                2 => pack::<T, 2, AS_B>(from, rows, depth, dst, stride),
                _ => pack::<T, 3, AS_B>(from, rows, depth, dst, stride),
            }
        }
    });
}

/// Rows `first .. first + rows` of B, in panels: `[panel][step][part][half][tile]`.
struct Panels<'a> {
    factor: Factor,
    plan: &'a Plan,
    first: usize,
    rows: usize,
    to: Span,
    /// Panels that are packed at a time: each is at its number modulo this.
    slots: usize,
}

impl Panels<'_> {
    fn count(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Panels and steps of a task of packing. Those of an operand that runs along k span all of it.
    fn group(&self) -> (usize, usize) {
        let steps = self.plan.steps.max(1);
        if self.factor.strides().1 == 1 {
            ((PACK_TASK / (steps * DEPTH * PANEL)).max(1), steps)
        } else {
            let panels = self.count().clamp(1, PACK_PANELS);
            (panels, (PACK_TASK / (panels * PANEL * DEPTH)).clamp(1, steps))
        }
    }

    fn tasks(&self) -> usize {
        let (panels, steps) = self.group();
        self.count().div_ceil(panels) * self.plan.steps.div_ceil(steps)
    }

    /// Packed panels `first .. first + count`.
    fn at(&self, first: usize, count: usize) -> *mut u8 {
        let panel = panel_bytes(self.plan.steps, self.plan.parts.b) / size_of::<f32>();
        self.to.at(first % self.slots * panel, count * panel).cast()
    }

    /// Packs steps of a panel.
    ///
    /// # Safety
    /// Same requirements as [`Panels::pack`].
    unsafe fn pack_steps(&self, panel: usize, steps: Range<usize>) {
        let (row, parts) = (panel * PANEL, self.plan.parts.b);
        let rows = (self.first + row, PANEL.min(self.rows - row));
        let dst = self.at(panel, 1).wrapping_add(panel_bytes(steps.start, parts));
        // SAFETY: by contract.
        unsafe {
            pack_factor::<true>(&self.factor, rows, (steps.start, steps.len()), self.plan.k, parts, dst)
        };
    }

    /// True if k runs along the rows: a panel is one piece of memory, or few.
    fn along_k(&self) -> bool {
        self.factor.strides().1 == 1
    }

    /// Steps of the next panel that are packed before product `q` of `of` of a panel where rows are contiguous. Panels then have
    /// as many pieces of memory as k, often in few sets of a cache, so they are packed soon after they are prefetched.
    fn share(&self, q: usize, of: usize) -> Range<usize> {
        let steps = self.plan.steps;
        q * steps / of..(q + 1) * steps / of
    }

    /// Elements that will be packed after product `q` of `of` of a panel, which has `steps` steps.
    fn unpacked(&self, panel: usize, (q, of): (usize, usize), steps: usize) -> Ahead {
        let (rs, ks) = self.factor.steps();
        let row = self.first + (panel + 1) * PANEL;
        if self.along_k() {
            // All of the next panel.
            let lines = (PANEL * self.plan.k * ks).div_ceil(64).div_ceil(of * steps);
            return Ahead::lines(self.factor.address(row, 0).wrapping_add(64 * lines * steps * q), lines);
        }
        let (row, next) = match q + 1 < of {
            true => (row, self.share(q + 1, of)),
            false => (row + PANEL, self.share(0, of)),
        };
        let pieces = (next.len() * DEPTH).div_ceil(steps);
        let lines = (PANEL * rs).div_ceil(64);
        Ahead {
            at: self.factor.address(row, next.start * DEPTH),
            pieces,
            lines,
            stride: ks,
            advance: pieces * ks,
        }
    }

    /// Packs the operand rows of one task.
    ///
    /// # Safety
    /// The operand was checked, and no other thread works on this task; the processor has the tile unit.
    unsafe fn pack(&self, task: usize) {
        let (panels, steps) = self.group();
        let across = self.count().div_ceil(panels);
        let (panel, step) = (task % across * panels, task / across * steps);
        let (panels, steps) = (panels.min(self.count() - panel), steps.min(self.plan.steps - step));
        let row = panel * PANEL;
        let rows = (panels * PANEL).min(self.rows - row);
        let dst = self.at(panel, panels).wrapping_add(panel_bytes(step, self.plan.parts.b));
        // SAFETY: by contract; this task alone writes these steps of these panels.
        unsafe {
            pack_factor::<true>(
                &self.factor,
                (self.first + row, rows),
                (step, steps),
                self.plan.k,
                self.plan.parts.b,
                dst,
            );
        }
    }
}

/// One block of C.
struct Block<'a, T> {
    gemm: &'a Gemm<T>,
    plan: &'a Plan,
    b: &'a Panels<'a>,
    scratch: *mut f32,
    block: usize,
    /// Panels of B are packed here, before they are first read.
    packs: bool,
    /// One thread computes all blocks.
    alone: bool,
}

impl<T: Element> Block<'_, T> {
    /// A tile of C from (row, col) on, in `steps` steps.
    fn written(&self, (row, col): (usize, usize), steps: usize) -> Ahead {
        let (c, pieces) = (&self.gemm.epilogue.out, PANEL.div_ceil(steps));
        let stride = c.stride * size_of::<T>();
        let at = c.ptr().wrapping_add(row * c.stride + col).cast_const().cast();
        Ahead { at, pieces, lines: PANEL * size_of::<T>() / 64, stride, advance: pieces * stride }
    }

    /// # Safety
    /// [`tile::available`]; the operands were checked; no other thread works at this block or in its scratch.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn run<const A: usize, const B: usize>(&self) {
        let Block { gemm, plan, b, scratch, .. } = *self;
        let e = &gemm.epilogue;
        let prefetched = (e.accumulate && !self.alone) || !is_plain(e);
        let across = b.count().div_ceil(plan.tile_b);
        let (ia, jb) = (self.block / across * plan.tile_a, self.block % across * plan.tile_b);
        let first = ia * PANEL;
        let (rows, nb) = ((plan.tile_a * PANEL).min(plan.m - first), plan.tile_b.min(b.count() - jb));
        let na = rows.div_ceil(PANEL);
        let a = scratch.wrapping_add(plan.sums()).cast::<u8>();
        let a_panel = panel_bytes(plan.steps, A);
        // SAFETY: the rows are inside A, and the scratch memory of this thread holds their panels.
        unsafe { pack_factor::<false>(&gemm.a, (first, rows), (0, plan.steps), plan.k, A, a) };
        // SAFETY: the tile unit is available, and this thread has no other configuration.
        let _tiles = unsafe { Configured::new() };
        for j in 0..nb {
            let (col, pb) = (b.first + (jb + j) * PANEL, b.at(jb + j, 1));
            let cols = PANEL.min(b.first + b.rows - col);
            if self.packs && (j == 0 || b.along_k()) {
                // SAFETY: this thread alone works at B.
                unsafe { b.pack_steps(jb + j, 0..plan.steps) };
            }
            // The panel after the last one is the first one of the next block, most often.
            let next = b.at(if j + 1 < nb { jb + j + 1 } else { jb }, 1);
            let mut step = 0;
            loop {
                let steps = plan.block.min(plan.steps - step);
                let last = step + steps >= plan.steps;
                let (a_step, b_step) = (panel_bytes(step, A), panel_bytes(step, B));
                for i in 0..na {
                    let row = first + i * PANEL;
                    let rows = PANEL.min(plan.m - row);
                    let share = panel_bytes(steps, B) / na;
                    let ahead = if self.packs {
                        let (q, of) = (step / plan.block * na + i, plan.steps.div_ceil(plan.block) * na);
                        if j + 1 < nb && !b.along_k() {
                            // SAFETY: as above.
                            unsafe { b.pack_steps(jb + j + 1, b.share(q, of)) };
                        }
                        b.unpacked(jb + j, (q, of), steps)
                    } else {
                        let at = next.wrapping_add(panel_bytes(step, B) + i * share);
                        Ahead::lines(at, (2 * B * TILE / 64).div_ceil(na))
                    };
                    let written = if self.alone && last && !prefetched {
                        let (i, col) = if i + 1 < na { (i + 1, col) } else { (0, col + PANEL) };
                        self.written((first + i * PANEL, col), steps)
                    } else {
                        Ahead::NOTHING
                    };
                    let job = PanelProduct {
                        steps,
                        a: a.wrapping_add(i * a_panel + a_step),
                        b: pb.wrapping_add(b_step),
                        c: scratch.wrapping_add(if plan.block < plan.steps { i * PANEL * PANEL } else { 0 }),
                        c_step: PANEL,
                        accumulate: step > 0,
                        ahead,
                        written,
                    };
                    // SAFETY: the panels have as many steps; the rows and columns are inside C, and only this call writes
                    // there.
                    unsafe {
                        if last && prefetched {
                            (row..row + rows).for_each(|r| expect::<Avx512, T>(e, r, col, cols));
                        }
                        job.run_tiles::<A, B>(rows, cols);
                        if last {
                            finish(e, job.c, (row, rows), (col, cols));
                        }
                    }
                }
                step += steps;
                if last {
                    break;
                }
            }
        }
    }
}

/// True if an epilogue only adds a bias and the former contents of C.
fn is_plain<T>(e: &Epilogue<T>) -> bool {
    e.prior.is_none() && e.activation.is_none() && e.derivative.is_none() && e.residual.is_none()
}

/// Writes a panel of finished sums, PANEL from row to row, to C. One call for each panel, so that the code of all epilogues exists
/// once for each type.
///
/// # Safety
/// [`tile::available`]; the sums are inside every matrix of the epilogue.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
unsafe fn finish<T: Element>(
    e: &Epilogue<T>,
    sums: *const f32,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
) {
    // SAFETY: by contract.
    unsafe {
        if is_plain(e) {
            if cols == PANEL {
                return finish_plain::<T, true>(e, sums, (row, rows), (col, cols));
            }
            return finish_plain::<T, false>(e, sums, (row, rows), (col, cols));
        }
        for r in 0..rows {
            finish_row::<Avx512, T>(e, sums.add(r * PANEL), row + r, col, cols);
        }
    }
}

/// [`finish`] of a plain epilogue. The processor converts to bf16: subnormal numbers, which the tile unit
/// treats as zeros too, become zeros.
///
/// # Safety
/// Same requirements as [`finish`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
unsafe fn finish_plain<T: Element, const WHOLE: bool>(
    e: &Epilogue<T>,
    sums: *const f32,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
) {
    let have = |half: usize| if WHOLE { 16 } else { cols.saturating_sub(16 * half).min(16) };
    // SAFETY: by contract.
    unsafe {
        let bias = e.bias.as_ref().map(|b| [0, 1].map(|h| b.load::<Avx512>(0, col + 16 * h, have(h))));
        for r in 0..rows {
            let to = e.out.ptr().wrapping_add((row + r) * e.out.stride + col);
            let mut y = [0, 1].map(|h| _mm512_loadu_ps(sums.add(r * PANEL + 16 * h)));
            if let Some(bias) = bias {
                y = [0, 1].map(|h| _mm512_add_ps(y[h], bias[h]));
            }
            if e.accumulate {
                y = [0, 1]
                    .map(|h| _mm512_add_ps(y[h], load_part::<Avx512>(to.wrapping_add(16 * h), have(h))));
            }
            if T::DTYPE == DType::Bf16 {
                _mm512_mask_storeu_epi16(
                    to.cast(),
                    u32::MAX >> (32 - have(0) - have(1)),
                    pairs_in_order(y[0], y[1]),
                );
            } else {
                store_part::<Avx512>(to, y[0], have(0));
                store_part::<Avx512>(to.wrapping_add(16), y[1], have(1));
            }
        }
    }
}

/// Computes a product. Takes [`workspace`] floats after the first `skip`.
pub(crate) fn run<T: Element>(ctx: &Ctx<'_>, gemm: &Gemm<T>, parts: Parts, skip: usize) {
    let (m, n) = (gemm.epilogue.out.rows, gemm.epilogue.out.cols);
    let plan = Plan::new(m, n, gemm.k, parts, ctx.pool.threads());
    let mut scratch = ctx.scratch();
    scratch.take(skip);
    let to = scratch.take(plan.packed_b());
    let scratch = scratch.take(ctx.pool.threads() * plan.scratch());
    let at_once = plan.b_panels * PANEL;
    for first in (0..n).step_by(at_once) {
        let alone = ctx.pool.is_alone();
        let slots = plan.b_panels;
        let mut b = Panels { factor: gemm.b, plan: &plan, first, rows: at_once.min(n - first), to, slots };
        let blocks = m.div_ceil(plan.tile_a * PANEL) * b.count().div_ceil(plan.tile_b);
        if alone && blocks == 1 {
            b.slots = 2.min(slots);
        }
        if !alone {
            ctx.pool.run(b.tasks(), &|task, _| {
                // SAFETY: the engine is available (checked when the backend was made); the operands are views that the launch
                // found inside their buffers, and the packed panels are workspace of this launch.
                unsafe { b.pack(task) }
            });
        }
        ctx.pool.run(blocks, &|block, worker| {
            let scratch = scratch.at(worker * plan.scratch(), plan.scratch());
            let packs = alone && block == 0;
            let block = Block { gemm, plan: &plan, b: &b, scratch, block, packs, alone };
            // SAFETY: the engine is available, and the operands were checked; blocks of C are disjoint, and each worker has its own scratch memory.
            unsafe {
                match (parts.a, parts.b) {
                    (1, 1) => block.run::<1, 1>(),
                    (1, 2) => block.run::<1, 2>(),
                    (2, 1) => block.run::<2, 1>(),
                    (2, 2) => block.run::<2, 2>(),
                    (1, _) => block.run::<1, 3>(),
                    (_, 1) => block.run::<3, 1>(),
                    _ => block.run::<3, 3>(),
                }
            }
        });
    }
}
