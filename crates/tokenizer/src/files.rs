//! Reading with a limit, writing whole files.

use crate::error::{Result, TokenizerError};
use std::io::{Error, Read};
use std::path::Path;

/// Largest tokenizer.json that is read: 512 MiB, some twenty times the largest published ones.
pub(crate) const MAX_FILE_BYTES: u64 = 512 << 20;

fn failed(action: &'static str, path: &Path) -> impl Fn(Error) -> TokenizerError {
    let path = path.to_owned();
    move |source| TokenizerError::Io { action, path: path.clone(), source }
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let file = bessemer_durable::open_regular(path).map_err(failed("open", path))?;
    let bytes = file.metadata().map_err(failed("inspect", path))?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), bytes, limit: MAX_FILE_BYTES });
    }
    // The limit holds for what is read, too: a growing file says less than it gives.
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed("read", path))?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge {
            path: path.to_owned(),
            bytes: read as u64,
            limit: MAX_FILE_BYTES,
        });
    }
    Ok(text)
}

/// Writes `path` whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    bessemer_durable::write(path, bytes).map_err(failed("write", path))
}
