//! Reading keys of an untrusted config.json, with errors that name the key.

use crate::error::{At, CheckpointError, Result};
use crate::fs::{FileSystem, Links, read_small};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Longest config.json; real ones have a few kilobytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A config.json.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) path: PathBuf,
    map: Map<String, Value>,
}

impl Fields {
    pub(crate) fn read(fs: &dyn FileSystem, path: &Path) -> Result<Fields> {
        let file = fs.open_file(path, Links::Follow).at("open", path)?;
        let bytes = read_small(file.as_ref(), MAX_CONFIG_BYTES).at("read", path)?;
        let wrong = |problem: String| CheckpointError::HuggingFace { path: path.into(), problem };
        let text = bessemer_durable::decode_text(bytes).at("read", path)?;
        match serde_json::from_str(&text).map_err(|e| wrong(format!("not valid JSON: {e}")))? {
            Value::Object(map) => Ok(Fields { path: path.into(), map }),
            _ => Err(wrong("wanted a JSON object".into())),
        }
    }

    /// A value under its key, null counting as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is there, be it null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// An error about this file.
    pub(crate) fn refuse(&self, problem: String) -> CheckpointError {
        CheckpointError::HuggingFace { path: self.path.clone(), problem }
    }

    fn wrong(&self, key: &str, wanted: &str, found: &Value) -> CheckpointError {
        let mut text = found.to_string();
        if text.len() > 200 {
            text = format!("{}…", text.chars().take(200).collect::<String>());
        }
        self.refuse(format!("{key}: wanted {wanted}, found {text}"))
    }

    /// A whole number that must be there.
    pub(crate) fn required(&self, key: &str) -> Result<u64> {
        self.uint(key)?.ok_or_else(|| self.refuse(format!("{key}: missing")))
    }

    pub(crate) fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a whole number that is not negative", Value::as_u64)
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => read(v).map(Some).ok_or_else(|| self.wrong(key, wanted, v)),
        }
    }

    /// Refuses a key whose value is not the only one that Bessemer computes.
    pub(crate) fn only(&self, key: &str, expressible: &Value) -> Result<()> {
        match self.get(key) {
            Some(v) if v != expressible => Err(self.refuse(format!(
                "{key}: {v} is a feature that Bessemer does not have (only {expressible}); nothing was imported"
            ))),
            _ => Ok(()),
        }
    }

    /// Whole numbers in a list; empty if there is none.
    pub(crate) fn uints(&self, key: &str) -> Result<Vec<u64>> {
        let list = |v: &Value| v.as_array()?.iter().map(Value::as_u64).collect();
        Ok(self.typed(key, "a list of whole numbers", list)?.unwrap_or_default())
    }

    /// Token ids under a key that holds a number, a list, or nothing.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let wanted = "a token id or a list of them";
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(v @ Value::Array(list)) => {
                list.iter().map(one).collect::<Option<_>>().ok_or_else(|| self.wrong(key, wanted, v))
            }
            Some(v) => one(v).map(|id| vec![id]).ok_or_else(|| self.wrong(key, wanted, v)),
        }
    }
}
