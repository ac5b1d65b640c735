//! One sample: its media file to an array, its text to tokens.

use super::BuildConfig;
use crate::audio::{self, LogMel, Padding, RATE, Resampler};
use crate::image::{self, Filter, Image};
use crate::pairs::RawSample;
use crate::shard::{Array, DType, Sample};
use crate::sniff::{Kind, sniff};
use crate::video::{Ffmpeg, Seek};
use crate::{MediaError, Result, hash};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The caller's tokenizer.
pub struct Encode<'a> {
    /// Token ids of a text. Called by several threads.
    pub encode: &'a (dyn Fn(&str) -> std::result::Result<Vec<u32>, String> + Sync),
    /// Number of token ids.
    pub vocab_size: u32,
    /// Fingerprint of the tokenizer.
    pub fingerprint: [u8; 32],
}

impl std::fmt::Debug for Encode<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encode").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// A sample with the hash of its picture, if it is one.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) sample: Sample,
    pub(super) phash: Option<u64>,
}

/// Makes samples; one for each thread, because it keeps tables and scratch space.
#[derive(Debug)]
pub struct Processor<'a> {
    config: &'a BuildConfig,
    encode: &'a Encode<'a>,
    mel: Option<LogMel>,
    resamplers: HashMap<u32, Resampler>,
    /// Path of a video while FFmpeg reads it.
    scratch: PathBuf,
}

/// Resamplers kept for rates that come again.
const MOST_RESAMPLERS: usize = 16;

impl<'a> Processor<'a> {
    /// A processor that may write the file `scratch`.
    ///
    /// # Errors
    /// [`MediaError::Argument`] for a configuration that cannot be.
    pub fn new(config: &'a BuildConfig, encode: &'a Encode<'a>, scratch: PathBuf) -> Result<Processor<'a>> {
        config.check()?;
        let mel = config.mels.map(LogMel::new).transpose()?;
        Ok(Processor { config, encode, mel, resamplers: HashMap::new(), scratch })
    }

    /// The sample of raw files.
    ///
    /// # Errors
    /// Those of the decoders and of the tokenizer; [`MediaError::Sample`] where media or text is missing or there twice.
    pub fn sample(&mut self, raw: &RawSample) -> Result<Sample> {
        Ok(self.make(raw)?.sample)
    }

    pub(super) fn make(&mut self, raw: &RawSample) -> Result<Made> {
        let text = text_of(raw)?;
        let mut media =
            raw.members.iter().filter_map(|(_, bytes)| Some((sniff(bytes).filter(|k| is_media(*k))?, bytes)));
        let Some((kind, bytes)) = media.next() else {
            let found: Vec<&str> = raw.members.iter().map(|(e, _)| e.as_str()).collect();
            let what =
                format!("wanted one image, audio or video file, found none among the extensions {found:?}");
            return Err(MediaError::Sample(what));
        };
        if media.next().is_some() {
            return Err(MediaError::Sample("wanted one image, audio or video file, found several".into()));
        }
        let tokens = (self.encode.encode)(&text).map_err(MediaError::Tokenizer)?;
        let (array, phash) = match kind {
            Kind::Video => (self.video(bytes)?, None),
            k if k.is_audio() => (self.audio(bytes)?, None),
            _ => self.image(bytes)?,
        };
        Ok(Made { sample: Sample { key: raw.key.clone(), tokens, array }, phash })
    }

    /// `[patches, patch * patch * 3]`
    fn image(&self, bytes: &[u8]) -> Result<(Array, Option<u64>)> {
        let image = image::decode(bytes, self.config.background, &self.config.limits)?;
        let phash = self.config.near_duplicates.map(|_| hash::phash(&image)).transpose()?;
        let (patches, shape) = self.patches(&image)?;
        Ok((self.pixels(patches, &shape)?, phash))
    }

    fn patches(&self, image: &Image) -> Result<(Vec<u8>, [u32; 2])> {
        let (size, patch) = (self.config.image_size, self.config.patch);
        // A strip would grow to something huge before it is cut: the limit holds for what is made, too.
        let (short, long) =
            (image.width().min(image.height()) as u64, image.width().max(image.height()) as u64);
        let found = (size as u64 * size as u64).saturating_mul(long) / short.max(1);
        let limit = self.config.limits.pixels.max(4 * (size * size) as u64);
        if found > limit {
            return Err(MediaError::TooLarge { what: "pixels of an image after resizing", limit, found });
        }
        let image = image::resize_shorter_side(image, size, Filter::Bicubic)?;
        let image = image.crop(image::centre_crop((image.width(), image.height()), size, size))?;
        let grid = (size / patch) as u32;
        Ok((image::patchify(&image, patch)?, [grid * grid, (patch * patch * 3) as u32]))
    }

    fn pixels(&self, patches: Vec<u8>, shape: &[u32]) -> Result<Array> {
        match self.config.normalised {
            None => Array::new(DType::U8, shape, patches),
            Some((normalisation, dtype)) => Array::from_f32(dtype, shape, &normalisation.apply(&patches)),
        }
    }

    /// `[mels, frames]`
    fn audio(&mut self, bytes: &[u8]) -> Result<Array> {
        let Some(mel) = &mut self.mel else {
            return Err(MediaError::Unsupported {
                format: "audio",
                what: "a sample with audio".into(),
                hint: "set the number of mel bands (--mels 80 or 128)",
            });
        };
        let decoded = audio::decode(bytes, &self.config.limits)?;
        let most = self.config.audio_seconds as u64;
        if decoded.samples.len() as u64 > most * u64::from(decoded.rate) {
            let found = decoded.seconds().ceil() as u64;
            return Err(MediaError::TooLarge { what: "seconds of audio", limit: most, found });
        }
        let samples = if decoded.rate == RATE {
            decoded.samples
        } else {
            if !self.resamplers.contains_key(&decoded.rate) {
                if self.resamplers.len() == MOST_RESAMPLERS {
                    self.resamplers.clear();
                }
                self.resamplers.insert(decoded.rate, Resampler::new(decoded.rate, RATE)?);
            }
            self.resamplers[&decoded.rate].run(&decoded.samples)
        };
        let length = self.config.audio_seconds * RATE as usize;
        let values = mel.compute(&samples, Padding::To(length))?;
        let mels = self.config.mels.unwrap_or_default();
        Array::from_f32(self.config.audio_dtype, &[mels as u32, (values.len() / mels.max(1)) as u32], &values)
    }

    /// `[frames, patches, patch * patch * 3]`
    fn video(&self, bytes: &[u8]) -> Result<Array> {
        let file = Scratch::write(&self.scratch, bytes)?;
        let limits = &self.config.limits;
        let frames = Ffmpeg::default().uniform_frames(&file.0, self.config.frames, Seek::Exact, limits)?;
        let mut all = Vec::new();
        let mut shape = [0; 2];
        for frame in &frames {
            let patches;
            (patches, shape) = self.patches(frame)?;
            all.extend(patches);
        }
        self.pixels(all, &[frames.len() as u32, shape[0], shape[1]])
    }
}

/// A file that goes when it is no longer needed. FFmpeg must be able to seek, which a pipe cannot.
struct Scratch(PathBuf);

impl Scratch {
    fn write(path: &Path, bytes: &[u8]) -> Result<Scratch> {
        let file = Scratch(path.to_owned());
        let written = bessemer_durable::create_replacing(path).and_then(|mut file| file.write_all(bytes));
        written.map_err(|e| MediaError::io(path, "write", e))?;
        Ok(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is hidden and overwritten by the next.
        let _ = bessemer_durable::remove_file(&self.0);
    }
}

fn is_media(kind: Kind) -> bool {
    kind.is_image() || kind.is_audio() || kind == Kind::Video
}

/// The text: `txt`, `text` or `caption` as it is, or `json` with a string under `text` or `caption`.
fn text_of(raw: &RawSample) -> Result<String> {
    let member = |name: &str| raw.members.iter().find(|(e, _)| e == name).map(|(_, b)| b);
    if let Some(bytes) = ["txt", "text", "caption"].into_iter().find_map(member) {
        let text =
            bessemer_durable::decode_text(bytes.clone()).map_err(|e| MediaError::damaged("text", e))?;
        return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    if let Some(bytes) = member("json") {
        let text =
            bessemer_durable::decode_text(bytes.clone()).map_err(|e| MediaError::damaged("JSON", e))?;
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| MediaError::damaged("JSON", e))?;
        if let Some(text) = ["text", "caption"].into_iter().find_map(|k| json.get(k)?.as_str()) {
            return Ok(text.to_owned());
        }
    }
    let found: Vec<&str> = raw.members.iter().map(|(e, _)| e.as_str()).collect();
    Err(MediaError::Sample(format!(
        "wanted a text (.txt, .text, .caption, or .json with a string `text` or `caption`), found the extensions {found:?}"
    )))
}
