//! Runs one operator on fresh buffers filled with the same values for every backend.

use crate::suite::{TYPES, Types};
use bessemer_tensor::op::{DropoutMask, IGNORED, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A backend, and the buffers made for one operator.
pub struct Setup {
    /// The backend, of which [`Setup`] has all buffers.
    pub backend: Box<dyn Backend>,
    /// Types of the matrices that [`Setup::act`], [`Setup::param`] and [`Setup::gradient`] make.
    pub(crate) types: Types,
    pub(crate) buffers: Vec<Buffer>,
    /// Names of the operators launched by all setups of a case.
    pub(crate) launched: Rc<RefCell<BTreeSet<&'static str>>>,
}

impl Setup {
    /// No buffers yet, and matrices in f32.
    pub fn over(backend: Box<dyn Backend>) -> Setup {
        Setup { backend, types: TYPES[0], buffers: Vec::new(), launched: Rc::default() }
    }

    pub(crate) fn buffer(&mut self, dtype: DType, len: usize) -> Buffer {
        let spec = BufferSpec { class: "test", name: "x", dtype, len };
        self.backend.alloc(spec).unwrap()
    }

    /// A matrix with `gap` elements between rows and `gap` in front, all of them normal values.
    pub fn strided(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(DType::F32, rows, cols, gap)
    }

    /// A matrix of activations, as [`Setup::strided`]: the suite runs them in f32 and in bf16.
    pub(crate) fn act(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.types[0], rows, cols, gap)
    }

    /// A matrix of parameters, as [`Setup::strided`]: the suite runs them in f32, bf16 and f16.
    pub(crate) fn param(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.types[1], rows, cols, gap)
    }

    /// A matrix of gradients of parameters, in the same types.
    pub(crate) fn gradient(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.types[2], rows, cols, gap)
    }

    pub(crate) fn typed(&mut self, dtype: DType, rows: usize, cols: usize, gap: usize) -> View {
        let len = gap + rows * (cols + gap);
        let b = self.buffer(dtype, len);
        let mut values = vec![0.0; len];
        RngKey::new(1, 0, "test").fill_normal(1_000_000 * self.buffers.len() as u64, 1.0, &mut values);
        self.backend.write_f32(b.vector(), &values).unwrap();
        self.buffers.push(b);
        View { buffer: b, offset: gap, rows, cols, stride: cols + gap }
    }

    /// A matrix of normal values without gaps.
    pub fn mat(&mut self, rows: usize, cols: usize) -> View {
        self.strided(rows, cols, 0)
    }

    /// A matrix of given values.
    pub fn values(&mut self, rows: usize, cols: usize, values: &[f32]) -> View {
        let v = self.mat(rows, cols);
        self.backend.write_f32(v, values).unwrap();
        v
    }

    /// `[1, n]` factors on the gradients of a loss, no two neighbours equal.
    pub(crate) fn factors(&mut self, n: usize) -> View {
        let factors: Vec<f32> = (0..n).map(|i| 0.25 + 0.125 * (i % 5) as f32).collect();
        self.values(1, n, &factors)
    }

    /// Codes of 8 bits, as floats.
    pub(crate) fn codes(&mut self, rows: usize, cols: usize, values: &[f32]) -> View {
        let b = self.buffer(DType::U8, rows * cols);
        self.backend.write_f32(b.vector(), values).unwrap();
        self.buffers.push(b);
        b.matrix(rows, cols)
    }

    /// A row of indices.
    pub(crate) fn indices(&mut self, values: &[u32]) -> View {
        let v = self.buffer(DType::U32, values.len()).vector();
        self.backend.write_u32(v, values).unwrap();
        v
    }

    /// A matrix of indices that an operator writes; zeros.
    pub(crate) fn index_mat(&mut self, rows: usize, cols: usize) -> View {
        let b = self.buffer(DType::U32, rows * cols);
        self.backend.write_u32(b.vector(), &vec![0; rows * cols]).unwrap();
        self.buffers.push(b);
        b.matrix(rows, cols)
    }

    /// A mask of dropout that draws from `key`.
    pub(crate) fn dropout(&mut self, p: f32, key: RngKey, first: u64) -> DropoutMask {
        // Part of the number of the element in either place.
        DropoutMask {
            p,
            counters: self.indices(&DropoutMask::words(key, first - first / 2)),
            first: first / 2,
        }
    }

    /// Reserves what the operator asks for, and not a byte more, and launches it.
    pub fn launch(&mut self, op: &Op) -> Result<(), TensorError> {
        self.launched.borrow_mut().insert(op.name());
        let bytes = self.backend.workspace(op)?;
        self.backend.reserve_workspace(bytes)?;
        self.backend.launch(Stream::Compute, op)
    }

    /// Operand, position, index and rows of the table that an operator is refused with, at its launch or when it is computed.
    pub(crate) fn index_error(&mut self, op: &Op) -> (&'static str, usize, u32, usize) {
        let launched = self.launch(op);
        match launched.and_then(|()| self.backend.sync()).unwrap_err() {
            TensorError::Index { operand, at, index, len, .. }
            | TensorError::LateIndex { operand, at, index, len, .. } => (operand, at, index, len),
            other => panic!("{other}"),
        }
    }

    /// Values of a view; indices as floats.
    pub fn read(&mut self, view: View) -> Vec<f32> {
        let mut values = vec![0.0; view.len()];
        if view.dtype() == DType::U32 {
            let mut bytes = vec![0; 4 * view.len()];
            self.backend.read_bytes(Stream::Compute, view, &mut bytes).unwrap();
            let index = |b: &[u8]| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]) as f32;
            return bytes.chunks_exact(4).map(index).collect();
        }
        self.backend.read_f32(view, &mut values).unwrap();
        values
    }

    /// Every buffer of floats or of indices that an operator writes, gaps included.
    pub fn all(&mut self) -> Vec<Vec<f32>> {
        self.buffers.clone().into_iter().map(|b| self.read(b.vector())).collect()
    }
}

/// Normal values that follow from a name.
pub(crate) fn noise(name: &str, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    RngKey::new(77, 0, name).fill_normal(0, 1.0, &mut values);
    values
}

/// Rows of a table of `below` rows, some of them more than once.
pub(crate) fn ids(n: usize, below: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + 7 * i) % below) as u32).collect()
}

/// Targets in a vocabulary of `v`, some of them ignored.
pub(crate) fn targets(n: usize, v: usize) -> Vec<u32> {
    (0..n).map(|i| if i % 5 == 2 { IGNORED } else { ((i * 131 + 5) % v) as u32 }).collect()
}
