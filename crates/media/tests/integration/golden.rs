//! What Pillow, imagehash and transformers make of the same files (`golden/media/make.py`).

use bessemer_media::audio::{self, LogMel, N_FFT, Padding, RATE, Resampler, mel_filters};
use bessemer_media::image::{self, Filter, Image, resize};
use bessemer_media::{Limits, hash};
use serde_json::Value;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn decoded(name: &str) -> Image {
    image::decode(&bytes(name), [255; 3], &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn golden() -> Value {
    serde_json::from_slice(&bytes("golden.json")).unwrap()
}

fn f32s(name: &str) -> Vec<f32> {
    bytes(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// (largest, mean) distance of two lists of bytes.
fn distances(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let each = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (each().max().unwrap_or(0), each().map(f64::from).sum::<f64>() / a.len() as f64)
}

#[test]
fn lossless_files_decode_as_in_pillow() {
    for name in [
        "rgb8.png",
        "rgb16.png",
        "palette.png",
        "gray1.png",
        "gray8.png",
        "rgba.png",
        "la.png",
        "palette-alpha.png",
        "lossless.webp",
        "alpha.webp",
    ] {
        let ours = decoded(name);
        assert_eq!((ours.width(), ours.height()), (61, 47), "{name}");
        assert_eq!(image::header(&bytes(name)).unwrap(), (61, 47), "{name}");
        // Pillow converts gray with alpha through other roundings.
        let (most, _) = distances(ours.data(), &bytes(&format!("{name}.rgb")));
        assert!(most <= 1, "{name}: {most} levels");
    }
}

#[test]
fn lossy_files_decode_near_pillow() {
    // Decoders may round the inverse DCT and interpolate chroma differently (ISO/IEC 10918-2 allows it).
    for (name, size, most, mean) in [
        ("baseline.jpg", (61, 47), 2, 0.1),
        ("rotated.jpg", (47, 61), 2, 0.1),
        ("subsampled.jpg", (61, 47), 3, 0.5),
        ("progressive.jpg", (61, 47), 3, 0.5),
        ("gray.jpg", (61, 47), 1, 0.1),
        ("cmyk.jpg", (61, 47), 2, 0.1),
        ("lossy.webp", (61, 47), 1, 0.1),
    ] {
        let ours = decoded(name);
        assert_eq!((ours.width(), ours.height()), size, "{name}");
        assert_eq!(image::header(&bytes(name)).unwrap(), (size.0 as u64, size.1 as u64), "{name}");
        let found = distances(ours.data(), &bytes(&format!("{name}.rgb")));
        println!("{name}: at most {} levels, {:.3} on average", found.0, found.1);
        assert!(found.0 <= most && found.1 <= mean, "{name}: {found:?}");
    }
}

#[test]
fn resizing_is_pillows_bit_for_bit() {
    let source = decoded("rgb8.png");
    for case in golden()["resizes"].as_array().unwrap() {
        let filter = match case["filter"].as_str().unwrap() {
            "box" => Filter::Box,
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let side = |name: &str| case[name].as_u64().unwrap() as usize;
        let ours = resize(&source, side("width"), side("height"), filter).unwrap();
        assert!(ours.data() == bytes(case["file"].as_str().unwrap()), "{case}");
    }
}

#[test]
fn hashes_are_those_of_imagehash() {
    let golden = golden();
    let families = golden["families"].as_array().unwrap().iter();
    for case in golden["hashes"].as_array().unwrap().iter().chain(families) {
        let image = decoded(case["file"].as_str().unwrap());
        let ours = [hash::dhash(&image).unwrap(), hash::phash(&image).unwrap()].map(|h| format!("{h:016x}"));
        assert_eq!(
            [ours[0].as_str(), ours[1].as_str()],
            [case["dhash"].as_str().unwrap(), case["phash"].as_str().unwrap()]
        );
    }
}

#[test]
fn planted_copies_are_found_and_strangers_are_not() {
    let golden = golden();
    let (mut hashes, mut family) = (Vec::new(), Vec::new());
    for (i, case) in golden["families"].as_array().unwrap().iter().enumerate() {
        let original = hash::phash(&decoded(case["file"].as_str().unwrap())).unwrap();
        hashes.push(original);
        family.push(i);
        for (what, copy) in case["copies"].as_object().unwrap() {
            let found = hash::phash(&decoded(copy["file"].as_str().unwrap())).unwrap();
            println!("family {i}, {what}: {} bits", hash::distance(original, found));
            hashes.push(found);
            family.push(i);
        }
    }
    let groups = hash::groups(&hashes, 10).unwrap();
    for i in 0..hashes.len() {
        assert_eq!(family[groups[i]], family[i], "a stranger joined at {i}");
        assert!(groups[i] == family.iter().position(|&f| f == family[i]).unwrap(), "copy {i} was not found");
    }
}

#[test]
fn slaney_filters_are_those_of_transformers() {
    let wanted: Vec<f64> = bytes("mel-filters-80.f64")
        .chunks_exact(8)
        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let ours = mel_filters(80, N_FFT, RATE, 0.0, 8000.0);
    assert_eq!(ours.len(), wanted.len());
    let most = ours.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("filters differ by at most {most:e}");
    assert!(most < 1e-14, "{most:e}");
}

#[test]
fn log_mel_is_whispers() {
    let tone = audio::decode(&bytes("tone.wav"), &Limits::default()).unwrap();
    assert_eq!((tone.rate, tone.samples.len()), (RATE, 12_800));
    for (mels, name, padding) in [
        (80, "log-mel-80.f32", Padding::None),
        (128, "log-mel-128.f32", Padding::None),
        (80, "log-mel-80-padded.f32", Padding::To(20_000)),
    ] {
        let ours = LogMel::new(mels).unwrap().compute(&tone.samples, padding).unwrap();
        let wanted = f32s(name);
        assert_eq!(ours.len(), wanted.len(), "{name}");
        let most = ours.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: at most {most:e}");
        assert!(most < 1e-6, "{name}: {most:e}");
    }
}

#[test]
fn compressed_audio_is_the_wave_again() {
    let limits = Limits::default();
    let wave = audio::decode(&bytes("tone.wav"), &limits).unwrap();
    assert_eq!(audio::decode(&bytes("tone.flac"), &limits).unwrap(), wave);
    for name in ["tone.mp3", "tone.ogg"] {
        let lossy = audio::decode(&bytes(name), &limits).unwrap();
        assert_eq!(lossy.rate, 16_000);
        assert!(lossy.samples.len().abs_diff(12_800) <= 1152, "{name}: {}", lossy.samples.len());
        // A delay that was not cut off would leave an error as loud as the signal.
        let n = 10_000;
        let (a, b) = (&wave.samples[1000..1000 + n], &lossy.samples[1000..1000 + n]);
        let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let power: f64 = wave.samples[1000..1000 + n].iter().map(|v| f64::from(*v).powi(2)).sum();
        let ratio = 10.0 * (power / error).log10();
        println!("{name}: {ratio:.1} dB signal to error, {} samples", lossy.samples.len());
        assert!(ratio > 20.0, "{name}: {ratio} dB");
    }
    let stereo = audio::decode(&bytes("stereo.wav"), &limits).unwrap();
    assert_eq!((stereo.rate, stereo.samples.len()), (44_100, 22_050));
    assert_eq!(audio::header(&bytes("stereo.wav")).unwrap().channels, 2);
    assert_eq!(Resampler::new(44_100, RATE).unwrap().run(&stereo.samples).len(), 8_000);
}
