//! Sorts records of a few words outside of memory: sorted runs, then a merge.
//!
//! Records are compared whole, so equal records are the same record and the result depends neither on threads nor on
//! memory. Memory: the buffer, and 128 KiB for each of at most [`FAN_IN`] runs while they are merged.
//! Disk: the records once, and once more for each factor of [`FAN_IN`] in the number of runs.

use bessemer_dataflow::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs that are merged at once.
const FAN_IN: usize = 64;
/// Buffer of a run's file.
const FILE_BUFFER: usize = 128 << 10;
/// Fewest records of a run, whatever the memory.
const MIN_RUN: usize = 1024;
/// Records below which a second thread is not worth its start.
const MIN_THREAD: usize = 1 << 15;

/// Where a sorter may put its runs, and what else it may use.
pub(crate) struct Space<'a> {
    /// Bytes of its buffer.
    pub(crate) memory: usize,
    /// Folder for its files.
    pub(crate) folder: &'a Path,
    /// Threads.
    pub(crate) threads: usize,
    /// Numbers for file names.
    files: AtomicUsize,
}

impl<'a> Space<'a> {
    pub(crate) fn new(memory: usize, folder: &'a Path, threads: usize) -> Self {
        Space { memory, folder, threads: threads.max(1), files: AtomicUsize::new(0) }
    }

    /// A name that no other file of this space has.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(format!("run-{}", self.files.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A file that vanishes with its owner.
struct RunFile(PathBuf);

impl Drop for RunFile {
    fn drop(&mut self) {
        // What cannot be removed lies in the stage's own folder, which its caller removes.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Collects records.
pub(crate) struct Sorter<'s, const N: usize> {
    space: &'s Space<'s>,
    limit: usize,
    buffer: Vec<[u64; N]>,
    runs: Vec<RunFile>,
    pushed: u64,
}

impl<'s, const N: usize> Sorter<'s, N> {
    /// A sorter whose buffer takes `share` of the space's memory.
    pub(crate) fn new(space: &'s Space<'s>, share: f64) -> Self {
        let limit = ((space.memory as f64 * share) as usize / (8 * N)).max(MIN_RUN);
        Sorter { space, limit, buffer: Vec::new(), runs: Vec::new(), pushed: 0 }
    }

    pub(crate) fn push(&mut self, record: [u64; N]) -> Result<()> {
        if self.buffer.len() == self.limit {
            self.spill()?;
        }
        if self.buffer.len() == self.buffer.capacity() {
            // Grown by doubling, but never beyond the limit: the limit is what was granted.
            let room = self.limit.min((2 * self.buffer.len()).max(MIN_RUN)) - self.buffer.len();
            self.buffer.reserve_exact(room);
        }
        self.buffer.push(record);
        self.pushed += 1;
        Ok(())
    }

    /// Records so far, repeats included.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Sorts the buffer in as many ranges as there are threads.
    fn ranges(&mut self) -> Vec<(usize, usize)> {
        let threads = self.space.threads.min(self.buffer.len() / MIN_THREAD).max(1);
        let length = self.buffer.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut chunks = self.buffer.chunks_mut(length);
            let here = chunks.next();
            for chunk in chunks {
                scope.spawn(move || chunk.sort_unstable());
            }
            if let Some(chunk) = here {
                chunk.sort_unstable();
            }
        });
        (0..self.buffer.len()).step_by(length).map(|at| (at, (at + length).min(self.buffer.len()))).collect()
    }

    fn spill(&mut self) -> Result<()> {
        let ranges = self.ranges();
        let mut merged = Merged::of(std::mem::take(&mut self.buffer), ranges, Vec::new())?;
        self.runs.push(write_run(self.space, &mut merged)?);
        self.buffer = merged.into_buffer();
        Ok(())
    }

    /// The records in order.
    pub(crate) fn finish(mut self) -> Result<Merged<N>> {
        while self.runs.len() > FAN_IN {
            let rest = self.runs.split_off(FAN_IN);
            let group = std::mem::replace(&mut self.runs, rest);
            let mut merged = Merged::<N>::of(Vec::new(), Vec::new(), group)?;
            let run = write_run(self.space, &mut merged)?;
            self.runs.push(run);
        }
        let ranges = self.ranges();
        Merged::of(self.buffer, ranges, self.runs)
    }
}

fn write_run<const N: usize>(space: &Space<'_>, merged: &mut Merged<N>) -> Result<RunFile> {
    let path = space.path();
    let file = File::create_new(&path).map_err(Error::io("create spill file", &path))?;
    let file = (RunFile(path), BufWriter::with_capacity(FILE_BUFFER, file));
    let (run, mut out) = file;
    while let Some(record) = merged.next()? {
        for word in record {
            out.write_all(&word.to_le_bytes()).map_err(Error::io("write spill file", &run.0))?;
        }
    }
    out.flush().map_err(Error::io("write spill file", &run.0))?;
    Ok(run)
}

/// A sorted run that is being read.
enum Cursor {
    Memory { at: usize, end: usize },
    File { reader: BufReader<File>, run: RunFile, left: u64 },
}

/// Records in order.
pub(crate) struct Merged<const N: usize> {
    buffer: Vec<[u64; N]>,
    cursors: Vec<Cursor>,
    heap: BinaryHeap<Reverse<([u64; N], usize)>>,
}

impl<const N: usize> Merged<N> {
    fn of(buffer: Vec<[u64; N]>, ranges: Vec<(usize, usize)>, runs: Vec<RunFile>) -> Result<Self> {
        let mut cursors: Vec<Cursor> =
            ranges.into_iter().map(|(at, end)| Cursor::Memory { at, end }).collect();
        for run in runs {
            let file = File::open(&run.0).map_err(Error::io("open spill file", &run.0))?;
            let bytes = file.metadata().map_err(Error::io("measure spill file", &run.0))?.len();
            let reader = BufReader::with_capacity(FILE_BUFFER, file);
            cursors.push(Cursor::File { reader, run, left: bytes / (8 * N as u64) });
        }
        let mut merged = Merged { buffer, cursors, heap: BinaryHeap::new() };
        for index in 0..merged.cursors.len() {
            if let Some(record) = merged.advance(index)? {
                merged.heap.push(Reverse((record, index)));
            }
        }
        Ok(merged)
    }

    /// The buffer, for the next run.
    fn into_buffer(mut self) -> Vec<[u64; N]> {
        self.buffer.clear();
        self.buffer
    }

    fn advance(&mut self, index: usize) -> Result<Option<[u64; N]>> {
        match &mut self.cursors[index] {
            Cursor::Memory { at, end } => {
                let record = (*at < *end).then(|| self.buffer[*at]);
                *at += 1;
                Ok(record)
            }
            Cursor::File { reader, run, left } => {
                if *left == 0 {
                    return Ok(None);
                }
                *left -= 1;
                let mut record = [0; N];
                for word in &mut record {
                    let mut bytes = [0; 8];
                    reader.read_exact(&mut bytes).map_err(Error::io("read spill file", &run.0))?;
                    *word = u64::from_le_bytes(bytes);
                }
                Ok(Some(record))
            }
        }
    }

    /// The next record, repeats included.
    pub(crate) fn next(&mut self) -> Result<Option<[u64; N]>> {
        let Some(&Reverse((record, index))) = self.heap.peek() else { return Ok(None) };
        let next = self.advance(index)?;
        if let Some(mut top) = self.heap.peek_mut() {
            match next {
                Some(next) => top.0.0 = next,
                None => {
                    PeekMut::pop(top);
                }
            }
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;

    fn records(count: u64) -> Vec<[u64; 3]> {
        (0..count).map(|i| [mix(i) % 50, mix(i ^ 77) % 1000, i % 7]).collect()
    }

    #[test]
    fn memory_and_threads_do_not_change_the_order() {
        let mut expected = records(100_000);
        expected.sort_unstable();
        for (memory, threads) in [(0, 1), (200_000, 2), (1 << 30, 1), (1 << 30, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let space = Space::new(memory, folder.path(), threads);
            let mut sorter = Sorter::<3>::new(&space, 0.5);
            for record in records(100_000) {
                sorter.push(record).unwrap();
            }
            assert_eq!(sorter.pushed(), 100_000);
            let mut merged = sorter.finish().unwrap();
            let mut found = Vec::new();
            while let Some(record) = merged.next().unwrap() {
                found.push(record);
            }
            assert!(found == expected, "memory {memory}, threads {threads}");
            drop(merged);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files are removed");
        }
    }

    #[test]
    fn nothing_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(0, folder.path(), 2);
        assert!(Sorter::<2>::new(&space, 1.0).finish().unwrap().next().unwrap().is_none());
    }
}
