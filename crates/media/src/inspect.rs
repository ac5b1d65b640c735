//! Kind, size, length and hash of a file.

use crate::shard::ShardReader;
use crate::sniff::{Kind, shown, sniff};
use crate::video::Ffmpeg;
use crate::{Limits, MediaError, Result, audio, hash, image};
use serde::Serialize;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// What [`inspect`] tells. Fields that a kind does not have are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Inspection {
    /// Name of the kind.
    pub kind: &'static str,
    /// Length of the file.
    pub bytes: u64,
    /// Pixels in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u64>,
    /// Rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u64>,
    /// Length in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Samples a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u32>,
    /// Channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
    /// Video codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec: Option<String>,
    /// Difference hash, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhash: Option<String>,
    /// DCT hash, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phash: Option<String>,
    /// Samples of a shard file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Tokens of a shard file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// XXH3-64 of the file's bytes (of images and audio), or the checksum of a shard file; 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xxh3: Option<String>,
}

fn hex(v: u64) -> Option<String> {
    Some(format!("{v:016x}"))
}

/// Looks at one file. Images and audio are decoded whole, shard files verified whole.
///
/// # Errors
/// Those of the decoders; [`MediaError::Unknown`] for other kinds of files.
pub fn inspect(path: &Path, limits: &Limits) -> Result<Inspection> {
    let file = bessemer_durable::open_regular(path).map_err(|e| MediaError::io(path, "open", e))?;
    let info = file.metadata().map_err(|e| MediaError::io(path, "look at", e))?;
    let mut begin = Vec::new();
    (&file).take(512).read_to_end(&mut begin).map_err(|e| MediaError::io(path, "read", e))?;
    let wanted = "an image (JPEG, PNG, WebP), audio (WAV, FLAC, MP3, Ogg), a video, a tar archive or a media-shard file";
    let Some(kind) = sniff(&begin) else { return Err(MediaError::Unknown { wanted, found: shown(&begin) }) };
    let mut seen = Inspection { kind: kind.name(), bytes: info.len(), ..Inspection::default() };
    match kind {
        Kind::Shard => {
            let reader = ShardReader::open(path)?;
            reader.verify()?;
            (seen.samples, seen.tokens) = (Some(reader.len()), Some(reader.tokens()));
            seen.xxh3 = hex(reader.checksum());
        }
        Kind::Video => {
            let header = Ffmpeg::default().probe(path, limits)?;
            (seen.width, seen.height) = (Some(header.width), Some(header.height));
            (seen.seconds, seen.codec) = (Some(header.seconds), Some(header.codec));
        }
        Kind::Tar | Kind::Gzip | Kind::Zstd => {}
        _ => {
            if info.len() > limits.file_bytes {
                let (limit, found) = (limits.file_bytes, info.len());
                return Err(MediaError::TooLarge { what: "bytes of an encoded file", limit, found });
            }
            (&file)
                .take(limits.file_bytes)
                .read_to_end(&mut begin)
                .map_err(|e| MediaError::io(path, "read", e))?;
            seen.xxh3 = hex(xxh3_64(&begin));
            if kind.is_image() {
                let decoded = image::decode(&begin, [255; 3], limits)?;
                (seen.width, seen.height) = (Some(decoded.width() as u64), Some(decoded.height() as u64));
                (seen.dhash, seen.phash) = (hex(hash::dhash(&decoded)?), hex(hash::phash(&decoded)?));
            } else {
                seen.channels = Some(audio::header(&begin)?.channels);
                let decoded = audio::decode(&begin, limits)?;
                (seen.sample_rate, seen.seconds) = (Some(decoded.rate), Some(decoded.seconds()));
            }
        }
    }
    Ok(seen)
}
