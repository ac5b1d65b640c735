//! Reading with a limit, writing whole files.

use crate::error::{Result, TokenizerError};
use bessemer_durable::{ConfinedDir, TextReader};
use std::fs::File;
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
    text_of(path, bessemer_durable::open_regular(path).map_err(failed("open", path))?)
}

/// The text of the file `name` of `dir`.
pub(crate) fn read_text_in(dir: &ConfinedDir, name: &str) -> Result<String> {
    let path = dir.path().join(name);
    text_of(&path, dir.open_file(name).map_err(failed("open", &path))?)
}

fn text_of(path: &Path, file: File) -> Result<String> {
    let bytes = file.metadata().map_err(failed("inspect", path))?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), bytes, limit: MAX_FILE_BYTES });
    }
    // The limit holds for what is read, too: a growing file says less than it gives.
    let mut text = String::new();
    let read = TextReader::buffered(file).take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(failed("read", path))?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge {
            path: path.to_owned(),
            bytes: read as u64,
            limit: MAX_FILE_BYTES,
        });
    }
    Ok(text)
}

/// Writes the file `name` of `dir` whole or not at all.
pub(crate) fn write_whole_in(dir: &ConfinedDir, name: &str, bytes: &[u8]) -> Result<()> {
    dir.write(name, bytes).map_err(failed("write", &dir.path().join(name)))
}

/// Writes `path` whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    bessemer_durable::write(path, bytes).map_err(failed("write", path))
}
