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
    /// A schedule that does not exist, or that does not fulfil its properties.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A micro-batch that the batch source cannot provide.
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
    /// An error of the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An error of the optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// An error of the device.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
