//! Costs of the nodes of ranks' lists on a machine, for [`bessemer_sim::replay`].
//!
//! Ranks fill nodes in their order. Devices run collectives and copy nothing for them; collectives inside a node go over the ports
//! of its devices, others over each device's part of the interfaces. Ranks of one process ([`InProcess`](crate::InProcess)) copy
//! values and move them themselves.

use crate::operator::HOP;
use crate::{
    CollectiveChoice, Efficiency, Machine, Spread, SummingSwitches, collective_choice, collective_seconds,
    op_seconds,
};
use bessemer_mesh::Axis;
use bessemer_program::CollectiveKind;
use bessemer_sim::SimError;
use bessemer_sim::replay::{CollectiveSeconds, Medium, MessageSeconds, NodeCosts, ReplayGroup, Traffic};
use bessemer_tensor::op::Op;
use std::collections::BTreeMap;

/// A job's ranks on a machine.
#[derive(Debug, Clone)]
pub struct MachineCosts<'a> {
    machine: &'a Machine,
    efficiency: Efficiency,
    /// Ranks of the job.
    ranks: usize,
    /// Whether collectives in switches are counted.
    counts: bool,
    /// By label of the groups: the collectives so far that switches sum.
    in_switches: BTreeMap<String, CollectiveChoice>,
}

impl<'a> MachineCosts<'a> {
    /// Costs of a job of so many ranks.
    pub fn new(machine: &'a Machine, efficiency: Efficiency, ranks: usize) -> MachineCosts<'a> {
        MachineCosts { machine, efficiency, ranks, counts: false, in_switches: BTreeMap::new() }
    }

    /// The same, which count the collectives that switches sum.
    pub fn counting(self) -> MachineCosts<'a> {
        MachineCosts { counts: true, ..self }
    }

    /// Returns the seconds of the collectives that switches sum, of all that were asked about if they are counted, by label of their groups.
    pub fn in_switches(&self) -> &BTreeMap<String, CollectiveChoice> {
        &self.in_switches
    }

    /// Seconds of a collective over the links.
    fn link_seconds(&mut self, group: &ReplayGroup, traffic: Traffic) -> f64 {
        let (machine, efficiency) = (self.machine, &self.efficiency);
        let (kind, bytes) = (traffic.kind, traffic.bytes as f64);
        let (axis, spread) = (axis(&group.label), self.spread(group));
        if machine.switches == SummingSwitches::default() {
            return collective_seconds(kind, bytes, axis, spread, machine, efficiency);
        }
        let choice = collective_choice(kind, bytes, axis, spread, machine, efficiency);
        let seconds = choice.seconds;
        if self.counts && !choice.switches.is_empty() {
            *self.in_switches.entry(group.label.clone()).or_default() += choice;
        }
        seconds
    }

    fn node(&self, rank: usize) -> usize {
        rank / self.machine.node
    }

    /// Ranks that a node has.
    fn used(&self) -> usize {
        self.ranks.min(self.machine.node)
    }

    fn spread(&self, group: &ReplayGroup) -> Spread {
        let first = group.ranks.first().map_or(0, |rank| self.node(*rank));
        let per_node = group.ranks.iter().filter(|rank| self.node(**rank) == first).count().max(1);
        Spread { ranks: group.ranks.len(), per_node, sharing: (self.used() / per_node).max(1) }
    }
}

/// The axis of a group's label. Groups over several axes of a layer, and those that have none, count as one of them.
fn axis(label: &str) -> Axis {
    let named = Axis::ALL.into_iter().find(|axis| axis.name() == label);
    named.unwrap_or(if label == "tied table" { Axis::Pipeline } else { Axis::Tensor })
}

impl NodeCosts for MachineCosts<'_> {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        Ok(op_seconds(op, self.machine, &self.efficiency))
    }

    fn copy(&mut self, bytes: u64) -> f64 {
        match self.machine.in_process() {
            Some(process) if bytes > 0 => process.copy.of(bytes),
            _ => 0.0,
        }
    }

    fn second_memory(&mut self, bytes: u64) -> f64 {
        self.machine.offload_bandwidth.map_or(0.0, |bandwidth| bytes as f64 / bandwidth)
    }

    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        if let Some(process) = self.machine.in_process() {
            let seconds = process.collective_seconds(traffic.kind, traffic.ranks, traffic.bytes);
            let (processor, link) = if process.spare_cores { (0.0, seconds) } else { (seconds, 0.0) };
            return CollectiveSeconds { processor, link, handoff: process.handoff };
        }
        CollectiveSeconds { processor: 0.0, link: self.link_seconds(group, traffic), handoff: 0.0 }
    }

    fn message(&mut self, [from, to]: [usize; 2], bytes: u64) -> MessageSeconds {
        if let Some(process) = self.machine.in_process() {
            let (send, receive) = (process.send.of(bytes), process.receive.of(bytes));
            return MessageSeconds { send, receive, busy: 0.0, latency: 0.0 };
        }
        let inside = self.node(from) == self.node(to);
        let (per_node, sharing) = if inside { (2, 1) } else { (1, self.used()) };
        let spread = Spread { ranks: 2, per_node, sharing };
        let (kind, axis) = (CollectiveKind::Permute, Axis::Pipeline);
        let seconds = collective_seconds(kind, bytes as f64, axis, spread, self.machine, &self.efficiency);
        let latency = if inside { 0.0 } else { HOP.min(seconds) };
        MessageSeconds { send: 0.0, receive: 0.0, busy: seconds - latency, latency }
    }

    fn medium(&mut self, ranks: &[usize]) -> Medium {
        let first = ranks.first().map(|rank| self.node(*rank));
        match ranks.iter().all(|rank| Some(self.node(*rank)) == first) {
            _ if self.machine.in_process().is_some() => Medium::Own,
            true => Medium::Node,
            false => Medium::Network,
        }
    }

    fn counts(&self) -> bool {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_sim::replay::Progress;

    fn group(label: &str, ranks: Vec<usize>, medium: Medium) -> ReplayGroup {
        ReplayGroup { label: label.into(), number: 0, ranks, progress: Progress::Thread, medium }
    }

    /// Eight ranks a node: neighbours reach each other inside, every eighth rank over the network, which eight such groups share.
    #[test]
    fn where_ranks_lie_decides_what_carries_their_traffic() {
        let machine = Machine::named("a100-80gb").expect("a machine");
        let efficiency = Efficiency::default();
        let mut costs = MachineCosts::new(&machine, efficiency, 64);
        assert_eq!(costs.medium(&[0, 7]), Medium::Node);
        assert_eq!(costs.medium(&[7, 8]), Medium::Network);
        let traffic = |ranks| Traffic::even(CollectiveKind::AllReduce, 1 << 30, ranks);
        let inside = costs.collective(&group("tensor", (8..16).collect(), Medium::Node), traffic(8)).link;
        let across = group("replicate", (0..8).map(|node| 8 * node + 3).collect(), Medium::Network);
        let outside = costs.collective(&across, traffic(8)).link;
        assert!(outside > 10.0 * inside, "{outside} {inside}");
        let spread = Spread { ranks: 8, per_node: 1, sharing: 8 };
        assert_eq!(costs.spread(&across), spread);
        let kind = CollectiveKind::AllReduce;
        let bytes = (1u64 << 30) as f64;
        assert_eq!(outside, collective_seconds(kind, bytes, Axis::Replicate, spread, &machine, &efficiency));
        // A message between nodes has an eighth of the interfaces, and arrives a hop later.
        let MessageSeconds { busy, latency, .. } = costs.message([0, 8], 1 << 20);
        let part = machine.network_bandwidth * efficiency.pipeline_network / 8.0;
        assert!((busy / ((1u64 << 20) as f64 / part) - 1.0).abs() < 1e-12 && latency == HOP);
    }

    /// Sums that switches take are counted by label, and take their time.
    #[test]
    fn sums_in_switches_are_named() {
        let machine = Machine::named("h100-80gb").expect("a machine");
        let forwarding = Machine { switches: SummingSwitches::default(), ..machine.clone() };
        let group = group("tensor", (0..8).collect(), Medium::Node);
        let seconds = |machine: &Machine, kind| {
            let mut costs = MachineCosts::new(machine, Efficiency::default(), 8).counting();
            let twice = [0, 1].map(|_| costs.collective(&group, Traffic::even(kind, 1 << 28, 8)).link);
            (twice[0], costs.in_switches().clone())
        };
        let (with, named) = seconds(&machine, CollectiveKind::AllReduce);
        let (without, none) = seconds(&forwarding, CollectiveKind::AllReduce);
        assert!(none.is_empty() && with < without);
        let expected = CollectiveChoice {
            seconds: 2.0 * with,
            between_devices: 2.0 * without,
            switches: vec![crate::NodeSwitch::NAME],
        };
        assert_eq!(named, BTreeMap::from([("tensor".to_owned(), expected)]));
        assert!(seconds(&machine, CollectiveKind::AllGather).1.is_empty());
    }
}
