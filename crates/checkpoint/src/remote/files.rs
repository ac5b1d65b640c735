//! Checkpoints in an object store as a file system that is only read: the store of a directory then lists, verifies and loads them.
//!
//! A rank reads the chunks that its layout needs: each read at a position is one request for a range. What is read in small pieces
//! from the beginning to the end, as a verification does, is asked for in larger ones.

use super::{data_folder, relative};
use crate::fs::{EntryKind, FileSystem, Links, LockGuard, ReadFile, WriteFile};
use crate::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, stated_checksum};
use bessemer_object_store::{Object, Stores};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes asked for at once by reads that follow each other.
const AHEAD: u64 = 8 << 20;

/// The objects below an address.
pub(super) struct ObjectFiles {
    stores: Arc<Stores>,
    url: String,
    /// What the last listing has found, by the path below the address.
    listing: Mutex<Option<BTreeMap<String, Object>>>,
    /// Folder of the data of a checkpoint, by the checkpoint's name: its manifest names the generation.
    folders: Mutex<HashMap<String, String>>,
}

impl ObjectFiles {
    pub(super) fn new(stores: Arc<Stores>, url: &str) -> ObjectFiles {
        ObjectFiles {
            stores,
            url: url.trim_end_matches('/').into(),
            listing: Mutex::default(),
            folders: Mutex::default(),
        }
    }

    fn relative(&self, path: &Path) -> io::Result<String> {
        relative(&self.url, path)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "outside of the store"))
    }

    /// Looks at the listing, which is made anew if `fresh`.
    fn listed<T>(&self, fresh: bool, look: impl FnOnce(&BTreeMap<String, Object>) -> T) -> io::Result<T> {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh || listing.is_none() {
            let found = self.stores.list(&self.url)?;
            *listing = Some(found.into_iter().map(|o| (o.relative.clone(), o)).collect());
        }
        Ok(look(listing.get_or_insert_default()))
    }

    fn object(&self, name: &str) -> io::Result<Object> {
        let known = self.listed(false, |listing| listing.get(name).cloned())?;
        known.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The manifest of a checkpoint, read whole.
    fn manifest(&self, checkpoint: &str) -> io::Result<Vec<u8>> {
        let object = self.object(&format!("{checkpoint}/{MANIFEST_NAME}"))?;
        if object.bytes > MAX_MANIFEST_BYTES {
            let problem = format!("{} bytes, at most {MAX_MANIFEST_BYTES} are read", object.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let bytes = self.stores.read(&object, 0..object.bytes)?;
        let folder = data_folder(&stated_checksum(&bytes));
        self.folders.lock().unwrap_or_else(PoisonError::into_inner).insert(checkpoint.into(), folder);
        Ok(bytes)
    }
}

fn read_only<T>() -> io::Result<T> {
    let problem =
        "checkpoints in an object store are only read here; they are changed by `bessemer checkpoint`";
    Err(io::Error::new(io::ErrorKind::Unsupported, problem))
}

impl FileSystem for ObjectFiles {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let name = self.relative(path)?;
        self.listed(false, |listing| {
            let below = if name.is_empty() { String::new() } else { format!("{name}/") };
            if listing.contains_key(&name) {
                return Some(EntryKind::File);
            }
            let first = listing.range(below.clone()..).next();
            first.filter(|(found, _)| found.starts_with(&below)).map(|_| EntryKind::Directory)
        })
    }

    fn open_file(&self, path: &Path, _: Links) -> io::Result<Box<dyn ReadFile>> {
        let name = self.relative(path)?;
        let Some((checkpoint, file)) = name.split_once('/') else {
            return Ok(Box::new(ObjectFile::new(&self.stores, self.object(&name)?)));
        };
        if file == MANIFEST_NAME {
            return Ok(Box::new(Bytes(self.manifest(checkpoint)?)));
        }
        let known = || self.folders.lock().unwrap_or_else(PoisonError::into_inner).get(checkpoint).cloned();
        let folder = match known() {
            Some(folder) => folder,
            None => {
                self.manifest(checkpoint)?;
                known().unwrap_or_default()
            }
        };
        Ok(Box::new(ObjectFile::new(&self.stores, self.object(&format!("{checkpoint}/{folder}/{file}"))?)))
    }

    /// Only checkpoints that have a manifest: without one an upload is in progress, or was left.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<(String, EntryKind)>> {
        let name = self.relative(path)?;
        let below = if name.is_empty() { String::new() } else { format!("{name}/") };
        self.listed(true, |listing| {
            let mut found = BTreeMap::new();
            for object in listing.keys() {
                let Some(rest) = object.strip_prefix(&below) else { continue };
                match rest.split_once('/') {
                    None => found.insert(rest.to_string(), EntryKind::File),
                    Some((entry, MANIFEST_NAME)) => found.insert(entry.to_string(), EntryKind::Directory),
                    Some(_) => None,
                };
            }
            found.into_iter().collect()
        })
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn create_file(&self, _: &Path) -> io::Result<Box<dyn WriteFile>> {
        read_only()
    }

    fn list_beneath(&self, _: &Path, _: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        read_only()
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.into())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn exchange(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_file(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_dir(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn LockGuard>> {
        read_only()
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        read_only()
    }
}

/// Bytes that were read already.
struct Bytes(Vec<u8>);

impl ReadFile for Bytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.0.get(from..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A block of an object, and where the last read ended.
#[derive(Default)]
struct Ahead {
    start: u64,
    bytes: Vec<u8>,
    end_of_last: Option<u64>,
}

/// An object that is read at positions.
struct ObjectFile {
    stores: Arc<Stores>,
    object: Object,
    ahead: Mutex<Ahead>,
}

impl ObjectFile {
    fn new(stores: &Arc<Stores>, object: Object) -> ObjectFile {
        ObjectFile { stores: Arc::clone(stores), object, ahead: Mutex::default() }
    }
}

impl ReadFile for ObjectFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.object.bytes)
    }

    /// Each read may be a request.
    fn block(&self) -> usize {
        AHEAD as usize
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.object.bytes);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if buffer.len() as u64 >= AHEAD {
            // Several at a time: without the lock.
            buffer.copy_from_slice(&self.stores.read(&self.object, offset..end)?);
            return Ok(());
        }
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let follows = ahead.end_of_last == Some(offset);
        ahead.end_of_last = Some(end);
        let held = ahead.start..ahead.start + ahead.bytes.len() as u64;
        if !(held.start <= offset && end <= held.end) {
            let until = if follows { end.max((offset + AHEAD).min(self.object.bytes)) } else { end };
            // The old block goes first: two would be held otherwise.
            ahead.bytes = Vec::new();
            ahead.bytes = self.stores.read(&self.object, offset..until)?;
            ahead.start = offset;
        }
        let from = (offset - ahead.start) as usize;
        let bytes = ahead.bytes.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}
