//! JPEG, PNG, WebP and their EXIF blocks.
#![no_main]

use bessemer_media::{Limits, hash, image};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: bessemer_fuzz::caught_panics_are_errors(), |data: &[u8]| {
    let limits = Limits { pixels: 1 << 20, ..Limits::default() };
    let _ = image::header(data);
    if let Ok(decoded) = image::decode(data, [255; 3], &limits) {
        assert!((decoded.width() * decoded.height()) as u64 <= limits.pixels);
        let _ = hash::dhash(&decoded);
    }
});
