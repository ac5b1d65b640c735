//! Messages between ranks over MPI: [`bessemer_collectives::Transport`] for worlds that `mpirun`, `mpiexec` or `srun`
//! started.
//!
//! MPI reports the death of a rank by hanging, by killing the job, or (MPICH over UCX, measured) by returning success with
//! the wrong contents. So nothing here trusts it to wait: one thread owns MPI and only ever asks whether something has
//! happened, every wait has a deadline, every message carries a number and a hash, and every rank sends the others a sign
//! of life about once a second from that thread, whatever its own computation does. A rank that is silent too long, whose
//! process the kernel says has ended, or for which a call of MPI fails, is given up, by all ranks at once and by name. Sums
//! are formed above, in rank order, so MPI's own reductions are not used.
//!
//! Without the feature `mpi` the crate builds anywhere, and [`start`] says what is missing.
#![cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "only an engine uses the rest"))]

mod courier;
mod engine;
mod error;
mod exchange;
mod life;
mod marks;
#[cfg(feature = "mpi")]
mod mpi;
mod wire;
mod world;

pub use error::MpiError;
pub use world::MpiWorld;

use bessemer_collectives::launch::Launch;
use std::time::Duration;

/// How long to wait for what.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A rank from which nothing was heard for this long is given up. A sign of life comes every second, or four times in
    /// this span if that is shorter.
    pub silence: Duration,
    /// For MPI to come up and every rank to say hello.
    pub join: Duration,
    /// What the launcher's variables say; MPI must agree.
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

/// Initialises MPI in a thread of its own, once in a process, and waits until all its ranks have said hello.
///
/// # Errors
/// No MPI in this build; MPI that does not come up, or comes up as another world than the launcher says; ranks that do not
/// answer.
#[cfg(feature = "mpi")]
pub fn start(settings: &Settings) -> Result<MpiWorld, MpiError> {
    world::open(settings, mpi::Mpi::init)
}

/// Says that this program was built without MPI.
///
/// # Errors
/// [`MpiError::NotBuilt`].
#[cfg(not(feature = "mpi"))]
pub fn start(_: &Settings) -> Result<MpiWorld, MpiError> {
    Err(MpiError::NotBuilt)
}
