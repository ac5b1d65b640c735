//! Collectives as phases of transfers.
//!
//! S is the full buffer of a rank: what an all-reduce sums, what an all-gather leaves, what a rank sends in an all-to-all. All
//! groups of an axis run at once and in step, so that they contend where they share links.

pub mod formulas;
mod rings;
mod switches;
mod tori;
mod trees;

use crate::topology::Topology;
use crate::{ClusterError, Network, Route, Transfer, TransferPhase};

pub use switches::{SlotSwitch, SwitchTrees};

/// Collective operation of a group, or a send to the next rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrafficKind {
    /// The sum of all buffers, everywhere.
    AllReduce,
    /// A shard of the sum on each rank.
    ReduceScatter,
    /// All shards everywhere.
    AllGather,
    /// A different S/n for every other rank.
    AllToAll,
    /// S from each rank to the next, as between pipeline stages.
    Neighbours,
}

impl TrafficKind {
    /// All kinds.
    pub const ALL: [TrafficKind; 5] = [
        TrafficKind::AllReduce,
        TrafficKind::ReduceScatter,
        TrafficKind::AllGather,
        TrafficKind::AllToAll,
        TrafficKind::Neighbours,
    ];

    /// Name in jobs.
    pub fn name(self) -> &'static str {
        match self {
            TrafficKind::AllReduce => "all-reduce",
            TrafficKind::ReduceScatter => "reduce-scatter",
            TrafficKind::AllGather => "all-gather",
            TrafficKind::AllToAll => "all-to-all",
            TrafficKind::Neighbours => "neighbours",
        }
    }
}

/// Algorithm of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveAlgorithm {
    /// Shards travel round a ring (Patarasuk and Yuan 2009).
    Ring,
    /// Recursive halving, then doubling (Thakur, Rabenseifner and Gropp 2005); a power of two of ranks.
    HalvingDoubling,
    /// Whole buffers between partners at doubling distance; a power of two of ranks.
    RecursiveDoubling,
    /// Two complementary binary trees, each for half the buffer, pipelined (Sanders, Speck and Träff 2009).
    DoubleTree,
    /// Within nodes, between equal local ranks, within nodes.
    TwoLevel,
    /// Slices of the buffer that start in each dim of a torus or of a block of it, and travel in both directions.
    Torus,
    /// In each of n - 1 phases rank i sends to rank i + j (mod n).
    Pairwise,
    /// Sums in the switches of a tree (SHARP: Graham et al. 2016).
    SwitchTree,
    /// One message from each rank to the next.
    Direct,
}

impl CollectiveAlgorithm {
    /// All algorithms.
    pub const ALL: [CollectiveAlgorithm; 9] = [
        CollectiveAlgorithm::Ring,
        CollectiveAlgorithm::HalvingDoubling,
        CollectiveAlgorithm::RecursiveDoubling,
        CollectiveAlgorithm::DoubleTree,
        CollectiveAlgorithm::TwoLevel,
        CollectiveAlgorithm::Torus,
        CollectiveAlgorithm::Pairwise,
        CollectiveAlgorithm::SwitchTree,
        CollectiveAlgorithm::Direct,
    ];

    /// Name in jobs.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveAlgorithm::Ring => "ring",
            CollectiveAlgorithm::HalvingDoubling => "halving-doubling",
            CollectiveAlgorithm::RecursiveDoubling => "recursive-doubling",
            CollectiveAlgorithm::DoubleTree => "double-tree",
            CollectiveAlgorithm::TwoLevel => "two-level",
            CollectiveAlgorithm::Torus => "torus",
            CollectiveAlgorithm::Pairwise => "pairwise",
            CollectiveAlgorithm::SwitchTree => "switch-tree",
            CollectiveAlgorithm::Direct => "direct",
        }
    }

    /// Whether the algorithm does this at all.
    pub fn serves(self, kind: TrafficKind) -> bool {
        use CollectiveAlgorithm as A;
        match kind {
            TrafficKind::AllReduce => !matches!(self, A::Pairwise | A::Direct),
            TrafficKind::ReduceScatter | TrafficKind::AllGather => {
                matches!(self, A::Ring | A::HalvingDoubling | A::TwoLevel | A::Torus)
            }
            TrafficKind::AllToAll => self == A::Pairwise,
            TrafficKind::Neighbours => self == A::Direct,
        }
    }
}

/// Most transfers of a collective, which are held in memory.
const MOST_TRANSFERS: u64 = 20_000_000;

/// Expands the collectives of groups of equal size, all at once, into phases.
///
/// # Errors
/// An algorithm that does not do this, or not for groups of this size on this network; more than 20 million transfers.
pub fn expand(
    network: &Network,
    kind: TrafficKind,
    algorithm: CollectiveAlgorithm,
    groups: &[Vec<u32>],
    bytes: f64,
) -> Result<Vec<TransferPhase>, ClusterError> {
    use CollectiveAlgorithm as A;
    let n = groups.first().map_or(0, Vec::len);
    let place = || format!("algorithm {} of {} among {n} ranks", algorithm.name(), kind.name());
    let refuse = |wanted: &str, found: String| {
        Err(ClusterError::value(place(), wanted, found, "leave the algorithm out, and the fastest is taken"))
    };
    if !algorithm.serves(kind) {
        let able: Vec<&str> = A::ALL.iter().filter(|a| a.serves(kind)).map(|a| a.name()).collect();
        return refuse(&format!("one of {}", able.join(", ")), algorithm.name().into());
    }
    if groups.iter().any(|g| g.len() != n) {
        return refuse(
            "groups of equal size",
            format!("{:?}", groups.iter().map(Vec::len).collect::<Vec<_>>()),
        );
    }
    if n < 2 {
        return Ok(Vec::new());
    }
    let transfers = (n as u64).saturating_mul(groups.len() as u64).saturating_mul(match algorithm {
        A::Pairwise => n as u64 - 1,
        A::HalvingDoubling | A::RecursiveDoubling => 2 * u64::from(n.ilog2()),
        // Each slice in each stage, in two directions, there and back.
        A::Torus => match network.topology() {
            Topology::Torus(torus) => 4 * (torus.dims().len() as u64).pow(2),
            _ => 1,
        },
        _ => 1,
    });
    if transfers > MOST_TRANSFERS {
        return refuse(&format!("at most {MOST_TRANSFERS} transfers"), transfers.to_string());
    }
    let power = n.is_power_of_two();
    let each = |one: &dyn Fn(&[u32]) -> Vec<TransferPhase>| merged(groups.iter().map(|g| one(g)));
    Ok(match algorithm {
        A::Ring => each(&|g| rings::ring(g, bytes, rings::rounds(kind, n))),
        A::HalvingDoubling | A::RecursiveDoubling if !power => {
            return refuse("a power of two of ranks", n.to_string());
        }
        A::HalvingDoubling => each(&|g| rings::halving_doubling(g, bytes, kind)),
        A::RecursiveDoubling => each(&|g| rings::recursive_doubling(g, bytes)),
        A::DoubleTree => each(&|g| trees::double_tree(g, bytes)),
        A::Pairwise => each(&|g| rings::pairwise(g, bytes)),
        A::Direct => each(&|g| rings::neighbours(g, bytes)),
        A::TwoLevel => {
            let mut parts = Vec::new();
            for group in groups {
                match rings::two_level(network, group, bytes, kind) {
                    Some(phases) => parts.push(phases),
                    None => {
                        return refuse(
                            "several ranks in each of several nodes, as many in each",
                            "others".into(),
                        );
                    }
                }
            }
            merged(parts.into_iter())
        }
        A::Torus => match network.topology() {
            Topology::Torus(torus) => match tori::torus(torus, groups, bytes, kind) {
                Some(phases) => phases,
                None => {
                    return refuse(
                        "groups that are blocks of the torus: each with the same numbers of coordinates in the same dims",
                        format!("other groups, in dims {:?}", torus.dims()),
                    );
                }
            },
            other => return refuse("a torus", other.name().into()),
        },
        A::SwitchTree => switches::tree_phases(network, groups, bytes)?,
    })
}

/// Phases of several groups, in step.
fn merged(groups: impl Iterator<Item = Vec<TransferPhase>>) -> Vec<TransferPhase> {
    let mut all: Vec<TransferPhase> = Vec::new();
    for phases in groups {
        for (i, phase) in phases.into_iter().enumerate() {
            match all.get_mut(i) {
                Some(same) => {
                    same.depth = same.depth.max(phase.depth);
                    same.flows.extend(phase.flows);
                }
                None => all.push(phase),
            }
        }
    }
    all
}

/// A phase in which messages do not wait for each other.
fn phase(flows: Vec<Transfer>, rounds: u64) -> TransferPhase {
    TransferPhase { flows, rounds, depth: 1 }
}

fn between(from: u32, to: u32, bytes: f64) -> Transfer {
    Transfer { route: Route::Between { from, to }, bytes, messages: 1 }
}
