//! Errors of the start and the end of an MPI world.

use bessemer_collectives::TransportError;
use bessemer_collectives::launch::LaunchError;
use std::time::Duration;

/// Errors of starting and ending a world.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// The crate's feature `mpi` is off.
    #[error(
        "this program was built without MPI. Install an MPI development package (Debian: apt-get install libopenmpi-dev \
         openmpi-bin) and build with --features mpi; ranks within one process need none of it"
    )]
    NotBuilt,
    /// MPI does not start.
    #[error("cannot start MPI: {0}")]
    Init(String),
    /// MPI has another rank or size than the launcher's variables.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Some ranks that MPI lists did not say hello in time.
    #[error("ranks {} did not answer within {:.0} s of the start of MPI", list(missing), waited.as_secs_f64())]
    Join {
        /// Ranks that did not answer.
        missing: Vec<usize>,
        /// Time that they were waited for.
        waited: Duration,
    },
    /// A rank failed meanwhile.
    #[error(transparent)]
    Broken(#[from] TransportError),
    /// Some ranks did not call `finish` in time.
    #[error("ranks {} did not finish within {:.0} s", list(missing), waited.as_secs_f64())]
    Finish {
        /// Ranks that did not answer.
        missing: Vec<usize>,
        /// Time that they were waited for.
        waited: Duration,
    },
    /// MPI does not end.
    #[error("cannot finalize MPI: {0}")]
    Finalize(String),
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
