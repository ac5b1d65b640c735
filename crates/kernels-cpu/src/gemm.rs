//! The matrix product `C[m, n] (+)= sum_k A(m, k) B(n, k)` with epilogues.
//!
//! Both operands are given by two strides, so one product serves forward (`x W^T`: k contiguous in both), the input
//! gradient (`dy W`: rows contiguous in B) and the weight gradient (`dy^T x`: rows contiguous in both).
//!
//! k is cut into even parts, whose sums are kept in C, or in the workspace if C is of a type that would round them. An
//! [`Engine`](crate::Engine) computes the parts; all of them end in the epilogue of this file.
//!
//! A matrix times its own transpose is symmetric, bit by bit, because the factors of a multiply-add commute. Where
//! the epilogue is empty, an engine may leave out the elements above the diagonal; they are copied from below.
//!
//! Every element of C is one sum in the order of k, cut into parts by the length of k alone. So its bits depend neither
//! on the tiling nor on the threads.
//!
//! Legend: m, n rows of A and of B; k the summed dim.
#![allow(unsafe_code)] // matrices by address

use crate::ctx::{Ctx, Machine, padded};
use crate::element::Element;
use crate::engine;
use crate::operand::{AnyMat, Mat};
use crate::simd::math::{activate, activate_with_derivative};
use crate::simd::{Simd, load_part, store_part};
use bessemer_tensor::op::ActivationKind;
use bessemer_units::DType;

/// A or B: element (row, k) at `row * rs + k * ks`; one of the strides is 1. Its type is f32, bf16 or f16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Factor {
    at: *const u8,
    dtype: DType,
    rs: usize,
    ks: usize,
}

impl Factor {
    /// The rows of `m` are the rows of the factor: k runs along them.
    pub(crate) fn rows(m: impl Into<AnyMat>) -> Factor {
        let m = m.into();
        Factor { at: m.ptr(), dtype: m.dtype, rs: m.stride, ks: 1 }
    }

    /// The columns of `m` are the rows of the factor: k runs down them.
    pub(crate) fn columns(m: impl Into<AnyMat>) -> Factor {
        let m = m.into();
        Factor { at: m.ptr(), dtype: m.dtype, rs: 1, ks: m.stride }
    }

    /// Type of the elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Address of element (row, k), if T is the type of the elements.
    pub(crate) fn at<T: Element>(&self, row: usize, k: usize) -> *const T {
        assert!(T::DTYPE == self.dtype);
        self.at.cast::<T>().wrapping_add(row * self.rs + k * self.ks)
    }

    /// Elements between neighbouring rows and between neighbouring k.
    pub(crate) fn strides(&self) -> (usize, usize) {
        (self.rs, self.ks)
    }

    /// Bytes between neighbouring rows and between neighbouring k.
    pub(crate) fn steps(&self) -> (usize, usize) {
        (self.rs * self.dtype.size(), self.ks * self.dtype.size())
    }

    /// Address of element (row, k), for a prefetch: it need not exist.
    pub(crate) fn address(&self, row: usize, k: usize) -> *const u8 {
        let (rs, ks) = self.steps();
        self.at.wrapping_add(row * rs + k * ks)
    }

    /// The factor from `k` on.
    fn after(&self, k: usize) -> Factor {
        Factor { at: self.at.wrapping_add(k * self.ks * self.dtype.size()), ..*self }
    }
}

// SAFETY: an address with strides; kernels only read through it.
unsafe impl Send for Factor {}
// SAFETY: as above.
unsafe impl Sync for Factor {}

/// Epilogue of a finished sum y before it is written. C, and activations of the same shape, are of type T.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<T = f32> {
    /// C, `[m, n]`.
    pub(crate) out: Mat<T>,
    /// `y += prior`, before anything else: the sums of earlier parts of a long k.
    pub(crate) prior: Option<Mat>,
    /// `y += bias[n]`.
    pub(crate) bias: Option<AnyMat>,
    /// `pre = y; y = f(y)`.
    pub(crate) activation: Option<(ActivationKind, Mat<T>)>,
    /// `y *= f'(pre)`.
    pub(crate) derivative: Option<(ActivationKind, Mat<T>)>,
    /// `y += residual`.
    pub(crate) residual: Option<Mat<T>>,
    /// `y += out`.
    pub(crate) accumulate: bool,
    /// The dim by which the engine is chosen, if this is a block of a larger product whose bits depend on no other dim.
    pub(crate) whole: Option<usize>,
}

impl<T: Element> Epilogue<T> {
    /// Just `out (+)= y`.
    pub(crate) fn store(out: Mat<T>, accumulate: bool) -> Epilogue<T> {
        Epilogue {
            out,
            prior: None,
            bias: None,
            activation: None,
            derivative: None,
            residual: None,
            accumulate,
            whole: None,
        }
    }
}

/// A product.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<T = f32> {
    pub(crate) k: usize,
    pub(crate) a: Factor,
    pub(crate) b: Factor,
    pub(crate) epilogue: Epilogue<T>,
}

/// Properties of a product that determine its workspace, besides the machine.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only engines of x86-64 look at the types of factors")
)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Type of A.
    pub(crate) a: DType,
    /// Type of B.
    pub(crate) b: DType,
    /// Type of C.
    pub(crate) out: DType,
    /// True if sums of parts of k may wait in C: unless the epilogue has both `derivative` and `accumulate`.
    pub(crate) divisible: bool,
    /// The dim by which the engine is chosen, as [`Epilogue::whole`].
    pub(crate) whole: Option<usize>,
}

impl Shape {
    /// The smallest dim that the choice of an engine looks at.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn smallest(&self) -> usize {
        self.whole.unwrap_or(self.m.min(self.n).min(self.k))
    }

    /// True if the sums of parts of k are kept in C; they have a matrix of the workspace otherwise.
    fn sums_wait_in_c(&self) -> bool {
        self.divisible && self.out == DType::F32
    }
}

impl<T: Element> Gemm<T> {
    /// True of a matrix times its own transpose where nothing is done to the sums.
    fn is_symmetric(&self) -> bool {
        let Epilogue { out, prior, bias, activation, derivative, residual, accumulate, whole: _ } =
            &self.epilogue;
        let plain = prior.is_none()
            && bias.is_none()
            && activation.is_none()
            && derivative.is_none()
            && residual.is_none()
            && !accumulate;
        plain && self.a == self.b && out.rows == out.cols
    }

    fn shape(&self) -> Shape {
        let e = &self.epilogue;
        Shape {
            m: e.out.rows,
            n: e.out.cols,
            k: self.k,
            a: self.a.dtype,
            b: self.b.dtype,
            out: T::DTYPE,
            divisible: !(e.accumulate && e.derivative.is_some()),
            whole: e.whole,
        }
    }
}

/// Length of the parts that k is cut into.
fn k_part(machine: Machine, shape: &Shape) -> usize {
    let most = machine.engine.k_part(shape);
    shape.k.div_ceil(shape.k.div_ceil(most).max(1)).next_multiple_of(32)
}

/// Scratch floats for a product.
pub(crate) fn workspace(machine: Machine, shape: &Shape) -> usize {
    let part = k_part(machine, shape);
    // The last part may be shorter; a part of no length still writes its zeros.
    let last = shape.k.checked_sub(1).map_or(0, |k| k % part + 1);
    let of = |k| part_workspace(machine, &Shape { k, ..*shape });
    let sums = if shape.k > part && !shape.sums_wait_in_c() { padded(shape.m * shape.n) } else { 0 };
    sums + of(part.min(shape.k)).max(of(last))
}

/// Scratch floats for any product that is a block of one of this shape, and for one of fewer k, on one thread.
pub(crate) fn block_workspace(machine: Machine, shape: &Shape) -> usize {
    let machine = Machine { threads: 1, ..machine };
    // A product of few k has another engine.
    let of = |smallest| {
        let shape = Shape { whole: Some(smallest), ..*shape };
        let part = shape.k.min(machine.engine.k_part(&shape));
        let sums = if shape.k > part && !shape.sums_wait_in_c() { padded(shape.m * shape.n) } else { 0 };
        sums + most_part_workspace(machine, &Shape { k: part, ..shape })
    };
    of(0).max(of(usize::MAX))
}

/// Prefetches the memory that [`finish_row`] will read and write.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn expect<S: Simd, T: Element>(e: &Epilogue<T>, row: usize, col: usize, cols: usize) {
    for c in (col..col + cols).step_by(64 / size_of::<T>()) {
        let at = |m: &Mat<T>| m.ptr().wrapping_add(row * m.stride + c).cast::<f32>();
        // SAFETY: a prefetch may name any address.
        unsafe {
            S::prefetch_write(at(&e.out));
            if let Some((_, pre)) = &e.activation {
                S::prefetch_write(at(pre));
            }
            if let Some((_, pre)) = &e.derivative {
                S::prefetch(at(pre));
            }
            if let Some(residual) = &e.residual {
                S::prefetch(at(residual));
            }
        }
    }
}

/// Writes `cols` finished sums to C at (row, col ..). Reads `y` in whole vectors.
///
/// # Safety
/// `y` holds `cols` sums, rounded up to whole vectors; the elements are inside every matrix of the epilogue.
#[inline(always)]
pub(crate) unsafe fn finish_row<S: Simd, T: Element>(
    e: &Epilogue<T>,
    y: *const f32,
    row: usize,
    col: usize,
    cols: usize,
) {
    let mut v = 0;
    while v < cols {
        // SAFETY: by contract.
        unsafe { finish_vector::<S, T>(e, S::load(y.add(v)), row, col + v, S::LANES.min(cols - v)) };
        v += S::LANES;
    }
}

/// [`finish_row`] of `rows` rows from `row` on, whose sums are `ld` apart. If whole rows of a register tile are at most added
/// to something, that is looked up once for the tile. If they go through an activation, its kind is looked up once for the tile,
/// and the addends once for each row.
///
/// # Safety
/// The contract of [`finish_row`], for all rows.
#[inline(always)]
pub(crate) unsafe fn finish_rows<S: Simd, T: Element>(
    e: &Epilogue<T>,
    y: *const f32,
    ld: usize,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
) {
    /// One arm with a loop of its own for each activation.
    macro_rules! by_activation {
        ($($kind:ident)*) => {
            match &e.activation {
                // SAFETY: by contract.
                None => unsafe { finish_whole_rows::<S, T>(e, y, ld, (row, rows), col, |y, _, _| y) },
                // SAFETY: by contract.
                $(Some((ActivationKind::$kind, pre)) => unsafe {
                    finish_whole_rows::<S, T>(
                        e,
                        y,
                        ld,
                        (row, rows),
                        col,
                        #[inline(always)]
                        |y, r, c| {
                            let at = pre.ptr().wrapping_add(r * pre.stride + c);
                            T::store::<S>(at, y);
                            activate::<S>(ActivationKind::$kind, if T::DTYPE == DType::F32 { y } else { T::load::<S>(at) })
                        },
                    );
                },)*
            }
        };
    }
    if cols != ld || e.derivative.is_some() {
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe { finish_row::<S, T>(e, y.add(r * ld), row + r, col, cols) };
        }
        return;
    }
    let two = e.residual.is_some() && e.accumulate;
    if e.activation.is_none() && e.prior.is_none() && !two {
        // SAFETY: by contract.
        unsafe { finish_sums::<S, T>(e, y, ld, (row, rows), col) };
        return;
    }
    by_activation!(Relu ReluSquared GeluTanh GeluErf Silu);
}

/// [`finish_rows`] of whole rows to which a bias, if any, and a residual or the contents of C, if either, are added in this order.
///
/// # Safety
/// The contract of [`finish_rows`].
#[inline(always)]
unsafe fn finish_sums<S: Simd, T: Element>(
    e: &Epilogue<T>,
    y: *const f32,
    ld: usize,
    (row, rows): (usize, usize),
    col: usize,
) {
    /// Writes `f(y, row)` of a column of vectors: `y` and `out` are addresses in the first row, each with its stride.
    #[inline(always)]
    unsafe fn each_row<S: Simd, T: Element>(
        (y, ld): (*const f32, usize),
        (out, stride): (*mut T, usize),
        rows: usize,
        f: impl Fn(S::V, usize) -> S::V,
    ) {
        for r in 0..rows {
            // SAFETY: by contract.
            unsafe { T::store::<S>(out.add(r * stride), f(S::load(y.add(r * ld)), r)) };
        }
    }
    let first = |m: &Mat<T>| m.ptr().wrapping_add(row * m.stride + col);
    let added = e.residual.as_ref().or(e.accumulate.then_some(&e.out)).map(|m| (first(m), m.stride));
    for v in (0..ld).step_by(S::LANES) {
        let (y, out) = ((y.wrapping_add(v), ld), (first(&e.out).wrapping_add(v), e.out.stride));
        // SAFETY: by contract.
        unsafe {
            let bias = e.bias.as_ref().map(|bias| bias.load::<S>(0, col + v, S::LANES));
            let added = added.map(|(at, stride)| (at.wrapping_add(v), stride));
            match (bias, added) {
                (None, None) => each_row::<S, T>(
                    y,
                    out,
                    rows,
                    #[inline(always)]
                    |y, _| y,
                ),
                (Some(bias), None) => each_row::<S, T>(
                    y,
                    out,
                    rows,
                    #[inline(always)]
                    |y, _| S::add(y, bias),
                ),
                (None, Some((at, stride))) => each_row::<S, T>(
                    y,
                    out,
                    rows,
                    #[inline(always)]
                    |y, r| S::add(y, T::load::<S>(at.add(r * stride))),
                ),
                (Some(bias), Some((at, stride))) => each_row::<S, T>(
                    y,
                    out,
                    rows,
                    #[inline(always)]
                    |y, r| S::add(S::add(y, bias), T::load::<S>(at.add(r * stride))),
                ),
            }
        }
    }
}

/// [`finish_rows`] of whole rows; `f(y, row, column)` is the activation.
///
/// # Safety
/// The contract of [`finish_rows`].
#[inline(always)]
unsafe fn finish_whole_rows<S: Simd, T: Element>(
    e: &Epilogue<T>,
    y: *const f32,
    ld: usize,
    (row, rows): (usize, usize),
    col: usize,
    f: impl Fn(S::V, usize, usize) -> S::V,
) {
    for r in row..row + rows {
        // In the order of `finish_vector`. Calling that with an epilogue whose other parts are `None` costs about 14
        // instructions more for each vector (AVX2), and with an activation a tenth of the product (4096 x 384 -> 1536).
        // SAFETY: by contract.
        unsafe {
            let y = y.add((r - row) * ld);
            let prior = e.prior.as_ref().map(|m| m.ptr().wrapping_add(r * m.stride + col));
            let residual = e.residual.as_ref().map(|m| m.ptr().wrapping_add(r * m.stride + col));
            let out = e.out.ptr().wrapping_add(r * e.out.stride + col);
            for v in (0..ld).step_by(S::LANES) {
                let mut sum = S::load(y.add(v));
                if let Some(prior) = prior {
                    sum = S::add(sum, S::load(prior.add(v)));
                }
                if let Some(bias) = &e.bias {
                    sum = S::add(sum, bias.load::<S>(0, col + v, S::LANES));
                }
                sum = f(sum, r, col + v);
                if let Some(residual) = residual {
                    sum = S::add(sum, T::load::<S>(residual.add(v)));
                }
                if e.accumulate {
                    sum = S::add(sum, T::load::<S>(out.add(v)));
                }
                T::store::<S>(out.add(v), sum);
            }
        }
    }
}

/// The epilogue of `n` sums at (r, c).
#[inline(always)]
unsafe fn finish_vector<S: Simd, T: Element>(e: &Epilogue<T>, mut y: S::V, r: usize, c: usize, n: usize) {
    /// Address of (r, c).
    #[inline(always)]
    fn at<T: Element>(m: &Mat<T>, r: usize, c: usize) -> *mut T {
        m.ptr().wrapping_add(r * m.stride + c)
    }
    // SAFETY: the caller vouches for elements (r, c .. c + n) of every matrix.
    unsafe {
        if let Some(prior) = &e.prior {
            y = S::add(y, load_part::<S>(at(prior, r, c), n));
        }
        if let Some(bias) = &e.bias {
            y = S::add(y, bias.load::<S>(0, c, n));
        }
        if let Some((kind, pre)) = &e.activation {
            store_part::<S>(at(pre, r, c), y, n);
            if T::DTYPE != DType::F32 {
                // f of the stored value, which the backward pass may compute again.
                y = load_part::<S>(at(pre, r, c), n);
            }
            y = activate::<S>(*kind, y);
        }
        if let Some((kind, pre)) = &e.derivative {
            y = S::mul(y, activate_with_derivative::<S>(*kind, load_part::<S>(at(pre, r, c), n)).1);
        }
        if let Some(residual) = &e.residual {
            y = S::add(y, load_part::<S>(at(residual, r, c), n));
        }
        let out = at(&e.out, r, c);
        if e.accumulate {
            y = S::add(y, load_part::<S>(out, n));
        }
        store_part::<S>(out, y, n);
    }
}

/// Computes a product. Takes [`workspace`] floats from the start of the workspace after `skip` floats.
pub(crate) fn run<T: Element>(ctx: &Ctx<'_>, gemm: &Gemm<T>, skip: usize) {
    let e = &gemm.epilogue;
    let shape = gemm.shape();
    let part = k_part(ctx.machine(), &shape);
    let lower = gemm.is_symmetric();
    if gemm.k <= part {
        if run_part(ctx, gemm, lower, skip) {
            mirror(ctx, &e.out);
        }
        return;
    }
    let mut left_out = false;
    let (m, n) = (shape.m, shape.n);
    let sums = if shape.sums_wait_in_c() {
        // SAFETY: C itself, which is f32.
        unsafe { Mat::new(e.out.ptr().cast(), m, n, e.out.stride) }
    } else {
        let mut scratch = ctx.scratch();
        scratch.take(skip);
        // SAFETY: workspace of this launch.
        unsafe { Mat::new(scratch.take(m * n).at(0, m * n), m, n, n) }
    };
    let in_c = shape.sums_wait_in_c();
    let skip = if in_c { skip } else { padded(skip) + padded(m * n) };
    for k0 in (0..gemm.k).step_by(part) {
        let k = part.min(gemm.k - k0);
        let (a, b) = (gemm.a.after(k0), gemm.b.after(k0));
        if k0 + k < gemm.k {
            // The former contents of C, if they count, are part of the sums if those are kept in C.
            let epilogue =
                Epilogue { whole: e.whole, ..Epilogue::store(sums, k0 > 0 || (in_c && e.accumulate)) };
            left_out |= run_part(ctx, &Gemm { k, a, b, epilogue }, lower, skip);
        } else {
            let epilogue = Epilogue { prior: Some(sums), accumulate: e.accumulate && !in_c, ..*e };
            left_out |= run_part(ctx, &Gemm { k, a, b, epilogue }, lower, skip);
        }
    }
    if left_out {
        mirror(ctx, &e.out);
    }
}

/// Copies the elements below the diagonal of a square matrix to their positions above.
fn mirror<T: Element>(ctx: &Ctx<'_>, c: &Mat<T>) {
    const ROWS: usize = 32;
    ctx.pool.run(c.rows.div_ceil(ROWS), &|tile, _| {
        for r in tile * ROWS..((tile + 1) * ROWS).min(c.rows) {
            for col in 0..r {
                // SAFETY: elements of C. Those below the diagonal are only read, those above only written, once.
                unsafe { *c.row(col).add(r) = *c.row(r).add(col) };
            }
        }
    });
}

/// Scratch floats for a part of a product that is computed at once.
fn part_workspace(machine: Machine, shape: &Shape) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(parts) = machine.engine.parts(shape) {
        return engine::amx::workspace(shape, parts, machine.threads);
    }
    #[cfg(target_arch = "x86_64")]
    if machine.engine.takes_fp16(shape) {
        return engine::fp16::workspace(shape, machine.threads);
    }
    engine::fma::workspace(machine, shape)
}

/// Most scratch floats for a part of a product with at most these dims.
fn most_part_workspace(machine: Machine, shape: &Shape) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(parts) = machine.engine.parts(shape) {
        return engine::amx::most_workspace(shape, parts);
    }
    #[cfg(target_arch = "x86_64")]
    if machine.engine.takes_fp16(shape) {
        return engine::fp16::most_workspace(shape);
    }
    engine::fma::most_workspace(machine, shape)
}

/// Computes a part of a product. With `lower`, elements above the diagonal are optional: returns true if they were left out.
fn run_part<T: Element>(ctx: &Ctx<'_>, gemm: &Gemm<T>, lower: bool, skip: usize) -> bool {
    let (m, n) = (gemm.epilogue.out.rows, gemm.epilogue.out.cols);
    if m == 0 || n == 0 {
        return false;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(parts) = ctx.engine.parts(&gemm.shape()) {
        engine::amx::run(ctx, gemm, parts, skip);
        return false;
    }
    #[cfg(target_arch = "x86_64")]
    if ctx.engine.takes_fp16(&gemm.shape()) {
        engine::fp16::run(ctx, gemm, skip);
        return false;
    }
    engine::fma::run(ctx, gemm, lower, skip);
    lower
}
