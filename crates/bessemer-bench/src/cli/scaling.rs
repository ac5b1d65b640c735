//! `bessemer-bench scaling`.

use super::BenchStepArgs;
use bessemer::HostArgs;
use clap::Args;

/// `bessemer-bench scaling`
#[derive(Debug, Args)]
pub(crate) struct BenchScalingArgs {
    /// The step; --threads is the most.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Machines to model.
    #[command(flatten)]
    pub(crate) host: HostArgs,
}
