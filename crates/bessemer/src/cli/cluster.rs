//! `bessemer corpus cluster`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer corpus cluster ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Serve as the scheduler of a cluster until stopped.
    Scheduler {
        /// Address to listen on.
        #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
        listen: String,
    },
    /// Work for a scheduler until stopped.
    Executor(ExecutorArgs),
}

/// `bessemer corpus cluster executor ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExecutorArgs {
    /// Address of the scheduler.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    pub(crate) scheduler: String,
    /// Address to listen on, which others reach this executor at.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50051")]
    pub(crate) listen: String,
    /// Steps to work on at once; 0 takes one a core.
    #[arg(long, default_value_t = 0)]
    pub(crate) slots: usize,
    /// Folder for rows on their way, on a local disk; of this executor alone.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: PathBuf,
}
