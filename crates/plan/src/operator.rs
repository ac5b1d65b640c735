//! Seconds of the nodes of a program on a machine: operators by their shapes, collectives by how their ranks lie.
//!
//! A matrix product takes the tiles of [`Efficiency`], attention its multiply-adds at the rate of a fused kernel, every other operator
//! the bytes of its operands: `max(flops/(peak share), bytes/bandwidth) + launch` (Williams et al. 2009, with the measured shares of
//! the peak). Collectives within a node take the machine's all-reduce, of which a reduce-scatter and an all-gather are half; what
//! leaves the node goes round a ring over the interfaces, which the groups of the node share. Where switches sum and are faster, they do.

use crate::switches::LevelSeconds;
use crate::{Efficiency, Machine, NetworkSwitch, NodeSwitch, SummingSwitches};
use bessemer_cluster::collective::formulas::{point_to_point, ring_all_reduce};
use bessemer_mesh::{Axis, Mesh};
use bessemer_program::CollectiveKind;
use bessemer_tensor::View;
use bessemer_tensor::op::Op;
use bessemer_units::Link;

/// Seconds of a message over the network besides its bytes.
pub(crate) const HOP: f64 = 2e-5;

/// Matrix products of one shape: `count` times (M, K) by (K, N).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Products {
    pub(crate) count: f64,
    pub(crate) m: f64,
    pub(crate) n: f64,
    pub(crate) k: f64,
    /// Bytes of an element of an operand.
    pub(crate) element: f64,
}

impl Products {
    fn one([m, n, k]: [usize; 3], element: usize) -> Products {
        Products { count: 1.0, m: m as f64, n: n as f64, k: k as f64, element: element as f64 }
    }

    /// Seconds on a device, without the launch. Each multiprocessor computes one tile at a time, so time goes in whole waves.
    pub(crate) fn seconds(self, machine: &Machine, efficiency: &Efficiency) -> f64 {
        let Products { count, m, n, k, element } = self;
        if let Some(seconds) =
            machine.measured.as_ref().and_then(|found| found.product_seconds([m, n, k], element))
        {
            return count * seconds;
        }
        let processors = machine.multiprocessors as f64;
        let rate = machine.matrix_flops * efficiency.product_share / processors;
        let tiled = |rows: f64, columns: f64, speed: f64| {
            let tiles = (m / rows).ceil() * (n / columns).ceil() * count;
            (tiles / processors).ceil() * 2.0 * rows * columns * (k + efficiency.tile_depth) / (rate * speed)
        };
        let fastest = tiled(256.0, 128.0, 1.0).min(tiled(128.0, 128.0, efficiency.small_tile)).min(tiled(
            64.0,
            64.0,
            efficiency.small_tile * 2.0 / 3.0,
        ));
        let bytes = count * element * (m * k + k * n + m * n);
        fastest.max(bytes / machine.memory_bandwidth)
    }
}

/// Seconds of one launch of an operator on one device: as measured, where the machine has measurements of its like.
pub fn op_seconds(op: &Op, machine: &Machine, efficiency: &Efficiency) -> f64 {
    if let Some(seconds) = machine.measured.as_ref().and_then(|found| found.op_seconds(op)) {
        return seconds;
    }
    let bytes = op.bytes().0 as f64 / machine.memory_bandwidth;
    let product = |shape: [usize; 3], of: &View| {
        Products::one(shape, of.dtype().size()).seconds(machine, efficiency).max(bytes)
    };
    let seconds = match op {
        Op::Linear(linear) => product([linear.x.rows, linear.weight.rows, linear.x.cols], &linear.x),
        Op::LinearBackwardInput(linear) => {
            product([linear.dy.rows, linear.weight.cols, linear.weight.rows], &linear.dy)
        }
        Op::LinearBackwardWeight(linear) => {
            product([linear.dy.cols, linear.x.cols, linear.dy.rows], &linear.dy)
        }
        Op::LogitSums(head) => product([head.x.rows, head.weight.rows, head.x.cols], &head.x),
        Op::LinearCrossEntropy(head) => head_seconds(head.x, head.weight, head.backward.is_some(), product),
        Op::LinearCrossEntropyShard(head) => {
            head_seconds(head.x, head.weight, head.backward.is_some(), product)
        }
        Op::Attention(_) | Op::AttentionBackward(_) | Op::AttentionCached(_) | Op::AttentionSlots(_) => {
            let rate = machine.matrix_flops * efficiency.attention_share;
            (op.flops().0 / rate).max(bytes)
        }
        other => (other.flops().0 / (machine.matrix_flops * efficiency.product_share)).max(bytes),
    };
    seconds + efficiency.kernel_seconds
}

/// The product of the output projection, and with a backward pass those of both gradients.
fn head_seconds(x: View, weight: View, backward: bool, product: impl Fn([usize; 3], &View) -> f64) -> f64 {
    let [tokens, vocabulary, width] = [x.rows, weight.rows, x.cols];
    let forward = product([tokens, vocabulary, width], &x);
    match backward {
        false => forward,
        true => forward + product([tokens, width, vocabulary], &x) + product([vocabulary, width, tokens], &x),
    }
}

/// How the ranks of a group lie on the nodes of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Ranks of the group.
    pub ranks: usize,
    /// Of these, those on one node.
    pub per_node: usize,
    /// Groups of the axis that share the interfaces of a node.
    pub sharing: usize,
}

impl Spread {
    /// The groups of an axis of a mesh whose ranks fill the nodes in their order.
    pub fn of(mesh: &Mesh, axis: Axis, node: usize) -> Spread {
        let ranks = mesh.degree(axis);
        let group = mesh.group(0, &[axis]);
        let per_node = group.iter().filter(|rank| **rank < node).count().max(1);
        let used = mesh.size(&Axis::ALL).min(node);
        Spread { ranks, per_node, sharing: (used / per_node).max(1) }
    }

    /// A group of consecutive ranks.
    pub fn consecutive(ranks: usize, node: usize) -> Spread {
        Spread { ranks, per_node: ranks.min(node), sharing: (node / ranks.min(node)).max(1) }
    }

    /// Nodes of a group.
    pub fn nodes(&self) -> usize {
        self.ranks.div_ceil(self.per_node.max(1))
    }
}

/// Seconds of the part of a collective inside a node, over `ranks` devices.
pub(crate) fn within_node(
    kind: CollectiveKind,
    bytes: f64,
    ranks: usize,
    machine: &Machine,
    efficiency: &Efficiency,
) -> LevelSeconds {
    let sum = machine.all_reduce.seconds(ranks, bytes) * efficiency.all_reduce_factor;
    let switch = machine.switches.node.as_ref().filter(|_| ranks > 1);
    let by_switch = switch.and_then(|switch| switch.seconds(kind, ranks, bytes));
    LevelSeconds {
        endpoints: if kind == CollectiveKind::AllReduce { sum } else { sum / 2.0 },
        switches: by_switch.map(|seconds| seconds * efficiency.all_reduce_factor),
    }
}

/// Seconds of the part of a collective between nodes. `sharing` such collectives leave each node at once, each over `link`.
pub(crate) fn between_nodes(
    kind: CollectiveKind,
    bytes: f64,
    nodes: usize,
    (sharing, link): (usize, Link),
    machine: &Machine,
) -> LevelSeconds {
    let ring = ring_all_reduce(nodes as u32, bytes, link);
    let switch = machine.switches.network.as_ref();
    LevelSeconds {
        endpoints: if kind == CollectiveKind::AllReduce { ring } else { ring / 2.0 },
        switches: switch.and_then(|switch| switch.seconds(kind, nodes, bytes, sharing, link.bandwidth)),
    }
}

/// Seconds of a collective, with what they would be if switches only forwarded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CollectiveChoice {
    /// Seconds of the faster of the switches and the algorithm between devices, at each level.
    pub seconds: f64,
    /// Seconds without sums in switches.
    pub between_devices: f64,
    /// Switches that sum, by name.
    pub switches: Vec<&'static str>,
}

impl std::ops::AddAssign for CollectiveChoice {
    fn add_assign(&mut self, other: CollectiveChoice) {
        self.seconds += other.seconds;
        self.between_devices += other.between_devices;
        self.switches.extend(other.switches);
        self.switches.sort_unstable();
        self.switches.dedup();
    }
}

impl CollectiveChoice {
    /// How many times faster it is than without sums in switches.
    pub fn gain(&self) -> f64 {
        if self.seconds > 0.0 { self.between_devices / self.seconds } else { 1.0 }
    }
}

/// Returns the seconds of a collective over values of `bytes` bytes: of the whole values, for a permutation of what a rank sends. All
/// groups of the axis run at the same time.
pub fn collective_seconds(
    kind: CollectiveKind,
    bytes: f64,
    axis: Axis,
    spread: Spread,
    machine: &Machine,
    efficiency: &Efficiency,
) -> f64 {
    levels(kind, bytes, axis, spread, machine, efficiency).iter().map(|level| level.least()).sum()
}

/// Returns what [`collective_seconds`] takes the least of.
pub fn collective_choice(
    kind: CollectiveKind,
    bytes: f64,
    axis: Axis,
    spread: Spread,
    machine: &Machine,
    efficiency: &Efficiency,
) -> CollectiveChoice {
    let levels = levels(kind, bytes, axis, spread, machine, efficiency);
    let SummingSwitches { network, .. } = &machine.switches;
    let names = [Some(NodeSwitch::NAME), network.as_ref().map(NetworkSwitch::name)];
    let used = levels.iter().zip(names).filter(|(level, _)| level.by_switches());
    CollectiveChoice {
        seconds: levels.iter().map(|level| level.least()).sum(),
        between_devices: levels.iter().map(|level| level.endpoints).sum(),
        switches: used.filter_map(|(_, name)| name).collect(),
    }
}

/// Seconds of a collective inside nodes and between them.
fn levels(
    kind: CollectiveKind,
    bytes: f64,
    axis: Axis,
    spread: Spread,
    machine: &Machine,
    efficiency: &Efficiency,
) -> [LevelSeconds; 2] {
    let none = LevelSeconds { endpoints: 0.0, switches: None };
    if spread.ranks <= 1 || bytes <= 0.0 {
        return [none; 2];
    }
    let share = match axis {
        Axis::Pipeline => efficiency.pipeline_network,
        Axis::Replicate | Axis::Shard => efficiency.data_network,
        _ => efficiency.tensor_network,
    };
    let link = Link { latency: HOP, bandwidth: machine.network_bandwidth * share / spread.sharing as f64 };
    let nodes = spread.nodes();
    if kind == CollectiveKind::Permute {
        let of = |endpoints| LevelSeconds { endpoints, switches: None };
        return match nodes {
            1 => [of(machine.all_reduce.seconds(2, bytes)), none],
            // Each rank of the node sends over its part of the interfaces.
            _ => {
                let bandwidth = link.bandwidth / spread.per_node as f64;
                [none, of(point_to_point(bytes, Link { bandwidth, ..link }))]
            }
        };
    }
    let (inside, outside) = match kind {
        // Each rank has other values for each of the others: those of all ranks of a node leave it.
        CollectiveKind::AllToAll => {
            (bytes * spread.per_node as f64 / spread.ranks as f64, bytes * spread.per_node as f64)
        }
        _ => (bytes, bytes),
    };
    let within = within_node(kind, inside, spread.per_node, machine, efficiency);
    match nodes {
        1 => [within, none],
        _ => [within, between_nodes(kind, outside, nodes, (spread.sharing, link), machine)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_mesh::MeshConfig;

    fn spread(config: MeshConfig, ranks: usize, axis: Axis) -> [usize; 3] {
        let mesh = Mesh::new(&config, ranks).expect("a mesh");
        let Spread { ranks, per_node, sharing } = Spread::of(&mesh, axis, 8);
        [ranks, per_node, sharing]
    }

    /// Tensor-parallel ranks are adjacent: 4 of them twice on a node of 8, so that 4 groups of data-parallel ranks share it.
    #[test]
    fn groups_share_the_interfaces_of_a_node() {
        let config = || {
            MeshConfig::new()
                .with(Axis::Tensor, 4)
                .with(Axis::Replicate, 8)
                .order(&[Axis::Tensor, Axis::Replicate])
        };
        assert_eq!(spread(config(), 32, Axis::Tensor), [4, 4, 2]);
        assert_eq!(spread(config(), 32, Axis::Replicate), [8, 2, 4]);
    }

    #[test]
    fn halves_of_an_all_reduce_take_half_its_time() {
        let machine = Machine::named("a100-80gb").expect("a machine");
        let efficiency = Efficiency::default();
        for ranks in [2, 8, 64] {
            let seconds = |kind| {
                let spread = Spread::consecutive(ranks, machine.node);
                collective_seconds(kind, 1e8, Axis::Shard, spread, &machine, &efficiency)
            };
            let halves = seconds(CollectiveKind::ReduceScatter) + seconds(CollectiveKind::AllGather);
            assert_eq!(halves, seconds(CollectiveKind::AllReduce));
        }
    }

    /// Sixteen ranks on two nodes of eight: each sends half of its values to the other node, through eight interfaces together.
    #[test]
    fn an_exchange_between_nodes_takes_the_values_of_all_ranks_out() {
        let machine = Machine::named("a100-80gb").expect("a machine");
        let (efficiency, bytes) = (Efficiency::default(), 1e10);
        let seconds = |spread| {
            let kind = CollectiveKind::AllToAll;
            collective_seconds(kind, bytes, Axis::Expert, spread, &machine, &efficiency)
        };
        let out = 8.0 * bytes / 2.0 / (machine.network_bandwidth * efficiency.tensor_network);
        let inside = seconds(Spread { ranks: 8, per_node: 8, sharing: 1 });
        let found = seconds(Spread { ranks: 16, per_node: 8, sharing: 1 });
        assert!((found - out - inside / 2.0).abs() < 0.01 * out, "{found}: {out} outside, {inside} inside");
    }
}
