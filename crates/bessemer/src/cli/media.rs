//! `bessemer corpus media`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer corpus media ...`
#[derive(Debug, Subcommand)]
pub(crate) enum MediaCommand {
    /// What a file is: image, audio, video or media-shard; its size, length and hashes.
    Inspect {
        /// The file.
        file: PathBuf,
    },
    /// Image-text, audio-text and video-text pairs into shards of token ids and arrays.
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
    /// WebDataset archive (.tar, .tar.gz, .tar.zst) or folder; files with the same name up to the first dot are one sample.
    pub(crate) source: PathBuf,
    /// Folder for the shards.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// tokenizer.json or a run directory.
    #[arg(long)]
    pub(crate) tokenizer: PathBuf,
    /// Side of the square picture in pixels, a multiple of the patch.
    #[arg(long, default_value_t = 224)]
    pub(crate) image_size: usize,
    /// Side of a patch in pixels.
    #[arg(long, default_value_t = 16)]
    pub(crate) patch: usize,
    /// Store pixels normalised with these constants; without it their bytes are stored.
    #[arg(long, value_name = "CONSTANTS")]
    pub(crate) normalize: Option<MediaNormalisation>,
    /// How audio and normalised pixels are stored.
    #[arg(long, value_enum, default_value_t = MediaDType::F32)]
    pub(crate) dtype: MediaDType,
    /// Mel bands of audio (Whisper: 80 or 128); without it samples with audio fail.
    #[arg(long)]
    pub(crate) mels: Option<usize>,
    /// Seconds of audio: shorter audio is padded, longer fails.
    #[arg(long, default_value_t = 30)]
    pub(crate) audio_seconds: usize,
    /// Frames of a video, spread evenly.
    #[arg(long, default_value_t = 8)]
    pub(crate) frames: usize,
    /// Leave out images whose pHash differs in at most N bits (of 64) from that of an earlier one.
    #[arg(long, value_name = "N")]
    pub(crate) near_duplicates: Option<u32>,
    /// Finish a shard file at this many MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) shard_size: u64,
    /// Threads; 0 takes all cores. No influence on the result.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: u64,
}
