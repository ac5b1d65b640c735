//! The state as a step found it, copied in the bubbles of that step and gathered beside the steps after it.
//!
//! ```text
//! step s     ─► a save is due: the next step's program has copying in its bubbles ([`crate::plan_copies`])
//! step s + 1:   passes read parameters and the optimizer's state and change neither; where a rank waits it copies a piece of
//!               its own stretches of both into host memory; what found no bubble, right before the update
//!            ─► [`StateCopy`]: leaves the worker with that memory
//! beside step s + 1, s + 2 ..:  a thread of each rank, in a group of its own: rank 0 asks for tensor after tensor
//!            ─► the memory goes back to the worker
//! ```
//! What must never happen: a piece is copied after its rank's update has begun (a program with such an order is refused where
//! it is run), or is left out (checked when the copy is taken); memory is copied into while somebody reads it (it is either the
//! worker's or the copy's).

use crate::rank::RankFill;
use bessemer_collectives::{Communicator, Message};
use bessemer_optim::{OptimConfig, StateView};
use bessemer_parallel::{OwnPiece, ParallelError, ReadAhead, StateTensor, Worker};
use bessemer_schedule::{Fill, Filler, Instruction, Program};
use bessemer_tensor::Backend;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// What a rank says when it wants tensors, and what it is given.
const WANTED: &str = "copied tensor, wanted";
const GIVEN: &str = "copied tensor, a part";

/// A rank's part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    rank: usize,
    /// Range in that rank's copy.
    at: Range<usize>,
    /// (first element of the whole tensor, how many).
    runs: Vec<(usize, usize)>,
}

/// Whose copy has which elements of the job's state: the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyMap {
    /// By tensor.
    shares: Vec<Vec<Share>>,
    /// Elements of each tensor.
    lens: Vec<usize>,
}

/// Plan and memory of a rank's copy.
#[derive(Debug)]
pub(crate) struct Snapshot {
    map: Arc<CopyMap>,
    /// Views and where their copies begin, ascending.
    pieces: Vec<(StateView, usize)>,
    /// By chunk: its stretch of the copy, and the pieces that the program cuts it into.
    chunks: Vec<(Range<usize>, usize)>,
    /// Pieces that were copied since the last copy was taken.
    copied: usize,
    /// Empty while a [`StateCopy`] has the memory.
    memory: Option<Vec<f32>>,
}

/// The state of a whole job as a step found it: this rank's part, and who has the others. It may go to another thread.
#[derive(Debug)]
pub struct StateCopy {
    map: Arc<CopyMap>,
    values: Vec<f32>,
    ahead: Option<ReadAhead>,
}

impl CopyMap {
    /// From every rank's list: of each piece the tensor, the number of its runs, and these.
    fn new(tensors: &[StateTensor], lists: &[Vec<u8>]) -> Result<CopyMap, ParallelError> {
        let mut shares = vec![Vec::new(); tensors.len()];
        for (rank, list) in lists.iter().enumerate() {
            let numbers = list.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize);
            let (mut words, mut begin) = (numbers, 0);
            while let (Some(tensor), Some(count)) = (words.next(), words.next()) {
                let run = |_| Some((words.next()?, words.next()?));
                let runs: Vec<_> = (0..count).map_while(run).collect();
                let end = begin + runs.iter().map(|run| run.1).sum::<usize>();
                shares[tensor].push(Share { rank, at: begin..end, runs });
                begin = end;
            }
        }
        for (tensor, shares) in tensors.iter().zip(&shares) {
            let mut runs: Vec<_> = shares.iter().flat_map(|s| &s.runs).copied().collect();
            runs.sort_unstable();
            let known = runs.into_iter().fold(
                0,
                |known, (first, len)| {
                    if first <= known { known.max(first + len) } else { known }
                },
            );
            if known != tensor.len() {
                return Err(ParallelError::Layout(format!(
                    "ranks have elements 0..{known} of {:?} between them, wanted {}",
                    tensor.name,
                    tensor.len()
                )));
            }
        }
        Ok(CopyMap { shares, lens: tensors.iter().map(StateTensor::len).collect() })
    }

    /// What a rank has of some tensors, in their order.
    fn of_rank(&self, tensors: Range<usize>, rank: usize) -> impl Iterator<Item = &Share> {
        self.shares[tensors].iter().flatten().filter(move |s| s.rank == rank)
    }
}

/// A rank's pieces as numbers of 8 bytes, for the other ranks.
fn list(pieces: &[OwnPiece]) -> Vec<u8> {
    let mut list = Vec::new();
    for piece in pieces {
        list.extend([piece.tensor, piece.runs.len()]);
        list.extend(piece.runs.iter().flat_map(|(first, len)| [*first, *len]));
    }
    list.into_iter().flat_map(|number| (number as u64).to_le_bytes()).collect()
}

impl Snapshot {
    /// Copies a piece of a chunk.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        Fill { chunk, unit, .. }: Fill,
    ) -> Result<(), ParallelError> {
        let Some(memory) = &mut self.memory else {
            return Err(ParallelError::Layout("a copy of the state is begun while another is read".into()));
        };
        let (range, count) = &self.chunks[chunk];
        let cut = |unit: usize| range.start + (range.len() as u128 * unit as u128 / *count as u128) as usize;
        let here = cut(unit)..cut(unit + 1);
        let first = self.pieces.partition_point(|(view, at)| at + view.len() <= here.start);
        for (view, at) in &self.pieces[first..] {
            let (start, end) = (here.start.max(*at), here.end.min(at + view.len()));
            if start >= end {
                break;
            }
            view.read(backend, start - at, &mut memory[start..end])?;
        }
        self.copied += 1;
        Ok(())
    }

    fn units(&self) -> usize {
        self.chunks.iter().map(|(_, count)| count).sum()
    }
}

/// Makes memory for copies of a rank's state, and agrees with the other ranks on who copies what. `program`: one whose bubbles it
/// is copied in; all programs with copies have the same pieces. All ranks call this.
///
/// # Errors
/// A program that does not copy what a chunk of this rank has, a state that does not lie as expected, or what another
/// rank answers.
pub fn plan_snapshot(
    worker: &mut Worker,
    config: &OptimConfig,
    program: &Program,
) -> Result<(), ParallelError> {
    let tensors = worker.tensors(config)?;
    let mut own = worker.own_pieces(&tensors)?;
    own.sort_by_key(|piece| piece.chunk);
    let lists = worker.gather_bytes("pieces of the state", &list(&own))?;
    let map = Arc::new(CopyMap::new(&tensors, &lists)?);
    let rank = worker.coord().pipeline;
    let mut chunks = vec![(0..0, 0); program.chunks(rank)];
    let (mut pieces, mut end) = (Vec::with_capacity(own.len()), 0);
    for piece in &own {
        let range = &mut chunks[piece.chunk].0;
        let start = if range.start == range.end { end } else { range.start };
        pieces.push((piece.view, end));
        end += piece.view.len();
        *range = start..end;
    }
    for instruction in &program.lists[rank] {
        if let Instruction::Fill(Fill { filler: Filler::Copy, chunk, .. }) = instruction {
            chunks[*chunk].1 += 1;
        }
    }
    if let Some(chunk) = chunks.iter().position(|(range, count)| *count == 0 && !range.is_empty()) {
        return Err(ParallelError::Layout(format!(
            "schedule {:?} copies nothing of chunk {chunk} of pipeline rank {rank}",
            program.name
        )));
    }
    let memory = Some(vec![0.0; end]);
    let snapshot = Snapshot { map, pieces, chunks, copied: 0, memory };
    worker.filler_work_mut().get_or_insert_with(|| Box::new(RankFill::default()));
    if let Some(fill) = RankFill::of_mut(worker) {
        fill.snapshot = Some(snapshot);
    }
    Ok(())
}

/// Bytes that [`plan_snapshot`] will ask for.
///
/// # Errors
/// As [`plan_snapshot`].
pub fn snapshot_bytes(worker: &Worker, config: &OptimConfig) -> Result<u64, ParallelError> {
    let pieces = worker.own_pieces(&worker.tensors(config)?)?;
    Ok(4 * pieces.iter().map(|piece| piece.view.len() as u64).sum::<u64>())
}

/// The copy that the passes of the current step have made, after [`Worker::gradients`] and before [`Worker::apply`].
///
/// # Errors
/// A copy that lacks pieces.
pub fn take_snapshot(worker: &mut Worker) -> Result<StateCopy, ParallelError> {
    let whole = |s: &Snapshot| s.copied == s.units();
    match RankFill::of_mut(worker).and_then(|fill| fill.snapshot.as_mut()) {
        Some(snapshot) if whole(snapshot) && snapshot.memory.is_some() => {
            snapshot.copied = 0;
            let values = snapshot.memory.take().unwrap_or_default();
            Ok(StateCopy { map: Arc::clone(&snapshot.map), values, ahead: None })
        }
        other => {
            let (copied, units) = other.as_ref().map_or((0, 0), |s| (s.copied, s.units()));
            Err(ParallelError::Layout(format!(
                "schedule {:?} has copied {copied} of {units} pieces of the state",
                worker.program().name
            )))
        }
    }
}

/// Gives the memory of a copy back for the next one.
pub fn give_back_snapshot(worker: &mut Worker, copy: StateCopy) {
    if let Some(snapshot) = RankFill::of_mut(worker).and_then(|fill| fill.snapshot.as_mut()) {
        snapshot.memory = Some(copy.values);
    }
}

impl StateCopy {
    /// Puts whole tensor `index` (of [`Worker::tensors`]) into `values`, on rank 0 of `group`, a group of all ranks in their
    /// order. The others are in [`StateCopy::serve`]. Small tensors come in batches: one message to and from each rank.
    ///
    /// # Errors
    /// An error of another rank, or a tensor that does not exist.
    pub fn read(
        &mut self,
        group: &mut dyn Communicator,
        index: usize,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let StateCopy { map, values: own, ahead } = self;
        let ahead = ahead.get_or_insert_with(|| ReadAhead::new(map.lens.clone()));
        if ahead.get(index).is_none() {
            ahead.read(index, |tensors, values| gather(map, own, group, tensors, values))?;
        }
        values.copy_from_slice(ahead.get(index).unwrap_or_default());
        Ok(())
    }

    /// Serves rank 0's reads on the other ranks, until [`StateCopy::end`].
    ///
    /// # Errors
    /// An error of rank 0, or its absence.
    pub fn serve(&self, group: &mut dyn Communicator) -> Result<(), ParallelError> {
        let me = group.rank();
        let mut part = Vec::new();
        loop {
            let mut words = [0u32; 2];
            group.receive(Message::new(WANTED, 0, 0), &mut words)?;
            let [start, end] = words.map(|word| word as usize);
            if start == end {
                return Ok(());
            }
            part.clear();
            for share in self.map.of_rank(start..end, me) {
                part.extend_from_slice(&self.values[share.at.clone()]);
            }
            group.send(Message::new(GIVEN, 1, 0), &part)?;
        }
    }

    /// Ends the reads of rank 0.
    ///
    /// # Errors
    /// Another rank is gone; the others get the message all the same.
    pub fn end(&self, group: &mut dyn Communicator) -> Result<(), ParallelError> {
        (1..group.size()).map(|rank| ask(group, rank, 0..0)).fold(Ok(()), Result::and)
    }
}

/// Puts whole tensors, one after the other, into `values`, on rank 0.
fn gather(
    map: &CopyMap,
    own: &[f32],
    group: &mut dyn Communicator,
    tensors: Range<usize>,
    values: &mut [f32],
) -> Result<(), ParallelError> {
    let me = group.rank();
    let ranks: BTreeSet<usize> = map.shares[tensors.clone()].iter().flatten().map(|s| s.rank).collect();
    for rank in ranks.iter().filter(|rank| **rank != me) {
        ask(group, *rank, tensors.clone())?;
    }
    let mut starts = vec![0; tensors.len()];
    for at in 1..starts.len() {
        starts[at] = starts[at - 1] + map.lens[tensors.start + at - 1];
    }
    let mut given = Vec::new();
    for rank in ranks {
        given.resize(map.of_rank(tensors.clone(), rank).map(|s| s.at.len()).sum(), 0.0);
        if rank != me {
            group.receive(Message::new(GIVEN, 1, rank), &mut given)?;
        }
        let mut next = 0;
        for (at, shares) in map.shares[tensors.clone()].iter().enumerate() {
            for share in shares.iter().filter(|s| s.rank == rank) {
                let part =
                    if rank == me { &own[share.at.clone()] } else { &given[next..next + share.at.len()] };
                next += share.at.len();
                let mut from = 0;
                for (first, len) in &share.runs {
                    values[starts[at] + first..][..*len].copy_from_slice(&part[from..from + len]);
                    from += len;
                }
            }
        }
    }
    Ok(())
}

/// Rank 0 wants a rank's shares of these tensors, or, if there are none, nothing more.
fn ask(group: &mut dyn Communicator, rank: usize, tensors: Range<usize>) -> Result<(), ParallelError> {
    let words = [tensors.start, tensors.end].map(|word| word as u32);
    Ok(group.send(Message::new(WANTED, 0, rank), &words)?)
}
