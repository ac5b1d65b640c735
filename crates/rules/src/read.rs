//! Profile files and word lists as they are read: regular files within a limit of size.

use crate::error::{Error, Result};
use std::path::Path;

/// Largest profile file that is read, in bytes: lists of words are files of their own.
const MAX_FILE: u64 = 4 << 20;

/// One entry a line, trimmed; empty lines are left out.
pub(crate) fn read_list(path: &Path) -> Result<Vec<String>> {
    let text = read_text(path)?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// The text of a file within the limit of size.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let place = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| Error::new(format!("{place}: {error}")))?;
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(Error::new(format!(
            "{place}: wanted a file of at most {MAX_FILE} bytes, found {}",
            metadata.len()
        )));
    }
    bessemer_durable::read_to_string(path).map_err(|error| Error::new(format!("{place}: {error}")))
}
