//! Records of one width on disk: written one after the other, and sorted within a memory budget by sorted runs and a
//! merge of them.
//!
//! A record begins with its key, whose bytes compare as the records should be ordered. The files lose their names as
//! soon as they are open, so nothing is left behind however the program ends.

use crate::error::{Result, ScoreError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Runs that are merged at once.
const FAN_IN: usize = 64;
/// Bytes that are read from or written to a run at once.
const BLOCK: usize = 1 << 16;

/// A file of records, written and then read.
pub(crate) struct Tape {
    width: usize,
    file: fs::File,
    path: PathBuf,
    pub(crate) records: u64,
}

pub(crate) struct TapeWriter {
    tape: Tape,
    to: BufWriter<fs::File>,
}

pub(crate) struct TapeReader {
    from: BufReader<fs::File>,
    record: Vec<u8>,
    left: u64,
    path: PathBuf,
}

impl TapeWriter {
    pub(crate) fn create(folder: &Path, width: usize) -> Result<TapeWriter> {
        let (file, path) = open_new(folder)?;
        let to =
            BufWriter::with_capacity(BLOCK, file.try_clone().map_err(|e| ScoreError::io("open", &path, e))?);
        Ok(TapeWriter { tape: Tape { width, file, path, records: 0 }, to })
    }

    pub(crate) fn push(&mut self, record: &[u8]) -> Result<()> {
        debug_assert_eq!(record.len(), self.tape.width);
        self.tape.records += 1;
        self.to.write_all(record).map_err(|e| ScoreError::io("write", &self.tape.path, e))
    }

    pub(crate) fn finish(mut self) -> Result<Tape> {
        self.to.flush().map_err(|e| ScoreError::io("write", &self.tape.path, e))?;
        Ok(self.tape)
    }
}

impl Tape {
    /// Reads from the start; one reader at a time.
    pub(crate) fn read(&mut self) -> Result<TapeReader> {
        let io = |e| ScoreError::io("read", &self.path, e);
        self.file.rewind().map_err(io)?;
        let from = BufReader::with_capacity(BLOCK, self.file.try_clone().map_err(io)?);
        Ok(TapeReader { from, record: vec![0; self.width], left: self.records, path: self.path.clone() })
    }
}

impl TapeReader {
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.from.read_exact(&mut self.record).map_err(|e| ScoreError::io("read", &self.path, e))?;
        Ok(Some(&self.record))
    }
}

/// Sorts records within a budget.
pub(crate) struct Sorter {
    folder: PathBuf,
    width: usize,
    key: usize,
    /// Equal keys become one record: the u64 (little-endian) after the key is summed.
    sums: bool,
    limit: usize,
    buffer: Vec<u8>,
    runs: Vec<Tape>,
}

impl Sorter {
    /// `memory` bytes at most are used, besides a small block for each run.
    pub(crate) fn new(folder: &Path, width: usize, key: usize, sums: bool, memory: usize) -> Sorter {
        // A record is held once in the buffer and once in a sorted copy, and has a position of 4 bytes.
        let records = (memory / (2 * width + 4)).clamp(16, u32::MAX as usize);
        Sorter {
            folder: folder.to_path_buf(),
            width,
            key,
            sums,
            limit: records * width,
            buffer: Vec::new(),
            runs: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, record: &[u8]) -> Result<()> {
        debug_assert_eq!(record.len(), self.width);
        if self.buffer.len() + self.width > self.limit {
            self.sort();
            // Where summing made much room there is no need to spill yet.
            if self.buffer.len() * 2 > self.limit {
                self.spill()?;
            }
        }
        self.buffer.extend_from_slice(record);
        Ok(())
    }

    /// Sorts the buffer, and sums equal keys.
    fn sort(&mut self) {
        let (width, key) = (self.width, self.key);
        let mut order: Vec<u32> = (0..(self.buffer.len() / width) as u32).collect();
        let record = |i: u32| &self.buffer[i as usize * width..(i as usize + 1) * width];
        order.sort_by(|&a, &b| record(a)[..key].cmp(&record(b)[..key]));
        let mut sorted: Vec<u8> = Vec::with_capacity(self.buffer.len());
        for &i in &order {
            let next = record(i);
            let last = sorted.len().saturating_sub(width);
            if self.sums && sorted.get(last..last + key) == Some(&next[..key]) {
                add_count(&mut sorted[last + key..last + key + 8], &next[key..key + 8]);
            } else {
                sorted.extend_from_slice(next);
            }
        }
        self.buffer = sorted;
    }

    fn spill(&mut self) -> Result<()> {
        if self.runs.len() == FAN_IN {
            let mut merged = TapeWriter::create(&self.folder, self.width)?;
            let mut merge = Merge::new(std::mem::take(&mut self.runs), self.key, self.sums)?;
            while let Some(record) = merge.next()? {
                merged.push(record)?;
            }
            self.runs.push(merged.finish()?);
        }
        let mut run = TapeWriter::create(&self.folder, self.width)?;
        for record in self.buffer.chunks_exact(self.width) {
            run.push(record)?;
        }
        self.buffer.clear();
        self.runs.push(run.finish()?);
        Ok(())
    }

    /// All records in order.
    pub(crate) fn finish(mut self) -> Result<Sorted> {
        self.sort();
        if self.runs.is_empty() {
            return Ok(Sorted::Memory { buffer: self.buffer, width: self.width, at: 0 });
        }
        if !self.buffer.is_empty() {
            self.spill()?;
        }
        self.buffer = Vec::new();
        Ok(Sorted::Merge(Merge::new(self.runs, self.key, self.sums)?))
    }
}

fn add_count(to: &mut [u8], more: &[u8]) {
    let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let sum = value(to).saturating_add(value(more));
    to.copy_from_slice(&sum.to_le_bytes());
}

/// Records in the order of their keys; equal keys in the order in which they came.
pub(crate) enum Sorted {
    Memory { buffer: Vec<u8>, width: usize, at: usize },
    Merge(Merge),
}

impl Sorted {
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>> {
        match self {
            Sorted::Memory { buffer, width, at } => {
                let record = buffer.get(*at..*at + *width);
                *at += *width;
                Ok(record)
            }
            Sorted::Merge(merge) => merge.next(),
        }
    }
}

pub(crate) struct Merge {
    readers: Vec<TapeReader>,
    /// Kept open until the merge ends.
    _runs: Vec<Tape>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    key: usize,
    sums: bool,
    record: Vec<u8>,
}

impl Merge {
    fn new(mut runs: Vec<Tape>, key: usize, sums: bool) -> Result<Merge> {
        let mut readers = runs.iter_mut().map(Tape::read).collect::<Result<Vec<_>>>()?;
        let mut heap = BinaryHeap::new();
        for (run, reader) in readers.iter_mut().enumerate() {
            if let Some(record) = reader.next()? {
                heap.push(Reverse((record[..key].to_vec(), run)));
            }
        }
        Ok(Merge { readers, _runs: runs, heap, key, sums, record: Vec::new() })
    }

    fn next(&mut self) -> Result<Option<&[u8]>> {
        let Some(run) = self.heap.peek().map(|top| top.0.1) else { return Ok(None) };
        self.record.clone_from(&self.readers[run].record);
        self.advance()?;
        while self.sums && self.heap.peek().is_some_and(|top| top.0.0[..] == self.record[..self.key]) {
            let run = self.heap.peek().expect("just seen").0.1;
            let key = self.key;
            add_count(&mut self.record[key..key + 8], &self.readers[run].record[key..key + 8]);
            self.advance()?;
        }
        Ok(Some(&self.record))
    }

    /// Replaces the top of the heap by the next record of its run.
    fn advance(&mut self) -> Result<()> {
        let Some(mut top) = self.heap.peek_mut() else { return Ok(()) };
        let run = top.0.1;
        match self.readers[run].next()? {
            Some(record) => top.0.0.copy_from_slice(&record[..self.key]),
            None => {
                std::collections::binary_heap::PeekMut::pop(top);
            }
        }
        Ok(())
    }
}

/// A new file without a name that anybody else can see.
fn open_new(folder: &Path) -> Result<(fs::File, PathBuf)> {
    for attempt in 0..1_000_000u64 {
        let path = folder.join(format!(".bessemer-lm-{}-{attempt}.run", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                // Where the system keeps the name of an open file, the caller's folder is theirs to empty.
                let _ = fs::remove_file(&path);
                return Ok((file, path));
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(ScoreError::io("create", &path, e)),
        }
    }
    Err(ScoreError::Training(format!(
        "{} is full of the files of broken-off runs; empty it",
        folder.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Uniform;

    #[test]
    fn sorting_is_the_same_with_and_without_spills() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut draws = Uniform::new(1, 1);
        let records: Vec<[u8; 12]> = (0..20_000)
            .map(|_| {
                let mut record = [0; 12];
                record[..4].copy_from_slice(&(draws.below(3000) as u32).to_be_bytes());
                record[4..].copy_from_slice(&1u64.to_le_bytes());
                record
            })
            .collect();
        let sorted = |memory: usize, sums: bool| {
            let mut sorter = Sorter::new(folder.path(), 12, 4, sums, memory);
            for record in &records {
                sorter.push(record).expect("written");
            }
            let mut sorted = sorter.finish().expect("sorted");
            let mut all = Vec::new();
            while let Some(record) = sorted.next().expect("read") {
                all.push(record.to_vec());
            }
            all
        };
        for sums in [false, true] {
            let plain = sorted(1 << 24, sums);
            // Some runs, and so many that runs are merged before the end.
            assert!(plain == sorted(40_000, sums));
            assert!(plain == sorted(3000, sums));
            assert!(plain.is_sorted_by(|a, b| a[..4] <= b[..4]));
            let total: u64 = plain.iter().map(|r| u64::from_le_bytes(r[4..].try_into().expect("8"))).sum();
            assert_eq!(total, 20_000);
        }
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 0);
    }
}
