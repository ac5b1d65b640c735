//! What can go wrong before and after the messages.

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
    /// MPI does not come up.
    #[error("MPI does not start: {0}")]
    Init(String),
    /// MPI came up as something else than the launcher says.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Ranks that MPI lists but that do not say hello.
    #[error("ranks {} did not answer within {:.0} s of MPI's start", list(missing), waited.as_secs_f64())]
    Join {
        /// Who.
        missing: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A rank that went wrong meanwhile.
    #[error(transparent)]
    Broken(#[from] TransportError),
    /// Ranks that do not come to the end.
    #[error("ranks {} did not come to the end within {:.0} s", list(missing), waited.as_secs_f64())]
    Finish {
        /// Who.
        missing: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// MPI does not go down.
    #[error("MPI does not end: {0}")]
    Finalize(String),
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
