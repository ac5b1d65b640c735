//! A model file read from front to back. Nothing is allocated for a size that the file says it has before it is known
//! that the rest of the file can hold it.

use crate::error::{Result, ScoreError};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Bytes with a known end.
pub(crate) struct Source<R> {
    reader: R,
    at: u64,
    len: u64,
    name: String,
}

/// A model file, opened.
pub(crate) struct ModelFile {
    pub(crate) reader: BufReader<File>,
    pub(crate) len: u64,
    pub(crate) name: String,
}

impl ModelFile {
    pub(crate) fn open(path: &Path) -> Result<ModelFile> {
        let file = bessemer_durable::open_regular(path).map_err(|e| ScoreError::io("open", path, e))?;
        let meta = file.metadata().map_err(|e| ScoreError::io("read", path, e))?;
        let reader = BufReader::with_capacity(1 << 20, file);
        Ok(ModelFile { reader, len: meta.len(), name: path.display().to_string() })
    }
}

impl<R: Read> Source<R> {
    /// `len` bytes of `reader`, called `name` in errors.
    pub(crate) fn new(reader: R, len: u64, name: &str) -> Source<R> {
        Source { reader, at: 0, len, name: name.to_owned() }
    }

    /// Bytes that are left.
    pub(crate) fn remaining(&self) -> u64 {
        self.len - self.at
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// An error at the present place.
    pub(crate) fn error(&self, what: impl Into<String>) -> ScoreError {
        ScoreError::Model { name: self.name.clone(), at: self.at, what: what.into() }
    }

    /// Fails unless `bytes` more are there.
    pub(crate) fn need(&self, bytes: u64, what: &str) -> Result<()> {
        if bytes > self.remaining() {
            return Err(self.error(format!(
                "{what} takes {bytes} bytes, but only {} are left: the file is truncated or not of this format",
                self.remaining()
            )));
        }
        Ok(())
    }

    /// Fills `to`.
    pub(crate) fn fill(&mut self, to: &mut [u8], what: &str) -> Result<()> {
        self.need(to.len() as u64, what)?;
        self.reader.read_exact(to).map_err(|e| self.error(format!("{what} cannot be read: {e}")))?;
        self.at += to.len() as u64;
        Ok(())
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        self.need(count, what)?;
        let size = usize::try_from(count)
            .map_err(|_| self.error(format!("{what} does not fit the address space")))?;
        let mut bytes = vec![0; size];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A byte that must be 0 or 1.
    pub(crate) fn boolean(&mut self, what: &str) -> Result<bool> {
        match self.array::<1>(what)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error(format!("{what} must be 0 or 1, found {other}"))),
        }
    }

    /// Little-endian integers and floats.
    pub(crate) fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }
    pub(crate) fn i32(&mut self, what: &str) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn i64(&mut self, what: &str) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn f32(&mut self, what: &str) -> Result<f32> {
        Ok(f32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn f64(&mut self, what: &str) -> Result<f64> {
        Ok(f64::from_le_bytes(self.array(what)?))
    }

    /// `count` floats, each finite and of magnitude up to `limit`.
    pub(crate) fn f32s(&mut self, count: u64, limit: f32, what: &str) -> Result<Vec<f32>> {
        let bytes = count.checked_mul(4).ok_or_else(|| {
            self.error(format!(
                "{what}: impossible number of floats, \
                                                                   {count}"
            ))
        })?;
        self.need(bytes, what)?;
        let mut values = Vec::with_capacity(
            usize::try_from(count)
                .map_err(|_| self.error(format!("{what} does not fit the address space")))?,
        );
        let mut block = [0; 1 << 14];
        let mut left = bytes as usize;
        while left > 0 {
            let now = left.min(block.len());
            self.fill(&mut block[..now], what)?;
            for four in block[..now].chunks_exact(4) {
                let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                if value.is_nan() || value.abs() > limit {
                    return Err(
                        self.error(format!("{what} holds {value}; only numbers up to {limit} make sense"))
                    );
                }
                values.push(value);
            }
            left -= now;
        }
        Ok(values)
    }

    /// Bytes up to a NUL, which is consumed.
    pub(crate) fn c_string(&mut self, limit: usize, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            match self.u8(what)? {
                0 => return Ok(bytes),
                byte if bytes.len() < limit => bytes.push(byte),
                _ => return Err(self.error(format!("{what} is longer than {limit} bytes"))),
            }
        }
    }

    /// Fails if anything is left.
    pub(crate) fn end(&self) -> Result<()> {
        if self.remaining() > 0 {
            return Err(self.error(format!("{} bytes follow the end of the model", self.remaining())));
        }
        Ok(())
    }
}
