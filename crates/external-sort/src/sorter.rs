//! Sorting of fixed-width records.
//!
//! A sorter has one bucket or [`BUCKETS`] of them. With several, the first eight bytes of a record choose its bucket; the
//! buckets are in order, and several threads can fill and read them. If the memory is used up, the records of each bucket
//! are sorted and appended to one file as a run. A bucket is read as the merge of its runs and of the records that are
//! still in memory.

use crate::error::Result;
use crate::memory::{HeldBytes, SortMemory};
use crate::merge::{Merge, SortedRun, merge_in_groups};
use crate::spill::{RecordReader, SpillFile};
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

/// Bytes of a record, and how records of this width are sorted in memory.
#[derive(Debug, Clone, Copy)]
pub struct RecordWidth {
    bytes: usize,
    sort: fn(&mut [u8]),
}

impl RecordWidth {
    /// Records of `BYTES` bytes.
    pub const fn bytes<const BYTES: usize>() -> Self {
        RecordWidth { bytes: BYTES, sort: |records| records.as_chunks_mut::<BYTES>().0.sort_unstable() }
    }

    /// Records of `N` words of eight bytes, big-endian.
    pub const fn words<const N: usize>() -> Self {
        let sort = |records: &mut [u8]| {
            let records = records.as_chunks_mut::<8>().0.as_chunks_mut::<N>().0;
            // Two words are one comparison of numbers, and rarely equal.
            let head = |words: &[[u8; 8]; N]| {
                words.as_flattened().first_chunk().map(|head| u128::from_be_bytes(*head))
            };
            records.sort_unstable_by(|a, b| head(a).cmp(&head(b)).then_with(|| a.cmp(b)));
        };
        RecordWidth { bytes: 8 * N, sort }
    }
}

/// Bytes of a sorted run within the file of its sorter.
#[derive(Clone, Copy)]
struct RunExtent {
    offset: u64,
    bytes: u64,
}

#[derive(Default)]
struct Bucket {
    held: Vec<u8>,
    runs: Vec<RunExtent>,
}

struct Spill {
    file: Arc<SpillFile>,
    length: u64,
}

/// Takes records and gives them back in the order of their bytes.
pub struct Sorter<'s> {
    memory: &'s SortMemory<'s>,
    width: RecordWidth,
    /// Bytes of the key, if records of equal key become one.
    summed_key: Option<usize>,
    buckets: Vec<Mutex<Bucket>>,
    /// Places by which the first eight bytes are shifted to give the bucket.
    shift: u32,
    held: HeldBytes<'s>,
    spill: Mutex<Option<Spill>>,
    /// How often the buckets were written to disk.
    spills: AtomicUsize,
}

impl<'s> Sorter<'s> {
    /// A sorter of one bucket, filled by its owner.
    pub fn new(memory: &'s SortMemory<'s>, width: RecordWidth) -> Self {
        Sorter {
            memory,
            width,
            summed_key: None,
            buckets: vec![Mutex::default()],
            shift: 0,
            held: HeldBytes::new(memory),
            spill: Mutex::new(None),
            spills: AtomicUsize::new(0),
        }
    }

    /// A sorter of [`BUCKETS`] buckets for records whose first eight bytes are big-endian numbers below `total`, evenly
    /// spread.
    pub fn partitioned(memory: &'s SortMemory<'s>, width: RecordWidth, total: u64) -> Self {
        let bits = u64::BITS - total.saturating_sub(1).leading_zeros();
        Sorter {
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            shift: bits.saturating_sub(8),
            ..Sorter::new(memory, width)
        }
    }

    /// Makes one record of all whose first `key` bytes are equal: the little-endian u64 after the key is summed.
    #[must_use]
    pub fn summing(mut self, key: usize) -> Self {
        self.summed_key = Some(key);
        self
    }

    /// Bytes held in memory.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    #[inline]
    fn bucket_of(&self, record: &[u8]) -> usize {
        match record.first_chunk() {
            Some(first) if self.buckets.len() > 1 => {
                (u64::from_be_bytes(*first) >> self.shift) as usize & (BUCKETS - 1)
            }
            _ => 0,
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
        debug_assert_eq!(record.len(), self.width.bytes);
        let (index, one_bucket) = (self.bucket_of(record), self.buckets.len() == 1);
        loop {
            let held = &mut self.buckets[index].get_mut().unwrap_or_else(PoisonError::into_inner).held;
            if grow(held, record.len(), &self.held, one_bucket) {
                held.extend_from_slice(record);
                return Ok(());
            }
            if let Some(key) = self.summed_key {
                (self.width.sort)(held);
                sum_equal_keys(held, self.width.bytes, key);
                // Where summing made much room there is no need to spill yet.
                if held.len() * 2 <= held.capacity() {
                    continue;
                }
            }
            self.spill()?;
        }
    }

    /// A thread's way to add records beside other threads.
    pub fn feed(&self) -> Feed<'_, 's> {
        let gathered = self.buckets.iter().map(|_| Vec::with_capacity(GATHER * self.width.bytes)).collect();
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
        let mut taken: Vec<Vec<u8>> =
            self.buckets.iter().map(|bucket| std::mem::take(&mut lock(bucket).held)).collect();
        self.sort(&mut taken);
        if spill.is_none() {
            *spill = Some(Spill { file: Arc::new(SpillFile::create(self.memory.folder())?), length: 0 });
        }
        let Some(spill) = spill.as_mut() else { return Ok(()) };
        for (bucket, records) in self.buckets.iter().zip(taken) {
            let slice_bytes = self.slice_bytes(records.len());
            spill.file.write_at(&records, spill.length)?;
            for slice in records.chunks(slice_bytes) {
                let bytes = slice.len() as u64;
                lock(bucket).runs.push(RunExtent { offset: spill.length, bytes });
                spill.length += bytes;
            }
            self.memory.count_spill(records.len() as u64);
            self.held.release(records.capacity());
        }
        self.spills.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a buffer that one thread sorts.
    fn slice_bytes(&self, bytes: usize) -> usize {
        if self.buckets.len() > 1 || self.summed_key.is_some() {
            return bytes.max(1);
        }
        let records = bytes / self.width.bytes;
        records.div_ceil(self.memory.threads()).max(MIN_THREAD_RECORDS) * self.width.bytes
    }

    /// Sorts each slice of each buffer.
    fn sort(&self, buffers: &mut [Vec<u8>]) {
        let records = buffers.iter().map(Vec::len).sum::<usize>() / self.width.bytes;
        let mut slices: Vec<&mut [u8]> = buffers
            .iter_mut()
            .flat_map(|buffer| {
                let slice_bytes = self.slice_bytes(buffer.len());
                buffer.chunks_mut(slice_bytes)
            })
            .collect();
        let threads = self.memory.threads().min(records / MIN_THREAD_RECORDS).max(1);
        let per_thread = slices.len().div_ceil(threads).max(1);
        let sort = |slices: &mut [&mut [u8]]| slices.iter_mut().for_each(|slice| (self.width.sort)(slice));
        std::thread::scope(|scope| {
            let mut groups = slices.chunks_mut(per_thread);
            let here = groups.next();
            for group in groups {
                scope.spawn(move || sort(group));
            }
            here.map(sort);
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
        mut take: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut records = self.read(index, memory)?;
        let held = records.held;
        if let Some(all) = records.in_memory() {
            all.chunks_exact(self.width.bytes).try_for_each(&mut take)?;
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
    pub fn finish(self) -> SortedRecords<'s> {
        SortedRecords { sorter: self, next_bucket: 0, bucket: None }
    }

    fn read(&self, index: usize, memory: usize) -> Result<BucketRecords> {
        self.memory.check_stop()?;
        let Bucket { held, runs } = std::mem::take(&mut *lock(&self.buckets[index]));
        let (width, mut counted, mut buffer) = (self.width.bytes, held.capacity(), [held]);
        self.sort(&mut buffer);
        let [held] = buffer;
        let (bytes, slice_bytes, held) = (held.len(), self.slice_bytes(held.len()), Arc::new(held));
        let mut readers: Vec<RecordReader> = (0..bytes)
            .step_by(slice_bytes)
            .map(|at| RecordReader::of_memory(held.clone(), at, (at + slice_bytes).min(bytes), width))
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
        let (merge, summed_key) = (Merge::new(readers), self.summed_key);
        Ok(BucketRecords { merge, summed_key, sum: Vec::new(), taken: false, held: counted })
    }

    /// Readers of runs that share `memory` bytes.
    fn blocks(&self, file: &Arc<SpillFile>, runs: &[RunExtent], memory: usize) -> Result<Vec<RecordReader>> {
        let block_bytes = SortMemory::block_bytes(memory, runs.len());
        let read = |run: &RunExtent| {
            let mut reader =
                RecordReader::of_file(file.clone(), run.offset, run.bytes, self.width.bytes, block_bytes);
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
        let mut merged = BucketRecords {
            merge: Merge::new(self.blocks(file, runs, memory)?),
            summed_key: self.summed_key,
            sum: Vec::new(),
            taken: false,
            held: 0,
        };
        let (mut buffer, mut bytes) = (Vec::with_capacity(WRITE_BLOCK), 0);
        loop {
            let record = merged.next()?;
            if record.is_none_or(|record| buffer.len() + record.len() > WRITE_BLOCK) {
                self.memory.check_stop()?;
                file.write_at(&buffer, offset + bytes)?;
                self.memory.count_spill(buffer.len() as u64);
                bytes += buffer.len() as u64;
                buffer.clear();
            }
            match record {
                Some(record) => buffer.extend_from_slice(record),
                None => return Ok(RunExtent { offset, bytes }),
            }
        }
    }
}

/// Makes room for `bytes` more; `false` if memory must be given back first. Capacity is counted, because capacity is
/// what the process holds.
fn grow(buffer: &mut Vec<u8>, bytes: usize, held: &HeldBytes<'_>, one_bucket: bool) -> bool {
    let capacity = buffer.capacity();
    if capacity - buffer.len() >= bytes {
        return true;
    }
    // One buffer is doubled. Many buffers grow at the same time and would stand half empty.
    let step = if one_bucket { capacity } else { capacity / 4 };
    let growth = step.max(MIN_GROWTH).max(bytes).min(held.room());
    if growth < bytes || growth < capacity / 8 {
        return false;
    }
    buffer.reserve_exact(capacity - buffer.len() + growth);
    held.add(buffer.capacity() - capacity);
    true
}

/// Makes one record of each group of equal key among sorted records.
fn sum_equal_keys(records: &mut Vec<u8>, width: usize, key: usize) {
    let mut end = 0;
    for at in (0..records.len()).step_by(width) {
        if end > 0 && records[end - width..end - width + key] == records[at..at + key] {
            let (sums, rest) = records.split_at_mut(at);
            add_count(&mut sums[end - width + key..], &rest[key..]);
        } else {
            records.copy_within(at..at + width, end);
            end += width;
        }
    }
    records.truncate(end);
}

/// Adds the u64 at the beginning of `more` to the one at the beginning of `to`.
fn add_count(to: &mut [u8], more: &[u8]) {
    if let (Some(to), Some(more)) = (to.first_chunk_mut(), more.first_chunk()) {
        *to = u64::from_le_bytes(*to).saturating_add(u64::from_le_bytes(*more)).to_le_bytes();
    }
}

impl SortedRun for RecordReader {
    type Error = crate::Error;

    fn key(&self) -> Option<&[u8]> {
        self.current()
    }

    fn advance(&mut self) -> Result<()> {
        self.pass()
    }
}

/// Records of one bucket, in order.
struct BucketRecords {
    merge: Merge<RecordReader>,
    summed_key: Option<usize>,
    /// The record that was given out, if records of equal key are summed.
    sum: Vec<u8>,
    /// Whether the smallest record was given out.
    taken: bool,
    /// Bytes that the sorter counts for this bucket.
    held: usize,
}

impl BucketRecords {
    /// All records, if they are one sorted run in memory.
    fn in_memory(&self) -> Option<&[u8]> {
        let one_run = self.merge.runs() == 1 && self.summed_key.is_none();
        self.merge.smallest().filter(|_| one_run).and_then(|run| self.merge.run(run).whole())
    }

    fn smallest(&self) -> Option<&[u8]> {
        self.merge.run(self.merge.smallest()?).current()
    }

    fn next(&mut self) -> Result<Option<&[u8]>> {
        if let Some(key) = self.summed_key {
            return self.next_sum(key);
        }
        if std::mem::replace(&mut self.taken, true) {
            self.merge.advance()?;
        }
        Ok(self.smallest())
    }

    /// The record that [`BucketRecords::next`] gave out last.
    fn given(&self) -> Option<&[u8]> {
        if self.summed_key.is_some() { Some(&self.sum) } else { self.smallest() }
    }

    fn next_sum(&mut self, key: usize) -> Result<Option<&[u8]>> {
        self.sum.clear();
        while let Some(index) = self.merge.smallest() {
            let Some(record) = self.merge.run(index).current() else { break };
            if self.sum.is_empty() {
                self.sum.extend_from_slice(record);
            } else if self.sum[..key] == record[..key] {
                add_count(&mut self.sum[key..], &record[key..]);
            } else {
                break;
            }
            self.merge.advance()?;
        }
        Ok((!self.sum.is_empty()).then_some(&self.sum[..]))
    }
}

/// All records of a sorter, in order.
pub struct SortedRecords<'s> {
    sorter: Sorter<'s>,
    next_bucket: usize,
    bucket: Option<BucketRecords>,
}

impl SortedRecords<'_> {
    /// The next record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[allow(clippy::should_implement_trait, reason = "the record is borrowed from the merge")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            if let Some(bucket) = &mut self.bucket {
                if bucket.next()?.is_some() {
                    break;
                }
                self.sorter.held.release(bucket.held);
                self.bucket = None;
            }
            if self.next_bucket == self.sorter.buckets.len() {
                return Ok(None);
            }
            self.bucket = Some(self.sorter.read(self.next_bucket, self.sorter.memory.merge_bytes())?);
            self.next_bucket += 1;
        }
        Ok(self.bucket.as_ref().and_then(BucketRecords::given))
    }
}

/// A thread's records on their way to a sorter.
pub struct Feed<'a, 's> {
    sorter: &'a Sorter<'s>,
    gathered: Vec<Vec<u8>>,
}

impl Feed<'_, '_> {
    /// Adds a record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[inline]
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
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
