//! Files behind HTTP, as object stores serve them: read in ranges, like a local file.
//!
//! [`RemoteFile`] is `Read + Seek`, so a WARC file in a bucket is opened, cut into ranges and resumed like one on
//! disk. A broken connection, a body that ends early and a busy server are tried again with growing pauses; a file
//! that changed while it is read is an error, never a mixture of two.

use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

/// How a remote file is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Bytes asked for at once.
    pub block_bytes: usize,
    /// Requests for one block before giving up.
    pub attempts: u32,
    /// Pause after the first failure; each further one is twice as long.
    pub first_pause: Duration,
    /// Longest pause, also when the server asks for more.
    pub longest_pause: Duration,
    /// Time to wait for a connection, for the head of an answer, and for each piece of its body.
    pub timeout: Duration,
    /// Header fields for every request, such as `Authorization`. They do not follow a redirection to another host.
    pub headers: Vec<(String, String)>,
    /// Proxy, such as `http://proxy:3128`.
    pub proxy: Option<String>,
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
            proxy: None,
        }
    }
}

/// Why a remote file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The server says no: trying again will not help.
    #[error("{url}: the server answered {status}; wanted 206 (a part of the file)")]
    Status {
        /// The file.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The server sends whole files only.
    #[error("{url}: the server does not send ranges; copy the file to a disk first")]
    NoRanges {
        /// The file.
        url: String,
    },
    /// The file is not the one that was opened.
    #[error("{url}: the file changed while it was read: {was} before, {now} now; begin again")]
    Changed {
        /// The file.
        url: String,
        /// What told the version when the file was opened.
        was: String,
        /// What tells it now.
        now: String,
    },
    /// All attempts failed.
    #[error("{url}: bytes from {offset} could not be read in {attempts} attempts; the last: {last}")]
    GaveUp {
        /// The file.
        url: String,
        /// First byte that is missing.
        offset: u64,
        /// Requests that were made.
        attempts: u32,
        /// What the last one said.
        last: String,
    },
    /// The options cannot be used.
    #[error("{0}")]
    Options(String),
}

impl From<RemoteError> for io::Error {
    fn from(e: RemoteError) -> Self {
        io::Error::other(e)
    }
}

/// What was asked of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Requests.
    pub requests: u64,
    /// Of these repetitions after a failure.
    pub retries: u64,
    /// Bytes of bodies.
    pub bytes: u64,
}

/// A file behind a URL.
pub struct RemoteFile {
    agent: ureq::Agent,
    url: String,
    options: RemoteOptions,
    length: u64,
    /// `ETag`, else `Last-Modified`, else nothing.
    version: Option<String>,
    block: Vec<u8>,
    block_start: u64,
    at: u64,
    counts: RemoteCounts,
}

/// One answer.
enum Answer {
    /// A part: its first byte, the length of the file, its version, and how much was read into the buffer.
    Part { total: u64, version: Option<String>, failure: Option<String> },
    /// The file is empty.
    Empty { version: Option<String> },
    /// Worth another try, after at least this pause.
    Again { why: String, pause: Duration },
}

impl RemoteFile {
    /// Opens the file: asks for its first block.
    ///
    /// # Errors
    /// The server does not know the file or sends no ranges, or cannot be reached.
    pub fn open(url: &str, options: RemoteOptions) -> Result<RemoteFile, RemoteError> {
        if options.block_bytes == 0 || options.attempts == 0 {
            return Err(RemoteError::Options("block_bytes and attempts: expected at least 1".into()));
        }
        let proxy = options
            .proxy
            .as_deref()
            .map(ureq::Proxy::new)
            .transpose()
            .map_err(|e| RemoteError::Options(format!("the proxy: {e}")))?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // The environment is the program's business: nothing is read from it here.
            .proxy(proxy)
            .accept_encoding("identity")
            .timeout_connect(Some(options.timeout))
            .timeout_recv_response(Some(options.timeout))
            .timeout_per_read(Some(options.timeout))
            .build()
            .new_agent();
        let mut file = RemoteFile {
            agent,
            url: url.to_string(),
            options,
            length: u64::MAX,
            version: None,
            block: Vec::new(),
            block_start: 0,
            at: 0,
            counts: RemoteCounts::default(),
        };
        file.fetch(0)?;
        Ok(file)
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Requests, repetitions and bytes so far.
    pub fn counts(&self) -> RemoteCounts {
        self.counts
    }

    /// Reads the block at `start` into the buffer.
    fn fetch(&mut self, start: u64) -> Result<(), RemoteError> {
        self.block.clear();
        self.block_start = start;
        let mut failures = 0;
        let mut pause = self.options.first_pause;
        loop {
            let end = (start + self.options.block_bytes as u64).min(self.length);
            let from = start + self.block.len() as u64;
            if from >= end {
                return Ok(());
            }
            let (why, asked) = match self.ask(from, end)? {
                Answer::Empty { version } => {
                    (self.length, self.version) = (0, version);
                    return Ok(());
                }
                Answer::Part { total, version, failure } => {
                    if self.length == u64::MAX {
                        (self.length, self.version) = (total, version);
                    }
                    match failure {
                        None => continue,
                        Some(why) => (why, Duration::ZERO),
                    }
                }
                Answer::Again { why, pause } => (why, pause),
            };
            failures += 1;
            if failures >= self.options.attempts {
                let offset = start + self.block.len() as u64;
                return Err(RemoteError::GaveUp {
                    url: self.url.clone(),
                    offset,
                    attempts: failures,
                    last: why,
                });
            }
            self.counts.retries += 1;
            std::thread::sleep(pause.max(asked).min(self.options.longest_pause));
            pause = (pause * 2).min(self.options.longest_pause);
        }
    }

    /// One request for `from..end`; what comes is added to the block.
    fn ask(&mut self, from: u64, end: u64) -> Result<Answer, RemoteError> {
        self.counts.requests += 1;
        let mut request = self.agent.get(&self.url).header("Range", format!("bytes={from}-{}", end - 1));
        // A weak tag never matches (RFC 9110, section 13.1.1); it is compared below.
        if let Some(tag) = self.version.as_deref().filter(|v| v.starts_with('"')) {
            request = request.header("If-Match", tag);
        }
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::BadUri(e)) => return Err(RemoteError::Options(format!("{}: {e}", self.url))),
            Err(e) => return Ok(Answer::Again { why: e.to_string(), pause: Duration::ZERO }),
        };
        let field = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(String::from);
        let version = field("etag").or_else(|| field("last-modified"));
        let range = field("content-range");
        let status = response.status().as_u16();
        let changed = |now: String| {
            let was = self.version.clone().unwrap_or_else(|| format!("{} bytes", self.length));
            Err(RemoteError::Changed { url: self.url.clone(), was, now })
        };
        match status {
            206 => {}
            200 => return Err(RemoteError::NoRanges { url: self.url.clone() }),
            412 => return changed(version.unwrap_or_else(|| "another version".into())),
            416 if self.length == u64::MAX && range.as_deref() == Some("bytes */0") => {
                return Ok(Answer::Empty { version });
            }
            416 => return changed(range.unwrap_or_else(|| "another length".into())),
            408 | 425 | 429 | 500..=599 => {
                let seconds = field("retry-after").and_then(|v| v.trim().parse().ok()).unwrap_or(0);
                return Ok(Answer::Again {
                    why: format!("status {status}"),
                    pause: Duration::from_secs(seconds),
                });
            }
            _ => return Err(RemoteError::Status { url: self.url.clone(), status }),
        }
        let Some((first, total)) = range.as_deref().and_then(content_range) else {
            return Err(RemoteError::NoRanges { url: self.url.clone() });
        };
        if first != from {
            return Err(RemoteError::NoRanges { url: self.url.clone() });
        }
        if self.length != u64::MAX {
            if self.version != version {
                return changed(version.unwrap_or_else(|| "no version".into()));
            }
            if self.length != total {
                return changed(format!("{total} bytes"));
            }
        }
        let wanted = end.min(total) - from.min(total);
        let before = self.block.len();
        let result = response.into_body().into_reader().take(wanted).read_to_end(&mut self.block);
        let got = (self.block.len() - before) as u64;
        self.counts.bytes += got;
        let failure = match result {
            Err(e) => Some(e.to_string()),
            Ok(_) if got < wanted => Some(format!("the body ended after {got} of {wanted} bytes")),
            Ok(_) => None,
        };
        Ok(Answer::Part { total, version, failure })
    }
}

/// First byte and total of `bytes 0-99/1234`.
fn content_range(value: &str) -> Option<(u64, u64)> {
    let (range, total) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total): (u64, u64, u64) =
        (first.trim().parse().ok()?, last.trim().parse().ok()?, total.trim().parse().ok()?);
    (first <= last && last < total).then_some((first, total))
}

impl Read for RemoteFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.length || out.is_empty() {
            return Ok(0);
        }
        let end = self.block_start + self.block.len() as u64;
        if !(self.block_start..end).contains(&self.at) {
            self.fetch(self.at)?;
        }
        let have = &self.block[(self.at - self.block_start) as usize..];
        let count = have.len().min(out.len());
        out[..count].copy_from_slice(&have[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for RemoteFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::End(n) => self.length.checked_add_signed(n),
            SeekFrom::Current(n) => self.at.checked_add_signed(n),
        };
        self.at =
            target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the file's start"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 0-99/1234"), Some((0, 1234)));
        assert_eq!(content_range("bytes 5-5/6"), Some((5, 6)));
        for bad in ["bytes 0-99/*", "bytes */5", "bytes 9-5/20", "bytes 0-20/20", "items 0-1/2", ""] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
