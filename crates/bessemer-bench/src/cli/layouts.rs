//! `bessemer-bench layouts`.

use super::BenchStepArgs;
use bessemer::WaitingArgs;
use clap::Args;

/// `bessemer-bench layouts`
#[derive(Debug, Args)]
pub(crate) struct BenchLayoutsArgs {
    /// The step; --batch is a micro-batch of one rank, --threads are shared by the ranks.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Ranks of every layout.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=64))]
    pub(crate) ranks: u64,
    /// Layouts, separated by commas: ddp, experts (ddp with the experts of a model over all ranks), zero1, zero2, zero3, tensor,
    /// sequence, grids of tensor-parallel ranks as grid-ROWSxCOLUMNS, grid-ROWSxCOLUMNSxDEPTH and cube-SIDE, ranks that share every
    /// sequence by all-gather, ulysses, ring (zig-zag), ring-consecutive, ring-striped, lightseq (--batch 1), with "-blocking" where
    /// collectives run on the thread that computes, or a pipeline schedule with a flush; "slow-" before a name for slow links, and
    /// after it +bN for micro-batches of N sequences, +full or +attention for what is recomputed; "usual": those that
    /// docs/parallel.md has figures of; "many": 36 forms of ten of them, to be ranked (--sequences).
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "usual")]
    pub(crate) layouts: Vec<String>,
    /// Devices that compute nothing and take the time of one of this rate (and of a tenth of it in bytes/s): for more ranks than
    /// this machine has cores.
    #[arg(long, value_name = "GFLOP/S")]
    pub(crate) paced: Option<f64>,
    /// Skew of loads of experts: the initial router weights of expert i are multiplied by i to the power of minus this.
    #[arg(long, value_name = "S", default_value_t = 0.0, conflicts_with = "paced")]
    pub(crate) router_skew: f64,
    /// Micro-batches of a step.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) micro_batches: u64,
    /// Sequences of a step over all ranks, instead of --micro-batches: layouts then do the same work, and are ranked.
    #[arg(long, value_name = "N", conflicts_with = "micro_batches", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(crate) sequences: Option<u64>,
    /// Rounds: each measures --steps steps of every layout.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Predict with the costs of a machine too: a file that `bessemer doctor --machine` wrote.
    #[arg(long, value_name = "FILE", conflicts_with = "paced")]
    pub(crate) machine: Option<String>,
    /// Bandwidth of the slow links, in MB/s.
    #[arg(long, value_name = "MB/S", default_value_t = 50.0)]
    pub(crate) bandwidth: f64,
    /// Latency of the slow links, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.5)]
    pub(crate) latency: f64,
    /// Times that each operator of a layout is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) repeats: u64,
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,
}
