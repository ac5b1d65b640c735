//! A directory of checkpoints: what is there, which one to use, which to remove.

use crate::compressed::{CompressedReader, CompressedWriter, SUFFIX};
use crate::error::{At, CheckpointError, Result, Skipped};
use crate::fs::{
    ConfinedFileSystem, EntryKind, FileSystem, Links, LockGuard, OsFileSystem, foreign_in, read_small,
    remove_files,
};
use crate::load::Loaded;
use crate::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Previous, stated_checksum};
use crate::publish::free_name;
use crate::retention::Retention;
use bessemer_durable::ConfinedDir;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of this name in a checkpoint's directory keeps [`Store::gc`] from removing it.
pub const PIN_NAME: &str = "keep";

const LOCK_NAME: &str = ".lock";

/// A directory of checkpoints. Holds no state beside the path: any number of readers, one writer at a time (a lock file
/// sees to it).
#[derive(Clone)]
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) fs: Arc<dyn FileSystem>,
    accept: Accept,
    /// Whether files are stored compressed.
    pub(crate) compresses: bool,
}

/// Decides whether a manifest whose bytes are intact also makes sense to whoever wrote its state; the error says what
/// contradicts what.
pub type Accept = fn(&Manifest) -> std::result::Result<(), String>;

/// A complete checkpoint, as its manifest describes it. Contents are verified on loading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Optimizer steps done.
    pub step: u64,
    /// Training tokens consumed.
    pub tokens: u64,
    /// Its directory.
    pub path: PathBuf,
    /// Bytes of its tensor files.
    pub bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Whether it is pinned against removal by a file named [`PIN_NAME`].
    pub pinned: bool,
    /// Whether its name is a symbolic link to a directory elsewhere, which is read and never removed.
    pub linked: bool,
}

/// Everything in a store that bears a checkpoint's name.
#[derive(Debug, Default)]
pub struct Scan {
    /// Manifest intact, every file there with its size; oldest first.
    pub complete: Vec<CheckpointInfo>,
    /// The others, oldest first.
    pub damaged: Vec<Skipped>,
}

/// The newest checkpoint that can be used.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint: verified whole by [`Store::latest_valid`], chunk by chunk while it is read if it was loaded lazily.
    pub loaded: Loaded,
    /// Newer ones that cannot be used, newest first, with the reason.
    pub skipped: Vec<Skipped>,
}

/// Result of [`Store::gc`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct GcReport {
    /// Steps removed, oldest first.
    pub removed: Vec<u64>,
    /// Steps kept, oldest first.
    pub kept: Vec<u64>,
    /// Those of them that were to be removed and hold files that this program did not write, with the first of those.
    pub spared: Vec<(u64, PathBuf)>,
    /// Bytes of tensor files removed.
    pub freed: u64,
}

/// The name of a checkpoint's directory: "step-00000123".
pub fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Whether a save writes a file of this name: the only files that a removal removes.
pub(crate) fn is_checkpoint_file(name: &str) -> bool {
    let is_number = |s: &str| s.len() >= 5 && s.bytes().all(|b| b.is_ascii_digit());
    let of_rank =
        name.strip_prefix("rank-").and_then(|n| n.split_once('-')).filter(|(rank, _)| is_number(rank));
    let name = of_rank.map_or(name, |(_, name)| name);
    let stored = name.strip_suffix(SUFFIX).unwrap_or(name);
    let shard = stored.strip_prefix("shard-").and_then(|n| n.strip_suffix(".safetensors"));
    (name == MANIFEST_NAME && of_rank.is_none())
        || shard.and_then(|n| n.split_once("-of-")).is_some_and(|(i, n)| is_number(i) && is_number(n))
}

/// The step of a directory name, if it is one that [`step_name`] gives.
pub fn parse_step_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Store {
    /// The store in a directory of the operating system. Nothing is touched; the first save makes the directory.
    pub fn open(dir: impl Into<PathBuf>) -> Store {
        Store::open_on(dir, Arc::new(OsFileSystem))
    }

    /// The store in the directory `name` of an open directory, through which all of its files are reached.
    pub fn open_in(dir: &ConfinedDir, name: &str) -> Store {
        Store::open_on(dir.path().join(name), Arc::new(ConfinedFileSystem(dir.clone())))
    }

    /// The store in a directory of another file system.
    pub fn open_on(dir: impl Into<PathBuf>, fs: Arc<dyn FileSystem>) -> Store {
        Store { dir: dir.into(), fs, accept: |_| Ok(()), compresses: false }
    }

    /// The same store, which takes only checkpoints that `accept` accepts for intact, wherever it reads one.
    pub fn accepting(self, accept: Accept) -> Store {
        Store { accept, ..self }
    }

    /// The same store, whose saves store files compressed or not. It reads both.
    pub fn compressing(self, compresses: bool) -> Store {
        Store { compresses, ..self }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the checkpoint of a step, existing or not.
    pub fn path(&self, step: u64) -> PathBuf {
        self.dir.join(step_name(step))
    }

    /// Bytes that a save of `bytes` bytes of tensors needs to be free.
    pub fn space_for(bytes: u64) -> u64 {
        // The manifest: its text for each tensor, and the state; a MiB more than enough for block rounding.
        bytes.saturating_add(1 << 20)
    }

    /// Free bytes where the next checkpoint will be written, if the file system reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        // The first save makes the directory.
        let there = self.dir.ancestors().find(|dir| matches!(self.fs.kind(dir), Ok(Some(_))));
        self.fs.free_bytes(there?).ok()
    }

    /// Complete checkpoints, oldest first. Reads manifests and file sizes, not the tensors. A directory that does not
    /// exist holds none.
    pub fn list(&self) -> Result<Vec<CheckpointInfo>> {
        Ok(self.scan()?.complete)
    }

    /// Complete and damaged checkpoints.
    pub fn scan(&self) -> Result<Scan> {
        let mut scan = Scan::default();
        for (step, path, kind) in self.steps()? {
            match self.inspect(step, &path, kind) {
                Ok(info) => scan.complete.push(info),
                Err(why @ CheckpointError::Remote(_)) => return Err(why),
                Err(why) => scan.damaged.push(Skipped { path, why: Box::new(why) }),
            }
        }
        Ok(scan)
    }

    /// Step, path and kind of every entry with a checkpoint's name, oldest first. A symbolic link is read like the
    /// directory that it leads to; a file is a damaged checkpoint.
    fn steps(&self) -> Result<Vec<(u64, PathBuf, EntryKind)>> {
        let entries = match self.fs.list_dir(&self.dir) {
            // A link that leads nowhere holds no checkpoints either, but must not look like a new beginning.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return match self.fs.kind(&self.dir).at("look for", &self.dir)? {
                    None => Ok(Vec::new()),
                    Some(_) => Err(e).at("list", &self.dir),
                };
            }
            other => other.at("list", &self.dir)?,
        };
        let mut steps: Vec<(u64, PathBuf, EntryKind)> = entries
            .into_iter()
            .filter_map(|(name, kind)| Some((parse_step_name(&name)?, self.dir.join(name), kind)))
            .collect();
        steps.sort_by_key(|s| s.0);
        Ok(steps)
    }

    /// Errors if the store's directory is a symbolic link: checkpoints that it points to are read, but none is written or removed.
    pub fn check_own(&self) -> Result<()> {
        match self.fs.kind(&self.dir).at("look for", &self.dir)? {
            None | Some(EntryKind::Directory) => Ok(()),
            Some(_) => Err(CheckpointError::NotOwn { dir: self.dir.clone() }),
        }
    }

    fn inspect(&self, step: u64, path: &Path, kind: EntryKind) -> Result<CheckpointInfo> {
        let manifest = read_manifest(self.fs.as_ref(), path)?;
        self.check(&manifest, step, path)?;
        for f in &manifest.files {
            let file = path.join(&f.name);
            let found = open_part(self.fs.as_ref(), &file)?.size().at("read the size of", &file)?;
            if found != f.bytes {
                return Err(CheckpointError::Size { file, expected: f.bytes, found });
            }
        }
        Ok(CheckpointInfo {
            step,
            tokens: manifest.tokens,
            path: path.into(),
            bytes: manifest.bytes(),
            tensors: manifest.tensors.len(),
            pinned: self.is_pinned(path)?,
            linked: kind == EntryKind::Link,
        })
    }

    fn is_pinned(&self, path: &Path) -> Result<bool> {
        let pin = path.join(PIN_NAME);
        Ok(self.fs.kind(&pin).at("look for", &pin)?.is_some())
    }

    /// Errors if an intact manifest contradicts its directory's name or itself. A directory must hold the step that its name
    /// states: a copy under another name would be replayed as newer.
    pub(crate) fn check(&self, manifest: &Manifest, step: u64, path: &Path) -> Result<()> {
        let wrong = |problem| Err(CheckpointError::Manifest { file: path.join(MANIFEST_NAME), problem });
        if manifest.step != step {
            return wrong(format!(
                "holds step {}, but its directory is named {}; rename it back",
                manifest.step,
                step_name(step)
            ));
        }
        (self.accept)(manifest).or_else(wrong)
    }

    /// Steps of everything that bears a checkpoint's name, damaged ones included, oldest first.
    pub fn named_steps(&self) -> Result<Vec<u64>> {
        Ok(self.steps()?.into_iter().map(|s| s.0).collect())
    }

    /// The checkpoint of a step, every byte verified.
    pub fn load(&self, step: u64) -> Result<Loaded> {
        self.load_with(step, &mut |_, _| {})
    }

    /// [`Store::load`]; `progress` is called with (done, total) bytes.
    pub fn load_with(&self, step: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<Loaded> {
        let path = self.path(step);
        if self.fs.kind(&path).at("look for", &path)?.is_none() {
            let have = self.list()?.into_iter().map(|c| c.step).collect();
            return Err(CheckpointError::NoSuchStep { dir: self.dir.clone(), step, have });
        }
        // Before any tensor is looked at.
        self.check(&read_manifest(self.fs.as_ref(), &path)?, step, &path)?;
        let loaded = Loaded::open_on(self.fs.as_ref(), &path, progress)?;
        self.check(loaded.manifest(), step, &path)?;
        Ok(loaded)
    }

    /// The newest checkpoint whose every byte is as it was written; older ones are tried when newer ones are damaged.
    ///
    /// `None` if there is no checkpoint at all; [`CheckpointError::NothingValid`] if there are some but none is usable:
    /// a run must not start over in silence where work has been lost.
    pub fn latest_valid(&self) -> Result<Option<Latest>> {
        self.latest_valid_until(u64::MAX)
    }

    /// [`Store::latest_valid`] among the checkpoints of steps up to `last`.
    pub fn latest_valid_until(&self, last: u64) -> Result<Option<Latest>> {
        let mut skipped = Vec::new();
        for (step, path, _) in self.steps()?.into_iter().rev().filter(|s| s.0 <= last) {
            match self.load(step) {
                Ok(loaded) => return Ok(Some(Latest { loaded, skipped })),
                // An older one would be taken for the newest because of a cable, or of an older program.
                Err(why @ (CheckpointError::Remote(_) | CheckpointError::Version { .. })) => return Err(why),
                Err(why) => skipped.push(Skipped { path, why: Box::new(why) }),
            }
        }
        if skipped.is_empty() {
            return Ok(None);
        }
        Err(CheckpointError::NothingValid { dir: self.dir.clone(), skipped })
    }

    /// Removes complete checkpoints that the rule does not keep. Damaged ones, pinned ones, symbolic links, those with files
    /// that this program did not write, and everything else in the directory stay. A checkpoint loses its name, durably,
    /// before it loses its first file: no reader and no power cut meets half of one.
    pub fn gc(&self, retention: &Retention) -> Result<GcReport> {
        self.check_own()?;
        if self.fs.kind(&self.dir).at("look for", &self.dir)?.is_none() {
            return Ok(GcReport::default());
        }
        let lock = self.lock()?;
        self.sweep(lock.is_some());
        let complete = self.list()?;
        let steps: Vec<u64> = complete.iter().map(|c| c.step).collect();
        let removable = retention.removable(&steps);
        let mut spared = Vec::new();
        let (mut going, mut kept) = (Vec::new(), Vec::new());
        for c in complete {
            if c.pinned || c.linked || !removable.contains(&c.step) {
                kept.push(c);
                continue;
            }
            let foreign = foreign_in(self.fs.as_ref(), &self.dir, &step_name(c.step), &is_checkpoint_file);
            match foreign.at("list", &c.path)?.into_iter().next() {
                Some(foreign) => {
                    spared.push((c.step, c.path.join(foreign)));
                    kept.push(c);
                }
                None => going.push(c),
            }
        }
        let mut hidden = Vec::new();
        let renamed = going.iter().try_for_each(|c| {
            let name = self.hidden(c.step, "removing");
            self.fs.rename(&c.path, &self.dir.join(&name)).at("rename", &c.path)?;
            hidden.push((c.path.clone(), name));
            Ok(())
        });
        let synced = renamed.and_then(|()| self.fs.sync_dir(&self.dir).at("sync", &self.dir));
        if let Err(e) = synced {
            for (from, name) in hidden {
                // Best effort: the error that counts is reported, and a hidden checkpoint is still whole.
                let _ = self.fs.rename(&self.dir.join(name), &from);
            }
            return Err(e);
        }
        for (path, name) in &hidden {
            remove_files(self.fs.as_ref(), &self.dir, name, &is_checkpoint_file).at("remove", path)?;
        }
        Ok(GcReport {
            removed: going.iter().map(|c| c.step).collect(),
            kept: kept.iter().map(|c| c.step).collect(),
            freed: going.iter().map(|c| c.bytes).sum(),
            spared,
        })
    }

    /// Takes every checkpoint of a step after `step` out of the way, because the run has gone back there: it would be taken
    /// for newer than what the run saves next. What only this program wrote is removed; pinned and damaged ones, links,
    /// and those with files of others get a visible name that no reader takes for a checkpoint, and are returned.
    pub fn abandon_after(&self, step: u64) -> Result<Vec<PathBuf>> {
        let later: Vec<_> = self.steps()?.into_iter().filter(|s| s.0 > step).collect();
        if later.is_empty() {
            return Ok(Vec::new());
        }
        self.check_own()?;
        let _lock = self.lock()?;
        let fs = self.fs.as_ref();
        let (mut hidden, mut left) = (Vec::new(), Vec::new());
        for (step, path, kind) in later {
            let name = step_name(step);
            let ours = kind == EntryKind::Directory
                && self.inspect(step, &path, kind).is_ok_and(|c| !c.pinned)
                && foreign_in(fs, &self.dir, &name, &is_checkpoint_file).at("list", &path)?.is_empty();
            if ours {
                let to = self.hidden(step, "removing");
                fs.rename(&path, &self.dir.join(&to)).at("rename", &path)?;
                hidden.push(to);
            } else {
                let to = free_name(fs, &self.dir, &name, "abandoned").unwrap_or_else(|| path.clone());
                fs.rename(&path, &to).at("rename", &path)?;
                left.push(to);
            }
        }
        fs.sync_dir(&self.dir).at("sync", &self.dir)?;
        for name in &hidden {
            remove_files(fs, &self.dir, name, &is_checkpoint_file).at("remove", &self.dir.join(name))?;
        }
        Ok(left)
    }

    /// A name that no reader takes for a checkpoint, of this process.
    pub(crate) fn hidden(&self, step: u64, purpose: &str) -> String {
        self.hidden_of(step, purpose, std::process::id())
    }

    /// A hidden name of another process.
    pub(crate) fn hidden_of(&self, step: u64, purpose: &str, process: u32) -> String {
        format!(".{}.{purpose}-{process}", step_name(step))
    }

    /// The newest checkpoint of an earlier step whose manifest is intact. One that cannot be read is passed over: it is no reason not
    /// to save.
    pub(crate) fn newest_before(&self, step: u64) -> Option<Previous> {
        let earlier = self.steps().ok()?.into_iter().rev().filter(|s| s.0 < step);
        let stated = |(step, path, _): (u64, PathBuf, EntryKind)| {
            let (manifest, checksum) = read_manifest_and_checksum(self.fs.as_ref(), &path).ok()?;
            (manifest.step == step).then_some(Previous { step, checksum })
        };
        earlier.into_iter().find_map(stated)
    }

    /// Errors if the checkpoint that a manifest names as the one before it is in the store with another manifest: it was changed
    /// since, or one of the two comes from another run.
    pub fn check_chain(&self, manifest: &Manifest) -> Result<()> {
        let Some(previous) = &manifest.previous else { return Ok(()) };
        let path = self.path(previous.step);
        if self.fs.kind(&path).at("look for", &path)?.is_none() {
            return Ok(());
        }
        let (_, found) = read_manifest_and_checksum(self.fs.as_ref(), &path)?;
        if found == previous.checksum {
            return Ok(());
        }
        let problem = format!(
            "was saved after {} with manifest checksum {}, and the checksum there is now {found}: that \
             checkpoint was saved again or replaced, or this one belongs to another run",
            step_name(previous.step),
            previous.checksum
        );
        Err(CheckpointError::Manifest { file: self.path(manifest.step).join(MANIFEST_NAME), problem })
    }

    /// The checkpoint of a step; each chunk of a file is verified when something of it is read first. For a rank that needs a
    /// part of the bytes.
    pub fn load_lazily(&self, step: u64) -> Result<Loaded> {
        let path = self.path(step);
        let manifest = read_manifest(self.fs.as_ref(), &path)?;
        self.check(&manifest, step, &path)?;
        Ok(Loaded::lazy(Arc::clone(&self.fs), &path, manifest))
    }

    /// The newest checkpoint of a step up to `last` whose manifest is intact and whose files are there with their lengths, to be
    /// loaded with [`Store::load_lazily`]; and the newer ones that are not. As with [`Store::latest_valid`], `None` means that
    /// there is no checkpoint, and checkpoints none of which can be used are an error.
    pub fn latest_complete_until(&self, last: u64) -> Result<Option<(u64, Vec<Skipped>)>> {
        let mut skipped = Vec::new();
        for (step, path, kind) in self.steps()?.into_iter().rev().filter(|s| s.0 <= last) {
            match self.inspect(step, &path, kind) {
                Ok(_) => return Ok(Some((step, skipped))),
                Err(why @ (CheckpointError::Remote(_) | CheckpointError::Version { .. })) => return Err(why),
                Err(why) => skipped.push(Skipped { path, why: Box::new(why) }),
            }
        }
        match skipped.is_empty() {
            true => Ok(None),
            false => Err(CheckpointError::NothingValid { dir: self.dir.clone(), skipped }),
        }
    }

    /// Takes the store's lock; `None` where the file system has no locks.
    pub(crate) fn lock(&self) -> Result<Option<Box<dyn LockGuard>>> {
        let path = self.dir.join(LOCK_NAME);
        match self.fs.lock(&path) {
            Ok(guard) => Ok(Some(guard)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(CheckpointError::Busy { dir: self.dir.clone() })
            }
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(e) => Err(e).at("lock", &path),
        }
    }

    /// Removes what interrupted saves and removals left behind, where no other process is at work on the store, and returns
    /// what it removed. Best effort.
    pub fn clean(&self) -> Vec<PathBuf> {
        let own = matches!(self.fs.kind(&self.dir), Ok(Some(EntryKind::Directory)));
        match own.then(|| self.lock()) {
            Some(Ok(lock)) => self.sweep(lock.is_some()),
            _ => Vec::new(),
        }
    }

    /// Removes what interrupted saves and removals left behind, and returns what it removed. With the lock held nobody
    /// else is at work, so everything hidden is left over, whatever process number it bears (numbers are reused);
    /// without locks only what belongs to no living process. Best effort: what cannot be removed now is met again.
    pub(crate) fn sweep(&self, locked: bool) -> Vec<PathBuf> {
        let Ok(entries) = self.fs.list_dir(&self.dir) else { return Vec::new() };
        let left: Vec<_> = entries
            .into_iter()
            .filter(|e| e.1 == EntryKind::Directory)
            .filter_map(|(name, _)| {
                let (step, rest) = name.strip_prefix('.')?.split_once('.')?;
                let (step, (purpose, pid)) = (parse_step_name(step)?, rest.split_once('-')?);
                let pid: u32 = pid.parse().ok()?;
                let known = matches!(purpose, "partial" | "removing" | "replaced");
                (known && (locked || !is_alive(pid))).then(|| (step, purpose == "replaced", name.clone()))
            })
            .collect();
        // A rename that is not durable yet could bring a name back after a power cut, without its files.
        if left.is_empty() || self.fs.sync_dir(&self.dir).is_err() {
            return Vec::new();
        }
        let mut removed = Vec::new();
        for (step, replaced, name) in left {
            let (path, target) = (self.dir.join(&name), self.path(step));
            if replaced && matches!(self.fs.kind(&target), Ok(None)) {
                // Set aside for a newer one of the same step that never came.
                let _ = self.fs.rename(&path, &target);
            } else if remove_files(self.fs.as_ref(), &self.dir, &name, &is_checkpoint_file).is_ok() {
                removed.push(path);
            }
        }
        removed
    }
}

/// Whether another process of this number lives on this machine. Our own number can only be a leftover.
pub(crate) fn is_alive(pid: u32) -> bool {
    if pid == std::process::id() {
        return false;
    }
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|p| rustix::process::test_kill_process(p) != Err(rustix::io::Errno::SRCH))
}

/// Reads and checks the manifest of the checkpoint in `dir`.
pub(crate) fn read_manifest(fs: &dyn FileSystem, dir: &Path) -> Result<Manifest> {
    Ok(read_manifest_and_checksum(fs, dir)?.0)
}

/// The same, with the checksum that it states of itself.
fn read_manifest_and_checksum(fs: &dyn FileSystem, dir: &Path) -> Result<(Manifest, String)> {
    let path = dir.join(MANIFEST_NAME);
    let file = open_part(fs, &path)?;
    let bytes = read_small(file.as_ref(), MAX_MANIFEST_BYTES).at("read", &path)?;
    Ok((Manifest::parse(&bytes, &path)?, stated_checksum(&bytes)))
}

/// Opens a file of a checkpoint; one that is not there is an incomplete checkpoint.
pub(crate) fn open_part(fs: &dyn FileSystem, path: &Path) -> Result<Box<dyn crate::fs::ReadFile>> {
    let file = open_stored(fs, path)?;
    Ok(match is_compressed(path) {
        true => Box::new(CompressedReader::open(file).at("open", path)?),
        false => file,
    })
}

/// Opens a file of a checkpoint as it is stored.
pub(crate) fn open_stored(fs: &dyn FileSystem, path: &Path) -> Result<Box<dyn crate::fs::ReadFile>> {
    match fs.open_file(path, Links::Refuse) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(CheckpointError::MissingFile { file: path.into() })
        }
        other => other.at("open", path),
    }
}

/// Makes a file of a checkpoint, compressed if its name says so.
pub(crate) fn create_part(fs: &dyn FileSystem, path: &Path) -> Result<Box<dyn crate::fs::WriteFile>> {
    let file = fs.create_file(path).at("create", path)?;
    Ok(if is_compressed(path) { Box::new(CompressedWriter::new(file)) } else { file })
}

/// Whether a file of this name is stored compressed.
pub(crate) fn is_compressed(path: &Path) -> bool {
    path.to_str().is_some_and(|name| name.ends_with(SUFFIX))
}
