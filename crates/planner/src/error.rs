//! Errors of the planner.

use bessemer_measure::MeasureError;
use bessemer_train::TrainError;
use std::fmt::Display;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlannerError {
    /// A request that cannot be met: devices, a machine or a method that the recipe does not go with.
    #[error("{0}")]
    Request(String),
    /// A recipe that is wrong, or asks for what these devices do not have.
    #[error("{0}")]
    Recipe(String),
    /// A file that cannot be read, or a search without a result.
    #[error("{0}")]
    Failed(String),
    /// A step that cannot be planned or simulated.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl PlannerError {
    /// A request that cannot be met.
    pub(crate) fn request(message: impl Display) -> PlannerError {
        PlannerError::Request(message.to_string())
    }

    /// A file that cannot be read, or a search without a result.
    pub(crate) fn failed(message: impl Display) -> PlannerError {
        PlannerError::Failed(message.to_string())
    }
}

impl From<MeasureError> for PlannerError {
    fn from(e: MeasureError) -> PlannerError {
        match e {
            MeasureError::Request(message) => PlannerError::Request(message),
            MeasureError::Failed(message) => PlannerError::Failed(message),
            MeasureError::Train(e) => PlannerError::Train(e),
        }
    }
}

impl From<bessemer_recipe::RecipeError> for PlannerError {
    fn from(e: bessemer_recipe::RecipeError) -> PlannerError {
        PlannerError::Recipe(e.to_string())
    }
}

impl From<bessemer_arch::ArchError> for PlannerError {
    fn from(e: bessemer_arch::ArchError) -> PlannerError {
        PlannerError::request(e)
    }
}

impl From<bessemer_runtime::ModelError> for PlannerError {
    fn from(e: bessemer_runtime::ModelError) -> PlannerError {
        TrainError::from(e).into()
    }
}

impl From<serde_json::Error> for PlannerError {
    fn from(e: serde_json::Error) -> PlannerError {
        PlannerError::failed(e)
    }
}
