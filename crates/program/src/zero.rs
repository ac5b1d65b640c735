//! The pass `zero`: places gathers of parameters' values and reductions of gradients over the data-parallel axes
//! (Rajbhandari et al. 2020, ZeRO; Zhao et al. 2023, PyTorch FSDP).
//!
//! Parameters that are used together are communicated as one vector, a [`FlatParameter`]. Its [`Residence`]s define the layouts of the
//! vector and its gradients between passes, and the transfers follow from the difference to the reads and results of a pass:
//!
//! | at rest | a pass | transfer |
//! |---|---|---|
//! | values sharded | reads them whole | all-gather before the first read, one ahead of the unit that computes |
//! | gradients replicated | leaves one term a rank | all-reduce |
//! | gradients sharded, perhaps over one rank | leaves one term a rank | reduce-scatter in every pass, added to earlier sums; a replicate axis sums the parts after the last |
//! | gradients replicated, the update sharded | leaves one term a rank | reduce-scatter after the last pass |
//! | values replicated, the update sharded | – | all-gather after the update |
//!
//! A transfer of gradients starts after the last unit of the pass that writes them, so a tied token table is sent after the
//! embedding. Where passes complete their reductions, one is in flight at a time, concurrently with the units up to the next one: so the terms
//! that are added to earlier sums need memory for the largest of them only. No bit depends on the position of a transfer.
//!
//! Gradients are sent as they are stored, or in 8 bits ([`DataProgram::reduce_dtype`]). Then a reduce-scatter is one all-to-all of codes and
//! scales, which every rank decodes and sums in f32 in the order of the ranks; an all-reduce is that, and an all-gather of the sums,
//! encoded again, so that all ranks decode the same bytes (Wang et al. 2023, ZeRO++, section 3.3).

use crate::node::CollectiveKind;
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use bessemer_mesh::{Axis, Layout, Placement, even};
use bessemer_tensor::op::{Access, GRADIENT_BLOCK, quantised_bytes};
use bessemer_units::{DType, ReduceDType};

/// Most elements of a flat parameter that one collective moves: 32 MiB in f32.
pub const BUCKET: usize = 8 << 20;

/// Pieces of at most [`BUCKET`] elements that travel at once, each through a staging buffer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PiecesInFlight {
    /// Pieces of values of parameters that are gathered.
    pub values: usize,
    /// Pieces of gradients that are reduced.
    pub gradients: usize,
}

impl PiecesInFlight {
    /// Two of values, three of gradients.
    pub const DEFAULT: PiecesInFlight = PiecesInFlight { values: 2, gradients: 3 };
}

impl Default for PiecesInFlight {
    fn default() -> PiecesInFlight {
        PiecesInFlight::DEFAULT
    }
}

/// Most elements of one rank's part of a flat parameter that one collective moves, if `ranks` ranks have such a part and it moves
/// `most` of all: whole blocks where it has several.
pub fn piece_width(most: usize, ranks: usize) -> usize {
    let width = (most / ranks).max(1);
    if width > GRADIENT_BLOCK { width - width % GRADIENT_BLOCK } else { width }
}

/// Layout and memory of a vector between passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residence {
    /// Element type.
    pub dtype: DType,
    /// Layout of the one dim over the axes shard and replicate. Gradients that rest replicated are this rank's terms until the last
    /// pass of an update; sharded ones are the sum of the passes so far.
    pub layout: Layout,
    /// Number of the memory that contains the whole vector while a unit uses it; vectors of one number alternate in it.
    pub place: usize,
}

fn sharded(layout: &Layout) -> bool {
    matches!(layout.at(Axis::Shard), Placement::Shard { .. })
}

/// Parameters that travel as one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatParameter {
    /// "root", "layers.3".
    pub name: String,
    /// Number of its group, of which [`DataProgram::groups`] has this rank's position.
    pub group: usize,
    /// Elements that each rank of the shard axis keeps where the vector is sharded.
    pub parts: Vec<usize>,
    /// Values.
    pub values: Residence,
    /// Gradients; frozen parameters have none.
    pub gradients: Option<Residence>,
    /// Layout of the parameters that the optimizer updates, and of the gradients that it reads.
    pub updated: Layout,
    /// Elements of the gradients that a pass leaves as terms of a sum over the tensor axis.
    pub partial: usize,
}

impl FlatParameter {
    /// Elements.
    pub fn len(&self) -> usize {
        self.parts.iter().sum()
    }

    /// True if it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A rank's position among the data-parallel ranks of a group of parameters. In transfers [`Axis::Shard`] denotes the ranks over
/// which the group is sharded, and [`Axis::Replicate`] those that have replicas of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRank {
    /// Number of the ranks over which it is sharded, and index among them.
    pub shard: (usize, usize),
    /// Number of the ranks with replicas, and index among them.
    pub replicate: (usize, usize),
}

/// A collective over one flat parameter: of its values if it gathers, else of its gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// The axis whose ranks take part.
    pub axis: Axis,
    /// Number of the flat parameter.
    pub flat: usize,
    /// The result is one term, in memory of its own, for [`PassNode::Add`].
    pub term: bool,
    /// Type in which the elements travel. Values always travel as they are stored.
    pub dtype: ReduceDType,
}

impl Transfer {
    /// Bytes that a rank sends under ring algorithms.
    pub fn bytes_sent(&self, flat: &FlatParameter, rank: DataRank) -> u64 {
        let (degree, index) = if self.axis == Axis::Shard { rank.shard } else { rank.replicate };
        if self.dtype == ReduceDType::Int8 {
            return self.quantised_bytes_sent(flat, rank) as u64;
        }
        let gradients = || flat.gradients.as_ref().unwrap_or(&flat.values);
        let residence = if self.kind == CollectiveKind::AllGather { &flat.values } else { gradients() };
        let elements = match self.kind {
            CollectiveKind::AllGather => flat.len() - flat.parts[(index + 1) % degree],
            CollectiveKind::ReduceScatter => flat.len() - flat.parts[index],
            _ => {
                let own = sharded(&flat.updated) && self.axis == Axis::Replicate;
                let all = if own { flat.parts[rank.shard.1] } else { flat.len() };
                2 * all - even(all, degree, index).len - even(all, degree, (index + 1) % degree).len
            }
        };
        (elements * residence.dtype.size()) as u64
    }

    /// [`Transfer::bytes_sent`] of gradients in 8 bits. Blocks begin anew in every rank's part of every piece.
    fn quantised_bytes_sent(&self, flat: &FlatParameter, rank: DataRank) -> usize {
        let (degree, index) = if self.axis == Axis::Shard { rank.shard } else { rank.replicate };
        let others = |bytes: &dyn Fn(usize) -> usize| (0..degree).filter(|r| *r != index).map(bytes).sum();
        if self.kind == CollectiveKind::ReduceScatter {
            return others(&|other| quantised_bytes(flat.parts[other]));
        }
        let own = sharded(&flat.updated) && self.axis == Axis::Replicate;
        let all = if own { flat.parts[rank.shard.1] } else { flat.len() };
        let width = piece_width(BUCKET, flat.parts.len());
        let piece = |elements: usize| -> usize {
            let bytes = |rank: usize| quantised_bytes(even(elements, degree, rank).len);
            // The all-to-all of all parts but the own one, the all-gather of all but the next rank's.
            let next = (index + 1) % degree;
            let gathered: usize = (0..degree).filter(|r| *r != next).map(bytes).sum();
            others(&bytes) + gathered
        };
        all / width * piece(width) + piece(all % width)
    }
}

/// One entry of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassNode {
    /// The unit of this number runs its list of the pass's phase.
    Unit(usize),
    /// Gradients of these flat parameters that are terms of sums over the tensor axis become the sums.
    Complete(Vec<usize>),
    /// A transfer begins. Its source is read before the next entry: the memory may be written from then on.
    Start(Transfer),
    /// A transfer that has begun is complete.
    Wait(Transfer),
    /// An operator adds the received term of this flat parameter's gradients to the sum of earlier passes, on this rank's
    /// part of them.
    Add(usize),
}

/// Traffic of the gradients of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GradientTraffic {
    /// The gradients stay: more passes add to them, or the pass makes none.
    Stay,
    /// The gradients are sent; [`DataProgram::finish`] waits for them.
    Leave,
    /// The gradients are sent, and the pass ends when this rank has its part of their sum. It is the first pass of an update.
    Settle,
    /// The same as [`GradientTraffic::Settle`], in a later pass: the part is added to the sum of earlier passes.
    Accumulate,
}

impl GradientTraffic {
    /// All kinds of traffic, in the order of their numbers.
    pub const ALL: [GradientTraffic; 4] =
        [GradientTraffic::Stay, GradientTraffic::Leave, GradientTraffic::Settle, GradientTraffic::Accumulate];

    /// Whether the pass ends with the sums of its gradients.
    fn settles(self) -> bool {
        matches!(self, GradientTraffic::Settle | GradientTraffic::Accumulate)
    }
}

/// The flat parameters that a unit's list reads, and those whose gradients it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitUse {
    /// Number of the unit.
    pub unit: usize,
    /// Flat parameters, ascending.
    pub reads: Vec<usize>,
    /// Flat parameters, ascending.
    pub writes: Vec<usize>,
}

impl UnitUse {
    /// Returns the flat parameters that a list uses; `flat_of` gives the flat parameter of each of the unit's parameters.
    pub fn of(unit: usize, program: &UnitProgram, phase: Phase, flat_of: &dyn Fn(usize) -> usize) -> UnitUse {
        let mut of = UnitUse { unit, reads: Vec::new(), writes: Vec::new() };
        for touch in program.list(phase).iter().flat_map(|node| node.touches()) {
            match (program.values[touch.value()].class, touch.access) {
                (Class::Parameter(p), _) => of.reads.push(flat_of(p)),
                (Class::Gradient(p), Access::Write | Access::Update) => of.writes.push(flat_of(p)),
                _ => {}
            }
        }
        of.sort();
        of
    }

    /// Adds the uses of another list of the unit.
    pub fn add(&mut self, other: UnitUse) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.sort();
    }

    fn sort(&mut self) {
        for list in [&mut self.reads, &mut self.writes] {
            list.sort_unstable();
            list.dedup();
        }
    }
}

/// Flat parameters of a stage on one rank, from which the transfers between its units follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataProgram {
    /// The stage's flat parameters.
    pub flats: Vec<FlatParameter>,
    /// Position of this rank among the data-parallel ranks, by group of parameters.
    pub groups: Vec<DataRank>,
    /// Type in which gradients travel.
    pub reduce_dtype: ReduceDType,
}

impl DataProgram {
    /// The entries of a pass over `units`, in their order. `under_way`: the first gather has been started by the preceding pass.
    /// `next`: the flat parameter that the next pass reads first, if that follows directly.
    pub fn pass(
        &self,
        units: &[UnitUse],
        traffic: GradientTraffic,
        under_way: bool,
        next: Option<usize>,
    ) -> Vec<PassNode> {
        let mut gathers: Vec<(usize, Transfer)> = Vec::new();
        for (at, unit) in units.iter().enumerate() {
            let sharded = unit.reads.iter().filter(|flat| self.gathered(**flat));
            gathers.extend(sharded.map(|flat| (at, gather(*flat))));
        }
        let behind = next.filter(|flat| self.gathered(*flat)).map(|flat| (units.len(), gather(flat)));
        let mut starts = gathers.iter().copied().chain(behind).map(|(_, transfer)| transfer);
        let mut ahead = if under_way { starts.next() } else { None };
        let mut nodes = Vec::with_capacity(units.len() + 2 * gathers.len());
        let mut reducing = None;
        for (at, unit) in units.iter().enumerate() {
            for (_, transfer) in gathers.iter().filter(|(of, _)| *of == at) {
                if ahead.take() != Some(*transfer) {
                    nodes.extend(starts.next().map(PassNode::Start));
                }
                nodes.push(PassNode::Wait(*transfer));
            }
            if ahead.is_none() {
                ahead = starts.next();
                nodes.extend(ahead.map(PassNode::Start));
            }
            nodes.push(PassNode::Unit(unit.unit));
            if traffic != GradientTraffic::Stay {
                let last = |flat: &usize| !units[at + 1..].iter().any(|later| later.writes.contains(flat));
                let ready: Vec<usize> = unit.writes.iter().copied().filter(last).collect();
                self.leave(&ready, traffic, &mut reducing, &mut nodes);
            }
        }
        nodes.extend(reducing.into_iter().flat_map(completion));
        nodes
    }

    /// Starts the reduction of the gradients of all units, in the order of the backward pass over `units`, where no pass has done it.
    pub fn reduce(&self, units: &[UnitUse]) -> Vec<PassNode> {
        let entries = self.pass(units, GradientTraffic::Leave, false, None);
        let mine = |node: &PassNode| reduction(node).is_some() || matches!(node, PassNode::Complete(_));
        entries.into_iter().filter(mine).collect()
    }

    /// Completes the gradients of an update: waits for those that left in [`GradientTraffic::Leave`] or by
    /// [`DataProgram::reduce`], and sums the parts of replicas.
    pub fn finish(&self, units: &[UnitUse]) -> Vec<PassNode> {
        let left = self.reduce(units).into_iter().filter_map(|node| reduction(&node));
        let left = left.filter(|transfer| !self.settles(transfer.flat));
        let mut nodes: Vec<PassNode> = left.map(PassNode::Wait).collect();
        let trained = (0..self.flats.len()).filter(|flat| self.flats[*flat].gradients.is_some());
        for transfer in trained.filter_map(|flat| self.second_reduction(flat)) {
            nodes.extend([PassNode::Start(transfer), PassNode::Wait(transfer)]);
        }
        nodes
    }

    /// Makes values whole after the update of this rank's parts, where they rest whole.
    pub fn spread(&self) -> Vec<PassNode> {
        let both = |flat: usize| [PassNode::Start(gather(flat)), PassNode::Wait(gather(flat))];
        (0..self.flats.len()).filter(|flat| self.spreads(*flat)).flat_map(both).collect()
    }

    /// Whether values are whole between passes and the optimizer updates this rank's part of them only.
    pub fn spreads(&self, flat: usize) -> bool {
        let (rank, flat) = (self.rank(flat), &self.flats[flat]);
        let updates = flat.gradients.is_some();
        updates && rank.shard.0 > 1 && sharded(&flat.updated) && !sharded(&flat.values.layout)
    }

    /// Whether gradients are reduced in every pass.
    pub fn settles(&self, flat: usize) -> bool {
        self.flats[flat].gradients.as_ref().is_some_and(|gradients| sharded(&gradients.layout))
    }

    /// Position of this rank in the group of a flat parameter.
    pub fn rank(&self, flat: usize) -> DataRank {
        self.groups[self.flats[flat].group]
    }

    /// Whether a pass has only this rank's part of the values.
    pub fn gathered(&self, flat: usize) -> bool {
        self.rank(flat).shard.0 > 1 && sharded(&self.flats[flat].values.layout)
    }

    /// The first reduction of a flat parameter's gradients, if they are reduced at all.
    pub fn first_reduction(&self, flat: usize) -> Option<Transfer> {
        let rank = self.rank(flat);
        let (kind, axis) = match (rank.shard.0 > 1, rank.replicate.0 > 1) {
            _ if self.settles(flat) => (CollectiveKind::ReduceScatter, Axis::Shard),
            (true, _) if sharded(&self.flats[flat].updated) => (CollectiveKind::ReduceScatter, Axis::Shard),
            (true, _) => (CollectiveKind::AllReduce, Axis::Shard),
            (false, true) => (CollectiveKind::AllReduce, Axis::Replicate),
            (false, false) => return None,
        };
        // One rank rounds nothing.
        let alone = rank.shard.0 == 1 && axis == Axis::Shard;
        let dtype = if alone { ReduceDType::Stored } else { self.reduce_dtype };
        Some(Transfer { kind, axis, flat, term: false, dtype })
    }

    /// The reduction after the first, where both axes have several ranks.
    pub fn second_reduction(&self, flat: usize) -> Option<Transfer> {
        let rank = self.rank(flat);
        let both = (rank.shard.0 > 1 || self.settles(flat)) && rank.replicate.0 > 1;
        let (kind, dtype) = (CollectiveKind::AllReduce, self.reduce_dtype);
        both.then_some(Transfer { kind, axis: Axis::Replicate, flat, term: false, dtype })
    }

    /// Starts the reductions of `ready`; `reducing` is the one in flight that the pass completes itself.
    fn leave(
        &self,
        ready: &[usize],
        traffic: GradientTraffic,
        reducing: &mut Option<Transfer>,
        nodes: &mut Vec<PassNode>,
    ) {
        let partial: Vec<usize> = ready.iter().copied().filter(|f| self.flats[*f].partial > 0).collect();
        if !partial.is_empty() {
            nodes.push(PassNode::Complete(partial));
        }
        for transfer in ready.iter().filter_map(|flat| self.first_reduction(*flat)) {
            let transfer = Transfer { term: traffic == GradientTraffic::Accumulate, ..transfer };
            if traffic.settles() {
                nodes.extend(reducing.replace(transfer).into_iter().flat_map(completion));
            }
            nodes.push(PassNode::Start(transfer));
        }
    }
}

/// The entries that complete a reduction.
fn completion(transfer: Transfer) -> impl Iterator<Item = PassNode> {
    let add = transfer.term.then_some(PassNode::Add(transfer.flat));
    std::iter::once(PassNode::Wait(transfer)).chain(add)
}

fn gather(flat: usize) -> Transfer {
    let (kind, dtype) = (CollectiveKind::AllGather, ReduceDType::Stored);
    Transfer { kind, axis: Axis::Shard, flat, term: false, dtype }
}

/// The reduction that an entry starts.
fn reduction(node: &PassNode) -> Option<Transfer> {
    match node {
        PassNode::Start(transfer) if transfer.kind != CollectiveKind::AllGather => Some(*transfer),
        _ => None,
    }
}
