//! Errors of an optimizer.

use crate::config::OptimConfigError;
use bessemer_tensor::TensorError;
use bessemer_units::DType;

/// Errors of an optimizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] OptimConfigError),
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A step number that has no bias correction.
    #[error("optimizer steps count from 1, found 0")]
    StepZero,
    /// No state tensor has this name.
    #[error("the optimizer has no state {name:?}; its states are named like {example:?}")]
    UnknownState {
        /// The name that was asked for.
        name: String,
        /// A name that exists.
        example: String,
    },
    /// Values of another number than the state tensor has.
    #[error("optimizer state {name}: wanted {wanted} values, found {found}")]
    StateSize {
        /// The state tensor.
        name: String,
        /// Its number of values.
        wanted: usize,
        /// How many were given.
        found: usize,
    },
    /// The optimizer cannot step parameters or gradients of such a type.
    #[error(
        "optimizer \"{optimizer}\" with {what} in {found}: {reason}; keep them in f32, or take \"adamw\", \"sgd\" or \"lion\""
    )]
    Precision {
        /// The optimizer, as a recipe writes it.
        optimizer: &'static str,
        /// "weights" or "gradients".
        what: &'static str,
        /// Their type.
        found: DType,
        /// Why not.
        reason: &'static str,
    },
    /// K-FAC was asked to step before it saw a batch.
    #[error(
        "K-FAC has no curvature yet: capture the inputs and output gradients of the linear layers before a step"
    )]
    NoCurvature,
    /// A unit of K-FAC's work that needs something of a pass of the model was asked for without it.
    #[error(
        "K-FAC: a micro-batch of curvature needs the layer's inputs or output gradients: take Optimizer::kfac_curvature"
    )]
    NoOperand,
    /// A unit of K-FAC's work on a layer whose state another rank keeps, or that is not there.
    #[error(
        "K-FAC: this rank does not keep the curvature of {name}; take the units of Optimizer::kfac_units only"
    )]
    NotKept {
        /// The parameter, or the unit.
        name: String,
    },
    /// A factor that no damping made positive definite.
    #[error(
        "K-FAC: the curvature of {name} cannot be inverted, even with {shift:e} added to its diagonal; raise optim.kfac.damping"
    )]
    Singular {
        /// The parameter.
        name: String,
        /// The largest shift that was tried.
        shift: f64,
    },
}
