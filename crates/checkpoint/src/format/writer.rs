//! Writing a safetensors file as a stream: the header is known before the first value, the values come one tensor at a
//! time, and the checksum is taken over the very bytes that are handed to the system.

use super::header::checked_bytes;
use super::{MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS};
use crate::chunks::FileHasher;
use crate::element::encode;
use crate::error::{At, CheckpointError, Result};
use crate::fs::{DIRECT_ALIGNMENT, WriteFile};
use crate::source::{TensorSource, TensorSpec};
use bessemer_tensor::all_finite;
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;
use std::sync::mpsc;

/// Bytes handed to the system at a time, from positions that are multiples of it.
const CHUNK: usize = 4 << 20;
/// Buffers of so many bytes between the threads that write a large file.
const BUFFERS: usize = 4;
/// Bytes from which on a file is written by a thread of its own.
const PARALLEL: u64 = 4 * CHUNK as u64;
/// Bytes converted and hashed at a time: they are then in the processor's cache.
const BLOCK: usize = 256 << 10;

/// Places of all parts of a file.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Length, header and padding: all bytes before the data.
    head: Vec<u8>,
    /// (position in the source, first byte in the file, bytes), in the order of the bytes.
    pub(crate) tensors: Vec<(usize, u64, u64)>,
    /// Length of the whole file.
    pub(crate) bytes: u64,
}

impl Layout {
    /// Plans a file of the tensors `members` of `specs`. Wide elements come first, so that every tensor is aligned to
    /// its element: the header is padded with spaces to a multiple of 8.
    pub(crate) fn plan(
        specs: &[TensorSpec],
        members: &[usize],
        metadata: &[(&str, &str)],
    ) -> std::result::Result<Layout, String> {
        if members.len() > MAX_TENSORS {
            return Err(format!(
                "{} tensors in one file, at most {MAX_TENSORS}; use smaller files",
                members.len()
            ));
        }
        let mut order = members.to_vec();
        order.sort_by_key(|i| std::cmp::Reverse(specs[*i].dtype.size()));
        let mut header = Map::new();
        if !metadata.is_empty() {
            let map = metadata.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
            header.insert("__metadata__".into(), Value::Object(map));
        }
        let mut tensors = Vec::with_capacity(order.len());
        let mut at = 0u64;
        for i in order {
            let s = &specs[i];
            if s.name.is_empty() || s.name.len() > MAX_NAME_BYTES || s.name == "__metadata__" {
                return Err(format!("tensor name {:?}: wanted 1 to {MAX_NAME_BYTES} bytes", s.name));
            }
            if s.shape.len() > MAX_RANK {
                return Err(format!("tensor {:?}: {} dims, at most {MAX_RANK}", s.name, s.shape.len()));
            }
            let bytes = checked_bytes(&s.shape, s.dtype.size() as u64);
            let end = bytes.and_then(|b| at.checked_add(b)).filter(|e| *e < 1 << 62);
            let end =
                end.ok_or_else(|| format!("tensor {:?}: the size of shape {:?} overflows", s.name, s.shape))?;
            let entry =
                json!({"dtype": s.dtype.safetensors_name(), "shape": s.shape, "data_offsets": [at, end]});
            if header.insert(s.name.clone(), entry).is_some() {
                return Err(format!("tensor {:?} is given twice", s.name));
            }
            tensors.push((i, at, end - at));
            at = end;
        }
        let mut json = serde_json::to_vec(&Value::Object(header)).map_err(|e| e.to_string())?;
        json.resize(json.len().next_multiple_of(8), b' ');
        if json.len() as u64 > MAX_HEADER_BYTES {
            return Err(format!(
                "{} tensors need a header of {} bytes, at most {MAX_HEADER_BYTES}; use smaller files",
                members.len(),
                json.len()
            ));
        }
        let mut head = (json.len() as u64).to_le_bytes().to_vec();
        head.append(&mut json);
        let data_start = head.len() as u64;
        for t in &mut tensors {
            t.1 += data_start;
        }
        Ok(Layout { head, tensors, bytes: data_start + at })
    }
}

/// Result of writing.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// BLAKE3 of the bytes, hexadecimal.
    pub(crate) blake3: String,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: u64,
    /// Checksums of the chunks.
    pub(crate) chunks: Vec<String>,
}

/// A piece of a file, whose memory begins at a multiple of [`DIRECT_ALIGNMENT`] so that it can pass the page cache by.
struct PieceBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl PieceBuffer {
    fn new() -> PieceBuffer {
        let memory = vec![0; CHUNK + DIRECT_ALIGNMENT];
        // Where a pointer cannot be aligned, the file is written through the page cache.
        let start = memory.as_ptr().align_offset(DIRECT_ALIGNMENT).min(DIRECT_ALIGNMENT);
        PieceBuffer { memory, start, len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// Up to `most` bytes behind those that it has; none if it is full.
    fn next(&mut self, most: usize) -> &mut [u8] {
        let from = self.len;
        self.len = CHUNK.min(from + most);
        &mut self.memory[self.start + from..self.start + self.len]
    }
}

/// Writes and syncs the file that `layout` plans. A value that is not finite is an error that names its tensor. `progress` gets
/// the bytes of each piece.
///
/// ```text
/// calling thread: values ─► bytes ─► checksums ─► │ thread: write ─► buffers, back to be filled again
/// ```
/// The pieces of a large file pass two threads, so that it takes the time of the slower one, usually the disk. Bytes are hashed by the
/// thread that makes them, while they are in its cache.
pub(crate) fn write_file(
    file: &mut dyn WriteFile,
    path: &Path,
    layout: &Layout,
    source: &mut dyn TensorSource,
    progress: &mut dyn FnMut(u64),
) -> Result<WrittenFile> {
    let mut hasher = FileHasher::new(layout.bytes);
    let mut pieces = |put: &mut PutPiece<'_>| {
        pieces(path, layout, source, &mut hasher, &mut |piece| {
            progress(piece.len as u64);
            put(piece)
        })
    };
    if layout.bytes < PARALLEL {
        pieces(&mut |piece| file.write_all(piece.bytes()).at("write", path))?;
    } else {
        write_beside(file, path, pieces)?;
    }
    file.sync().at("sync", path)?;
    let (blake3, chunk_bytes, chunks) = hasher.finish();
    Ok(WrittenFile { bytes: layout.bytes, blake3, chunk_bytes, chunks })
}

/// Takes a piece of a file. It may leave another buffer in its place.
type PutPiece<'a> = dyn FnMut(&mut PieceBuffer) -> Result<()> + 'a;

/// Hands a file's bytes to `put`, in pieces of [`CHUNK`] bytes but for the last one.
fn pieces(
    path: &Path,
    layout: &Layout,
    source: &mut dyn TensorSource,
    hasher: &mut FileHasher,
    put: &mut PutPiece<'_>,
) -> Result<()> {
    let mut piece = PieceBuffer::new();
    let mut put_full = |piece: &mut PieceBuffer| {
        if piece.len == CHUNK {
            put(piece)?;
            piece.len = 0;
        }
        Ok::<(), CheckpointError>(())
    };
    let mut head = &layout.head[..];
    while !head.is_empty() {
        let to = piece.next(head.len());
        let (here, later) = head.split_at(to.len());
        to.copy_from_slice(here);
        hasher.update(here);
        head = later;
        put_full(&mut piece)?;
    }
    let (mut memory, mut by_parts) = (Vec::new(), true);
    for (i, _, length) in &layout.tensors {
        let (name, dtype) = (source.specs()[*i].name.clone(), source.specs()[*i].dtype);
        let elements = (*length / dtype.size() as u64) as usize;
        let failed = |source| CheckpointError::Source { name: name.clone(), source };
        let is_lent = source.lend(*i).is_some_and(|values| values.len() == elements);
        let (mut done, mut is_whole) = (0, false);
        while done < elements {
            // Elements are aligned in files, so that none lies on both sides of a boundary of pieces.
            let to = piece.next(BLOCK.min((elements - done) * dtype.size()));
            let count = to.len() / dtype.size();
            if !is_lent && by_parts {
                memory.resize(count, 0.0);
                let result = source.fill_part(*i, done, &mut memory);
                by_parts = result.is_some();
                result.unwrap_or(Ok(())).map_err(failed)?;
            }
            if !is_lent && !by_parts && !is_whole {
                memory.resize(elements, 0.0);
                source.fill(*i, &mut memory).map_err(failed)?;
                is_whole = true;
            }
            let here = if is_lent || is_whole { done..done + count } else { 0..count };
            let lent = if is_lent { source.lend(*i) } else { None };
            let here = &lent.unwrap_or(&memory)[here];
            if !all_finite(here)
                && let Some(at) = here.iter().position(|v| !v.is_finite())
            {
                return Err(CheckpointError::NotFinite { name, index: done + at, value: here[at] });
            }
            encode(here, dtype, to).map_err(|problem| CheckpointError::Tensor {
                file: path.into(),
                name: name.clone(),
                problem,
            })?;
            hasher.update(to);
            done += here.len();
            put_full(&mut piece)?;
        }
    }
    if piece.len > 0 {
        put(&mut piece)?;
    }
    Ok(())
}

/// Passes the pieces that `produce` puts to a thread, which writes them.
fn write_beside(
    file: &mut dyn WriteFile,
    path: &Path,
    produce: impl FnOnce(&mut PutPiece<'_>) -> Result<()>,
) -> Result<()> {
    let (to_writer, produced) = mpsc::sync_channel::<PieceBuffer>(BUFFERS);
    let (to_producer, free) = mpsc::sync_channel::<PieceBuffer>(BUFFERS);
    // Whichever thread ends early closes its channels, and so ends the other.
    let closed = || CheckpointError::Io {
        action: "write",
        path: path.into(),
        source: io::Error::other("the thread that writes it has ended"),
    };
    for _ in 1..BUFFERS {
        to_producer.send(PieceBuffer::new()).map_err(|_| closed())?;
    }
    std::thread::scope(|scope| {
        let write = move || {
            for piece in produced {
                file.write_all(piece.bytes())?;
                // The producer may be through.
                let _ = to_producer.send(piece);
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("checkpoint-write".into());
        let writing = thread.spawn_scoped(scope, write).at("start a thread for", path)?;
        let produced = produce(&mut |piece| {
            let next = free.recv().map_err(|_| closed())?;
            to_writer.send(std::mem::replace(piece, next)).map_err(|_| closed())
        });
        drop(to_writer);
        let written: io::Result<()> = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Why the writer ended comes first.
        written.at("write", path)?;
        produced
    })
}

/// Splits tensors over files of at most `most` bytes of data each, in their order; a tensor larger than that gets a
/// file of its own.
pub(crate) fn split(specs: &[TensorSpec], most: u64) -> Vec<Vec<usize>> {
    let mut files: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0u64;
    for (i, s) in specs.iter().enumerate() {
        let bytes = checked_bytes(&s.shape, s.dtype.size() as u64).unwrap_or(u64::MAX);
        if filled > 0 && filled.saturating_add(bytes) > most {
            files.push(Vec::new());
            filled = 0;
        }
        if let Some(last) = files.last_mut() {
            last.push(i);
        }
        filled = filled.saturating_add(bytes);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{TensorParts, TensorsFrom};
    use bessemer_units::DType;

    /// A file in memory, which fails at its write number `fails_at`.
    struct Memory {
        bytes: Vec<u8>,
        writes: usize,
        fails_at: usize,
    }

    impl WriteFile for Memory {
        fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.writes += 1;
            if self.writes > self.fails_at {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(bytes);
            Ok(())
        }
        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Two tensors of 10 MiB, the second in 16 bits; element `broken` of it is not finite.
    fn write(fails_at: usize, broken: usize) -> (Result<WrittenFile>, Memory, u64) {
        let spec =
            |name: &str, elements, dtype| TensorSpec { name: name.into(), shape: vec![elements], dtype };
        let specs = vec![spec("a", 10 << 18, DType::F32), spec("b", 10 << 19, DType::Bf16)];
        let layout = Layout::plan(&specs, &[0, 1], &[]).unwrap();
        assert!(layout.bytes > PARALLEL);
        let mut source = TensorsFrom::new(specs, |i, values: &mut [f32]| {
            values.iter_mut().enumerate().for_each(|(at, v)| *v = (i + at % 251) as f32);
            if let (1, Some(v)) = (i, values.get_mut(broken)) {
                *v = f32::NAN;
            }
            Ok(())
        });
        let mut file = Memory { bytes: Vec::new(), writes: 0, fails_at };
        let mut done = 0;
        let written = write_file(&mut file, Path::new("x"), &layout, &mut source, &mut |bytes| done += bytes);
        (written, file, done)
    }

    #[test]
    fn a_large_file_passes_threads_in_order() {
        let (written, file, done) = write(usize::MAX, usize::MAX);
        let written = written.unwrap();
        assert_eq!((file.bytes.len() as u64, done), (written.bytes, written.bytes));
        assert_eq!(written.blake3, blake3::hash(&file.bytes).to_hex().to_string());
        assert!(written.chunks.len() > 16 && file.writes > 4);
        let second = &file.bytes[file.bytes.len() - (10 << 20)..];
        let value =
            |at: usize| f32::from_bits(u32::from(second[2 * at]) << 16 | u32::from(second[2 * at + 1]) << 24);
        assert!((0..10 << 19).all(|at| value(at) == (1 + at % 251) as f32));
    }

    /// Parts of tensors make the file that whole tensors make, and no memory holds a tensor.
    #[test]
    fn a_file_of_parts_is_the_file_of_whole_tensors() {
        let spec =
            |name: &str, elements, dtype| TensorSpec { name: name.into(), shape: vec![elements], dtype };
        let specs =
            vec![spec("a", 200_001, DType::F32), spec("b", 0, DType::F32), spec("c", 300_003, DType::Bf16)];
        let layout = Layout::plan(&specs, &[0, 1, 2], &[]).unwrap();
        let value = |i: usize, at: usize| (i * 1000 + at % 251) as f32;
        let file = |source: &mut dyn TensorSource| {
            let mut file = Memory { bytes: Vec::new(), writes: 0, fails_at: usize::MAX };
            write_file(&mut file, Path::new("x"), &layout, source, &mut |_| ()).unwrap();
            file.bytes
        };
        let mut whole = TensorsFrom::new(specs.clone(), |i, values: &mut [f32]| {
            values.iter_mut().enumerate().for_each(|(at, v)| *v = value(i, at));
            Ok(())
        });
        let (mut next, mut largest) = ([0; 3], 0);
        let mut parts = TensorParts::new(specs.clone(), |i, first, values: &mut [f32]| {
            assert_eq!(std::mem::replace(&mut next[i], first + values.len()), first, "each once, in order");
            largest = largest.max(values.len());
            values.iter_mut().enumerate().for_each(|(at, v)| *v = value(i, first + at));
            Ok(())
        });
        assert!(file(&mut whole) == file(&mut parts));
        drop(parts);
        assert_eq!((next, largest), ([200_001, 0, 300_003], BLOCK / 2));
    }

    #[test]
    fn whatever_thread_fails_says_why() {
        for fails_at in 0..6 {
            let e = write(fails_at, usize::MAX).0.unwrap_err();
            let CheckpointError::Io { action: "write", source, .. } = &e else { panic!("{e}") };
            assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{fails_at}: {e}");
        }
        let e = write(usize::MAX, 7).0.unwrap_err();
        assert!(matches!(&e, CheckpointError::NotFinite { name, index: 7, .. } if name == "b"), "{e}");
    }
}
