//! Errors of a rank.

use bessemer_collectives::CollectiveError;
use bessemer_optim::OptimError;
use bessemer_runtime::ModelError;
use bessemer_schedule::ScheduleError;
use bessemer_tensor::TensorError;

/// Errors of one rank of a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A layout that the ranks, the model or the optimizer cannot have.
    #[error("{0}")]
    Layout(String),
    /// A schedule that there is not, or that does not hold what it promises.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Micro-batches that whoever feeds a rank cannot give.
    #[error("no micro-batch {micro}: {problem}")]
    BatchSource {
        /// Number within the program.
        micro: usize,
        /// Why.
        problem: String,
    },
    /// Between ranks.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// From the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// From the optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// From the device.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
