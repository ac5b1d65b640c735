//! What a file is, by its first bytes. Names are not trusted.

/// A kind of file that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// JPEG image.
    Jpeg,
    /// PNG image.
    Png,
    /// WebP image.
    Webp,
    /// RIFF WAVE audio.
    Wav,
    /// FLAC audio.
    Flac,
    /// MPEG-1/2 layer III audio.
    Mp3,
    /// Ogg container (Vorbis audio).
    Ogg,
    /// A container that `ffmpeg` reads: MP4/QuickTime, Matroska/WebM, AVI.
    Video,
    /// A `media-shard` file.
    Shard,
    /// A tar archive.
    Tar,
    /// A gzip stream.
    Gzip,
    /// A Zstandard stream.
    Zstd,
}

impl Kind {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Jpeg => "JPEG",
            Kind::Png => "PNG",
            Kind::Webp => "WebP",
            Kind::Wav => "WAV",
            Kind::Flac => "FLAC",
            Kind::Mp3 => "MP3",
            Kind::Ogg => "Ogg",
            Kind::Video => "video",
            Kind::Shard => "media-shard",
            Kind::Tar => "tar",
            Kind::Gzip => "gzip",
            Kind::Zstd => "Zstandard",
        }
    }

    /// Whether [`crate::image::decode`] reads it.
    pub fn is_image(self) -> bool {
        matches!(self, Kind::Jpeg | Kind::Png | Kind::Webp)
    }

    /// Whether [`crate::audio::decode`] reads it.
    pub fn is_audio(self) -> bool {
        matches!(self, Kind::Wav | Kind::Flac | Kind::Mp3 | Kind::Ogg)
    }
}

/// The kind of a file from its beginning; 512 bytes are enough.
pub fn sniff(bytes: &[u8]) -> Option<Kind> {
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|b| b.starts_with(magic));
    let riff = at(0, b"RIFF");
    let kind = if at(0, b"\xff\xd8\xff") {
        Kind::Jpeg
    } else if at(0, b"\x89PNG\r\n\x1a\n") {
        Kind::Png
    } else if riff && at(8, b"WEBP") {
        Kind::Webp
    } else if riff && at(8, b"WAVE") {
        Kind::Wav
    } else if (riff && at(8, b"AVI ")) || at(4, b"ftyp") || at(4, b"moov") || at(0, b"\x1a\x45\xdf\xa3") {
        Kind::Video
    } else if at(0, b"fLaC") {
        Kind::Flac
    } else if at(0, b"OggS") {
        Kind::Ogg
    } else if at(0, &crate::shard::MAGIC) {
        Kind::Shard
    } else if at(0, b"\x1f\x8b") {
        Kind::Gzip
    } else if at(0, b"\x28\xb5\x2f\xfd") {
        Kind::Zstd
    } else if at(257, b"ustar") {
        Kind::Tar
    } else if at(0, b"ID3") || is_mpeg_audio_frame(bytes) {
        Kind::Mp3
    } else {
        return None;
    };
    Some(kind)
}

/// Eleven bits of sync, then version, layer III, bit rate and sample rate that exist (ISO/IEC 11172-3, 2.4.1.3).
fn is_mpeg_audio_frame(b: &[u8]) -> bool {
    let &[a, b, c, ..] = b else { return false };
    a == 0xff
        && b & 0xe0 == 0xe0
        && b & 0x18 != 0x08
        && b & 0x06 == 0x02
        && c & 0xf0 != 0xf0
        && c & 0x0c != 0x0c
}

/// The first bytes for an error message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (it is empty)".into();
    }
    bytes.iter().take(8).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_by_magic() {
        assert_eq!(sniff(b"RIFF\0\0\0\0WEBPVP8 "), Some(Kind::Webp));
        assert_eq!(sniff(b"RIFF\0\0\0\0WAVEfmt "), Some(Kind::Wav));
        assert_eq!(sniff(b"\0\0\0\x20ftypisom"), Some(Kind::Video));
        assert_eq!(sniff(b"\xff\xfb\x90\x00"), Some(Kind::Mp3));
        assert_eq!(sniff(b"\xff\xf1\x50\x80"), None, "ADTS AAC has layer 0");
        assert_eq!(sniff(b""), None);
        assert_eq!(sniff(b"hello"), None);
    }
}
