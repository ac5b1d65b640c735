//! Operands as kernels see them: raw matrices inside arena buffers.
//!
//! A [`Mat`] is made only by the arena, from a view that lies inside its buffer, so every element it names is mapped
//! memory. It is a pointer, not a slice, because operators may work in place and because disjoint tiles of one matrix
//! are written by several threads.
#![allow(unsafe_code)] // element access through a checked raw pointer

use crate::element::Element;

/// A matrix with rows `stride` elements apart. Activations are of an [`Element`] type, everything else is f32.
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

    /// Start of the matrix; only to be used within its shape.
    #[inline]
    pub(crate) fn ptr(&self) -> *mut T {
        self.ptr
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
