//! Handles to device memory.

use crate::TensorError;
use bessemer_units::DType;

/// Handle to a buffer in a backend's arena. Says nothing about where the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Number of the buffer within its backend.
    pub id: u32,
    /// Elements.
    pub len: usize,
    /// Element type.
    pub dtype: DType,
}

impl Buffer {
    /// Bytes. With the number they are what a backend knows a buffer by.
    pub fn bytes(&self) -> u64 {
        (self.len as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// The same memory as elements of another type, if they fill it. What was written as one type means nothing as another.
    pub fn of_type(self, dtype: DType) -> Option<Buffer> {
        let (bytes, size) = (self.bytes(), dtype.size() as u64);
        bytes.is_multiple_of(size).then_some(Buffer { len: (bytes / size) as usize, dtype, ..self })
    }

    /// The whole buffer as a `rows` x `cols` matrix without gaps.
    ///
    /// # Panics
    /// If `rows * cols` is not the buffer's length: buffers are made for their shape.
    pub fn matrix(self, rows: usize, cols: usize) -> View {
        assert_eq!(rows * cols, self.len, "buffer {} holds {} elements", self.id, self.len);
        View { buffer: self, offset: 0, rows, cols, stride: cols }
    }

    /// The whole buffer as one row.
    pub fn vector(self) -> View {
        View { buffer: self, offset: 0, rows: 1, cols: self.len, stride: self.len }
    }
}

/// A matrix inside a buffer: `rows` x `cols` elements, rows `stride` elements apart.
///
/// Activations are `[tokens, features]`; a head, the q part of a fused qkv, or a shard of columns is a view with a
/// larger stride. A vector has one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: Buffer,
    /// First element.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
}

impl View {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.buffer.dtype
    }

    /// Elements that the view names.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True if the view names no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.rows <= 1 || self.stride == self.cols
    }

    /// Columns `first .. first + count` of every row.
    ///
    /// # Panics
    /// If the columns are not there.
    pub fn columns(&self, first: usize, count: usize) -> View {
        assert!(first + count <= self.cols, "columns {first}..{} of {}", first + count, self.cols);
        View { offset: self.offset + first, cols: count, ..*self }
    }

    /// Rows `first .. first + count`.
    ///
    /// # Panics
    /// If the rows are not there.
    pub fn rows(&self, first: usize, count: usize) -> View {
        assert!(first + count <= self.rows, "rows {first}..{} of {}", first + count, self.rows);
        View { offset: self.offset + first * self.stride, rows: count, ..*self }
    }

    /// One past the last element touched, within the buffer.
    pub fn end(&self) -> usize {
        if self.is_empty() { self.offset } else { self.offset + (self.rows - 1) * self.stride + self.cols }
    }

    /// Bytes that the view names (gaps not counted).
    pub fn bytes(&self) -> u64 {
        (self.len() * self.dtype().size()) as u64
    }

    /// Errors if the view reaches past its buffer or its rows overlap.
    pub fn check(&self) -> Result<(), TensorError> {
        if self.end() > self.buffer.len || (self.rows > 1 && self.stride < self.cols) {
            return Err(TensorError::OutOfBounds {
                buffer: self.buffer.id,
                end: self.end(),
                len: self.buffer.len,
            });
        }
        Ok(())
    }

    /// True if both views may name a common element. Two column slices of one matrix with the same stride are distinguished
    /// exactly; other shapes by their extent.
    pub fn overlaps(&self, other: &View) -> bool {
        if self.buffer.id != other.buffer.id || self.is_empty() || other.is_empty() {
            return false;
        }
        let [a, b] = [self, other].map(|view| view.dtype().size());
        let before = |end: usize, size: usize, start: usize, other: usize| {
            end.saturating_mul(size) <= start.saturating_mul(other)
        };
        if before(self.end(), a, other.offset, b) || before(other.end(), b, self.offset, a) {
            return false;
        }
        if a == b && self.stride == other.stride && self.rows > 1 && other.rows > 1 {
            // The columns of both, on the circle of one stride: neither reaches the other.
            let (a, b, around) = (self.offset, other.offset, self.stride);
            let from_a = (b % around + around - a % around) % around;
            let from_b = (around - from_a) % around;
            if from_a >= self.cols && from_b >= other.cols {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(len: usize) -> Buffer {
        Buffer { id: 3, len, dtype: DType::F32 }
    }

    #[test]
    fn column_slices_of_one_matrix_do_not_overlap() {
        let qkv = buffer(4 * 12).matrix(4, 12);
        let (q, k) = (qkv.columns(0, 4), qkv.columns(4, 4));
        assert!(!q.overlaps(&k));
        assert!(q.overlaps(&qkv));
        assert!(q.overlaps(&qkv.columns(3, 2)));
        assert!(!qkv.rows(0, 2).overlaps(&qkv.rows(2, 2)));
        // A matrix may begin anywhere in its buffer.
        let within = View { offset: 7, ..buffer(100).matrix(10, 10).rows(0, 4).columns(0, 9) };
        let qkv = View { cols: 12, stride: 12, ..within };
        let (q, k, v) = (qkv.columns(0, 4), qkv.columns(4, 4), qkv.columns(8, 4));
        assert!(!q.overlaps(&k) && !k.overlaps(&v) && !q.overlaps(&v) && !v.overlaps(&q));
        assert!(qkv.columns(0, 5).overlaps(&k) && v.overlaps(&qkv.columns(0, 9)));
    }

    #[test]
    fn elements_of_another_type_overlap_by_their_bytes() {
        let floats = buffer(12);
        let halves = floats.of_type(DType::Bf16).unwrap();
        assert_eq!((halves.id, halves.len, halves.bytes()), (floats.id, 24, floats.bytes()));
        let (front, back) = (floats.vector().columns(0, 6), floats.vector().columns(6, 6));
        assert!(halves.vector().columns(0, 13).overlaps(&back) && back.overlaps(&halves.vector()));
        assert!(!halves.vector().columns(0, 12).overlaps(&back));
        assert!(!front.overlaps(&halves.vector().columns(12, 12)));
        // Columns are told apart only where elements are of one size.
        assert!(floats.matrix(3, 4).columns(2, 2).overlaps(&halves.matrix(6, 4).columns(0, 2)));
        assert_eq!(Buffer { len: 5, dtype: DType::Bf16, ..floats }.of_type(DType::F32), None);
    }

    #[test]
    fn views_know_their_extent() {
        let m = buffer(24).matrix(4, 6);
        assert_eq!(m.rows(1, 2).columns(2, 3).end(), 6 + 6 + 2 + 3);
        assert!(m.check().is_ok());
        assert!(View { rows: 5, ..m }.check().is_err());
        assert!(View { stride: 3, ..m }.check().is_err(), "overlapping rows");
    }
}
