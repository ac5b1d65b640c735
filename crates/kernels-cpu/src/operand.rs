//! Operands as kernels see them: raw matrices inside arena buffers.
//!
//! A [`Mat`] is made only by the arena, from a view that is inside its buffer, so every element it names is mapped
//! memory. It is a pointer, not a slice, because operators may work in place and because disjoint tiles of one matrix
//! are written by several threads.
#![allow(unsafe_code)] // element access through a checked raw pointer

use crate::element::{Element, with_parameter};
use crate::simd::{Simd, load_part};
use bessemer_units::DType;

/// A matrix with rows `stride` elements apart, of a type that is known where the kernel is compiled.
#[derive(Clone, Copy)]
pub(crate) struct Mat<T = f32> {
    ptr: *mut T,
    /// Rows.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// Elements between the starts of rows.
    pub(crate) stride: usize,
}

// SAFETY: a Mat is an address with a shape. Kernels give each element to one thread at a time: tiles are disjoint and
// operators do not let written operands overlap others (Op::check), except element by element in place.
unsafe impl<T: Element> Send for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Mat<T> {}

impl<T: Element> Mat<T> {
    /// # Safety
    /// `ptr` must point to `(rows - 1) * stride + cols` elements that outlive every use of the matrix.
    pub(crate) unsafe fn new(ptr: *mut T, rows: usize, cols: usize, stride: usize) -> Mat<T> {
        Mat { ptr, rows, cols, stride }
    }

    /// Element (r, c).
    #[inline]
    pub(crate) fn get(&self, r: usize, c: usize) -> f32 {
        assert!(r < self.rows && c < self.cols);
        // SAFETY: inside the matrix, by the line above and the contract of `new`.
        unsafe { (*self.ptr.add(r * self.stride + c)).to_f32() }
    }

    /// The `N` numbers after the apply flag of an operand `step`, or `None` if the flag is 0.
    pub(crate) fn applied<const N: usize>(&self) -> Option<[f32; N]> {
        (self.get(0, 0) != 0.0).then(|| std::array::from_fn(|i| self.get(0, i + 1)))
    }

    /// Writes element (r, c), rounded to its type.
    #[inline]
    pub(crate) fn set(&self, r: usize, c: usize, value: f32) {
        assert!(r < self.rows && c < self.cols);
        // SAFETY: inside the matrix, by the line above and the contract of `new`.
        unsafe { *self.ptr.add(r * self.stride + c) = T::from_f32(value) }
    }

    /// Adds to element (r, c).
    #[inline]
    pub(crate) fn add(&self, r: usize, c: usize, value: f32) {
        self.set(r, c, self.get(r, c) + value);
    }

    /// Adds to element (r, c), or replaces it.
    #[inline]
    pub(crate) fn put(&self, r: usize, c: usize, value: f32, accumulate: bool) {
        if accumulate { self.add(r, c, value) } else { self.set(r, c, value) }
    }

    /// Start of row `r`.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> *mut T {
        assert!(r < self.rows);
        // SAFETY: the row starts inside the buffer.
        unsafe { self.ptr.add(r * self.stride) }
    }

    /// Pointer to the first element. Valid for reads within the shape and stride of the matrix only.
    #[inline]
    pub(crate) fn ptr(&self) -> *mut T {
        self.ptr
    }
}

/// A matrix of f32, bf16 or f16 whose type is a value: parameters and their gradients, which kernels read a vector at a time
/// whatever the type of the activations.
#[derive(Clone, Copy)]
pub(crate) struct AnyMat {
    at: *mut u8,
    pub(crate) dtype: DType,
    /// Rows.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// Elements between the starts of rows.
    pub(crate) stride: usize,
}

// SAFETY: as Mat.
unsafe impl Send for AnyMat {}
// SAFETY: as Mat.
unsafe impl Sync for AnyMat {}

impl AnyMat {
    /// # Safety
    /// Same requirements as [`Mat::new`], of elements of type `dtype`, which is a float type.
    pub(crate) unsafe fn new(at: *mut u8, dtype: DType, rows: usize, cols: usize, stride: usize) -> AnyMat {
        AnyMat { at, dtype, rows, cols, stride }
    }

    /// Returns the same matrix with a static element type.
    pub(crate) fn typed<T: Element>(&self) -> Mat<T> {
        assert!(T::DTYPE == self.dtype);
        Mat { ptr: self.at.cast(), rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// Element (r, c).
    #[inline]
    pub(crate) fn get(&self, r: usize, c: usize) -> f32 {
        with_parameter!(self.dtype, T => self.typed::<T>().get(r, c))
    }

    /// Writes element (r, c), rounded to its type.
    #[inline]
    pub(crate) fn set(&self, r: usize, c: usize, value: f32) {
        with_parameter!(self.dtype, T => self.typed::<T>().set(r, c, value));
    }

    /// Adds to element (r, c), or replaces it.
    #[inline]
    pub(crate) fn put(&self, r: usize, c: usize, value: f32, accumulate: bool) {
        self.set(r, c, if accumulate { self.get(r, c) + value } else { value });
    }

    /// Elements (r, c .. c + n), zeros after them.
    ///
    /// # Safety
    /// The elements exist; n is at most the lanes of S, whose instructions the processor has.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd>(&self, r: usize, c: usize, n: usize) -> S::V {
        let at = r * self.stride + c;
        // SAFETY: by contract.
        with_parameter!(self.dtype, T => unsafe { load_part::<S>(self.at.cast::<T>().add(at), n) })
    }

    /// Start of the matrix.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.at
    }
}

impl<T: Element> From<&Mat<T>> for AnyMat {
    fn from(m: &Mat<T>) -> AnyMat {
        AnyMat { at: m.ptr.cast(), dtype: T::DTYPE, rows: m.rows, cols: m.cols, stride: m.stride }
    }
}

impl From<&AnyMat> for AnyMat {
    fn from(m: &AnyMat) -> AnyMat {
        *m
    }
}

/// A matrix of codes of 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Codes {
    at: *mut u8,
    rows: usize,
    cols: usize,
    stride: usize,
}

// SAFETY: as Mat.
unsafe impl Send for Codes {}
// SAFETY: as Mat.
unsafe impl Sync for Codes {}

impl Codes {
    /// # Safety
    /// Same requirements as [`Mat::new`].
    pub(crate) unsafe fn new(at: *mut u8, rows: usize, cols: usize, stride: usize) -> Codes {
        Codes { at, rows, cols, stride }
    }

    /// Codes (r, c .. c + n).
    ///
    /// # Safety
    /// No other thread accesses any of them while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "as `Mat`, which is an address too; the caller vouches for the elements"
    )]
    #[inline(always)]
    pub(crate) unsafe fn slice(&self, r: usize, c: usize, n: usize) -> &mut [u8] {
        assert!(r < self.rows && c + n <= self.cols);
        // SAFETY: inside the matrix, by the line above and the contract of `new`; no other thread accesses them, by contract.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(r * self.stride + c), n) }
    }
}

/// A matrix of u32: indices or counts.
#[derive(Clone, Copy)]
pub(crate) struct IndexMat {
    at: *mut u32,
    /// Rows.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    stride: usize,
}

// SAFETY: as Mat.
unsafe impl Send for IndexMat {}
// SAFETY: as Mat.
unsafe impl Sync for IndexMat {}

impl IndexMat {
    /// # Safety
    /// Same requirements as [`Mat::new`].
    pub(crate) unsafe fn new(at: *mut u32, rows: usize, cols: usize, stride: usize) -> IndexMat {
        IndexMat { at, rows, cols, stride }
    }

    /// Element (r, c).
    #[inline]
    pub(crate) fn get(&self, r: usize, c: usize) -> u32 {
        assert!(r < self.rows && c < self.cols);
        // SAFETY: inside the matrix, by the line above and the contract of `new`.
        unsafe { *self.at.add(r * self.stride + c) }
    }

    /// Writes element (r, c).
    #[inline]
    pub(crate) fn set(&self, r: usize, c: usize, value: u32) {
        assert!(r < self.rows && c < self.cols);
        // SAFETY: inside the matrix, by the line above and the contract of `new`.
        unsafe { *self.at.add(r * self.stride + c) = value }
    }

    /// A row, to be written.
    ///
    /// # Safety
    /// No other thread or operator reads or writes the row while the slice lives.
    ///
    /// # Panics
    /// If the row is not there.
    #[expect(clippy::mut_from_ref, reason = "the matrix is an address, as that of other operands")]
    pub(crate) unsafe fn row_mut(&self, r: usize) -> &mut [u32] {
        assert!(r < self.rows);
        // SAFETY: inside the matrix, by the line above and the contract of `new`; no other access, by contract.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(r * self.stride), self.cols) }
    }

    /// Errors with the first index that is not below `len`.
    pub(crate) fn check(
        &self,
        op: &'static str,
        operand: &'static str,
        len: usize,
    ) -> Result<(), bessemer_tensor::TensorError> {
        self.first_past(len, None).map_or(Ok(()), |(at, index)| {
            Err(bessemer_tensor::TensorError::Index { op, operand, at, index, len })
        })
    }

    /// Checks rows as [`IndexMat::check`] does; some of the rows have no choice.
    pub(crate) fn check_rows(
        &self,
        op: &'static str,
        operand: &'static str,
        len: usize,
    ) -> Result<(), bessemer_tensor::TensorError> {
        self.first_past(len, Some(bessemer_tensor::op::NO_ROW)).map_or(Ok(()), |(at, index)| {
            Err(bessemer_tensor::TensorError::Index { op, operand, at, index, len })
        })
    }

    fn first_past(&self, len: usize, ignored: Option<u32>) -> Option<(usize, u32)> {
        let all = (0..self.rows).flat_map(|r| (0..self.cols).map(move |c| self.get(r, c)));
        all.enumerate().find(|(_, index)| *index as usize >= len && Some(*index) != ignored)
    }
}

/// One row of u32 indices.
#[derive(Clone, Copy)]
pub(crate) struct Indices<'a>(pub(crate) &'a [u32]);

impl Indices<'_> {
    /// Errors with the first index that is not below `len`; `ignored` is let through.
    pub(crate) fn check(
        &self,
        op: &'static str,
        operand: &'static str,
        len: usize,
        ignored: Option<u32>,
    ) -> Result<(), bessemer_tensor::TensorError> {
        match self.0.iter().position(|&i| i as usize >= len && Some(i) != ignored) {
            None => Ok(()),
            Some(at) => Err(bessemer_tensor::TensorError::Index { op, operand, at, index: self.0[at], len }),
        }
    }
}
