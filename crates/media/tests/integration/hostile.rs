//! Bytes that nobody meant well: an error each, never a panic that leaves the crate, never memory that was not there.

use bessemer_media::image::Orientation;
use bessemer_media::pairs::TarReader;
use bessemer_media::shard::ShardReader;
use bessemer_media::{Limits, MediaError, audio, image, sniff};
use proptest::prelude::*;
use std::path::PathBuf;

const IMAGES: [&str; 9] = [
    "baseline.jpg",
    "progressive.jpg",
    "gray.jpg",
    "cmyk.jpg",
    "rgb8.png",
    "palette-alpha.png",
    "rgb16.png",
    "lossless.webp",
    "lossy.webp",
];
const SOUNDS: [&str; 4] = ["stereo.wav", "tone.flac", "tone.mp3", "tone.ogg"];

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

/// Small, so that what slips past a header check would be noticed.
fn limits() -> Limits {
    Limits { pixels: 1 << 16, audio_samples: 1 << 17, ..Limits::default() }
}

/// Decodes whatever it is; an image or a sound that comes out keeps within the limits.
fn decode(bytes: &[u8]) -> Result<(), MediaError> {
    let limits = limits();
    if sniff(bytes).is_some_and(|k| k.is_audio()) {
        let sound = audio::decode(bytes, &limits)?;
        assert!(sound.samples.len() as u64 <= limits.audio_samples && sound.rate > 0);
        return Ok(());
    }
    let _ = image::header(bytes);
    let picture = image::decode(bytes, [0; 3], &limits)?;
    assert!((picture.width() * picture.height()) as u64 <= limits.pixels);
    Ok(())
}

#[test]
fn truncated_images_are_refused_wherever_they_end() {
    for name in IMAGES {
        let whole = bytes(name);
        decode(&whole).unwrap();
        // The last bytes may be padding or a trailer that no decoder needs.
        for cut in (0..whole.len() * 9 / 10).step_by(41) {
            assert!(decode(&whole[..cut]).is_err(), "{name} cut to {cut} of {} bytes", whole.len());
        }
    }
}

#[test]
fn truncated_sounds_are_refused_or_shorter() {
    for name in SOUNDS {
        let whole = bytes(name);
        let full = audio::decode(&whole, &limits()).unwrap().samples.len();
        for cut in (0..whole.len() * 9 / 10).step_by(997) {
            match audio::decode(&whole[..cut], &limits()) {
                // MPEG and Ogg are streams: what is there can be played.
                Ok(part) => assert!(
                    part.samples.len() < full && !name.ends_with("wav") && !name.ends_with("flac"),
                    "{name} {cut}"
                ),
                Err(e) => assert!(
                    ["damaged", "unknown-format", "unsupported"].contains(&e.reason()),
                    "{name} {cut}: {e}"
                ),
            }
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |c, &b| {
        (0..8).fold(c ^ u32::from(b), |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    })
}

#[test]
fn bombs_are_refused_by_their_headers() {
    // PNG: 100,000 x 100,000 pixels in an otherwise valid header.
    let mut png = bytes("rgb8.png");
    png[16..20].copy_from_slice(&100_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&100_000u32.to_be_bytes());
    let sum = crc(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(image::header(&png).unwrap(), (100_000, 100_000));
    let e = image::decode(&png, [0; 3], &Limits::default()).unwrap_err();
    assert!(matches!(e, MediaError::TooLarge { found: 10_000_000_000, .. }), "{e}");
    // JPEG: 65,535 x 65,535 in the frame header.
    let mut jpeg = bytes("baseline.jpg");
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    let e = image::decode(&jpeg, [0; 3], &Limits::default()).unwrap_err();
    assert_eq!(e.reason(), "too-large", "{e}");
    // WebP, lossless: 16,383 x 16,383 in fields of 14 bits after the signature.
    let mut webp = bytes("lossless.webp");
    let fields = u32::from_le_bytes(webp[21..25].try_into().unwrap()) & 0xf000_0000 | 16_382 << 14 | 16_382;
    webp[21..25].copy_from_slice(&fields.to_le_bytes());
    let e = image::decode(&webp, [0; 3], &Limits::default()).unwrap_err();
    assert_eq!(e.reason(), "too-large", "{e}");
    // FLAC: 2^36 - 1 samples announced in STREAMINFO.
    let mut flac = bytes("tone.flac");
    flac[21] |= 0x0f;
    flac[22..26].fill(0xff);
    let e = audio::decode(&flac, &Limits::default()).unwrap_err();
    assert_eq!(e.reason(), "too-large", "{e}");
    // WAV: 4 GiB announced in its data chunk, as a stream that was never finished has it.
    let mut wav = bytes("tone.wav");
    wav[40..44].fill(0xff);
    assert!(audio::decode(&wav, &Limits::default()).is_err());
    // Files that exceed the limit are not looked at.
    let small = Limits { file_bytes: 100, ..Limits::default() };
    assert_eq!(image::decode(&bytes("rgb8.png"), [0; 3], &small).unwrap_err().reason(), "too-large");
}

#[test]
fn foreign_bytes_are_told_as_such() {
    for junk in [&b""[..], b"x", b"GIF89a...", b"<html>", &[0; 1000]] {
        assert_eq!(image::decode(junk, [0; 3], &Limits::default()).unwrap_err().reason(), "unknown-format");
        assert_eq!(audio::decode(junk, &Limits::default()).unwrap_err().reason(), "unknown-format");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_media_never_escapes(
        file in 0..IMAGES.len() + SOUNDS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = bytes(IMAGES.iter().chain(&SOUNDS).nth(file).unwrap());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn headers_alone_may_say_anything(
        file in 0..IMAGES.len() + SOUNDS.len(),
        changes in prop::collection::vec((0usize..64, any::<u8>()), 1..6),
    ) {
        let mut bytes = bytes(IMAGES.iter().chain(&SOUNDS).nth(file).unwrap());
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn exif_tar_and_shards_of_noise_are_errors(noise in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = Orientation::from_exif(&noise);
        let _ = Orientation::from_exif(&[b"II\x2a\0", &noise[..]].concat());
        let mut tar = TarReader::new(&noise[..], 1 << 20);
        while let Ok(Some(_)) = tar.next_entry() {}
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.media");
        std::fs::write(&path, &noise).unwrap();
        prop_assert!(ShardReader::open(&path).is_err());
    }
}
