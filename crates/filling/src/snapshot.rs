//! What a rank saves, copied as a step found it in the bubbles of that step.
//!
//! ```text
//! step s     ─► a save is due: the next step's program has copying in its bubbles ([`crate::plan_copies`])
//! step s + 1:   passes read parameters and the optimizer's state and change neither; where a rank waits it copies a part of
//!               what it saves into host memory; what found no bubble, right before the update
//!            ─► [`StateCopy`]: leaves the worker with that memory
//! beside step s + 1, s + 2 ..:  a thread of each rank writes its copy
//!            ─► the memory goes back to the worker
//! ```
//! What must never happen: a part is copied after its rank's update has begun (a program with such an order is refused where
//! it is run), or is left out (checked when the copy is taken); memory is copied into while somebody reads it (it is either the
//! worker's or the copy's).

use crate::rank::RankFill;
use bessemer_parallel::{OwnSlices, ParallelError, StateCopy, Worker};
use bessemer_schedule::{Fill, Filler, Instruction, Program};
use bessemer_tensor::Backend;
use std::ops::Range;
use std::sync::Arc;

/// Plan and memory of a rank's copy.
#[derive(Debug)]
pub(crate) struct Snapshot {
    slices: Arc<OwnSlices>,
    /// By chunk: its stretch of the copy, and the parts that the program cuts it into.
    chunks: Vec<(Range<usize>, usize)>,
    /// Parts that were copied since the last copy was taken.
    copied: usize,
    /// Memory for the next copy; none while copies that were taken have all of it.
    free: Option<Vec<f32>>,
}

impl Snapshot {
    /// Copies a part of a chunk.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        Fill { chunk, unit, .. }: Fill,
    ) -> Result<(), ParallelError> {
        let Some(memory) = &mut self.free else {
            return Err(ParallelError::Layout("a copy of the state is begun while another is read".into()));
        };
        let (range, count) = &self.chunks[chunk];
        let cut = |unit: usize| range.start + (range.len() as u128 * unit as u128 / *count as u128) as usize;
        let here = cut(unit)..cut(unit + 1);
        self.slices.read(backend, here.clone(), &mut memory[here])?;
        self.copied += 1;
        Ok(())
    }

    fn units(&self) -> usize {
        self.chunks.iter().map(|(_, count)| count).sum()
    }
}

/// Plans copies of what a rank saves, `slices`. `program`: one whose bubbles they are made in; all programs with copies
/// have the same parts. The memory for them comes with [`give_snapshot_memory`].
///
/// # Errors
/// A program that does not copy what a chunk of this rank has.
pub fn plan_snapshot(
    worker: &mut Worker,
    slices: Arc<OwnSlices>,
    program: &Program,
) -> Result<(), ParallelError> {
    let rank = worker.coord().pipeline;
    let ranges = slices.chunks(program.chunks(rank));
    let mut chunks: Vec<_> = ranges.into_iter().map(|range| (range, 0)).collect();
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
    let snapshot = Snapshot { slices, chunks, copied: 0, free: None };
    worker.filler_work_mut().get_or_insert_with(|| Box::new(RankFill::default()));
    if let Some(fill) = RankFill::of_mut(worker) {
        fill.snapshot = Some(snapshot);
    }
    Ok(())
}

/// Gives memory for the next copy: as many values as the slices of [`plan_snapshot`] have elements.
pub fn give_snapshot_memory(worker: &mut Worker, memory: Vec<f32>) {
    if let Some(snapshot) = RankFill::of_mut(worker).and_then(|fill| fill.snapshot.as_mut()) {
        snapshot.free = Some(memory);
    }
}

/// The copy that the passes of the current step have made, after [`Worker::gradients`] and before [`Worker::apply`].
///
/// # Errors
/// A copy that lacks parts.
pub fn take_snapshot(worker: &mut Worker) -> Result<StateCopy, ParallelError> {
    let (mut copied, mut units) = (0, 0);
    if let Some(snapshot) = RankFill::of_mut(worker).and_then(|fill| fill.snapshot.as_mut()) {
        (copied, units) = (snapshot.copied, snapshot.units());
        if copied == units
            && let Some(memory) = snapshot.free.take()
        {
            snapshot.copied = 0;
            return Ok(StateCopy::new(Arc::clone(&snapshot.slices), memory));
        }
    }
    Err(ParallelError::Layout(format!(
        "schedule {:?} has copied {copied} of {units} pieces of the state",
        worker.program().name
    )))
}
