//! JPEG, PNG, WebP and their EXIF blocks.

use bessemer_media::{Limits, hash, image};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let limits = Limits { pixels: 1 << 20, ..Limits::default() };
    let _ = image::header(data);
    if let Ok(decoded) = image::decode(data, [255; 3], &limits) {
        assert!((decoded.width() * decoded.height()) as u64 <= limits.pixels);
        let _ = hash::dhash(&decoded);
    }
}
