//! WAV, FLAC, MP3 and Ogg Vorbis.

use bessemer_media::{Limits, audio};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let limits = Limits { audio_samples: 1 << 20, ..Limits::default() };
    let _ = audio::header(data);
    if let Ok(decoded) = audio::decode(data, &limits) {
        assert!(decoded.samples.len() as u64 <= limits.audio_samples);
    }
}
