//! From samples to shards.
//!
//! Samples are read in order, in batches of bounded size; the threads share the samples of a batch; what they made is written in
//! order. So the files are the same for any number of threads. Near-duplicates are decided where the order is known, at the
//! writer: a picture goes that lies within the distance of an earlier one that stayed.

mod batch;
mod process;

pub use batch::Builder;
pub use process::{Encode, Processor};

use crate::image::Normalisation;
use crate::shard::DType;
use crate::{Limits, MediaError, Result, pairs};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// How samples become arrays.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildConfig {
    /// Side of the square picture; a multiple of `patch`. Pictures are resized (bicubic) so that their shorter side has it, and cut
    /// at the centre.
    pub image_size: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Colour of transparent parts of a picture.
    pub background: [u8; 3],
    /// Store normalised pictures in this type; `None` stores the bytes of the pixels.
    pub normalised: Option<(Normalisation, DType)>,
    /// Mel bands of audio: 80 or 128; `None` refuses audio.
    pub mels: Option<usize>,
    /// Seconds of audio: padded with silence; longer audio is refused, because its text speaks of all of it.
    pub audio_seconds: usize,
    /// Element type of audio.
    pub audio_dtype: DType,
    /// Frames of a video.
    pub frames: usize,
    /// Drop pictures whose pHash lies within so many bits of an earlier one.
    pub near_duplicates: Option<u32>,
    /// Length at which a shard file is finished.
    pub shard_bytes: u64,
    /// Number of threads; no influence on the result.
    pub threads: usize,
    /// Limits of the cost of one file.
    pub limits: Limits,
}

impl Default for BuildConfig {
    /// 224 pixels in patches of 16, over white, as bytes; 30 s of audio as f32 if bands are given; 8 frames; files of 256 MiB.
    fn default() -> BuildConfig {
        BuildConfig {
            image_size: 224,
            patch: 16,
            background: [255; 3],
            normalised: None,
            mels: None,
            audio_seconds: 30,
            audio_dtype: DType::F32,
            frames: 8,
            near_duplicates: None,
            shard_bytes: 256 << 20,
            threads: 1,
            limits: Limits::default(),
        }
    }
}

impl BuildConfig {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`MediaError::Argument`].
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(MediaError::Argument(what));
        let (size, patch) = (self.image_size, self.patch);
        if patch == 0 || size == 0 || size > 1 << 14 || size % patch != 0 {
            return wrong(format!(
                "image size {size} with patches of {patch}: wanted a size from 1 to 16,384 that is a multiple of the patch"
            ));
        }
        if !(1..=3600).contains(&self.audio_seconds) {
            return wrong(format!("audio seconds: wanted 1 to 3,600, found {}", self.audio_seconds));
        }
        if !(1..=1024).contains(&self.frames) {
            return wrong(format!("video frames: wanted 1 to 1,024, found {}", self.frames));
        }
        if !(1..=4096).contains(&self.threads) {
            return wrong(format!("threads: wanted 1 to 4,096, found {}", self.threads));
        }
        if self.audio_dtype == DType::U8 || self.normalised.is_some_and(|(_, d)| d == DType::U8) {
            return wrong(
                "numbers of audio and normalised pictures are stored as f32 or bf16, not u8".into(),
            );
        }
        Ok(())
    }

    /// What the arrays depend on, for the list of the set.
    fn settings(&self) -> serde_json::Value {
        serde_json::json!({
            "image_size": self.image_size,
            "patch": self.patch,
            "background": self.background,
            "normalised": self.normalised.map(|(n, d)| serde_json::json!({
                "mean": n.mean, "std": n.std, "dtype": d.name(),
            })),
            "mels": self.mels,
            "audio_seconds": self.audio_seconds,
            "audio_dtype": self.audio_dtype.name(),
            "frames": self.frames,
            "near_duplicates": self.near_duplicates,
        })
    }
}

/// Counts of a build: read, kept, left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Samples that were read.
    pub read: u64,
    /// Samples in the shards.
    pub kept: u64,
    /// Pictures left out as near-duplicates.
    pub near_duplicates: u64,
    /// Samples and files that failed, by reason.
    pub failed: BTreeMap<String, u64>,
}

impl Counts {
    /// Samples and files that failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// Every failure, one JSON object a line: `key`, `reason`, `detail`.
pub const FAILURES_FILE: &str = "failures.jsonl";

/// Builds the shards of a tar archive or a folder. `progress` is called after every batch and may stop.
///
/// # Errors
/// [`MediaError::Argument`], [`MediaError::Io`], [`MediaError::Archive`] for an archive that cannot be read to its end (the folder has
/// no list then), [`MediaError::Stopped`]. A sample that fails is counted, and the build goes on.
pub fn build(
    source: &Path,
    out: &Path,
    config: &BuildConfig,
    encode: &Encode<'_>,
    mut progress: impl FnMut(&Counts) -> ControlFlow<()>,
) -> Result<Counts> {
    let mut builder = Builder::create(out, config, encode)?;
    let mut failed = None;
    let read = pairs::read(source, &config.limits, |event| match builder.push(event, &mut progress) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            failed = Some(e);
            ControlFlow::Break(())
        }
    });
    if let Some(e) = failed {
        return Err(e);
    }
    read?;
    builder.finish(&mut progress)
}
