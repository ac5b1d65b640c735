//! Whether the files of a corpus are the ones that its build wrote.
//!
//! `corpus.json` lists every other file with its size and XXH3-128, and begins with a checksum of its own text. A reader
//! hashes a file when it first opens it, through the handle that it then reads: one sequential reading, most of which the
//! following one finds in the page cache.

use crate::error::{Error, Result};
use crate::output::durable::{hash_of, is_own_name, summary_text};
use crate::output::summary::{CorpusSummary, FORMAT_VERSION, FileSummary, SUMMARY_FILE};
use bessemer_durable::{ConfinedDir, is_of_the_process};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Seek};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// Beginning of a `corpus.json` that has a checksum.
const CHECKSUM: &str = "{\n  \"checksum\": \"";
/// What stands between the checksum and the text that it covers.
const BEHIND: &str = "\",\n";
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 32;

/// A summary's JSON with its checksum in front.
pub(crate) fn with_checksum(json: &str) -> String {
    let rest = json.strip_prefix("{\n").unwrap_or(json);
    let rest = format!("{rest}\n");
    format!("{CHECKSUM}{:032x}{BEHIND}{rest}", xxh3_128(rest.as_bytes()))
}

/// Reads the text of a `corpus.json`.
///
/// # Errors
/// What is wrong with it, in words: a checksum that differs, no JSON of a summary, another format version.
pub(crate) fn summary_of(text: &str) -> std::result::Result<CorpusSummary, String> {
    // Corpora of earlier versions have no checksum.
    if let Some(text) = text.strip_prefix(CHECKSUM) {
        let wanted = text.get(..DIGITS).unwrap_or_default();
        let rest = text.get(DIGITS..).unwrap_or_default();
        let rest = rest.strip_prefix(BEHIND).ok_or("its checksum line is malformed")?;
        let found = format!("{:032x}", xxh3_128(rest.as_bytes()));
        if found != wanted {
            return Err(format!("its checksum is {wanted}, and its text has {found}"));
        }
    }
    let summary: CorpusSummary =
        serde_json::from_str(text).map_err(|cause| format!("cannot parse its summary: {cause}"))?;
    if summary.format_version != FORMAT_VERSION {
        return Err(format!("it has format {}, this program reads {FORMAT_VERSION}", summary.format_version));
    }
    Ok(summary)
}

/// Opens the directory of a corpus, and reads its summary.
pub(crate) fn open_corpus(folder: &Path) -> Result<(ConfinedDir, CorpusSummary)> {
    let not_a_corpus = |problem: String| Error::NotACorpus { path: folder.to_path_buf(), problem };
    let missing = || not_a_corpus("it is missing or empty; build the corpus first".into());
    let dir = ConfinedDir::open(folder).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => missing(),
        _ => Error::System(cause),
    })?;
    if dir.list("").map_err(Error::System)?.is_empty() {
        return Err(missing());
    }
    let summary = summary_of(&summary_text(&dir)?);
    Ok((dir, summary.map_err(|problem| not_a_corpus(format!("{SUMMARY_FILE}: {problem}")))?))
}

/// What is wrong with an open file of the corpus, if anything; the file is at its beginning afterwards.
fn difference(file: &mut File, wanted: &FileSummary) -> std::io::Result<Option<String>> {
    let found = file.metadata()?.len();
    if found != wanted.bytes {
        return Ok(Some(format!("{} bytes expected, {found} found", wanted.bytes)));
    }
    file.rewind()?;
    let (found, _) = hash_of(file)?;
    file.rewind()?;
    let same = found == wanted.xxh3_128;
    Ok((!same).then(|| format!("its hash is {found}, {SUMMARY_FILE} says {}", wanted.xxh3_128)))
}

/// Files that a reader and its clones have found intact.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verified(Arc<Mutex<BTreeSet<String>>>);

impl Verified {
    /// All files of a summary, for the process that has just written them.
    pub(crate) fn just_written(summary: &CorpusSummary) -> Verified {
        let names = summary.files.iter().map(|file| file.name.clone()).collect();
        Verified(Arc::new(Mutex::new(names)))
    }

    /// Opens a file of the corpus in `dir`; its content is hashed unless that was done before.
    pub(crate) fn open(&self, dir: &ConfinedDir, wanted: &FileSummary) -> Result<File> {
        let path = dir.path().join(&wanted.name);
        let mut file = dir.open_file(&wanted.name).map_err(Error::System)?;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&wanted.name);
        if !known {
            if let Some(problem) = difference(&mut file, wanted).map_err(Error::io("read", &path))? {
                return Err(Error::Damaged { path, problem });
            }
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted.name.clone());
        }
        Ok(file)
    }
}

/// A file of a corpus, as [`verify`] found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedFile {
    /// Its name in the directory.
    pub name: String,
    /// Its bytes as the build wrote them.
    pub bytes: u64,
    /// The defect; none if the file is intact.
    pub problem: Option<String>,
}

/// Result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// All files of the corpus are intact.
    pub intact: bool,
    /// Files of the corpus, `corpus.json` first.
    pub files: Vec<VerifiedFile>,
    /// Names in the directory that no build writes.
    pub foreign: Vec<String>,
}

/// Reads every file of the corpus in `folder` and compares it with what its build wrote.
///
/// # Errors
/// No corpus there, or one whose summary is damaged or cannot be read. A damaged file is part of the answer.
pub fn verify(folder: &Path) -> Result<Verification> {
    let (dir, summary) = open_corpus(folder)?;
    let bytes = dir.facts(SUMMARY_FILE).map_err(Error::System)?.map_or(0, |found| found.bytes);
    let mut files = vec![VerifiedFile { name: SUMMARY_FILE.into(), bytes, problem: None }];
    for file in &summary.files {
        let opened = dir.open_file(&file.name);
        let problem = match opened.and_then(|mut opened| difference(&mut opened, file)) {
            // The file may be whole.
            Err(cause) if is_of_the_process(&cause) => return Err(Error::System(cause)),
            Err(cause) => Some(format!("cannot be read: {cause}")),
            Ok(problem) => problem,
        };
        files.push(VerifiedFile { name: file.name.clone(), bytes: file.bytes, problem });
    }
    let mut foreign = Vec::new();
    for (name, _) in dir.list("").map_err(Error::System)? {
        let name = name.to_string_lossy().into_owned();
        let listed = files.iter().any(|file| file.name == name);
        if !listed && !is_own_name(&name) {
            foreign.push(name);
        }
    }
    foreign.sort();
    Ok(Verification { intact: files.iter().all(|file| file.problem.is_none()), files, foreign })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_with_any_bit_flipped_is_refused_or_the_same() {
        let summary = CorpusSummary {
            format_version: FORMAT_VERSION,
            key: "k".into(),
            remarks: vec!["a remark".into()],
            ..CorpusSummary::default()
        };
        let json = serde_json::to_string_pretty(&summary).unwrap();
        let text = with_checksum(&json);
        assert_eq!(summary_of(&text).unwrap(), summary);
        assert_eq!(summary_of(&json).unwrap(), summary, "earlier versions wrote no checksum");
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let Ok(flipped) = String::from_utf8(bytes) else { continue };
                if let Ok(found) = summary_of(&flipped) {
                    assert_eq!(found, summary, "byte {at}, bit {bit}");
                }
            }
        }
    }
}
