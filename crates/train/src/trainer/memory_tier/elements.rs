//! The elements that a rank needs of copies: read from the slots that lie on its host, fetched from other ranks where they do not.

use super::launch::host;
use super::restore::unreadable;
use super::{MemoryTier, TrainError};
use bessemer_checkpoint::WantedElements;
use bessemer_memory_checkpoint::{CHUNK, ElementRange, MemoryError, Slot, exchange_elements};
use bessemer_mesh::BoxRange;
use bessemer_parallel::{ParallelError, StateTensor, Worker};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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

/// Slices that a rank saves, and the slot that has them.
#[derive(Debug, Serialize, Deserialize)]
struct SavedState {
    host: u64,
    /// Device and inode of the slot: a file of the same name may be another one.
    file: [u64; 2],
    name: String,
    boxes: Vec<SavedBox>,
}

/// Copies of all ranks' states of one step, as this rank reads them.
pub(super) struct CopiedState {
    /// By tensor: the rank that saves a box, and the box.
    boxes: HashMap<usize, Vec<(usize, SavedBox)>>,
    /// By rank: the slot, if it lies on this host.
    here: Vec<Option<SlotReader>>,
    /// Whether any rank has elements to fetch.
    fetches: bool,
    /// By rank: elements of the present batch that were fetched, and how many of them were taken.
    fetched: Vec<(Vec<f32>, usize)>,
}

/// Elements of a rank's copy: where they are in it, where they go, how many.
struct Stretch {
    rank: usize,
    from: usize,
    to: usize,
    len: usize,
}

impl CopiedState {
    /// Tells all ranks where the copies are, of which `own` is this rank's. All of them are verified. All ranks call this.
    pub(super) fn gather(
        worker: &mut Worker,
        tier: &MemoryTier,
        own: &Slot,
    ) -> Result<CopiedState, TrainError> {
        let boxes = tier.slices.slices().iter().map(|slice| SavedBox {
            tensor: slice.tensor,
            start: slice.part.start.clone(),
            shape: slice.part.shape.clone(),
            at: slice.at.start,
        });
        let name = own.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let saved = SavedState { host: host(), file: own.file_number()?, name, boxes: boxes.collect() };
        let all = worker.gather_bytes(BOXES, &serde_json::to_vec(&saved).map_err(unreadable)?)?;
        let mut copied = CopiedState {
            boxes: HashMap::new(),
            here: Vec::new(),
            fetches: false,
            fetched: all.iter().map(|_| (Vec::new(), 0)).collect(),
        };
        for (rank, bytes) in all.iter().enumerate() {
            let SavedState { host, file, name, boxes } = serde_json::from_slice(bytes).map_err(unreadable)?;
            let slot = match host == saved.host {
                true => Slot::open_existing(&tier.memory.directory.path().join(name), tier.keys[rank]).ok(),
                false => None,
            };
            let slot = slot.filter(|slot| slot.file_number().is_ok_and(|found| found == file));
            copied.here.push(slot.map(SlotReader::new));
            boxes.into_iter().for_each(|b| copied.boxes.entry(b.tensor).or_default().push((rank, b)));
        }
        let fetches = copied.here.iter().any(Option::is_none);
        copied.fetches = worker.any(ELSEWHERE, fetches)?;
        Ok(copied)
    }

    /// The stretches of copies that have what a call of [`Worker::write_with`] asks for, `values` elements.
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
            stretches.extend(found.map(|f| Stretch {
                rank: *rank,
                from: b.at + f.local,
                to: f.to,
                len: f.len,
            }));
        }
        Ok(stretches)
    }

    /// Fetches what this rank wants of some tensors and does not have on its host. All ranks call this.
    pub(super) fn fetch<'a>(
        &mut self,
        worker: &mut Worker,
        own: &Slot,
        tensors: impl Iterator<Item = (usize, &'a StateTensor)>,
    ) -> Result<(), TrainError> {
        if !self.fetches {
            return Ok(());
        }
        let mut requests: Vec<Vec<ElementRange>> = self.here.iter().map(|_| Vec::new()).collect();
        for (number, tensor) in tensors {
            for runs in worker.wanted_runs(tensor) {
                let values = runs.iter().map(|run| run.1).sum();
                let stretches = self.stretches(number, tensor, &runs, values)?;
                for stretch in stretches.iter().filter(|stretch| self.here[stretch.rank].is_none()) {
                    requests[stretch.rank].push((stretch.from as u64, stretch.len as u64));
                }
            }
        }
        let mut read = |first: u64, to: &mut [f32]| own.read_at(bytemuck::cast_slice_mut(to), 4 * first);
        let fetched = exchange_elements(worker.world(), &requests, &mut read)?;
        self.fetched = fetched.into_iter().map(|values| (values, 0)).collect();
        Ok(())
    }

    /// Reads what a call of [`Worker::write_with`] asks for. Calls come in the order of the tensors of [`CopiedState::fetch`].
    pub(super) fn read(
        &mut self,
        number: usize,
        tensor: &StateTensor,
        runs: &[(usize, usize)],
        to: &mut [f32],
    ) -> Result<(), TrainError> {
        for Stretch { rank, from, to: at, len } in self.stretches(number, tensor, runs, to.len())? {
            let to = &mut to[at..at + len];
            match &mut self.here[rank] {
                Some(slot) => slot.read(from, to)?,
                None => {
                    let (values, taken) = &mut self.fetched[rank];
                    to.copy_from_slice(&values[*taken..*taken + len]);
                    *taken += len;
                }
            }
        }
        Ok(())
    }
}

/// Reads elements of a slot; many short stretches that lie close together cost one call of the system.
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
