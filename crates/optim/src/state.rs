//! Memory of state tensors: f32, or codes of 8 bits by blocks.

use crate::config::{OptimConfig, StateChoice};
use crate::param::OptimParam;
use crate::rule::alloc;
use bessemer_arch::ParamClass;
use bessemer_tensor::quantise::{DynamicCode, MOMENT_BLOCK, SIGNED, UNSIGNED};
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;

/// A parameter with fewer elements on a tensor-parallel rank keeps its moments in f32 (Dettmers et al. 2022, section 2.4).
const LEAST_ELEMENTS: usize = 4096;

/// One of AdamW's two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Mean of gradients.
    First,
    /// Mean of squared gradients.
    Second,
}

impl Moment {
    fn code(self) -> &'static DynamicCode {
        match self {
            Moment::First => &SIGNED,
            Moment::Second => &UNSIGNED,
        }
    }
}

/// Memory of one state tensor. Whoever reads or writes it sees f32 values, row by row.
///
/// Values that were read from codes and are written back give the same codes and scales ([`bessemer_tensor::quantise`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StateView {
    /// The values themselves.
    Plain(View),
    /// A moment in 8 bits.
    Int8(Int8View),
}

/// A moment as codes of 8 bits; from the first element on each 256 of them share a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Int8View {
    /// u8, of the tensor's shape.
    pub codes: View,
    /// f32 `[1, blocks]`.
    pub scales: View,
    /// The moment, which says the code.
    pub moment: Moment,
}

impl Int8View {
    /// The zeroed moment "kind.name" of a parameter.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        kind: &str,
        param: &OptimParam,
        moment: Moment,
    ) -> Result<Int8View, TensorError> {
        let (rows, cols) = (param.value.rows, param.value.cols);
        let name = format!("{kind}.{}", param.name);
        let spec = BufferSpec { class: "optimizer", name: &name, dtype: DType::U8, len: rows * cols };
        let codes = backend.alloc(spec)?.matrix(rows, cols);
        let scales = alloc(backend, &format!("{name} scales"), 1, (rows * cols).div_ceil(MOMENT_BLOCK))?;
        Ok(Int8View { codes, scales, moment })
    }
}

impl From<View> for StateView {
    fn from(view: View) -> StateView {
        StateView::Plain(view)
    }
}

/// A stretch of a tensor without gaps, as one row.
fn row(view: &View, first: usize, cols: usize) -> View {
    View { offset: view.offset + first, rows: 1, cols, stride: cols, ..*view }
}

impl StateView {
    fn values(&self) -> &View {
        match self {
            StateView::Plain(view) | StateView::Int8(Int8View { codes: view, .. }) => view,
        }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.values().rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.values().cols
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.values().len()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.values().is_contiguous()
    }

    /// `len` elements from element `first` of a tensor without gaps on, where they lie in memory as values.
    pub fn stretch(&self, first: usize, len: usize) -> Option<View> {
        match self {
            StateView::Plain(view) if first == 0 && len == view.len() => Some(*view),
            StateView::Plain(view) => Some(row(view, first, len)),
            StateView::Int8(_) => None,
        }
    }

    /// Reads as many elements as `out` has, from element `first` of a tensor without gaps on, without asking for memory.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn read(&self, backend: &mut dyn Backend, first: usize, out: &mut [f32]) -> Result<(), TensorError> {
        if let Some(view) = self.stretch(first, out.len()) {
            return backend.read_f32(view, out);
        }
        let StateView::Int8(Int8View { codes, scales, moment }) = self else { return Ok(()) };
        let (mut at, end) = (first, first + out.len());
        let (mut numbers, mut bytes, mut scale) = ([0.0; MOMENT_BLOCK], [0; MOMENT_BLOCK], [0.0]);
        while at < end {
            let block = at / MOMENT_BLOCK;
            let len = ((block + 1) * MOMENT_BLOCK).min(end) - at;
            backend.read_f32(row(codes, at, len), &mut numbers[..len])?;
            backend.read_f32(row(scales, block, 1), &mut scale)?;
            bytes.iter_mut().zip(&numbers[..len]).for_each(|(byte, number)| *byte = *number as u8);
            moment.code().decode(&bytes[..len], scale[0], &mut out[at - first..][..len]);
            at += len;
        }
        Ok(())
    }

    /// Overwrites as many elements as there are `values`, from element `first` of a tensor without gaps on. Where 256 elements share a scale,
    /// all of them or none are overwritten.
    ///
    /// # Errors
    /// A part of a block; an error of the backend.
    pub fn write(&self, backend: &mut dyn Backend, first: usize, values: &[f32]) -> Result<(), TensorError> {
        if let Some(view) = self.stretch(first, values.len()) {
            return backend.write_f32(view, values);
        }
        let StateView::Int8(Int8View { codes, scales, moment }) = self else { return Ok(()) };
        let end = first + values.len();
        if !first.is_multiple_of(MOMENT_BLOCK) || !(end.is_multiple_of(MOMENT_BLOCK) || end == codes.len()) {
            let text = format!(
                "elements {first}..{end} of {} in 8 bits are not whole blocks of {MOMENT_BLOCK}",
                codes.len()
            );
            return Err(TensorError::Outside(text.into()));
        }
        let (mut bytes, mut numbers) = ([0; MOMENT_BLOCK], vec![0.0; values.len()]);
        let mut of_blocks = Vec::with_capacity(values.len().div_ceil(MOMENT_BLOCK));
        for (values, numbers) in values.chunks(MOMENT_BLOCK).zip(numbers.chunks_mut(MOMENT_BLOCK)) {
            of_blocks.push(moment.code().encode(values, &mut bytes[..values.len()]));
            numbers.iter_mut().zip(bytes).for_each(|(number, byte)| *number = f32::from(byte));
        }
        backend.write_f32(row(codes, first, values.len()), &numbers)?;
        backend.write_f32(row(scales, first / MOMENT_BLOCK, of_blocks.len()), &of_blocks)
    }
}

impl OptimConfig {
    /// Whether AdamW's moments of a parameter are kept in 8 bits.
    pub(crate) fn has_int8_moments(&self, param: &OptimParam) -> bool {
        let class = match self.state {
            StateChoice::F32 => false,
            StateChoice::Int8 => param.class == ParamClass::Matrix,
            StateChoice::Int8Embeddings => matches!(param.class, ParamClass::Matrix | ParamClass::Embedding),
        };
        class && param.elements >= LEAST_ELEMENTS
    }

    /// Elements of a parameter, counted from its first one, that no two ranks may share: a block of moments in 8 bits lies on one
    /// rank. 1 if every element stands alone.
    pub fn indivisible(&self) -> usize {
        if self.state == StateChoice::F32 { 1 } else { MOMENT_BLOCK }
    }
}
