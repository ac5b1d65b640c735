//! Samples a second on one core: decoding, resizing and patches of pictures; decoding and log-mel of sounds.
//!
//!     media_bench FOLDER ROUNDS
//!
//! Every round goes over all files of the folder, which are read before the clock starts. One JSON object comes out:
//! the median seconds of a round for each kind, the number of files, and a checksum that keeps the work from being left out.
#![allow(clippy::print_stdout)] // an example is a program

use bessemer_media::audio::{self, LogMel, Padding, RATE, Resampler};
use bessemer_media::image::{self, Filter};
use bessemer_media::{Limits, MediaError, sniff};
use bessemer_units::stats::upper_median;
use std::time::Instant;

fn picture(bytes: &[u8]) -> Result<u64, MediaError> {
    let decoded = image::decode(bytes, [255; 3], &Limits::default())?;
    let small = image::resize_shorter_side(&decoded, 224, Filter::Bicubic)?;
    let cut = small.crop(image::centre_crop((small.width(), small.height()), 224, 224))?;
    Ok(image::patchify(&cut, 16)?.iter().map(|&v| u64::from(v)).sum())
}

fn sound(bytes: &[u8], mel: &mut LogMel) -> Result<u64, MediaError> {
    let decoded = audio::decode(bytes, &Limits::default())?;
    let samples = Resampler::new(decoded.rate, RATE)?.run(&decoded.samples);
    let y = mel.compute(&samples, Padding::To(480_000))?;
    Ok(y.iter().map(|v| (v * 100.0) as i64 as u64).fold(0, u64::wrapping_add))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("wanted: media_bench FOLDER ROUNDS")?;
    let rounds: usize = arguments.next().ok_or("wanted: media_bench FOLDER ROUNDS")?.parse()?;
    let (mut pictures, mut sounds) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let bytes = std::fs::read(entry?.path())?;
        match sniff(&bytes) {
            Some(k) if k.is_image() => pictures.push(bytes),
            Some(k) if k.is_audio() => sounds.push(bytes),
            _ => {}
        }
    }
    let mut mel = LogMel::new(80)?;
    let (mut image_seconds, mut audio_seconds, mut checksum) = (Vec::new(), Vec::new(), 0u64);
    for _ in 0..rounds.max(1) {
        let begun = Instant::now();
        for bytes in &pictures {
            checksum = checksum.wrapping_add(picture(bytes)?);
        }
        image_seconds.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for bytes in &sounds {
            checksum = checksum.wrapping_add(sound(bytes, &mut mel)?);
        }
        audio_seconds.push(begun.elapsed().as_secs_f64());
    }
    println!(
        "{}",
        serde_json::json!({
            "images": pictures.len(), "image_seconds": upper_median(&mut image_seconds),
            "sounds": sounds.len(), "audio_seconds": upper_median(&mut audio_seconds), "checksum": checksum,
        })
    );
    Ok(())
}
