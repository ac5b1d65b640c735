//! Errors of the model.

use bessemer_tensor::TensorError;

/// Errors when a model is made, loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Layouts that do not fit together.
    #[error(transparent)]
    Layout(#[from] Box<bessemer_program::LayoutConflict>),
    /// Values that cannot be recomputed.
    #[error(transparent)]
    Recompute(#[from] bessemer_program::RecomputeError),
    /// A budget of activations below the bytes that remain if all layers that may offload or recompute.
    #[error(
        "train.activation_memory = {budget}: {micro_batches} micro-batches of {sequences} x {seq} tokens keep {least} of activations \
         with {with}; allow at least that, or use a smaller train.micro_batch or train.seq_len"
    )]
    ActivationMemory {
        /// The budget.
        budget: bessemer_units::Bytes,
        /// Bytes that are left.
        least: bessemer_units::Bytes,
        /// Description of the layers then: "every layer recomputed".
        with: String,
        /// Micro-batches in flight.
        micro_batches: usize,
        /// Sequences of each.
        sequences: usize,
        /// Tokens of the longest sequence.
        seq: usize,
    },
    /// Values that cannot be compressed.
    #[error(transparent)]
    Compression(#[from] Box<bessemer_program::CompressionError>),
    /// A program that would compute something else than that of one device.
    #[error(transparent)]
    Program(#[from] Box<bessemer_program::Violation>),
    /// A shape that the model cannot run at.
    #[error("{what}: wanted {wanted}, found {found}")]
    Shape {
        /// Name of the size.
        what: &'static str,
        /// The allowed range.
        wanted: String,
        /// The number that was requested.
        found: String,
    },
    /// No parameter has this name.
    #[error("the model has no parameter {name:?}; {hint}")]
    UnknownParameter {
        /// The name that was requested.
        name: String,
        /// Nearby names.
        hint: String,
    },
    /// Values of another number than the parameter has.
    #[error("parameter {name}: wanted {wanted} values for shape {shape:?}, found {found}")]
    ParameterSize {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its number of values.
        wanted: usize,
        /// Number of values that were given.
        found: usize,
    },
    /// A parameter that a caller has placed in another way than the model needs.
    #[error("parameter {name}: wanted {wanted}, found {found}")]
    ParameterPlace {
        /// The parameter.
        name: String,
        /// The shape that the model needs.
        wanted: String,
        /// The shape that was given.
        found: String,
    },
    /// A token, target or position that the model has no row for.
    #[error(
        "{what}[{at}] = {found} is outside 0..{below}; check that tokenizer, data and model belong \
             together"
    )]
    Index {
        /// "ids", "targets" or "positions".
        what: &'static str,
        /// Position in the batch.
        at: usize,
        /// The index found there.
        found: u32,
        /// One past the largest allowed.
        below: usize,
    },
    /// A decoder that is one tensor shard of a model, or cannot be.
    #[error("a tensor shard of a model: {0}")]
    TensorShard(String),
    /// A call that the state of a pipeline stage does not allow, or a span that the model does not have.
    #[error("a stage of a pipeline: {0}")]
    Stage(String),
    /// A training pass was requested of a decoder without gradients.
    #[error("this decoder was made to score and holds no gradients; make it with Purpose::Train")]
    NotForTraining,
    /// More positions than the capacity of the cache.
    #[error(
        "the cache holds {len} of {capacity} positions, {new} more do not fit; make a larger cache or reset it"
    )]
    CacheFull {
        /// Positions held.
        len: usize,
        /// Positions wanted.
        new: usize,
        /// Capacity in positions.
        capacity: usize,
    },
}
