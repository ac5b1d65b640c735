//! Elements of the job's state that a rank saves, and those that it loads.
//!
//! Every element is saved by one rank. Elements that several ranks have (replicas of data parallelism, parameters that are replicated
//! over a layer's ranks, the blocks of key and value heads) are partitioned evenly, but for states of another shape than their parameter:
//! the elements that the same ranks have are one list, tensor after tensor, and each of these ranks saves one stretch of it. A stage that
//! several pipeline ranks hold is saved by the first of them. There is no communication: the stretches are a function of the layout.

use super::{Of, Place, Reading, StateTensor};
use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::plan::Coord;
use crate::worker::Worker;
use bessemer_mesh::{DimRange, ElementRun, even};
use bessemer_optim::StateView;
use bessemer_tensor::Backend;
use std::collections::HashMap;
use std::ops::Range;

/// A stretch of memory on this rank that is part of a whole tensor.
#[derive(Debug, Clone)]
pub struct OwnPiece {
    /// Position in the list of tensors.
    pub tensor: usize,
    /// Chunk of this rank.
    pub chunk: usize,
    /// The memory that contains it, without gaps.
    pub view: StateView,
    /// Its elements there.
    pub at: Range<usize>,
    /// Elements of the whole tensor: (first, how many), one after the other.
    pub runs: Vec<(usize, usize)>,
}

/// A stretch of memory on this rank, and who else holds its elements.
#[derive(Debug, Clone)]
pub struct HeldStretch {
    /// Position in the list of tensors.
    pub tensor: usize,
    /// Ranks of the job that hold the elements, ascending; this one is among them.
    pub holders: Vec<usize>,
    /// The memory that contains it, without gaps.
    pub view: StateView,
    /// Its elements there.
    pub at: Range<usize>,
}

/// Elements that are restored at a time: 1 MiB, a multiple of every block that shares a scale.
const AT_ONCE: usize = 1 << 18;

/// Source of elements for [`Worker::write_with`]: ranges of a whole tensor, (first, how many) one after the other, and a buffer for their values.
pub type ReadElements<'a, E> = dyn FnMut(&[(usize, usize)], &mut [f32]) -> Result<(), E> + 'a;

/// The ranks that have the same elements, among those of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holders {
    /// Group of their parameter.
    group: usize,
    /// All data-parallel ranks have them, not only those with replicas of this rank's part.
    all_shards: bool,
    /// The positions among the ranks that share every layer that have them.
    layer_ranks: Vec<usize>,
    /// The first of them saves all.
    first_saves: bool,
}

/// Elements of this rank's part of a tensor that one set of ranks has.
struct HeldPiece {
    holders: Holders,
    tensor: usize,
    chunk: usize,
    /// Number in the chunk of the parameter that the layer's ranks share, if they do.
    param: Option<usize>,
    view: StateView,
    /// The elements in this rank's part of the tensor.
    local: Range<usize>,
    /// Position there at which the view begins.
    start: usize,
}

impl Worker {
    /// The stretches of `tensors` that this rank saves: over all ranks, each element once.
    ///
    /// # Errors
    /// A tensor that is not in one stretch on a rank.
    pub fn own_pieces(&self, tensors: &[StateTensor]) -> Result<Vec<OwnPiece>, ParallelError> {
        let piece = |held: HeldPiece| {
            let HeldPiece { tensor, chunk, param, view, local, start, .. } = held;
            let runs = match param {
                None => vec![(local.start, local.len())],
                Some(param) => {
                    let runs = self.chunks[chunk].tensor_shard[param].runs();
                    let within = runs.into_iter().filter_map(|run| run.within(&local));
                    within.map(|run| (run.whole, run.len)).collect()
                }
            };
            OwnPiece { tensor, chunk, view, at: local.start - start..local.end - start, runs }
        };
        Ok(self.own(tensors)?.into_iter().map(piece).collect())
    }

    /// Elements of `tensors` that this rank saves.
    ///
    /// # Errors
    /// Same errors as [`Worker::own_pieces`].
    pub fn own_elements(&self, tensors: &[StateTensor]) -> Result<usize, ParallelError> {
        Ok(self.own(tensors)?.iter().map(|held| held.local.len()).sum())
    }

    fn own(&self, tensors: &[StateTensor]) -> Result<Vec<HeldPiece>, ParallelError> {
        let mut held = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let holder = self.holder(tensor);
            if holder.rank == self.coord.pipeline {
                self.held_pieces(index, tensor, holder.chunk, &mut held)?;
            }
        }
        let mut totals: HashMap<Holders, usize> = HashMap::new();
        for h in &held {
            *totals.entry(h.holders.clone()).or_default() += h.local.len();
        }
        let mut before: HashMap<Holders, usize> = HashMap::new();
        held.retain_mut(|h| {
            let (position, count) = self.position(&h.holders);
            let mine = even(totals[&h.holders], count, position).range();
            let start = before.entry(h.holders.clone()).or_default();
            let here = *start..*start + h.local.len();
            *start = here.end;
            let (first, last) = (mine.start.max(here.start), mine.end.min(here.end));
            if first < last {
                h.local = h.local.start + first - here.start..h.local.start + last - here.start;
            }
            first < last
        });
        Ok(held)
    }

    /// The stretches of `tensors` on this rank, and which ranks hold the same bits: replicas of data parallelism, tensors that are replicated
    /// over the ranks of a layer, stages that several pipeline ranks hold, a token table of first and last stage. Where parameters have masters,
    /// the values that the passes read come after them. States of another shape than their parameter are left out: ranks may be ahead
    /// of each other with them. The order of the tensors is the same on all holders.
    ///
    /// # Errors
    /// Same errors as [`Worker::own_pieces`].
    pub fn held_stretches(&self, tensors: &[StateTensor]) -> Result<Vec<HeldStretch>, ParallelError> {
        let mut list = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            for (number, chunk) in self.chunks.iter().enumerate() {
                let Some(param) = chunk.param_of(tensor) else { continue };
                let mut held = Vec::new();
                match &tensor.place {
                    Place::Whole { .. } => continue,
                    Place::Param(id) if chunk.types.has_masters() && self.plan.groups.trains(*id) => {
                        self.held_pieces(index, tensor, number, &mut held)?;
                        let values = chunk.reading_of(&self.plan, self.coord, param, &Of::Value)?;
                        self.pieces_of(values, index, tensor, number, &mut held)?;
                    }
                    _ => self.held_pieces(index, tensor, number, &mut held)?,
                }
                list.extend(held.into_iter().map(|h| {
                    let holders = self.ranks_of(chunk, param, &h.holders);
                    let at = h.local.start - h.start..h.local.end - h.start;
                    HeldStretch { tensor: index, holders, view: h.view, at }
                }));
            }
        }
        Ok(list)
    }

    /// The ranks of the job that hold the same elements as `holders` of this rank's chunk, ascending.
    fn ranks_of(&self, chunk: &Chunk, param: usize, holders: &Holders) -> Vec<usize> {
        let tied = chunk.units.table.is_some_and(|table| chunk.units.place(param).unit == table);
        let stages = if tied { vec![0, self.program.stages - 1] } else { vec![chunk.place.stage] };
        let mut ranks = Vec::new();
        for pipeline in stages.iter().flat_map(|stage| self.program.holders(*stage)).map(|place| place.rank) {
            for data in self.data_holders(holders) {
                let at = |tensor: &usize| self.plan.rank(Coord { pipeline, tensor: *tensor, ..data });
                ranks.extend(holders.layer_ranks.iter().map(at));
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Positions of the data-parallel ranks that have some elements, in one order on all of them.
    fn data_holders(&self, holders: &Holders) -> Vec<Coord> {
        let (shard_axes, reduce_axes) =
            (self.plan.shard_axes(holders.group), self.plan.reduce_axes(holders.group));
        let replicas = self.plan.along_data(&reduce_axes, self.coord);
        match holders.all_shards {
            false => replicas,
            true => replicas.into_iter().flat_map(|at| self.plan.along_data(shard_axes, at)).collect(),
        }
    }

    /// This rank's position among those that have some elements, and their number.
    fn position(&self, holders: &Holders) -> (usize, usize) {
        if holders.first_saves {
            return (0, 1);
        }
        let (data, ranks) = (self.data_holders(holders), holders.layer_ranks.len());
        let at = data.iter().position(|coord| *coord == self.coord).unwrap_or(0);
        let of_layer = holders.layer_ranks.iter().position(|r| *r == self.coord.tensor).unwrap_or(0);
        (at * ranks + of_layer, data.len() * ranks)
    }

    /// Collects this rank's elements of a tensor of a chunk, by the ranks that have them too.
    fn held_pieces(
        &self,
        index: usize,
        tensor: &StateTensor,
        number: usize,
        held: &mut Vec<HeldPiece>,
    ) -> Result<(), ParallelError> {
        let reading = self.chunks[number].reading(&self.plan, self.coord, tensor)?;
        self.pieces_of(reading, index, tensor, number, held)
    }

    /// Collects this rank's elements of a tensor of chunk `number`, whose location is `reading`.
    fn pieces_of(
        &self,
        Reading { param, len, group, parts, view }: Reading,
        index: usize,
        tensor: &StateTensor,
        number: usize,
        held: &mut Vec<HeldPiece>,
    ) -> Result<(), ParallelError> {
        let (coord, chunk) = (self.coord, &self.chunks[number]);
        let Some(view) = view else { return Ok(()) };
        let all_shards = parts.is_none();
        // A state of another shape than its parameter, such as K-FAC's, may be ahead on ranks that compute a part of it for the
        // others: the first rank's is the job's.
        let first_saves = matches!(tensor.place, Place::Whole { .. });
        let reduce_axes = self.plan.reduce_axes(group);
        let first_replica = self.plan.along_data(&reduce_axes, coord).first() == Some(&coord);
        let first_shard = self.plan.shard_index(group, coord) == 0;
        let is_first = first_replica && coord.tensor == 0 && (!all_shards || first_shard);
        if first_saves && !is_first {
            return Ok(());
        }
        let stretch = parts.map_or(0..len, |parts| parts.range(self.plan.shard_index(group, coord)));
        if !view.is_contiguous() || view.len() != stretch.len() {
            let text = format!("{:?} does not lie in one stretch on a rank", tensor.name);
            return Err(ParallelError::Layout(text));
        }
        for (range, layer_ranks) in self.layer_holders(chunk, param, len) {
            let local = range.start.max(stretch.start)..range.end.min(stretch.end);
            if local.is_empty() {
                continue;
            }
            let holders = Holders { group, all_shards, layer_ranks, first_saves };
            let (tensor, chunk, start) = (index, number, stretch.start);
            held.push(HeldPiece { holders, tensor, chunk, param, view, local, start });
        }
        Ok(())
    }

    /// The stretches of this rank's part of a parameter, of `len` elements, with the ranks of the layer that have them, in their
    /// order.
    fn layer_holders(
        &self,
        chunk: &Chunk,
        param: Option<usize>,
        len: usize,
    ) -> Vec<(Range<usize>, Vec<usize>)> {
        let ranks = 0..self.plan.tensor();
        let Some(param) = param else { return vec![(0..len, ranks.collect())] };
        let mine = &chunk.tensor_shard[param];
        let shared_with = |rank: usize| {
            let other = mine.on_layer_rank(rank);
            let meets = |(a, b): (&Vec<DimRange>, &Vec<DimRange>)| {
                a.iter().any(|a| b.iter().any(|b| a.common(*b).len > 0))
            };
            match other.ranges.iter().zip(&mine.ranges).all(meets) {
                false => Vec::new(),
                true if other.ranges == mine.ranges => std::iter::once(0..len).collect(),
                true => common(&mine.runs(), &other.runs()),
            }
        };
        let shared: Vec<Vec<Range<usize>>> = ranks.map(shared_with).collect();
        let mut edges: Vec<usize> = shared.iter().flatten().flat_map(|r| [r.start, r.end]).collect();
        edges.sort_unstable();
        edges.dedup();
        let stretch = |two: &[usize]| {
            let has = |list: &Vec<Range<usize>>| list.iter().any(|r| r.contains(&two[0]));
            let holders = (0..shared.len()).filter(|rank| has(&shared[*rank])).collect();
            (two[0]..two[1], holders)
        };
        edges.windows(2).map(stretch).collect()
    }

    /// Elements of `tensors` that this rank loads: all that it has of them.
    pub fn wanted_elements(&self, tensors: &[StateTensor]) -> usize {
        let of = |chunk, tensor| self.wanted(chunk, tensor).map_or(0, |wanted| wanted.range.len());
        self.chunks.iter().map(|chunk| tensors.iter().map(|tensor| of(chunk, tensor)).sum::<usize>()).sum()
    }

    /// The part of a tensor that a chunk has, if any.
    fn wanted<'a>(&self, chunk: &Chunk, tensor: &'a StateTensor) -> Option<WantedPart<'a>> {
        let group = tensor.param().map_or(0, |id| self.plan.groups.of(id));
        let shard = self.plan.shard_index(group, self.coord);
        let of = match &tensor.place {
            Place::Whole { owner: Some(owner), .. } if *owner != shard => return None,
            Place::Whole { name, param, .. } => {
                let here = param.is_none() || chunk.states.contains_key(name);
                return here.then(|| WantedPart { to: WantedPlace::Whole(name), range: 0..tensor.len() });
            }
            Place::Param(_) => Of::Value,
            Place::Gradient(_) => Of::Gradient,
            Place::Moment(_, name) => Of::State(name),
        };
        let param = chunk.param_of(tensor)?;
        let range = match of {
            Of::Value if self.plan.keeps_values_of(group) => 0..chunk.tensor_shard[param].len(),
            _ => chunk.run(chunk.units.place(param), shard).wholes(),
        };
        (!range.is_empty()).then_some(WantedPart { to: WantedPlace::Param(param, of), range })
    }

    /// Elements of a tensor that [`Worker::write_with`] requests: (first, how many), by call.
    pub fn wanted_runs(&self, tensor: &StateTensor) -> Vec<Vec<(usize, usize)>> {
        let of = |chunk: &Chunk| self.wanted(chunk, tensor).map(|wanted| cut(&wanted.runs(chunk), AT_ONCE));
        self.chunks.iter().filter_map(of).flatten().collect()
    }

    /// Writes this rank's part of a tensor to its memory. `read` receives the ranges of the whole tensor that are needed
    /// here, (first, how many) one after the other, and a buffer for their values, 1 MiB of them at a time: the values are still in the
    /// processor's cache when they are written. It receives no other ranges, and is not called if this rank has no part of the tensor.
    ///
    /// # Errors
    /// Errors of the device or of `read`.
    pub fn write_with<E: From<ParallelError>>(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        read: &mut ReadElements<'_, E>,
    ) -> Result<(), E> {
        let mut memory = Vec::new();
        for chunk in &self.chunks {
            let Some(wanted) = self.wanted(chunk, tensor) else { continue };
            let mut at = wanted.range.start;
            for runs in cut(&wanted.runs(chunk), AT_ONCE) {
                memory.resize(runs.iter().map(|run| run.1).sum(), 0.0);
                read(&runs, &mut memory)?;
                match wanted.to {
                    WantedPlace::Whole(name) => {
                        let view = chunk.state_view(name, wanted.range.len())?;
                        view.write(backend, at, &memory).map_err(ParallelError::from)?;
                    }
                    WantedPlace::Param(param, of) => {
                        let plan = (&self.plan, self.coord);
                        chunk.write_tensor_shard(backend, plan, param, &of, at, &memory)?;
                    }
                }
                at += memory.len();
            }
        }
        Ok(())
    }
}

/// Cuts runs, (first, how many), into lists of `most` elements each; the last one has the rest.
fn cut(runs: &[(usize, usize)], most: usize) -> Vec<Vec<(usize, usize)>> {
    let (mut lists, mut list, mut room) = (Vec::new(), Vec::new(), most);
    for (mut first, mut len) in runs.iter().copied() {
        while len > 0 {
            let here = len.min(room);
            list.push((first, here));
            (first, len, room) = (first + here, len - here, room - here);
            if room == 0 {
                lists.push(std::mem::take(&mut list));
                room = most;
            }
        }
    }
    lists.extend((!list.is_empty()).then_some(list));
    lists
}

/// A chunk's part of a tensor: its destination, and its elements among the rank's part of the tensor.
struct WantedPart<'a> {
    to: WantedPlace<'a>,
    range: Range<usize>,
}

impl WantedPart<'_> {
    /// Its elements in the whole tensor: (first, how many), one after the other.
    fn runs(&self, chunk: &Chunk) -> Vec<(usize, usize)> {
        match self.to {
            WantedPlace::Whole(_) => vec![(0, self.range.len())],
            WantedPlace::Param(param, _) => {
                let runs = chunk.tensor_shard[param].runs().into_iter();
                runs.filter_map(|run| run.within(&self.range)).map(|run| (run.whole, run.len)).collect()
            }
        }
    }
}

/// Destination of elements.
enum WantedPlace<'a> {
    /// The whole state of this name.
    Whole(&'a str),
    /// The parameter of this number, its gradient, or a state of it.
    Param(usize, Of<'a>),
}

/// The elements of a part, `own`, that another part has too, as stretches of the first. Both ascend in the whole.
fn common(own: &[ElementRun], other: &[ElementRun]) -> Vec<Range<usize>> {
    let (mut out, mut from): (Vec<Range<usize>>, _) = (Vec::new(), 0);
    for run in own {
        while other.get(from).is_some_and(|o| o.wholes().end <= run.whole) {
            from += 1;
        }
        for o in other[from..].iter().take_while(|o| o.whole < run.wholes().end) {
            if let Some(both) = run.of_whole(&o.wholes()) {
                match out.last_mut() {
                    Some(last) if last.end == both.local => last.end += both.len,
                    _ => out.push(both.locals()),
                }
            }
        }
    }
    out
}
