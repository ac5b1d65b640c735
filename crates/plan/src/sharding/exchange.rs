//! What it costs to bring a value from the layout in which it is made to the one in which it is read.

use crate::{Efficiency, Machine, Spread, collective_seconds};
use bessemer_mesh::formulas::ring;
use bessemer_mesh::{Axis, Mesh, MeshConfig};
use bessemer_program::CollectiveKind;

/// What the ranks along an axis hold of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// All of it.
    Replicate,
    /// Some of its rows.
    Rows,
    /// Some of its columns.
    Columns,
    /// Each a term of a sum.
    Partial,
}

impl Place {
    /// Whether each rank has a part.
    pub fn shards(self) -> bool {
        matches!(self, Place::Rows | Place::Columns)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Place::Replicate => "replicate",
            Place::Rows => "shard(0)",
            Place::Columns => "shard(1)",
            Place::Partial => "partial",
        })
    }
}

/// An axis over which operators may be sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardAxis {
    /// The axis.
    pub axis: Axis,
    /// Its groups.
    pub spread: Spread,
    /// Whether ranks that sum the gradient of a parameter may have parts of its states, as data-parallel ranks do.
    pub shares_states: bool,
}

impl ShardAxis {
    /// Two axes either of which may shard anything: so many neighbouring ranks, and as many groups of them; an axis of one rank is left
    /// out.
    pub fn plane(neighbours: usize, groups: usize, node: usize) -> Vec<ShardAxis> {
        let degrees = [(Axis::Tensor, neighbours), (Axis::Shard, groups)];
        let config = degrees.iter().fold(MeshConfig::new(), |config, (axis, n)| config.with(*axis, *n));
        let Ok(mesh) = Mesh::new(&config, neighbours * groups) else { return Vec::new() };
        let of = |(axis, _): &(Axis, usize)| {
            let spread = Spread::of(&mesh, *axis, node);
            ShardAxis { axis: *axis, spread, shares_states: true }
        };
        degrees.iter().filter(|degree| degree.1 > 1).map(of).collect()
    }

    /// Tensor-parallel ranks, whose gradients are whole or summed once a step.
    pub fn tensor(spread: Spread) -> ShardAxis {
        ShardAxis { axis: Axis::Tensor, spread, shares_states: false }
    }
}

/// Seconds and bytes that a rank sends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// Seconds.
    pub seconds: f64,
    /// Bytes that a rank sends under ring algorithms.
    pub sent: f64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.seconds += other.seconds;
        self.sent += other.sent;
    }
}

impl Traffic {
    /// The price of what cannot be done.
    pub(super) const IMPOSSIBLE: Traffic = Traffic { seconds: f64::INFINITY, sent: 0.0 };
}

/// A machine, and the axes over which its devices share the work.
#[derive(Debug, Clone, Copy)]
pub struct Devices<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The software on it.
    pub efficiency: &'a Efficiency,
    /// The axes.
    pub axes: &'a [ShardAxis],
}

impl Devices<'_> {
    /// Ranks along axis number `axis`.
    pub(super) fn degree(&self, axis: usize) -> usize {
        self.axes[axis].spread.ranks
    }

    /// A collective over values of `bytes` bytes; of an all-to-all those that a rank has.
    pub(super) fn collective(&self, kind: CollectiveKind, axis: usize, bytes: f64) -> Traffic {
        let ShardAxis { axis, spread, .. } = self.axes[axis];
        let seconds = collective_seconds(kind, bytes, axis, spread, self.machine, self.efficiency);
        let rounds = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
        Traffic { seconds, sent: rounds * ring(bytes, spread.ranks) }
    }

    /// Brings a matrix of `bytes` bytes in all from one layout to another: slices first, then reductions, exchanges of rows for columns,
    /// and gathers last, so that each moves as little as it can.
    pub(super) fn exchange(&self, bytes: f64, from: &[Place], to: &[Place]) -> Traffic {
        let axes = || (0..self.axes.len()).map(|axis| (axis, self.degree(axis) as f64, from[axis], to[axis]));
        let mut held = axes().filter(|(_, _, from, _)| from.shards()).fold(bytes, |held, axis| held / axis.1);
        let mut all = Traffic::default();
        for (_, degree, ..) in axes().filter(|(_, _, from, to)| *from == Place::Replicate && to.shards()) {
            held /= degree;
        }
        for (axis, degree, _, to) in axes().filter(|(_, _, from, _)| *from == Place::Partial) {
            match to {
                Place::Partial => {}
                Place::Replicate => all += self.collective(CollectiveKind::AllReduce, axis, held),
                Place::Rows | Place::Columns => {
                    all += self.collective(CollectiveKind::ReduceScatter, axis, held);
                    held /= degree;
                }
            }
        }
        for (axis, ..) in axes().filter(|(_, _, from, to)| from.shards() && to.shards() && from != to) {
            all += self.collective(CollectiveKind::AllToAll, axis, held);
        }
        for (axis, degree, ..) in axes().filter(|(_, _, from, to)| from.shards() && *to == Place::Replicate) {
            held *= degree;
            all += self.collective(CollectiveKind::AllGather, axis, held);
        }
        all
    }
}
