//! Files that may be compressed, recognised by name: `.gz` with any number of members, `.zst` with any number of
//! frames, with or without a dictionary, `.bz2` and `.xz` with any number of streams.
//!
//! A dictionary lies where files with one carry it: in a skippable frame of the number 0x184D2A5D at the beginning of the file
//! (the convention of the IIPC for WARC, plain or compressed itself), or, as `zstd -D` leaves it outside, in a file beside it
//! with `.dict` behind its name.

use super::folder::FileEntry;
use crate::error::{Error, Result};
use bessemer_durable::{TextReader, open_regular};
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use zstd::stream::read::Decoder;

/// Bytes read at once.
const BUFFER: usize = 256 << 10;
/// First bytes of the frame that holds a dictionary.
const DICTIONARY_MAGIC: [u8; 4] = [0x5d, 0x2a, 0x4d, 0x18];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest dictionary, compressed or not.
const MAX_DICTIONARY: u64 = 32 << 20;
/// KiB that the decoder of an `.xz` file may take: a dictionary of 128 MiB, which no preset of `xz` exceeds, and its tables.
const XZ_MEMORY_KIB: u32 = 130 << 10;
/// Bytes that a file may unpack to for each of its own: text seldom has more than 20, deflate reaches 1032 on zeros, zstd far more.
const MOST_RATIO: u64 = 256;
/// Bytes that any file may unpack to.
const BOMB_FLOOR: u64 = 64 << 20;

/// Opens a file of text for reading, decompressing it on the way; in UTF-16 or with a byte order mark it gives UTF-8 without one. Memory is bounded by the buffers and, for zstd, the
/// window that the frame asks for (at most 128 MiB, the library's limit) and the dictionary (at most 32 MiB), for xz its
/// dictionary (at most 128 MiB). A file that unpacks beyond measure ends with an error ([`is_bomb`]).
pub(crate) fn open(file: &FileEntry) -> Result<Box<dyn BufRead + Send>> {
    Ok(Box::new(TextReader::new(open_io(file).map_err(Error::io("open", &file.path))?)))
}

/// [`open`] of the bytes as they are unpacked, with the operating system's error.
pub(crate) fn open_io(file: &FileEntry) -> io::Result<Box<dyn BufRead + Send>> {
    decompressed(file.open()?, file.bytes, &file.relative, &file.path)
}

/// [`open_io`] for archives, whose compression may be part of the ending: `.tgz`.
pub(crate) fn open_archive(file: &FileEntry) -> io::Result<Box<dyn BufRead + Send>> {
    let is_tgz = file.relative.to_ascii_lowercase().ends_with(".tgz");
    let name = if is_tgz { "archive.tar.gz" } else { &file.relative };
    decompressed(file.open()?, file.bytes, name, &file.path)
}

/// Endings of compressed files that are read.
const ENDINGS: &[&str] = &["gz", "zst", "bz2", "xz"];

/// A name without the ending that says how the file is compressed.
pub(crate) fn inner_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((inner, ending)) if ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)) => inner,
        _ => name,
    }
}

/// Opens a text file for reading; `.gz`, `.zst`, `.bz2` and `.xz` are decompressed on the way, UTF-16 and a byte order mark become
/// plain UTF-8.
///
/// # Errors
/// Those of the file system, a dictionary that is cut off or too large; on reading, those of the decoder, or that the file
/// unpacks to more than 64 MiB and 256 bytes for each of its own.
pub fn open_compressed(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let file = open_regular(path)?;
    let bytes = file.metadata()?.len();
    Ok(Box::new(TextReader::new(decompressed(file, bytes, &path.to_string_lossy(), path)?)))
}

/// What is opened under this name and has so many bytes, decompressed; `path` tells where a dictionary may lie.
fn decompressed(
    opened: impl Read + Send + 'static,
    bytes: u64,
    name: &str,
    path: &Path,
) -> io::Result<Box<dyn BufRead + Send>> {
    let most = bytes.saturating_mul(MOST_RATIO).max(BOMB_FLOOR);
    let plain = BufReader::with_capacity(BUFFER, opened);
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or("");
    Ok(match extension.to_ascii_lowercase().as_str() {
        "gz" => bounded(MultiGzDecoder::new(plain), most),
        "zst" => zst(plain, path, most)?,
        "bz2" => bounded(MultiBzDecoder::new(plain), most),
        "xz" => bounded(XzReader::new_mem_limit(plain, true, XZ_MEMORY_KIB), most),
        _ => Box::new(plain),
    })
}

fn zst(
    mut plain: BufReader<impl Read + Send + 'static>,
    path: &Path,
    most: u64,
) -> io::Result<Box<dyn BufRead + Send>> {
    let dictionary = match embedded(&mut plain)? {
        Some(dictionary) => Some(dictionary),
        None => beside(path)?,
    };
    Ok(match dictionary {
        // The decoder takes a copy of it; a prepared dictionary would have to outlive the decoder.
        Some(bytes) => bounded(Decoder::with_dictionary(plain, &bytes)?, most),
        None => bounded(Decoder::with_buffer(plain)?, most),
    })
}

/// The reason of the row that stands for what could not be opened or read.
pub(crate) fn fault_reason(cause: &io::Error) -> &'static str {
    match cause.kind() {
        _ if is_bomb(cause) => "decompression-bomb",
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => "unreadable",
        _ => "truncated-input",
    }
}

/// Whether reading ended because the file unpacks beyond measure.
pub(crate) fn is_bomb(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::FileTooLarge
}

fn bounded(inner: impl Read + Send + 'static, most: u64) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(BUFFER, Bounded { inner, most, left: most }))
}

/// Returns the output of a decoder, up to `most` bytes.
struct Bounded<R> {
    inner: R,
    most: u64,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let what = format!(
                "it unpacks to more than {} bytes, {MOST_RATIO} times its size: refused as a decompression \
                 bomb",
                self.most
            );
            io::Error::new(io::ErrorKind::FileTooLarge, what)
        })?;
        Ok(read)
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The dictionary in the first frame of the file, which is consumed; nothing if the file begins otherwise.
fn embedded(plain: &mut BufReader<impl Read>) -> io::Result<Option<Vec<u8>>> {
    let head = plain.fill_buf()?;
    let (Some(magic), Some(size)) = (head.get(..4), head.get(4..8)) else { return Ok(None) };
    if magic != DICTIONARY_MAGIC {
        return Ok(None);
    }
    let size = u64::from(u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    if size > MAX_DICTIONARY {
        return Err(broken(format!("a dictionary of {size} bytes; at most {MAX_DICTIONARY} are read")));
    }
    plain.consume(8);
    let mut frame = Vec::new();
    plain.by_ref().take(size).read_to_end(&mut frame)?;
    if (frame.len() as u64) < size {
        return Err(broken(format!("the dictionary of {size} bytes is cut off")));
    }
    if !frame.starts_with(&ZSTD_MAGIC) {
        return Ok(Some(frame));
    }
    let mut dictionary = Vec::new();
    Decoder::new(&frame[..])?.take(MAX_DICTIONARY + 1).read_to_end(&mut dictionary)?;
    if dictionary.len() as u64 > MAX_DICTIONARY {
        return Err(broken(format!("a dictionary of more than {MAX_DICTIONARY} bytes")));
    }
    Ok(Some(dictionary))
}

/// The dictionary in the file `NAME.dict`, if there is one.
fn beside(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".dict");
    let file = match open_regular(&PathBuf::from(name)) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut dictionary = Vec::new();
    file.take(MAX_DICTIONARY + 1).read_to_end(&mut dictionary)?;
    if dictionary.len() as u64 > MAX_DICTIONARY {
        return Err(broken(format!("its dictionary has more than {MAX_DICTIONARY} bytes")));
    }
    Ok(Some(dictionary))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary of a kilobyte that Python's zstandard 0.25 trained on lines like these, and 50 lines compressed with it.
    const DICTIONARY: &[u8] = include_bytes!("../../tests/data/trained.dict");
    const PACKED: &[u8] = include_bytes!("../../tests/data/trained.jsonl.zst");

    fn lines() -> String {
        let line = |n: usize| {
            format!("{{\"id\": {n}, \"text\": \"converter number {} blew {} minutes\"}}\n", n * 7, n % 40)
        };
        (5000..5050).map(line).collect()
    }

    fn read(path: &Path) -> io::Result<String> {
        let mut text = String::new();
        open_compressed(path)?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn dictionaries_lie_in_the_file_or_beside_it() {
        let text = lines();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl.zst");
        std::fs::write(&path, PACKED).unwrap();
        assert!(read(&path).is_err(), "without its dictionary it cannot be read");
        std::fs::write(folder.path().join("a.jsonl.zst.dict"), DICTIONARY).unwrap();
        assert_eq!(read(&path).unwrap(), text);
        std::fs::remove_file(folder.path().join("a.jsonl.zst.dict")).unwrap();
        for frame in [DICTIONARY.to_vec(), zstd::encode_all(DICTIONARY, 3).unwrap()] {
            let head = [&DICTIONARY_MAGIC[..], &(frame.len() as u32).to_le_bytes(), &frame].concat();
            // Two frames behind it, and an ordinary skippable frame between.
            let skipped = [&[0x50, 0x2a, 0x4d, 0x18][..], &3u32.to_le_bytes(), b"abc"].concat();
            std::fs::write(&path, [&head[..], PACKED, &skipped, PACKED].concat()).unwrap();
            assert_eq!(read(&path).unwrap(), text.repeat(2));
            std::fs::write(&path, &head[..head.len() - 1]).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("cut off"));
        }
        std::fs::write(&path, [&DICTIONARY_MAGIC[..], &[0xff; 4]].concat()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("at most"));
        std::fs::write(&path, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), text);
    }
}
