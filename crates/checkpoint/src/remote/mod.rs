//! Checkpoints in an object store: uploaded as they are on the disk, committed by one request, thinned out, read where they lie.
//!
//! ```text
//! s3://bucket/prefix/
//!   owner.json                                       who uploads here; created once, replaced by whoever takes over
//!   step-00000123/
//!     5f2c9d0e8b1a4c37/shard-00001-of-00001.safetensors     data, under the first digits of the manifest's checksum
//!     manifest.json                                  written last, by one put-if-absent: the commit
//!     keep                                           optional, by the user: never removed
//! ```
//! The digits name the content, so an upload that was interrupted goes on where it was, uploads of different content never meet, and a
//! data file is never overwritten by another one. A reader takes only what has a manifest. If the answer to the commit is lost, the
//! request is made again; "exists already" is then compared with what was to be written. Removal goes the other way round: first the
//! manifest, then the data.

mod files;
mod upload;

pub use upload::{Owner, RemoteGc, Synchronised};

use crate::error::{CheckpointError, Result};
use crate::manifest::MANIFEST_NAME;
use crate::store::{Accept, Store, is_checkpoint_file, parse_step_name};
use bessemer_object_store::{RemoteOptions, Stores};
use files::ObjectFiles;
use std::path::Path;
use std::sync::Arc;

/// Digits of a manifest's checksum in the name of the folder of the data.
const DIGITS: usize = 16;

/// Checkpoints below an address of an object store.
#[derive(Clone)]
pub struct RemoteStore {
    stores: Arc<Stores>,
    url: String,
    accept: Accept,
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl RemoteStore {
    /// The checkpoints below `url`: `s3://BUCKET/PREFIX`, `gs://…` or `az://…`. Nothing is asked of the store yet. Takes only
    /// checkpoints that `accept` accepts.
    ///
    /// # Errors
    /// A program built without the feature `remote`, or options that cannot be.
    pub fn open(url: &str, options: RemoteOptions, accept: Accept) -> Result<RemoteStore> {
        let stores = Arc::new(Stores::open(url, options)?);
        Ok(RemoteStore { stores, url: url.trim_end_matches('/').into(), accept })
    }

    /// The address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The checkpoints as a store that is only read: listed, verified, and loaded in whole or in the chunks that a rank needs.
    pub fn reader(&self) -> Store {
        let files = ObjectFiles::new(Arc::clone(&self.stores), &self.url);
        Store::open_on(&self.url, Arc::new(files)).accepting(self.accept)
    }

    fn object_url(&self, relative: &str) -> String {
        format!("{}/{relative}", self.url)
    }
}

/// Folder of the data that a manifest with this checksum describes.
fn data_folder(checksum: &str) -> String {
    checksum.chars().take(DIGITS).collect()
}

/// Path below the address of a store.
fn relative(url: &str, path: &Path) -> Option<String> {
    let rest = path.to_str()?.strip_prefix(url)?;
    match rest.strip_prefix('/') {
        Some(rest) => Some(rest.into()),
        None => rest.is_empty().then(String::new),
    }
}

/// An object that this program wrote: of which step, and the folder of its data or `None` for a manifest.
fn own_object(relative: &str) -> Option<(u64, Option<&str>)> {
    let (checkpoint, rest) = relative.split_once('/')?;
    let step = parse_step_name(checkpoint)?;
    if rest == MANIFEST_NAME {
        return Some((step, None));
    }
    let (folder, file) = rest.split_once('/')?;
    let digits = folder.len() == DIGITS && folder.bytes().all(|b| b.is_ascii_hexdigit());
    (digits && is_checkpoint_file(file)).then_some((step, Some(folder)))
}

impl From<bessemer_object_store::RemoteError> for CheckpointError {
    fn from(error: bessemer_object_store::RemoteError) -> CheckpointError {
        CheckpointError::Remote(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_upload_writes_is_its_own() {
        let digits = "0123456789abcdef";
        let data = format!("step-00000007/{digits}/shard-00001-of-00002.safetensors");
        assert_eq!(own_object(&data), Some((7, Some(digits))));
        assert_eq!(own_object("step-00000007/manifest.json"), Some((7, None)));
        for foreign in [
            "owner.json",
            "step-00000007/keep",
            "step-7/manifest.json",
            "step-00000007/0123/shard-00001-of-00002.safetensors",
            "step-00000007/0123456789abcdef/notes.txt",
            "other/step-00000007/manifest.json",
        ] {
            assert_eq!(own_object(foreign), None, "{foreign}");
        }
        let url = "s3://bucket/p";
        assert_eq!(
            relative(url, Path::new("s3://bucket/p/step-00000001/x")).as_deref(),
            Some("step-00000001/x")
        );
        assert_eq!(relative(url, Path::new("s3://bucket/p")).as_deref(), Some(""));
        assert_eq!(relative(url, Path::new("s3://bucket/pq")), None);
    }
}
