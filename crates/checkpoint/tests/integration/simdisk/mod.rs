//! A disk in memory that keeps no promise that POSIX does not make, and fails on command.
//!
//! Every file and directory has a live state, which running processes see, and a durable one, which survives a power
//! cut: a file's bytes as of its last sync, a directory's entries as of its last sync. [`SimDisk::power_cut`] draws one
//! of the states that a real disk may be in afterwards: any subset of the entry changes since the last sync, and for
//! unsynced bytes the old ones, the new ones, a prefix, zeros, or a mix by sectors.

use bessemer_checkpoint::fs::{EntryKind, FileSystem, Links, LockGuard, ReadFile, WriteFile};
use bessemer_units::splitmix::SplitMix64;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What happens at the operation of a given number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This one operation fails with this errno; writes take half of the bytes first.
    Once(i32),
    /// From this operation on, whatever makes the disk fuller fails; removing still works.
    FullFrom,
    /// From this operation on everything fails: the process is dead.
    CrashAt,
}

type Id = u64;

#[derive(Debug, Clone)]
enum Change {
    Link(String, Id),
    Unlink(String),
    Rename(String, String),
    Exchange(String, String),
}

#[derive(Debug, Clone)]
enum Node {
    File { live: Vec<u8>, durable: Vec<u8> },
    Dir { live: BTreeMap<String, Id>, durable: BTreeMap<String, Id>, pending: Vec<Change> },
}

#[derive(Debug, Clone)]
struct State {
    nodes: HashMap<Id, Node>,
    next: Id,
    ops: u64,
    fault: Option<(u64, Fault)>,
    log: Vec<String>,
    can_exchange: bool,
    locked: bool,
}

/// The disk; clones are the same disk.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk(Arc<Mutex<State>>);

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const ENOSPC: i32 = 28;
const ENOTEMPTY: i32 = 39;

fn apply(entries: &mut BTreeMap<String, Id>, change: &Change) {
    match change {
        Change::Link(name, id) => {
            entries.insert(name.clone(), *id);
        }
        Change::Unlink(name) => {
            entries.remove(name);
        }
        Change::Rename(from, to) => {
            if let Some(id) = entries.remove(from) {
                entries.insert(to.clone(), id);
            }
        }
        // Names that are not on the disk cannot be exchanged on it.
        Change::Exchange(a, b) => {
            if let (Some(x), Some(y)) = (entries.get(a).copied(), entries.get(b).copied()) {
                entries.insert(a.clone(), y);
                entries.insert(b.clone(), x);
            }
        }
    }
}

impl State {
    /// Counts an operation and decides whether it fails; `grows` marks those that need space.
    fn step(&mut self, what: String, grows: bool) -> io::Result<()> {
        let n = self.ops;
        self.ops += 1;
        self.log.push(what);
        match self.fault {
            Some((at, Fault::Once(code))) if n == at => Err(errno(code)),
            Some((at, Fault::FullFrom)) if n >= at && grows => Err(errno(ENOSPC)),
            Some((at, Fault::CrashAt)) if n >= at => Err(errno(EIO)),
            _ => Ok(()),
        }
    }

    fn lookup(&self, path: &Path) -> io::Result<Id> {
        let mut id = 0;
        for c in path.components() {
            let name = match c {
                Component::Normal(n) => n.to_str().unwrap(),
                Component::RootDir | Component::CurDir => continue,
                other => panic!("{other:?}"),
            };
            match &self.nodes[&id] {
                Node::Dir { live, .. } => id = *live.get(name).ok_or_else(|| errno(ENOENT))?,
                Node::File { .. } => return Err(errno(ENOTDIR)),
            }
        }
        Ok(id)
    }

    fn parent(&self, path: &Path) -> io::Result<(Id, String)> {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        Ok((self.lookup(path.parent().unwrap())?, name))
    }

    fn change(&mut self, dir: Id, change: Change) {
        if let Some(Node::Dir { live, pending, .. }) = self.nodes.get_mut(&dir) {
            apply(live, &change);
            pending.push(change);
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<Id> {
        if self.lookup(path).is_ok() {
            return Err(errno(EEXIST));
        }
        let (dir, name) = self.parent(path)?;
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.change(dir, Change::Link(name, id));
        Ok(id)
    }
}

fn new_dir() -> Node {
    Node::Dir { live: BTreeMap::new(), durable: BTreeMap::new(), pending: Vec::new() }
}

impl SimDisk {
    pub(crate) fn new() -> SimDisk {
        let nodes = HashMap::from([(0, new_dir())]);
        SimDisk(Arc::new(Mutex::new(State {
            nodes,
            next: 1,
            ops: 0,
            fault: None,
            log: Vec::new(),
            can_exchange: true,
            locked: false,
        })))
    }

    /// A disk whose file system cannot exchange names.
    pub(crate) fn without_exchange() -> SimDisk {
        let disk = SimDisk::new();
        disk.0.lock().unwrap().can_exchange = false;
        disk
    }

    /// A disk of its own in the same state.
    pub(crate) fn copy(&self) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(self.0.lock().unwrap().clone())))
    }

    /// Arms a fault `after` operations from now.
    pub(crate) fn arm(&self, after: u64, fault: Fault) {
        let mut s = self.0.lock().unwrap();
        s.fault = Some((s.ops + after, fault));
    }

    pub(crate) fn disarm(&self) {
        self.0.lock().unwrap().fault = None;
    }

    pub(crate) fn ops(&self) -> u64 {
        self.0.lock().unwrap().ops
    }

    /// The operations so far, from number `from`.
    pub(crate) fn log(&self, from: u64) -> Vec<String> {
        self.0.lock().unwrap().log[from as usize..].to_vec()
    }

    /// The disk as another process would find it after the first one died: nothing is lost but the lock.
    pub(crate) fn after_kill(&self) -> SimDisk {
        let disk = self.copy();
        let mut s = disk.0.lock().unwrap();
        (s.fault, s.locked) = (None, false);
        drop(s);
        disk
    }

    /// One of the states that the disk may be in after a power cut now.
    pub(crate) fn power_cut(&self, rng: &mut SplitMix64) -> SimDisk {
        let disk = self.after_kill();
        let mut s = disk.0.lock().unwrap();
        // Extremes are more telling than the middle: sometimes all or none of what is pending survives.
        let mood = rng.index(4);
        let mut ids: Vec<Id> = s.nodes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            match s.nodes.get_mut(&id).unwrap() {
                Node::File { live, durable } => {
                    let kept = surviving_bytes(durable, live, rng, mood);
                    (*live, *durable) = (kept.clone(), kept);
                }
                Node::Dir { live, durable, pending } => {
                    for change in pending.drain(..) {
                        let survives = match mood {
                            0 => true,
                            1 => false,
                            _ => rng.index(2) == 0,
                        };
                        if survives {
                            apply(durable, &change);
                        }
                    }
                    *live = durable.clone();
                }
            }
        }
        drop(s);
        disk
    }
}

fn surviving_bytes(durable: &[u8], live: &[u8], rng: &mut SplitMix64, mood: usize) -> Vec<u8> {
    if durable == live {
        return live.to_vec();
    }
    match if mood < 2 { mood } else { rng.index(5) } {
        0 => live.to_vec(),
        1 => durable.to_vec(),
        2 => live[..rng.index(live.len() + 1)].to_vec(),
        3 => vec![0; live.len()],
        _ => {
            let mut mixed = live.to_vec();
            for sector in mixed.chunks_mut(512) {
                if rng.index(2) == 0 {
                    sector.fill(0);
                }
            }
            mixed
        }
    }
}

struct SimWrite(SimDisk, Id, String);

impl WriteFile for SimWrite {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut s = self.0.0.lock().unwrap();
        let result = s.step(format!("write {} {}", self.2, bytes.len()), true);
        // A failed write may have taken a part.
        let taken = if result.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        if let Some(Node::File { live, .. }) = s.nodes.get_mut(&self.1) {
            live.extend_from_slice(taken);
        }
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut s = self.0.0.lock().unwrap();
        s.step(format!("fsync {}", self.2), false)?;
        if let Some(Node::File { live, durable }) = s.nodes.get_mut(&self.1) {
            *durable = live.clone();
        }
        Ok(())
    }
}

struct SimRead(SimDisk, Id);

impl ReadFile for SimRead {
    fn size(&self) -> io::Result<u64> {
        let s = self.0.0.lock().unwrap();
        match &s.nodes[&self.1] {
            Node::File { live, .. } => Ok(live.len() as u64),
            Node::Dir { .. } => Err(errno(EIO)),
        }
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut s = self.0.0.lock().unwrap();
        s.step("read".into(), false)?;
        match &s.nodes[&self.1] {
            Node::File { live, .. } => match live.get(offset as usize..offset as usize + buffer.len()) {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Node::Dir { .. } => return Err(errno(EIO)),
        }
        Ok(())
    }
}

struct SimLock(SimDisk);

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().locked = false;
    }
}

impl FileSystem for SimDisk {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("stat {}", path.display()), false)?;
        Ok(s.lookup(path).ok().map(|id| match s.nodes[&id] {
            Node::File { .. } => EntryKind::File,
            Node::Dir { .. } => EntryKind::Directory,
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("mkdir {}", path.display()), true)?;
        s.add(path, new_dir()).map(|_| ())
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("create {}", path.display()), true)?;
        let id = s.add(path, Node::File { live: Vec::new(), durable: Vec::new() })?;
        Ok(Box::new(SimWrite(self.clone(), id, path.display().to_string())))
    }

    fn open_file(&self, path: &Path, _: Links) -> io::Result<Box<dyn ReadFile>> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("open {}", path.display()), false)?;
        let id = s.lookup(path)?;
        Ok(Box::new(SimRead(self.clone(), id)))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<(String, EntryKind)>> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("list {}", path.display()), false)?;
        let id = s.lookup(path)?;
        let Node::Dir { live, .. } = &s.nodes[&id] else { return Err(errno(ENOTDIR)) };
        let kind = |id: &Id| match s.nodes[id] {
            Node::File { .. } => EntryKind::File,
            Node::Dir { .. } => EntryKind::Directory,
        };
        Ok(live.iter().map(|(n, id)| (n.clone(), kind(id))).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("rename {} {}", from.display(), to.display()), true)?;
        let ((dir, a), (same, b)) = (s.parent(from)?, s.parent(to)?);
        assert_eq!(dir, same, "only renames within a directory are atomic here");
        s.lookup(from)?;
        if let Ok(id) = s.lookup(to)
            && matches!(&s.nodes[&id], Node::Dir { live, .. } if !live.is_empty())
        {
            return Err(errno(ENOTEMPTY));
        }
        s.change(dir, Change::Rename(a, b));
        Ok(())
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("exchange {} {}", a.display(), b.display()), true)?;
        if !s.can_exchange {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let ((dir, x), (same, y)) = (s.parent(a)?, s.parent(b)?);
        assert_eq!(dir, same);
        s.lookup(a)?;
        s.lookup(b)?;
        s.change(dir, Change::Exchange(x, y));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("fsync-dir {}", path.display()), false)?;
        let id = s.lookup(path)?;
        if let Some(Node::Dir { live, durable, pending }) = s.nodes.get_mut(&id) {
            *durable = live.clone();
            pending.clear();
        }
        Ok(())
    }

    fn list_beneath(&self, root: &Path, below: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        // There are no links on this disk.
        Ok(self.list_dir(&root.join(below))?.into_iter().map(|(name, kind)| (name.into(), kind)).collect())
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn remove_file(&self, root: &Path, below: &Path) -> io::Result<()> {
        let path = &root.join(below);
        let mut s = self.0.lock().unwrap();
        s.step(format!("unlink {}", path.display()), false)?;
        s.lookup(path)?;
        let (dir, name) = s.parent(path)?;
        s.change(dir, Change::Unlink(name));
        Ok(())
    }

    fn remove_dir(&self, root: &Path, below: &Path) -> io::Result<()> {
        let path = &root.join(below);
        let mut s = self.0.lock().unwrap();
        s.step(format!("rmdir {}", path.display()), false)?;
        let id = s.lookup(path)?;
        if !matches!(&s.nodes[&id], Node::Dir { live, .. } if live.is_empty()) {
            return Err(errno(ENOTEMPTY));
        }
        let (dir, name) = s.parent(path)?;
        s.change(dir, Change::Unlink(name));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let mut s = self.0.lock().unwrap();
        s.step(format!("lock {}", path.display()), true)?;
        if s.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if s.lookup(path).is_err() {
            s.add(path, Node::File { live: Vec::new(), durable: Vec::new() })?;
        }
        s.locked = true;
        Ok(Box::new(SimLock(self.clone())))
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        let mut s = self.0.lock().unwrap();
        s.step("statfs".into(), false)?;
        Ok(u64::MAX)
    }
}
