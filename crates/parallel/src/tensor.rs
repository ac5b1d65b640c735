//! The collectives of a rank's programs over the tensor axis (Shoeybi et al. 2019; Korthikanti et al. 2022).
//!
//! Where they stand is not decided here: [`bessemer_program::partition()`] puts them into the programs, and
//! [`bessemer_program::overlap()`] makes pieces of rows of them. With n rows of width d a rank sends 8 n d (t-1)/t elements a layer
//! and micro-batch; with the residual stream sharded by rows the all-gathers of the forward pass are made once more in the
//! backward pass, 2 n d (t-1)/t. Values travel in the type in which they are stored; sums are formed in f32 in the order of the
//! ranks and rounded once, so that pieces and whole matrices have the same bits.

use crate::exchange::ExchangeError;
use crate::flat::common;
use crate::groups::{AxisGroups, queue};
use crate::rows::{Flight, Flights};
use bessemer_arch::{GradientSum, ParamId, TensorShard, TensorShardParam};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveQueue, Communicator, Message, Parts, Pattern, Reduce, ViewStaging,
    read_view, write_view,
};
use bessemer_mesh::{Axis, PositionOrder, even};
use bessemer_program::CollectiveKind;
use bessemer_tensor::{Backend, TensorError, View};
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

/// The tensor-parallel group of one rank.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    group: CollectiveQueue,
    /// The ranks on one axis of a grid; empty if the group is a line.
    axes: AxisGroups,
    /// The axis of a line.
    line: Axis,
    flights: Flights,
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
    /// `gradients` are those of the tensor shard's parameters, each with the number of its flat unit; `sequence`: the residual stream
    /// is sharded by rows; `overlap`: pieces of rows travel while others are computed.
    pub(crate) fn new(
        (mut group, mut axes): (Box<dyn Communicator>, AxisGroups),
        tensor_shard: &TensorShard,
        (sequence, overlap, line): (bool, bool, Axis),
        gradients: &[(TensorShardParam, View, usize)],
    ) -> Result<TensorGroup, CollectiveError> {
        let ranks: Vec<usize> = tensor_shard.kv_group().collect();
        // Heads are sharded over the line, or over one axis of a grid.
        let of_heads = axes.iter_mut().find(|(axis, _)| *axis == tensor_shard.line()).map(|(_, group)| group);
        let copies = match tensor_shard.kv_replicas {
            1 => None,
            _ => Some(of_heads.unwrap_or(&mut group).group(COPIES, &ranks)?),
        };
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
        let (group, flights) = (queue(group, overlap)?, Flights::default());
        let (parts, received) = (Parts::default(), Parts::default());
        let (stretches, name) = (Default::default(), String::new());
        Ok(TensorGroup {
            group,
            axes,
            line,
            flights,
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

    /// The communicator itself, for calls while no collective is in flight.
    pub(crate) fn idle(&mut self) -> Result<impl DerefMut<Target = dyn Communicator> + '_, CollectiveError> {
        self.group.idle()
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.group.size()
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
        let mut idle;
        let group = match self.axes.iter_mut().find(|(axis, _)| *axis == c.axis) {
            Some((_, group)) => group.as_mut(),
            None => {
                idle = self.group.idle()?;
                &mut *idle
            }
        };
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
        let (ranks, me) = (self.group.size(), self.group.rank());
        self.parts.set((0..ranks).map(|to| c.exchanged(ranks, me, to)));
        self.received.set((0..ranks).map(|from| c.exchanged(ranks, from, me)));
        let [sent, received] = &mut self.stretches;
        for (stretches, view) in [(&mut *sent, src), (&mut *received, dst)] {
            stretches.clear();
            stretches.extend(c.exchange(view, ranks, me));
        }
        let pattern = Pattern::AllToAll { send: &self.parts, receive: &self.received };
        let (group, collective) = (&mut *self.group.idle()?, Collective::new(&self.name, pattern));
        self.staging.run(backend, group, &collective, sent, received)
    }

    /// The parts of some rows of a matrix of `total` rows: each rank's rows among them.
    fn cut_piece(&mut self, (total, cols): (usize, usize), rows: &Range<usize>) {
        let ranks = self.group.size();
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
        let me = self.group.rank();
        let sent = match c.to(me) {
            None => None,
            Some(to) => {
                let mut buffer = self.flights.buffer(src.dtype(), src.len());
                read_view(backend, src, &mut buffer, 0..src.len())?;
                Some(self.group.start(&Collective::send(Message::new(&self.name, 0, to)), buffer)?)
            }
        };
        let ticket = match c.from(me) {
            None => None,
            Some(from) => {
                let buffer = self.flights.buffer(dst.dtype(), dst.len());
                Some(self.group.start(&Collective::receive(Message::new(&self.name, 0, from)), buffer)?)
            }
        };
        self.flights.begin(Flight {
            id: c.id,
            kind: c.kind,
            rows: 0..dst.rows,
            total: dst.rows,
            sent,
            ticket,
        });
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
        let (rows, total, me) = (&c.rows, c.total_rows(), self.group.rank());
        self.cut_piece((total, src.cols), rows);
        let mut buffer = self.flights.buffer(src.dtype(), rows.len() * src.cols);
        let pattern = match c.kind {
            CollectiveKind::AllGather => {
                let mine = range_of(even(total, self.group.size(), me));
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
        let ticket = Some(self.group.start(&Collective::new(&self.name, pattern), buffer)?);
        self.flights.begin(Flight { id: c.id, kind: c.kind, rows: rows.clone(), total, sent: None, ticket });
        Ok(())
    }

    /// Waits for the collective that was started first, and puts what has come into `dst`.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        id: usize,
        dst: View,
    ) -> Result<(), ExchangeError> {
        let Some(Flight { id: found, kind, rows, total, sent, ticket }) = self.flights.next() else {
            let problem = format!("nothing was started under number {id}").into();
            return Err(TensorError::Outside(problem).into());
        };
        debug_assert_eq!(found, id, "collectives are waited for in the order in which they were started");
        if let Some(sent) = sent {
            let buffer = self.group.finish(sent)?;
            self.flights.done(buffer);
        }
        let Some(ticket) = ticket else { return Ok(()) };
        if kind != CollectiveKind::Permute {
            self.cut_piece((total, dst.cols), &rows);
        }
        let buffer = self.group.finish(ticket)?;
        let (here, first, part) = match kind {
            CollectiveKind::ReduceScatter => {
                let (ranks, me) = (self.group.size(), self.group.rank());
                let mine = range_of(even(total, ranks, me));
                (common(&rows, &mine), mine.start, self.parts.range(me))
            }
            _ => (rows.clone(), 0, 0..rows.len() * dst.cols),
        };
        if !here.is_empty() {
            let to = dst.rows(here.start - first, here.len());
            write_view(backend, to, &buffer, part)?;
        }
        self.flights.done(buffer);
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

    /// Completes the gradients in these flat units that are terms of sums over ranks.
    pub(crate) fn complete(
        &mut self,
        backend: &mut dyn Backend,
        flats: &[usize],
    ) -> Result<(), ExchangeError> {
        // The axes of a grid, a line of ranks, and then copies. By number: a warm step asks for no memory.
        let line = self.axes.len();
        for number in 0..line + 2 {
            let over = match self.axes.get(number) {
                Some((axis, _)) => SumRanks::Axis(*axis),
                None if number == line => SumRanks::Axis(self.line),
                None => SumRanks::Copies,
            };
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
            let of_axis = self.axes.iter_mut().find(|(axis, _)| over == SumRanks::Axis(*axis));
            match (&mut self.copies, of_axis) {
                (Some(group), _) if over == SumRanks::Copies => {
                    staging.run(backend, group.as_mut(), &collective, views, views)?;
                }
                (_, Some((_, group))) => staging.run(backend, group.as_mut(), &collective, views, views)?,
                _ => staging.run(backend, &mut *self.group.idle()?, &collective, views, views)?,
            }
        }
        Ok(())
    }
}
