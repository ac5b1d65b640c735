//! Files that may be compressed, told by their name: `.gz` with any number of members, `.zst` with any number of
//! frames.

use crate::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Bytes read at once.
const BUFFER: usize = 256 << 10;

/// Opens a file for reading, decompressing it on the way. Memory is bounded by the buffers and, for zstd, the
/// window that the frame asks for (at most 128 MiB, the library's limit).
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let plain = BufReader::with_capacity(BUFFER, file);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    Ok(match extension.to_ascii_lowercase().as_str() {
        "gz" => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain))),
        "zst" => {
            let decoder =
                zstd::stream::read::Decoder::with_buffer(plain).map_err(Error::io("decompress", path))?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
        _ => Box::new(plain),
    })
}
