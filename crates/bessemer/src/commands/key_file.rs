//! Files with a key in their first line.

use crate::failure::Failure;
use std::path::Path;

/// Reads the key of the file that `flag` names.
pub(crate) fn read(flag: &str, file: &Path) -> Result<String, Failure> {
    let wrong = |what: &str| Failure::new(format!("{flag} {}: {what}", file.display()));
    let text = bessemer_durable::read_input_to_string(file).map_err(|e| wrong(&e.to_string()))?;
    let line = text.lines().next().map(str::trim).filter(|line| !line.is_empty());
    line.map(str::to_owned).ok_or_else(|| wrong("wanted a key in the first line, found none"))
}
