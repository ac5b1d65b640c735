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
use bessemer_durable::{ConfinedDir, EntryKind, FileLock, parent, sync_directory};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// `path` with `suffix` appended to its last component.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a folder of a build, which may not be there.
///
/// # Errors
/// A symbolic link in its place, an entry in it that no build writes; nothing is removed then.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    let failed = Error::io("clear folder", path);
    let Some(name) = path.file_name() else { return Ok(()) };
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed(cause)),
        Ok(_) => {}
    }
    // The run directory above may be a link that its user made.
    fs::canonicalize(parent(path))
        .and_then(|above| ConfinedDir::open(&above)?.remove_tree(Path::new(name), &is_own_entry))
        .map_err(failed)
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

/// Errors if `path` is a symbolic link: what a build replaces must be its own.
pub(crate) fn require_no_link(path: &Path) -> Result<()> {
    let Ok(target) = fs::read_link(path) else { return Ok(()) };
    Err(Error::Foreign {
        path: path.to_path_buf(),
        problem: format!(
            "is a symbolic link to {}, and a build would replace it: remove the link, or link the run directory as a whole",
            target.display()
        ),
    })
}

/// Errors if a directory that is to be replaced is a link or holds something that no build writes.
fn require_own(target: &Path) -> Result<()> {
    require_no_link(target)?;
    let entries = match fs::read_dir(target) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(Error::io("read folder", target)(cause)),
    };
    let mut foreign = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read folder", target))?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let name = entry.file_name();
        if !is_file || !name.to_str().is_some_and(is_own_name) {
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
        path: target.to_path_buf(),
        problem: format!(
            "holds {}{more}, which no build wrote and a new build would remove: move this elsewhere and try again",
            foreign.join(", ")
        ),
    })
}

/// Foreign entries that an error names.
const NAMED: usize = 5;

fn sync_folder(path: &Path) -> Result<()> {
    sync_directory(path).map_err(Error::io("sync folder", path))
}

/// A directory under construction. Dropped without [`PartialDir::finish`], it is removed.
pub(crate) struct PartialDir {
    target: PathBuf,
    partial: PathBuf,
    lock: Option<FileLock>,
    finished: bool,
}

impl PartialDir {
    /// Locks and clears the partial directory of `target`.
    pub(crate) fn begin(target: &Path) -> Result<PartialDir> {
        let target: PathBuf = target.components().collect();
        require_own(&target)?;
        let folder = parent(&target).to_path_buf();
        fs::create_dir_all(&folder).map_err(Error::io("create folder", &folder))?;
        let lock_path = beside(&target, ".lock.partial");
        let lock = FileLock::try_acquire(&lock_path).map_err(Error::io("lock", &lock_path))?;
        let Some(lock) = lock else { return Err(Error::Busy { path: target }) };
        let partial = beside(&target, ".partial");
        let dir = PartialDir { target, partial, lock: Some(lock), finished: false };
        dir.clear()?;
        fs::create_dir(&dir.partial).map_err(Error::io("create folder", &dir.partial))?;
        Ok(dir)
    }

    fn clear(&self) -> Result<()> {
        for path in [&self.partial, &beside(&self.target, ".old.partial")] {
            remove_folder(path)?;
        }
        Ok(())
    }

    /// Removes what was written so far.
    pub(crate) fn empty(&self) -> Result<()> {
        remove_folder(&self.partial)?;
        fs::create_dir(&self.partial).map_err(Error::io("create folder", &self.partial))
    }

    /// Returns the path of the directory that is written.
    pub(crate) fn path(&self) -> &Path {
        &self.partial
    }

    /// Puts the directory in its place.
    pub(crate) fn finish(mut self) -> Result<()> {
        sync_folder(&self.partial)?;
        let old = beside(&self.target, ".old.partial");
        if self.target.exists() {
            fs::rename(&self.target, &old).map_err(Error::io("rename", &self.target))?;
        }
        fs::rename(&self.partial, &self.target).map_err(Error::io("rename", &self.partial))?;
        self.finished = true;
        sync_folder(parent(&self.target))?;
        match remove_folder(&old) {
            // What somebody put there during the build stays, and the next build asks for it to be moved away.
            Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        }
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        // What cannot be removed is cleared by the next build.
        if !self.finished {
            let _ = remove_folder(&self.partial);
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
    /// Creates a file in `folder`.
    pub(crate) fn create(folder: &Path, name: &str) -> Result<HashingFile> {
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
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
        let written = self.file.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
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

/// What is at `path`: nothing or an empty folder (`None`), or the text of a summary.
pub(crate) fn existing(path: &Path) -> Result<Option<String>> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::io("read folder", path)(cause)),
    };
    if entries.next().is_none() {
        return Ok(None);
    }
    let summary = path.join(SUMMARY_FILE);
    match fs::read_to_string(&summary) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Err(Error::NotACorpus {
            path: path.to_path_buf(),
            problem: format!("it is not empty and has no {SUMMARY_FILE}"),
        }),
        Err(cause) => Err(Error::io("read", &summary)(cause)),
    }
}
