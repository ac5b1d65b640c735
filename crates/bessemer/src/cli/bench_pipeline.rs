//! `bessemer bench pipeline`.

use super::{BenchStepArgs, WaitingArgs};
use clap::Args;
use std::path::PathBuf;

/// `bessemer bench pipeline`
#[derive(Debug, Args)]
pub(crate) struct BenchPipelineArgs {
    /// The step; --batch is a micro-batch, --threads are shared by the ranks.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Pipeline ranks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=64))]
    pub(crate) ranks: u64,
    /// Micro-batches of a step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) micro_batches: u64,
    /// Schedules with a flush, separated by commas; "all", or without it: gpipe, 1f1b, interleaved, chimera, zb-h1, zb-h2, zb-v,
    /// dualpipe, dualpipev and zb-auto, one after the other.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub(crate) schedule: Vec<String>,
    /// Write a Chrome trace of the last schedule's last step: its passes and messages, rank by rank.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,
}
