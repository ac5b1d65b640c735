//! The elements that a rank needs of copies: read from the slots on its host, fetched from other ranks where they are not.

use super::launch::host;
use super::restore::{OwnCopy, unreadable};
use super::{MemoryTier, TrainError, elements};
use bessemer_checkpoint::WantedElements;
use bessemer_memory_checkpoint::{CHUNK, ElementRange, MemoryError, Slot, StatePart, exchange_elements};
use bessemer_mesh::BoxRange;
use bessemer_parallel::{ParallelError, StateTensor, Worker};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

const BOXES: &str = "slices of copies in memory";
const ELSEWHERE: &str = "copies on other hosts";

/// Elements that are read at a time where fewer are wanted.
const WINDOW: usize = CHUNK / 4;
/// Fewest elements that are read by themselves.
const DIRECT: usize = 1 << 12;

/// A slice of a tensor that a rank saves.
#[derive(Debug, Serialize, Deserialize)]
struct SavedBox {
    tensor: usize,
    start: Vec<usize>,
    shape: Vec<usize>,
    /// Its first element among all that the rank saves.
    at: usize,
}

/// Slices that a rank saves, and the slots that it reads for all.
#[derive(Debug, Serialize, Deserialize)]
struct SavedState {
    host: u64,
    slots: Vec<SavedSlot>,
    boxes: Vec<SavedBox>,
}

/// The slot of a part.
#[derive(Debug, Serialize, Deserialize)]
struct SavedSlot {
    part: usize,
    /// Device and inode: a file of the same name may be another one.
    file: [u64; 2],
    name: String,
}

/// A part as this rank reads it.
struct CopiedPart {
    /// Its elements among those that its rank saves.
    elements: Range<usize>,
    /// Rank that reads it for others.
    reader: usize,
    /// Its first element among those of all parts that the reader reads.
    at: usize,
    /// The slot, if it is on this host.
    here: Option<SlotReader>,
}

/// Copies of all ranks' states of one step, as this rank reads them.
pub(super) struct CopiedState {
    /// Indexed by tensor: the rank that saves a box, and the box.
    boxes: HashMap<usize, Vec<(usize, SavedBox)>>,
    parts: Vec<CopiedPart>,
    /// Indexed by rank: the parts of its state, in the order of their elements.
    of_rank: Vec<Vec<usize>>,
    /// Whether any rank has elements to fetch.
    fetches: bool,
    /// Indexed by reader: elements of the present batch that were fetched, and how many of them were taken.
    fetched: Vec<(Vec<f32>, usize)>,
}

/// Elements of a part's copy: where they are in it, where they go, how many.
struct Stretch {
    part: usize,
    from: usize,
    to: usize,
    len: usize,
}

impl CopiedState {
    /// Sends all ranks the locations of the copies, of which `own` is this rank's. All of them are verified. All ranks call this.
    pub(super) fn gather(
        worker: &mut Worker,
        tier: &MemoryTier,
        own: &OwnCopy,
    ) -> Result<CopiedState, TrainError> {
        let boxes = tier.slices.slices().iter().map(|slice| SavedBox {
            tensor: slice.tensor,
            start: slice.part.start.clone(),
            shape: slice.part.shape.clone(),
            at: slice.at.start,
        });
        let slots = own.slots(worker.rank()).map(|(part, slot)| {
            let name = slot.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(SavedSlot { part, file: slot.file_number()?, name })
        });
        let slots = slots.collect::<Result<Vec<_>, MemoryError>>()?;
        let saved = SavedState { host: host(), slots, boxes: boxes.collect() };
        let all = worker.gather_bytes(BOXES, &serde_json::to_vec(&saved).map_err(unreadable)?)?;
        let list = tier.parts.list();
        let part =
            |part: &StatePart| CopiedPart { elements: elements(&part.bytes), reader: 0, at: 0, here: None };
        let mut copied = CopiedState {
            boxes: HashMap::new(),
            parts: list.iter().map(part).collect(),
            of_rank: vec![Vec::new(); all.len()],
            fetches: false,
            fetched: all.iter().map(|_| (Vec::new(), 0)).collect(),
        };
        // Parts of a rank's state are listed in the order of their elements.
        list.iter().enumerate().for_each(|(number, part)| copied.of_rank[part.of].push(number));
        for (rank, bytes) in all.iter().enumerate() {
            let SavedState { host, slots, boxes } = serde_json::from_slice(bytes).map_err(unreadable)?;
            let mut at = 0;
            for SavedSlot { part, file, name } in slots {
                let here = tier
                    .directory(part)
                    .filter(|_| host == saved.host)
                    .and_then(|directory| directory.slot(&name, tier.parts.keys()[part]).ok());
                let here = here.filter(|slot| slot.file_number().is_ok_and(|found| found == file));
                let copied = &mut copied.parts[part];
                (copied.reader, copied.at, copied.here) = (rank, at, here.map(SlotReader::new));
                at += copied.elements.len();
            }
            boxes.into_iter().for_each(|b| copied.boxes.entry(b.tensor).or_default().push((rank, b)));
        }
        let fetches = copied.parts.iter().any(|part| part.here.is_none());
        copied.fetches = worker.any(ELSEWHERE, fetches)?;
        Ok(copied)
    }

    /// The stretches of copies with the elements that a call of [`Worker::write_with`] requests, `values` elements.
    fn stretches(
        &self,
        number: usize,
        tensor: &StateTensor,
        runs: &[(usize, usize)],
        values: usize,
    ) -> Result<Vec<Stretch>, TrainError> {
        let wanted = WantedElements::new(runs, tensor.len(), values).map_err(ParallelError::Layout)?;
        let mut stretches = Vec::new();
        for (rank, b) in self.boxes.get(&number).into_iter().flatten() {
            let part = BoxRange { start: b.start.clone(), shape: b.shape.clone() };
            let found = wanted.within(&tensor.shape, &part).into_iter();
            for f in found {
                let (first, end) = (b.at + f.local, b.at + f.local + f.len);
                for part in self.of_rank[*rank].iter().copied() {
                    let range = &self.parts[part].elements;
                    let (start, end) = (first.max(range.start), end.min(range.end));
                    if start < end {
                        let (from, to) = (start - range.start, f.to + start - first);
                        stretches.push(Stretch { part, from, to, len: end - start });
                    }
                }
            }
        }
        Ok(stretches)
    }

    /// Fetches the elements of some tensors that this rank needs and does not have on its host. All ranks call this.
    pub(super) fn fetch<'a>(
        &mut self,
        worker: &mut Worker,
        own: &OwnCopy,
        tensors: impl Iterator<Item = (usize, &'a StateTensor)>,
    ) -> Result<(), TrainError> {
        if !self.fetches {
            return Ok(());
        }
        let mut requests: Vec<Vec<ElementRange>> = self.fetched.iter().map(|_| Vec::new()).collect();
        for (number, tensor) in tensors {
            for runs in worker.wanted_runs(tensor) {
                let values = runs.iter().map(|run| run.1).sum();
                let stretches = self.stretches(number, tensor, &runs, values)?;
                for Stretch { part, from, len, .. } in stretches {
                    let part = &self.parts[part];
                    if part.here.is_none() {
                        requests[part.reader].push(((part.at + from) as u64, len as u64));
                    }
                }
            }
        }
        let slots: Vec<_> = own.slots(worker.rank()).collect();
        let directory = slots[0].1.path().to_path_buf();
        let mut read = |first: u64, to: &mut [f32]| {
            let mut first = 4 * first;
            for (_, slot) in &slots {
                match first.checked_sub(slot.key().bytes) {
                    None => return slot.read_at(bytemuck::cast_slice_mut(to), first),
                    Some(behind) => first = behind,
                }
            }
            let path = directory.clone();
            Err(MemoryError::Foreign { path, problem: "a rank needs elements that no copy contains".into() })
        };
        let fetched = exchange_elements(worker.world(), &requests, &mut read)?;
        self.fetched = fetched.into_iter().map(|values| (values, 0)).collect();
        Ok(())
    }

    /// Reads the elements that a call of [`Worker::write_with`] requests. Calls come in the order of the tensors of [`CopiedState::fetch`].
    pub(super) fn read(
        &mut self,
        number: usize,
        tensor: &StateTensor,
        runs: &[(usize, usize)],
        to: &mut [f32],
    ) -> Result<(), TrainError> {
        for Stretch { part, from, to: at, len } in self.stretches(number, tensor, runs, to.len())? {
            let to = &mut to[at..at + len];
            let part = &mut self.parts[part];
            match &mut part.here {
                Some(slot) => slot.read(from, to)?,
                None => {
                    let (values, taken) = &mut self.fetched[part.reader];
                    to.copy_from_slice(&values[*taken..*taken + len]);
                    *taken += len;
                }
            }
        }
        Ok(())
    }
}

/// Reads elements of a slot; many short stretches that are close together cost one call of the system.
struct SlotReader {
    slot: Slot,
    window: Vec<f32>,
    first: usize,
}

impl SlotReader {
    fn new(slot: Slot) -> SlotReader {
        SlotReader { slot, window: Vec::new(), first: 0 }
    }

    fn read(&mut self, from: usize, to: &mut [f32]) -> Result<(), MemoryError> {
        let read =
            |from: usize, to: &mut [f32]| self.slot.read_at(bytemuck::cast_slice_mut(to), 4 * from as u64);
        if to.len() >= DIRECT {
            return read(from, to);
        }
        let is_there = from >= self.first && from + to.len() <= self.first + self.window.len();
        if !is_there {
            let left = (self.slot.key().bytes / 4) as usize - from;
            self.window.resize(WINDOW.min(left), 0.0);
            self.first = from;
            read(from, &mut self.window)?;
        }
        to.copy_from_slice(&self.window[from - self.first..][..to.len()]);
        Ok(())
    }
}
