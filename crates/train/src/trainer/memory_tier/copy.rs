//! A copy of a rank's saved state, by one or several threads, and the number of steps between two copies.

use super::TrainError;
use bessemer_memory_checkpoint::{CHUNK, MemoryError, SlotWriter};
use bessemer_parallel::OwnSlices;
use bessemer_tensor::Backend;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, mpsc};

/// Elements of a chunk of a slot.
const ELEMENTS: usize = CHUNK / 4;
/// Weight of the newest copy in the smoothed seconds of one.
const WEIGHT: f64 = 0.3;

/// A chunk in flight from the device to the slot: its number, its values and how many of them it has.
struct Block {
    number: usize,
    values: Vec<f32>,
    len: usize,
}

impl Block {
    fn write(&self, writer: &SlotWriter<'_>) -> Result<(), MemoryError> {
        writer.write_chunk(self.number, bytemuck::cast_slice(&self.values[..self.len]))
    }
}

/// Copies a rank's elements chunk by chunk: this thread reads them from the device, all `threads` hash and write them.
pub(super) struct Copier {
    threads: usize,
    /// Two a thread: they stay in the caches between device, hash and slot.
    blocks: Vec<Block>,
}

impl Copier {
    pub(super) fn new(threads: usize) -> Copier {
        Copier { threads: threads.max(1), blocks: Vec::new() }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Writes some elements of `slices` as the data of a copy.
    pub(super) fn copy(
        &mut self,
        backend: &mut dyn Backend,
        slices: &OwnSlices,
        part: Range<usize>,
        writer: &SlotWriter<'_>,
    ) -> Result<(), TrainError> {
        let elements = part.len();
        let chunks = elements.div_ceil(ELEMENTS);
        let threads = self.threads.min(chunks.max(1));
        let wanted = if threads == 1 { 1 } else { 2 * threads };
        self.blocks.resize_with(wanted, || Block { number: 0, values: Vec::new(), len: 0 });
        let longest = ELEMENTS.min(elements);
        self.blocks.iter_mut().for_each(|block| block.values.resize(longest.max(block.values.len()), 0.0));
        let mut read = |block: &mut Block, number: usize| {
            let start = part.start + number * ELEMENTS;
            let range = start..part.end.min(start + ELEMENTS);
            (block.number, block.len) = (number, range.len());
            slices.read(backend, range, &mut block.values[..block.len])
        };
        if threads == 1 {
            let block = &mut self.blocks[0];
            return (0..chunks).try_for_each(|number| {
                read(block, number)?;
                Ok(block.write(writer)?)
            });
        }
        let (to_free, free) = mpsc::channel();
        self.blocks.drain(..).for_each(|block| drop(to_free.send(block)));
        let (to_write, full) = mpsc::channel::<Block>();
        let full = Mutex::new(full);
        let failure = Mutex::new(None);
        let note = |e: MemoryError| *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        let result = std::thread::scope(|scope| {
            for _ in 1..threads {
                let (to_free, full, note) = (to_free.clone(), &full, &note);
                scope.spawn(move || {
                    let next = || full.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    while let Ok(block) = next() {
                        block.write(writer).unwrap_or_else(note);
                        let _ = to_free.send(block);
                    }
                });
            }
            let to_write = to_write;
            let mut own = free.recv().ok();
            for number in 0..chunks {
                let Some(mut block) = own.take() else { break };
                read(&mut block, number)?;
                // Without a free block to read into, the helpers have enough to do: this thread writes as well.
                own = match free.try_recv() {
                    Ok(other) => {
                        let _ = to_write.send(block);
                        Some(other)
                    }
                    Err(_) => {
                        block.write(writer)?;
                        Some(block)
                    }
                };
            }
            self.blocks.extend(own);
            Ok(())
        });
        drop(to_free);
        self.blocks.extend(free);
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e.into()),
            None => result,
        }
    }
}

/// Steps between two copies: the recipe's, or as few as keep the time that training waits for copies below a part of the total.
#[derive(Debug, Default)]
pub(super) struct CopyInterval {
    /// `None`: chosen.
    fixed: Option<u64>,
    /// Largest part of the time.
    pub(super) overhead: f64,
    /// Smoothed seconds of a copy.
    seconds: Option<f64>,
    /// Step after which the next copy is due.
    due: u64,
    /// Interval that was chosen last.
    pub(super) every: u64,
}

impl CopyInterval {
    /// `every`: steps between copies; 0: chosen so that copies take at most `overhead` of the time.
    pub(super) fn new(every: u64, overhead: f64) -> CopyInterval {
        CopyInterval { fixed: (every > 0).then_some(every), overhead, ..CopyInterval::default() }
    }

    pub(super) fn is_chosen(&self) -> bool {
        self.fixed.is_none()
    }

    pub(super) fn is_due(&self, step: u64) -> bool {
        match self.fixed {
            Some(every) => step.is_multiple_of(every),
            None => step >= self.due,
        }
    }

    /// Takes note of a copy. Returns the steps until the next one, as the first rank sees it; `step`: seconds of a step without a copy.
    pub(super) fn after(&mut self, copy: f64, step: Option<f64>) -> u64 {
        let copy = self.seconds.map_or(copy, |mean| mean + WEIGHT * (copy - mean));
        self.seconds = Some(copy);
        self.fixed.unwrap_or_else(|| recommended(copy, step.unwrap_or(copy), self.overhead))
    }

    /// The next copy is due `every` steps after `step`.
    pub(super) fn next(&mut self, step: u64, every: u64) {
        (self.due, self.every) = (step + every, every);
    }
}

/// Fewest steps between copies of `copy` seconds that keep them below a part, `overhead`, of the time.
pub(super) fn recommended(copy: f64, step: f64, overhead: f64) -> u64 {
    // A quotient that is whole but for rounding is not rounded up.
    ((copy / (overhead * step) - 1e-9).ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_as_frequent_as_their_cost_allows() {
        assert_eq!(recommended(0.01, 1.0, 0.01), 1);
        assert_eq!(recommended(0.2, 2.0, 0.01), 10);
        assert_eq!(recommended(0.2, 2.0, 0.03), 4);
        let mut interval = CopyInterval::new(0, 0.01);
        assert!(interval.is_due(1) && interval.is_chosen());
        let every = interval.after(0.1, Some(1.0));
        interval.next(1, every);
        assert_eq!((every, interval.is_due(10), interval.is_due(11)), (10, false, true));
        // Cheaper copies are made more often, at once.
        let mut every = every;
        for _ in 0..40 {
            every = interval.after(0.005, Some(1.0));
        }
        assert_eq!(every, 1);
        let fixed = CopyInterval::new(3, 0.01);
        assert!(fixed.is_due(3) && !fixed.is_due(4) && !fixed.is_chosen());
    }
}
