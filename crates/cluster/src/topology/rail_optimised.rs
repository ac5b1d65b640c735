//! Rail-optimised networks: leaf i serves device i of every node of a unit, with spines above.
//!
//! The switches and cables are those of a Clos network; only the hosts are plugged in another order. A unit is as many nodes as
//! a leaf has ports down, so that devices with the same local rank are one switch apart in it.

use super::{Clos, End};
use crate::ClusterError;

/// A Clos network whose leaves serve one local rank each.
#[derive(Debug, Clone, PartialEq)]
pub struct RailOptimised {
    clos: Clos,
    /// Devices of a node.
    rails: u32,
    /// Nodes of a unit.
    unit: u32,
}

impl RailOptimised {
    /// `nodes` nodes with `rails` devices each, on the leaves of `clos`.
    ///
    /// # Errors
    /// Nodes that do not fill whole units.
    pub fn new(clos: Clos, nodes: u32, rails: u32) -> Result<RailOptimised, ClusterError> {
        let leaf = clos.hosts_of_leaf();
        let unit = leaf.min(nodes);
        if !nodes.is_multiple_of(unit) || !leaf.is_multiple_of(unit) {
            return Err(ClusterError::value(
                "nodes of the rail-optimised network",
                format!("a multiple or a divisor of the {leaf} ports that a leaf has for hosts"),
                nodes,
                format!("take {} nodes", nodes.next_multiple_of(leaf)),
            ));
        }
        Ok(RailOptimised { clos, rails, unit })
    }

    /// The network with its hosts in the order of their ports.
    pub fn clos(&self) -> &Clos {
        &self.clos
    }

    /// Port of the network into which a host is plugged.
    pub fn port(&self, host: u32) -> u32 {
        let (node, rail) = (host / self.rails, host % self.rails);
        (node / self.unit * self.rails + rail) * self.unit + node % self.unit
    }

    /// Units.
    fn units(&self) -> u32 {
        self.clos.hosts() / (self.unit * self.rails)
    }

    /// Leaf of a host.
    pub fn leaf(&self, host: u32) -> u32 {
        self.clos.leaf(self.port(host))
    }

    /// Links from a switch to a host without passing through nodes.
    pub fn distance(&self, switch: u32, host: u32) -> u32 {
        self.clos.distance(switch, self.port(host))
    }

    /// The host of a node that is plugged into a leaf.
    pub(crate) fn host_on_leaf(&self, node: u32, leaf: u32) -> Option<u32> {
        if leaf >= self.clos.leaves() {
            return None;
        }
        let port = leaf * self.clos.hosts_of_leaf();
        let hosts = self.unit * self.rails;
        (port / hosts == node / self.unit).then(|| node * self.rails + port % hosts / self.unit)
    }

    /// Links of the longest minimal path. In one unit another rail is reached through the node.
    pub fn diameter(&self) -> u32 {
        if self.units() == 1 && self.rails > 1 { self.clos.diameter().min(4) } else { self.clos.diameter() }
    }

    /// Cables between halves: uplinks of the leaves of half the units, or the hosts of half the nodes of the only one.
    pub fn bisection(&self) -> u64 {
        match self.units() {
            1 => u64::from(self.unit / 2) * u64::from(self.rails),
            units => {
                let leaves = self.unit * self.rails / self.clos.hosts_of_leaf();
                u64::from(units / 2) * u64::from(leaves) * u64::from(self.clos.uplinks_of_leaf())
            }
        }
    }

    pub(crate) fn in_first_half(&self, end: End) -> bool {
        let hosts = self.unit * self.rails;
        match (end, self.units()) {
            (End::Host(host), 1) => host / self.rails < self.unit / 2,
            (End::Switch(_), 1) => false,
            (End::Host(host), units) => host / hosts < units / 2,
            (End::Switch(switch), units) => {
                switch < self.clos.leaves() && switch * self.clos.hosts_of_leaf() / hosts < units / 2
            }
        }
    }

    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        // Which host is in each port.
        let mut plugged = vec![0; self.clos.hosts() as usize];
        for host in 0..self.clos.hosts() {
            plugged[self.port(host) as usize] = host;
        }
        let own = |end| match end {
            End::Host(port) => End::Host(plugged[port as usize]),
            switch @ End::Switch(_) => switch,
        };
        self.clos.emit_cables(&mut |a, b| emit(own(a), own(b)));
    }
}
