//! Tombstones: the list of documents that must not be in a corpus, whatever its sources say.
//!
//! The list is stored beside the corpus directory, as `NAME.tombstones.json`, so that it outlives the directory: a build that
//! replaces the corpus, a crash in the middle of that, and a directory removed by hand. Its format is in this crate's README.

use crate::error::{Error, Result};
use crate::output::durable::OutputDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// Version of the list's format.
pub const TOMBSTONES_VERSION: u32 = 1;
/// Name of the list after that of the corpus.
const SUFFIX: &str = ".tombstones.json";
/// Name of the format in the file.
const FORMAT: &str = "bessemer-tombstones";
/// Reason of a dropped row that has a tombstone.
pub(crate) const DELETED: &str = "deleted";

/// Ids of deleted documents, each with the reason that was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tombstones {
    documents: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    format: String,
    version: u32,
    documents: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    reason: String,
}

/// Returns the path of the list of the corpus in `folder`.
pub fn tombstones_path(folder: &Path) -> PathBuf {
    // Without a slash at its end.
    let folder: PathBuf = folder.components().collect();
    let mut path = folder.into_os_string();
    path.push(SUFFIX);
    path.into()
}

impl Tombstones {
    /// The list of the corpus in `folder`; empty if there is none.
    ///
    /// # Errors
    /// A list that cannot be read, is not one, or has a version that this program does not know.
    pub fn read(folder: &Path) -> Result<Tombstones> {
        match OutputDir::open(folder) {
            Err(Error::System(cause)) if cause.kind() == ErrorKind::NotFound => Ok(Tombstones::default()),
            corpus => Tombstones::read_of(&corpus?),
        }
    }

    /// The list of the corpus at `corpus`; empty if there is none.
    pub(crate) fn read_of(corpus: &OutputDir) -> Result<Tombstones> {
        let path = tombstones_path(&corpus.path());
        let text = match corpus.above.read_to_string(corpus.beside(SUFFIX)) {
            Ok(text) => text,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Tombstones::default()),
            Err(cause) => return Err(Error::System(cause)),
        };
        let list: List = serde_json::from_str(&text).map_err(|cause| {
            Error::Config(format!(
                "{}: no list of deleted documents: {cause}; restore it from a copy, or remove it, after which a build \
                 takes these documents up again",
                path.display()
            ))
        })?;
        if list.format != FORMAT || list.version != TOMBSTONES_VERSION {
            return Err(Error::Config(format!(
                "{}: {} of version {}; this program reads {FORMAT} of version {TOMBSTONES_VERSION}",
                path.display(),
                list.format,
                list.version
            )));
        }
        Ok(Tombstones {
            documents: list.documents.into_iter().map(|entry| (entry.id, entry.reason)).collect(),
        })
    }

    /// Writes the list of the corpus in `folder`, whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let corpus = OutputDir::open(folder)?;
        let entry = |(id, reason): (&String, &String)| Entry { id: id.clone(), reason: reason.clone() };
        let documents = self.documents.iter().map(entry).collect();
        let list = List { format: FORMAT.into(), version: TOMBSTONES_VERSION, documents };
        let json = serde_json::to_string_pretty(&list)
            .map_err(|cause| Error::Json { path: tombstones_path(folder), cause })?;
        corpus.above.write(corpus.beside(SUFFIX), format!("{json}\n").as_bytes()).map_err(Error::System)
    }

    /// Adds a document; false, and the old reason stays, if it is there already.
    pub fn add(&mut self, id: &str, reason: &str) -> bool {
        if self.documents.contains_key(id) {
            return false;
        }
        self.documents.insert(id.to_string(), reason.to_string());
        true
    }

    /// Why a document is deleted, if it is.
    pub fn reason(&self, id: &str) -> Option<&str> {
        self.documents.get(id).map(String::as_str)
    }

    /// Number of documents on the list.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// XXH3-128 of ids and reasons in hexadecimal; none for an empty list.
    pub fn digest(&self) -> Option<String> {
        let mut bytes = Vec::new();
        for part in self.documents.iter().flat_map(|(id, reason)| [id, reason]) {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        (!self.is_empty()).then(|| format!("{:032x}", xxh3_128(&bytes)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_written_and_a_foreign_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("corpus/");
        assert_eq!(Tombstones::read(&corpus).unwrap(), Tombstones::default());
        let mut list = Tombstones::default();
        assert_eq!(list.digest(), None);
        assert!(list.add("b", "asked for") && list.add("a", "") && !list.add("b", "again"));
        list.write(&corpus).unwrap();
        assert_eq!(tombstones_path(&corpus), folder.path().join("corpus.tombstones.json"));
        let again = Tombstones::read(&corpus).unwrap();
        assert_eq!((again.reason("b"), again.len(), again.digest()), (Some("asked for"), 2, list.digest()));
        let path = tombstones_path(&corpus);
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to, word) in [("1,", "2,", "version 2"), (FORMAT, "other", "other"), ("id", "di", "di")] {
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            let message = Tombstones::read(&corpus).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains("tombstones"), "{message}");
        }
    }
}
