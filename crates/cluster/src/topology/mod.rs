//! Topologies: how hosts are joined by switches, one topology a file.
//!
//! A topology knows distances in closed form. Routes need no table: a link lies on a minimal path where it leads one step
//! nearer ([`crate::Network::next_links`]). Sizes and bisections are closed forms too; the tests count them on the graph.

mod clos;
mod dragonfly;
mod rail_only;
mod rail_optimised;
mod torus;

pub use clos::Clos;
pub use dragonfly::Dragonfly;
pub use rail_only::RailOnly;
pub use rail_optimised::RailOptimised;
pub use torus::Torus;

/// Most hosts of a network.
pub(crate) const MOST_HOSTS: u64 = 1 << 20;
/// Most cables of a network, with those inside nodes: half a gigabyte of graph.
pub(crate) const MOST_CABLES: u64 = 1 << 24;

/// End of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A port of a node.
    Host(u32),
    /// A switch of the network.
    Switch(u32),
}

/// How the ports of nodes are joined. Hosts are numbered node by node.
#[derive(Debug, Clone, PartialEq)]
pub enum Topology {
    /// No network: the machine is one node.
    None,
    /// Fat-tree of any number of levels; one level is a single switch.
    Clos(Clos),
    /// Groups of routers, each group one cable from every other.
    Dragonfly(Dragonfly),
    /// A grid of devices that is closed in every dim.
    Torus(Torus),
    /// A separate Clos network for each local rank.
    RailOnly(RailOnly),
    /// A Clos network whose leaves serve one local rank each.
    RailOptimised(RailOptimised),
}

impl Topology {
    /// Name in descriptions.
    pub fn name(&self) -> &'static str {
        match self {
            Topology::None => "none",
            Topology::Clos(clos) if clos.levels() == 1 => "switch",
            Topology::Clos(_) => "fat-tree",
            Topology::Dragonfly(_) => "dragonfly",
            Topology::Torus(_) => "torus",
            Topology::RailOnly(_) => "rail-only",
            Topology::RailOptimised(_) => "rail-optimised",
        }
    }

    /// Switches of the network.
    pub fn switches(&self) -> u32 {
        match self {
            Topology::None | Topology::Torus(_) => 0,
            Topology::Clos(t) => t.switches(),
            Topology::Dragonfly(t) => t.routers(),
            Topology::RailOnly(t) => t.switches(),
            Topology::RailOptimised(t) => t.clos().switches(),
        }
    }

    /// Ports that a switch needs; for a torus those of a device.
    pub fn radix(&self) -> u32 {
        match self {
            Topology::None => 0,
            Topology::Clos(t) => t.ports(),
            Topology::Dragonfly(t) => t.radix(),
            Topology::Torus(t) => t.radix(),
            Topology::RailOnly(t) => t.rail().ports(),
            Topology::RailOptimised(t) => t.clos().ports(),
        }
    }

    /// Cables of the network in closed form, those of the hosts included.
    pub fn cables(&self) -> u64 {
        match self {
            Topology::None => 0,
            Topology::Clos(t) => t.cables(),
            Topology::Dragonfly(t) => t.cables(),
            Topology::Torus(t) => t.cables(),
            Topology::RailOnly(t) => t.cables(),
            Topology::RailOptimised(t) => t.clos().cables(),
        }
    }

    /// Links of the longest minimal path between hosts, in closed form.
    pub fn diameter(&self) -> u32 {
        match self {
            Topology::None => 0,
            Topology::Clos(t) => t.diameter(),
            Topology::Dragonfly(t) => t.diameter(),
            Topology::Torus(t) => t.diameter(),
            Topology::RailOnly(t) => t.diameter(),
            Topology::RailOptimised(t) => t.diameter(),
        }
    }

    /// Cables between the two halves of the hosts, in closed form.
    pub fn bisection(&self) -> u64 {
        match self {
            Topology::None => 0,
            Topology::Clos(t) => t.bisection(),
            Topology::Dragonfly(t) => t.bisection(),
            Topology::Torus(t) => t.bisection(),
            Topology::RailOnly(t) => t.bisection(),
            Topology::RailOptimised(t) => t.bisection(),
        }
    }

    /// Whether an end belongs to the first half.
    pub fn in_first_half(&self, end: End) -> bool {
        match self {
            Topology::None => false,
            Topology::Clos(t) => t.in_first_half(end),
            Topology::Dragonfly(t) => t.in_first_half(end),
            Topology::Torus(t) => t.in_first_half(end),
            Topology::RailOnly(t) => t.in_first_half(end),
            Topology::RailOptimised(t) => t.in_first_half(end),
        }
    }

    /// Passes every cable to `emit`.
    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        match self {
            Topology::None => {}
            Topology::Clos(t) => t.emit_cables(emit),
            Topology::Dragonfly(t) => t.emit_cables(emit),
            Topology::Torus(t) => t.emit_cables(emit),
            Topology::RailOnly(t) => t.emit_cables(emit),
            Topology::RailOptimised(t) => t.emit_cables(emit),
        }
    }

    /// Switch to which a host is attached; `None` where hosts are attached to each other.
    pub fn leaf(&self, host: u32) -> Option<u32> {
        match self {
            Topology::None | Topology::Torus(_) => None,
            Topology::Clos(t) => Some(t.leaf(host)),
            Topology::Dragonfly(t) => Some(t.router(host)),
            Topology::RailOnly(t) => Some(t.leaf(host)),
            Topology::RailOptimised(t) => Some(t.leaf(host)),
        }
    }

    /// Links of a minimal path from a switch to a host that stays in the network; `None` if there is none.
    pub(crate) fn distance(&self, switch: u32, host: u32) -> Option<u32> {
        match self {
            Topology::None | Topology::Torus(_) => None,
            Topology::Clos(t) => Some(t.distance(switch, host)),
            Topology::Dragonfly(t) => Some(t.distance(switch, host)),
            Topology::RailOnly(t) => t.distance(switch, host),
            Topology::RailOptimised(t) => Some(t.distance(switch, host)),
        }
    }

    /// Level of a switch, leaves 0; for pictures and for naming parts.
    pub fn level(&self, switch: u32) -> u32 {
        match self {
            Topology::None | Topology::Torus(_) | Topology::Dragonfly(_) => 0,
            Topology::Clos(t) => t.level(switch) - 1,
            Topology::RailOnly(t) => t.rail().level(switch % t.rail().switches()) - 1,
            Topology::RailOptimised(t) => t.clos().level(switch) - 1,
        }
    }

    /// Numbers of hosts with which a node must be aligned, so that its ports have the same distance to every other node.
    pub(crate) fn block_sizes(&self) -> Vec<u32> {
        match self {
            Topology::Clos(t) => t.block_sizes(),
            Topology::Dragonfly(t) => t.block_sizes(),
            _ => Vec::new(),
        }
    }
}
