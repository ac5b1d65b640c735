//! One compressed member after another: gzip members, zstd frames (with the dictionary of the IIPC's zstd
//! specification), or plain bytes.

use super::error::{Fault, FaultKind};
use super::raw::Raw;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::io::{self, Read, Seek};
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

pub(crate) const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
pub(crate) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Skippable frame that holds the dictionary, always the first of a file.
pub(crate) const DICTIONARY_MAGIC: [u8; 4] = [0x5d, 0x2a, 0x4d, 0x18];
/// Longest gzip member header that is read; names and comments are short.
const MAX_GZIP_HEADER: usize = 4096;
/// Largest dictionary, compressed or not.
const MAX_DICTIONARY: usize = 32 << 20;
/// Largest window of a zstd frame: 2^27 = 128 MiB, the library's own limit.
const WINDOW_LOG: u32 = 27;

/// How a WARC file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    Plain,
    /// gzip, a member for each record.
    Gzip,
    /// Zstandard, a frame for each record, with or without a dictionary.
    Zstd,
}

fn broken(message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Member, message)
}

fn truncated(what: &str) -> Fault {
    Fault::new(FaultKind::Truncated, format!("{what} is cut off"))
}

#[derive(PartialEq)]
enum Stage {
    /// Between members.
    Outside,
    Body,
    Done,
}

/// Decompressor that is reused for all members of a file.
pub(crate) struct Members {
    compression: Compression,
    stage: Stage,
    inflate: Decompress,
    crc: Crc,
    zstd: Option<ZstdDecoder<'static>>,
    /// Compressed bytes of this member so far, and bytes that came out.
    pub(crate) consumed: u64,
    pub(crate) produced: u64,
}

impl Members {
    pub(crate) fn new(compression: Compression) -> Self {
        Members {
            compression,
            stage: Stage::Outside,
            inflate: Decompress::new(false),
            crc: Crc::new(),
            zstd: None,
            consumed: 0,
            produced: 0,
        }
    }

    /// Reads the dictionary frame if the file begins with one. `raw` stands at 0 and then behind the frame.
    pub(crate) fn dictionary<R: Read + Seek>(&mut self, raw: &mut Raw<R>) -> Result<(), Fault> {
        if self.compression != Compression::Zstd {
            return Ok(());
        }
        let fault = |message: String| Fault::new(FaultKind::Dictionary, message);
        let unusable = |e: io::Error| fault(format!("the dictionary: {e}"));
        let mut dictionary = Vec::new();
        let head = raw.peek(8)?;
        if head.len() >= 8 && head[..4] == DICTIONARY_MAGIC {
            let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            if size > MAX_DICTIONARY {
                return Err(fault(format!(
                    "a dictionary of {size} bytes; at most {MAX_DICTIONARY} are read"
                )));
            }
            let frame = raw.peek(8 + size)?;
            if frame.len() < 8 + size {
                return Err(fault(format!("the dictionary of {size} bytes is cut off")));
            }
            dictionary = frame[8..8 + size].to_vec();
            if dictionary.starts_with(&ZSTD_MAGIC) {
                let decoder = zstd::stream::read::Decoder::new(&dictionary[..]).map_err(unusable)?;
                let mut plain = Vec::new();
                decoder.take(MAX_DICTIONARY as u64 + 1).read_to_end(&mut plain).map_err(unusable)?;
                if plain.len() > MAX_DICTIONARY {
                    return Err(fault(format!("a dictionary of more than {MAX_DICTIONARY} bytes")));
                }
                dictionary = plain;
            }
            raw.consume(8 + size);
        }
        let mut decoder = ZstdDecoder::with_dictionary(&dictionary).map_err(unusable)?;
        decoder
            .set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(WINDOW_LOG))
            .map_err(|e| fault(e.to_string()))?;
        self.zstd = Some(decoder);
        Ok(())
    }

    /// Begins the member at the position of `raw`. False at the end of the file.
    pub(crate) fn open<R: Read + Seek>(&mut self, raw: &mut Raw<R>) -> Result<bool, Fault> {
        self.stage = Stage::Outside;
        (self.consumed, self.produced) = (0, 0);
        match self.compression {
            Compression::Plain => {
                if raw.peek(1)?.is_empty() {
                    return Ok(false);
                }
            }
            Compression::Gzip => {
                let head = raw.peek(MAX_GZIP_HEADER)?;
                if head.is_empty() {
                    return Ok(false);
                }
                let size = gzip_header(head)?;
                raw.consume(size);
                self.consumed = size as u64;
                self.inflate.reset(false);
                self.crc.reset();
            }
            Compression::Zstd => {
                // Skippable frames may stand anywhere.
                loop {
                    let head = raw.peek(8)?;
                    if head.is_empty() {
                        return Ok(false);
                    }
                    let skippable = head.len() >= 8 && head[1..4] == [0x2a, 0x4d, 0x18] && head[0] >> 4 == 5;
                    if !skippable {
                        break;
                    }
                    let size = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
                    let to = raw.offset() + 8 + size;
                    if to > raw.length() {
                        return Err(truncated("a skippable frame"));
                    }
                    raw.seek(to)?;
                }
                if !raw.peek(4)?.starts_with(&ZSTD_MAGIC) {
                    return Err(broken("wanted a zstd frame, found other bytes"));
                }
                let decoder = self.zstd.as_mut().ok_or_else(|| broken("no zstd decoder"))?;
                decoder.reinit().map_err(|e| broken(e.to_string()))?;
            }
        }
        self.stage = Stage::Body;
        Ok(true)
    }

    /// Fills `out` from the open member; 0 at its end.
    pub(crate) fn read<R: Read + Seek>(&mut self, raw: &mut Raw<R>, out: &mut [u8]) -> Result<usize, Fault> {
        if self.stage != Stage::Body || out.is_empty() {
            return Ok(0);
        }
        let got = match self.compression {
            Compression::Plain => {
                let window = raw.peek(1)?;
                let count = window.len().min(out.len());
                out[..count].copy_from_slice(&window[..count]);
                raw.consume(count);
                self.consumed += count as u64;
                count
            }
            Compression::Gzip => self.read_gzip(raw, out)?,
            Compression::Zstd => self.read_zstd(raw, out)?,
        };
        self.produced += got as u64;
        if got == 0 {
            self.stage = Stage::Done;
        }
        Ok(got)
    }

    fn read_gzip<R: Read + Seek>(&mut self, raw: &mut Raw<R>, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            let window = raw.peek(1)?;
            if window.is_empty() {
                return Err(truncated("the gzip member"));
            }
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(window, out, FlushDecompress::None)
                .map_err(|e| broken(format!("gzip member: {e}")))?;
            let taken = (self.inflate.total_in() - before_in) as usize;
            let made = (self.inflate.total_out() - before_out) as usize;
            raw.consume(taken);
            self.consumed += taken as u64;
            self.crc.update(&out[..made]);
            if status == Status::StreamEnd {
                let trailer = raw.peek(8)?;
                if trailer.len() < 8 {
                    return Err(truncated("the gzip member"));
                }
                let crc = u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
                let size = u32::from_le_bytes([trailer[4], trailer[5], trailer[6], trailer[7]]);
                if crc != self.crc.sum() || size != self.crc.amount() {
                    return Err(broken("the checksum of the gzip member differs from its content"));
                }
                raw.consume(8);
                self.stage = Stage::Done;
                return Ok(made);
            }
            if made > 0 {
                return Ok(made);
            }
            if taken == 0 {
                return Err(broken("gzip member: no progress"));
            }
        }
    }

    fn read_zstd<R: Read + Seek>(&mut self, raw: &mut Raw<R>, out: &mut [u8]) -> Result<usize, Fault> {
        let decoder = self.zstd.as_mut().ok_or_else(|| broken("no zstd decoder"))?;
        loop {
            let window = raw.peek(1)?;
            let at_end = window.is_empty();
            let mut input = InBuffer::around(window);
            let mut output = OutBuffer::around(&mut *out);
            let hint = decoder.run(&mut input, &mut output).map_err(|e| {
                let text = e.to_string();
                if text.to_ascii_lowercase().contains("dictionary") {
                    Fault::new(FaultKind::Dictionary, text)
                } else {
                    broken(format!("zstd frame: {text}"))
                }
            })?;
            let (taken, made) = (input.pos(), output.pos());
            raw.consume(taken);
            self.consumed += taken as u64;
            if hint == 0 {
                self.stage = Stage::Done;
                return Ok(made);
            }
            if made > 0 {
                return Ok(made);
            }
            if at_end {
                return Err(truncated("the zstd frame"));
            }
        }
    }
}

/// Length of the gzip member header at the start of `head` (RFC 1952, section 2.3).
fn gzip_header(head: &[u8]) -> Result<usize, Fault> {
    let short = || {
        if head.len() < MAX_GZIP_HEADER {
            truncated("the header of the gzip member")
        } else {
            broken(format!("the header of the gzip member is longer than {MAX_GZIP_HEADER} bytes"))
        }
    };
    if !head.starts_with(&GZIP_MAGIC[..head.len().min(3)]) {
        return Err(broken("wanted a gzip member, found other bytes"));
    }
    if head.len() < 10 {
        return Err(short());
    }
    let flags = head[3];
    if flags & 0xe0 != 0 {
        return Err(broken("gzip member with unknown flags"));
    }
    let mut at = 10;
    if flags & 4 != 0 {
        let size = head.get(10..12).ok_or_else(short)?;
        at = 12 + usize::from(u16::from_le_bytes([size[0], size[1]]));
    }
    for bit in [8, 16] {
        if flags & bit != 0 {
            let rest = head.get(at..).ok_or_else(short)?;
            at += 1 + memchr::memchr(0, rest).ok_or_else(short)?;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    if at > head.len() { Err(short()) } else { Ok(at) }
}

impl Members {
    /// Whether a member whose content begins like a WARC record stands at the position of `raw`, which is not moved.
    pub(crate) fn looks_like_a_member<R: Read + Seek>(&mut self, raw: &mut Raw<R>) -> io::Result<bool> {
        let mut head = [0u8; 64];
        let made = match self.compression {
            Compression::Plain => return Ok(plain_record(raw.peek(MAX_PROBE)?)),
            Compression::Gzip => {
                let bytes = raw.peek(MAX_GZIP_HEADER + 1024)?;
                let Ok(size) = gzip_header(bytes) else { return Ok(false) };
                self.inflate.reset(false);
                if self.inflate.decompress(&bytes[size..], &mut head, FlushDecompress::None).is_err() {
                    return Ok(false);
                }
                self.inflate.total_out() as usize
            }
            Compression::Zstd => {
                let Some(decoder) = self.zstd.as_mut() else { return Ok(false) };
                // A block is at most 128 KiB.
                let bytes = raw.peek(160 << 10)?;
                decoder.reinit()?;
                let mut input = InBuffer::around(bytes);
                let mut output = OutBuffer::around(&mut head[..]);
                if decoder.run(&mut input, &mut output).is_err() {
                    return Ok(false);
                }
                output.pos()
            }
        };
        Ok(head[..made].trim_ascii_start().starts_with(b"WARC/"))
    }
}

/// Bytes of a plain file that are looked at to see whether a record begins.
const MAX_PROBE: usize = 8 << 10;

/// Whether the bytes are the beginning of a record: its first line and a `WARC-Type` before the header ends.
fn plain_record(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|&b| b == b'\n');
    let first = lines.next().unwrap_or_default().trim_ascii_end();
    let version = first.strip_prefix(b"WARC/").unwrap_or_default();
    version.len() == 3
        && version[1] == b'.'
        && lines
            .map(|l| l.trim_ascii_end())
            .take_while(|l| !l.is_empty())
            .any(|l| l.len() > 10 && l[..10].eq_ignore_ascii_case(b"WARC-Type:"))
}
