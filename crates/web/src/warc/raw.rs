//! The bytes of a file as they lie there: a window that can be looked into, moved on, and set to any offset.

use memchr::memmem::Finder;
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes read at once.
const CHUNK: usize = 128 << 10;

/// A buffered reader that knows its offset and can look ahead.
pub(crate) struct Raw<R> {
    inner: R,
    buffer: Vec<u8>,
    /// First unread byte of `buffer`.
    start: usize,
    /// Offset in the file of `buffer[start]`.
    offset: u64,
    length: u64,
}

impl<R: Read + Seek> Raw<R> {
    pub(crate) fn new(mut inner: R) -> io::Result<Self> {
        let length = inner.seek(SeekFrom::End(0))?;
        inner.seek(SeekFrom::Start(0))?;
        Ok(Raw { inner, buffer: Vec::new(), start: 0, offset: 0, length })
    }

    /// Offset of the next unread byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the file when it was opened.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Unread bytes that are in memory.
    pub(crate) fn window(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// At least `wanted` unread bytes, fewer only at the end of the file.
    pub(crate) fn peek(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.start < wanted {
            self.buffer.drain(..self.start);
            self.start = 0;
            while self.buffer.len() < wanted {
                let have = self.buffer.len();
                self.buffer.resize(have + CHUNK.max(wanted - have), 0);
                let got = loop {
                    match self.inner.read(&mut self.buffer[have..]) {
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => {
                            self.buffer.truncate(have);
                            return Err(e);
                        }
                        Ok(n) => break n,
                    }
                };
                self.buffer.truncate(have + got);
                if got == 0 {
                    break;
                }
            }
        }
        Ok(self.window())
    }

    /// Marks `count` bytes of the window as read.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        self.offset += count as u64;
    }

    /// Goes to an offset of the file.
    pub(crate) fn seek(&mut self, to: u64) -> io::Result<()> {
        let window = (self.buffer.len() - self.start) as u64;
        let before = self.start as u64;
        if to + before >= self.offset && to <= self.offset + window {
            self.start = (to + before - self.offset) as usize;
        } else {
            self.inner.seek(SeekFrom::Start(to))?;
            self.buffer.clear();
            self.start = 0;
        }
        self.offset = to;
        Ok(())
    }

    /// Moves to the next place at or after the current one where `finder`'s bytes stand; false at the end of the
    /// file, or when there is none before `limit`.
    pub(crate) fn find(&mut self, finder: &Finder<'_>, limit: u64) -> io::Result<bool> {
        let size = finder.needle().len();
        loop {
            if self.offset >= limit {
                return Ok(false);
            }
            let have = self.peek(size)?.len();
            if have < size {
                self.consume(have);
                return Ok(false);
            }
            match finder.find(self.window()) {
                Some(at) => {
                    self.consume(at);
                    return Ok(self.offset < limit);
                }
                None => self.consume(self.buffer.len() - self.start - (size - 1)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn looks_ahead_seeks_and_finds_over_chunk_borders() {
        let mut bytes = vec![b'.'; 3 * CHUNK];
        bytes[CHUNK - 2..CHUNK + 2].copy_from_slice(b"WARC");
        let mut raw = Raw::new(Cursor::new(&bytes)).unwrap();
        assert!(raw.find(&Finder::new(b"WARC"), u64::MAX).unwrap());
        assert_eq!(raw.offset(), CHUNK as u64 - 2);
        assert_eq!(raw.peek(4).unwrap()[..4], *b"WARC");
        raw.consume(1);
        assert!(!raw.find(&Finder::new(b"WARC"), u64::MAX).unwrap());
        raw.seek(CHUNK as u64).unwrap();
        assert_eq!(&raw.peek(2).unwrap()[..2], b"RC");
        raw.seek(raw.length() - 1).unwrap();
        assert_eq!(raw.peek(10).unwrap().len(), 1);
    }
}
