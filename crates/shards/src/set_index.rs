//! `shards.json`: the list of the files of one split, written last.

use crate::component::{ListedComponent, check_name};
use crate::meta::check_split;
use crate::{Fingerprint, ShardError, token_bytes_for};
use bessemer_durable::ConfinedDir;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Name of the index file of a split.
pub const INDEX_FILE: &str = "shards.json";
/// Newest version of `shards.json` that this crate reads. It writes 1 for a split without components, as the version
/// before this one did, and 2 for one with them.
pub const INDEX_VERSION: u32 = 2;

/// Value of the `format` key.
const FORMAT: &str = "bessemer-shards";
/// About 300,000 files; a longer index is refused before it is read into memory.
const LONGEST_INDEX: u64 = 64 << 20;

/// One file of the split, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedFile {
    pub(crate) file: String,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
    pub(crate) text_bytes: u64,
    pub(crate) file_bytes: u64,
    /// 16 hexadecimal digits: JSON readers that hold numbers as doubles would lose bits.
    pub(crate) checksum: String,
}

/// The content of `shards.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetIndex {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) split: String,
    pub(crate) vocab_size: u32,
    pub(crate) token_bytes: u32,
    pub(crate) tokenizer: Fingerprint,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
    pub(crate) text_bytes: u64,
    /// From version 2 on: in the order of their tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) components: Vec<ListedComponent>,
    pub(crate) shards: Vec<ListedFile>,
}

/// Only what every version of the index has.
#[derive(Deserialize)]
struct Preamble {
    format: Option<String>,
    version: Option<u32>,
}

/// The name of file `ordinal` of a split.
pub(crate) fn shard_name(ordinal: u32) -> String {
    format!("{ordinal:05}.shard")
}

/// Whether [`shard_name`] could have made this name.
pub(crate) fn is_shard_name(name: &str) -> bool {
    name.strip_suffix(".shard").and_then(|n| n.parse().ok()).is_some_and(|n| shard_name(n) == name)
}

impl SetIndex {
    pub(crate) fn new(
        split: &str,
        vocab_size: u32,
        tokenizer: Fingerprint,
        components: Vec<ListedComponent>,
        shards: Vec<ListedFile>,
    ) -> SetIndex {
        SetIndex {
            format: FORMAT.into(),
            version: if components.is_empty() { 1 } else { INDEX_VERSION },
            split: split.into(),
            vocab_size,
            token_bytes: token_bytes_for(vocab_size),
            tokenizer,
            tokens: shards.iter().map(|s| s.tokens).sum(),
            documents: shards.iter().map(|s| s.documents).sum(),
            text_bytes: shards.iter().map(|s| s.text_bytes).sum(),
            components,
            shards,
        }
    }

    /// Writes `shards.json` into `dir`, durably and at once.
    pub(crate) fn write(&self, dir: &ConfinedDir) -> Result<(), ShardError> {
        let path = dir.path().join(INDEX_FILE);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|e| ShardError::SetIndex { path: path.clone(), what: e.to_string() })?;
        text.push(b'\n');
        dir.write(INDEX_FILE, &text).map_err(|e| ShardError::write(&path, e))
    }

    /// Reads and checks `shards.json` in `dir`, the directory of `split`.
    pub(crate) fn read(dir: &ConfinedDir, split: &str) -> Result<SetIndex, ShardError> {
        let path = dir.path().join(INDEX_FILE);
        let text = read_file(&path, dir)?;
        let wrong = |what: String| ShardError::SetIndex { path: path.clone(), what };
        let preamble: Preamble = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        if preamble.format.as_deref() != Some(FORMAT) {
            return Err(wrong(format!("wanted format {FORMAT:?}, found {:?}", preamble.format)));
        }
        if !preamble.version.is_some_and(|version| (1..=INDEX_VERSION).contains(&version)) {
            let found = preamble.version.map_or("none".to_owned(), |version| version.to_string());
            return Err(wrong(format!("wanted version 1 to {INDEX_VERSION} of the index, found {found}")));
        }
        let index: SetIndex = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        index.check(split).map_err(wrong)?;
        Ok(index)
    }

    /// What the index must agree on with itself. The files are held against it when they are opened.
    fn check(&self, split: &str) -> Result<(), String> {
        check_split(&self.split)?;
        if self.split != split {
            return Err(format!("wanted split {split:?}, found {:?}", self.split));
        }
        if self.vocab_size == 0 || self.token_bytes != token_bytes_for(self.vocab_size) {
            let (v, b) = (self.vocab_size, self.token_bytes);
            return Err(format!("{b} bytes a token do not belong to a vocabulary of {v}"));
        }
        // A listed name is never used as a path unless it is the one name that this place can have: neither
        // "..", nor an absolute path, nor the same file twice can pass.
        for (i, listed) in self.shards.iter().enumerate() {
            let wanted = u32::try_from(i).map(shard_name).map_err(|_| "too many files are listed")?;
            if listed.file != wanted {
                return Err(format!(
                    "wanted file {wanted:?} in place {i} of the list, found {:?}",
                    listed.file
                ));
            }
        }
        let sum = |of: fn(&ListedFile) -> u64| {
            self.shards.iter().try_fold(0u64, |sum, listed| sum.checked_add(of(listed)))
        };
        for (what, stated, sum) in [
            ("tokens", self.tokens, sum(|s| s.tokens)),
            ("documents", self.documents, sum(|s| s.documents)),
            ("text_bytes", self.text_bytes, sum(|s| s.text_bytes)),
        ] {
            match sum {
                Some(sum) if sum == stated => {}
                Some(sum) => return Err(format!("{what} is {stated}, the listed files hold {sum}")),
                None => return Err(format!("the sum of {what} over the listed files overflows")),
            }
        }
        self.check_components()
    }

    /// Components, where there are any, have names of their own and hold all documents together.
    fn check_components(&self) -> Result<(), String> {
        if self.components.is_empty() != (self.version == 1) {
            return Err(format!("version {} with {} components", self.version, self.components.len()));
        }
        if self.components.is_empty() {
            return Ok(());
        }
        let mut names = std::collections::BTreeSet::new();
        for component in &self.components {
            check_name(&component.name)?;
            if !names.insert(component.name.as_str()) {
                return Err(format!("component {:?} is listed twice", component.name));
            }
        }
        let sum = |of: fn(&ListedComponent) -> u64| {
            self.components.iter().try_fold(0u64, |sum, listed| sum.checked_add(of(listed)))
        };
        for (what, stated, sum) in [
            ("tokens", self.tokens, sum(|c| c.tokens)),
            ("documents", self.documents, sum(|c| c.documents)),
            ("text_bytes", self.text_bytes, sum(|c| c.text_bytes)),
        ] {
            if sum != Some(stated) {
                return Err(format!("{what} is {stated}, the components hold {sum:?}"));
            }
        }
        Ok(())
    }
}

fn read_file(path: &Path, dir: &ConfinedDir) -> Result<Vec<u8>, ShardError> {
    let file = dir.open_file(INDEX_FILE).map_err(|e| match e.kind() {
        ErrorKind::NotFound => ShardError::Unfinished { path: dir.path().to_owned() },
        ErrorKind::InvalidInput => ShardError::not_a_file(path),
        _ => ShardError::io(path, "open", e),
    })?;
    let mut text = Vec::new();
    file.take(LONGEST_INDEX + 1).read_to_end(&mut text).map_err(|e| ShardError::io(path, "read", e))?;
    if text.len() as u64 > LONGEST_INDEX {
        let what = format!("longer than {LONGEST_INDEX} bytes");
        return Err(ShardError::SetIndex { path: path.to_owned(), what });
    }
    Ok(text)
}
