//! Files in object stores and behind HTTP, read in ranges, like a local file.
//!
//! | address | store |
//! |---|---|
//! | `s3://BUCKET/KEY` | Amazon S3 and what speaks its protocol (MinIO, Ceph), by `AWS_ENDPOINT_URL` |
//! | `gs://BUCKET/KEY` | Google Cloud Storage |
//! | `az://CONTAINER/KEY` | Azure Blob Storage, of the account in `AZURE_STORAGE_ACCOUNT_NAME` |
//! | `http://…`, `https://…` | one file: public, presigned, or behind fixed header fields |
//!
//! [`Stores`] finds objects by their address and lists them below a prefix, in the order in which the same files would be found
//! in a folder. [`RemoteFile`] is `Read + Seek` and holds one block, so a WARC file in a bucket is opened, cut into ranges and
//! resumed like one on disk. A broken connection, a body that ends early and a busy server are tried again with growing
//! pauses; an object that changed while it is read is an error, never a mixture of two.
//!
//! Protocols, signatures and retries are `object_store`'s; its one thread belongs to the [`Stores`].

mod file;
mod store;

pub use file::RemoteFile;
pub use store::{Object, Stores};

use std::time::Duration;

/// How remote files are reached.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Bytes asked for at once, which is what a [`RemoteFile`] holds.
    pub block_bytes: usize,
    /// Requests for one block before giving up.
    pub attempts: u32,
    /// Pause after the first failure; further ones grow.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// Longest time for a connection, and for a request with its body.
    pub timeout: Duration,
    /// Header fields for requests to `http` and `https` addresses, such as `Authorization`.
    pub headers: Vec<(String, String)>,
    /// Names and values as in the environment: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_KEY`, … The environment is the program's business: it is not read here. Names that no store knows
    /// are passed over.
    pub settings: Vec<(String, String)>,
}

impl std::fmt::Debug for RemoteOptions {
    /// Without values that may be secrets.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            attempts: 6,
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(20),
            timeout: Duration::from_secs(60),
            headers: Vec::new(),
            settings: Vec::new(),
        }
    }
}

/// Why a remote file cannot be listed or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
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
    #[error("{url}: {what} could not be read in {attempts} attempts: {last}")]
    GaveUp {
        /// Requested address.
        url: String,
        /// The part that is missing.
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
