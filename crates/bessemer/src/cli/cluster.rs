//! `bessemer corpus cluster`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer corpus cluster ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Run the scheduler of a cluster until stopped.
    Scheduler {
        /// Address to listen on.
        #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
        listen: String,
    },
    /// Run an executor that works for a scheduler until stopped.
    Executor(ExecutorArgs),
}

/// `bessemer corpus cluster executor ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExecutorArgs {
    /// Address of the scheduler.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    pub(crate) scheduler: String,
    /// Address to listen on, reachable from the other executors.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50051")]
    pub(crate) listen: String,
    /// Tasks to run at once; 0 for one per core.
    #[arg(long, default_value_t = 0)]
    pub(crate) slots: usize,
    /// Folder on a local disk for intermediate rows; only for this executor.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: PathBuf,
}
