//! Profile files and word lists as they are read: regular files within a limit of size.

use crate::error::{Error, Result};
use bessemer_durable::TextReader;
use std::io::Read;
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
    let failed = |error| Error::new(format!("{place}: {error}"));
    let file = bessemer_durable::open_regular(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > MAX_FILE {
        return Err(Error::new(format!(
            "{place}: wanted a file of at most {MAX_FILE} bytes, found {length}"
        )));
    }
    let mut text = String::new();
    TextReader::buffered(file).take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}
