//! `bessemer bench scaling`, and the machines of many cores that `bessemer doctor` describes too.

use super::BenchStepArgs;
use bessemer_plan::Cores;
use clap::Args;

/// `bessemer bench scaling`
#[derive(Debug, Args)]
pub(crate) struct BenchScalingArgs {
    /// The step; --threads is the most.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Machines to model.
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// A machine of many cores, as fast a core as this machine's.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Model the step on a machine of so many sockets, memory nodes of a socket and cores of a node, as in 2x4x16 (may be repeated).
    #[arg(long = "host", value_name = "SOCKETSxNODESxCORES")]
    pub(crate) hosts: Vec<Cores>,
    /// Memory bandwidth of a node of these machines; this machine's if left out.
    #[arg(long, value_name = "GB/S", requires = "hosts", value_parser = bandwidth)]
    pub(crate) node_bandwidth: Option<f64>,
    /// Bandwidth between a node and the others; half the node's if left out.
    #[arg(long, value_name = "GB/S", requires = "hosts", value_parser = bandwidth)]
    pub(crate) link_bandwidth: Option<f64>,
}

/// GB/s, as bytes/s.
fn bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gb) if gb > 0.0 && gb <= 1e6 => Ok(1e9 * gb),
        _ => Err("wanted GB/s, more than 0 and at most 1000000".into()),
    }
}
