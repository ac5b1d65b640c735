//! A streaming reader of tar archives that trusts nothing in them.
//!
//! Formats: V7, POSIX ustar, pax (paths and sizes), GNU long names (IEEE 1003.1-2017 `pax`; GNU tar manual, appendix D). Nothing is
//! written to disk by name, yet paths that are absolute, climb (`..`) or are no UTF-8 are refused, as are links, devices and sparse
//! files, whose length says nothing of their content. What is refused is reported and skipped, and reading goes on.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::io::Read;
use thiserror::Error;

const BLOCK: usize = 512;
/// A long name or pax header of more bytes is refused.
const MOST_NAME_BYTES: u64 = 1 << 16;
/// No file of an archive is said to be longer; a header that says so is wrong and nothing after it can be found.
const MOST_ENTRY_BYTES: u64 = 1 << 44;

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File {
        /// Its path, relative and without `.` and `..`.
        path: String,
        /// Its content.
        bytes: Vec<u8>,
    },
    /// An entry that is not read.
    Refused {
        /// Its path as far as it can be shown.
        path: String,
        /// Why.
        why: Refusal,
    },
}

/// Why an entry is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// An absolute path.
    AbsolutePath,
    /// A path with `..`.
    ClimbingPath,
    /// A path that is empty, not UTF-8 or has a NUL byte.
    BadName,
    /// A hard or symbolic link.
    Link,
    /// A device, FIFO or unknown kind.
    SpecialFile,
    /// A sparse file.
    Sparse,
    /// A file that exceeds the limit.
    TooLarge,
}

impl Refusal {
    /// A short word for counting.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::AbsolutePath => "absolute-path",
            Refusal::ClimbingPath => "climbing-path",
            Refusal::BadName => "bad-name",
            Refusal::Link => "link",
            Refusal::SpecialFile => "special-file",
            Refusal::Sparse => "sparse-file",
            Refusal::TooLarge => "too-large",
        }
    }

    /// For people.
    pub fn explanation(self) -> &'static str {
        match self {
            Refusal::AbsolutePath => "paths of an archive are relative",
            Refusal::ClimbingPath => "the path leaves the archive",
            Refusal::BadName => "the path is empty or not UTF-8",
            Refusal::Link => "links are not followed",
            Refusal::SpecialFile => "only regular files are read",
            Refusal::Sparse => "sparse files are not expanded",
            Refusal::TooLarge => "the file is longer than allowed",
        }
    }
}

/// An archive that cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("tar archive, byte {offset}: {what}")]
pub struct TarError {
    /// Offset in the archive, in bytes.
    pub offset: u64,
    /// Description of the fault.
    pub what: String,
}

type Result<T> = std::result::Result<T, TarError>;

/// Reads the entries of an archive one by one.
pub struct TarReader<R> {
    input: R,
    limit: u64,
    offset: u64,
    done: bool,
}

impl<R> std::fmt::Debug for TarReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarReader").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// What pax and GNU headers say of the entry after them.
#[derive(Default)]
struct Overrides {
    path: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl<R: Read> TarReader<R> {
    /// A reader of `input`; files of more than `limit` bytes are refused.
    pub fn new(input: R, limit: u64) -> TarReader<R> {
        TarReader { input, limit, offset: 0, done: false }
    }

    fn wrong<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(TarError { offset: self.offset, what: what.into() })
    }

    /// Reads a block; `None` at the end of the input before its first byte.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut b = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut b[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return self.wrong(format!("truncated: {filled} of {BLOCK} bytes of a header")),
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return self.wrong(e.to_string()),
            }
        }
        self.offset += BLOCK as u64;
        Ok(Some(b))
    }

    /// Reads the content of an entry and the padding after it.
    fn content(&mut self, size: u64) -> Result<Vec<u8>> {
        // Grows with what is really there: a header that lies costs no memory.
        let mut bytes = Vec::new();
        match (&mut self.input).take(size).read_to_end(&mut bytes) {
            Ok(n) if n as u64 == size => {}
            Ok(n) => return self.wrong(format!("truncated: {n} of {size} bytes of a file")),
            Err(e) => return self.wrong(e.to_string()),
        }
        self.offset += size;
        self.skip(padded(size) - size)?;
        Ok(bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        match std::io::copy(&mut (&mut self.input).take(bytes), &mut std::io::sink()) {
            Ok(n) if n == bytes => {
                self.offset += bytes;
                Ok(())
            }
            Ok(n) => self.wrong(format!("truncated: {n} of {bytes} bytes of a file")),
            Err(e) => self.wrong(e.to_string()),
        }
    }

    /// The next entry; folders and pax headers for the whole archive are passed over. `None` at the end.
    ///
    /// # Errors
    /// [`TarError`] where the archive is damaged or truncated: reading cannot go on.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let mut over = Overrides::default();
        let mut headers = 0;
        while !self.done {
            let Some(block) = self.block()? else { break };
            if block.iter().all(|&b| b == 0) {
                break;
            }
            if !checksum_holds(&block) {
                return self.wrong("not a tar header: its checksum differs");
            }
            let stated = number(&block[124..136]);
            let kind = block[156];
            let extra = matches!(kind, b'L' | b'K' | b'x' | b'g');
            // A pax size stands for the file, not for the header that carries it.
            let size = if extra { stated } else { over.size.or(stated) };
            let Some(size) = size.filter(|&s| s <= MOST_ENTRY_BYTES) else {
                return self
                    .wrong("a header states an impossible file length; the entries after it are lost");
            };
            if extra {
                headers += 1;
                if size > MOST_NAME_BYTES || headers > 16 {
                    return self.wrong("a header of a long name or of pax records is too long");
                }
                let bytes = self.content(size)?;
                match kind {
                    b'L' => over.path = Some(bytes.split(|&b| b == 0).next().unwrap_or_default().to_vec()),
                    b'x' if !pax(&bytes, &mut over) => return self.wrong("damaged pax records"),
                    _ => {}
                }
                continue;
            }
            let raw = over.path.take().unwrap_or_else(|| header_path(&block));
            let sparse = std::mem::take(&mut over.sparse);
            over.size = None;
            headers = 0;
            if kind == b'5' {
                self.skip(padded(size))?;
                continue;
            }
            let path = checked_path(&raw);
            let why = match (&path, kind) {
                (_, b'S') => Some(Refusal::Sparse),
                _ if sparse => Some(Refusal::Sparse),
                (_, b'1' | b'2') => Some(Refusal::Link),
                (_, b'0' | 0 | b'7') if size > self.limit => Some(Refusal::TooLarge),
                (Err(why), b'0' | 0 | b'7') => Some(*why),
                (Ok(_), b'0' | 0 | b'7') => None,
                _ => Some(Refusal::SpecialFile),
            };
            let shown = String::from_utf8_lossy(&raw).into_owned();
            match (why, path) {
                (None, Ok(path)) => return Ok(Some(Entry::File { path, bytes: self.content(size)? })),
                (why, path) => {
                    // Links state the length of their target and carry none.
                    let carried = if kind == b'1' || kind == b'2' { 0 } else { size };
                    self.skip(padded(carried))?;
                    let why = why.unwrap_or(Refusal::BadName);
                    return Ok(Some(Entry::Refused { path: path.unwrap_or(shown), why }));
                }
            }
        }
        self.done = true;
        Ok(None)
    }
}

/// Bytes of whole blocks. A size that no archive can hold stays as it is: skipping it finds the end of the file.
fn padded(size: u64) -> u64 {
    size.checked_next_multiple_of(BLOCK as u64).unwrap_or(size)
}

/// Whether bytes begin with a header of a tar archive.
pub fn is_tar(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|block| block[0] != 0 && checksum_holds(block))
}

/// The sum of all bytes with the checksum field as spaces; some old programs summed signed bytes.
fn checksum_holds(b: &[u8; BLOCK]) -> bool {
    let Some(wanted) = number(&b[148..156]) else { return false };
    let field = |i: usize| (148..156).contains(&i);
    let unsigned: u64 = b.iter().enumerate().map(|(i, &v)| if field(i) { 32 } else { u64::from(v) }).sum();
    let signed: i64 =
        b.iter().enumerate().map(|(i, &v)| if field(i) { 32 } else { i64::from(v as i8) }).sum();
    wanted == unsigned || i64::try_from(wanted) == Ok(signed)
}

/// An octal number, or GNU's binary one with the highest bit set. `None` for anything else and for negative numbers.
fn number(field: &[u8]) -> Option<u64> {
    if let Some((0x80, digits)) = field.split_first() {
        return digits.iter().try_fold(0u64, |n, &b| n.checked_mul(256)?.checked_add(u64::from(b)));
    }
    let text = field.split(|&b| b == 0).next()?.trim_ascii();
    if text.is_empty() {
        return Some(0);
    }
    text.iter().try_fold(0u64, |n, &b| match b {
        b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(b - b'0')),
        _ => None,
    })
}

fn header_path(b: &[u8; BLOCK]) -> Vec<u8> {
    let text = |field: &[u8]| field.split(|&b| b == 0).next().unwrap_or_default().to_vec();
    let name = text(&b[..100]);
    // Only POSIX headers have a prefix; GNU ones have times in its place.
    let prefix = if &b[257..263] == b"ustar\0" { text(&b[345..500]) } else { Vec::new() };
    if prefix.is_empty() { name } else { [prefix, name].join(&b'/') }
}

/// Reads `length key=value\n` records. False where they are damaged.
fn pax(mut bytes: &[u8], over: &mut Overrides) -> bool {
    while !bytes.is_empty() {
        let Some(space) = bytes.iter().position(|&b| b == b' ') else { return false };
        let length = std::str::from_utf8(&bytes[..space]).ok().and_then(|t| t.parse::<usize>().ok());
        let Some(length) = length.filter(|&n| n > space + 1 && n <= bytes.len()) else { return false };
        let record = &bytes[space + 1..length];
        let Some((b'\n', record)) = record.split_last() else { return false };
        let Some(equals) = record.iter().position(|&b| b == b'=') else { return false };
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => over.path = Some(value.to_vec()),
            b"size" => match std::str::from_utf8(value).ok().and_then(|t| t.parse().ok()) {
                Some(size) => over.size = Some(size),
                None => return false,
            },
            _ if key.starts_with(b"GNU.sparse.") => over.sparse = true,
            _ => {}
        }
        bytes = &bytes[length..];
    }
    true
}

/// The path without `.` parts and doubled slashes, or why it is refused.
fn checked_path(raw: &[u8]) -> std::result::Result<String, Refusal> {
    let text = std::str::from_utf8(raw).map_err(|_| Refusal::BadName)?;
    if text.contains('\0') {
        return Err(Refusal::BadName);
    }
    let drive = text.as_bytes().get(1) == Some(&b':') && text.as_bytes()[0].is_ascii_alphabetic();
    if text.starts_with(['/', '\\']) || drive {
        return Err(Refusal::AbsolutePath);
    }
    if text.split(['/', '\\']).any(|p| p == "..") {
        return Err(Refusal::ClimbingPath);
    }
    let parts: Vec<&str> = text.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if parts.is_empty() { Err(Refusal::BadName) } else { Ok(parts.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary_in_fields_of_any_width() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"      7 "), Some(7));
        // The checksum has eight bytes, a size twelve.
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]), Some(65536));
        assert_eq!(number(&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(number(&[0xff; 12]), None);
        assert_eq!(number(b"89\0"), None);
    }

    #[test]
    fn sizes_that_no_archive_can_hold_do_not_overflow() {
        assert_eq!(padded(513), 1024);
        assert_eq!(padded(u64::MAX - 3), u64::MAX - 3);
    }
}
