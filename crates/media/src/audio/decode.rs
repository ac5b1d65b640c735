//! WAV, FLAC, MP3 and Ogg Vorbis to mono samples, through Symphonia.

use super::Audio;
use crate::sniff::{self, Kind, sniff};
use crate::{Limits, MediaError, Result, guarded};
use std::io::Cursor;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

/// Header of an audio file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioHeader {
    /// Samples a second; 0 where the header does not say.
    pub rate: u32,
    /// Channels; 0 where the header does not say.
    pub channels: usize,
    /// Samples of one channel, where the header says so.
    pub samples: Option<u64>,
}

const WANTED: &str = "WAV, FLAC, MP3 or Ogg Vorbis audio";

struct Opened {
    format: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    header: AudioHeader,
}

/// Decodes the first audio track; channels are averaged. Delay and padding that an encoder noted are cut off.
///
/// # Errors
/// [`MediaError::Unknown`], [`MediaError::Unsupported`] (another codec inside), [`MediaError::Damaged`] (also for files that end in the
/// middle of a packet that was announced), [`MediaError::TooLarge`], [`MediaError::Panicked`].
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Audio> {
    let kind = kind_of(bytes)?;
    crate::image::check_file(bytes, limits)?;
    guarded(kind.name(), || samples(bytes, kind.name(), limits))
}

/// Rate, channels and length of an audio file, from its header.
///
/// # Errors
/// As [`decode`].
pub fn header(bytes: &[u8]) -> Result<AudioHeader> {
    let kind = kind_of(bytes)?;
    guarded(kind.name(), || Ok(open(bytes, kind.name())?.header))
}

fn kind_of(bytes: &[u8]) -> Result<Kind> {
    sniff(bytes)
        .filter(|k| k.is_audio())
        .ok_or_else(|| MediaError::Unknown { wanted: WANTED, found: sniff::shown(bytes) })
}

fn open(bytes: &[u8], name: &'static str) -> Result<Opened> {
    let damaged = |e: Error| match e {
        Error::Unsupported(what) => unsupported(name, what),
        e => MediaError::damaged(name, e),
    };
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes.to_vec())), Default::default());
    let format = symphonia::default::get_probe()
        .probe(&Hint::new(), source, FormatOptions::default(), MetadataOptions::default())
        .map_err(damaged)?;
    let track =
        format.default_track(TrackType::Audio).ok_or_else(|| MediaError::damaged(name, "no audio track"))?;
    let parameters = track.codec_params.as_ref().and_then(|p| p.audio());
    let parameters = parameters.ok_or_else(|| unsupported(name, "an unknown codec"))?;
    let header = AudioHeader {
        rate: parameters.sample_rate.unwrap_or(0),
        channels: parameters.channels.as_ref().map_or(0, |c| c.count()),
        samples: track.num_frames,
    };
    let track = track.id;
    let decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(damaged)?;
    Ok(Opened { format, decoder, track, header })
}

fn unsupported(name: &'static str, what: &str) -> MediaError {
    MediaError::Unsupported {
        format: name,
        what: what.to_owned(),
        hint: "convert it to FLAC, WAV (PCM), MP3 or Ogg Vorbis, for example with ffmpeg",
    }
}

fn samples(bytes: &[u8], name: &'static str, limits: &Limits) -> Result<Audio> {
    let Opened { mut format, mut decoder, track, header } = open(bytes, name)?;
    let too_large =
        |found: u64| MediaError::TooLarge { what: "audio samples", limit: limits.audio_samples, found };
    if let Some(n) = header.samples.filter(|&n| n > limits.audio_samples) {
        return Err(too_large(n));
    }
    let (mut rate, mut samples, mut interleaved) = (0, Vec::new(), Vec::<f32>::new());
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(Error::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(MediaError::damaged(name, "the file ends in the middle of a packet"));
            }
            Err(Error::ResetRequired) => return Err(unsupported(name, "several streams one after another")),
            Err(e) => return Err(MediaError::damaged(name, e)),
        };
        if packet.track_id != track {
            continue;
        }
        let decoded = decoder.decode(&packet).map_err(|e| MediaError::damaged(name, e))?;
        let spec = decoded.spec();
        let channels = spec.channels().count();
        if channels == 0 || spec.rate() == 0 || (rate != 0 && rate != spec.rate()) {
            let now = spec.rate();
            return Err(MediaError::damaged(
                name,
                format!("{channels} channels at {now} Hz after {rate} Hz"),
            ));
        }
        rate = spec.rate();
        let found = samples.len() as u64 + decoded.frames() as u64;
        if found > limits.audio_samples {
            return Err(too_large(found));
        }
        decoded.copy_to_vec_interleaved(&mut interleaved);
        let share = 1.0 / channels as f32;
        samples.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share));
    }
    if samples.is_empty() {
        return Err(MediaError::damaged(name, "no samples"));
    }
    // Headers of MP3 and raw streams may state nothing; what they state of a lossless file must be there.
    let lossless = matches!(name, "WAV" | "FLAC");
    if let Some(n) = header.samples.filter(|&n| lossless && n > samples.len() as u64) {
        let found = samples.len();
        return Err(MediaError::damaged(name, format!("the header announces {n} samples, found {found}")));
    }
    Ok(Audio { rate, samples })
}
