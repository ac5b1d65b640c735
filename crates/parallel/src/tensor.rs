//! The collectives of a rank's programs over the axes whose ranks share layers (tensor parallelism: Shoeybi et al. 2019; Korthikanti et
//! al. 2022).
//!
//! Where they stand is not decided here: [`bessemer_program::partition()`] puts them into the programs, and
//! [`bessemer_program::overlap()`] makes pieces of rows of them. With n rows of width d a rank sends 8 n d (t-1)/t elements a layer
//! and micro-batch; with the residual stream sharded by rows the all-gathers of the forward pass are made once more in the
//! backward pass, 2 n d (t-1)/t. Values travel in the type in which they are stored; sums are formed in f32 in the order of the
//! ranks and rounded once, so that pieces and whole matrices have the same bits.

use crate::exchange::ExchangeError;
use crate::flat::common;
use crate::groups::{LayerGroups, queue};
use crate::rows::{Flight, Flights};
use bessemer_arch::{GradientSum, ParamId, TensorShard, TensorShardParam};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveQueue, Communicator, Message, Parts, Pattern, Reduce, ViewStaging,
    read_view, write_view,
};
use bessemer_mesh::{Axis, PositionOrder, even};
use bessemer_program::{CollectiveKind, Node, Phase, UnitProgram};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;
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
    /// Number of the flat unit in which it lies.
    flat: usize,
    over: SumRanks,
    gradient: View,
}

/// The ranks along one axis.
#[derive(Debug)]
struct AxisGroup {
    axis: Axis,
    group: CollectiveQueue,
    flights: Flights,
}

/// The ranks that share layers with one rank.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    /// All of them, if they differ on several axes.
    all: Option<CollectiveQueue>,
    /// By axis; at least one.
    axes: Vec<AxisGroup>,
    /// The axis over which heads, hidden units and the vocabulary are sharded.
    line: Axis,
    /// The ranks that hold the same key/value heads, where several do.
    copies: Option<Box<dyn Communicator>>,
    partial: Vec<PartialGradient>,
    /// Gradients of one collective.
    gradients: Vec<View>,
    /// Parts of one collective that do not follow each other: of what is read, and of what is written.
    stretches: [Vec<View>; 2],
    staging: ViewStaging,
    name: String,
    parts: Parts,
    /// Of an all-to-all, parts of what comes.
    received: Parts,
}

fn range_of(of: bessemer_mesh::DimRange) -> Range<usize> {
    of.start..of.start + of.len
}

impl TensorGroup {
    /// `gradients` are those of the tensor shard's parameters, each with the number of its flat unit; `sequence`: a line of tensor
    /// parallelism shards the rows of the residual stream; `overlap`: pieces of rows travel while others are computed.
    pub(crate) fn new(
        LayerGroups { all, mut axes }: LayerGroups,
        tensor_shard: &TensorShard,
        (sequence, overlap): (bool, bool),
        gradients: &[(TensorShardParam, View, usize)],
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
        let (gradients, staging) = (Vec::with_capacity(partial.len()), ViewStaging::default());
        // Nothing travels beside the computation on a grid.
        let overlap = overlap && tensor_shard.grid.is_none();
        let axis = |(axis, group)| {
            Ok(AxisGroup { axis, group: queue(group, overlap)?, flights: Flights::default() })
        };
        let axes = axes.into_iter().map(axis).collect::<Result<_, CollectiveError>>()?;
        let all = all.map(CollectiveQueue::blocking);
        let (parts, received) = (Parts::default(), Parts::default());
        let (stretches, name) = (Default::default(), String::new());
        Ok(TensorGroup {
            all,
            axes,
            line,
            copies,
            partial,
            gradients,
            stretches,
            staging,
            name,
            parts,
            received,
        })
    }

    /// Plans the host memory of the largest collective that computation waits for: of a pass over these programs, or of the sums of
    /// partial gradients in each of these sets of flat units. Growing by use would take up to twice as much.
    pub(crate) fn plan_staging<'p>(
        &mut self,
        programs: impl Iterator<Item = &'p UnitProgram>,
        completed: &[Vec<usize>],
        gradients: DType,
    ) {
        let lists = programs.flat_map(|program| Phase::ALL.map(|phase| program.list(phase)));
        let (mut most, mut exchanges) = (0, false);
        for node in lists.flatten() {
            let Node::Collective(c) = node else { continue };
            let elements = (c.total_rows() * c.row_len()).max(c.src.len()).max(c.dst.len());
            most = most.max(elements * c.src.dtype().size());
            exchanges |= c.kind == CollectiveKind::AllToAll;
        }
        for flats in completed {
            let along = |axis: &AxisGroup| self.partial_along(axis.axis, flats) * gradients.size();
            most = most.max(self.axes.iter().map(along).max().unwrap_or(0));
        }
        if most > 0 {
            // What is sent and what is received of an exchange lie apart.
            self.staging.plan(1 + usize::from(exchanges), DType::U8, most);
        }
    }

    /// Allocates the host memory that is planned.
    pub(crate) fn allocate(&mut self) {
        self.staging.allocate();
    }

    /// Bytes of host memory of collectives that computation waits for.
    pub(crate) fn staging_bytes(&self) -> u64 {
        self.staging.capacity_bytes()
    }

    /// The communicator itself, for calls while no collective is in flight.
    pub(crate) fn idle(&mut self) -> Result<impl DerefMut<Target = dyn Communicator> + '_, CollectiveError> {
        self.all.as_mut().unwrap_or(&mut self.axes[0].group).idle()
    }

    /// The ranks over which heads, hidden units and the vocabulary are sharded; any others if they are not.
    pub(crate) fn line(&mut self) -> &mut CollectiveQueue {
        let at = self.axes.iter().position(|group| group.axis == self.line);
        &mut self.axes[at.unwrap_or(0)].group
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
        if c.kind == CollectiveKind::AllToAll {
            return self.all_to_all(backend, c, (src, dst));
        }
        if c.kind == CollectiveKind::Permute {
            self.start_permutation(backend, c, (src, dst))?;
            return self.wait(backend, c.id, dst);
        }
        self.name.clone_from(&c.name);
        let at = self.along(c.axis)?;
        let group = &mut *self.axes[at].group.idle()?;
        let (rows, ranks, len) = (c.total_rows(), group.size(), c.row_len());
        self.parts.set((0..ranks).map(|r| even(rows, ranks, r).len * len));
        let pattern = match c.kind {
            CollectiveKind::AllReduce => Pattern::AllReduce(Reduce::Sum),
            CollectiveKind::ReduceScatter => Pattern::ReduceScatter(&self.parts, Reduce::Sum),
            _ => Pattern::AllGather(&self.parts),
        };
        let collective = Collective::new(&self.name, pattern);
        let staging = &mut self.staging;
        // Columns of one row follow each other, too.
        let consecutive = c.dim == 0 || (src.rows, dst.rows) == (1, 1) || c.kind == CollectiveKind::AllReduce;
        if c.order == PositionOrder::Consecutive && consecutive {
            return staging.run(backend, group, &collective, &[src], &[dst]);
        }
        let stretches = &mut self.stretches[0];
        stretches.clear();
        match c.kind {
            CollectiveKind::ReduceScatter => {
                stretches.extend(c.parts(src, ranks));
                staging.run(backend, group, &collective, stretches, &[dst])
            }
            _ => {
                stretches.extend(c.parts(dst, ranks));
                staging.run(backend, group, &collective, &[src], stretches)
            }
        }
    }

    /// Runs an all-to-all to its end.
    fn all_to_all(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        (src, dst): (View, View),
    ) -> Result<(), ExchangeError> {
        self.name.clone_from(&c.name);
        let at = self.along(c.axis)?;
        let group = &mut self.axes[at].group;
        let (ranks, me) = (group.size(), group.rank());
        self.parts.set((0..ranks).map(|to| c.exchanged(ranks, me, to)));
        self.received.set((0..ranks).map(|from| c.exchanged(ranks, from, me)));
        let [sent, received] = &mut self.stretches;
        for (stretches, view) in [(&mut *sent, src), (&mut *received, dst)] {
            stretches.clear();
            stretches.extend(c.exchange(view, ranks, me));
        }
        let pattern = Pattern::AllToAll { send: &self.parts, receive: &self.received };
        let (group, collective) = (&mut *group.idle()?, Collective::new(&self.name, pattern));
        self.staging.run(backend, group, &collective, sent, received)
    }

    /// The parts of some rows of a matrix of `total` rows: each of `ranks` ranks' rows among them.
    fn cut_piece(&mut self, ranks: usize, (total, cols): (usize, usize), rows: &Range<usize>) {
        let of = |r| common(rows, &range_of(even(total, ranks, r))).len() * cols;
        self.parts.set((0..ranks).map(of));
    }

    /// Starts what this rank does in a permutation: the send is handed over before the receive waits, so the ranks of a cycle do not
    /// wait for each other.
    fn start_permutation(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        (src, dst): (View, View),
    ) -> Result<(), ExchangeError> {
        self.name.clone_from(&c.name);
        let at = self.along(c.axis)?;
        let AxisGroup { group, flights, .. } = &mut self.axes[at];
        let me = group.rank();
        let sent = match c.to(me) {
            None => None,
            Some(to) => {
                let mut buffer = flights.buffer(src.dtype(), src.len());
                read_view(backend, src, &mut buffer, 0..src.len())?;
                Some(group.start(&Collective::send(Message::new(&self.name, 0, to)), buffer)?)
            }
        };
        let ticket = match c.from(me) {
            None => None,
            Some(from) => {
                let buffer = flights.buffer(dst.dtype(), dst.len());
                Some(group.start(&Collective::receive(Message::new(&self.name, 0, from)), buffer)?)
            }
        };
        flights.begin(Flight { id: c.id, kind: c.kind, rows: 0..dst.rows, total: dst.rows, sent, ticket });
        Ok(())
    }

    /// Starts a collective of some rows of a matrix, or a permutation.
    pub(crate) fn start(
        &mut self,
        backend: &mut dyn Backend,
        c: &bessemer_program::Collective,
        (src, dst): (View, View),
    ) -> Result<(), ExchangeError> {
        if c.kind == CollectiveKind::Permute {
            return self.start_permutation(backend, c, (src, dst));
        }
        self.name.clone_from(&c.name);
        let at = self.along(c.axis)?;
        let (ranks, me) = (self.axes[at].group.size(), self.axes[at].group.rank());
        let (rows, total) = (&c.rows, c.total_rows());
        self.cut_piece(ranks, (total, src.cols), rows);
        let AxisGroup { group, flights, .. } = &mut self.axes[at];
        let mut buffer = flights.buffer(src.dtype(), rows.len() * src.cols);
        let pattern = match c.kind {
            CollectiveKind::AllGather => {
                let mine = range_of(even(total, ranks, me));
                let here = common(rows, &mine);
                if !here.is_empty() {
                    let from = src.rows(here.start - mine.start, here.len());
                    read_view(backend, from, &mut buffer, self.parts.range(me))?;
                }
                Pattern::AllGather(&self.parts)
            }
            kind => {
                let piece = src.rows(rows.start, rows.len());
                read_view(backend, piece, &mut buffer, 0..piece.len())?;
                match kind {
                    CollectiveKind::ReduceScatter => Pattern::ReduceScatter(&self.parts, Reduce::Sum),
                    _ => Pattern::AllReduce(Reduce::Sum),
                }
            }
        };
        let ticket = Some(group.start(&Collective::new(&self.name, pattern), buffer)?);
        flights.begin(Flight { id: c.id, kind: c.kind, rows: rows.clone(), total, sent: None, ticket });
        Ok(())
    }

    /// Waits for the collective that was started first along its axis, and puts what has come into `dst`.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        id: usize,
        dst: View,
    ) -> Result<(), ExchangeError> {
        let first =
            self.axes.iter_mut().enumerate().find_map(|(at, axis)| Some((at, axis.flights.take(id)?)));
        let Some((at, Flight { kind, rows, total, sent, ticket, .. })) = first else {
            let problem =
                format!("number {id} is not the collective that was started first along its axis").into();
            return Err(TensorError::Outside(problem).into());
        };
        let (ranks, me) = (self.axes[at].group.size(), self.axes[at].group.rank());
        if kind != CollectiveKind::Permute && ticket.is_some() {
            self.cut_piece(ranks, (total, dst.cols), &rows);
        }
        let AxisGroup { group, flights, .. } = &mut self.axes[at];
        if let Some(sent) = sent {
            let buffer = group.finish(sent)?;
            flights.done(buffer);
        }
        let Some(ticket) = ticket else { return Ok(()) };
        let buffer = group.finish(ticket)?;
        let (here, first, part) = match kind {
            CollectiveKind::ReduceScatter => {
                let mine = range_of(even(total, ranks, me));
                (common(&rows, &mine), mine.start, self.parts.range(me))
            }
            _ => (rows.clone(), 0, 0..rows.len() * dst.cols),
        };
        if !here.is_empty() {
            let to = dst.rows(here.start - first, here.len());
            write_view(backend, to, &buffer, part)?;
        }
        flights.done(buffer);
        Ok(())
    }

    /// The axes over all of whose ranks sums complete the gradient of this parameter. Its memory does not tell: where layers take
    /// turns in it, parameters of two layers may lie in the same place.
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
        // The axes, and then copies. By number: a warm step asks for no memory.
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
            let (views, staging) = (&self.gradients, &mut self.staging);
            match (self.axes.get_mut(number), &mut self.copies) {
                (Some(axis), _) => {
                    staging.run(backend, &mut *axis.group.idle()?, &collective, views, views)?
                }
                (None, Some(copies)) => staging.run(backend, copies.as_mut(), &collective, views, views)?,
                (None, None) => {}
            }
        }
        Ok(())
    }
}
