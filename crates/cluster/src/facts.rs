//! Size, cost and power of a network.

use crate::{CableKind, Network, Parts};

/// Counts of a network's parts, and what follows from them.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkFacts {
    /// Devices.
    pub devices: u32,
    /// Nodes.
    pub nodes: u32,
    /// Switches of the network.
    pub switches: u32,
    /// Ports that a switch needs, or a device of a torus.
    pub radix: u32,
    /// Ports of nodes onto the network.
    pub nics: u64,
    /// Cables of the network, those to nodes included.
    pub cables: u64,
    /// Transceivers, two for each cable of the network.
    pub transceivers: u64,
    /// Links from devices to the switches inside their nodes.
    pub node_links: u64,
    /// Links of the longest minimal path between devices.
    pub diameter: u32,
    /// Cables of the network between its two halves.
    pub bisection_cables: u64,
    /// Bytes a second of one direction between the two halves.
    pub bisection_bandwidth: f64,
    /// Bytes of memory that the graph takes.
    pub graph_bytes: usize,
}

/// A sum over parts, and the parts that have no figure.
#[derive(Debug, Clone, PartialEq)]
pub struct PartsTotal {
    /// Dollars or watts.
    pub total: f64,
    /// Parts of which there are some, but no figure.
    pub without: Vec<&'static str>,
}

impl NetworkFacts {
    /// Counts of a network, in closed form.
    pub fn new(network: &Network) -> NetworkFacts {
        let topology = network.topology();
        let several = network.node().devices > 1;
        let shared = network.node().nics < network.node().devices && network.nodes() > 1;
        let diameter = match network.nodes() {
            1 if several => 2,
            _ => topology.diameter() + if shared { 2 } else { 0 },
        };
        let bisection_cables = topology.bisection();
        // One node is halved at its own switch.
        let one_node = network.nodes() == 1 && several;
        let (halves, kind) = match one_node {
            true => (u64::from(network.node().devices / 2), CableKind::Node),
            false => (bisection_cables, CableKind::Fabric),
        };
        let torus = topology.switches() == 0;
        NetworkFacts {
            devices: network.devices(),
            nodes: network.nodes(),
            switches: topology.switches(),
            radix: topology.radix(),
            nics: match torus {
                true => 2 * topology.cables(),
                false => u64::from(network.nodes()) * u64::from(network.node().nics),
            },
            cables: topology.cables(),
            transceivers: 2 * topology.cables(),
            node_links: if several { u64::from(network.devices()) } else { 0 },
            diameter,
            bisection_cables,
            bisection_bandwidth: halves as f64 * network.class(kind).link.bandwidth,
            graph_bytes: network.graph().bytes(),
        }
    }

    /// Dollars of switches, cables, transceivers and ports; `None` if no price is given.
    pub fn cost(&self, parts: &Parts) -> Option<PartsTotal> {
        total(&[
            ("switches", self.switches.into(), parts.switch_usd),
            ("cables", self.cables, parts.cable_usd),
            ("transceivers", self.transceivers, parts.transceiver_usd),
            ("ports of nodes", self.nics, parts.nic_usd),
        ])
    }

    /// Watts of switches, transceivers and ports; `None` if no power is given.
    pub fn power(&self, parts: &Parts) -> Option<PartsTotal> {
        total(&[
            ("switches", self.switches.into(), parts.switch_watts),
            ("transceivers", self.transceivers, parts.transceiver_watts),
            ("ports of nodes", self.nics, parts.nic_watts),
        ])
    }
}

fn total(parts: &[(&'static str, u64, Option<f64>)]) -> Option<PartsTotal> {
    if parts.iter().all(|(_, _, each)| each.is_none()) {
        return None;
    }
    Some(PartsTotal {
        total: parts.iter().map(|(_, count, each)| *count as f64 * each.unwrap_or(0.0)).sum(),
        without: parts
            .iter()
            .filter(|(_, count, each)| *count > 0 && each.is_none())
            .map(|(name, ..)| *name)
            .collect(),
    })
}
