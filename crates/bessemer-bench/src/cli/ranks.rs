//! `bessemer-bench ranks`.

use super::BenchStepArgs;
use bessemer::WaitingArgs;
use clap::Args;
use std::path::PathBuf;

/// `bessemer-bench ranks`
#[derive(Debug, Args)]
pub(crate) struct BenchRanksArgs {
    /// The step; --batch is shared by the ranks, --threads too.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Ranks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) ranks: u64,
    /// What data-parallel ranks shard: ddp (nothing), zero1, zero2, zero3.
    #[arg(long, alias = "stage", default_value = "ddp")]
    pub(crate) data: String,
    /// Micro-batches of a step.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) micro_batches: u64,
    /// How parameters are kept: f32, bf16 or f16.
    #[arg(long, default_value = "f32")]
    pub(crate) weights: String,
    /// How gradients are kept: f32, or the type of the weights.
    #[arg(long, default_value = "f32")]
    pub(crate) gradients: String,
    /// How gradients travel between data-parallel ranks: stored (as they are kept) or int8.
    #[arg(long, default_value = "stored")]
    pub(crate) reduce_dtype: String,
    /// Ranks that share every layer's matrices (tensor parallelism). They divide --ranks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) tensor: u64,
    /// Cut the residual stream over the tensor-parallel ranks too.
    #[arg(long)]
    pub(crate) sequence: bool,
    /// Collectives on the thread that computes.
    #[arg(long)]
    pub(crate) blocking: bool,
    /// Pairs of blocks.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Write a Chrome trace of the last block.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,
}
