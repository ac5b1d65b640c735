//! Errors of the tensor floor.

use bessemer_units::{Bytes, DType};

/// What can go wrong when buffers are made or operators are launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// An operator's operands do not fit together.
    #[error("{op}: {operand} should be {wanted}, found {found}")]
    Shape {
        /// Operator name.
        op: &'static str,
        /// Operand name within the operator.
        operand: &'static str,
        /// Shape that the operator needs.
        wanted: String,
        /// Shape of the operand.
        found: String,
    },
    /// An operand has an element type that the operator, or the backend's kernel for it, does not take.
    #[error("{op}: {operand} should be {wanted}, found {found}")]
    DType {
        /// Operator name.
        op: &'static str,
        /// Operand name within the operator.
        operand: &'static str,
        /// Element types that the operator takes.
        wanted: &'static str,
        /// Element type of the operand.
        found: DType,
    },
    /// A view reaches past its buffer, or names a buffer that this backend does not hold.
    #[error("view of buffer {buffer} needs elements up to {end}, the buffer has {len}")]
    OutOfBounds {
        /// Buffer number.
        buffer: u32,
        /// One past the last element that the view touches.
        end: usize,
        /// Elements in the buffer (0 for an unknown buffer).
        len: usize,
    },
    /// Two operands share memory although one of them is written.
    #[error("{op}: {written} overlaps {other}; write to a buffer of its own")]
    Overlap {
        /// Operator name.
        op: &'static str,
        /// The operand that is written.
        written: &'static str,
        /// The operand it collides with.
        other: &'static str,
    },
    /// The arena cannot grow.
    #[error("cannot reserve {wanted} for {label}: {reason}. Largest consumers: {largest}")]
    OutOfMemory {
        /// Purpose of the memory.
        label: String,
        /// How much.
        wanted: Bytes,
        /// The system's answer.
        reason: String,
        /// The largest consumers so far, as text.
        largest: String,
    },
    /// An operator needs more scratch memory than was reserved before the run.
    #[error("{op} needs {wanted} of workspace, {reserved} were reserved; reserve it while planning")]
    Workspace {
        /// Operator name.
        op: &'static str,
        /// How much.
        wanted: Bytes,
        /// How much there is.
        reserved: Bytes,
    },
    /// An index operand points outside its table.
    #[error(
        "{op}: {operand}[{at}] = {index} is outside a table of {len} rows; check that tokenizer and model \
         belong together"
    )]
    Index {
        /// Operator name.
        op: &'static str,
        /// Operand name.
        operand: &'static str,
        /// Position in the operand.
        at: usize,
        /// The index found there.
        index: u32,
        /// Rows of the table.
        len: usize,
    },
    /// An index operand pointed outside its table, and the device found it after the launch had returned: what it computed since then is
    /// worth nothing.
    #[error(
        "{op}: {operand}[{at}] = {index} is outside a table of {len} rows, found after the launch; check that tokenizer and model \
         belong together"
    )]
    LateIndex {
        /// Operator name.
        op: &'static str,
        /// Operand name.
        operand: &'static str,
        /// Position in the operand.
        at: usize,
        /// The index found there.
        index: u32,
        /// Rows of the table.
        len: usize,
    },
    /// The device failed: every later call of it errs, and its memory is lost.
    #[error("the device failed in {during}: {problem}")]
    Device {
        /// Operator or copy in which it was found; what was launched before may be the cause.
        during: &'static str,
        /// What the device answers.
        problem: Box<str>,
    },
    /// What somebody that the model calls in the middle of a pass answers.
    #[error("{0}")]
    Outside(Box<str>),
}

impl TensorError {
    /// The same error of an operator whose launch has returned.
    #[must_use]
    pub fn found_late(self) -> TensorError {
        match self {
            TensorError::Index { op, operand, at, index, len } => {
                TensorError::LateIndex { op, operand, at, index, len }
            }
            other => other,
        }
    }
}
