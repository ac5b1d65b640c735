//! Where the slots of a run lie on a host: a directory of this user alone on a file system in memory.

use crate::error::{At, MemoryError, Result};
use crate::slot::{CompleteCopy, Slot, SlotKey, SlotPair};
use bessemer_durable::{ConfinedDir, EntryKind, FileLock};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File with the path of the run directory, so that what a removed run has left can be recognised.
const RUN_FILE: &str = "run";

/// The slots of a run on this host.
#[derive(Debug, Clone)]
pub struct SlotDirectory {
    base: PathBuf,
    path: PathBuf,
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
    pub fn open(base: &Path, run: u128, run_directory: &Path) -> Result<SlotDirectory> {
        let path = base.join(format!("{}{run:032x}", prefix()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e).at("create", &path),
            _ => {}
        }
        own_directory(&path)?;
        let directory = SlotDirectory { base: base.into(), path };
        directory.write_run_file(run_directory)?;
        Ok(directory)
    }

    /// Every rank of the host writes the same, perhaps at the same time, so each has a new file of its own until it is whole.
    fn write_run_file(&self, run_directory: &Path) -> Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let file = self.path.join(format!("{RUN_FILE}-{}-{number}", std::process::id()));
        fs::write(&file, run_directory.as_os_str().as_encoded_bytes()).at("write", &file)?;
        fs::rename(&file, self.path.join(RUN_FILE)).at("rename", &file)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn slot_path(&self, holder: usize, rank: u32, number: usize) -> PathBuf {
        self.path.join(format!("rank-{holder:05}-of-{rank:05}-{number}"))
    }

    /// Locks the slots that `rank` writes, until the lock is dropped.
    ///
    /// # Errors
    /// [`MemoryError::Busy`] if another process has them.
    pub fn lock(&self, rank: usize) -> Result<FileLock> {
        let path = self.path.join(format!("rank-{rank:05}.lock"));
        let busy = || MemoryError::Busy { rank, path: self.path.clone() };
        FileLock::try_acquire(&path).at("lock", &path)?.ok_or_else(busy)
    }

    /// Opens or makes the two slots in which `holder` keeps the state of the key's rank.
    ///
    /// # Errors
    /// [`MemoryError::NoRoom`]; errors of [`Slot::open`].
    pub fn pair(&self, holder: usize, key: SlotKey) -> Result<SlotPair> {
        let paths = [0, 1].map(|number| self.slot_path(holder, key.part, number));
        let there = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.blocks() * 512);
        let needed: u64 = paths.iter().map(|path| key.slot_bytes().saturating_sub(there(path))).sum();
        let free = self.free_bytes()?;
        if needed > free {
            return Err(MemoryError::NoRoom { path: self.base.clone(), needed, free });
        }
        let [a, b] = paths;
        Ok(SlotPair::new([Slot::open(&a, key)?, Slot::open(&b, key)?]))
    }

    /// Bytes that the file system has free for this user.
    ///
    /// # Errors
    /// The system's.
    pub fn free_bytes(&self) -> Result<u64> {
        let found = rustix::fs::statvfs(&self.base).at("ask for the free space of", &self.base)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Bytes of memory that the slots on this host take already.
    pub fn used_bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
    }

    /// Complete copies on this host of the state of the key's rank, whoever has written them. Their bytes are not verified.
    pub fn copies(&self, key: SlotKey) -> Vec<FoundCopy> {
        let ending = format!("-of-{:05}-", key.part);
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let of_rank = entries.filter(|e| e.file_name().to_string_lossy().contains(&ending));
        let found = of_rank.filter_map(|entry| {
            let slot = Slot::open_existing(&entry.path(), key).ok()?;
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
        remove(&self.base, &self.path)
    }

    /// Removes what runs of this user have left below `base` whose run directory is gone, and returns the paths. Best effort.
    pub fn sweep(base: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(base).into_iter().flatten().flatten();
        let ours = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix()));
        let abandoned = ours.map(|entry| entry.path()).filter(|path| {
            let Ok(run) = bessemer_durable::read_to_string(&path.join(RUN_FILE)) else { return false };
            // Not where it cannot be looked at, such as on a file system that is not mounted yet.
            let parent = Path::new(&run).parent().is_some_and(Path::is_dir);
            own_directory(path).is_ok() && parent && !Path::new(&run).exists()
        });
        abandoned.filter(|path| remove(base, path).is_ok()).collect()
    }
}

fn prefix() -> String {
    format!("bessemer-{}-", rustix::process::geteuid().as_raw())
}

fn own_directory(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).at("look at", path)?;
    let problem = match () {
        () if !found.is_dir() => "it is no directory".to_owned(),
        () if found.uid() != rustix::process::geteuid().as_raw() => {
            format!("it belongs to user {}", found.uid())
        }
        () if found.permissions().mode() & 0o077 != 0 => "other users may open it".to_owned(),
        () => return Ok(()),
    };
    Err(MemoryError::Foreign { path: path.into(), problem })
}

fn remove(base: &Path, path: &Path) -> Result<()> {
    let ours = |below: &Path, kind: EntryKind| {
        let name = below.to_string_lossy();
        kind == EntryKind::File && (name.starts_with("rank-") || name.trim_matches('.').starts_with(RUN_FILE))
    };
    let name = path.file_name().map(Path::new).unwrap_or(Path::new(""));
    ConfinedDir::open(base).and_then(|dir| dir.remove_tree(name, &ours)).at("remove", path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use crate::slot::NOTES_ROOM;

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
        assert_eq!(SlotDirectory::sweep(base.path()), [directory.path()]);
        assert!(!directory.path().exists() && other.path().exists());
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
