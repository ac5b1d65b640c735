//! Time of the substring search on text made from a seed, with planted repeats; prints one JSON line.
//!
//! `cargo run --release -p bessemer-dedup --example substrings -- MEBIBYTES LENGTH THREADS MEMORY_MIB [SHARE] [FILE]`
//!
//! SHARE (default 0.1) of the documents hold a passage of an earlier one. FILE takes the text, documents separated by zero bytes, for
//! a peer; with FILE `suffix` the suffix-array form is timed instead.

// An example prints what it measured.
#![allow(clippy::print_stdout)]

use bessemer_dedup::substring::{Finder, Limits, suffix};
use bessemer_durable::ConfinedDir;
use bessemer_units::splitmix::SplitMix64;
use std::error::Error;
use std::io::Write;
use std::time::Instant;

/// Documents of Zipf-like words, about 4 KiB each; some take a passage of 500 to 2500 bytes from an earlier one.
fn documents(bytes: usize, share: f64) -> Vec<Vec<u8>> {
    let mut numbers = SplitMix64(1);
    let mut word = |_| {
        let length = 2 + numbers.index(9);
        (0..length).map(|_| b"etaoinshrdlucmfwypvbgkqjxz"[numbers.index(26).min(numbers.index(26))]).collect()
    };
    let words: Vec<Vec<u8>> = (0..30_000).map(&mut word).collect();
    let (mut all, mut total): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
    while total < bytes {
        let mut document = Vec::with_capacity(5000);
        while document.len() < 4000 {
            // Rank with a density of about 1 / rank.
            let rank = ((numbers.index(1 << 20) as f64 / (1 << 20) as f64) * (words.len() as f64).ln()).exp();
            document.extend_from_slice(&words[(rank as usize).min(words.len() - 1)]);
            document.push(b' ');
        }
        if !all.is_empty() && (numbers.index(1 << 20) as f64) < share * (1 << 20) as f64 {
            let earlier = &all[numbers.index(all.len())];
            let start = numbers.index(1500);
            let passage = &earlier[start..start + 500 + numbers.index(2000)];
            let at = numbers.index(document.len());
            document.splice(at..at, passage.iter().copied());
        }
        total += document.len();
        all.push(document);
    }
    all
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (mebibytes, length, threads, memory) =
        (number(0, 64)?, number(1, 100)?, number(2, 1)?, number(3, 1024)?);
    let share: f64 = arguments.get(4).map_or(Ok(0.1), |text| text.parse())?;
    let documents = documents(mebibytes << 20, share);
    let bytes: usize = documents.iter().map(Vec::len).sum();
    let judge = arguments.get(5).is_some_and(|word| word == "suffix");
    if let Some(path) = arguments.get(5).filter(|_| !judge) {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for document in &documents {
            file.write_all(document)?;
            file.write_all(&[0])?;
        }
        file.flush()?;
    }
    let begun = Instant::now();
    let (removed, spilled) = if judge {
        let slices: Vec<&[u8]> = documents.iter().map(Vec::as_slice).collect();
        (suffix::repeats(&slices, length), 0)
    } else {
        let spill = std::env::temp_dir().join(format!("bessemer-substrings-{}", std::process::id()));
        let limits = Limits { threads, memory: memory << 20, spill: ConfinedDir::create_named(&spill)? };
        let mut finder = Finder::new(length, limits)?;
        documents.iter().try_for_each(|document| finder.push(document))?;
        let found = finder.finish(&std::sync::atomic::AtomicBool::new(false))?;
        let spilled = found.spilled_bytes;
        std::fs::remove_dir_all(&spill)?;
        (found.into_documents().into_iter().map(|document| document.1).collect(), spilled)
    };
    let seconds = begun.elapsed().as_secs_f64();
    let gone: u64 = removed.iter().flatten().map(|range| range.end - range.start).sum();
    let speed = bytes as f64 / 1e6 / seconds / threads as f64;
    println!(
        "{{\"form\": \"{}\", \"bytes\": {bytes}, \"documents\": {}, \"length\": {length}, \"threads\": {threads}, \"memory_mib\": {memory}, \
         \"seconds\": {seconds:.3}, \"mb_per_s_per_core\": {speed:.1}, \"removed_bytes\": {gone}, \"spilled_bytes\": {spilled}}}",
        if judge { "suffix array" } else { "winnowing" },
        documents.len()
    );
    Ok(())
}
