//! Writing a safetensors file as a stream: the header is known before the first value, the values come one tensor at a
//! time, and the checksum is taken over the very bytes that are handed to the system.

use super::header::checked_bytes;
use super::{MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS};
use crate::chunks::FileHasher;
use crate::element::encode;
use crate::error::{At, CheckpointError, Result};
use crate::fs::WriteFile;
use crate::source::{TensorSource, TensorSpec};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Bytes handed to the system at a time.
const CHUNK: usize = 4 << 20;

/// Where everything in a file will be.
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

/// What was written.
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

/// Writes and syncs the file that `layout` plans. A value that is not finite is an error that names its tensor. `progress` is told the bytes of each piece written.
pub(crate) fn write_file(
    file: &mut dyn WriteFile,
    path: &Path,
    layout: &Layout,
    source: &mut dyn TensorSource,
    progress: &mut dyn FnMut(u64),
) -> Result<WrittenFile> {
    let mut hasher = FileHasher::new(layout.bytes);
    let mut put = |file: &mut dyn WriteFile, bytes: &[u8]| {
        hasher.update(bytes);
        file.write_all(bytes).at("write", path)?;
        progress(bytes.len() as u64);
        Ok::<(), CheckpointError>(())
    };
    put(file, &layout.head)?;
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for (i, _, length) in &layout.tensors {
        let (name, dtype) = (source.specs()[*i].name.clone(), source.specs()[*i].dtype);
        values.clear();
        values.resize((*length / dtype.size() as u64) as usize, 0.0);
        source
            .fill(*i, &mut values)
            .map_err(|source| CheckpointError::Source { name: name.clone(), source })?;
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(CheckpointError::NotFinite { name, index, value: values[index] });
        }
        for part in values.chunks(CHUNK / dtype.size()) {
            bytes.resize(part.len() * dtype.size(), 0);
            encode(part, dtype, &mut bytes).map_err(|problem| CheckpointError::Tensor {
                file: path.into(),
                name: name.clone(),
                problem,
            })?;
            put(file, &bytes)?;
        }
    }
    file.sync().at("sync", path)?;
    let (blake3, chunk_bytes, chunks) = hasher.finish();
    Ok(WrittenFile { bytes: layout.bytes, blake3, chunk_bytes, chunks })
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
