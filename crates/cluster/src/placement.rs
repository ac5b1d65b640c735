//! Placement of the axes of a mesh on a network: which axis gets neighbouring devices.
//!
//! Rank r is on device r, and the order of the axes says which ranks a group has: the groups of an axis are ranks at a distance
//! that is the product of the axes before it, its stride. So the time of a collective of all groups of an axis at once depends on stride and
//! number of ranks alone, and not on the order of the axes before. Times are kept by these two, and as functions of the bytes: a
//! phase ends with the latest of its messages, and a message that shares links fairly takes `seconds a byte x S + latency`.

use crate::collective::{CollectiveAlgorithm, TrafficKind, expand};
use crate::flow::message_times;
use crate::topology::Topology;
use crate::{CableKind, ClusterError, Failures, Network, Router, Routing, TransferPhase};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most messages of an algorithm that are routed; algorithms with more are left out where others are possible.
const MOST_MESSAGES: usize = 1 << 21;
/// Buffer with which messages are simulated; all times are linear in it.
const UNIT: f64 = 1e9;

/// A collective of all groups of an axis in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisExchange {
    /// Collective.
    pub kind: TrafficKind,
    /// Full buffer of a rank in bytes.
    pub bytes: f64,
    /// How often.
    pub count: f64,
}

/// An axis to be placed.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisDemand {
    /// Name in messages.
    pub name: String,
    /// Ranks of a group.
    pub ranks: u32,
    /// Collectives of a step.
    pub exchanges: Vec<AxisExchange>,
}

/// The time of one collective of all groups of an axis at once, for any buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisCost {
    algorithms: Vec<(CollectiveAlgorithm, Vec<PhaseCost>)>,
}

#[derive(Debug, Clone, PartialEq)]
struct PhaseCost {
    rounds: f64,
    /// Seconds a byte and latency of messages of which each may be the latest for some buffer.
    latest: Vec<[f64; 2]>,
}

impl AxisCost {
    /// The fastest algorithm for a buffer of so many bytes, and its seconds; nothing for a group of one rank.
    pub fn best(&self, bytes: f64) -> Option<(CollectiveAlgorithm, f64)> {
        let seconds = |phases: &[PhaseCost]| -> f64 {
            let phase = |p: &PhaseCost| {
                p.latest.iter().map(|[slope, latency]| slope * bytes + latency).fold(0.0, f64::max)
            };
            phases.iter().map(|p| p.rounds * phase(p)).sum()
        };
        self.algorithms.iter().map(|(a, phases)| (*a, seconds(phases))).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Seconds of the fastest algorithm.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.best(bytes).map_or(0.0, |best| best.1)
    }
}

/// Axes in an order, with the time of each.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedAxes {
    /// Indices of the axes, the one with neighbouring devices first.
    pub order: Vec<usize>,
    /// Seconds a step of each axis, by its index.
    pub axis_seconds: Vec<f64>,
    /// Sum of these.
    pub seconds: f64,
}

/// Times of axes on one network, kept for the next question.
#[derive(Debug)]
pub struct Placement<'a> {
    network: &'a Network,
    routing: Routing,
    overhead: f64,
    known: BTreeMap<StridedGroups, Rc<AxisCost>>,
}

/// A collective of groups of `ranks` ranks at distance `stride` among the first `world` devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StridedGroups {
    kind: TrafficKind,
    stride: u32,
    ranks: u32,
    world: u32,
}

impl<'a> Placement<'a> {
    /// Placements on a network on which nothing is dead. `overhead` is what software adds to each message, in seconds.
    pub fn new(network: &'a Network, routing: Routing, overhead: f64) -> Placement<'a> {
        Placement { network, routing, overhead, known: BTreeMap::new() }
    }

    /// Axes whose times were computed so far.
    pub fn computed(&self) -> usize {
        self.known.len()
    }

    /// The time of a collective of all groups of `ranks` ranks at distance `stride` among the first `world` devices, all at once.
    ///
    /// # Errors
    /// More ranks than devices, groups that do not fill the ranks, a collective of so many ranks that no algorithm can be simulated.
    pub fn axis_cost(
        &mut self,
        kind: TrafficKind,
        stride: u32,
        ranks: u32,
        world: u32,
    ) -> Result<Rc<AxisCost>, ClusterError> {
        let block = u64::from(stride) * u64::from(ranks);
        if world > self.network.devices() || block == 0 || !u64::from(world).is_multiple_of(block) {
            return Err(ClusterError::value(
                format!("placement on {}", self.network.name()),
                format!(
                    "at most {} ranks, a multiple of the {block} ranks of an axis and those before it",
                    self.network.devices()
                ),
                world,
                "take other degrees or a larger network",
            ));
        }
        let world = self.closed(block as u32, world);
        let key = StridedGroups { kind, stride, ranks, world };
        if let Some(cost) = self.known.get(&key) {
            return Ok(Rc::clone(cost));
        }
        let cost = Rc::new(self.compute(key)?);
        self.known.insert(key, Rc::clone(&cost));
        Ok(cost)
    }

    /// Devices whose groups are like all others and share no link with them: the least part of the network that messages inside it do
    /// not leave and that blocks of `block` devices fill.
    fn closed(&self, block: u32, world: u32) -> u32 {
        // A hash of the device's number differs from part to part.
        if matches!(self.routing, Routing::Ecmp { .. } | Routing::Valiant { .. }) {
            return world;
        }
        let node = self.network.node();
        let mut parts = vec![node.devices];
        if !matches!(self.network.topology(), Topology::Torus(_)) {
            parts.extend(
                self.network.topology().block_sizes().iter().map(|hosts| hosts * node.devices / node.nics),
            );
        }
        parts.retain(|part| {
            part.is_multiple_of(block) && part.is_multiple_of(node.devices) && world.is_multiple_of(*part)
        });
        parts.into_iter().min().unwrap_or(world)
    }

    fn compute(&self, groups: StridedGroups) -> Result<AxisCost, ClusterError> {
        let StridedGroups { kind, stride, ranks, world } = groups;
        let mut cost = AxisCost { algorithms: Vec::new() };
        if ranks < 2 {
            return Ok(cost);
        }
        let block = stride * ranks;
        let groups: Vec<Vec<u32>> = (0..world / block)
            .flat_map(|b| {
                (0..stride).map(move |offset| (0..ranks).map(|i| b * block + offset + i * stride).collect())
            })
            .collect();
        let failures = Failures::default();
        let mut router = Router::new(self.network, self.routing, &failures);
        let mut refused = None;
        for algorithm in CollectiveAlgorithm::ALL.into_iter().filter(|a| a.serves(kind)) {
            let phases = match expand(self.network, kind, algorithm, &groups, UNIT) {
                Ok(phases) => phases,
                Err(e @ ClusterError::Value { .. }) => {
                    refused = Some(e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let messages: usize = distinct(&phases).map(|(phase, _)| phase.flows.len()).sum();
            if messages > MOST_MESSAGES && !cost.algorithms.is_empty() {
                continue;
            }
            let mut costs: Vec<PhaseCost> = Vec::new();
            for (i, phase) in phases.iter().enumerate() {
                let same = phases[..i]
                    .iter()
                    .position(|other| other.flows == phase.flows && other.depth == phase.depth);
                let latest = match same {
                    Some(other) => costs[other].latest.clone(),
                    None => latest(message_times(&mut router, phase, self.overhead)?),
                };
                costs.push(PhaseCost { rounds: phase.rounds as f64, latest });
            }
            cost.algorithms.push((algorithm, costs));
        }
        match refused {
            Some(e) if cost.algorithms.is_empty() => Err(e),
            _ => Ok(cost),
        }
    }

    /// Seconds a step of an axis with this stride.
    fn axis_seconds(&mut self, axis: &AxisDemand, stride: u32, world: u32) -> Result<f64, ClusterError> {
        let mut seconds = 0.0;
        for exchange in &axis.exchanges {
            seconds += exchange.count
                * self.axis_cost(exchange.kind, stride, axis.ranks, world)?.seconds(exchange.bytes);
        }
        Ok(seconds)
    }

    /// Times of axes in a given order, the first with neighbouring devices.
    ///
    /// # Errors
    /// The errors of [`Placement::axis_cost`].
    pub fn place(&mut self, axes: &[AxisDemand], order: &[usize]) -> Result<PlacedAxes, ClusterError> {
        let world = self.world(axes)?;
        let mut placed =
            PlacedAxes { order: order.to_vec(), axis_seconds: vec![0.0; axes.len()], seconds: 0.0 };
        let mut stride = 1;
        for &index in order {
            placed.axis_seconds[index] = self.axis_seconds(&axes[index], stride, world)?;
            placed.seconds += placed.axis_seconds[index];
            stride *= axes[index].ranks;
        }
        Ok(placed)
    }

    /// The order of least time. `keep_last` axes at the end of the list stay the outermost in their order.
    ///
    /// The time of an axis depends on which axes come before it and not on their order, so the best order of each set of axes is
    /// found from those of its subsets: all orders are covered by 2^k sets. A set is left out when its time and the least that
    /// the other axes can take are no better than the order as given.
    ///
    /// # Errors
    /// Those of [`Placement::axis_cost`]; more than 12 axes.
    pub fn best_order(&mut self, axes: &[AxisDemand], keep_last: usize) -> Result<PlacedAxes, ClusterError> {
        let world = self.world(axes)?;
        let free = axes.len().saturating_sub(keep_last);
        if free > 12 {
            return Err(ClusterError::value(
                "axes to be placed",
                "at most 12",
                free,
                "join axes that belong together",
            ));
        }
        let given: Vec<usize> = (0..axes.len()).collect();
        let mut best = self.place(axes, &given)?;
        let last: f64 = best.axis_seconds[free..].iter().sum();
        let least: Vec<f64> = axes[..free].iter().map(|axis| self.least_seconds(axis)).collect();
        let members = |set: usize| (0..free).filter(move |axis| set >> axis & 1 == 1);
        // Best time of each set and the axis that comes last in it.
        let mut sets: Vec<Option<(f64, usize)>> = vec![None; 1 << free];
        sets[0] = Some((0.0, 0));
        for set in 0..sets.len() {
            let Some((seconds, _)) = sets[set] else { continue };
            let rest: f64 = (0..free).filter(|axis| set >> axis & 1 == 0).map(|axis| least[axis]).sum();
            // An order that is only as good as the one as given is not looked for.
            if set != 0 && seconds + rest + last >= best.seconds {
                continue;
            }
            let stride: u32 = members(set).map(|axis| axes[axis].ranks).product();
            for axis in (0..free).filter(|axis| set >> axis & 1 == 0) {
                let with = seconds + self.axis_seconds(&axes[axis], stride, world)?;
                let next = &mut sets[set | 1 << axis];
                if next.is_none_or(|(other, _)| with < other) {
                    *next = Some((with, axis));
                }
            }
        }
        let whole = sets.len() - 1;
        if let Some((seconds, _)) = sets[whole].filter(|found| found.0 + last < best.seconds) {
            let (mut order, mut set) = (Vec::new(), whole);
            while let Some((_, axis)) = sets[set].filter(|_| set != 0) {
                order.push(axis);
                set &= !(1 << axis);
            }
            order.reverse();
            order.extend(free..axes.len());
            debug_assert!(seconds.is_finite());
            best = self.place(axes, &order)?;
        }
        Ok(best)
    }

    /// Ranks of a job.
    fn world(&self, axes: &[AxisDemand]) -> Result<u32, ClusterError> {
        let devices = self.network.devices();
        let world = axes
            .iter()
            .try_fold(1u32, |n, axis| n.checked_mul(axis.ranks).filter(|n| (1..=devices).contains(n)));
        world.ok_or_else(|| {
            let found = axes
                .iter()
                .map(|axis| format!("{} {}", axis.name, axis.ranks))
                .collect::<Vec<_>>()
                .join(" x ");
            let place = format!("placement on {}", self.network.name());
            ClusterError::value(
                place,
                format!("1 to {devices} ranks, one a device"),
                found,
                "take smaller degrees",
            )
        })
    }

    /// Seconds that an axis takes at least wherever it is: what leaves a device, over all of its links at once.
    fn least_seconds(&self, axis: &AxisDemand) -> f64 {
        let n = f64::from(axis.ranks);
        let network = self.network;
        let leaving =
            network.graph().leaving(0).iter().map(|link| network.link(*link).bandwidth).sum::<f64>();
        let part = match axis.ranks {
            0 | 1 => 0.0,
            _ => (n - 1.0) / n / leaving.max(network.class(CableKind::Host).link.bandwidth),
        };
        axis.exchanges.iter().map(|e| e.count * e.bytes * part).sum()
    }
}

/// Phases that no earlier phase is like, with their places.
fn distinct(phases: &[TransferPhase]) -> impl Iterator<Item = (&TransferPhase, usize)> {
    (phases.iter().enumerate())
        .filter(|(i, phase)| {
            !phases[..*i].iter().any(|other| other.flows == phase.flows && other.depth == phase.depth)
        })
        .map(|(i, phase)| (phase, i))
}

/// Messages of which each is the latest for some buffer: for growing latency, those with more seconds a byte than any with more latency.
fn latest(mut times: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    times.iter_mut().for_each(|[slope, _]| *slope /= UNIT);
    times.sort_by(|a, b| b[1].total_cmp(&a[1]).then(b[0].total_cmp(&a[0])));
    let mut kept: Vec<[f64; 2]> = Vec::new();
    for time in times {
        if kept.last().is_none_or(|last| time[0] > last[0]) {
            kept.push(time);
        }
    }
    kept
}
