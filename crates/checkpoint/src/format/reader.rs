//! Reading tensors out of a safetensors file at positions, without mapping it: a file that shrinks under a map kills
//! the process, a read that comes up short is an error.

use super::{Entry, Header, MAX_HEADER_BYTES};
use crate::element::decode;
use crate::error::{At, CheckpointError, Result};
use crate::fs::{FileSystem, Links, ReadFile};
use std::io;
use std::path::{Path, PathBuf};

/// An open safetensors file with a checked header.
pub struct SafetensorsFile {
    file: Box<dyn ReadFile>,
    path: PathBuf,
    header: Header,
    data_start: u64,
}

impl std::fmt::Debug for SafetensorsFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SafetensorsFile").field("path", &self.path).field("header", &self.header).finish()
    }
}

impl SafetensorsFile {
    /// Opens a file and checks its header against its length.
    pub fn open(fs: &dyn FileSystem, path: &Path, links: Links) -> Result<SafetensorsFile> {
        Self::from_file(fs.open_file(path, links).at("open", path)?, path)
    }

    /// Checks the header of an open file; `path` is for messages.
    pub fn from_file(file: Box<dyn ReadFile>, path: &Path) -> Result<SafetensorsFile> {
        let wrong = |problem: String| CheckpointError::Container { file: path.into(), problem };
        let size = file.size().at("read the size of", path)?;
        if size < 8 {
            return Err(wrong(format!("{size} bytes, at least 8 wanted")));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).at("read", path)?;
        let length = u64::from_le_bytes(length);
        // Both limits before any memory is taken.
        if length > MAX_HEADER_BYTES {
            return Err(wrong(format!("header length {length}, at most {MAX_HEADER_BYTES} is read")));
        }
        if length > size - 8 {
            return Err(wrong(format!("header length {length}, the file has only {size} bytes")));
        }
        let mut json = vec![0; length as usize];
        file.read_exact_at(&mut json, 8).at("read", path)?;
        let data_start = 8 + length;
        let header = Header::parse(&json, size - data_start).map_err(wrong)?;
        Ok(SafetensorsFile { file, path: path.into(), header, data_start })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Position in the file where the tensor bytes begin.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Reads elements `first .. first + values.len()` of a tensor as f32.
    ///
    /// Errors if the tensor has no such elements, a type that Bessemer does not compute with, or cannot be read.
    pub fn read_f32(&self, entry: &Entry, first: usize, values: &mut [f32]) -> Result<()> {
        let wrong = |problem: String| CheckpointError::Tensor {
            file: self.path.clone(),
            name: entry.name.clone(),
            problem,
        };
        let dtype = entry.stored.dtype().ok_or_else(|| {
            wrong(format!(
                "stored as {}, wanted F32, F16, BF16 or U32; convert it first",
                entry.stored.name()
            ))
        })?;
        let element = dtype.size() as u64;
        let begin = (first as u64).checked_mul(element).and_then(|b| b.checked_add(entry.begin));
        let end = begin.and_then(|b| b.checked_add((values.len() as u64).checked_mul(element)?));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(wrong(format!("elements from {first} on overflow")));
        };
        if end > entry.end {
            return Err(wrong(format!(
                "elements {first}..{} wanted, shape {:?}",
                first + values.len(),
                entry.shape
            )));
        }
        let (mut rest, mut problem) = (values, None);
        let mut each = |bytes: &[u8]| {
            let (here, later) = std::mem::take(&mut rest).split_at_mut(bytes.len() / dtype.size());
            rest = later;
            decode(bytes, dtype, here).map_err(|text| {
                problem = Some(text);
                io::ErrorKind::InvalidData.into()
            })
        };
        let read = self.file.read_pieces(self.data_start + begin, end - begin, &mut each);
        problem.map_or(Ok(()), |text| Err(wrong(text)))?;
        read.at("read", &self.path)
    }
}
