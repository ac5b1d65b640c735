//! Samples of several files: an image, a sound or a video, and a text. From WebDataset archives, from folders, or from bytes that
//! the caller has (rows of Parquet, for example).

mod archive;
mod folder;
mod group;

pub use archive::open_archive;
pub use bessemer_tar::{Entry, Refusal, TarReader};
pub use folder::read_folder;
pub use group::{Event, Grouper};

use crate::{Limits, MediaError, Result};
use std::ops::ControlFlow;
use std::path::Path;

/// The files of one sample, by extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSample {
    /// Name in the source: the path up to the first dot of its last part.
    pub key: String,
    /// (extension in lower case, without the first dot; bytes), in the order of the source.
    pub members: Vec<(String, Vec<u8>)>,
}

impl RawSample {
    /// A sample of media bytes and a text, as from a row of a table.
    pub fn pair(key: impl Into<String>, media: Vec<u8>, text: &str) -> RawSample {
        RawSample {
            key: key.into(),
            members: vec![("bin".into(), media), ("txt".into(), text.as_bytes().to_vec())],
        }
    }

    /// Bytes of all members.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|(_, b)| b.len() as u64).sum()
    }
}

/// Reads a tar archive (plain, gzip or Zstandard) or a folder, sample by sample, and gives each sample or failure to `take`, which
/// may stop. Memory: one sample, and 8 bytes for each key seen.
///
/// # Errors
/// [`MediaError::Io`], [`MediaError::Archive`] for an archive that cannot be read on; samples before that place were given.
pub fn read(source: &Path, limits: &Limits, mut take: impl FnMut(Event) -> ControlFlow<()>) -> Result<()> {
    if source.is_dir() {
        return read_folder(source, limits, take);
    }
    let mut tar = TarReader::new(open_archive(source)?, limits.file_bytes);
    let mut grouper = Grouper::new(limits.file_bytes);
    loop {
        let event = match tar.next_entry() {
            Ok(Some(Entry::File { path, bytes })) => grouper.push(&path, bytes),
            Ok(Some(Entry::Refused { path, why })) => {
                grouper.refuse(&path, why.name(), format!("{}: {}", why.name(), why.explanation()))
            }
            Ok(None) => break,
            Err(e) => {
                // The last group may be cut in two; it is not a sample.
                grouper.abandon();
                return Err(MediaError::Archive { path: source.to_owned(), offset: e.offset, what: e.what });
            }
        };
        for event in event {
            if take(event).is_break() {
                return Err(MediaError::Stopped);
            }
        }
    }
    if let Some(event) = grouper.finish()
        && take(event).is_break()
    {
        return Err(MediaError::Stopped);
    }
    Ok(())
}
