//! Values: virtual buffers that the operators of a program name in their views.

use bessemer_mesh::{Axis, Form, Layout, Placement};
use bessemer_tensor::{Buffer, View};
use bessemer_units::DType;

/// An input that the host writes before a pass: a row of indices, or numbers that vary from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Token ids, u32 `[1, n]`.
    Ids,
    /// Targets, u32 `[1, n]`.
    Targets,
    /// Positions within the sequence, u32 `[1, n]`.
    Positions,
    /// First position of each token's document, u32 `[1, n]`.
    Documents,
    /// Factor on each token's gradient, f32 `[1, n]`.
    LossFactors,
    /// Weight of auxiliary loss number `.0` of [`crate::UnitProgram::losses`], f32 `[1, 2]`: its weight, and its weight times the
    /// factor of a token whose loss has weight 1.
    LossWeight(usize),
}

/// Purpose of a value, which determines the provider of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Values of parameter number `.0` of the unit.
    Parameter(usize),
    /// Gradient of parameter number `.0` of the unit.
    Gradient(usize),
    /// Written by the host.
    Input(Input),
    /// Counters of the random numbers of place number `.0` of [`crate::UnitProgram::random`], u32 `[1, 6]`, written by the host.
    Random(usize),
    /// The residual stream that enters the unit; the backward pass may read it too.
    StreamIn,
    /// The residual stream that leaves the unit.
    StreamOut,
    /// Gradient of the residual stream: that of [`Class::StreamOut`] when the backward pass begins, that of
    /// [`Class::StreamIn`] when it ends.
    StreamGradient,
    /// Token losses, f32 `[1, n]`.
    Losses,
    /// Values of auxiliary loss number `.0` of [`crate::UnitProgram::losses`], f32. The host sums them over the ranks among which
    /// the layout shards them or leaves them terms of a sum, and takes them once where they are replicated.
    AuxiliaryLoss(usize),
    /// Counts that a forward pass makes, u32 `[1, c]`. The host adds them up over passes, and over ranks as [`Class::AuxiliaryLoss`].
    Counts,
    /// Provided once and only read.
    Constant,
    /// Provided by the caller of a pass, by number: a key/value cache, rows of logits.
    External(usize),
    /// Made by the unit's own operators. Which of these are saved for a later pass follows from the lists.
    Local,
}

/// One virtual buffer of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name within the unit: "attention.qkv.out".
    pub name: String,
    /// Class of the value.
    pub class: Class,
    /// Element type.
    pub dtype: DType,
    /// Rows and columns of the whole value, with the blocks in which they are sharded.
    pub form: Form,
    /// Layout of the whole value over the mesh.
    pub layout: Layout,
    /// Rows on this rank.
    pub rows: usize,
    /// Columns on this rank.
    pub cols: usize,
    /// Rows of the residual stream: sequence parallelism shards them.
    pub residual: bool,
    /// Number of the parameter whose values or gradient it is: the parameter itself, or values that a rank has gathered of it or is about
    /// to reduce. The layout over axes that are not rewritten yet is then that of the parameter.
    pub parameter: Option<usize>,
}

impl Value {
    /// Elements on this rank.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True if this rank has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes on this rank.
    pub fn bytes(&self) -> u64 {
        (self.len() * self.dtype.size()) as u64
    }

    /// The virtual buffer with number `id`.
    pub(crate) fn buffer(&self, id: usize) -> Buffer {
        Buffer { id: id as u32, len: self.len(), dtype: self.dtype }
    }

    /// The value as a view of virtual buffer `id`.
    pub(crate) fn view(&self, id: usize) -> View {
        self.buffer(id).matrix(self.rows, self.cols)
    }

    /// Placement over one axis.
    pub fn placement(&self, axis: Axis) -> Placement {
        self.layout.at(axis)
    }
}
