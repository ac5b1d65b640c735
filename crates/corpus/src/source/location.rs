//! Where files are: on a disk, or in an object store (feature `remote`).
//!
//! A place is a file, a folder, an address of an object or of a prefix of addresses. Its files come in one order, by the
//! names along the path, so the same files give the same corpus wherever they lie. What tells that an object changed is its
//! length and its `ETag`.

use super::folder::{self, FileEntry, Filter};
use super::{Listing, Skipped, SourceInfo};
use crate::error::{Error, Result};
use bessemer_durable::{is_limit, open_regular};
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

pub use bessemer_object_store::Access;
pub(crate) use bessemer_object_store::is_address;
pub(crate) use remote::Object;

/// Files of an object store.
struct Listed {
    files: Vec<FileEntry>,
    /// Hidden and excluded ones.
    skipped: Skipped,
    /// The address is that of a file.
    single: bool,
}

/// A place of files.
pub(crate) struct SourceLocation<'a> {
    pub(crate) path: &'a Path,
    pub(crate) exclude: &'a [String],
    /// Follow links that lead out of the folder.
    follow_links: bool,
    /// Files of the object store, if the location is one.
    objects: Option<Listed>,
}

impl<'a> SourceLocation<'a> {
    /// Looks at a place. `is_file` says whether a name is that of a file rather than of a prefix.
    pub(crate) fn open(
        path: &'a str,
        access: &Access,
        exclude: &'a [String],
        follow_links: bool,
        is_file: impl Fn(&str) -> bool,
    ) -> Result<SourceLocation<'a>> {
        let objects =
            if is_address(path) { Some(remote::objects(path, access, exclude, is_file)?) } else { None };
        Ok(SourceLocation { path: Path::new(path), exclude, follow_links, objects })
    }

    /// Whether it is in an object store.
    pub(crate) fn is_remote(&self) -> bool {
        self.objects.is_some()
    }

    /// Files whose form is checked before anything is read: all on a disk, one where each costs a request.
    pub(crate) fn checked(&self) -> usize {
        if self.is_remote() { 1 } else { usize::MAX }
    }

    /// A place on a disk.
    pub(crate) fn on_disk(path: &'a Path, exclude: &'a [String]) -> SourceLocation<'a> {
        SourceLocation { path, exclude, follow_links: false, objects: None }
    }

    /// Names of the files, without regard to what is excluded where it is a folder on a disk.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let name = |file: &FileEntry| file.relative.clone();
        if let Some(listed) = &self.objects {
            return Ok(listed.files.iter().map(name).collect());
        }
        if self.path.is_dir() {
            let (files, _) = folder::list(self.path, &Filter::all(&[], self.follow_links))?;
            return Ok(files.iter().map(name).collect());
        }
        Ok(vec![self.path.to_string_lossy().into_owned()])
    }

    /// The files that `matches` accepts: the place itself, or those below it.
    pub(crate) fn find(
        &self,
        kind: &'static str,
        matches: impl Fn(&str) -> bool,
    ) -> Result<(Vec<FileEntry>, Listing)> {
        let mut listing = Listing { kind, ..Listing::default() };
        let mut files = match &self.objects {
            Some(listed) => {
                listing.skipped = listed.skipped.clone();
                listed.files.clone()
            }
            None if self.path.is_dir() => {
                let (files, skipped) =
                    folder::list(self.path, &Filter::all(self.exclude, self.follow_links))?;
                listing.skipped = skipped;
                files
            }
            None => vec![FileEntry::of(self.path)?],
        };
        if self.objects.as_ref().map_or_else(|| self.path.is_dir(), |listed| !listed.single) {
            files.retain(|file| {
                let matches = matches(&file.relative);
                if !matches {
                    listing.skipped.add_file(&file.relative, file.bytes);
                }
                matches
            });
        }
        for file in &files {
            listing.sources.push(SourceInfo { name: file.relative.clone(), version: None, licence: None });
            listing.add(file.bytes);
            listing.entries.push(match file.object.as_ref().map(remote::Object::version) {
                Some(version) => format!("{} {} {version}", file.relative, file.bytes),
                None => format!("{} {} {}", file.relative, file.bytes, file.changed),
            });
        }
        Ok((files, listing))
    }
}

impl FileEntry {
    /// A single file on a disk.
    fn of(path: &Path) -> Result<FileEntry> {
        let metadata = std::fs::metadata(path).map_err(Error::io("read", path))?;
        let relative = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let (bytes, changed) = (metadata.len(), folder::changed(&metadata));
        Ok(FileEntry { path: path.to_path_buf(), relative, bytes, changed, fault: None, object: None })
    }

    /// Errors if the last fault of reading was the store's, or that of a limit of this process. What is damaged stays so, is counted and passed over; what could not be
    /// fetched would make another corpus of the same input, so it ends the build, which goes on later.
    pub(crate) fn reached(&self) -> Result<()> {
        match self.object.as_ref().and_then(Object::failure) {
            Some(error) => Err(Error::Stage(error)),
            None if self.object.is_some() => Ok(()),
            None => match open_regular(&self.path) {
                Err(cause) if is_limit(&cause) => Err(Error::io("open", &self.path)(cause)),
                _ => Ok(()),
            },
        }
    }

    /// Opens it.
    pub(crate) fn open(&self) -> io::Result<Opened> {
        if let Some(object) = &self.object {
            return Ok(Opened::Remote(object.open()));
        }
        Ok(Opened::Disk(open_regular(&self.path)?))
    }
}

/// An open file.
pub(crate) enum Opened {
    Disk(File),
    Remote(remote::Reader),
}

impl Read for Opened {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Opened::Disk(file) => file.read(out),
            Opened::Remote(file) => file.read(out),
        }
    }
}

impl Seek for Opened {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Opened::Disk(file) => file.seek(to),
            Opened::Remote(file) => file.seek(to),
        }
    }
}

impl Length for Opened {
    fn len(&self) -> u64 {
        match self {
            Opened::Disk(file) => file.len(),
            Opened::Remote(file) => file.length(),
        }
    }
}

impl ChunkReader for Opened {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        match self {
            Opened::Disk(file) => Ok(Box::new(file.get_read(start)?)),
            Opened::Remote(file) => Ok(Box::new(file.at(start))),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        match self {
            Opened::Disk(file) => file.get_bytes(start, length),
            Opened::Remote(file) => {
                let mut bytes = vec![0; length];
                file.at(start).read_exact(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }
}

mod remote {
    use super::super::{EXCLUDED, HIDDEN, Skipped};
    use super::{Access, FileEntry, Listed};
    use crate::error::{Error, Result};
    use bessemer_object_store::{self as store, RemoteError, RemoteFile, RemoteOptions, Stores};
    use std::io::{self, Read, Seek, SeekFrom};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex, PoisonError};

    /// Bytes that a reader holds.
    const BLOCK_BYTES: usize = 4 << 20;

    /// An object of a store.
    #[derive(Debug, Clone)]
    pub(crate) struct Object {
        stores: Arc<Stores>,
        object: store::Object,
        failure: Arc<Mutex<Option<RemoteError>>>,
    }

    impl PartialEq for Object {
        fn eq(&self, other: &Object) -> bool {
            self.object == other.object
        }
    }

    impl Eq for Object {}

    impl Object {
        pub(crate) fn version(&self) -> &str {
            self.object.version.as_deref().unwrap_or("-")
        }

        pub(crate) fn open(&self) -> Reader {
            let file = RemoteFile::new(self.stores.clone(), self.object.clone());
            let (length, failure) = (file.length(), self.failure.clone());
            Reader { length, file: Arc::new(Mutex::new(file)), failure, at: 0 }
        }

        /// The last failure of a reader, reported once.
        pub(crate) fn failure(&self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            failure.map(|error| error.into())
        }
    }

    /// A reader of an object; those made by [`Reader::at`] share its block.
    pub(crate) struct Reader {
        file: Arc<Mutex<RemoteFile>>,
        failure: Arc<Mutex<Option<RemoteError>>>,
        length: u64,
        at: u64,
    }

    impl Reader {
        pub(crate) fn length(&self) -> u64 {
            self.length
        }

        pub(crate) fn at(&self, at: u64) -> Reader {
            Reader { file: self.file.clone(), failure: self.failure.clone(), length: self.length, at }
        }
    }

    impl Read for Reader {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(self.at))?;
            let read = file.read(out).inspect_err(|error| {
                let own = error.get_ref().and_then(|error| error.downcast_ref::<RemoteError>());
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = own.cloned();
            });
            self.at += *read.as_ref().unwrap_or(&0) as u64;
            read
        }
    }

    impl Seek for Reader {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(self.at))?;
            self.at = file.seek(to)?;
            Ok(self.at)
        }
    }

    /// The objects at an address, without hidden and excluded ones.
    pub(super) fn objects(
        url: &str,
        access: &Access,
        exclude: &[String],
        is_file: impl Fn(&str) -> bool,
    ) -> Result<Listed> {
        let failed = |error: RemoteError| Error::Stage(Box::new(error));
        let options = RemoteOptions { block_bytes: BLOCK_BYTES, ..access.options() };
        let stores = Arc::new(Stores::open(url, options).map_err(failed)?);
        let name = url.split(['?', '#']).next().unwrap_or(url);
        let single = if url.starts_with("http") {
            Some(stores.stat(url).map_err(failed)?)
        } else if is_file(name) {
            match stores.stat(url) {
                Ok(object) => Some(object),
                // A prefix that is named like a file.
                Err(RemoteError::NotFound { .. }) => None,
                Err(error) => return Err(failed(error)),
            }
        } else {
            None
        };
        let (single, found) = match single {
            Some(object) => (true, vec![object]),
            None => (false, stores.list(url).map_err(failed)?),
        };
        let excluded = |relative: &str| {
            exclude.iter().map(|path| path.trim_end_matches('/')).any(|path| {
                relative.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let mut skipped = Skipped::default();
        let mut shown = |object: &store::Object| {
            let hidden = object.relative.split('/').any(|name| name.starts_with('.'));
            let left_out = if hidden { Some(HIDDEN) } else { excluded(&object.relative).then_some(EXCLUDED) };
            left_out.inspect(|kind| skipped.add(kind, &object.relative, object.bytes)).is_none()
        };
        let files: Vec<FileEntry> = found
            .into_iter()
            .filter(|object| single || shown(object))
            .map(|object| FileEntry {
                path: PathBuf::from(&object.url),
                relative: object.relative.clone(),
                bytes: object.bytes,
                changed: 0,
                fault: None,
                object: Some(Object { stores: stores.clone(), object, failure: Arc::default() }),
            })
            .collect();
        Ok(Listed { files, skipped, single })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "remote"))]
    #[test]
    fn without_the_feature_an_address_says_what_to_build() {
        let error = SourceLocation::open("s3://bucket/x.jsonl", &Access::default(), &[], false, |_| true)
            .err()
            .unwrap();
        assert!(error.to_string().contains("--features remote"), "{error}");
    }
}
