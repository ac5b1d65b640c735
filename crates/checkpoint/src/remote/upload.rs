//! Uploads, who may make them, and what is removed.

use super::{RemoteStore, data_folder, own_object};
use crate::error::{At, CheckpointError, Result};
use crate::fs::{ReadFile, read_small};
use crate::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, stated_checksum};
use crate::retention::Retention;
use crate::store::{PIN_NAME, Store, is_compressed, open_part, open_stored, parse_step_name, step_name};
use crate::verified::VerifiedFile;
use bessemer_durable::ConfinedDir;
use bessemer_object_store::{Object, Put, RemoteError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const OWNER_NAME: &str = "owner.json";

/// Longest owner's file.
const MAX_OWNER_BYTES: u64 = 4096;

/// Who uploads below an address. A run keeps its own beside its checkpoints; of two runs that name the same address the second one is
/// refused, and so is a job that still runs elsewhere after another one has taken the run over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Random digits, chosen by the first upload of a run directory.
    pub id: String,
}

/// Result of a synchronisation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Synchronised {
    /// Steps uploaded by this call.
    pub uploaded: Vec<u64>,
    /// Bytes of the files that were uploaded, without those that were there from an interrupted upload.
    pub bytes: u64,
    /// Steps removed because the run went back to an earlier one.
    pub retracted: Vec<u64>,
    /// Result of the retention rule.
    pub removed: RemoteGc,
}

/// Result of a retention rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RemoteGc {
    /// Steps removed, oldest first.
    pub removed: Vec<u64>,
    /// Steps kept, oldest first.
    pub kept: Vec<u64>,
    /// Objects removed, those of interrupted uploads included.
    pub objects: usize,
}

/// Objects of a store by step.
struct Listing {
    /// Address of the manifest of each step that has one.
    manifests: BTreeMap<u64, Object>,
    /// Data: step, folder, object.
    data: Vec<(u64, String, Object)>,
    pinned: BTreeSet<u64>,
}

/// A local checkpoint, its files open.
struct LocalCheckpoint {
    manifest: Manifest,
    bytes: Vec<u8>,
    files: Vec<LocalFile>,
}

/// A file of a checkpoint on this machine.
struct LocalFile {
    file: VerifiedFile,
    /// The same as it is stored, if that is compressed.
    stored: Option<Box<dyn ReadFile>>,
}

impl RemoteStore {
    /// Makes the store hold the newest checkpoint of a run and those that its rule keeps for ever, and removes what the rule does
    /// not keep and what is later than the newest one, because the run went back from there. Interrupted at any moment, the same call
    /// goes on. `retention` is the rule of the local checkpoints; `progress` is called with (done, total) bytes.
    ///
    /// # Errors
    /// Another owner; a local checkpoint that is damaged; the store refuses, is full, or cannot be reached.
    pub fn synchronise(
        &self,
        local: &Store,
        owner: &Owner,
        retention: &Retention,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Synchronised> {
        self.claim(owner)?;
        let mut done = Synchronised::default();
        let here: Vec<u64> = local.list()?.into_iter().map(|c| c.step).collect();
        let Some(&newest) = here.last() else { return Ok(done) };
        let mut listing = self.listing()?;
        let later: Vec<u64> = listing.manifests.range(newest + 1..).map(|m| *m.0).collect();
        for step in later {
            self.retract(&mut listing, step)?;
            done.retracted.push(step);
        }
        let lasting = Retention { keep_last: 1, look_back: None, ..retention.clone() };
        let passing = lasting.removable(&here);
        for step in here.into_iter().rev().filter(|s| !passing.contains(s)) {
            if let Some(bytes) = self.upload(local, step, &mut listing, owner, progress)? {
                done.uploaded.push(step);
                done.bytes += bytes;
            }
        }
        done.removed = self.gc(retention)?;
        Ok(done)
    }

    /// Uploads one checkpoint beside those that are there, and returns its bytes; `None` if it is there already.
    ///
    /// # Errors
    /// Another checkpoint of the same step there; else as [`RemoteStore::synchronise`].
    pub fn upload_step(
        &self,
        local: &Store,
        step: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<u64>> {
        let owner = match self.owner()? {
            Some(owner) => owner,
            None => Owner::random()?,
        };
        self.claim(&owner)?;
        let mut listing = self.listing()?;
        let there = listing.manifests.get(&step).map(|m| (m.url.clone(), m.bytes));
        if let Some((url, bytes)) = there {
            let from = LocalCheckpoint::open(local, step)?;
            let same = bytes == from.bytes.len() as u64
                && self.stores.read_small(&url, MAX_MANIFEST_BYTES)?.1 == from.bytes;
            return if same { Ok(None) } else { Err(other_there(&url)) };
        }
        self.upload(local, step, &mut listing, &owner, progress)
    }

    fn upload(
        &self,
        local: &Store,
        step: u64,
        listing: &mut Listing,
        owner: &Owner,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<u64>> {
        let from = LocalCheckpoint::open(local, step)?;
        if let Some(there) = listing.manifests.get(&step).cloned() {
            if there.bytes == from.bytes.len() as u64
                && self.stores.read(&there, 0..there.bytes)? == from.bytes
            {
                return Ok(None);
            }
            // The owner is this run, so it went back and has come to this step again.
            self.retract(listing, step)?;
        }
        let folder = data_folder(&stated_checksum(&from.bytes));
        let there: BTreeMap<&str, u64> =
            listing.data.iter().map(|(_, _, o)| (o.relative.as_str(), o.bytes)).collect();
        let (total, mut done, mut sent) = (from.manifest.bytes(), 0, 0);
        for (record, LocalFile { file, stored }) in from.manifest.files.iter().zip(&from.files) {
            let name = format!("{}/{folder}/{}", step_name(step), record.name);
            let path = local.path(step).join(&record.name);
            let bytes = match stored {
                Some(stored) => stored.size().at("read the size of", &path)?,
                None => record.bytes,
            };
            if there.get(name.as_str()) != Some(&bytes) {
                if stored.is_some() {
                    let mut buffer = Vec::new();
                    (0..file.chunks())
                        .try_for_each(|chunk| file.verify_chunk(chunk, &mut buffer, &mut |_| ()))?;
                }
                // Only bytes whose checksums hold leave the machine; the error of a damaged file is not the store's.
                let mut damage = None;
                let mut read = |offset: u64, buffer: &mut [u8]| {
                    let result = match stored {
                        Some(stored) => stored.read_exact_at(buffer, offset),
                        None => file.read_exact_at(buffer, offset),
                    };
                    result.map_err(|e| {
                        let text = e.to_string();
                        damage = Some(e);
                        std::io::Error::other(text)
                    })
                };
                let put = self.stores.put(&self.object_url(&name), bytes, &mut read, &mut |n| {
                    progress((done + n.min(record.bytes)).min(total), total);
                });
                if let Some(damage) = damage {
                    return Err(damage).at("read", &path);
                }
                put?;
                sent += bytes;
            }
            done += record.bytes;
            progress(done, total);
        }
        // Hours may have passed.
        self.check_owner(owner)?;
        let url = self.object_url(&format!("{}/{MANIFEST_NAME}", step_name(step)));
        if self.stores.put_if_absent(&url, &from.bytes)? == Put::Exists {
            let (_, there) = self.stores.read_small(&url, MAX_MANIFEST_BYTES)?;
            if there != from.bytes {
                return Err(other_there(&url));
            }
        }
        Ok(Some(sent + from.bytes.len() as u64))
    }

    /// Removes the checkpoints that a rule does not keep, pinned ones excepted, and what interrupted uploads have left. Each loses its
    /// manifest before its data.
    ///
    /// # Errors
    /// The store refuses or cannot be reached.
    pub fn gc(&self, retention: &Retention) -> Result<RemoteGc> {
        let mut listing = self.listing()?;
        let steps: Vec<u64> = listing.manifests.keys().copied().collect();
        let removable = retention.removable(&steps);
        let mut done = RemoteGc::default();
        for step in steps {
            match removable.contains(&step) && !listing.pinned.contains(&step) {
                true => {
                    self.retract(&mut listing, step)?;
                    done.objects += 1;
                    done.removed.push(step);
                }
                false => done.kept.push(step),
            }
        }
        let mut folders = BTreeMap::new();
        for (step, object) in &listing.manifests {
            // The last bytes of a manifest state its checksum.
            let tail = self.stores.read(object, object.bytes.saturating_sub(128)..object.bytes)?;
            folders.insert(*step, data_folder(&stated_checksum(&tail)));
        }
        for (step, folder, object) in &listing.data {
            if folders.get(step) != Some(folder) {
                self.stores.delete(&object.url)?;
                done.objects += 1;
            }
        }
        Ok(done)
    }

    /// Takes the commit of a checkpoint back.
    fn retract(&self, listing: &mut Listing, step: u64) -> Result<()> {
        if let Some(object) = listing.manifests.remove(&step) {
            self.stores.delete(&object.url)?;
        }
        Ok(())
    }

    fn listing(&self) -> Result<Listing> {
        let mut listing = Listing { manifests: BTreeMap::new(), data: Vec::new(), pinned: BTreeSet::new() };
        for object in self.stores.list(&self.url)? {
            let relative = object.relative.clone();
            match own_object(&relative) {
                Some((step, None)) => drop(listing.manifests.insert(step, object)),
                Some((step, Some(folder))) => listing.data.push((step, folder.into(), object)),
                None => {
                    let pin = relative.strip_suffix(PIN_NAME).and_then(|name| name.strip_suffix('/'));
                    listing.pinned.extend(pin.and_then(parse_step_name));
                }
            }
        }
        Ok(listing)
    }

    /// The process that uploads here, if any.
    ///
    /// # Errors
    /// The store refuses or cannot be reached; a file that is not an owner's.
    pub fn owner(&self) -> Result<Option<Owner>> {
        let url = self.object_url(OWNER_NAME);
        match self.stores.read_small(&url, MAX_OWNER_BYTES) {
            Ok((_, bytes)) => serde_json::from_slice(&bytes).map(Some).map_err(|e| {
                let problem = format!("not written by this program: {e}; name another prefix");
                CheckpointError::Manifest { file: url.into(), problem }
            }),
            Err(RemoteError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes `owner` the one who uploads here, whoever was it before: a run that goes on from these checkpoints elsewhere.
    ///
    /// # Errors
    /// The store refuses or cannot be reached.
    pub fn take_over(&self, owner: &Owner) -> Result<()> {
        let bytes = owner_bytes(owner)?;
        let mut read = |from: u64, buffer: &mut [u8]| {
            buffer.copy_from_slice(&bytes[from as usize..][..buffer.len()]);
            Ok(())
        };
        let url = self.object_url(OWNER_NAME);
        Ok(self.stores.put(&url, bytes.len() as u64, &mut read, &mut |_| ())?)
    }

    fn claim(&self, owner: &Owner) -> Result<()> {
        if self.owner()?.is_none() {
            // Exists: somebody else was faster, or it was us.
            self.stores.put_if_absent(&self.object_url(OWNER_NAME), &owner_bytes(owner)?)?;
        }
        self.check_owner(owner)
    }

    fn check_owner(&self, owner: &Owner) -> Result<()> {
        match self.owner()? {
            Some(found) if found == *owner => Ok(()),
            found => Err(CheckpointError::OtherOwner {
                url: self.url.clone(),
                wanted: owner.id.clone(),
                found: found.map_or_else(|| "none".into(), |o| o.id),
            }),
        }
    }
}

fn other_there(url: &str) -> CheckpointError {
    let problem =
        "another upload has committed another checkpoint of this step; name another prefix, or remove it";
    CheckpointError::Manifest { file: url.into(), problem: problem.into() }
}

impl Owner {
    /// An owner that nobody else is.
    ///
    /// # Errors
    /// No random numbers from the system.
    pub fn random() -> Result<Owner> {
        let source = Path::new("/dev/urandom");
        let mut bytes = [0; 16];
        bessemer_durable::random_bytes(&mut bytes).at("read", source)?;
        Ok(Owner { id: bytes.iter().map(|b| format!("{b:02x}")).collect() })
    }

    /// The owner that the file `name` of a run directory names; a file that is not there is made, with a new one.
    ///
    /// # Errors
    /// The file system's answer; a file that is not an owner's.
    pub fn of_file(dir: &ConfinedDir, name: &str) -> Result<Owner> {
        let path = &dir.path().join(name);
        let bytes = match dir.read(name) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let owner = Owner::random()?;
                dir.write(name, &owner_bytes(&owner)?).at("write", path)?;
                return Ok(owner);
            }
            Err(e) => return Err(e).at("read", path),
        };
        serde_json::from_slice(&bytes)
            .map_err(|e| CheckpointError::Manifest { file: path.into(), problem: e.to_string() })
    }
}

fn owner_bytes(owner: &Owner) -> Result<Vec<u8>> {
    serde_json::to_vec(owner)
        .map_err(|e| CheckpointError::Manifest { file: OWNER_NAME.into(), problem: e.to_string() })
}

impl LocalCheckpoint {
    /// Opens all files: a removal meanwhile does not disturb the upload.
    fn open(local: &Store, step: u64) -> Result<LocalCheckpoint> {
        let dir = local.path(step);
        let path = dir.join(MANIFEST_NAME);
        let bytes = read_small(open_part(local.fs.as_ref(), &path)?.as_ref(), MAX_MANIFEST_BYTES)
            .at("read", &path)?;
        let manifest = Manifest::parse(&bytes, &path)?;
        let cache = Arc::default();
        let files = manifest.files.iter().enumerate().map(|(number, record)| {
            let path = dir.join(&record.name);
            let file = open_part(local.fs.as_ref(), &path)?;
            let file = VerifiedFile::new(file, &path, record, number, Arc::clone(&cache))?;
            let stored = is_compressed(&path).then(|| open_stored(local.fs.as_ref(), &path)).transpose()?;
            Ok(LocalFile { file, stored })
        });
        let files = files.collect::<Result<_>>()?;
        Ok(LocalCheckpoint { manifest, bytes, files })
    }
}
