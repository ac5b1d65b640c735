//! The matrix product `C[m, n] (+)= sum_k A(m, k) B(n, k)` with epilogues.
//!
//! Both operands are given by two strides, so one product serves forward (`x W^T`: k contiguous in both), the input
//! gradient (`dy W`: rows contiguous in B) and the weight gradient (`dy^T x`: rows contiguous in both).
//!
//! Structure (Goto & van de Geijn 2008; Van Zee & van de Geijn 2015): all of A and B (or, of very large ones, a block
//! of their rows) are packed once into panels of MR and NR rows, `[k block][panel][k][row]`, zero-padded to whole panels.
//! Then tiles of C of some hundred rows and columns are computed, each by one thread: for every k block, for every pair of
//! panels, a register tile of MR x NR sums; sums of earlier k blocks wait in a scratch tile that stays in the L2 cache.
//! After the last k block the epilogue reads the register tile back from L1 and writes C.
//!
//! Every element of C is one sum in the order of k, cut into k blocks by the length of k alone. So its bits depend neither
//! on the tiling nor on the threads.
//!
//! Legend: m, n rows of A and of B; k the summed dim.
#![allow(unsafe_code)] // packed panels and register tiles by address

use crate::Rung;
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::operand::Mat;
use crate::panels::{pack_columns, pack_rows};
use crate::simd::math::{activate, activate_with_derivative};
use crate::simd::{Kernel, Simd, dispatch};
use bessemer_tensor::op::ActivationKind;

/// Longest k block: a panel of A (KC x MR floats) takes half of an L1 cache, the panels of B of a tile half of an L2.
const KC: usize = 384;
/// Floats of packed A or B at a time: 32 MiB each.
const PACK_LIMIT: usize = 8 << 20;
/// Longest k that is packed at once; a longer one is cut into even parts, whose sums wait in C itself.
const K_PART: usize = 2048;
/// Panels of a tile of C along each side, when there is enough work.
const TILE_PANELS: usize = 8;
/// Tiles that a product is cut into at least, where its shape allows, so that threads share it evenly.
const MIN_TILES: usize = 24;
/// Floats that one packing tile reads, about.
const PACK_TILE: usize = 32 << 10;

/// A or B: element (row, k) at `row * rs + k * ks`.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    ptr: *const f32,
    rs: usize,
    ks: usize,
}

impl Factor {
    /// The rows of `m` are the rows of the factor: k runs along them.
    pub(crate) fn rows(m: &Mat) -> Factor {
        Factor { ptr: m.ptr(), rs: m.stride, ks: 1 }
    }

    /// The columns of `m` are the rows of the factor: k runs down them.
    pub(crate) fn columns(m: &Mat) -> Factor {
        Factor { ptr: m.ptr(), rs: 1, ks: m.stride }
    }
}

// SAFETY: an address with strides; kernels only read through it.
unsafe impl Send for Factor {}
// SAFETY: as above.
unsafe impl Sync for Factor {}

/// What happens to a finished sum y before it is written.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue {
    /// C, `[m, n]`.
    pub(crate) out: Mat,
    /// `y += out`, before anything else: what earlier parts of a long k left there.
    pub(crate) prior: bool,
    /// `y += bias[n]`.
    pub(crate) bias: Option<Mat>,
    /// `pre = y; y = f(y)`.
    pub(crate) activation: Option<(ActivationKind, Mat)>,
    /// `y *= f'(pre)`.
    pub(crate) derivative: Option<(ActivationKind, Mat)>,
    /// `y += residual`.
    pub(crate) residual: Option<Mat>,
    /// `y += out`.
    pub(crate) accumulate: bool,
}

impl Epilogue {
    /// Just `out (+)= y`.
    pub(crate) fn store(out: Mat, accumulate: bool) -> Epilogue {
        Epilogue {
            out,
            prior: false,
            bias: None,
            activation: None,
            derivative: None,
            residual: None,
            accumulate,
        }
    }
}

/// A product.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    pub(crate) k: usize,
    pub(crate) a: Factor,
    pub(crate) b: Factor,
    pub(crate) epilogue: Epilogue,
}

/// Register tile of a rung.
fn register_tile(rung: Rung) -> (usize, usize) {
    match rung {
        #[cfg(target_arch = "x86_64")]
        Rung::Avx512 => (14, 32),
        #[cfg(target_arch = "x86_64")]
        Rung::Avx2 => (6, 16),
        _ => (6, 8),
    }
}

/// How a product is cut: a function of its shape and the rung.
#[derive(Debug, Clone, Copy)]
struct Plan {
    m: usize,
    n: usize,
    k: usize,
    mr: usize,
    nr: usize,
    /// Length of a k block; the last one may be shorter.
    kc: usize,
    /// Panels of A packed at a time.
    a_panels: usize,
    /// Panels of B packed at a time.
    b_panels: usize,
    /// Panels of A in a tile of C.
    tile_a: usize,
    /// Panels of B in a tile of C.
    tile_b: usize,
}

impl Plan {
    fn new(rung: Rung, m: usize, n: usize, k: usize) -> Plan {
        let (mr, nr) = register_tile(rung);
        let blocks = k.div_ceil(KC).max(1);
        let kc = k.div_ceil(blocks).next_multiple_of(8).max(8);
        let at_once = |rows: usize, width: usize| {
            rows.div_ceil(width).clamp(1, (PACK_LIMIT / (k.max(1) * width)).max(TILE_PANELS))
        };
        let (a_panels, b_panels) = (at_once(m, mr), at_once(n, nr));
        // Rows of a panel differ by rung; tiles keep about the same number of elements.
        let (mut tile_a, mut tile_b) = ((TILE_PANELS * 14 / mr).min(24), (TILE_PANELS * 32 / nr).min(16));
        loop {
            let tiles = a_panels.div_ceil(tile_a) * b_panels.div_ceil(tile_b);
            if tiles >= MIN_TILES || (tile_a <= 3 && tile_b <= 2) {
                break;
            }
            if tile_b > 2 && tile_b * nr >= tile_a * mr {
                tile_b /= 2
            } else {
                tile_a = tile_a.div_ceil(2)
            }
            tile_a = tile_a.max(1);
        }
        Plan { m, n, k, mr, nr, kc, a_panels, b_panels, tile_a, tile_b }
    }

    fn packed_a(&self) -> usize {
        self.a_panels * self.mr * self.k
    }

    fn packed_b(&self) -> usize {
        self.b_panels * self.nr * self.k
    }

    fn scratch_tile(&self) -> usize {
        padded(self.tile_a * self.mr * self.tile_b * self.nr)
    }

    fn workspace(&self, threads: usize) -> usize {
        padded(self.packed_a()) + padded(self.packed_b()) + threads * self.scratch_tile()
    }
}

/// Length of the parts that k is cut into. Sums that must be finished before they are added to C cannot wait in C.
fn k_part(k: usize, divisible: bool) -> usize {
    if divisible { k.div_ceil(k.div_ceil(K_PART).max(1)).next_multiple_of(8) } else { k }
}

/// Scratch floats for a product; `divisible` unless its epilogue has both `derivative` and `accumulate`.
pub(crate) fn workspace(machine: Machine, m: usize, n: usize, k: usize, divisible: bool) -> usize {
    let part = k_part(k, divisible);
    // The last part may be shorter; a part of no length still writes its zeros.
    let last = k.checked_sub(1).map_or(0, |k| k % part + 1);
    let of = |k| Plan::new(machine.rung, m, n, k).workspace(machine.threads);
    of(part.min(k)).max(of(last))
}

/// Rows `first .. first + rows` of one operand in panels of `width` rows.
#[derive(Clone, Copy)]
struct Packing {
    factor: Factor,
    first: usize,
    rows: usize,
    width: usize,
    k: usize,
    kc: usize,
    to: Span,
}

impl Packing {
    fn panels(&self) -> usize {
        self.rows.div_ceil(self.width)
    }

    /// Panels of one packing tile.
    fn group(&self) -> usize {
        (PACK_TILE / (self.kc * self.width)).max(1)
    }

    fn tiles(&self) -> usize {
        self.panels().div_ceil(self.group()) * self.k.div_ceil(self.kc)
    }

    /// Packed panels `first ..` of the k block at `k0`.
    fn panel(&self, k0: usize, kc: usize, first: usize, count: usize) -> *mut f32 {
        let whole = self.panels() * self.width;
        self.to.at(k0 * whole + first * self.width * kc, count * self.width * kc)
    }
}

/// One tile of a packing.
struct Pack<'a>(&'a Packing, usize);

impl Kernel for Pack<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Pack(p, tile) = self;
        let groups = p.panels().div_ceil(p.group());
        let (k0, first) = (tile / groups * p.kc, tile % groups * p.group());
        let (kc, count) = (p.kc.min(p.k - k0), p.group().min(p.panels() - first));
        let dst = p.panel(k0, kc, first, count);
        // SAFETY: rows first .. first + rows and columns k0 .. k0 + kc lie inside the operand; `dst` holds `count`
        // panels of kc x width floats, and this tile is the only one that writes them.
        unsafe {
            let src = p.factor.ptr.add(p.first * p.factor.rs + k0 * p.factor.ks);
            let row = first * p.width;
            let rows = (count * p.width).min(p.rows - row);
            let src = src.add(row * p.factor.rs);
            if p.factor.rs == 1 {
                pack_columns::<S>(src, p.factor.ks, kc, rows, p.width, dst);
            } else {
                pack_rows::<S>(src, p.factor.rs, rows, kc, p.width, dst);
            }
        }
    }
}

/// One tile of C.
struct Tile<'a> {
    gemm: &'a Gemm,
    plan: &'a Plan,
    a: &'a Packing,
    b: &'a Packing,
    scratch: Span,
    worker: usize,
    tile: usize,
}

impl Kernel for Tile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { gemm, plan, a, b, .. } = self;
        // Tiles that share B follow each other.
        let down = a.panels().div_ceil(plan.tile_a);
        let (ia, ib) = (self.tile % down * plan.tile_a, self.tile / down * plan.tile_b);
        let (na, nb) = (plan.tile_a.min(a.panels() - ia), plan.tile_b.min(b.panels() - ib));
        let scratch = self.scratch.at(self.worker * plan.scratch_tile(), plan.scratch_tile());
        let mut k0 = 0;
        loop {
            let kc = plan.kc.min(plan.k - k0);
            let last = k0 + kc >= plan.k;
            let (pa, pb) = (a.panel(k0, kc, ia, na), b.panel(k0, kc, ib, nb));
            // A panel of A stays in L1 while the panels of B stream from L2.
            for i in 0..na {
                let row = (ia + i) * S::MR;
                let rows = S::MR.min(a.rows - row);
                for j in 0..nb {
                    let col = (ib + j) * S::NR;
                    let cols = S::NR.min(b.rows - col);
                    // SAFETY: panels of kc x MR and kc x NR floats lie inside `pa` and `pb`, a register tile inside the
                    // scratch tile of this worker; rows and columns are inside C, whose tile only this call writes.
                    unsafe {
                        // With a single k block nothing waits: one place in L1 serves all register tiles.
                        let place = if plan.kc >= plan.k { 0 } else { i * nb + j };
                        let c = scratch.add(place * S::MR * S::NR);
                        S::tile(
                            rows,
                            cols.div_ceil(S::LANES),
                            kc,
                            pa.add(i * kc * S::MR),
                            pb.add(j * kc * S::NR),
                            c,
                            k0 > 0,
                        );
                        if last {
                            finish::<S>(&gemm.epilogue, c, a.first + row, b.first + col, rows, cols);
                        }
                    }
                }
            }
            k0 += kc;
            if last {
                break;
            }
        }
    }
}

/// Writes a register tile of finished sums to C at (row, col).
///
/// # Safety
/// `c` holds `[MR, NR]` sums; the rows and columns lie inside every matrix of the epilogue.
#[inline(always)]
unsafe fn finish<S: Simd>(e: &Epilogue, c: *const f32, row: usize, col: usize, rows: usize, cols: usize) {
    for r in 0..rows {
        // SAFETY: by contract.
        unsafe { finish_row::<S>(e, c.add(r * S::NR), row + r, col, cols) };
    }
}

/// Writes `cols` finished sums to C at (row, col ..). Reads `y` in whole vectors.
///
/// # Safety
/// `y` holds `cols` sums, rounded up to whole vectors; the elements lie inside every matrix of the epilogue.
#[inline(always)]
pub(crate) unsafe fn finish_row<S: Simd>(e: &Epilogue, y: *const f32, row: usize, col: usize, cols: usize) {
    let mut v = 0;
    while v < cols {
        // SAFETY: by contract.
        unsafe { finish_vector::<S>(e, S::load(y.add(v)), row, col + v, S::LANES.min(cols - v)) };
        v += S::LANES;
    }
}

/// The epilogue of `n` sums at (r, c).
#[inline(always)]
unsafe fn finish_vector<S: Simd>(e: &Epilogue, mut y: S::V, r: usize, c: usize, n: usize) {
    // SAFETY: the caller vouches for elements (r, c .. c + n) of every matrix.
    unsafe {
        let at = |m: &Mat, r: usize| m.ptr().add(r * m.stride + c);
        let load = |p: *const f32| if n == S::LANES { S::load(p) } else { S::load_n(p, n) };
        let store = |p: *mut f32, v: S::V| if n == S::LANES { S::store(p, v) } else { S::store_n(p, v, n) };
        if e.prior {
            y = S::add(y, load(at(&e.out, r)));
        }
        if let Some(bias) = &e.bias {
            y = S::add(y, load(at(bias, 0)));
        }
        if let Some((kind, pre)) = &e.activation {
            store(at(pre, r), y);
            y = activate::<S>(*kind, y);
        }
        if let Some((kind, pre)) = &e.derivative {
            y = S::mul(y, activate_with_derivative::<S>(*kind, load(at(pre, r))).1);
        }
        if let Some(residual) = &e.residual {
            y = S::add(y, load(at(residual, r)));
        }
        let out = at(&e.out, r);
        if e.accumulate {
            y = S::add(y, load(out));
        }
        store(out, y);
    }
}

/// Computes a product. Takes [`workspace`] floats from the start of the workspace after `skip` floats.
pub(crate) fn run(ctx: &Ctx<'_>, gemm: &Gemm, skip: usize) {
    let e = &gemm.epilogue;
    let part = k_part(gemm.k, !(e.accumulate && e.derivative.is_some()));
    if gemm.k <= part {
        return run_part(ctx, gemm, skip);
    }
    for k0 in (0..gemm.k).step_by(part) {
        let k = part.min(gemm.k - k0);
        let along = |f: Factor| Factor { ptr: f.ptr.wrapping_add(k0 * f.ks), ..f };
        let epilogue = if k0 + k < gemm.k {
            Epilogue::store(e.out, e.accumulate || k0 > 0)
        } else {
            // What C held before, if it counts, is part of what the earlier parts left.
            Epilogue { prior: true, accumulate: false, ..*e }
        };
        run_part(ctx, &Gemm { k, a: along(gemm.a), b: along(gemm.b), epilogue }, skip);
    }
}

fn run_part(ctx: &Ctx<'_>, gemm: &Gemm, skip: usize) {
    let (m, n) = (gemm.epilogue.out.rows, gemm.epilogue.out.cols);
    if m == 0 || n == 0 {
        return;
    }
    let plan = Plan::new(ctx.rung, m, n, gemm.k);
    let mut scratch = ctx.scratch();
    scratch.take(skip);
    let (to_a, to_b) = (scratch.take(plan.packed_a()), scratch.take(plan.packed_b()));
    let tiles = scratch.take(ctx.pool.threads() * plan.scratch_tile());
    let (m_step, n_step) = (plan.a_panels * plan.mr, plan.b_panels * plan.nr);
    for n0 in (0..plan.n).step_by(n_step) {
        for m0 in (0..plan.m).step_by(m_step) {
            let packing = |factor, first, rows, width, to| Packing {
                factor,
                first,
                rows,
                width,
                k: plan.k,
                kc: plan.kc,
                to,
            };
            let a = packing(gemm.a, m0, m_step.min(m - m0), plan.mr, to_a);
            let b = packing(gemm.b, n0, n_step.min(n - n0), plan.nr, to_b);
            // What the last round left is used again where it is the same.
            let tiles_a = if n0 == 0 || plan.m > m_step { a.tiles() } else { 0 };
            let tiles_b = if m0 == 0 { b.tiles() } else { 0 };
            ctx.pool.run(tiles_a + tiles_b, &|tile, _| {
                let pack = if tile < tiles_a { Pack(&a, tile) } else { Pack(&b, tile - tiles_a) };
                // SAFETY: the rung is available (checked when the backend was made); the operands are views that the
                // launch found inside their buffers, and the packed panels are workspace of this launch.
                unsafe { dispatch(ctx.rung, pack) }
            });
            let count = a.panels().div_ceil(plan.tile_a) * b.panels().div_ceil(plan.tile_b);
            ctx.pool.run(count, &|tile, worker| {
                let t = Tile { gemm, plan: &plan, a: &a, b: &b, scratch: tiles, worker, tile };
                // SAFETY: as above; tiles of C are disjoint.
                unsafe { dispatch(ctx.rung, t) }
            });
        }
    }
}
