//! Products by f32 multiply-adds, on every instruction set.
//!
//! Structure (Goto & van de Geijn 2008; Van Zee & van de Geijn 2015): B (or, if it is very wide, a chunk of its rows) is
//! packed by all threads (by a single thread, just before they are read) into panels of NR rows, `[panel][k][row]`, zero-padded to
//! whole panels. Then blocks of some hundred rows of C are computed, each by one thread: it packs its rows of A into panels of MR
//! rows in scratch memory of its own,
//! which stay in its L2 cache, and passes once over the panels of B: for every panel of B, for every panel of A, a register
//! tile of MR x NR sums, and the epilogue, which reads them back from L1 and writes C.
//!
//! The panels of B come from the L3 cache or from main memory, which is too slow to wait for: every register tile
//! prefetches its share of the next panel, and the lines of C that it will write.
#![allow(unsafe_code)] // packed panels and register tiles by address

use crate::Rung;
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::element::{Element, with_parameter};
use crate::gemm::{Factor, Gemm, Shape, expect, finish_rows};
use crate::panels::{STEPS_AHEAD, pack_columns, pack_rows};
use crate::simd::{Kernel, Simd, dispatch};
use std::ops::Range;

/// Longest part of k: the panels that a register tile reads stream from L2 as fast as from L1, so longer is better until
/// a block of A has too few rows to use a panel of B often.
pub(crate) const K_PART: usize = 1024;
/// Floats of packed B at a time: 16 MiB.
const PACK_LIMIT: usize = 4 << 20;
/// Rows of a block of A at most, and the rows that it keeps when work is cut smaller so that threads share it evenly:
/// each use of a panel of B is one panel of A, and fewer than eight would have to wait for B.
const A_ROWS: (usize, usize) = (224, 112);
/// Columns of C that a block passes over at least, so that packing A costs little.
const B_COLUMNS: usize = 512;
/// Blocks for each thread at least, where the shape allows: a thread on a disturbed core takes fewer.
const BLOCKS: usize = 4;
/// Floats that one packing tile reads, about.
const PACK_TILE: usize = 32 << 10;
/// Columns of a packing tile at most where B is stored by columns: two kilobytes of a row are read as a whole.
const PACK_COLUMNS: usize = 512;

/// Register tile of an instruction set.
fn register_tile(rung: Rung) -> (usize, usize) {
    match rung {
        #[cfg(target_arch = "x86_64")]
        Rung::Avx512 => (6, 64),
        #[cfg(target_arch = "x86_64")]
        Rung::Avx2 => (6, 16),
        #[cfg(target_arch = "aarch64")]
        Rung::Neon => (8, 12),
        _ => (6, 8),
    }
}

/// Floats of a block of A, and panels at least: half a megabyte where L2 has one or two, so that it fits together with two
/// panels of B. Processors without AVX-512 have 256 or 512 KiB; with few panels each panel of B is used too seldom.
fn a_block(rung: Rung) -> (usize, usize) {
    match rung {
        #[cfg(target_arch = "x86_64")]
        Rung::Avx2 => (32 << 10, 12),
        _ => (128 << 10, 1),
    }
}

/// Partition of a product.
#[derive(Debug, Clone, Copy)]
struct Plan {
    m: usize,
    n: usize,
    k: usize,
    mr: usize,
    nr: usize,
    /// Panels of B packed at a time.
    b_panels: usize,
    /// Panels of A in a block of C at most.
    tile_a: usize,
    /// Blocks that the panels of A are cut into, as evenly as possible.
    blocks: usize,
    /// Panels of B in a block of C.
    tile_b: usize,
    /// True if register tiles above the diagonal of C are left out.
    lower: bool,
}

impl Plan {
    fn new(machine: Machine, m: usize, n: usize, k: usize) -> Plan {
        let (mr, nr) = register_tile(machine.rung);
        let even = |whole: usize, most: usize| whole.div_ceil(whole.div_ceil(most).max(1)).max(1);
        let b_panels = even(n.div_ceil(nr), (PACK_LIMIT / (k.max(1) * nr)).max(1));
        let a_panels = m.div_ceil(mr).max(1);
        let (floats, least) = a_block(machine.rung);
        let most = (floats / (k.max(1) * mr)).clamp(least, A_ROWS.0 / mr);
        let (mut tile_a, mut tile_b) = (even(a_panels, most), b_panels);
        if machine.threads > 1 {
            // First blocks of fewer rows, then of fewer columns, then of fewer rows again.
            let wanted = BLOCKS * machine.threads;
            tile_a = even(a_panels, a_panels.div_ceil(wanted).max(A_ROWS.1 / mr).min(tile_a));
            let columns = wanted.div_ceil(a_panels.div_ceil(tile_a));
            tile_b = even(b_panels, b_panels.div_ceil(columns).max(B_COLUMNS / nr).min(b_panels));
            let wanted = wanted.div_ceil(b_panels.div_ceil(tile_b));
            tile_a = even(a_panels, a_panels.div_ceil(wanted).min(tile_a));
        }
        // No thread waits at the end if all threads get the same number.
        let blocks = a_panels.div_ceil(tile_a).next_multiple_of(machine.threads).min(a_panels);
        Plan { m, n, k, mr, nr, b_panels, tile_a: a_panels.div_ceil(blocks), tile_b, blocks, lower: false }
    }

    fn packed_b(&self) -> usize {
        self.b_panels * self.nr * self.k
    }

    /// Scratch of one thread: a register tile, then a packed block of A.
    fn block(&self) -> usize {
        padded(self.mr * self.nr) + padded(self.tile_a * self.mr * self.k)
    }

    fn workspace(&self, threads: usize) -> usize {
        padded(self.packed_b()) + threads * self.block()
    }
}

/// Scratch floats for a product.
pub(crate) fn workspace(machine: Machine, shape: &Shape) -> usize {
    Plan::new(machine, shape.m, shape.n, shape.k).workspace(machine.threads)
}

/// Most scratch floats for a product with at most these dims on one thread.
pub(crate) fn most_workspace(machine: Machine, shape: &Shape) -> usize {
    let ((mr, nr), (floats, least)) = (register_tile(machine.rung), a_block(machine.rung));
    let a = floats.max(least * mr * shape.k).min(shape.m.next_multiple_of(mr) * shape.k);
    padded(shape.n.next_multiple_of(nr) * shape.k) + padded(mr * nr) + padded(a)
}

/// Packs steps of k of rows of a factor, A or B, into panels. The rows and `k` columns are inside the factor; `to` holds whole
/// panels, whose steps no other thread writes. Products of every element type call the same code.
struct Packing<'a, const OF_A: bool> {
    factor: &'a Factor,
    rows: Range<usize>,
    k: usize,
    steps: Range<usize>,
    to: *mut f32,
}

impl<const OF_A: bool> Kernel for Packing<'_, OF_A> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Packing { factor, rows, k, steps, to } = self;
        let width = if OF_A { S::TILE.0 } else { S::TILE_COLUMNS };
        let (rs, ks) = factor.strides();
        // SAFETY: by contract.
        with_parameter!(factor.dtype(), T => unsafe {
            let src = factor.at::<T>(rows.start, 0);
            if ks == 1 {
                pack_rows::<S, T>(src, rs, rows.len(), (k, steps), width, to);
            } else {
                pack_columns::<S, T>(src, ks, rows.len(), (k, steps), width, to);
            }
        });
    }
}

/// Rows `first .. first + rows` of B, all in panels.
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
        self.rows.div_ceil(self.plan.nr)
    }

    /// Panels and steps of k of one packing tile: all steps of a few panels, or, where the rows are contiguous, few steps of
    /// many panels, so that long pieces of memory are read.
    fn tile(&self) -> (usize, usize) {
        let Plan { k, nr, .. } = *self.plan;
        if self.factor.strides().1 == 1 {
            return ((PACK_TILE / (k.max(1) * nr)).max(1), k.max(1));
        }
        let panels = self.count().min(PACK_COLUMNS / nr);
        (panels, (PACK_TILE / (panels * nr)).next_multiple_of(STEPS_AHEAD))
    }

    /// Packing tiles.
    fn tiles(&self) -> usize {
        let (panels, steps) = self.tile();
        self.count().div_ceil(panels) * self.plan.k.div_ceil(steps)
    }

    /// One packing tile, of which no two write the same steps of the same panels.
    fn packing(&self, tile: usize) -> Packing<'_, false> {
        let (panels, steps) = self.tile();
        let across = self.count().div_ceil(panels);
        let (first, step) = (tile % across * panels, tile / across * steps);
        let count = panels.min(self.count() - first);
        let (k, row) = (self.plan.k, first * self.plan.nr);
        let rows = self.first + row..self.first + (row + count * self.plan.nr).min(self.rows);
        let steps = step..(step + steps).min(k);
        Packing { factor: &self.factor, rows, k, steps, to: self.at(first, count) }
    }

    /// Packs steps of a panel.
    ///
    /// # Safety
    /// The operand was checked, and no other thread packs this panel; the processor has the instructions of S.
    #[inline(always)]
    unsafe fn pack_steps<S: Simd>(&self, panel: usize, steps: Range<usize>) {
        let (row, k) = (panel * S::TILE_COLUMNS, self.plan.k);
        let rows = self.first + row..self.first + self.rows.min(row + S::TILE_COLUMNS);
        let packing = Packing::<false> { factor: &self.factor, rows, k, steps, to: self.at(panel, 1) };
        // SAFETY: by contract; the rows are inside B.
        unsafe { S::call(packing) };
    }

    /// Packed panels `first .. first + count`.
    fn at(&self, first: usize, count: usize) -> *mut f32 {
        let panel = self.plan.nr * self.plan.k;
        self.to.at(first % self.slots * panel, count * panel)
    }
}

/// One block of C.
struct Block<'a, T> {
    gemm: &'a Gemm<T>,
    plan: &'a Plan,
    b: &'a Panels<'a>,
    scratch: Span,
    worker: usize,
    block: usize,
    /// Panels of B are packed here, before they are first read.
    packs: bool,
}

impl<T: Element> Kernel for Block<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Block { gemm, plan, b, .. } = self;
        let (k, e) = (gemm.k, &gemm.epilogue);
        let across = b.count().div_ceil(plan.tile_b);
        let (ib, jb) = (self.block / across, self.block % across * plan.tile_b);
        let panel = |ib: usize| ib * plan.m.div_ceil(S::TILE.0) / plan.blocks;
        let (first, end) = (panel(ib) * S::TILE.0, (panel(ib + 1) * S::TILE.0).min(plan.m));
        let (rows, nb) = (end - first, plan.tile_b.min(b.count() - jb));
        let c = self.scratch.at(self.worker * plan.block(), plan.block());
        let a = c.wrapping_add(padded(S::TILE.0 * S::TILE_COLUMNS));
        let packing = Packing::<true> { factor: &gemm.a, rows: first..end, k, steps: 0..k, to: a };
        // SAFETY: the rows are inside A; the scratch memory of this worker holds a register tile and a block of A.
        unsafe { S::call(packing) };
        let na = rows.div_ceil(S::TILE.0);
        for j in 0..nb {
            let col = (jb + j) * S::TILE_COLUMNS;
            let cols = S::TILE_COLUMNS.min(b.rows - col);
            let panel = b.at(jb + j, 1);
            let along_k = b.factor.strides().1 == 1;
            if self.packs && (j == 0 || along_k) {
                // SAFETY: this thread alone works at B.
                unsafe { b.pack_steps::<S>(jb + j, 0..k) };
            }
            // The panel after the last one is the first one of the next block, most often. One that will be packed is read from
            // end to end.
            let next = b.at(if j + 1 < nb { jb + j + 1 } else { jb }, 1);
            let ((rs, ks), later) = (b.factor.steps(), b.first + col + S::TILE_COLUMNS);
            for i in 0..na {
                let row = first + i * S::TILE.0;
                let rows = S::TILE.0.min(plan.m - row);
                if plan.lower && b.first + col >= row + rows {
                    continue;
                }
                // Where rows are contiguous, a panel has as many pieces of memory as k, often in few sets of a cache: it is packed
                // step by step, soon after the prefetches of packing.
                if self.packs && !along_k && j + 1 < nb {
                    // SAFETY: as above.
                    unsafe { b.pack_steps::<S>(jb + j + 1, i * k / na..(i + 1) * k / na) };
                }
                let (ahead, bytes) = match self.packs && along_k {
                    false => (next.wrapping_add(i * k * S::TILE_COLUMNS / na), 4 * S::TILE_COLUMNS),
                    true => {
                        let at = b.factor.address(later, 0).wrapping_add(i * S::TILE_COLUMNS / na * rs);
                        (at.cast_mut().cast(), S::TILE_COLUMNS * ks)
                    }
                };
                // SAFETY: panels of k x MR and k x NR floats; the rows and columns are inside C, and only this call writes
                // there.
                unsafe {
                    S::tile(
                        rows,
                        cols.div_ceil(S::LANES),
                        k,
                        a.add(i * k * S::TILE.0),
                        panel,
                        c,
                        (ahead, bytes.div_ceil(na)),
                        #[inline(always)]
                        |r| expect::<S, T>(e, row + r, b.first + col, cols),
                    );
                    finish_rows::<S, T>(e, c, S::TILE_COLUMNS, (row, rows), (b.first + col, cols));
                }
            }
        }
    }
}

/// Computes a product, with `lower` only those register tiles that hold something on or below the diagonal. Takes
/// [`workspace`] floats from the start of the workspace after `skip` floats.
pub(crate) fn run<T: Element>(ctx: &Ctx<'_>, gemm: &Gemm<T>, lower: bool, skip: usize) {
    let (m, n) = (gemm.epilogue.out.rows, gemm.epilogue.out.cols);
    let plan = Plan { lower, ..Plan::new(ctx.machine(), m, n, gemm.k) };
    let mut scratch = ctx.scratch();
    scratch.take(skip);
    let to = scratch.take(plan.packed_b());
    let scratch = scratch.take(ctx.pool.threads() * plan.block());
    let step = plan.b_panels * plan.nr;
    for first in (0..plan.n).step_by(step) {
        let (alone, slots) = (ctx.pool.is_alone(), plan.b_panels);
        let mut b = Panels { factor: gemm.b, plan: &plan, first, rows: step.min(n - first), to, slots };
        let blocks = plan.blocks * b.count().div_ceil(plan.tile_b);
        if alone && blocks == 1 {
            b.slots = 2.min(slots);
        }
        if !alone {
            ctx.pool.run(b.tiles(), &|tile, _| {
                // SAFETY: the instruction set is available (checked when the backend was made); the operands are views that the launch
                // found inside their buffers, and the packed panels are workspace of this launch.
                unsafe { dispatch(ctx.rung, b.packing(tile)) }
            });
        }
        ctx.pool.run(blocks, &|block, worker| {
            // The last rows of a lower half have the most work, and come first.
            let block = if lower { blocks - 1 - block } else { block };
            let packs = alone && block == 0;
            let block = Block { gemm, plan: &plan, b: &b, scratch, worker, block, packs };
            // SAFETY: the instruction set is available, and the operands were checked; blocks of C are disjoint.
            unsafe { dispatch(ctx.rung, block) }
        });
    }
}
