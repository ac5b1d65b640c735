//! Copies of checkpoints from another store, byte for byte: the same files, the same manifest, the same place in the chain.

use crate::error::{At, CheckpointError, Result};
use crate::fs::{ReadFile, read_small};
use crate::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest};
use crate::save::SaveReport;
use crate::store::{Store, create_part, open_part};
use crate::verified::VerifiedFile;
use std::sync::Arc;

/// Bytes copied at a time.
const BLOCK: usize = 4 << 20;

impl Store {
    /// Copies a checkpoint from another store, which may be one of objects ([`crate::RemoteStore::reader`]): every chunk is held against
    /// its checksum before it is written, and the copy becomes visible whole, as a save does. `None` if the same one is here already.
    /// `progress` is called with (done, total) bytes. Memory: a chunk of at most 64 MiB, and 4 MiB.
    ///
    /// # Errors
    /// Another checkpoint of the same step here; one that is damaged there; no space; the file system's or the store's answer.
    pub fn copy_from(
        &self,
        source: &Store,
        step: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<SaveReport>> {
        let manifest_of = |store: &Store| {
            let path = store.path(step).join(MANIFEST_NAME);
            let file = open_part(store.fs.as_ref(), &path)?;
            let bytes = read_small(file.as_ref(), MAX_MANIFEST_BYTES).at("read", &path)?;
            Ok::<_, CheckpointError>((Manifest::parse(&bytes, &path)?, bytes))
        };
        let (manifest, bytes) = manifest_of(source)?;
        source.check(&manifest, step, &source.path(step))?;
        if self.named_steps()?.contains(&step) {
            if manifest_of(self).is_ok_and(|(_, here)| here == bytes) {
                return Ok(None);
            }
            let place = self.path(step).display().to_string();
            let problem = format!("{place} already exists and differs; name another directory, or remove it");
            return Err(CheckpointError::Request { step, problem });
        }
        let total = manifest.bytes();
        let saving = self.begin(step, total.saturating_add(bytes.len() as u64))?;
        let (fs, partial) = (self.fs.as_ref(), self.partial(saving.ticket()));
        let (cache, mut done, mut buffer) = (Arc::default(), 0, Vec::new());
        let mut copy = |number: usize| {
            let record = &manifest.files[number];
            let path = source.path(step).join(&record.name);
            let from = open_part(source.fs.as_ref(), &path)?;
            let from = VerifiedFile::new(from, &path, record, number, Arc::clone(&cache))?;
            let target = partial.join(&record.name);
            let mut to = create_part(fs, &target)?;
            let mut at = 0;
            while at < record.bytes {
                buffer.resize(BLOCK.min((record.bytes - at) as usize), 0);
                from.read_exact_at(&mut buffer, at).at("read", &path)?;
                to.write_all(&buffer).at("write", &target)?;
                at += buffer.len() as u64;
                progress(done + at, total);
            }
            done += record.bytes;
            to.sync().at("sync", &target)
        };
        let copied = (0..manifest.files.len()).try_for_each(&mut copy).and_then(|()| {
            let path = partial.join(MANIFEST_NAME);
            let mut file = fs.create_file(&path).at("create", &path)?;
            file.write_all(&bytes).at("write", &path)?;
            file.sync().at("sync", &path)?;
            fs.sync_dir(&partial).at("sync", &partial)?;
            Ok(total + bytes.len() as u64)
        });
        saving.publish(copied).map(Some)
    }
}
