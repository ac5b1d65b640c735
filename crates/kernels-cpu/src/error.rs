//! Errors of making a CPU backend.

use crate::{Engine, Rung};

/// Errors of [`crate::CpuBackend::new`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The configuration is out of range.
    #[error("cpu backend: {0}")]
    Config(String),
    /// The system gave no thread.
    #[error("cpu backend: cannot start worker thread {worker} of {threads}: {source}; ask for fewer threads")]
    Spawn {
        /// Number of the worker.
        worker: usize,
        /// Number of threads requested.
        threads: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The processor does not have the instructions of a set that was requested by name.
    #[error("cpu backend: this processor cannot run the {wanted} kernels; the best it can is {best}")]
    Rung {
        /// Requested value.
        wanted: Rung,
        /// Result of [`Rung::detect`].
        best: Rung,
    },
    /// The processor cannot compute products with an engine that was requested by name.
    #[error(
        "cpu backend: this processor cannot run the {wanted} products with the {rung} kernels; leave the choice to the precision"
    )]
    Engine {
        /// Requested value.
        wanted: Engine,
        /// The kernels besides.
        rung: Rung,
    },
}
