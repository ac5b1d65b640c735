//! Errors of a cluster.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that is none.
    #[error("{found:?} is not an address: {problem}")]
    Address {
        /// The given text.
        found: String,
        /// Form that was wanted.
        problem: String,
    },
    /// Nobody listens at the scheduler's address.
    #[error(
        "no scheduler answers at {scheduler} ({cause}); start one: bessemer corpus cluster scheduler --listen {scheduler}"
    )]
    Unreachable {
        /// The address.
        scheduler: String,
        /// The operating system's answer.
        cause: String,
    },
    /// The process at the scheduler's address is no scheduler of Bessemer.
    #[error(
        "the server at {scheduler} is not a scheduler of Bessemer ({found}); use the address of --listen of \
         bessemer corpus cluster scheduler"
    )]
    NoScheduler {
        /// The address.
        scheduler: String,
        /// Its answer.
        found: String,
    },
    /// The scheduler has no executor.
    #[error(
        "the scheduler at {scheduler} has had no executor for {seconds} s; start one: bessemer corpus cluster executor --scheduler {scheduler} --work-dir DIR"
    )]
    NoExecutor {
        /// The address.
        scheduler: String,
        /// Seconds that an executor was waited for.
        seconds: u64,
    },
    /// The cluster could not do something.
    #[error("the cluster could not {action}: {cause}")]
    Cluster {
        /// Action that failed, for "could not …".
        action: &'static str,
        /// Message of Ballista or of the operating system.
        cause: String,
    },
    /// An executor went away together with results that were still to be fetched from it.
    #[error(
        "an executor with results was lost ({cause}); check its log and start the build again: it continues \
         from the finished parts"
    )]
    Lost {
        /// Error of the connection to it.
        cause: String,
    },
    /// The plan failed on an executor or here.
    #[error(transparent)]
    Plan(#[from] bessemer_dataflow::Error),
    /// The program was built without the feature.
    #[error(
        "this program was built without cluster support: cargo build --release --features cluster (it adds \
         about 20 minutes on two cores; docs/cluster.md)"
    )]
    NotBuilt,
}
