//! One text file, byte for byte: the first part of its characters is train, the rest validation.
//!
//! The cut is nanoGPT's: train holds the first ⌊n (1 − f)⌋ of n characters. Each side is one document, unless it
//! is larger than [`PIECE_BYTES`]; then it is cut into pieces at line ends, because a batch holds less than 2 GiB.

use super::{Listing, Source, SourceInfo};
use crate::error::{Error, Result};
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{Origin, RowBuilder, Split};
use bessemer_durable::open_regular;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Largest document.
const PIECE_BYTES: u64 = 64 << 20;

/// A piece of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    split: Split,
}

pub(crate) struct OneFile {
    path: PathBuf,
    name: String,
    listing: Listing,
    pieces: Vec<Piece>,
}

/// Bytes read at once while looking for cuts.
const BUFFER: usize = 1 << 20;

/// Calls `each` with every block of the file and its offset.
fn blocks(path: &Path, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
    let mut file = open_regular(path).map_err(Error::io("open", path))?;
    let mut buffer = vec![0; BUFFER];
    let mut offset = 0;
    loop {
        let read = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if read == 0 {
            return Ok(());
        }
        each(offset, &buffer[..read]);
        offset += read as u64;
    }
}

/// Whether a byte begins a UTF-8 character.
fn begins(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Opens the file and finds the cuts. Two passes over the file, no memory beyond a block.
pub(crate) fn open(path: &Path, validation_fraction: f64) -> Result<OneFile> {
    let (mut bytes, mut chars) = (0u64, 0u64);
    blocks(path, |_, block| {
        bytes += block.len() as u64;
        chars += block.iter().filter(|&&byte| begins(byte)).count() as u64;
    })?;
    // int(n * 0.9) of nanoGPT's prepare.py: the product in double precision, rounded down.
    let train_chars = (chars as f64 * (1.0 - validation_fraction)) as u64;
    let mut cut = bytes;
    // Ends of pieces: the last line end within each PIECE_BYTES, else the last character.
    let (mut ends, mut last_line, mut last_char, mut piece_start) = (Vec::new(), 0u64, 0u64, 0u64);
    if bytes > PIECE_BYTES || train_chars < chars {
        let mut seen = 0u64;
        blocks(path, |offset, block| {
            for (index, &byte) in block.iter().enumerate() {
                let at = offset + index as u64;
                if begins(byte) {
                    if seen == train_chars {
                        cut = at;
                        piece_start = at;
                    }
                    seen += 1;
                    last_char = at;
                }
                if at - piece_start >= PIECE_BYTES {
                    let end =
                        if last_line > piece_start { last_line } else { last_char.max(piece_start + 1) };
                    ends.push(end);
                    piece_start = end;
                }
                if byte == b'\n' {
                    last_line = at + 1;
                }
            }
        })?;
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    ends.push(cut);
    ends.push(bytes);
    ends.sort_unstable();
    for end in ends {
        if end > start {
            let split = if start < cut { Split::Train } else { Split::Validation };
            pieces.push(Piece { start, end, split });
            start = end;
        }
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let metadata = std::fs::metadata(path).map_err(Error::io("read", path))?;
    let changed = super::folder::changed(&metadata);
    let listing = Listing {
        kind: "file",
        sources: vec![SourceInfo { name: name.clone(), version: None, licence: None }],
        entries: vec![format!("{name} {bytes} {changed}")],
        files: 1,
        bytes,
        ..Listing::default()
    };
    Ok(OneFile { path: path.to_path_buf(), name, listing, pieces })
}

impl bessemer_dataflow::Source for OneFile {
    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(FileScan {
            path: self.path.clone(),
            name: self.name.clone(),
            pieces: self.pieces.clone(),
            next: 0,
        }))
    }
}

impl Source for OneFile {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn verbatim(&self) -> bool {
        true
    }
}

struct FileScan {
    path: PathBuf,
    name: String,
    pieces: Vec<Piece>,
    next: usize,
}

impl Scan for FileScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        let Some(&piece) = self.pieces.get(self.next) else { return Ok(None) };
        self.next += 1;
        // Pieces count from 1, as lines, rows and records do.
        let row = self.next as u64;
        let (path, name) = (self.path.clone(), self.name.clone());
        Ok(Some(Box::new(move || {
            let length = (piece.end - piece.start) as usize;
            let mut text = Vec::with_capacity(length);
            let mut file = open_regular(&path).map_err(Error::io("open", &path))?;
            file.seek(SeekFrom::Start(piece.start)).map_err(Error::io("read", &path))?;
            file.take(length as u64).read_to_end(&mut text).map_err(Error::io("read", &path))?;
            if text.len() != length {
                return Err(Error::Source {
                    path: path.clone(),
                    problem: format!(
                        "it shrank while it was read: {length} bytes wanted at offset {}, {} found",
                        piece.start,
                        text.len()
                    ),
                    hint: "run again when nothing writes to it".into(),
                }
                .into());
            }
            let mut rows = RowBuilder::with_capacity(1, length);
            let id = format!("{name}#{row}");
            let origin = Origin {
                row,
                id: &id,
                source: &name,
                path: &name,
                bytes: length as u64,
                split: Some(piece.split),
                ..Origin::default()
            };
            rows.push(&origin, &text);
            rows.finish()
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, fraction: f64) -> Vec<(String, Split)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = open(file.path(), fraction).unwrap();
        source
            .pieces
            .iter()
            .map(|piece| (text[piece.start as usize..piece.end as usize].to_string(), piece.split))
            .collect()
    }

    #[test]
    fn the_cut_counts_characters_as_nanogpt_does() {
        let cut = pieces("éééééééééx", 0.1);
        assert_eq!(cut, [("é".repeat(9), Split::Train), ("x".into(), Split::Validation)]);
        assert_eq!(pieces("abc", 0.0), [("abc".to_string(), Split::Train)]);
        assert_eq!(pieces("", 0.1), []);
        assert_eq!(pieces("a", 0.5), [("a".to_string(), Split::Validation)]);
    }
}
