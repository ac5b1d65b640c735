//! Sums in the switches: trees of switches with levels (SHARP) and one switch with slots (SwitchML).
//!
//! The gain in bandwidth over a ring tends to 2(n-1)/n, always below 2; the latency falls from O(n) or O(log n) to O(levels).

use crate::topology::Topology;
use crate::{ClusterError, Network, Route, Transfer, TransferPhase, Vertex};
use bessemer_units::Link;
use std::collections::{BTreeMap, BTreeSet};

/// Trees of switches that sum (SHARP: Graham et al. 2016, streaming aggregation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchTrees {
    /// Levels of switches, C.
    pub levels: u32,
    /// Cost of one link.
    pub link: Link,
    /// Trees that switches can serve at the same time; further collectives wait.
    pub trees: u32,
    /// Bytes that a switch can hold for one tree while contributions are missing; infinite where it never limits.
    pub buffer: f64,
}

impl SwitchTrees {
    /// Time of `collectives` all-reduces of the same S bytes that start together, each with links of its own: waves of at most
    /// `trees`, each 2C a + S/B. B is at most what the buffer lets through: buffer bytes each round trip 2C a.
    ///
    /// # Errors
    /// No levels, trees or buffer.
    pub fn all_reduce(&self, bytes: f64, collectives: u32) -> Result<f64, ClusterError> {
        let usable = self.levels > 0 && self.trees > 0 && self.buffer > 0.0 && self.link.bandwidth > 0.0;
        if !usable {
            let found = format!("{self:?}");
            return Err(ClusterError::value(
                "trees of switches",
                "levels, trees, buffer and bandwidth above 0",
                found,
                "a fat-tree has 2 or 3 levels",
            ));
        }
        let round_trip = 2.0 * f64::from(self.levels) * self.link.latency;
        let through_buffer = if round_trip > 0.0 { self.buffer / round_trip } else { f64::INFINITY };
        let bandwidth = self.link.bandwidth.min(through_buffer);
        Ok(f64::from(collectives.div_ceil(self.trees)) * (round_trip + bytes / bandwidth))
    }
}

/// A switch with slots (SwitchML: Sapio et al., NSDI 2021). A worker sends the packet of a slot again when the sum of the slot
/// has come back, so slots bound what is on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotSwitch {
    /// Slots in the memory of the switch.
    pub slots: u32,
    /// Bytes of integers in a packet and a slot.
    pub packet: u32,
    /// From a worker to the switch.
    pub link: Link,
}

impl SlotSwitch {
    /// From the sending of a packet to the arrival of its sum: a up and a down, and the packet itself on the line.
    pub fn round_trip(&self) -> f64 {
        2.0 * self.link.latency + f64::from(self.packet) / self.link.bandwidth
    }

    /// Bytes a second of a worker: min(line rate, slots x packet / round trip).
    pub fn throughput(&self) -> f64 {
        self.link.bandwidth.min(f64::from(self.slots) * f64::from(self.packet) / self.round_trip())
    }

    /// Least number of slots that fill the line: its bandwidth-delay product in packets.
    pub fn slots_of_full_rate(&self) -> u32 {
        (self.link.bandwidth * self.round_trip() / f64::from(self.packet)).ceil() as u32
    }

    /// Time of an all-reduce of S bytes: 2a + S/throughput.
    ///
    /// # Errors
    /// No slots, packets of no bytes, no bandwidth.
    pub fn all_reduce(&self, bytes: f64) -> Result<f64, ClusterError> {
        if self.slots == 0 || self.packet == 0 || self.link.bandwidth <= 0.0 {
            let found = format!("{} slots of {} bytes", self.slots, self.packet);
            return Err(ClusterError::value(
                "switch with slots",
                "slots, packet and bandwidth above 0",
                found,
                "take at least one slot and packets of several hundred bytes",
            ));
        }
        Ok(2.0 * self.link.latency + bytes / self.throughput())
    }
}

/// The trees of switches that sum the groups: each link of a tree carries S once, upward and downward at once. Groups for which
/// a switch has no tree left wait for the next phase.
///
/// # Errors
/// Switches that only forward, or that form no tree above a group.
pub(super) fn tree_phases(
    network: &Network,
    groups: &[Vec<u32>],
    bytes: f64,
) -> Result<Vec<TransferPhase>, ClusterError> {
    let Some(limit) = network.reduction_trees() else {
        return Err(refused(
            "switches that sum",
            "switches that only forward",
            "set network.reduction_trees",
        ));
    };
    let mut waves: Vec<(TransferPhase, BTreeMap<u32, u32>)> = Vec::new();
    for group in groups {
        let (links, depth) = tree(network, group)?;
        let ends = links.iter().flat_map(|l| [network.graph().tail(*l), network.graph().head(*l)]);
        let switches: BTreeSet<u32> = ends.filter(|v| !matches!(network.at(*v), Vertex::Device(_))).collect();
        let free =
            |trees: &BTreeMap<u32, u32>| switches.iter().all(|s| trees.get(s).is_none_or(|n| *n < limit));
        let wave = match waves.iter().position(|(_, trees)| free(trees)) {
            Some(wave) => wave,
            None => {
                waves.push((TransferPhase { flows: Vec::new(), rounds: 1, depth: 0 }, BTreeMap::new()));
                waves.len() - 1
            }
        };
        let (phase, trees) = &mut waves[wave];
        switches.iter().for_each(|s| *trees.entry(*s).or_insert(0) += 1);
        let one = |link: u32| Transfer { route: Route::Links(vec![link]), bytes, messages: 1 };
        phase.flows.extend(links.iter().flat_map(|link| [one(*link), one(*link ^ 1)]));
        phase.depth = phase.depth.max(depth);
    }
    Ok(waves.into_iter().map(|(phase, _)| phase).collect())
}

fn refused(wanted: &str, found: &str, hint: &str) -> ClusterError {
    let place = format!("algorithm {}", super::CollectiveAlgorithm::SwitchTree.name());
    ClusterError::value(place, wanted, found, hint)
}

/// Links downward of the tree above a group, and the links from one device to another over its root.
fn tree(network: &Network, group: &[u32]) -> Result<(BTreeSet<u32>, u32), ClusterError> {
    let inside_node = group.iter().all(|d| network.node_of(*d) == network.node_of(group[0]));
    let levels =
        matches!(network.topology(), Topology::Clos(_) | Topology::RailOptimised(_) | Topology::RailOnly(_));
    if !inside_node && !levels {
        let found = network.topology().name();
        return Err(refused(
            "a network whose switches have levels",
            found,
            "take another algorithm or a fat-tree",
        ));
    }
    let far = group.iter().map(|d| network.distance(group[0], *d)).max().unwrap_or(0);
    let apart = group.iter().copied().find(|d| network.distance(group[0], *d) == far).unwrap_or(group[0]);
    // The root is in the middle of the path to a rank that is farthest away.
    let mut candidates = Vec::new();
    let mut root = group[0];
    for _ in 0..far / 2 {
        network.next_links(root, apart, &mut candidates);
        root = network.graph().head(candidates[0]);
    }
    let reaches = |d: &u32| network.distance(root, *d) <= far / 2;
    if matches!(network.at(root), Vertex::Device(_)) || !group.iter().all(reaches) {
        let hint = "take two-level, or groups with equal local ranks";
        return Err(refused("one switch above every rank of the group", "none", hint));
    }
    let mut links = BTreeSet::new();
    for device in group {
        let mut at = root;
        while at != *device {
            network.next_links(at, *device, &mut candidates);
            links.insert(candidates[0]);
            at = network.graph().head(candidates[0]);
        }
    }
    Ok((links, far))
}
