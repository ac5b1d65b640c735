//! A file of a checkpoint whose bytes are held against their checksums before anybody gets them.

use crate::ahead::{ChunkCache, ChunkId, locked, threads};
use crate::error::{At, CheckpointError, Result};
use crate::fs::{Piece, ReadFile, read_pieces};
use crate::manifest::FileRecord;
use blake3::hazmat::HasherExt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

/// Bytes read at a time while a whole file is verified.
const READ: usize = 1 << 20;
/// Bytes of all files from which on several threads verify them.
const PARALLEL: u64 = 4 << 20;

/// An open file and which of its chunks are known to be intact.
pub(crate) struct VerifiedFile {
    file: Box<dyn ReadFile>,
    path: PathBuf,
    record: FileRecord,
    number: usize,
    intact: Mutex<Vec<bool>>,
    cache: Arc<ChunkCache>,
}

impl VerifiedFile {
    /// `number` distinguishes the files of one cache. Errors if the file has another length than its record.
    pub(crate) fn new(
        file: Box<dyn ReadFile>,
        path: &Path,
        record: &FileRecord,
        number: usize,
        cache: Arc<ChunkCache>,
    ) -> Result<VerifiedFile> {
        let found = file.size().at("read the size of", path)?;
        if found != record.bytes {
            return Err(CheckpointError::Size { file: path.into(), expected: record.bytes, found });
        }
        let chunks = record.chunks.len().max(1);
        let intact = Mutex::new(vec![false; chunks]);
        Ok(VerifiedFile { file, path: path.into(), record: record.clone(), number, intact, cache })
    }

    /// Holds all bytes against the file's checksum; `advance` gets the bytes of each piece read.
    fn verify(&self, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let found = checksum(self.file.as_ref(), self.record.bytes, &mut |n| {
            self.cache.count(n as usize);
            advance(n);
        });
        let found = found.at("read", &self.path)?;
        if found != self.record.blake3 {
            return Err(self.damaged(&self.record.blake3, found));
        }
        locked(&self.intact).fill(true);
        Ok(())
    }

    /// Chunks of the file; one if it has no checksums of chunks.
    pub(crate) fn chunks(&self) -> u64 {
        self.record.chunks.len().max(1) as u64
    }

    /// Holds a chunk against its checksum. `buffer` keeps its memory for the next one; `advance` gets the bytes of each piece read.
    pub(crate) fn verify_chunk(
        &self,
        index: u64,
        buffer: &mut Vec<u8>,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        if self.record.chunk_bytes == 0 {
            return self.verify(advance);
        }
        let (start, end) = self.range(index);
        let mut hasher = self.hasher(start);
        let block = self.file.block();
        let mut at = start;
        while at < end {
            buffer.resize(block.min((end - at) as usize), 0);
            self.file.read_exact_at(buffer, at).at("read", &self.path)?;
            self.cache.count(buffer.len());
            hasher.update(buffer);
            at += buffer.len() as u64;
            advance(buffer.len() as u64);
        }
        self.check(index, &hasher)?;
        locked(&self.intact)[index as usize] = true;
        Ok(())
    }

    /// Bytes of a chunk.
    fn range(&self, index: u64) -> (u64, u64) {
        let start = index * self.record.chunk_bytes;
        (start, start + self.record.chunk_bytes.min(self.record.bytes - start))
    }

    /// Hasher for the chunk that begins at `start`.
    fn hasher(&self, start: u64) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        if !self.record.chunks.is_empty() {
            hasher.set_input_offset(start);
        }
        hasher
    }

    /// Holds the checksum of all bytes of a chunk against the one that is stated.
    fn check(&self, index: u64, hasher: &blake3::Hasher) -> Result<()> {
        let (expected, found) = match self.record.chunks.get(index as usize) {
            Some(expected) => (expected, blake3::Hash::from_bytes(hasher.finalize_non_root())),
            None => (&self.record.blake3, hasher.finalize()),
        };
        match found.to_hex().as_str() {
            found if found == expected => Ok(()),
            found => Err(self.damaged(expected, found.into())),
        }
    }

    /// Whether a chunk is known to be intact.
    pub(crate) fn is_intact(&self, index: u64) -> bool {
        locked(&self.intact)[index as usize]
    }

    fn damaged(&self, expected: &str, found: String) -> CheckpointError {
        CheckpointError::Checksum { file: self.path.clone(), expected: expected.into(), found }
    }

    /// Says that a chunk will be read soon.
    pub(crate) fn will_read(&self, index: u64) {
        let (start, end) = self.range(index);
        self.file.will_read(start..end);
    }

    /// Reads a chunk and holds it against its checksum.
    pub(crate) fn chunk(&self, index: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        let (start, end) = self.range(index);
        bytes.resize((end - start) as usize, 0);
        let (mut hasher, mut at) = (self.hasher(start), start);
        // Hashed while they are in the processor's cache.
        for piece in bytes.chunks_mut(self.file.block()) {
            self.file.read_exact_at(piece, at)?;
            hasher.update(piece);
            at += piece.len() as u64;
        }
        self.cache.count(bytes.len());
        self.check(index, &hasher).map_err(io::Error::other)
    }
}

impl ReadFile for VerifiedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.record.bytes)
    }

    fn block(&self) -> usize {
        self.file.block()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let length = buffer.len() as u64;
        let mut rest = buffer;
        self.each_chunk(offset, length, &mut |part| match part {
            Part::AtHand(bytes) => {
                let (here, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
                here.copy_from_slice(bytes);
                rest = later;
                Ok(())
            }
            Part::InFile(range) => {
                let (here, later) =
                    std::mem::take(&mut rest).split_at_mut((range.end - range.start) as usize);
                rest = later;
                self.file.read_exact_at(here, range.start)
            }
        })
    }

    fn read_pieces(&self, offset: u64, length: u64, each: &mut Piece<'_>) -> io::Result<()> {
        if !offset.is_multiple_of(4) {
            // Ends of chunks would cut elements.
            return read_pieces(self, offset, length, each);
        }
        self.each_chunk(offset, length, &mut |part| match part {
            Part::AtHand(bytes) => each(bytes),
            Part::InFile(range) => self.file.read_pieces(range.start, range.end - range.start, each),
        })
    }
}

/// A stretch of a file whose bytes are intact.
enum Part<'a> {
    /// In memory.
    AtHand(&'a [u8]),
    /// Verified before; to be read again.
    InFile(Range<u64>),
}

impl VerifiedFile {
    /// Gives `take` the `length` bytes from `offset` on, chunk by chunk.
    fn each_chunk(
        &self,
        offset: u64,
        length: u64,
        take: &mut dyn FnMut(Part<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= self.record.bytes);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if self.record.chunk_bytes == 0 && !self.is_intact(0) {
            // A file of format version 1, whose only checksum is that of all its bytes.
            self.verify(&mut |_| {}).map_err(io::Error::other)?;
        }
        let size = match self.record.chunk_bytes {
            0 => self.record.bytes.max(1),
            size => size,
        };
        let mut at = offset;
        while at < end {
            let index = at / size;
            let to = ((index + 1) * size).min(end);
            let within = (at - index * size) as usize..(to - index * size) as usize;
            let id = ChunkId { file: self.number, index };
            let read = |bytes: &mut Vec<u8>| self.chunk(index, bytes);
            let mut taken = Ok(());
            let found = self.cache.with_chunk(id, self.is_intact(index), read, |bytes| {
                locked(&self.intact)[index as usize] = true;
                taken = take(Part::AtHand(&bytes[within]));
            })?;
            taken?;
            if !found {
                take(Part::InFile(at..to))?;
                self.cache.count((to - at) as usize);
            }
            at = to;
        }
        Ok(())
    }
}

/// BLAKE3 of the first `bytes` bytes of a file, hexadecimal; `advance` gets the bytes of each piece read.
pub(crate) fn checksum(file: &dyn ReadFile, bytes: u64, advance: &mut dyn FnMut(u64)) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(READ as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        hasher.update(&buffer[..n]);
        at += n as u64;
        advance(n as u64);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Holds all bytes of all files against their checksums, several chunks at a time; `advance` gets the bytes of each piece read.
///
/// # Errors
/// Of several damages the first one, in the order of the files.
pub(crate) fn verify_all(files: &[Arc<VerifiedFile>], advance: &mut dyn FnMut(u64)) -> Result<()> {
    let of_file =
        |file: &Arc<VerifiedFile>| (0..file.chunks()).map(|index| (Arc::clone(file), index)).collect();
    let chunks: Vec<(Arc<VerifiedFile>, u64)> = files.iter().flat_map::<Vec<_>, _>(of_file).collect();
    if files.iter().map(|f| f.record.bytes).sum::<u64>() < PARALLEL {
        let mut buffer = Vec::new();
        return chunks.iter().try_for_each(|(file, index)| file.verify_chunk(*index, &mut buffer, advance));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (to_caller, answers) = mpsc::channel::<std::result::Result<u64, (usize, CheckpointError)>>();
    // What is told to a caller that is gone tells nobody.
    let run = |answer: mpsc::Sender<_>| {
        let mut buffer = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((file, index)) = chunks.get(number) else { break };
            let mut advance = |bytes| {
                let _ = answer.send(Ok(bytes));
            };
            if let Err(e) = file.verify_chunk(*index, &mut buffer, &mut advance) {
                failed.store(true, Ordering::Relaxed);
                let _ = answer.send(Err((number, e)));
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..threads().min(chunks.len()) {
            let (answer, run) = (to_caller.clone(), &run);
            let thread = std::thread::Builder::new().name("checkpoint-verify".into());
            let started = thread.spawn_scoped(scope, move || run(answer));
            match (started, files.first()) {
                (Err(e), Some(file)) if number == 0 => return Err(e).at("start a thread for", &file.path),
                (started, _) => drop(started),
            }
        }
        drop(to_caller);
        let mut first: Option<(usize, CheckpointError)> = None;
        for answer in answers {
            match answer {
                Ok(bytes) => advance(bytes),
                Err(e) if first.as_ref().is_none_or(|first| e.0 < first.0) => first = Some(e),
                Err(_) => {}
            }
        }
        first.map_or(Ok(()), |(_, e)| Err(e))
    })
}
