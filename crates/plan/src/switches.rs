//! Sums within switches: what an all-reduce or a reduce-scatter takes where the switches that join its ranks sum what passes them.
//!
//! - Inside a node each of n devices is in charge of 1/n of the values: it reads the sum of its part, which the switch forms while all
//!   devices send it, and writes the result once, which the switch sends to all. Over a device's link go S + S/n bytes each way in an
//!   all-reduce and S in a reduce-scatter, where a ring sends 2 (n - 1)/n S and (n - 1)/n S (NVLink SHARP: Klenk et al. 2020, "An
//!   in-network architecture for accelerating shared-memory multiprocessor collectives"). With two or three devices a ring is faster.
//! - Between nodes a tree of switches ([`SwitchTrees`], Graham et al. 2016) or one switch with slots ([`SlotSwitch`], Sapio et al. 2021)
//!   takes S bytes of each node once and returns them once.
//!
//! A sum goes through the switches of a level where that is faster than between devices. A reduce-scatter gains no bytes by that, only
//! the steps of the ring. A gather sums nothing.

use bessemer_cluster::collective::{SlotSwitch, SwitchTrees};
use bessemer_program::CollectiveKind;
use bessemer_units::Link;
use serde::{Deserialize, Serialize};

/// Switches of a machine that sum, by what they join. A level without an entry only forwards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummingSwitches {
    /// Switches between the devices of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeSwitch>,
    /// Switches between nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSwitch>,
}

/// Switches inside a node, as NVSwitch since its third generation (NVLink SHARP).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSwitch {
    /// Bytes a second of a device's link in one direction while the switch sums.
    pub bandwidth: f64,
    /// Microseconds of a sum besides its bytes.
    pub base_microseconds: f64,
}

/// Switches between nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NetworkSwitch {
    /// Trees of switches (SHARP).
    Trees {
        /// Levels of switches.
        levels: u32,
        /// Microseconds of a link with its switch.
        hop_microseconds: f64,
        /// Part of the bandwidth of a node that sums in the switches reach.
        share: f64,
        /// Sums of one node that the switches can serve at once; the others wait.
        trees: u32,
        /// Bytes of one sum that a switch can hold while contributions are missing, if that limits it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        buffer_bytes: Option<f64>,
        /// Smaller sums stay between devices.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        least_bytes: Option<f64>,
        /// Most nodes of a sum, if there are more of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes: Option<usize>,
    },
    /// A switch with slots (SwitchML). It sums integers of 32 bits, so that values of 16 bits travel as twice their bytes.
    Slots {
        /// Slots, which the sums of a node share.
        slots: u32,
        /// Bytes of a slot.
        slot_bytes: u32,
        /// Microseconds from a node to the switch.
        hop_microseconds: f64,
        /// Part of the bandwidth of a node that such sums reach.
        share: f64,
        /// Most nodes of a sum: those of a rack.
        nodes: usize,
    },
}

impl NodeSwitch {
    /// Name of the technique in plans.
    pub const NAME: &'static str = "NVLink SHARP";

    /// Seconds of a sum of `bytes` bytes over `ranks` devices; nothing where the collective is no sum.
    pub fn seconds(&self, kind: CollectiveKind, ranks: usize, bytes: f64) -> Option<f64> {
        let carried = match kind {
            CollectiveKind::AllReduce => bytes * (1.0 + 1.0 / ranks as f64),
            CollectiveKind::ReduceScatter => bytes,
            _ => return None,
        };
        Some(self.base_microseconds * 1e-6 + carried / self.bandwidth)
    }
}

impl NetworkSwitch {
    /// Name of the technique in plans.
    pub fn name(&self) -> &'static str {
        match self {
            NetworkSwitch::Trees { .. } => "SHARP",
            NetworkSwitch::Slots { .. } => "SwitchML",
        }
    }

    /// Seconds of a sum of `bytes` bytes over `nodes` nodes; nothing where the collective is no sum, or the switches do not take it.
    /// `sharing` such sums leave each node at the same time, with `bandwidth` bytes a second each.
    pub fn seconds(
        &self,
        kind: CollectiveKind,
        nodes: usize,
        bytes: f64,
        sharing: usize,
        bandwidth: f64,
    ) -> Option<f64> {
        if !matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) {
            return None;
        }
        match *self {
            NetworkSwitch::Trees {
                levels,
                hop_microseconds,
                share,
                trees,
                buffer_bytes,
                least_bytes,
                nodes: most,
            } => {
                if most.is_some_and(|most| nodes > most) || least_bytes.is_some_and(|least| bytes < least) {
                    return None;
                }
                let link = Link { latency: hop_microseconds * 1e-6, bandwidth: bandwidth * share };
                let buffer = buffer_bytes.unwrap_or(f64::INFINITY);
                SwitchTrees { levels, link, trees, buffer }.all_reduce(bytes, sharing as u32).ok()
            }
            NetworkSwitch::Slots { slots, slot_bytes, hop_microseconds, share, nodes: most } => {
                if nodes > most {
                    return None;
                }
                let link = Link { latency: hop_microseconds * 1e-6, bandwidth: bandwidth * share };
                let slots = slots / sharing.max(1) as u32;
                SlotSwitch { slots, packet: slot_bytes, link }.all_reduce(bytes).ok()
            }
        }
    }
}

impl SummingSwitches {
    /// Checks the figures.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = |key: &str, value: f64| match value > 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(format!("switches.{key} is {value}; wanted a number above 0")),
        };
        let part = |share: f64| match share > 0.0 && share <= 1.0 {
            true => Ok(()),
            false => Err(format!("switches.network.share is {share}; wanted a number above 0, at most 1")),
        };
        if let Some(NodeSwitch { bandwidth, base_microseconds }) = self.node {
            positive("node.bandwidth", bandwidth)?;
            positive("node.base_microseconds", base_microseconds)?;
        }
        match self.network {
            None => Ok(()),
            Some(NetworkSwitch::Trees {
                levels,
                hop_microseconds,
                share,
                trees,
                buffer_bytes,
                least_bytes,
                nodes,
            }) => {
                positive("network.levels", levels.into())?;
                positive("network.hop_microseconds", hop_microseconds)?;
                positive("network.trees", trees.into())?;
                positive("network.buffer_bytes", buffer_bytes.unwrap_or(1.0))?;
                positive("network.least_bytes", least_bytes.unwrap_or(1.0))?;
                positive("network.nodes", nodes.unwrap_or(1) as f64)?;
                part(share)
            }
            Some(NetworkSwitch::Slots { slots, slot_bytes, hop_microseconds, share, nodes }) => {
                positive("network.slots", slots.into())?;
                positive("network.slot_bytes", slot_bytes.into())?;
                positive("network.hop_microseconds", hop_microseconds)?;
                positive("network.nodes", nodes as f64)?;
                part(share)
            }
        }
    }
}

/// Seconds of the part of a collective inside nodes, or of the part between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LevelSeconds {
    /// Between devices or nodes.
    pub(crate) endpoints: f64,
    /// By the switches of the level, if they can.
    pub(crate) switches: Option<f64>,
}

impl LevelSeconds {
    /// Seconds of the faster one.
    pub(crate) fn least(self) -> f64 {
        self.switches.map_or(self.endpoints, |switches| switches.min(self.endpoints))
    }

    /// Whether switches are faster.
    pub(crate) fn by_switches(self) -> bool {
        self.switches.is_some_and(|switches| switches < self.endpoints)
    }
}
