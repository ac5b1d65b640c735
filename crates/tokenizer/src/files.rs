//! Reading with a limit and writing without half-written files.

use crate::error::{Result, TokenizerError};
use std::fs::File;
use std::io::{Error, Read, Write};
use std::path::Path;

/// Largest tokenizer.json that is read: 512 MiB, some twenty times the largest published ones.
pub(crate) const MAX_FILE_BYTES: u64 = 512 << 20;

fn failed(action: &'static str, path: &Path) -> impl Fn(Error) -> TokenizerError {
    let path = path.to_owned();
    move |source| TokenizerError::Io { action, path: path.clone(), source }
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(failed("open", path))?;
    let bytes = file.metadata().map_err(failed("inspect", path))?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), bytes, limit: MAX_FILE_BYTES });
    }
    // The limit holds for what is read, too: a device or a growing file says 0 or less than it gives.
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

/// Writes a temporary file beside `path`, makes it durable, then renames it into place.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let temporary = directory.join(name);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|source| {
        // Nothing more can be done if the removal fails as well; the first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
        failed("write", path)(source)
    })
}
