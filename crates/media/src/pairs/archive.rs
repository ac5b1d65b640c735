//! Archives of samples as they are opened: plain or compressed.

use crate::{MediaError, Result};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes that a compressed archive may unpack to for each of its own: media hardly shrink, text seldom by more than 20.
const MOST_RATIO: u64 = 256;
/// Bytes that any compressed archive may unpack to.
const BOMB_FLOOR: u64 = 64 << 20;

/// Output of a decoder, up to a limit.
struct Bounded<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let limit = self.limit;
            let what = format!(
                "it unpacks to more than {limit} bytes, {MOST_RATIO} for each of its own: a decompression bomb; unpack it \
                 by hand if it is none"
            );
            std::io::Error::new(std::io::ErrorKind::FileTooLarge, what)
        })?;
        Ok(read)
    }
}

/// Opens an archive: plain, gzip (also of several members) or Zstandard, recognised by its first bytes. Reading ends with an error
/// where a compressed one unpacks to more than 64 MiB and 256 bytes for each of its own.
///
/// # Errors
/// [`MediaError::Io`].
pub fn open_archive(path: &Path) -> Result<Box<dyn Read>> {
    let file = bessemer_durable::open_regular(path).map_err(|e| MediaError::io(path, "open", e))?;
    let size = file.metadata().map_err(|e| MediaError::io(path, "read", e))?.len();
    let limit = size.saturating_mul(MOST_RATIO).max(BOMB_FLOOR);
    let mut file = BufReader::with_capacity(1 << 17, file);
    let begin = file.fill_buf().map_err(|e| MediaError::io(path, "read", e))?;
    if begin.starts_with(b"\x1f\x8b") {
        let inner = flate2::bufread::MultiGzDecoder::new(file);
        return Ok(Box::new(BufReader::new(Bounded { inner, limit, left: limit })));
    }
    if begin.starts_with(b"\x28\xb5\x2f\xfd") {
        let mut decoder = zstd::Decoder::with_buffer(file).map_err(|e| MediaError::io(path, "read", e))?;
        // 128 MiB of window: what `zstd` itself accepts without being asked.
        decoder.window_log_max(27).map_err(|e| MediaError::io(path, "read", e))?;
        return Ok(Box::new(BufReader::new(Bounded { inner: decoder, limit, left: limit })));
    }
    Ok(Box::new(file))
}
