//! Sorting of fixed-width records.
//!
//! A sorter has one bucket or [`BUCKETS`] of them. With several, the prefix of a record chooses its bucket; the
//! buckets are in order, and several threads can fill and read them. If the memory is used up, the records of each bucket
//! are sorted and appended to one file as a run. A bucket is read as the merge of its runs and of the records that are
//! still in memory.

use crate::error::Result;
use crate::memory::{HeldBytes, SortMemory};
use crate::merge::merge_in_groups;
use crate::record::{AddRecord, RecordUnit, RecordWidth, add_count, add_neighbors};
use crate::sorted::{BucketRecords, SortedRecords};
use crate::spill::{RecordReader, SpillFile};
use crate::threads::for_each_on_threads;
use bytemuck::cast_slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buckets of a sorter that several threads fill and read.
pub const BUCKETS: usize = 256;
/// Records that a thread gathers for a bucket before it takes the bucket's lock.
const GATHER: usize = 64;
/// Records below which a second thread is not worth its start.
const MIN_THREAD_RECORDS: usize = 1 << 15;
/// Bytes by which a buffer grows at least.
const MIN_GROWTH: usize = 1 << 10;
/// Bytes of an intermediate merge that are written at once.
const WRITE_BLOCK: usize = 128 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere ends the sort as a whole; what the lock guards is only dropped then.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a sorted run within the file of its sorter.
#[derive(Clone, Copy)]
struct RunExtent {
    offset: u64,
    bytes: u64,
}

struct Bucket<U> {
    held: Vec<U>,
    runs: Vec<RunExtent>,
}

impl<U> Default for Bucket<U> {
    fn default() -> Self {
        Bucket { held: Vec::new(), runs: Vec::new() }
    }
}

struct Spill {
    file: Arc<SpillFile>,
    length: u64,
}

/// Takes records and gives them back in order.
pub struct Sorter<'s, U> {
    pub(crate) memory: &'s SortMemory<'s>,
    width: RecordWidth<U>,
    /// Adds the second record to the first if their keys are equal, where such records become one.
    add: Option<AddRecord<U>>,
    buckets: Vec<Mutex<Bucket<U>>>,
    /// Places by which the prefix is shifted to give the bucket.
    shift: u32,
    pub(crate) held: HeldBytes<'s>,
    spill: Mutex<Option<Spill>>,
    /// How often the buckets were written to disk.
    spills: AtomicUsize,
}

impl<'s, U: RecordUnit> Sorter<'s, U> {
    /// A sorter of one bucket, filled by its owner.
    pub fn new(memory: &'s SortMemory<'s>, width: RecordWidth<U>) -> Self {
        Sorter {
            memory,
            width,
            add: None,
            buckets: vec![Mutex::default()],
            shift: 0,
            held: HeldBytes::new(memory),
            spill: Mutex::new(None),
            spills: AtomicUsize::new(0),
        }
    }

    /// A sorter of [`BUCKETS`] buckets for records that begin with numbers below `total` of eight bytes, evenly spread.
    pub fn partitioned(memory: &'s SortMemory<'s>, width: RecordWidth<U>, total: u64) -> Self {
        let bits = u64::BITS - total.saturating_sub(1).leading_zeros();
        Sorter {
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            shift: bits.saturating_sub(8),
            ..Sorter::new(memory, width)
        }
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes held in memory.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    #[inline]
    fn bucket_of(&self, record: &[U]) -> usize {
        if self.buckets.len() == 1 { 0 } else { (U::prefix(record) >> self.shift) as usize & (BUCKETS - 1) }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    pub fn push(&mut self, record: &[U]) -> Result<()> {
        debug_assert_eq!(record.len(), self.width.units);
        let (index, one_bucket) = (self.bucket_of(record), self.buckets.len() == 1);
        loop {
            let held = &mut self.buckets[index].get_mut().unwrap_or_else(PoisonError::into_inner).held;
            if grow(held, record.len(), &self.held, one_bucket) {
                held.extend_from_slice(record);
                return Ok(());
            }
            if let Some(add) = self.add {
                (self.width.sort)(held);
                add_neighbors(held, self.width.units, add);
                // Where summing made much room there is no need to spill yet.
                if held.len() * 2 <= held.capacity() {
                    continue;
                }
            }
            self.spill()?;
        }
    }

    /// A thread's way to add records beside other threads.
    pub fn feed(&self) -> Feed<'_, 's, U> {
        let gathered = self.buckets.iter().map(|_| Vec::with_capacity(GATHER * self.width.units)).collect();
        Feed { sorter: self, gathered }
    }

    /// Moves what is held to disk, so that other sorters can use the memory.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    pub fn spill(&self) -> Result<()> {
        self.spill_after(self.spills.load(Ordering::Relaxed))
    }

    /// Moves what is held to disk, unless another thread did so since there were `seen` spills.
    fn spill_after(&self, seen: usize) -> Result<()> {
        let mut spill = lock(&self.spill);
        if self.spills.load(Ordering::Relaxed) != seen {
            return Ok(());
        }
        self.memory.check_stop()?;
        let mut taken: Vec<Vec<U>> =
            self.buckets.iter().map(|bucket| std::mem::take(&mut lock(bucket).held)).collect();
        self.sort(&mut taken);
        if spill.is_none() {
            *spill = Some(Spill { file: Arc::new(SpillFile::create(self.memory.folder())?), length: 0 });
        }
        let Some(spill) = spill.as_mut() else { return Ok(()) };
        for (bucket, records) in self.buckets.iter().zip(taken) {
            spill.file.write_at(cast_slice(&records), spill.length)?;
            for slice in records.chunks(self.slice_units(records.len())) {
                let bytes = size_of_val(slice) as u64;
                lock(bucket).runs.push(RunExtent { offset: spill.length, bytes });
                spill.length += bytes;
            }
            self.memory.count_spill(size_of_val(&records[..]) as u64);
            self.held.release(records.capacity() * size_of::<U>());
        }
        self.spills.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Units of a buffer that one thread sorts.
    fn slice_units(&self, units: usize) -> usize {
        if self.buckets.len() > 1 || self.add.is_some() {
            return units.max(1);
        }
        let records = units / self.width.units;
        records.div_ceil(self.memory.threads()).max(MIN_THREAD_RECORDS) * self.width.units
    }

    /// Sorts each slice of each buffer.
    fn sort(&self, buffers: &mut [Vec<U>]) {
        let records = buffers.iter().map(Vec::len).sum::<usize>() / self.width.units;
        let mut slices: Vec<&mut [U]> = buffers
            .iter_mut()
            .flat_map(|buffer| {
                let slice_units = self.slice_units(buffer.len());
                buffer.chunks_mut(slice_units)
            })
            .collect();
        let threads = self.memory.threads().min(records / MIN_THREAD_RECORDS).max(1);
        let per_thread = slices.len().div_ceil(threads).max(1);
        let groups: Vec<_> = slices.chunks_mut(per_thread).collect();
        for_each_on_threads(groups, threads, |group| {
            group.iter_mut().for_each(|slice| (self.width.sort)(slice));
        });
    }

    /// Hands the records of bucket `index` to `take`, in order; they are gone afterwards. Blocks of runs take at most
    /// `memory` bytes.
    ///
    /// # Errors
    /// The disk's, [`Error::Stopped`](crate::Error::Stopped), or those of `take`.
    pub fn drain<E: From<crate::Error>>(
        &self,
        index: usize,
        memory: usize,
        mut take: impl FnMut(&[U]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut records = self.read(index, memory)?;
        let held = records.held;
        if let Some(all) = records.in_memory() {
            all.chunks_exact(self.width.units).try_for_each(&mut take)?;
        } else {
            while let Some(record) = records.next()? {
                take(record)?;
            }
        }
        drop(records);
        self.held.release(held);
        Ok(())
    }

    /// The records in order, one bucket after the other.
    pub fn finish(self) -> SortedRecords<'s, U> {
        SortedRecords::new(self)
    }

    /// The records of bucket `index` in order; they are gone from the sorter afterwards.
    pub(crate) fn read(&self, index: usize, memory: usize) -> Result<BucketRecords<U>> {
        self.memory.check_stop()?;
        let Bucket { held, runs } = std::mem::take(&mut *lock(&self.buckets[index]));
        let (mut counted, mut buffer) = (held.capacity() * size_of::<U>(), [held]);
        self.sort(&mut buffer);
        let [held] = buffer;
        let (end, slice_units, held) = (held.len(), self.slice_units(held.len()), Arc::new(held));
        let mut readers: Vec<RecordReader<U>> = (0..end)
            .step_by(slice_units)
            .map(|at| {
                RecordReader::of_memory(held.clone(), at, (at + slice_units).min(end), self.width.units)
            })
            .collect();
        drop(held);
        let file = lock(&self.spill).as_ref().map(|spill| spill.file.clone());
        if let Some(file) = file.filter(|_| !runs.is_empty()) {
            let fan_in = SortMemory::fan_in(memory);
            let runs = merge_in_groups(runs, |_| fan_in, |group| self.merge(&file, &group, memory))?;
            let blocks = self.blocks(&file, &runs, memory)?;
            let block_bytes = runs.len() * SortMemory::block_bytes(memory, runs.len());
            self.held.add(block_bytes);
            counted += block_bytes;
            readers.extend(blocks);
        }
        Ok(BucketRecords::new(readers, self.add, counted))
    }

    /// Readers of runs that share `memory` bytes.
    fn blocks(
        &self,
        file: &Arc<SpillFile>,
        runs: &[RunExtent],
        memory: usize,
    ) -> Result<Vec<RecordReader<U>>> {
        let block_bytes = SortMemory::block_bytes(memory, runs.len());
        let read = |run: &RunExtent| {
            let mut reader =
                RecordReader::of_file(file.clone(), run.offset, run.bytes, self.width.units, block_bytes);
            reader.refill()?;
            Ok(reader)
        };
        runs.iter().map(read).collect()
    }

    /// Makes one run of several.
    fn merge(&self, file: &Arc<SpillFile>, runs: &[RunExtent], memory: usize) -> Result<RunExtent> {
        let total: u64 = runs.iter().map(|run| run.bytes).sum();
        let offset = match lock(&self.spill).as_mut() {
            Some(spill) => {
                spill.length += total;
                spill.length - total
            }
            None => 0,
        };
        let mut merged = BucketRecords::new(self.blocks(file, runs, memory)?, self.add, 0);
        let block = WRITE_BLOCK / size_of::<U>();
        let (mut buffer, mut bytes) = (Vec::with_capacity(block), 0);
        loop {
            let record = merged.next()?;
            if record.is_none_or(|record| buffer.len() + record.len() > block) {
                self.memory.check_stop()?;
                file.write_at(cast_slice(&buffer), offset + bytes)?;
                let written = size_of_val(&buffer[..]) as u64;
                self.memory.count_spill(written);
                bytes += written;
                buffer.clear();
            }
            match record {
                Some(record) => buffer.extend_from_slice(record),
                None => return Ok(RunExtent { offset, bytes }),
            }
        }
    }
}

impl Sorter<'_, u8> {
    /// Makes one record of all that differ in their last eight bytes only: little-endian numbers, which are summed.
    #[must_use]
    pub fn summing(mut self) -> Self {
        self.add = Some(add_count);
        self
    }
}

/// Reserves memory for `units` more; `false` if memory must be freed first. Capacity is counted, because capacity is
/// what the process holds.
fn grow<U>(buffer: &mut Vec<U>, units: usize, held: &HeldBytes<'_>, one_bucket: bool) -> bool {
    let capacity = buffer.capacity();
    if capacity - buffer.len() >= units {
        return true;
    }
    // One buffer is doubled. Many buffers grow at the same time and would stand half empty.
    let step = if one_bucket { capacity } else { capacity / 4 };
    let growth = step.max(MIN_GROWTH / size_of::<U>()).max(units).min(held.room() / size_of::<U>());
    if growth < units || growth < capacity / 8 {
        return false;
    }
    buffer.reserve_exact(capacity - buffer.len() + growth);
    held.add((buffer.capacity() - capacity) * size_of::<U>());
    true
}

/// A thread's records on their way to a sorter.
pub struct Feed<'a, 's, U> {
    sorter: &'a Sorter<'s, U>,
    gathered: Vec<Vec<U>>,
}

impl<U: RecordUnit> Feed<'_, '_, U> {
    /// Adds a record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[inline]
    pub fn push(&mut self, record: &[U]) -> Result<()> {
        let index = self.sorter.bucket_of(record);
        let gathered = &mut self.gathered[index];
        gathered.extend_from_slice(record);
        if gathered.len() < gathered.capacity() { Ok(()) } else { self.hand_over(index) }
    }

    fn hand_over(&mut self, index: usize) -> Result<()> {
        let (sorter, gathered) = (self.sorter, &mut self.gathered[index]);
        sorter.memory.check_stop()?;
        loop {
            let seen = sorter.spills.load(Ordering::Relaxed);
            {
                let held = &mut lock(&sorter.buckets[index]).held;
                if grow(held, gathered.len(), &sorter.held, sorter.buckets.len() == 1) {
                    held.append(gathered);
                    return Ok(());
                }
            }
            sorter.spill_after(seen)?;
        }
    }

    /// Hands over everything gathered.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    pub fn finish(mut self) -> Result<()> {
        (0..self.gathered.len()).try_for_each(|index| self.hand_over(index))
    }
}
