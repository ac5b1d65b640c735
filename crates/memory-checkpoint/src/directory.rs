//! Where the slots of a run lie on a host: a directory of this user alone on a file system in memory.

use crate::error::{At, MemoryError, Result};
use crate::slot::{CompleteCopy, Slot, SlotKey, SlotPair};
use bessemer_durable::{AsDir, ConfinedDir, EntryKind, FileLock};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File with the path of the run directory, so that what a removed run has left can be recognised.
const RUN_FILE: &str = "run";
/// File with the number of the file system that holds the run directory: where that is not mounted the run is not gone.
const DEVICE_FILE: &str = "run-device";

/// Gives the number of the run to which a run directory belongs; `None` for one whose run keeps no copies. An error keeps what
/// is there.
pub type CurrentRun<'a> = &'a dyn Fn(&Path) -> std::io::Result<Option<u128>>;

/// The slots of a run on this host.
#[derive(Debug, Clone)]
pub struct SlotDirectory {
    base: ConfinedDir,
    own: ConfinedDir,
    name: String,
}

/// A complete copy that a directory holds.
#[derive(Debug)]
pub struct FoundCopy {
    /// The slot.
    pub slot: Slot,
    /// Copy that it holds.
    pub copy: CompleteCopy,
}

impl SlotDirectory {
    /// Makes or opens the directory of run `run` below `base`, usually `/dev/shm`; `run_directory` is written into it.
    ///
    /// # Errors
    /// A directory of that name which another user has made; the system's answer.
    pub fn open(base: impl AsDir, run: u128, run_directory: &Path) -> Result<SlotDirectory> {
        let base = base.as_dir().at("open", Path::new(""))?;
        let name = format!("{}{run:032x}", prefix());
        let path = base.path().join(&name);
        let own = base.create_private_dir(&name).at("create", &path)?;
        check_own(&own)?;
        let directory = SlotDirectory { base, own, name };
        directory.write_run_file(run_directory)?;
        Ok(directory)
    }

    /// Every rank of the host writes the same, perhaps at the same time, so each has a new file of its own until it is whole.
    fn write_run_file(&self, run_directory: &Path) -> Result<()> {
        if let Ok(found) = run_directory.metadata() {
            self.write_own(DEVICE_FILE, found.dev().to_string().as_bytes())?;
        }
        self.write_own(RUN_FILE, run_directory.as_os_str().as_encoded_bytes())
    }

    fn write_own(&self, name: &str, bytes: &[u8]) -> Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let file = format!("{name}-{}-{number}", std::process::id());
        let path = self.path().join(&file);
        let mut new = self.own.create_replacing(&file).at("create", &path)?;
        new.write_all(bytes).at("write", &path)?;
        self.own.rename(&file, name).at("rename", &path)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.own.path()
    }

    /// Locks the slots that `rank` writes, until the lock is dropped.
    ///
    /// # Errors
    /// [`MemoryError::Busy`] if another process has them.
    pub fn lock(&self, rank: usize) -> Result<FileLock> {
        let name = format!("rank-{rank:05}.lock");
        let busy = || MemoryError::Busy { rank, path: self.path().to_owned() };
        self.own.try_lock(&name).at("lock", &self.path().join(name))?.ok_or_else(busy)
    }

    /// Opens or makes the two slots in which `holder` keeps the state of the key's rank.
    ///
    /// # Errors
    /// [`MemoryError::NoRoom`]; errors of opening its files.
    pub fn pair(&self, holder: usize, key: SlotKey) -> Result<SlotPair> {
        let names = [0, 1].map(|number| format!("rank-{holder:05}-of-{:05}-{number}", key.part));
        let there = |name: &String| self.allocated(name);
        let needed: u64 = names.iter().map(|name| key.slot_bytes().saturating_sub(there(name))).sum();
        let free = self.free_bytes()?;
        if needed > free {
            return Err(MemoryError::NoRoom { path: self.base.path().to_owned(), needed, free });
        }
        let [a, b] = names;
        Ok(SlotPair::new([Slot::open_in(&self.own, &a, key)?, Slot::open_in(&self.own, &b, key)?]))
    }

    /// Opens the slot `name`, which is there, for reading only.
    ///
    /// # Errors
    /// As [`Slot::open_existing_in`].
    pub fn slot(&self, name: &str, key: SlotKey) -> Result<Slot> {
        Slot::open_existing_in(&self.own, name, key)
    }

    /// Bytes that the file system has free for this user.
    ///
    /// # Errors
    /// The system's.
    pub fn free_bytes(&self) -> Result<u64> {
        self.base.free_bytes().at("find the free space of", self.base.path())
    }

    /// Bytes of memory that a file takes; 0 if there is none.
    fn allocated(&self, name: impl AsRef<Path>) -> u64 {
        self.own.facts(name).ok().flatten().map_or(0, |found| found.allocated)
    }

    /// Bytes of memory that the slots on this host take already.
    pub fn used_bytes(&self) -> u64 {
        self.own.list("").unwrap_or_default().into_iter().map(|(name, _)| self.allocated(name)).sum()
    }

    /// Complete copies on this host of the state of the key's rank, whoever has written them. Their bytes are not verified.
    pub fn copies(&self, key: SlotKey) -> Vec<FoundCopy> {
        let ending = format!("-of-{:05}-", key.part);
        let names = self.own.list("").unwrap_or_default().into_iter();
        let names = names.filter_map(|(name, _)| name.into_string().ok());
        let found = names.filter(|name| name.contains(&ending)).filter_map(|name| {
            let slot = Slot::open_existing_in(&self.own, &name, key).ok()?;
            Some(FoundCopy { copy: slot.complete()?, slot })
        });
        let mut found: Vec<_> = found.collect();
        found.sort_by(|a, b| a.slot.path().cmp(b.slot.path()));
        found
    }

    /// Removes the directory and all slots in it.
    ///
    /// # Errors
    /// The system's; entries that this program did not write stay.
    pub fn remove(&self) -> Result<()> {
        remove(&self.base, &self.name)
    }

    /// Removes what runs of this user have left below `base` whose run directory is gone or belongs to another run now, and
    /// returns the paths. `current` gives the number of the run to which an existing directory belongs. Copies of a rank that
    /// a process still holds locked stay. Best effort.
    pub fn sweep(base: impl AsDir, current: CurrentRun<'_>) -> Vec<PathBuf> {
        let Ok(base) = base.as_dir() else { return Vec::new() };
        let names = base.list("").unwrap_or_default().into_iter();
        let ours = names.filter_map(|(name, kind)| {
            let name = name.into_string().ok()?;
            (kind == EntryKind::Directory && name.starts_with(&prefix())).then_some(name)
        });
        let abandoned = ours.filter(|name| is_abandoned(&base, name, current).unwrap_or(false));
        let removed = abandoned.filter(|name| remove(&base, name).is_ok());
        removed.map(|name| base.path().join(name)).collect()
    }
}

/// Whether the directory of slots `name` belongs to this user and to a run whose directory is gone, with no process at work on it.
fn is_abandoned(base: &ConfinedDir, name: &str, current: CurrentRun<'_>) -> Result<bool> {
    let path = base.path().join(name);
    let own = base.dir(name).at("open", &path)?;
    check_own(&own)?;
    let run = own.read(RUN_FILE).at("read", &path)?;
    let run = Path::new(OsStr::from_bytes(&run));
    // Not where it cannot be looked at, such as on a file system that is not mounted yet.
    let mounted = match own.read_to_string(DEVICE_FILE) {
        Ok(device) => {
            let nearest = run.ancestors().skip(1).find_map(|above| above.metadata().ok());
            nearest.is_some_and(|above| above.dev().to_string() == device)
        }
        // An older version wrote it.
        Err(_) => run.parent().is_some_and(Path::is_dir),
    };
    let gone = match run.symlink_metadata() {
        Ok(_) => {
            let number = name.strip_prefix(&prefix()).and_then(|hex| u128::from_str_radix(hex, 16).ok());
            current(run).is_ok_and(|found| number.is_some() && found != number)
        }
        Err(e) => mounted && e.kind() == std::io::ErrorKind::NotFound,
    };
    if !gone {
        return Ok(false);
    }
    // A run whose directory was moved while it works still holds its locks.
    let locks = own.list("").at("list", &path)?.into_iter();
    let locks = locks.filter(|(name, _)| name.as_bytes().ends_with(b".lock"));
    let held = locks.map(|(name, _)| Ok(own.try_lock(&name).at("lock", &path)?.is_none()));
    Ok(!held.collect::<Result<Vec<bool>>>()?.contains(&true))
}

fn prefix() -> String {
    format!("bessemer-{}-", rustix::process::geteuid().as_raw())
}

/// Errors if the directory is not this user's alone.
fn check_own(directory: &ConfinedDir) -> Result<()> {
    let path = directory.path();
    let found = rustix::fs::fstat(directory).map_err(std::io::Error::from).at("look at", path)?;
    let problem = match () {
        () if found.st_uid != rustix::process::geteuid().as_raw() => {
            format!("it belongs to user {}", found.st_uid)
        }
        () if found.st_mode & 0o077 != 0 => "other users may open it".to_owned(),
        () => return Ok(()),
    };
    Err(MemoryError::Foreign { path: path.into(), problem })
}

fn remove(base: &ConfinedDir, name: &str) -> Result<()> {
    let ours = |below: &Path, kind: EntryKind| {
        let name = below.to_string_lossy();
        kind == EntryKind::File && (name.starts_with("rank-") || name.trim_matches('.').starts_with(RUN_FILE))
    };
    base.remove_tree(name, &ours).at("remove", &base.path().join(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use crate::slot::NOTES_ROOM;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const KEY: SlotKey = SlotKey { run: 7, part: 1, parts: 4, layout: 99, bytes: 64, notes: NOTES_ROOM };

    #[test]
    fn copies_are_found_by_whose_they_are_and_removed_with_the_run() {
        let base = tempfile::tempdir().unwrap();
        let run = base.path().join("runs");
        let directory = SlotDirectory::open(base.path(), 7, &run).unwrap();
        let pair = directory.pair(3, KEY).unwrap();
        let writer = pair.next().begin(5, 1).unwrap();
        writer.write_chunk(0, &[1; 64]).unwrap();
        let copy = writer.finish(b"").unwrap();
        let again = SlotDirectory::open(base.path(), 7, &run).unwrap();
        let found = again.copies(KEY);
        assert_eq!(found.iter().map(|found| found.copy).collect::<Vec<_>>(), [copy]);
        assert!(again.copies(SlotKey { part: 3, ..KEY }).is_empty());
        assert!(again.used_bytes() >= 2 * KEY.slot_bytes());
        let lock = again.lock(1).unwrap();
        assert!(matches!(directory.lock(1), Err(MemoryError::Busy { rank: 1, .. })));
        drop(lock);
        // Another run is not seen.
        let other = SlotDirectory::open(base.path(), 8, base.path()).unwrap();
        assert!(other.copies(KEY).is_empty());
        // The first run's directory was never there, the second one's is.
        let sweep = || SlotDirectory::sweep(base.path(), &|_| Ok(Some(8)));
        assert_eq!(sweep(), [directory.path()]);
        assert!(!directory.path().exists() && other.path().exists());
        // A run whose folder is gone with it; copies that are locked stay, and so do those of a run on another file system.
        let place = base.path().join("deep/runs/gone");
        fs::create_dir_all(&place).unwrap();
        let [gone, moved, away] =
            [9, 10, 11].map(|run| SlotDirectory::open(base.path(), run, &place).unwrap());
        fs::remove_dir_all(base.path().join("deep")).unwrap();
        fs::write(away.path().join(DEVICE_FILE), "0").unwrap();
        let lock = moved.lock(0).unwrap();
        drop(gone.lock(0).unwrap());
        assert_eq!(sweep(), [gone.path()]);
        assert!(moved.path().exists() && away.path().exists());
        drop(lock);
        assert_eq!(sweep(), [moved.path()]);
        // Another run has the directory now; one that cannot be looked at stays.
        assert!(SlotDirectory::sweep(base.path(), &|_| Err(std::io::ErrorKind::Other.into())).is_empty());
        let lock = other.lock(0).unwrap();
        assert!(SlotDirectory::sweep(base.path(), &|_| Ok(None)).is_empty());
        drop(lock);
        assert_eq!(SlotDirectory::sweep(base.path(), &|_| Ok(None)), [other.path()]);
        let other = SlotDirectory::open(base.path(), 8, base.path()).unwrap();
        other.remove().unwrap();
        assert!(!other.path().exists());
    }

    #[test]
    fn too_little_room_and_foreign_directories_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let directory = SlotDirectory::open(base.path(), 7, base.path()).unwrap();
        let e = directory.pair(0, SlotKey { bytes: 1 << 60, ..KEY }).unwrap_err();
        assert!(matches!(e, MemoryError::NoRoom { .. }) && e.to_string().contains("save.memory.keep"), "{e}");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(SlotDirectory::open(base.path(), 7, base.path()), Err(MemoryError::Foreign { .. })));
        fs::write(directory.path().join("precious"), "").unwrap();
        assert!(directory.remove().is_err() && directory.path().join("precious").exists());
    }
}
