//! Machines of many cores on a command line.

use bessemer_plan::{Cores, ManyCores};
use clap::Args;

/// A machine of many cores, as fast a core as this machine's.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Model the step on a machine of this shape, e.g. 2x4x16 (may be repeated).
    ///
    /// The numbers are sockets, memory nodes per socket, and cores per node.
    #[arg(long = "host", value_name = "SOCKETSxNODESxCORES")]
    pub(crate) hosts: Vec<Cores>,
    /// Memory bandwidth of a node of --host [default: that of this machine].
    #[arg(long, value_name = "GB/S", requires = "hosts", value_parser = bandwidth)]
    node_bandwidth: Option<f64>,
    /// Bandwidth from a node of --host to the others [default: half its own].
    #[arg(long, value_name = "GB/S", requires = "hosts", value_parser = bandwidth)]
    link_bandwidth: Option<f64>,
}

impl HostArgs {
    /// The machines that the command line describes.
    pub fn machines(&self, here: &ManyCores) -> Vec<ManyCores> {
        let node_bandwidth = self.node_bandwidth.unwrap_or(here.node_bandwidth);
        let link_bandwidth = self.link_bandwidth.unwrap_or(node_bandwidth / 2.0);
        self.hosts
            .iter()
            .map(|cores| ManyCores { cores: *cores, node_bandwidth, link_bandwidth, ..*here })
            .collect()
    }
}

/// GB/s, as bytes/s.
fn bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gb) if gb > 0.0 && gb <= 1e6 => Ok(1e9 * gb),
        _ => Err("wanted GB/s, more than 0 and at most 1000000".into()),
    }
}
