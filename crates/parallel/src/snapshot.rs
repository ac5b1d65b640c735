//! The state as a step found it, copied in the bubbles of that step and brought together beside the steps after it.
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

use crate::error::ParallelError;
use crate::state::{OwnPiece, StateTensor};
use crate::worker::Worker;
use bessemer_collectives::{Communicator, Message};
use bessemer_optim::OptimConfig;
use bessemer_schedule::{Fill, Filler, Instruction, Program};
use bessemer_tensor::{Backend, View};
use std::ops::Range;
use std::sync::Arc;

/// What a rank says when it wants tensors, and what it is given.
const WANTED: &str = "copied tensor, wanted";
const GIVEN: &str = "copied tensor, a part";

/// A rank's part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    rank: usize,
    /// Where it lies in that rank's copy.
    at: Range<usize>,
    /// (first element of the whole tensor, how many).
    runs: Vec<(usize, usize)>,
}

/// Whose copy has which elements of the job's state: the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyMap {
    /// By tensor.
    shares: Vec<Vec<Share>>,
}

/// What a rank copies.
#[derive(Debug)]
pub(crate) struct Snapshot {
    map: Arc<CopyMap>,
    /// Views and where their copies begin, ascending.
    pieces: Vec<(View, usize)>,
    /// By chunk: its stretch of the copy, and the pieces that the program cuts it into.
    chunks: Vec<(Range<usize>, usize)>,
    /// Pieces that were copied since the last copy was taken.
    copied: usize,
    /// Nothing while a copy is elsewhere.
    memory: Option<Vec<f32>>,
}

/// The state of a whole job as a step found it: this rank's part, and who has the others. It may go to another thread.
#[derive(Debug)]
pub struct StateCopy {
    map: Arc<CopyMap>,
    values: Vec<f32>,
}

impl CopyMap {
    /// From every rank's list: of each piece the tensor, the number of its runs, and these.
    fn new(tensors: &[StateTensor], lists: &[Vec<u64>]) -> Result<CopyMap, ParallelError> {
        let mut shares = vec![Vec::new(); tensors.len()];
        for (rank, list) in lists.iter().enumerate() {
            let (mut words, mut begin) = (list.iter().map(|w| *w as usize), 0);
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
        Ok(CopyMap { shares })
    }
}

/// What a rank tells of its pieces.
fn list(pieces: &[OwnPiece]) -> Vec<u64> {
    let mut list = Vec::new();
    for piece in pieces {
        list.extend([piece.tensor as u64, piece.runs.len() as u64]);
        list.extend(piece.runs.iter().flat_map(|(first, len)| [*first as u64, *len as u64]));
    }
    list
}

impl Snapshot {
    /// Copies piece `unit` of a chunk.
    pub(crate) fn copy(
        &mut self,
        backend: &mut dyn Backend,
        (chunk, unit): (usize, usize),
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
            let (offset, cols) = (view.offset + start - at, end - start);
            let part = View { offset, rows: 1, cols, stride: cols, ..*view };
            backend.read_f32(part, &mut memory[start..end])?;
        }
        self.copied += 1;
        Ok(())
    }

    fn units(&self) -> usize {
        self.chunks.iter().map(|(_, count)| count).sum()
    }
}

impl Worker {
    /// Makes memory for copies of the state, and agrees with the other ranks on who copies what. `program`: the one whose
    /// bubbles it is copied in. All ranks call this.
    ///
    /// # Errors
    /// A program that does not copy what a chunk of this rank has, a state that does not lie as expected, or what another
    /// rank answers.
    pub fn plan_snapshot(&mut self, config: &OptimConfig, program: &Program) -> Result<(), ParallelError> {
        let tensors = self.tensors(config)?;
        let mut own = self.own_pieces(&tensors)?;
        own.sort_by_key(|piece| piece.chunk);
        let lists = self.control.gather_lists(&mut *self.world, "pieces of the state", &list(&own))?;
        let map = Arc::new(CopyMap::new(&tensors, &lists)?);
        let mut chunks = vec![(0..0, 0); self.chunks.len()];
        let (mut pieces, mut end) = (Vec::with_capacity(own.len()), 0);
        for piece in &own {
            let range = &mut chunks[piece.chunk].0;
            let start = if range.start == range.end { end } else { range.start };
            pieces.push((piece.view, end));
            end += piece.view.len();
            *range = start..end;
        }
        for instruction in &program.lists[self.coord.pipeline] {
            if let Instruction::Fill(Fill { filler: Filler::Copy, chunk, .. }) = instruction {
                chunks[*chunk].1 += 1;
            }
        }
        if let Some(chunk) = chunks.iter().position(|(range, count)| *count == 0 && !range.is_empty()) {
            return Err(ParallelError::Layout(format!(
                "schedule {:?} copies nothing of chunk {chunk} of pipeline rank {}",
                program.name, self.coord.pipeline
            )));
        }
        let memory = Some(vec![0.0; end]);
        self.snapshot = Some(Snapshot { map, pieces, chunks, copied: 0, memory });
        Ok(())
    }

    /// Bytes that [`Worker::plan_snapshot`] will ask for.
    ///
    /// # Errors
    /// As [`Worker::plan_snapshot`].
    pub fn snapshot_bytes(&self, config: &OptimConfig) -> Result<u64, ParallelError> {
        let pieces = self.own_pieces(&self.tensors(config)?)?;
        Ok(4 * pieces.iter().map(|piece| piece.view.len() as u64).sum::<u64>())
    }

    /// The copy that the passes of the step at hand have made, after [`Worker::gradients`] and before [`Worker::apply`].
    ///
    /// # Errors
    /// If it is not whole.
    pub fn take_snapshot(&mut self) -> Result<StateCopy, ParallelError> {
        let whole = |s: &Snapshot| s.copied == s.units();
        match &mut self.snapshot {
            Some(snapshot) if whole(snapshot) && snapshot.memory.is_some() => {
                snapshot.copied = 0;
                let values = snapshot.memory.take().unwrap_or_default();
                Ok(StateCopy { map: Arc::clone(&snapshot.map), values })
            }
            other => Err(ParallelError::Layout(format!(
                "schedule {:?} has copied {} of {} pieces of the state",
                self.program.name,
                other.as_ref().map_or(0, |s| s.copied),
                other.as_ref().map_or(0, Snapshot::units)
            ))),
        }
    }

    /// Gives the memory of a copy back for the next one.
    pub fn give_back_snapshot(&mut self, copy: StateCopy) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.memory = Some(copy.values);
        }
    }
}

impl StateCopy {
    /// Puts whole tensor `index` (of [`Worker::tensors`]) into `values`, on rank 0 of `group`, a group of all ranks in their
    /// order. The others are in [`StateCopy::serve`].
    ///
    /// # Errors
    /// What another rank answers, or a tensor that is not there.
    pub fn read(
        &self,
        group: &mut dyn Communicator,
        index: usize,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let me = group.rank();
        let Some(shares) = self.map.shares.get(index) else {
            return Err(ParallelError::Layout(format!("the state has no tensor {index}")));
        };
        for share in shares.iter().filter(|s| s.rank != me) {
            ask(group, share.rank, index as u32 + 1)?;
        }
        let mut given = Vec::new();
        for share in shares {
            let part = if share.rank == me {
                &self.values[share.at.clone()]
            } else {
                given.resize(share.at.len(), 0.0);
                group.receive(Message::new(GIVEN, 1, share.rank), &mut given)?;
                &given
            };
            let mut from = 0;
            for (first, len) in &share.runs {
                values[*first..first + len].copy_from_slice(&part[from..from + len]);
                from += len;
            }
        }
        Ok(())
    }

    /// What ranks other than 0 do while that reads, until [`StateCopy::end`].
    ///
    /// # Errors
    /// What rank 0 answers, or if it is gone.
    pub fn serve(&self, group: &mut dyn Communicator) -> Result<(), ParallelError> {
        let me = group.rank();
        loop {
            let mut word = [0u32];
            group.receive(Message::new(WANTED, 0, 0), &mut word)?;
            let Some(index) = word[0].checked_sub(1) else { return Ok(()) };
            let shares = self.map.shares.get(index as usize).into_iter().flatten();
            for share in shares.filter(|s| s.rank == me) {
                let part = &self.values[share.at.clone()];
                group.send(Message::new(GIVEN, 1, 0), part)?;
            }
        }
    }

    /// Rank 0 wants nothing more.
    ///
    /// # Errors
    /// If another rank is gone; the rest are told all the same.
    pub fn end(&self, group: &mut dyn Communicator) -> Result<(), ParallelError> {
        (1..group.size()).map(|rank| ask(group, rank, 0)).fold(Ok(()), Result::and)
    }
}

/// Rank 0 wants the tensor before number `word` of a rank, or nothing more.
fn ask(group: &mut dyn Communicator, rank: usize, word: u32) -> Result<(), ParallelError> {
    Ok(group.send(Message::new(WANTED, 0, rank), &[word])?)
}
