//! The list of files that an export leaves beside them, so that a later one knows what it may replace.

use crate::error::{At, CheckpointError, Result};
use crate::fs::{FileSystem, Links, read_small};
use crate::manifest::FileRecord;
use crate::verified::checksum;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// Name of the list in an export.
pub const EXPORT_MANIFEST: &str = "bessemer-export.json";

const FORMAT: &str = "bessemer-export";
const VERSION: u64 = 1;
/// Longest list that is read.
const MAX_BYTES: u64 = 16 << 20;

/// The files of an export with their lengths and checksums.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ExportManifest {
    pub(super) files: Vec<FileRecord>,
}

impl ExportManifest {
    pub(super) fn to_json(&self) -> Value {
        json!({ "format": FORMAT, "version": VERSION, "files": self.files })
    }

    /// Reads the list in `dir`.
    pub(super) fn read(fs: &dyn FileSystem, dir: &Path) -> Result<ExportManifest> {
        let path = dir.join(EXPORT_MANIFEST);
        let wrong = |problem: String| CheckpointError::HuggingFace { path: path.clone(), problem };
        let file = fs.open_file(&path, Links::Refuse).at("open", &path)?;
        let bytes = read_small(file.as_ref(), MAX_BYTES).at("read", &path)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        if value["format"] != FORMAT || value["version"] != VERSION {
            return Err(wrong(format!(
                "wanted format {FORMAT:?}, version {VERSION}; found {}, {}",
                value["format"], value["version"]
            )));
        }
        serde_json::from_value(value).map_err(|e| wrong(e.to_string()))
    }

    /// Whether the file `name` of `dir` is listed and has the bytes that were written.
    pub(super) fn is_as_written(&self, fs: &dyn FileSystem, dir: &Path, name: &str) -> Result<bool> {
        let Some(record) = self.files.iter().find(|f| f.name == name) else { return Ok(false) };
        let path = dir.join(name);
        let file = fs.open_file(&path, Links::Refuse).at("open", &path)?;
        if file.size().at("read the size of", &path)? != record.bytes {
            return Ok(false);
        }
        Ok(checksum(file.as_ref(), record.bytes, &mut |_| {}).at("read", &path)? == record.blake3)
    }
}
