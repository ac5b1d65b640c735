//! Images, audio and video as arrays of numbers: decoding, resizing, patches, log-mel spectrograms, perceptual hashes; image-text
//! pairs from tar archives and folders into `media-shard` files of token ids and arrays.
//!
//! - [`image`]: JPEG, PNG and WebP to 8-bit RGB; resizing as Pillow does; crops, normalisation, patches, PSNR.
//! - [`hash`]: dHash, pHash, and groups of near-duplicates by Hamming distance.
//! - [`audio`]: WAV, FLAC, MP3 and Ogg Vorbis to mono samples; resampling; Whisper's log-mel spectrogram.
//! - [`video`]: frames of a video through the `ffmpeg` program.
//! - [`pairs`]: samples from WebDataset archives and folders.
//! - [`shard`]: the `media-shard` format (specified in the crate's README): writer, reader, set of files.
//! - [`build`]: from samples to shards, in any number of threads with the same bytes.
//!
//! What comes in is not trusted: sizes are checked before memory is asked for ([`Limits`]), and a decoder that panics fails one
//! sample ([`guarded`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod audio;
pub mod build;
mod error;
pub mod hash;
pub mod image;
mod inspect;
mod limits;
pub mod pairs;
pub mod shard;
mod sniff;
pub mod video;

pub use error::{MediaError, Result, guarded};
pub use inspect::{Inspection, inspect};
pub use limits::Limits;
pub use sniff::{Kind, sniff};
