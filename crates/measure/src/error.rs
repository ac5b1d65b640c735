//! Errors of measurements.

use bessemer_train::TrainError;
use std::fmt::Display;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A request that cannot be met: a layout, a model or an engine that does not exist here.
    #[error("{0}")]
    Request(String),
    /// A measurement that failed.
    #[error("{0}")]
    Failed(String),
    /// A step that failed, or does not fit into memory.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl MeasureError {
    /// A request that cannot be met.
    pub fn request(message: impl Display) -> MeasureError {
        MeasureError::Request(message.to_string())
    }

    /// A measurement that failed.
    pub fn failed(message: impl Display) -> MeasureError {
        MeasureError::Failed(message.to_string())
    }
}

impl From<bessemer_arch::ArchError> for MeasureError {
    fn from(e: bessemer_arch::ArchError) -> MeasureError {
        MeasureError::request(e)
    }
}

impl From<bessemer_kernels_cpu::CpuError> for MeasureError {
    fn from(e: bessemer_kernels_cpu::CpuError) -> MeasureError {
        MeasureError::failed(e)
    }
}

impl From<bessemer_checkpoint::CheckpointError> for MeasureError {
    fn from(e: bessemer_checkpoint::CheckpointError) -> MeasureError {
        MeasureError::failed(e)
    }
}

impl From<serde_json::Error> for MeasureError {
    fn from(e: serde_json::Error) -> MeasureError {
        MeasureError::failed(e)
    }
}

macro_rules! of_a_step {
    ($($t:ty),* $(,)?) => {
        $(impl From<$t> for MeasureError {
            fn from(e: $t) -> MeasureError {
                TrainError::from(e).into()
            }
        })*
    };
}
of_a_step!(
    bessemer_runtime::ModelError,
    bessemer_parallel::MemoryShortage,
    bessemer_parallel::ParallelError,
    bessemer_tensor::TensorError,
);
