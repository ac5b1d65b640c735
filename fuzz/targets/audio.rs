//! WAV, FLAC, MP3 and Ogg Vorbis.
#![no_main]

use bessemer_media::{Limits, audio};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: bessemer_fuzz::caught_panics_are_errors(), |data: &[u8]| {
    let limits = Limits { audio_samples: 1 << 20, ..Limits::default() };
    let _ = audio::header(data);
    if let Ok(decoded) = audio::decode(data, &limits) {
        assert!(decoded.samples.len() as u64 <= limits.audio_samples);
    }
});
