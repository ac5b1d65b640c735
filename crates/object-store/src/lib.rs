//! Objects of stores and files behind HTTP: listed, read in ranges like local files, uploaded, and created once.
//!
//! | address | store |
//! |---|---|
//! | `s3://BUCKET/KEY` | Amazon S3 and what speaks its protocol (MinIO, Ceph), by `AWS_ENDPOINT_URL` |
//! | `gs://BUCKET/KEY` | Google Cloud Storage |
//! | `az://CONTAINER/KEY` | Azure Blob Storage, of the account in `AZURE_STORAGE_ACCOUNT_NAME` |
//! | `http://…`, `https://…` | one file, read only: public, presigned, or behind fixed header fields |
//!
//! [`Stores`] finds objects by their address and lists them below a prefix, in the order in which the same files would be found
//! in a folder. [`RemoteFile`] is `Read + Seek` and holds one block, so a WARC file in a bucket is opened, cut into ranges and
//! resumed like one on disk. [`Stores::put`] uploads a file in parts and checks its length; [`Stores::put_if_absent`] makes a small
//! object that must not exist, in one request, which is how a commit is made in a store. A broken connection, a body that ends
//! early and a busy server are tried again with growing pauses; an object that changed while it is read is an error, never a
//! mixture of two.
//!
//! Protocols, signatures and retries are `object_store`'s; its one thread belongs to the [`Stores`]. All of it is behind the feature
//! `remote`. Without it the same types exist, and opening them is an error that says what to build.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod file;
#[cfg(feature = "remote")]
mod stores;
#[cfg(feature = "remote")]
mod upload;
#[cfg(not(feature = "remote"))]
mod without;

pub use file::RemoteFile;
#[cfg(feature = "remote")]
pub use stores::Stores;
#[cfg(not(feature = "remote"))]
pub use without::Stores;

use std::fmt;
use std::time::Duration;

/// How to build a program that reads and writes object stores.
pub const INSTALL: &str = "cargo build --release -p bessemer --features remote";

/// Whether a path is the address of something elsewhere.
pub fn is_address(path: &str) -> bool {
    path.split_once("://")
        .is_some_and(|(scheme, _)| scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// How object stores are reached: names and values as in the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
/// `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …). Never written to a file, and not part of what decides a result.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access(Vec<(String, String)>);

impl Access {
    /// The settings of the known stores among these names and values.
    pub fn of(settings: impl IntoIterator<Item = (String, String)>) -> Access {
        let known = |name: &str| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|store| name.starts_with(store));
        Access(settings.into_iter().filter(|(name, _)| known(name)).collect())
    }

    /// Options with these settings.
    pub fn options(&self) -> RemoteOptions {
        RemoteOptions { settings: self.0.clone(), ..RemoteOptions::default() }
    }
}

impl fmt::Debug for Access {
    /// Names only: values may be secrets.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// An object of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its address.
    pub url: String,
    /// Its path below the prefix under which it was listed, or its last name.
    pub relative: String,
    /// Its length.
    pub bytes: u64,
    /// `ETag`, else the time of its last change, else nothing.
    pub version: Option<String>,
}

/// Result of [`Stores::put_if_absent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The object is there now, with these bytes.
    Created,
    /// There was an object already, which stays: of somebody else, or of an earlier request whose answer was lost.
    Exists,
}

/// How remote files are reached.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Bytes asked for at once, which is what a [`RemoteFile`] holds.
    pub block_bytes: usize,
    /// Bytes of a part of an upload; larger where a file would have more than 10,000 parts. At least 5 MiB for S3.
    pub part_bytes: usize,
    /// Parts of a file that are uploaded at the same time. Memory: one more than this.
    pub parts: usize,
    /// Requests for one block before giving up.
    pub attempts: u32,
    /// Pause after the first failure; further ones grow.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// Longest time for a request with its body, and for a connection, which gets a minute at most.
    pub timeout: Duration,
    /// Header fields for requests to `http` and `https` addresses, such as `Authorization`.
    pub headers: Vec<(String, String)>,
    /// Names and values as in the environment: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_KEY`, … The environment is the program's business: it is not read here. Names that no store knows
    /// are passed over.
    pub settings: Vec<(String, String)>,
}

impl fmt::Debug for RemoteOptions {
    /// Without values that may be secrets.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        out.debug_struct("RemoteOptions")
            .field("block_bytes", &self.block_bytes)
            .field("attempts", &self.attempts)
            .field("timeout", &self.timeout)
            .field("headers", &names(&self.headers))
            .field("settings", &names(&self.settings))
            .finish_non_exhaustive()
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions {
            block_bytes: 8 << 20,
            part_bytes: 16 << 20,
            parts: 3,
            attempts: 6,
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(20),
            timeout: Duration::from_secs(60),
            headers: Vec::new(),
            settings: Vec::new(),
        }
    }
}

/// Why a remote file cannot be listed, read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// This program was built without object stores.
    #[error("{0}: is an address, and this program was built without remote files; build it with `{INSTALL}`")]
    NotBuilt(String),
    /// The options or the address cannot be used.
    #[error("{0}")]
    Options(String),
    /// The settings hold no credentials.
    #[error("{url}: no credentials; set {wanted}")]
    NoCredentials {
        /// Requested address.
        url: String,
        /// Settings of which one is needed.
        wanted: &'static str,
    },
    /// There is no such object or bucket.
    #[error("{url}: not found (404): {problem}; check bucket, key, region and endpoint")]
    NotFound {
        /// Requested address.
        url: String,
        /// The store's words.
        problem: String,
    },
    /// The store knows who asks and refuses, or does not believe the signature.
    #[error(
        "{url}: access refused (401 or 403): {problem}; check the credentials, their rights, and the clock"
    )]
    Refused {
        /// Requested address.
        url: String,
        /// The store's words.
        problem: String,
    },
    /// The server sends whole files only.
    #[error("{url}: the server does not send ranges ({problem}); copy the file to a disk first")]
    NoRanges {
        /// The file.
        url: String,
        /// Fault of its answer.
        problem: String,
    },
    /// The store takes no more.
    #[error("{url}: the store is full: {problem}; remove objects or raise the quota")]
    Full {
        /// Requested address.
        url: String,
        /// The store's words.
        problem: String,
    },
    /// The file that is uploaded cannot be read.
    #[error("{url}: the file to upload cannot be read: {problem}")]
    Source {
        /// Address of the upload.
        url: String,
        /// The system's words.
        problem: String,
    },
    /// The object is not the one that was opened.
    #[error("{url}: the file changed while it was read: {was} before, {now} now; begin again")]
    Changed {
        /// The file.
        url: String,
        /// Version of the object when the file was opened.
        was: String,
        /// Version of the object now.
        now: String,
    },
    /// All attempts failed.
    #[error("{url}: {what}: gave up after {attempts} attempts: {last}")]
    GaveUp {
        /// Requested address.
        url: String,
        /// Attempted action.
        what: String,
        /// Attempts that were allowed.
        attempts: u32,
        /// Error of the last attempt.
        last: String,
    },
}

impl From<RemoteError> for std::io::Error {
    fn from(e: RemoteError) -> Self {
        std::io::Error::other(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths_and_secrets_are_not_shown() {
        for (path, address) in
            [("s3://b/k", true), ("https://h/f", true), ("a/b", false), ("C://x", false), ("", false)]
        {
            assert_eq!(is_address(path), address, "{path}");
        }
        let pair = |name: &str| (name.to_string(), "hidden".to_string());
        let access = Access::of([pair("AWS_SECRET_ACCESS_KEY"), pair("HOME")]);
        assert_eq!(format!("{access:?}"), "[\"AWS_SECRET_ACCESS_KEY\"]");
        assert!(!format!("{:?}", access.options()).contains("hidden"));
    }

    #[cfg(not(feature = "remote"))]
    #[test]
    fn without_the_feature_an_address_says_what_to_build() {
        let error = Stores::open("s3://bucket/x", RemoteOptions::default()).unwrap_err().to_string();
        assert!(error.contains("s3://bucket/x") && error.contains(INSTALL), "{error}");
    }
}
