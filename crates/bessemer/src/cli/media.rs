//! `bessemer corpus media`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer corpus media ...`
#[derive(Debug, Subcommand)]
pub(crate) enum MediaCommand {
    /// Show kind, size, length and hashes of a media file.
    ///
    /// Kinds: image, audio, video, media-shard.
    Inspect {
        /// Media file.
        file: PathBuf,
    },
    /// Build shards of image-text, audio-text and video-text pairs.
    ///
    /// Shards hold token ids and arrays.
    Build(MediaBuildArgs),
}

/// How numbers of arrays are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MediaDType {
    F32,
    Bf16,
}

/// Constants that pixels are normalised with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MediaNormalisation {
    Imagenet,
    Clip,
}

/// `bessemer corpus media build`
#[derive(Debug, Args)]
pub(crate) struct MediaBuildArgs {
    /// WebDataset archive (.tar, .tar.gz, .tar.zst) or folder.
    ///
    /// Files with the same name up to the first dot are one sample.
    pub(crate) source: PathBuf,
    /// Folder to write the shards to.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// File tokenizer.json or run directory.
    #[arg(long)]
    pub(crate) tokenizer: PathBuf,
    /// Side of the square image in pixels, a multiple of the patch.
    #[arg(long, default_value_t = 224)]
    pub(crate) image_size: usize,
    /// Side of a patch in pixels.
    #[arg(long, default_value_t = 16)]
    pub(crate) patch: usize,
    /// Normalise pixels with these constants [default: store bytes].
    #[arg(long, value_name = "CONSTANTS")]
    pub(crate) normalize: Option<MediaNormalisation>,
    /// Element type of audio and normalised pixels.
    #[arg(long, value_enum, default_value_t = MediaDType::F32)]
    pub(crate) dtype: MediaDType,
    /// Mel bands of audio, e.g. 80 or 128 (Whisper); required for audio.
    #[arg(long)]
    pub(crate) mels: Option<usize>,
    /// Seconds of audio: shorter is padded, longer is an error.
    #[arg(long, default_value_t = 30)]
    pub(crate) audio_seconds: usize,
    /// Frames per video, evenly spaced.
    #[arg(long, default_value_t = 8)]
    pub(crate) frames: usize,
    /// Skip images whose pHash differs from an earlier one in at most N of 64 bits.
    #[arg(long, value_name = "N")]
    pub(crate) near_duplicates: Option<u32>,
    /// Size of a shard file in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) shard_size: u64,
    /// Threads; 0 for all cores. The result does not depend on it.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: u64,
}
