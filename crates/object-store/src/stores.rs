//! Stores by the address of an object: which protocol, whose credentials, what lies below a prefix.

use crate::{Object, RemoteError, RemoteOptions};
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, HeaderMap, ObjectMeta, ObjectStore,
    ObjectStoreExt, RetryConfig,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Returns the version of an object: its ETag, or what the store has instead.
fn version(meta: &ObjectMeta) -> Option<String> {
    let changed = || (meta.last_modified.timestamp() != 0).then(|| meta.last_modified.to_rfc3339());
    meta.e_tag.clone().or_else(changed)
}

/// Longest time for a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// The stores of some options, and the thread on which their requests run.
pub struct Stores {
    runtime: Runtime,
    options: RemoteOptions,
    /// Opened stores by scheme and bucket.
    opened: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Stores").field("options", &self.options).finish_non_exhaustive()
    }
}

/// An address cut into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address<'a> {
    scheme: &'a str,
    /// Scheme and bucket, or the whole address of a file behind HTTP.
    base: &'a str,
    /// Key within the bucket, without a leading slash.
    key: &'a str,
}

impl<'a> Address<'a> {
    fn of(url: &'a str) -> Result<Address<'a>, RemoteError> {
        let unusable = |problem: &str| {
            RemoteError::Options(format!(
                "{url}: {problem}; expected s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or the http(s) address of a file"
            ))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| unusable("no scheme"))?;
        if rest.is_empty() || rest.starts_with('/') {
            return Err(unusable("no bucket"));
        }
        match scheme {
            "http" | "https" => Ok(Address { scheme, base: url, key: "" }),
            "s3" | "gs" | "az" => {
                let bucket = rest.find('/').unwrap_or(rest.len());
                let base = &url[..scheme.len() + 3 + bucket];
                Ok(Address { scheme, base, key: rest[bucket..].trim_start_matches('/') })
            }
            _ => Err(unusable("unknown scheme")),
        }
    }
}

/// Settings of which a store needs one, and how messages name them. Without any of them the store's library would ask the
/// metadata service of a cloud in which the program may not run, for minutes.
fn credentials(scheme: &str) -> (&'static [&'static str], &'static str) {
    match scheme {
        "s3" => (
            &[
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "AWS_METADATA_ENDPOINT",
                "AWS_SKIP_SIGNATURE",
            ],
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; or AWS_SKIP_SIGNATURE=true for a public bucket; or \
             AWS_METADATA_ENDPOINT=http://169.254.169.254 for the role of an EC2 machine",
        ),
        "gs" => (
            &[
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SKIP_SIGNATURE",
            ],
            "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to a file of credentials; or \
             GOOGLE_SKIP_SIGNATURE=true for a public bucket",
        ),
        "az" => (
            &[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_TOKEN",
                "AZURE_STORAGE_CLIENT_ID",
                "AZURE_CLIENT_ID",
                "AZURE_FEDERATED_TOKEN_FILE",
                "AZURE_STORAGE_USE_EMULATOR",
                "AZURE_SKIP_SIGNATURE",
            ],
            "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; or \
             AZURE_SKIP_SIGNATURE=true for a public container",
        ),
        _ => (&[], ""),
    }
}

/// The messages of an error and of what caused it, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Stores {
    /// Stores that are reached with these options; `url` is the first address that will be asked for, for messages.
    ///
    /// # Errors
    /// Sizes or a number of attempts of 0; no thread can be started; a program built without the feature `remote`.
    pub fn open(url: &str, options: RemoteOptions) -> Result<Stores, RemoteError> {
        let o = &options;
        if [o.block_bytes, o.part_bytes, o.parts, o.attempts as usize].contains(&0) {
            let problem = "block_bytes, part_bytes, parts and attempts: expected at least 1";
            return Err(RemoteError::Options(format!("{url}: {problem}")));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("remote")
            .enable_all()
            .build()
            .map_err(|e| RemoteError::Options(format!("the thread for remote files: {e}")))?;
        Ok(Stores { runtime, options, opened: Mutex::default() })
    }

    /// How files are reached.
    pub fn options(&self) -> &RemoteOptions {
        &self.options
    }

    fn build(&self, address: Address<'_>) -> Result<Arc<dyn ObjectStore>, RemoteError> {
        let o = &self.options;
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: o.first_pause, max_backoff: o.longest_pause, base: 2.0 },
            max_retries: o.attempts as usize - 1,
            retry_timeout: o.timeout * o.attempts,
        };
        // Plain HTTP only reaches addresses and endpoints that are written so.
        let mut client = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout(o.timeout)
            .with_connect_timeout(o.timeout.min(LONGEST_CONNECT));
        let (keys, wanted) = credentials(address.scheme);
        let named = |name: &str| keys.iter().any(|key| key.eq_ignore_ascii_case(name));
        if !keys.is_empty() && !o.settings.iter().any(|(name, value)| named(name) && !value.is_empty()) {
            return Err(RemoteError::NoCredentials { url: address.base.into(), wanted });
        }
        let settings = o.settings.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        // A builder with the settings that its store knows.
        macro_rules! store {
            ($builder:expr) => {{
                let mut builder =
                    $builder.with_url(address.base).with_retry(retry).with_client_options(client);
                for (name, value) in settings {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }};
        }
        let built = match address.scheme {
            // The store holds each upload against its checksum; a setting may name another one.
            "s3" => store!(AmazonS3Builder::new().with_checksum_algorithm(Checksum::SHA256)),
            "gs" => store!(GoogleCloudStorageBuilder::new()),
            "az" => store!(MicrosoftAzureBuilder::new()),
            _ => {
                let fields: HashMap<String, String> = o.headers.iter().cloned().collect();
                let fields = HeaderMap::try_from(&fields)
                    .map_err(|e| RemoteError::Options(format!("header fields: {e}")))?;
                client = client.with_default_headers(fields);
                HttpBuilder::new()
                    .with_url(address.base)
                    .with_retry(retry)
                    .with_client_options(client)
                    .build()
                    .map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
        };
        built.map_err(|e| RemoteError::Options(format!("{}: {}", address.base, chain(&e))))
    }

    /// The store of an address and the path within it.
    pub(crate) fn open_url(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path), RemoteError> {
        let address = Address::of(url)?;
        let path = Path::parse(address.key.trim_end_matches('/'))
            .map_err(|e| RemoteError::Options(format!("{url}: {e}")))?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match opened.get(address.base) {
            Some(store) => store.clone(),
            None => {
                let store = self.build(address)?;
                opened.insert(address.base.to_string(), store.clone());
                store
            }
        };
        Ok((store, path))
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Begins work on the stores' thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Waits after a failure, longer after each.
    pub(crate) fn pause(&self, failures: u32) {
        let pause = self.options.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        std::thread::sleep(pause.min(self.options.longest_pause));
    }

    /// An error of a store as one of ours.
    pub(crate) fn error(&self, url: &str, what: &str, error: &Error) -> RemoteError {
        let (url, problem) = (url.to_string(), chain(error));
        let has = |words: &[&str]| words.iter().any(|word| problem.contains(word));
        match error {
            Error::NotFound { .. } => RemoteError::NotFound { url, problem },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                RemoteError::Refused { url, problem }
            }
            Error::Precondition { .. } => RemoteError::Changed {
                url,
                was: "the version that was opened".into(),
                now: "another version".into(),
            },
            Error::NotSupported { .. } => RemoteError::NoRanges { url, problem },
            // Listings have no errors of their own.
            _ if has(&["403 Forbidden", "401 Unauthorized"]) => RemoteError::Refused { url, problem },
            _ if has(&["404 Not Found"]) => RemoteError::NotFound { url, problem },
            _ if has(&["507", "StorageFull", "QuotaExceeded"]) => RemoteError::Full { url, problem },
            _ if has(&["Content-Range", "non-partial response"]) => RemoteError::NoRanges { url, problem },
            _ => {
                RemoteError::GaveUp { url, what: what.into(), attempts: self.options.attempts, last: problem }
            }
        }
    }

    /// One object.
    ///
    /// # Errors
    /// There is none at this address, or the store refuses, or cannot be reached.
    pub fn stat(&self, url: &str) -> Result<Object, RemoteError> {
        let (store, path) = self.open_url(url)?;
        let head = |error: &Error| self.error(url, "asking for its head", error);
        let meta = self.block_on(async {
            if !url.starts_with("http") {
                return store.head(&path).await;
            }
            // A presigned address answers GET alone. An empty file has no first byte.
            let first = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            match store.get_opts(&path, first).await {
                Ok(answer) => Ok(answer.meta),
                Err(error) if chain(&error).contains("416") => store.head(&path).await,
                Err(error) => Err(error),
            }
        });
        let meta = meta.map_err(|e| head(&e))?;
        let name = url.split(['?', '#']).next().unwrap_or(url).trim_end_matches('/');
        let relative = name.rsplit('/').next().unwrap_or(name).to_string();
        Ok(Object { url: url.into(), relative, bytes: meta.size, version: version(&meta) })
    }

    /// All objects below a prefix, ordered as a folder of the same files would be: by the names along the path, as bytes.
    ///
    /// # Errors
    /// As [`Stores::stat`]; an address behind HTTP, which lists nothing.
    pub fn list(&self, url: &str) -> Result<Vec<Object>, RemoteError> {
        let address = Address::of(url)?;
        if address.base == url && url.starts_with("http") {
            return Err(RemoteError::Options(format!(
                "{url}: a web server does not list its files; name one file, or use s3://, gs:// or az://"
            )));
        }
        let (store, prefix) = self.open_url(url)?;
        let mut failures = 0;
        let metas: Vec<ObjectMeta> = loop {
            let listed = self.block_on(store.list(Some(&prefix)).try_collect());
            match listed {
                Ok(metas) => break metas,
                Err(error) => {
                    failures += 1;
                    let error = self.error(url, "listing the objects below", &error);
                    // Statuses are tried again below this; a body that ends early is not.
                    if failures >= self.options.attempts || !matches!(error, RemoteError::GaveUp { .. }) {
                        return Err(error);
                    }
                }
            }
        };
        let mut found: Vec<Object> = metas
            .iter()
            .filter(|meta| !(meta.size == 0 && meta.location.as_ref().ends_with('/')))
            .map(|meta| {
                let key = meta.location.as_ref();
                let below = key.strip_prefix(prefix.as_ref()).unwrap_or(key).trim_start_matches('/');
                Object {
                    url: format!("{}/{key}", address.base),
                    relative: below.to_string(),
                    bytes: meta.size,
                    version: version(meta),
                }
            })
            .collect();
        found.sort_by(|a, b| a.relative.split('/').cmp(b.relative.split('/')));
        Ok(found)
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// As [`Stores::stat`]; the object changed since it was found.
    pub fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
        let (store, path) = self.open_url(&object.url)?;
        let url = &object.url;
        let mut bytes =
            Vec::with_capacity(usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0));
        let mut failures = 0;
        loop {
            let from = range.start + bytes.len() as u64;
            if from >= range.end {
                return Ok(bytes);
            }
            let what = format!("reading from byte {from} on");
            let wanted = GetOptions {
                range: Some(GetRange::Bounded(from..range.end)),
                // A weak tag never matches (RFC 9110, section 13.1.1); it is compared below.
                if_match: object.version.clone().filter(|version| version.starts_with('"')),
                ..GetOptions::default()
            };
            let before = bytes.len();
            let failure = self.block_on(async {
                let answer = store
                    .get_opts(&path, wanted)
                    .await
                    .map_err(|error| (self.error(url, &what, &error), true))?;
                let (now, length) = (version(&answer.meta), answer.meta.size);
                if length != object.bytes || (now != object.version && object.version.is_some()) {
                    let say = |version: &Option<String>, bytes: u64| match version {
                        Some(version) => format!("{version} of {bytes} bytes"),
                        None => format!("{bytes} bytes"),
                    };
                    let (was, now) = (say(&object.version, object.bytes), say(&now, length));
                    return Err((RemoteError::Changed { url: url.clone(), was, now }, true));
                }
                let mut body = answer.into_stream();
                loop {
                    match body.try_next().await {
                        Ok(Some(part)) => bytes.extend_from_slice(&part),
                        Ok(None) => return Ok(()),
                        Err(error) => return Err((self.error(url, &what, &error), false)),
                    }
                }
            });
            if let Err((error, last)) = failure {
                failures += 1;
                // A body that broke behind some bytes is taken up where it broke; what stands still was tried again below this.
                if last || bytes.len() == before || failures >= self.options.attempts {
                    return Err(error);
                }
            } else if bytes.len() == before {
                let last = "an empty body".into();
                return Err(RemoteError::GaveUp { url: url.clone(), what, attempts: 1, last });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_cut_at_the_bucket() {
        let parts = |url| Address::of(url).map(|a| (a.base, a.key)).map_err(|e| e.to_string());
        assert_eq!(parts("s3://b/a/c.jsonl").unwrap(), ("s3://b", "a/c.jsonl"));
        assert_eq!(parts("gs://b").unwrap(), ("gs://b", ""));
        assert_eq!(parts("az://b/").unwrap(), ("az://b", ""));
        assert_eq!(parts("https://h/x?sig=1").unwrap(), ("https://h/x?sig=1", ""));
        for bad in ["ftp://x/y", "s3://", "s3:///x", "x"] {
            assert!(parts(bad).unwrap_err().contains("expected s3://BUCKET/KEY"), "{bad}");
        }
    }

    #[test]
    fn without_credentials_nothing_is_asked() {
        let stores = Stores::open("s3://b", RemoteOptions::default()).unwrap();
        for (url, name) in [
            ("s3://b/k", "AWS_ACCESS_KEY_ID"),
            ("gs://b/k", "GOOGLE_"),
            ("az://b/k", "AZURE_STORAGE_ACCOUNT_NAME"),
        ] {
            let error = stores.stat(url).unwrap_err();
            assert!(
                matches!(error, RemoteError::NoCredentials { .. }) && error.to_string().contains(name),
                "{error}"
            );
        }
    }
}
