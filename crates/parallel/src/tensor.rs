//! The collectives of a rank's programs over the axes whose ranks share layers (tensor parallelism: Shoeybi et al. 2019; Korthikanti et
//! al. 2022).
//!
//! Their position is not decided here: [`bessemer_program::partition()`] puts them into the programs, and
//! [`bessemer_program::overlap()`] makes pieces of rows of them. With n rows of width d a rank sends 8 n d (t-1)/t elements a layer
//! and micro-batch; with the residual stream sharded by rows the all-gathers of the forward pass are made once more in the
//! backward pass, 2 n d (t-1)/t. Values travel in the type in which they are stored; sums are formed in f32 in the order of the
//! ranks and rounded once, so that pieces and whole matrices have the same bits.

use crate::exchange::{ExchangeError, fill, stream};
use crate::flat::common;
use crate::groups::{LayerGroups, on_device};
use crate::rows::{Flight, exchanges_in_flight};
use bessemer_arch::{GradientSum, ParamId, TensorShard, TensorShardParam};
use bessemer_collectives::{
    Collective, CollectiveError, Communicator, DeviceCommunicator, HostStaging, Message, Parts, Pattern,
    Reduce,
};
use bessemer_mesh::{Axis, PositionOrder, even};
use bessemer_program::{ByCounts, CollectiveKind, Node, Phase, UnitProgram};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::DType;
use std::collections::VecDeque;
use std::ops::{DerefMut, Range};

/// Label of the groups of ranks that hold the same key/value heads.
pub(crate) const COPIES: &str = "tensor copies";

/// Ranks over which a gradient is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumRanks {
    /// All ranks of an axis.
    Axis(Axis),
    /// The ranks that hold the same key/value heads.
    Copies,
}

/// A gradient that is one term of a sum over some ranks of the group.
#[derive(Debug, Clone, Copy)]
struct PartialGradient {
    id: ParamId,
    /// Number of the flat unit that contains it.
    flat: usize,
    over: SumRanks,
    gradient: View,
}

/// The ranks along one axis.
#[derive(Debug)]
struct AxisGroup {
    axis: Axis,
    group: Box<dyn DeviceCommunicator>,
    /// Collectives in flight, in order.
    in_flight: VecDeque<Flight>,
}

/// The ranks that share layers with one rank.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    /// All of them, if they differ on several axes.
    all: Option<Box<dyn DeviceCommunicator>>,
    /// Indexed by axis; at least one that shares layers, and then that of experts if there is one.
    axes: Vec<AxisGroup>,
    /// Whether ranks of a layer have other experts.
    folds_experts: bool,
    /// Data-parallel ranks that have other experts, where ranks of a layer have others too.
    data_experts: Option<Box<dyn DeviceCommunicator>>,
    /// The axis over which heads, hidden units and the vocabulary are sharded.
    line: Axis,
    /// The ranks that hold the same key/value heads, where several do.
    copies: Option<Box<dyn DeviceCommunicator>>,
    partial: Vec<PartialGradient>,
    /// Gradients of one collective.
    gradients: Vec<View>,
    /// Inputs and outputs of one collective.
    views: [Vec<View>; 2],
    /// Host memory of collectives that computation waits for.
    staging: HostStaging,
    /// Host memory of pieces of exchanges by counts that are in flight.
    pieces: HostStaging,
    name: String,
    parts: Parts,
    /// Parts that an all-to-all receives.
    received: Parts,
    /// Counts of parts, as they are read.
    counts: (Vec<u8>, Vec<u32>),
    /// Shadows of this rank's experts over all gathers of matrices, and gathers, since they were taken last.
    shadows: [u32; 2],
}

fn range_of(of: bessemer_mesh::DimRange) -> Range<usize> {
    of.start..of.start + of.len
}

impl TensorGroup {
    /// `gradients` are those of the tensor shard's parameters, each with the number of its flat unit; `sequence`: a line of tensor
    /// parallelism shards the rows of the residual stream; `overlap`: pieces of rows travel while others are computed.
    pub(crate) fn new(
        LayerGroups { all, mut axes, experts, data_experts }: LayerGroups,
        tensor_shard: &TensorShard,
        (sequence, overlap): (bool, bool),
        gradients: &[(TensorShardParam, View, usize)],
        staging: &HostStaging,
    ) -> Result<TensorGroup, CollectiveError> {
        let (ranks, line): (Vec<usize>, Axis) = (tensor_shard.kv_group().collect(), tensor_shard.line());
        let of_heads = axes.iter_mut().find(|(axis, _)| *axis == line && tensor_shard.kv_replicas > 1);
        let copies = of_heads.map(|(_, group)| group.group(COPIES, &ranks)).transpose()?;
        let mut partial = Vec::new();
        for (param, gradient, flat) in gradients {
            let (id, flat) = (param.id(), *flat);
            let over_axis =
                |axis: &Axis| PartialGradient { id, flat, over: SumRanks::Axis(*axis), gradient: *gradient };
            partial.extend(param.sharding.sums.iter().map(over_axis));
            let Some((_, span)) = tensor_shard.gradient_sum(param, sequence) else { continue };
            // A vector's elements are columns of its view.
            let gradient = match param.shape.len() {
                1 => gradient.columns(span.start, span.len),
                _ => gradient.rows(span.start, span.len),
            };
            // The ranks that hold the same heads may be all of them.
            let copies = matches!(param.sharding.gradient, GradientSum::Replicas);
            let over = if copies { SumRanks::Copies } else { SumRanks::Axis(line) };
            partial.push(PartialGradient { id, flat, over, gradient });
        }
        let gradients = Vec::with_capacity(partial.len());
        // No collective runs concurrently with the computation on a grid.
        let overlap = overlap && tensor_shard.grid.is_none();
        let (in_flight, pieces) = (HostStaging::default(), HostStaging::default());
        let device = |group, overlap| on_device(group, overlap, staging, &in_flight);
        let axis = |(axis, group)| {
            Ok(AxisGroup { axis, group: device(group, overlap)?, in_flight: VecDeque::new() })
        };
        let mut axes: Vec<AxisGroup> = axes.into_iter().map(axis).collect::<Result<_, CollectiveError>>()?;
        if let Some(experts) = experts {
            let group = on_device(experts, overlap, staging, &pieces)?;
            let axis = Axis::Expert;
            axes.push(AxisGroup { axis, group, in_flight: VecDeque::new() });
        }
        let alone = |group: Option<_>| group.map(|group| device(group, false)).transpose();
        Ok(TensorGroup {
            all: alone(all)?,
            folds_experts: tensor_shard.among_experts().0 > tensor_shard.mesh().degree(Axis::Expert),
            data_experts: alone(data_experts)?,
            axes,
            line,
            copies: alone(copies)?,
            partial,
            gradients,
            views: Default::default(),
            staging: staging.clone(),
            pieces,
            name: String::new(),
            parts: Parts::default(),
            received: Parts::default(),
            counts: Default::default(),
            shadows: [0; 2],
        })
    }

    /// Plans the host memory of pieces of exchanges, and of the largest collective that computation waits for: of a pass over these programs, or of the sums of
    /// partial gradients in each of these sets of flat units. Growing by use would take up to twice as much.
    pub(crate) fn plan_staging<'p>(
        &mut self,
        programs: impl Iterator<Item = &'p UnitProgram>,
        completed: &[Vec<usize>],
        gradients: DType,
    ) {
        let programs: Vec<&UnitProgram> = programs.collect();
        let (pieces, bytes) = exchanges_in_flight(&programs);
        self.pieces.plan(pieces, DType::U8, bytes);
        let Staged { bytes: mut most, exchanges, views } = Staged::of(programs.into_iter());
        self.views[0].reserve(views);
        for flats in completed {
            let along = |axis: &AxisGroup| self.partial_along(axis.axis, flats) * gradients.size();
            most = most.max(self.axes.iter().map(along).max().unwrap_or(0));
        }
        if most > 0 {
            // The sent and the received rows of an exchange are contiguous.
            self.staging.plan(1, DType::U8, most * if exchanges { 2 } else { 1 });
        }
    }

    /// Allocates the host memory that is planned for pieces of exchanges.
    pub(crate) fn allocate_pieces(&self) {
        self.pieces.allocate();
    }

    /// The communicator itself, for calls while no collective is in flight.
    pub(crate) fn idle(&mut self) -> Result<impl DerefMut<Target = dyn Communicator> + '_, CollectiveError> {
        self.all.as_mut().unwrap_or(&mut self.axes[0].group).host()
    }

    /// The data-parallel ranks that share experts, for calls while no collective is in flight; `None` if there are no others.
    pub(crate) fn expert_ranks(
        &mut self,
    ) -> Result<Option<impl DerefMut<Target = dyn Communicator> + '_>, CollectiveError> {
        let group = match self.folds_experts {
            true => self.data_experts.as_mut(),
            false => (self.axes.iter_mut()).find(|of| of.axis == Axis::Expert).map(|of| &mut of.group),
        };
        group.map(|group| group.host()).transpose()
    }

    /// The ranks over which heads, hidden units and the vocabulary are sharded; any others if they are not.
    pub(crate) fn line(&mut self) -> (&mut dyn DeviceCommunicator, Stream) {
        let at = self.axes.iter().position(|group| group.axis == self.line);
        let AxisGroup { axis, group, .. } = &mut self.axes[at.unwrap_or(0)];
        (&mut **group, stream(*axis))
    }

    /// The ranks along an axis of a program.
    fn along(&mut self, axis: Axis) -> Result<usize, ExchangeError> {
        self.axes.iter().position(|group| group.axis == axis).ok_or_else(|| {
            let problem =
                format!("a collective over {axis}, along which this rank shares its layers with no other")
                    .into();
            TensorError::Outside(problem).into()
        })
    }

    /// Runs a collective to its end.
    pub(crate) fn collective(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        (src, dst): (View, View),
    ) -> Result<(), ExchangeError> {
        if c.kind == CollectiveKind::Permute {
            self.start(backend, c, (src, dst))?;
            return self.wait(backend, c.id);
        }
        let at = self.along(c.axis)?;
        let TensorGroup { axes, parts, received, name, views: [from, to], .. } = self;
        let group = &mut axes[at].group;
        let (rows, ranks, me, len) = (c.total_rows(), group.size(), group.rank(), c.row_len());
        parts.set((0..ranks).map(|r| even(rows, ranks, r).len * len));
        // Columns of one row follow each other, too.
        let consecutive = c.order == PositionOrder::Consecutive
            && (c.dim == 0 || (src.rows, dst.rows) == (1, 1) || c.kind == CollectiveKind::AllReduce);
        fill(from, [src]);
        fill(to, [dst]);
        match c.kind {
            CollectiveKind::AllToAll => {
                parts.set((0..ranks).map(|to| c.exchanged(ranks, me, to)));
                received.set((0..ranks).map(|from| c.exchanged(ranks, from, me)));
                fill(from, c.exchange(src, ranks, me));
                fill(to, c.exchange(dst, ranks, me));
            }
            _ if consecutive => {}
            CollectiveKind::ReduceScatter => fill(from, c.parts(src, ranks)),
            _ => fill(to, c.parts(dst, ranks)),
        }
        name.clone_from(&c.name);
        let collective = Collective::new(name, pattern(c.kind, parts, received));
        group.run(backend, stream(c.axis), &collective, from, to)
    }

    /// Runs a collective whose parts are counted on the device, after the counts have been read.
    pub(crate) fn exchange(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        counted: View,
        sides: (View, View),
    ) -> Result<(), ExchangeError> {
        let at = self.count_parts(backend, c, counted, sides)?;
        let TensorGroup { axes, parts, received, name, views: [from, to], .. } = self;
        let group = &mut axes[at].group;
        if let Some(ByCounts::Rows { piece, .. }) = c.by_counts
            && piece.is_local(group.size())
        {
            for (src, dst) in from.iter().zip(&*to).filter(|(src, _)| !src.is_empty()) {
                backend.launch(Stream::Compute, &Op::from(Copy { src: *src, dst: *dst }))?;
            }
            return Ok(());
        }
        let collective = Collective::new(name, pattern(c.kind, parts, received));
        group.run(backend, stream(c.axis), &collective, from, to)
    }

    /// Starts an exchange of rows, after the counts have been read.
    pub(crate) fn start_exchange(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        counted: View,
        sides: (View, View),
    ) -> Result<(), ExchangeError> {
        let at = self.count_parts(backend, c, counted, sides)?;
        let TensorGroup { axes, parts, received, name, views: [from, to], .. } = self;
        let AxisGroup { group, in_flight, .. } = &mut axes[at];
        let collective = Collective::new(name, pattern(c.kind, parts, received));
        let started = group.start(backend, stream(c.axis), &collective, from, to)?;
        in_flight.push_back(Flight { id: c.id, started: [Some(started), None] });
        Ok(())
    }

    /// Reads the counts, and sets name, parts and views of the collective. Returns the number of its axis.
    fn count_parts(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        counted: View,
        (src, dst): (View, View),
    ) -> Result<usize, ExchangeError> {
        let outside = |problem: String| ExchangeError::Tensor(TensorError::Outside(problem.into()));
        let Some(by) = c.by_counts else {
            return Err(outside(format!("{} is exchanged by counts and has none", c.name)));
        };
        let at = self.along(c.axis)?;
        let TensorGroup { axes, parts, received, name, views: [from, to], counts, shadows, .. } = self;
        let (bytes, read) = counts;
        let group = &axes[at].group;
        let (ranks, me) = (group.size(), group.rank());
        bytes.resize(counted.len() * counted.dtype().size(), 0);
        backend.read_bytes(Stream::Compute, counted, bytes)?;
        read.clear();
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        read.extend(bytes.chunks_exact(size_of::<u32>()).map(word));
        let part = |view: View, first: usize, rows: usize, way: &str| match first + rows <= view.rows {
            // Includes no rows: a rank that neither sends nor receives still has the type of the values.
            true => Ok([view.rows(first, rows)]),
            false => Err(outside(format!(
                "{}: {rows} rows from {first} on are {way}, and there is room for {}",
                c.name, view.rows
            ))),
        };
        match by {
            ByCounts::Rows { to_experts, piece, .. } => {
                let shape = [counted.rows, counted.cols];
                let rows =
                    |tokens: usize, experts: Range<usize>| ByCounts::rows(read, shape, tokens, experts);
                let (sources, experts) = (piece.sources(ranks, me), piece.experts(ranks, me));
                // Rows for shadows are stored before those that are sent, rows of other pieces before and after.
                let mine = rows(me, experts.clone());
                let of_source = |rank: usize| rows(rank, me..me + 1).len();
                let (before, theirs) = ((0..sources.start).map(of_source), sources.clone().map(of_source));
                let (first, come): (usize, usize) = (before.sum(), theirs.sum());
                let parts_of = |rank: usize| {
                    [
                        if experts.contains(&rank) { rows(me, rank..rank + 1).len() * src.cols } else { 0 },
                        if sources.contains(&rank) { of_source(rank) * src.cols } else { 0 },
                    ]
                };
                let way = if to_experts { [0, 1] } else { [1, 0] };
                parts.set((0..ranks).map(|rank| parts_of(rank)[way[0]]));
                received.set((0..ranks).map(|rank| parts_of(rank)[way[1]]));
                let ends = [(mine.start, mine.len()), (first, come)];
                let [(sent, leave), (placed, arrive)] = way.map(|side| ends[side]);
                fill(from, part(src, sent, leave, "sent")?);
                fill(to, part(dst, placed, arrive, "received")?);
            }
            ByCounts::Shadows { experts, .. } => {
                let of_rank = |rank: usize| ByCounts::slots_of(read, experts, rank);
                let all: usize = (0..ranks).map(|rank| of_rank(rank).len()).sum();
                let mine = of_rank(me);
                if c.kind == CollectiveKind::AllGather {
                    *shadows = [shadows[0] + mine.len() as u32, shadows[1] + 1];
                    let outputs = src.rows / experts.max(1);
                    parts.set((0..ranks).map(|rank| of_rank(rank).len() * outputs * src.cols));
                    let number = |slot: usize| read[slot] as usize - me * experts;
                    fill(from, mine.clone().map(|slot| src.rows(number(slot) * outputs, outputs)));
                    from.extend(mine.is_empty().then(|| src.rows(0, 0)));
                    fill(to, part(dst, 0, all * outputs, "received")?);
                } else {
                    let outputs = src.rows / read.len().max(1);
                    parts.set((0..ranks).map(|rank| of_rank(rank).len() * outputs * src.cols));
                    received.set((0..ranks).map(|_| mine.len() * outputs * dst.cols));
                    fill(from, part(src, 0, all * outputs, "sent")?);
                    fill(to, part(dst, 0, ranks * mine.len() * outputs, "received")?);
                }
            }
        }
        name.clone_from(&c.name);
        Ok(at)
    }

    /// Shadows of this rank's experts over all gathers of their matrices, and gathers, since this was called last. A layer gathers as often for
    /// each choice of shadows, so their ratio is the mean of a choice.
    pub(crate) fn take_shadows(&mut self) -> [u32; 2] {
        std::mem::take(&mut self.shadows)
    }

    /// Starts a collective of some rows of a matrix, or what this rank does in a permutation: the send is handed over before the
    /// receive waits, so the ranks of a cycle do not wait for each other.
    pub(crate) fn start(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        (src, dst): (View, View),
    ) -> Result<(), ExchangeError> {
        let at = self.along(c.axis)?;
        let TensorGroup { axes, parts, received, name, views: [from, to], .. } = self;
        let AxisGroup { group, in_flight, .. } = &mut axes[at];
        let (ranks, me, stream) = (group.size(), group.rank(), stream(c.axis));
        name.clone_from(&c.name);
        let mut started = [None, None];
        if c.kind == CollectiveKind::Permute {
            if let Some(to) = c.to(me) {
                let send = Collective::send(Message::new(name, 0, to));
                started[0] = Some(group.start(backend, stream, &send, &[src], &[])?);
            }
            if let Some(from) = c.from(me) {
                let receive = Collective::receive(Message::new(name, 0, from));
                started[1] = Some(group.start(backend, stream, &receive, &[], &[dst])?);
            }
        } else {
            let (rows, total) = (&c.rows, c.total_rows());
            let of = |rank| range_of(even(total, ranks, rank));
            parts.set((0..ranks).map(|rank| common(rows, &of(rank)).len() * src.cols));
            let (mine, here) = (of(me), common(rows, &of(me)));
            let part = |of: View| (!here.is_empty()).then(|| of.rows(here.start - mine.start, here.len()));
            let piece = |of: View| Some(of.rows(rows.start, rows.len()));
            fill(from, if c.kind == CollectiveKind::AllGather { part(src) } else { piece(src) });
            fill(to, if c.kind == CollectiveKind::ReduceScatter { part(dst) } else { piece(dst) });
            let collective = Collective::new(name, pattern(c.kind, parts, received));
            started[0] = Some(group.start(backend, stream, &collective, from, to)?);
        }
        in_flight.push_back(Flight { id: c.id, started });
        Ok(())
    }

    /// Waits for the collective that was started first along its axis.
    pub(crate) fn wait(&mut self, backend: &mut dyn Backend, id: usize) -> Result<(), ExchangeError> {
        let first = self.axes.iter_mut().find_map(|axis| {
            let flight = axis.in_flight.pop_front_if(|flight| flight.id == id)?;
            Some((&mut axis.group, flight))
        });
        let Some((group, flight)) = first else {
            let problem =
                format!("number {id} is not the collective that was started first along its axis").into();
            return Err(TensorError::Outside(problem).into());
        };
        flight.started.into_iter().flatten().try_for_each(|started| group.finish(backend, started))
    }

    /// The axes over all of whose ranks sums complete the gradient of this parameter. Its memory does not determine them: where layers
    /// alternate in it, parameters of two layers may have the same memory.
    pub(crate) fn completes(&self, id: ParamId) -> Vec<Axis> {
        let axis = |p: &PartialGradient| match p.over {
            SumRanks::Axis(axis) if p.id == id => Some(axis),
            _ => None,
        };
        self.partial.iter().filter_map(axis).collect()
    }

    /// Elements of a flat unit's gradients that are terms of sums over ranks after a backward pass.
    pub(crate) fn partial_elements(&self, flat: usize) -> usize {
        self.partial.iter().filter(|p| p.flat == flat).map(|p| p.gradient.len()).sum()
    }

    /// Elements of gradients in these flat units that are summed over ranks of an axis: all of them, or some that hold the same heads.
    pub(crate) fn partial_along(&self, axis: Axis, flats: &[usize]) -> usize {
        let along = |p: &&PartialGradient| match p.over {
            SumRanks::Axis(over) => over == axis,
            SumRanks::Copies => axis == self.line,
        };
        self.partial.iter().filter(|p| flats.contains(&p.flat)).filter(along).map(|p| p.gradient.len()).sum()
    }

    /// Completes the gradients in these flat units that are terms of sums over ranks.
    pub(crate) fn complete(
        &mut self,
        backend: &mut dyn Backend,
        flats: &[usize],
    ) -> Result<(), ExchangeError> {
        // The axes, and then copies. By number: a warm step allocates no memory.
        for number in 0..=self.axes.len() {
            let over = self.axes.get(number).map_or(SumRanks::Copies, |group| SumRanks::Axis(group.axis));
            let chosen = |p: &&PartialGradient| flats.contains(&p.flat) && p.over == over;
            let len: usize = self.partial.iter().filter(chosen).map(|p| p.gradient.len()).sum();
            if len == 0 {
                continue;
            }
            // All in one collective.
            self.gradients.clear();
            self.gradients.extend(self.partial.iter().filter(chosen).map(|p| p.gradient));
            let collective = Collective::new("partial gradients", Pattern::AllReduce(Reduce::Sum));
            let views = &self.gradients;
            let (axis, group) = match (self.axes.get_mut(number), &mut self.copies) {
                (Some(axis), _) => (axis.axis, &mut axis.group),
                (None, Some(copies)) => (self.line, copies),
                (None, None) => continue,
            };
            group.run(backend, stream(axis), &collective, views, views)?;
        }
        Ok(())
    }
}

/// Host memory of the largest collective that computation waits for.
pub(crate) struct Staged {
    /// Bytes of the sent or received rows.
    pub(crate) bytes: usize,
    /// Whether rows are exchanged: the sent and the received ones are then contiguous.
    pub(crate) exchanges: bool,
    /// Most views of one collective: a shadow's matrix is one.
    views: usize,
}

impl Staged {
    pub(crate) fn of<'p>(programs: impl Iterator<Item = &'p UnitProgram>) -> Staged {
        let lists = programs.flat_map(|program| Phase::ALL.map(|phase| program.list(phase)));
        let mut staged = Staged { bytes: 0, exchanges: false, views: 0 };
        for node in lists.flatten() {
            let Node::Collective(c) = node else { continue };
            // A rank's own rows are copied on the device.
            if let Some(ByCounts::Rows { offsets, piece, .. }) = c.by_counts
                && piece.is_local(offsets.rows)
            {
                continue;
            }
            let elements = (c.total_rows() * c.row_len()).max(c.src.len()).max(c.dst.len());
            staged.bytes = staged.bytes.max(elements * c.src.dtype().size());
            staged.exchanges |= c.kind == CollectiveKind::AllToAll;
            if let Some(ByCounts::Shadows { slots, .. }) = c.by_counts {
                staged.views = staged.views.max(slots.len());
            }
        }
        staged
    }
}

/// The pattern of a collective of matrices.
fn pattern<'p>(kind: CollectiveKind, parts: &'p Parts, received: &'p Parts) -> Pattern<'p> {
    match kind {
        CollectiveKind::AllReduce => Pattern::AllReduce(Reduce::Sum),
        CollectiveKind::ReduceScatter => Pattern::ReduceScatter(parts, Reduce::Sum),
        CollectiveKind::AllToAll => Pattern::AllToAll { send: parts, receive: received },
        _ => Pattern::AllGather(parts),
    }
}
