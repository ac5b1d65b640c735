//! Uploads: a file in parts, and a small object that is created once.

use crate::stores::Stores;
use crate::{Object, Put, RemoteError};
use bytes::Bytes;
use object_store::{Error, MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::collections::VecDeque;
use std::io;
use tokio::task::JoinHandle;

/// Most parts of an upload that S3 takes.
const MOST_PARTS: u64 = 10_000;

/// Parts that are on their way, oldest first.
type InFlight = VecDeque<(u64, JoinHandle<object_store::Result<()>>)>;

impl Stores {
    /// Uploads a file of `bytes` bytes, which `read` fills in at positions, and replaces what is there. When this returns, the
    /// object has this length, and a store that checks what it receives has checked it (S3: SHA-256). `progress` gets the bytes of
    /// each part that the store has.
    ///
    /// A file of more than [`crate::RemoteOptions::part_bytes`] goes up in parts, several at a time; nothing of it is visible before
    /// all of them are there, and when one fails the others are taken back.
    ///
    /// # Errors
    /// The store refuses, is full or cannot be reached; `read` fails; an address behind HTTP.
    pub fn put(
        &self,
        url: &str,
        bytes: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RemoteError> {
        check_writable(url)?;
        let mut part = |from: u64, length: u64| {
            let mut buffer = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            let read = read(from, &mut buffer);
            read.map_err(|e| RemoteError::Source { url: url.into(), problem: e.to_string() })?;
            Ok::<_, RemoteError>(PutPayload::from_bytes(Bytes::from(buffer)))
        };
        let (store, path) = self.open_url(url)?;
        let length = (self.options().part_bytes as u64).max(bytes.div_ceil(MOST_PARTS));
        if bytes <= length {
            let payload = part(0, bytes)?;
            let put = self.block_on(store.put(&path, payload));
            put.map_err(|e| self.error(url, "uploading", &e))?;
            progress(bytes);
        } else {
            let begun = self.block_on(store.put_multipart(&path));
            let mut upload = begun.map_err(|e| self.error(url, "beginning an upload", &e))?;
            let mut in_flight = InFlight::new();
            let sizes = (bytes, length);
            if let Err(error) = self.put_parts(url, sizes, &mut *upload, &mut in_flight, &mut part, progress)
            {
                // A part that arrives behind the end of its upload would stay for ever.
                for (_, handle) in in_flight {
                    handle.abort();
                    let _ = self.block_on(handle);
                }
                // Best effort: what stays is not visible, and a rule of the bucket removes it.
                let _ = self.block_on(upload.abort());
                return Err(error);
            }
        }
        let found = self.stat(url)?.bytes;
        if found == bytes {
            return Ok(());
        }
        let last = format!("{bytes} bytes were sent, the store has {found}");
        Err(RemoteError::GaveUp { url: url.into(), what: "checking the upload".into(), attempts: 1, last })
    }

    fn put_parts(
        &self,
        url: &str,
        (bytes, length): (u64, u64),
        upload: &mut dyn MultipartUpload,
        in_flight: &mut InFlight,
        part: &mut dyn FnMut(u64, u64) -> Result<PutPayload, RemoteError>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RemoteError> {
        let mut finish = |in_flight: &mut InFlight| {
            let Some((sent, handle)) = in_flight.pop_front() else { return Ok(()) };
            let result = self.block_on(handle).unwrap_or_else(|e| Err(Error::JoinError { source: e }));
            result.map_err(|e| self.error(url, "uploading a part", &e))?;
            progress(sent);
            Ok(())
        };
        let mut from = 0;
        while from < bytes {
            let here = length.min(bytes - from);
            let payload = part(from, here)?;
            in_flight.push_back((here, self.spawn(upload.put_part(payload))));
            from += here;
            if in_flight.len() >= self.options().parts {
                finish(in_flight)?;
            }
        }
        while !in_flight.is_empty() {
            finish(in_flight)?;
        }
        let completed = self.block_on(upload.complete());
        completed.map(|_| ()).map_err(|e| self.error(url, "completing an upload", &e))
    }

    /// Makes an object that must not exist, in one request: of several who try, one succeeds, and a reader sees all of it or nothing.
    ///
    /// [`Put::Exists`] is also the answer to a request that was made twice because the answer to the first one was lost; the caller
    /// compares what is there.
    ///
    /// # Errors
    /// The store refuses, is full, cannot be reached, or knows no conditional requests; an address behind HTTP.
    pub fn put_if_absent(&self, url: &str, bytes: &[u8]) -> Result<Put, RemoteError> {
        check_writable(url)?;
        let (store, path) = self.open_url(url)?;
        let mut failures = 0;
        loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
            match self.block_on(store.put_opts(&path, payload, options)) {
                Ok(_) => return Ok(Put::Created),
                Err(Error::AlreadyExists { .. }) => return Ok(Put::Exists),
                Err(error) => {
                    failures += 1;
                    let error = self.error(url, "creating", &error);
                    // A connection that broke behind the request is not tried again below this: the request may have arrived.
                    if failures >= self.options().attempts || !matches!(error, RemoteError::GaveUp { .. }) {
                        return Err(error);
                    }
                    self.pause(failures);
                }
            }
        }
    }

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// The store refuses or cannot be reached; an address behind HTTP.
    pub fn delete(&self, url: &str) -> Result<(), RemoteError> {
        check_writable(url)?;
        let (store, path) = self.open_url(url)?;
        match self.block_on(store.delete(&path)) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error(url, "removing", &error)),
        }
    }

    /// All bytes of a small object, with the version that they belong to.
    ///
    /// # Errors
    /// As [`Stores::stat`]; an object of more than `most` bytes.
    pub fn read_small(&self, url: &str, most: u64) -> Result<(Object, Vec<u8>), RemoteError> {
        let object = self.stat(url)?;
        if object.bytes > most {
            let problem = format!("{url}: {} bytes, at most {most} are read", object.bytes);
            return Err(RemoteError::Options(problem));
        }
        let bytes = self.read(&object, 0..object.bytes)?;
        Ok((object, bytes))
    }
}

fn check_writable(url: &str) -> Result<(), RemoteError> {
    match url.split_once("://") {
        Some(("http" | "https", _)) => Err(RemoteError::Options(format!(
            "{url}: HTTP addresses can be read but not written; expected s3://BUCKET/KEY, gs://BUCKET/KEY or \
             az://CONTAINER/KEY"
        ))),
        _ => Ok(()),
    }
}
