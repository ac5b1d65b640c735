//! How long ranks wait for each other.

use clap::Args;
use std::time::Duration;

/// Of every command whose ranks talk.
#[derive(Debug, Clone, Copy, Args)]
pub struct WaitingArgs {
    /// How long a rank waits in a collective or for a message before the job ends and reports which rank is blocked in which collective. Must
    /// be longer than anything that the first rank does alone between steps, such as a save or an evaluation.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    collective_timeout: u64,
    /// Between processes: how long a rank may show no sign of life (it sends one every second) before it is given up and the
    /// job ends.
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
