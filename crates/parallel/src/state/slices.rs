//! Boxes of whole tensors that a rank saves of the job's state, and copies of them in host memory.

use super::{OwnPiece, StateTensor};
use crate::error::ParallelError;
use crate::worker::Worker;
use bessemer_mesh::{BoxRange, box_runs, boxes_of};
use bessemer_tensor::{Backend, PendingRead, ReadValues, all_finite};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A box of a tensor that a rank saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSlice {
    /// Position in the list of tensors.
    pub tensor: usize,
    /// The box.
    pub part: BoxRange,
    /// Its elements among all that the rank saves.
    pub at: Range<usize>,
}

impl OwnSlice {
    /// Its elements in a whole tensor of `shape`, in the order of the box.
    pub fn elements(&self, shape: &[usize]) -> Vec<Range<usize>> {
        box_runs(shape, &self.part).into_iter().map(|run| run.wholes()).collect()
    }
}

/// All that a rank saves: its pieces of memory one after the other, and the boxes that they are.
#[derive(Debug)]
pub struct OwnSlices {
    /// Pieces and where each begins, by chunk, ascending.
    pieces: Vec<(OwnPiece, usize)>,
    slices: Vec<OwnSlice>,
    elements: usize,
}

impl Worker {
    /// The boxes of `tensors` that this rank saves: over all ranks, each element once.
    ///
    /// # Errors
    /// Same errors as [`Worker::own_pieces`].
    pub fn own_slices(&self, tensors: &[StateTensor]) -> Result<OwnSlices, ParallelError> {
        let mut own = self.own_pieces(tensors)?;
        own.sort_by_key(|piece| piece.chunk);
        let (mut pieces, mut slices, mut elements) = (Vec::with_capacity(own.len()), Vec::new(), 0);
        for piece in own {
            let mut at = elements;
            for part in boxes_of(&tensors[piece.tensor].shape, &piece.runs) {
                let end = at + part.elements();
                slices.push(OwnSlice { tensor: piece.tensor, part, at: at..end });
                at = end;
            }
            pieces.push((piece, elements));
            elements = at;
        }
        Ok(OwnSlices { pieces, slices, elements })
    }
}

impl OwnSlices {
    /// The boxes, in the order of their elements.
    pub fn slices(&self) -> &[OwnSlice] {
        &self.slices
    }

    /// Elements of all boxes together.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The elements of each of a rank's chunks.
    pub fn chunks(&self, count: usize) -> Vec<Range<usize>> {
        let of = |chunk: usize| {
            let first = self.pieces.partition_point(|(piece, _)| piece.chunk < chunk);
            let behind = self.pieces.partition_point(|(piece, _)| piece.chunk <= chunk);
            let start = |number: usize| self.pieces.get(number).map_or(self.elements, |(_, at)| *at);
            start(first)..start(behind)
        };
        (0..count).map(of).collect()
    }

    /// Reads some of the elements from the device.
    ///
    /// # Errors
    /// An error of the device.
    pub fn read(
        &self,
        backend: &mut dyn Backend,
        elements: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let first = self.pieces.partition_point(|(piece, at)| at + piece.at.len() <= elements.start);
        for (piece, at) in &self.pieces[first..] {
            let (start, end) = (elements.start.max(*at), elements.end.min(at + piece.at.len()));
            if start >= end {
                break;
            }
            let here = &mut values[start - elements.start..end - elements.start];
            piece.view.read(backend, piece.at.start + start - at, here)?;
        }
        Ok(())
    }
}

/// A copy of a rank's state in progress ([`OwnSlices::begin_copy`]).
#[derive(Debug)]
pub struct PendingCopy {
    slices: Arc<OwnSlices>,
    read: PendingRead,
    /// Whether the values that were read at once are finite.
    finite: bool,
}

/// A copy, and the cost of making it.
#[derive(Debug)]
pub struct FinishedCopy {
    /// The state.
    pub copy: StateCopy,
    /// Whether all values are finite.
    pub finite: bool,
    /// Time for which the device's operators waited for it.
    pub held_up: Duration,
}

impl OwnSlices {
    /// Begins to copy all elements, as they are now, into `memory`, while the device continues. States that are not stored as values,
    /// moments in 8 bits, are read at once.
    ///
    /// # Errors
    /// An error of the device, or memory for another number of elements.
    pub fn begin_copy(
        self: &Arc<Self>,
        backend: &mut dyn Backend,
        mut memory: Vec<f32>,
    ) -> Result<PendingCopy, ParallelError> {
        if memory.len() != self.elements {
            let text = format!("memory for {} values, wanted {}", memory.len(), self.elements);
            return Err(ParallelError::Layout(text));
        }
        let (mut sources, mut finite) = (Vec::with_capacity(self.pieces.len()), true);
        for (piece, at) in &self.pieces {
            match piece.view.stretch(piece.at.start, piece.at.len()) {
                Some(view) => sources.push((view, *at)),
                None => {
                    let here = &mut memory[*at..at + piece.at.len()];
                    piece.view.read(backend, piece.at.start, here)?;
                    finite &= all_finite(here);
                }
            }
        }
        let read = backend.begin_read(sources, memory)?;
        Ok(PendingCopy { slices: Arc::clone(self), read, finite })
    }
}

impl PendingCopy {
    /// Waits for the copy.
    ///
    /// # Errors
    /// An error of the device.
    pub fn wait(self) -> Result<FinishedCopy, ParallelError> {
        let ReadValues { values, finite, held_up } = self.read.wait()?;
        Ok(FinishedCopy { copy: StateCopy::new(self.slices, values), finite: finite && self.finite, held_up })
    }
}

/// Snapshot of the state that a rank saves. It may be sent to another thread.
#[derive(Debug)]
pub struct StateCopy {
    slices: Arc<OwnSlices>,
    values: Vec<f32>,
}

impl StateCopy {
    /// `values` are all elements of `slices`.
    pub fn new(slices: Arc<OwnSlices>, values: Vec<f32>) -> StateCopy {
        StateCopy { slices, values }
    }

    /// The boxes, in the order of their elements.
    pub fn slices(&self) -> &[OwnSlice] {
        self.slices.slices()
    }

    /// The values of a box.
    pub fn values(&self, slice: &OwnSlice) -> &[f32] {
        &self.values[slice.at.clone()]
    }

    /// Gives the memory up for another copy.
    pub fn into_memory(self) -> Vec<f32> {
        self.values
    }
}
