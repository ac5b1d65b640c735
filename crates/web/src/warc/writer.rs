//! Writes WARC files: for tests, examples and samples.

use super::member::{Compression, DICTIONARY_MAGIC};
use crate::fields::Fields;
use std::io::{self, Write};

/// Writer of WARC 1.1 with one member for each record.
pub struct WarcWriter<W> {
    inner: W,
    compression: Compression,
    dictionary: Vec<u8>,
}

impl<W: Write> WarcWriter<W> {
    /// A writer without dictionary.
    pub fn new(inner: W, compression: Compression) -> Self {
        WarcWriter { inner, compression, dictionary: Vec::new() }
    }

    /// A zstd writer whose first frame holds `dictionary`, itself compressed when `compress` says so.
    ///
    /// # Errors
    /// Writing fails.
    pub fn with_dictionary(mut inner: W, dictionary: &[u8], compress: bool) -> io::Result<Self> {
        let stored = if compress { zstd::bulk::compress(dictionary, 3)? } else { dictionary.to_vec() };
        inner.write_all(&DICTIONARY_MAGIC)?;
        let size = u32::try_from(stored.len()).map_err(|_| io::Error::other("dictionary above 4 GiB"))?;
        inner.write_all(&size.to_le_bytes())?;
        inner.write_all(&stored)?;
        Ok(WarcWriter { inner, compression: Compression::Zstd, dictionary: dictionary.to_vec() })
    }

    /// Writes one record: its fields with `Content-Length` added, and its block. Returns the bytes of the member.
    ///
    /// # Errors
    /// Writing fails, or a name or value holds a line break.
    pub fn write(&mut self, fields: &Fields, block: &[u8]) -> io::Result<u64> {
        let mut record = b"WARC/1.1\r\n".to_vec();
        for (name, value) in fields.iter() {
            if name.is_empty() || name.contains(['\r', '\n', ':']) || value.contains(['\r', '\n']) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("field {name:?}: a line break or colon would end it"),
                ));
            }
            if !name.eq_ignore_ascii_case("Content-Length") {
                record.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
        }
        record.extend_from_slice(format!("Content-Length: {}\r\n\r\n", block.len()).as_bytes());
        record.extend_from_slice(block);
        record.extend_from_slice(b"\r\n\r\n");
        let member = match self.compression {
            Compression::Plain => record,
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(&record)?;
                encoder.finish()?
            }
            Compression::Zstd => {
                let mut compressor = zstd::bulk::Compressor::with_dictionary(3, &self.dictionary)?;
                compressor.include_checksum(true)?;
                compressor.compress(&record)?
            }
        };
        self.inner.write_all(&member)?;
        Ok(member.len() as u64)
    }

    /// Writes a response record of an HTTP message.
    ///
    /// # Errors
    /// As [`WarcWriter::write`].
    pub fn response(&mut self, uri: &str, http: &[u8]) -> io::Result<u64> {
        let fields: Fields = [
            ("WARC-Type", "response"),
            ("WARC-Target-URI", uri),
            ("Content-Type", "application/http; msgtype=response"),
        ]
        .into_iter()
        .collect();
        self.write(&fields, http)
    }

    /// The inner writer.
    pub fn into_inner(self) -> W {
        self.inner
    }
}
