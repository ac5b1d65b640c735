//! `bessemer network`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer network ...`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Size, cost, collective times and single failures of a network.
    Show(NetworkShowArgs),
    /// Several networks side by side, with a job.
    Compare(NetworkCompareArgs),
}

/// A job on a network.
#[derive(Debug, Args)]
pub(crate) struct NetworkJobArgs {
    /// TOML file with what the job exchanges on each axis of its mesh (docs/network.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["axis", "bytes"])]
    pub(crate) job: Option<PathBuf>,
    /// An axis of the job, the fastest first: `AXIS=RANKS` or `AXIS=RANKS:COLLECTIVE:BYTES[:ALGORITHM]`, e.g.
    /// tensor=8:all-reduce:64MiB (may be repeated).
    #[arg(long, value_name = "SPEC", conflicts_with = "bytes")]
    pub(crate) axis: Vec<String>,
    /// Buffer of an all-reduce and an all-to-all among all devices, if there is no job.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) bytes: bessemer_units::Bytes,
    /// Which of several shortest paths a message takes.
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) routing: RoutingChoice,
    /// Seed of the hash of ecmp.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A dead part: switch:N, node-switch:N, or a cable as device:N/switch:N (may be repeated).
    #[arg(long, value_name = "PART")]
    pub(crate) fail: Vec<String>,
    /// Leave out what happens when single parts die.
    #[arg(long)]
    pub(crate) no_failures: bool,
}

/// `bessemer network show`
#[derive(Debug, Args)]
pub(crate) struct NetworkShowArgs {
    /// A description (TOML file), or the name of an example: node-8, nvlink-256, cxl-rack, switch-16, pcie-64, fat-tree-1024,
    /// fat-tree-16384, dragonfly-1056, torus-32x32, torus-8x8x16, rail-only-1024, rail-optimised-1024.
    pub(crate) network: String,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
    /// Write a picture of the network with the loads of its cables.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `bessemer network compare`
#[derive(Debug, Args)]
pub(crate) struct NetworkCompareArgs {
    /// Descriptions (TOML files) or names of examples, two or more.
    #[arg(required = true, num_args = 2..)]
    pub(crate) networks: Vec<String>,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
}

/// A routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutingChoice {
    /// By the destination's number (D-mod-K).
    Static,
    /// By a hash of sender and receiver.
    Ecmp,
    /// The link with fewest flows.
    Adaptive,
}
