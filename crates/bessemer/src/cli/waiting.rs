//! How long ranks wait for each other.

use clap::Args;
use std::time::Duration;

/// Time-outs of commands whose ranks communicate.
#[derive(Debug, Clone, Copy, Args)]
pub struct WaitingArgs {
    /// Seconds in a collective or a receive before the job ends.
    ///
    /// The error names the blocked rank and its collective. Must be longer than anything that only rank 0 does between
    /// steps, such as a save or an evaluation.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    collective_timeout: u64,
    /// Seconds without a heartbeat before a rank process counts as lost.
    ///
    /// Processes send a heartbeat every second. The job then ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    rank_timeout: u64,
}

impl WaitingArgs {
    /// The time-out of a collective.
    pub fn timeout(self) -> Duration {
        Duration::from_secs(self.collective_timeout)
    }

    /// Silence after which a process is given up.
    pub(crate) fn silence(self) -> Duration {
        Duration::from_secs(self.rank_timeout)
    }
}
