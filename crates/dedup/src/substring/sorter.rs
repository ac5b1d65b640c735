//! Sorts records of 16 bytes, more than memory holds.
//!
//! Records are dealt into up to 256 buckets by their highest bits; buckets are in order, so each is sorted by itself, by any
//! thread. When the shared budget is used up, every bucket's records are sorted and appended to one file; a bucket that
//! is too large to be read back whole is merged from these sorted pieces. What comes out depends on the records
//! alone.

use super::error::{Error, Result};
use std::collections::BinaryHeap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buckets of a sorter.
pub(super) const BUCKETS: usize = 256;
/// Records that a thread gathers for a bucket before it takes the bucket's lock.
const GATHER: usize = 64;
/// Bytes of a record.
const RECORD: usize = 16;
/// Records read at once from each piece of a bucket that is merged.
const MERGE_BLOCK: usize = 4096;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere ends the search as a whole; what the lock guards is only dropped then.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory and disk that all sorters of one search share.
pub(super) struct Space {
    limit: usize,
    held: AtomicUsize,
    folder: PathBuf,
    files: AtomicUsize,
    spilled: AtomicU64,
}

impl Space {
    pub(super) fn new(limit: usize, folder: &Path) -> Space {
        Space {
            limit,
            held: AtomicUsize::new(0),
            folder: folder.to_path_buf(),
            files: AtomicUsize::new(0),
            spilled: AtomicU64::new(0),
        }
    }

    pub(super) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }
}

/// Records of one bucket.
#[derive(Default)]
struct Bucket {
    held: Vec<u128>,
    /// Sorted pieces in the file: (offset, records).
    pieces: Vec<(u64, usize)>,
}

/// The file of one sorter.
struct Spill {
    file: File,
    path: PathBuf,
    length: u64,
}

/// Takes records, gives them back in order.
pub(super) struct Sorter<'s> {
    space: &'s Space,
    buckets: Vec<Mutex<Bucket>>,
    shift: u32,
    /// Bytes of this sorter among those that the space holds.
    held: AtomicUsize,
    spill: Mutex<Option<Spill>>,
}

/// A thread's own gathering place.
pub(super) struct Feed<'a, 's> {
    sorter: &'a Sorter<'s>,
    gathered: Vec<Vec<u128>>,
}

fn encode(records: &[u128]) -> Vec<u8> {
    records.iter().flat_map(|record| record.to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = u128> + '_ {
    bytes.as_chunks::<RECORD>().0.iter().map(|bytes| u128::from_le_bytes(*bytes))
}

impl<'s> Sorter<'s> {
    /// For records whose upper 64 bits are below `total`, evenly spread.
    pub(super) fn new(space: &'s Space, total: u64) -> Sorter<'s> {
        let bits = u64::BITS - total.saturating_sub(1).leading_zeros();
        Sorter {
            space,
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            shift: 64 + bits.saturating_sub(8),
            held: AtomicUsize::new(0),
            spill: Mutex::new(None),
        }
    }

    pub(super) fn feed(&self) -> Feed<'_, 's> {
        Feed { sorter: self, gathered: (0..BUCKETS).map(|_| Vec::with_capacity(GATHER)).collect() }
    }

    /// Whether the space is used up and this sorter's part is worth writing.
    fn crowded(&self) -> bool {
        let limit = self.space.limit;
        self.space.held.load(Ordering::Relaxed) > limit && self.held.load(Ordering::Relaxed) > limit / 8
    }

    /// Moves everything held to disk.
    fn make_room(&self) -> Result<()> {
        let mut spill = lock(&self.spill);
        if !self.crowded() {
            return Ok(());
        }
        if spill.is_none() {
            let number = self.space.files.fetch_add(1, Ordering::Relaxed);
            let path = self.space.folder.join(format!("substring-{number}.spill"));
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
            *spill = Some(Spill { file: file.map_err(Error::spill("create", &path))?, path, length: 0 });
        }
        let Some(spill) = spill.as_mut() else { return Ok(()) };
        for bucket in &self.buckets {
            let mut bucket = lock(bucket);
            if bucket.held.is_empty() {
                continue;
            }
            let mut records = std::mem::take(&mut bucket.held);
            records.sort_unstable();
            let bytes = encode(&records);
            spill.file.write_all_at(&bytes, spill.length).map_err(Error::spill("write", &spill.path))?;
            bucket.pieces.push((spill.length, records.len()));
            spill.length += bytes.len() as u64;
            self.held.fetch_sub(bytes.len(), Ordering::Relaxed);
            self.space.held.fetch_sub(bytes.len(), Ordering::Relaxed);
            self.space.spilled.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&self, offset: u64, records: usize) -> Result<Vec<u128>> {
        let mut bytes = vec![0; records * RECORD];
        if let Some(spill) = lock(&self.spill).as_ref() {
            spill.file.read_exact_at(&mut bytes, offset).map_err(Error::spill("read", &spill.path))?;
        }
        Ok(decode(&bytes).collect())
    }

    /// Hands the records of bucket `index` to `take`, in order; they are gone afterwards. Holds at most `memory` bytes of
    /// those on disk.
    pub(super) fn drain(
        &self,
        index: usize,
        memory: usize,
        mut take: impl FnMut(u128) -> Result<()>,
    ) -> Result<()> {
        let Bucket { mut held, pieces } = std::mem::take(&mut *lock(&self.buckets[index]));
        let bytes = held.len() * RECORD;
        let on_disk: usize = pieces.iter().map(|piece| piece.1).sum();
        let result = if on_disk * RECORD <= memory {
            for (offset, records) in pieces {
                held.extend(self.read(offset, records)?);
            }
            held.sort_unstable();
            held.iter().try_for_each(|&record| take(record))
        } else {
            held.sort_unstable();
            self.merge(held, pieces, &mut take)
        };
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.space.held.fetch_sub(bytes, Ordering::Relaxed);
        result
    }

    fn merge(
        &self,
        held: Vec<u128>,
        pieces: Vec<(u64, usize)>,
        take: &mut impl FnMut(u128) -> Result<()>,
    ) -> Result<()> {
        let mut streams = vec![Stream { block: held.into_iter(), offset: 0, left: 0 }];
        streams.extend(pieces.into_iter().map(|(offset, left)| Stream {
            block: Vec::new().into_iter(),
            offset,
            left,
        }));
        let mut heap = BinaryHeap::new();
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Some(record) = stream.next(self)? {
                heap.push(std::cmp::Reverse((record, index)));
            }
        }
        while let Some(std::cmp::Reverse((record, index))) = heap.pop() {
            take(record)?;
            if let Some(next) = streams[index].next(self)? {
                heap.push(std::cmp::Reverse((next, index)));
            }
        }
        Ok(())
    }

    /// The records of all buckets, in order, one bucket at a time.
    pub(super) fn ordered(self) -> Ordered<'s> {
        Ordered { sorter: self, bucket: 0, block: Vec::new().into_iter() }
    }
}

impl Drop for Sorter<'_> {
    fn drop(&mut self) {
        if let Some(spill) = lock(&self.spill).take() {
            // The folder belongs to the caller, who removes it whole in the end.
            let _ = std::fs::remove_file(spill.path);
        }
    }
}

/// A sorted piece that is read block by block.
struct Stream {
    block: std::vec::IntoIter<u128>,
    offset: u64,
    left: usize,
}

impl Stream {
    fn next(&mut self, sorter: &Sorter<'_>) -> Result<Option<u128>> {
        if let Some(record) = self.block.next() {
            return Ok(Some(record));
        }
        let count = self.left.min(MERGE_BLOCK);
        self.block = sorter.read(self.offset, count)?.into_iter();
        self.offset += (count * RECORD) as u64;
        self.left -= count;
        Ok(self.block.next())
    }
}

/// All records of a sorter, in order.
pub(super) struct Ordered<'s> {
    sorter: Sorter<'s>,
    bucket: usize,
    block: std::vec::IntoIter<u128>,
}

impl Ordered<'_> {
    pub(super) fn next(&mut self) -> Result<Option<u128>> {
        loop {
            if let Some(record) = self.block.next() {
                return Ok(Some(record));
            }
            if self.bucket == BUCKETS {
                return Ok(None);
            }
            let mut block = Vec::new();
            self.sorter.drain(self.bucket, usize::MAX, |record| {
                block.push(record);
                Ok(())
            })?;
            self.bucket += 1;
            self.block = block.into_iter();
        }
    }
}

impl Feed<'_, '_> {
    /// Adds a record.
    pub(super) fn push(&mut self, record: u128) -> Result<()> {
        let index = (record >> self.sorter.shift) as usize & (BUCKETS - 1);
        let gathered = &mut self.gathered[index];
        gathered.push(record);
        if gathered.len() < GATHER {
            return Ok(());
        }
        self.empty(index)
    }

    fn empty(&mut self, index: usize) -> Result<()> {
        let gathered = &mut self.gathered[index];
        let (space, bytes) = (self.sorter.space, gathered.len() * RECORD);
        {
            // Counted while the bucket is locked, so that no one gives back what is not yet counted.
            let mut bucket = lock(&self.sorter.buckets[index]);
            bucket.held.append(gathered);
            self.sorter.held.fetch_add(bytes, Ordering::Relaxed);
            space.held.fetch_add(bytes, Ordering::Relaxed);
        }
        if self.sorter.crowded() { self.sorter.make_room() } else { Ok(()) }
    }

    /// Hands everything gathered over.
    pub(super) fn finish(mut self) -> Result<()> {
        (0..BUCKETS).try_for_each(|index| self.empty(index))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;

    #[test]
    fn spilled_merged_and_held_records_come_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = 1u64;
        let mut records: Vec<u128> = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            records.push((u128::from(state >> 44) << 64) | u128::from(state));
        }
        let mut sorted = records.clone();
        sorted.sort_unstable();
        for (limit, memory) in [(usize::MAX, usize::MAX), (40_000, usize::MAX), (40_000, 100)] {
            let space = Space::new(limit, folder.path());
            let sorter = Sorter::new(&space, 1 << 20);
            let mut feed = sorter.feed();
            records.iter().for_each(|&record| feed.push(record).unwrap());
            feed.finish().unwrap();
            assert_eq!(space.spilled() > 0, limit != usize::MAX);
            let mut found = Vec::new();
            for bucket in 0..BUCKETS {
                let take = |record| {
                    found.push(record);
                    Ok(())
                };
                sorter.drain(bucket, memory, take).unwrap();
            }
            assert_eq!(found, sorted);
            assert_eq!(space.held.load(Ordering::Relaxed), 0);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
