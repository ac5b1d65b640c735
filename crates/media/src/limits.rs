//! What one file may cost, checked before memory is asked for.

/// Upper bounds for one file. A file that would exceed one is refused with [`crate::MediaError::TooLarge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of a decoded image or video frame. Decoding takes at most about 12 bytes a pixel.
    pub pixels: u64,
    /// Bytes of one encoded file that is held in memory.
    pub file_bytes: u64,
    /// Decoded audio samples (after mixing to mono); 4 bytes each.
    pub audio_samples: u64,
    /// Seconds that one call of `ffmpeg` or `ffprobe` may take.
    pub program_seconds: u64,
}

impl Default for Limits {
    /// 64 Mi pixels (8,192 x 8,192), 256 MiB a file, 64 Mi samples (23 minutes at 48 kHz), 60 seconds a program.
    fn default() -> Limits {
        Limits { pixels: 1 << 26, file_bytes: 256 << 20, audio_samples: 1 << 26, program_seconds: 60 }
    }
}
