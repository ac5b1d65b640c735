//! Reads records one by one, in bounded memory, and continues after damaged places.

use super::error::{Counts, Fault, FaultKind, WarcError};
use super::limits::WarcLimits;
use super::member::{Compression, DICTIONARY_MAGIC, GZIP_MAGIC, Members, ZSTD_MAGIC};
use super::raw::Raw;
use super::record::{Position, Record, RecordType};
use crate::fields::Fields;
use memchr::memmem::Finder;
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;

/// Reader of WARC and WET files: plain, `.gz` with any number of members, `.zst` with any number of frames and the
/// dictionary frame of the IIPC's specification.
///
/// Memory: one record, at most [`WarcLimits::max_block`], and some hundred KiB (for zstd up to a window of 128 MiB
/// if a frame asks for it).
pub struct WarcReader<R> {
    raw: Raw<R>,
    members: Members,
    compression: Compression,
    limits: WarcLimits,
    counts: Counts,
    /// Decompressed bytes of the open member that were not read yet: `buffer[at..]`.
    buffer: Vec<u8>,
    at: usize,
    open: bool,
    /// Fault that was met behind a whole record, for the next call.
    pending: Option<Fault>,
    position: Position,
    end: u64,
    finished: bool,
}

impl WarcReader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be read, or its zstd dictionary cannot be used.
    pub fn open(path: &Path, limits: WarcLimits) -> Result<Self, WarcError> {
        let file = bessemer_durable::open_regular(path).map_err(|e| WarcError::io(0, e))?;
        Self::named(file, &path.file_name().unwrap_or_default().to_string_lossy(), limits)
    }
}

impl<R: Read + Seek> WarcReader<R> {
    /// Reads a file of this name from anything that can be set to an offset: the name says how it is compressed where its first
    /// bytes are damaged.
    ///
    /// # Errors
    /// As [`WarcReader::open`].
    pub fn named(inner: R, name: &str, limits: WarcLimits) -> Result<Self, WarcError> {
        let name = name.to_ascii_lowercase();
        let named = if name.ends_with(".gz") {
            Some(Compression::Gzip)
        } else if name.ends_with(".zst") {
            Some(Compression::Zstd)
        } else {
            None
        };
        Self::with_hint(inner, named, limits)
    }

    /// Reads from anything that can be set to an offset. The compression is recognised by the first bytes.
    ///
    /// # Errors
    /// As [`WarcReader::open`].
    pub fn new(inner: R, limits: WarcLimits) -> Result<Self, WarcError> {
        Self::with_hint(inner, None, limits)
    }

    fn with_hint(inner: R, named: Option<Compression>, limits: WarcLimits) -> Result<Self, WarcError> {
        let io = |e| WarcError::io(0, e);
        let mut raw = Raw::new(inner).map_err(io)?;
        let head = raw.peek(8).map_err(io)?;
        let skippable = head.len() > 3 && head[1..4] == DICTIONARY_MAGIC[1..] && head[0] >> 4 == 5;
        let compression = if head.starts_with(&GZIP_MAGIC) {
            Compression::Gzip
        } else if head.starts_with(&ZSTD_MAGIC) || skippable {
            Compression::Zstd
        } else if head.starts_with(b"WARC/") {
            Compression::Plain
        } else {
            // Damaged from the first byte on: its name is all there is.
            named.unwrap_or(Compression::Plain)
        };
        let mut members = Members::new(compression);
        members.dictionary(&mut raw).map_err(|fault| fault.at(0))?;
        let end = u64::MAX;
        let position = Position { offset: raw.offset(), index: 0 };
        let counts = Counts::default();
        Ok(WarcReader {
            raw,
            members,
            compression,
            limits,
            counts,
            buffer: Vec::new(),
            at: 0,
            open: false,
            pending: None,
            position,
            end,
            finished: false,
        })
    }

    /// Records and faults so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.raw.length()
    }

    /// Goes to a record that was read before; the next one returned is that record.
    ///
    /// # Errors
    /// The file cannot be read, or ends before.
    pub fn seek(&mut self, position: Position) -> Result<(), WarcError> {
        self.raw.seek(position.offset).map_err(|e| WarcError::io(position.offset, e))?;
        self.open = false;
        self.pending = None;
        self.finished = false;
        for _ in 0..position.index {
            match self.advance() {
                Ok(Some(_)) => {}
                // A record that is passed over is counted in its member too.
                Err(e) if e.kind == FaultKind::TooLarge => {}
                Ok(None) => {
                    return Err(WarcError::new(
                        position.offset,
                        FaultKind::Truncated,
                        format!("the member holds no record {}", position.index),
                    ));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads only the records whose member begins in `range`: the first member at or after its start is searched.
    /// Ranges that cover the file without overlap, such as those of [`cut`], give each record once.
    ///
    /// # Errors
    /// The file cannot be read, or the search was given up ([`WarcLimits::max_candidates`]).
    pub fn restrict(&mut self, range: Range<u64>) -> Result<(), WarcError> {
        self.end = range.end;
        self.open = false;
        self.pending = None;
        self.finished = false;
        if range.start <= self.position.offset && self.counts.records == 0 {
            return Ok(());
        }
        let io = |e| WarcError::io(range.start, e);
        self.raw.seek(range.start).map_err(io)?;
        if !self.search().map_err(io)? {
            self.finished = true;
            return Err(lost(range.start, self.limits.max_candidates));
        }
        Ok(())
    }

    /// Moves to the next member at or after the current position, or to the end. False when given up.
    fn search(&mut self) -> std::io::Result<bool> {
        let magic: &[u8] = match self.compression {
            Compression::Plain => b"\nWARC/",
            Compression::Gzip => &GZIP_MAGIC,
            Compression::Zstd => &ZSTD_MAGIC,
        };
        let finder = Finder::new(magic);
        let plain = u64::from(self.compression == Compression::Plain);
        if plain == 1 {
            // The line break belongs to what is searched.
            let offset = self.raw.offset();
            self.raw.seek(offset.saturating_sub(1))?;
        }
        for _ in 0..self.limits.max_candidates {
            if !self.raw.find(&finder, self.end)? {
                let end = self.raw.length();
                self.raw.seek(end)?;
                return Ok(true);
            }
            let candidate = self.raw.offset() + plain;
            self.raw.consume(plain as usize);
            if self.members.looks_like_a_member(&mut self.raw)? {
                return Ok(true);
            }
            self.raw.seek(candidate + 1 - plain)?;
        }
        Ok(false)
    }

    /// The next record.
    ///
    /// An error that [is skippable](WarcError::is_skippable) concerns one record or member and is counted: call
    /// again to continue after it. After any other error there are no more records.
    ///
    /// # Errors
    /// See [`FaultKind`].
    #[allow(clippy::should_implement_trait)] // an error does not end the sequence
    pub fn next(&mut self) -> Result<Option<Record>, WarcError> {
        if self.finished {
            return Ok(None);
        }
        let result = self.advance();
        match &result {
            Ok(Some(record)) => {
                self.counts.records += 1;
                self.counts.wrong_lengths += u64::from(record.wrong_length);
            }
            Ok(None) => self.finished = true,
            Err(e) => {
                *self.counts.faults.entry(e.kind).or_default() += 1;
                self.finished |= !e.is_skippable();
            }
        }
        result
    }

    fn advance(&mut self) -> Result<Option<Record>, WarcError> {
        loop {
            if !self.open {
                let offset = self.raw.offset();
                self.position = Position { offset, index: 0 };
                self.buffer.clear();
                self.at = 0;
                if offset >= self.end {
                    return Ok(None);
                }
                match self.members.open(&mut self.raw) {
                    Ok(false) => return Ok(None),
                    Ok(true) => self.open = true,
                    Err(e) => return Err(self.recover(e)),
                }
            }
            match self.record() {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) if self.compression == Compression::Plain => return Ok(None),
                Ok(None) => self.open = false,
                Err(e) => return Err(self.recover(e)),
            }
        }
    }

    /// Moves the reader to where reading can continue, and returns the error.
    fn recover(&mut self, fault: Fault) -> WarcError {
        let offset = self.position.offset;
        if fault.search {
            self.open = false;
            let found = self.raw.seek(offset + 1).and_then(|()| self.search());
            match found {
                Ok(true) => self.counts.skipped_bytes += self.raw.offset() - offset,
                Ok(false) => {
                    self.finished = true;
                    *self.counts.faults.entry(FaultKind::Lost).or_default() += 1;
                }
                Err(e) => return WarcError::io(offset, e),
            }
        }
        fault.at(offset)
    }

    /// More decompressed bytes; false at the end of the member.
    fn fill(&mut self) -> Result<bool, Fault> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        let have = self.buffer.len();
        self.buffer.resize(have + (64 << 10), 0);
        let got = self.members.read(&mut self.raw, &mut self.buffer[have..]);
        self.buffer.truncate(have + *got.as_ref().unwrap_or(&0));
        let got = got?;
        if self.compression != Compression::Plain
            && self.members.produced > self.limits.bomb_floor
            && self.members.produced / self.members.consumed.max(1) > self.limits.max_ratio
        {
            return Err(Fault::new(
                FaultKind::Bomb,
                format!(
                    "a member of {} bytes gave {} and more; at most {} for one are taken",
                    self.members.consumed, self.members.produced, self.limits.max_ratio
                ),
            ));
        }
        Ok(got > 0)
    }

    /// The next line without its end, at most `limit` bytes; None at the end of the member.
    fn line(&mut self, limit: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut seen = 0;
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.at + seen..]) {
                let line = self.buffer[self.at..self.at + seen + found].trim_ascii_end().to_vec();
                self.at += seen + found + 1;
                return Ok(Some(line));
            }
            seen = self.buffer.len() - self.at;
            if seen > limit {
                return Err(Fault::new(
                    FaultKind::Header,
                    format!("a header of more than {} bytes", self.limits.max_header),
                ));
            }
            if self.at > 0 {
                self.buffer.drain(..self.at);
                self.at = 0;
            }
            if !self.fill()? {
                self.at = self.buffer.len();
                return Ok(None);
            }
        }
    }

    fn record(&mut self) -> Result<Option<Record>, Fault> {
        if let Some(fault) = self.pending.take() {
            return Err(fault);
        }
        loop {
            match self.buffer.get(self.at) {
                Some(b'\r' | b'\n') => self.at += 1,
                Some(_) => break,
                None => {
                    if !self.fill()? {
                        return Ok(None);
                    }
                }
            }
        }
        if self.compression == Compression::Plain {
            let offset = self.raw.offset() - (self.buffer.len() - self.at) as u64;
            if offset >= self.end {
                return Ok(None);
            }
            self.position = Position { offset, index: 0 };
        }
        let (version, fields) = self.header()?;
        let stated = fields.get("Content-Length").and_then(|v| v.trim().parse::<u64>().ok());
        // Without a length the end of the member is all there is.
        let length = stated.unwrap_or(u64::MAX);
        if self.compression == Compression::Plain {
            if stated.is_none() {
                return Err(Fault::new(FaultKind::Header, "no Content-Length that is a number"));
            }
            let begin = self.raw.offset() - (self.buffer.len() - self.at) as u64;
            if begin.saturating_add(length) > self.raw.length() {
                return Err(Fault::new(
                    FaultKind::Truncated,
                    format!(
                        "a block of {length} bytes, of which the file holds {}",
                        self.raw.length() - begin
                    ),
                ));
            }
        }
        let mut block = Vec::new();
        let wrong_length = match self.compression {
            Compression::Plain if length > self.limits.max_block => return Err(self.too_large(length)),
            Compression::Plain => {
                if !self.take(length, &mut block)? {
                    let have = block.len();
                    self.open = false;
                    let what = format!("a block of {length} bytes, of which the file holds {have}");
                    return Err(Fault::new(FaultKind::Truncated, what).without_search());
                }
                false
            }
            Compression::Gzip | Compression::Zstd => self.block_of_member(length, &mut block)?,
        };
        let position = self.position;
        self.position.index += 1;
        let kind = RecordType::of(fields.get("WARC-Type").unwrap_or_default());
        Ok(Some(Record { position, version, kind, fields, block, wrong_length }))
    }

    /// Reads the block of a record in a compressed member, for which the header states `length` bytes. Returns whether that is
    /// wrong: the member, or the next record in it, tells where the block ends.
    fn block_of_member(&mut self, length: u64, block: &mut Vec<u8>) -> Result<bool, Fault> {
        let most = self.limits.max_block;
        let has_all = self.take(length.min(most), block)?;
        if has_all && length > most {
            return Err(self.too_large(length - most));
        }
        if has_all {
            match self.ends_here(block) {
                Ok(true) => return Ok(false),
                Ok(false) => {}
                Err(fault) => {
                    self.pending = Some(fault);
                    return Ok(false);
                }
            }
            if self.take(most.saturating_sub(length), block)? && !self.ends_here(block)? {
                return Err(self.too_large(u64::MAX));
            }
        }
        // The block holds all that is left of the member, other records too.
        if let Some(end) = next_record(block) {
            self.buffer.drain(..self.at);
            self.buffer.splice(..0, block.drain(end..));
            self.at = 0;
        }
        for end in [&b"\r\n\r\n"[..], b"\n\n"] {
            if block.ends_with(end) {
                block.truncate(block.len() - end.len());
                break;
            }
        }
        Ok(true)
    }

    /// Whether a record with this block, or the member, may end at this place: line breaks follow, then a record or nothing.
    fn ends_here(&mut self, block: &[u8]) -> Result<bool, Fault> {
        const MARK: &[u8] = b"WARC/";
        const LONGEST: usize = MARK.len() + b"\r\n\r\n".len();
        while self.buffer.len() - self.at < LONGEST && self.fill()? {}
        let rest = &self.buffer[self.at..];
        let rest = &rest[..rest.len().min(LONGEST)];
        let text = rest.trim_ascii_start();
        let begins_line = text.len() < rest.len() || block.last().is_none_or(|byte| *byte == b'\n');
        Ok(text.is_empty() || begins_line && text.starts_with(&MARK[..text.len().min(MARK.len())]))
    }

    /// Leaves the rest of a block that is above the limit unread: so many bytes, or what the member holds.
    fn too_large(&mut self, rest: u64) -> Fault {
        if let Err(fault) = self.pass_over(rest) {
            return fault;
        }
        self.position.index += 1;
        let what = format!("a block of more than {} bytes, the most that are read", self.limits.max_block);
        Fault::new(FaultKind::TooLarge, what).without_search()
    }

    /// The first line and the fields.
    fn header(&mut self) -> Result<(String, Fields), Fault> {
        let max = self.limits.max_header;
        let cut = || Fault::new(FaultKind::Truncated, "the header is cut off").without_search();
        // What is not a record is recognised by its first bytes, before a line's end is looked for.
        while self.buffer.len() - self.at < 5 && self.fill()? {}
        let head = &self.buffer[self.at..];
        let begins = head.starts_with(b"WARC/") || head.len() < 5 && b"WARC/".starts_with(head);
        if !begins {
            let shown = String::from_utf8_lossy(&head[..head.len().min(40)]).into_owned();
            return Err(Fault::new(FaultKind::Header, format!("wanted a line WARC/1.x, found {shown:?}")));
        }
        let first = self.line(max)?;
        if first.is_none() {
            self.open = false;
        }
        let first = first.ok_or_else(cut)?;
        let version = String::from_utf8_lossy(first.strip_prefix(b"WARC/").unwrap_or_default()).into_owned();
        let mut fields = Fields::new();
        let mut total = 0;
        loop {
            let Some(line) = self.line(max.saturating_sub(total))? else {
                self.open = false;
                return Err(cut());
            };
            if line.is_empty() {
                return Ok((version, fields));
            }
            total += line.len() + 2;
            fields.add_line(&line);
        }
    }

    /// Adds the next `length` bytes to a block; false where the member ends before.
    fn take(&mut self, length: u64, block: &mut Vec<u8>) -> Result<bool, Fault> {
        // What a header promises is not taken before it has come.
        block.reserve(length.min(1 << 20) as usize);
        let mut left = length;
        while left > 0 {
            let have = &self.buffer[self.at..];
            let take = (have.len() as u64).min(left) as usize;
            block.extend_from_slice(&have[..take]);
            self.at += take;
            left -= take as u64;
            if left > 0 && !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Leaves a block unread.
    fn pass_over(&mut self, length: u64) -> Result<(), Fault> {
        let have = ((self.buffer.len() - self.at) as u64).min(length);
        self.at += have as usize;
        let mut rest = length - have;
        if self.compression == Compression::Plain && rest > 0 {
            let to = self.raw.offset() + rest;
            return Ok(self.raw.seek(to)?);
        }
        while rest > 0 {
            if !self.fill()? {
                self.open = false;
                return Ok(());
            }
            let have = (self.buffer.len() as u64).min(rest);
            self.at = have as usize;
            rest -= have;
        }
        Ok(())
    }
}

/// Where a record begins that stands behind another one in a block.
fn next_record(block: &[u8]) -> Option<usize> {
    const VERSION: &str = "WARC/1.";
    let found = ["\n\r\nWARC/1.", "\n\nWARC/1."].into_iter();
    found
        .filter_map(|mark| Some(memchr::memmem::find(block, mark.as_bytes())? + mark.len() - VERSION.len()))
        .min()
}

fn lost(offset: u64, tried: u64) -> WarcError {
    WarcError::new(offset, FaultKind::Lost, format!("{tried} places look like a member and are none"))
}

/// Cuts a file of `length` bytes into at most `parts` ranges of about equal size for [`WarcReader::restrict`].
pub fn cut(length: u64, parts: u64) -> Vec<Range<u64>> {
    let parts = parts.clamp(1, length.max(1));
    let at = |k: u64| (u128::from(length) * u128::from(k) / u128::from(parts)) as u64;
    (0..parts).map(|k| at(k)..if k + 1 == parts { u64::MAX } else { at(k + 1) }).collect()
}
