//! Messages between ranks over MPI: a [`bessemer_collectives::Transport`] for jobs that `mpirun`, `mpiexec` or `srun`
//! started.
//!
//! MPI reports the death of a rank by hanging, by killing the job, or (MPICH over UCX, measured) by returning success with
//! the wrong contents. So nothing here waits inside MPI. [`start`] starts one thread, the progress thread, which owns MPI
//! and only polls it; it is the only thread of this crate and ends with the [`MpiWorld`]. Every wait has a deadline, every
//! message carries a number and a hash, and the progress thread sends every other rank a heartbeat about once a second,
//! however long this rank's own computation takes. All ranks give up a rank, by name, that is silent too long, whose
//! process has ended according to the kernel, or for which a call of MPI fails. Sums are formed above, in rank order, so
//! MPI's own reductions are not used.
//!
//! Without the feature `mpi` the crate builds anywhere, and [`start`] says what is missing.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "only an engine uses the rest"))]

mod engine;
mod error;
mod exchange;
mod marks;
#[cfg(feature = "mpi")]
mod mpi;
mod progress;
mod wire;
mod world;

pub use error::MpiError;
pub use world::MpiWorld;

use bessemer_collectives::launch::Launch;
use std::time::Duration;

/// Time limits of an MPI world.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Time without a message after which a rank is given up. Heartbeats come every second, or four times in this time if
    /// that is shorter.
    pub silence: Duration,
    /// Time for MPI to come up and every rank to say hello.
    pub join: Duration,
    /// Rank and size according to the launcher's variables; MPI must agree.
    pub launch: Option<Launch>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { silence: Duration::from_secs(10), join: Duration::from_secs(120), launch: None }
    }
}

/// True if this program was built with MPI.
pub const fn available() -> bool {
    cfg!(feature = "mpi")
}

/// Starts the progress thread, which initialises MPI once in a process, and waits until all ranks have said hello.
///
/// # Errors
/// No MPI in this build; MPI that does not come up, or comes up as another world than the launcher says; ranks that do not
/// answer.
#[cfg(feature = "mpi")]
pub fn start(settings: &Settings) -> Result<MpiWorld, MpiError> {
    world::open(settings, mpi::Mpi::init)
}

/// Refuses, as this program was built without MPI.
///
/// # Errors
/// [`MpiError::NotBuilt`].
#[cfg(not(feature = "mpi"))]
pub fn start(_: &Settings) -> Result<MpiWorld, MpiError> {
    Err(MpiError::NotBuilt)
}
