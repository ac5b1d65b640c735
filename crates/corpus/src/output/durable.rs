//! Directories that appear whole or not at all.
//!
//! Files are written into `NAME.partial` beside the target, each synced; then the directory is synced and renamed
//! to `NAME`. A lock on a file within keeps a second process out. A crash leaves the partial directory, which the
//! next build clears. When `NAME` exists it is renamed aside first and removed after the swap; a crash between the two
//! renames leaves no `NAME`, and the next build makes it again.
//!
//! Only files that the program writes are ever removed, and only beneath these directories: a directory that holds something
//! else, or is a symbolic link, is refused by name.

use crate::error::{Error, Result};
use crate::evaluate::REVIEW_FILE;
use crate::output::summary::{ATTRIBUTION_FILE, CARD_FILE, DROPPED_FILE, FileSummary, SUMMARY_FILE};
use bessemer_documents::Split;
use bessemer_durable::{ConfinedDir, EntryKind, FileLock, is_of_the_process, parent, with_remedy};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Location of a directory that appears whole or not at all: its name, and the open directory above it. Entries beside it
/// are named after it.
#[derive(Debug, Clone)]
pub(crate) struct OutputDir {
    /// The directory above, which may be a link that its user made.
    pub(crate) above: ConfinedDir,
    pub(crate) name: OsString,
}

impl OutputDir {
    /// The location `path`; the directory above it must be there.
    pub(crate) fn open(path: &Path) -> Result<OutputDir> {
        OutputDir::named(path, ConfinedDir::open_named)
    }

    /// The location `path`; the directory above it is made if it is missing.
    pub(crate) fn create(path: &Path) -> Result<OutputDir> {
        OutputDir::named(path, ConfinedDir::create_named)
    }

    fn named(path: &Path, open: fn(&Path) -> std::io::Result<ConfinedDir>) -> Result<OutputDir> {
        // Without a slash at its end.
        let mut path: PathBuf = path.components().collect();
        if path.file_name().is_none() {
            path = path.canonicalize().map_err(Error::io("open the directory", &path))?;
        }
        let name = path.file_name().unwrap_or_default().to_os_string();
        Ok(OutputDir { above: open(parent(&path)).map_err(Error::System)?, name })
    }

    /// Name of the directory with `suffix` appended.
    pub(crate) fn beside(&self, suffix: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(suffix);
        name
    }

    /// Path of the directory, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.above.path().join(&self.name)
    }

    /// Removes the folder `beside` it that a build made, which may not be there.
    ///
    /// # Errors
    /// A symbolic link in its place, an entry in it that no build writes; nothing is removed then.
    pub(crate) fn remove_beside(&self, suffix: &str) -> Result<()> {
        remove_folder(&self.above, &self.beside(suffix))
    }

    /// Errors if the directory is a symbolic link: a build replaces only its own.
    fn require_no_link(&self) -> Result<()> {
        match self.above.kind(&self.name).map_err(Error::System)? {
            Some(EntryKind::Link) => {}
            _ => return Ok(()),
        }
        Err(Error::Foreign {
            path: self.path(),
            problem: "is a symbolic link, and a build would replace it: remove the link, or link the run directory as a whole"
                .into(),
        })
    }

    /// Errors if the directory, which is to be replaced, is a link or holds something that no build writes.
    fn require_own(&self) -> Result<()> {
        self.require_no_link()?;
        let mut foreign = Vec::new();
        for (name, kind) in self.entries()?.unwrap_or_default() {
            if kind != EntryKind::File || !name.to_str().is_some_and(is_own_name) {
                foreign.push(name.to_string_lossy().into_owned());
            }
        }
        if foreign.is_empty() {
            return Ok(());
        }
        foreign.sort();
        let more = foreign.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        foreign.truncate(NAMED);
        Err(Error::Foreign {
            path: self.path(),
            problem: format!(
                "holds {}{more}, which no build wrote and a new build would remove: move this elsewhere and try again",
                foreign.join(", ")
            ),
        })
    }

    /// Entries of the directory; none if it is not there.
    fn entries(&self) -> Result<Option<Vec<(OsString, EntryKind)>>> {
        match self.above.list(&self.name) {
            Ok(entries) => Ok(Some(entries)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(Error::System(cause)),
        }
    }

    /// Text of the summary in the directory; none if there is no directory or an empty one.
    pub(crate) fn summary_text(&self) -> Result<Option<String>> {
        if self.entries()?.is_none_or(|entries| entries.is_empty()) {
            return Ok(None);
        }
        summary_text(&self.above.dir(&self.name).map_err(Error::System)?).map(Some)
    }
}

/// Text of the summary of the corpus in `dir`.
pub(crate) fn summary_text(dir: &ConfinedDir) -> Result<String> {
    dir.read_to_string(SUMMARY_FILE).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => Error::NotACorpus {
            path: dir.path().to_path_buf(),
            problem: format!("it is not empty and has no {SUMMARY_FILE}"),
        },
        _ => Error::System(cause),
    })
}

/// A file of `dir` that a build may make anew, as text; none if it is not there or not understood.
///
/// # Errors
/// A file that this process may not read, or has no means to: its content may be good.
pub(crate) fn read_replaceable(dir: &ConfinedDir, below: impl AsRef<Path>) -> Result<Option<String>> {
    match dir.read_to_string(below) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if is_of_the_process(&cause) => Err(Error::System(cause)),
        Err(_) => Ok(None),
    }
}

/// Removes the folder `name` of a build, which may not be there.
///
/// # Errors
/// A symbolic link in its place, an entry in it that no build writes; nothing is removed then.
fn remove_folder(above: &ConfinedDir, name: &std::ffi::OsStr) -> Result<()> {
    match above.kind(name).map_err(Error::System)? {
        None => Ok(()),
        Some(_) => above.remove_tree(name, &is_own_entry).map_err(Error::System),
    }
}

/// Whether a build writes an entry, given below a folder that it clears: a corpus, its spill files, parts that outlive the
/// process, parts of a cluster.
fn is_own_entry(below: &Path, kind: EntryKind) -> bool {
    let names: Vec<&str> = below.iter().map(|name| name.to_str().unwrap_or_default()).collect();
    let is_digits = |name: &str, length| {
        name.len() == length
            && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    match (names.as_slice(), kind) {
        (_, EntryKind::Link | EntryKind::Other) => false,
        ([name], EntryKind::File) => is_own_name(name) || matches!(*name, "key.json" | ".key.json.partial"),
        // Units of parts, and the folder of a plan on a cluster, named by its key.
        ([name], EntryKind::Directory) => *name == "spill" || is_digits(name, 6) || is_digits(name, 32),
        ([unit, name], EntryKind::File) if is_digits(unit, 6) => is_own_part(name),
        ([unit, ..], _) => *unit == "spill" || is_digits(unit, 32),
        ([], _) => false,
    }
}

/// Whether a build writes a file of this name into a unit of its parts.
pub(crate) fn is_own_part(name: &str) -> bool {
    matches!(name, "end.json" | ".end.json.partial") || own_part_number(name).is_some()
}

/// Number of the part to which a file of this name belongs: its rows, its marker, or one of them unfinished.
pub(crate) fn own_part_number(name: &str) -> Option<u32> {
    let (digits, ending) = name.trim_start_matches('.').strip_prefix("part-")?.split_once('.')?;
    let number: u32 = digits.parse().ok()?;
    let forms = [".arrow", ".arrow.tmp", ".json"].map(|ending| format!("part-{number:05}{ending}"));
    let partial = ending == "json.partial" && name == format!(".part-{number:05}.json.partial");
    (partial || forms.iter().any(|form| form == name)).then_some(number)
}

/// Foreign entries that an error names.
const NAMED: usize = 5;

/// A directory under construction. Dropped without [`PartialDir::finish`], it is removed.
pub(crate) struct PartialDir {
    target: OutputDir,
    dir: ConfinedDir,
    lock: Option<FileLock>,
    finished: bool,
}

/// Suffix of a directory under construction.
const PARTIAL: &str = ".partial";
/// Suffix of the directory that was replaced.
const OLD: &str = ".old.partial";

impl PartialDir {
    /// Locks and clears the partial directory of `target`.
    pub(crate) fn begin(target: &OutputDir) -> Result<PartialDir> {
        target.require_own()?;
        let lock = target.above.try_lock(target.beside(".lock.partial")).map_err(Error::System)?;
        let Some(lock) = lock else { return Err(Error::Busy { path: target.path() }) };
        let made = [PARTIAL, OLD]
            .iter()
            .try_for_each(|suffix| target.remove_beside(suffix))
            .and_then(|()| target.above.create_dir(target.beside(PARTIAL)).map_err(Error::System));
        match made {
            Ok(dir) => Ok(PartialDir { target: target.clone(), dir, lock: Some(lock), finished: false }),
            Err(error) => {
                lock.remove();
                Err(error)
            }
        }
    }

    /// Removes what was written so far.
    pub(crate) fn empty(&mut self) -> Result<()> {
        self.target.remove_beside(PARTIAL)?;
        self.dir = self.target.above.create_dir(self.target.beside(PARTIAL)).map_err(Error::System)?;
        Ok(())
    }

    /// The directory that is written.
    pub(crate) fn dir(&self) -> &ConfinedDir {
        &self.dir
    }

    /// Puts the directory in its place.
    pub(crate) fn finish(mut self) -> Result<()> {
        let OutputDir { above, name } = &self.target;
        self.dir.sync().map_err(Error::System)?;
        if above.kind(name).map_err(Error::System)?.is_some() {
            above.rename(name, self.target.beside(OLD)).map_err(Error::System)?;
        }
        above.rename(self.target.beside(PARTIAL), name).map_err(Error::System)?;
        self.finished = true;
        above.sync().map_err(Error::System)?;
        match self.target.remove_beside(OLD) {
            // What somebody put there during the build stays, and the next build asks for it to be moved away.
            Err(Error::System(cause)) if cause.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        }
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        // What cannot be removed is cleared by the next build.
        if !self.finished {
            let _ = self.target.remove_beside(PARTIAL);
        }
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
    }
}

/// XXH3-128, in hexadecimal, and length of what is left of a file.
pub(crate) fn hash_of(file: &mut impl Read) -> std::io::Result<(String, u64)> {
    let (mut hash, mut bytes, mut buffer) = (Xxh3Default::new(), 0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((format!("{:032x}", hash.digest128()), bytes)),
            Ok(read) => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// Writes a file and knows its size and hash.
pub(crate) struct HashingFile {
    file: BufWriter<File>,
    path: PathBuf,
    hash: Xxh3Default,
    bytes: u64,
}

impl HashingFile {
    /// Creates the file `below` in `dir`.
    pub(crate) fn create(dir: &ConfinedDir, below: impl AsRef<Path>) -> Result<HashingFile> {
        let path = dir.path().join(below.as_ref());
        let file = dir.create_new(below).map_err(Error::System)?;
        Ok(HashingFile {
            file: BufWriter::with_capacity(1 << 20, file),
            path,
            hash: Xxh3Default::new(),
            bytes: 0,
        })
    }

    /// Syncs the file.
    pub(crate) fn finish(mut self) -> Result<FileSummary> {
        self.file.flush().map_err(Error::io("write", &self.path))?;
        self.file.get_ref().sync_all().map_err(Error::io("sync", &self.path))?;
        Ok(FileSummary {
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: self.bytes,
            xxh3_128: format!("{:032x}", self.hash.digest128()),
        })
    }
}

impl Write for HashingFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(buffer).map_err(with_remedy)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush().map_err(with_remedy)
    }
}

/// Whether a build writes a file of this name into the directory of a corpus.
pub(crate) fn is_own_name(name: &str) -> bool {
    if [SUMMARY_FILE, DROPPED_FILE, CARD_FILE, ATTRIBUTION_FILE, REVIEW_FILE].contains(&name) {
        return true;
    }
    let series = name.strip_suffix(".parquet").and_then(|name| name.rsplit_once('-'));
    series.is_some_and(|(series, number)| {
        let is_split = |split: &Split| {
            let rest = series.strip_prefix("documents-").and_then(|rest| rest.strip_prefix(split.name()));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        number.len() >= 5
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && Split::ALL.iter().any(is_split)
    })
}
