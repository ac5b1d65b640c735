//! Evaluates the documents of a JSON-lines file by a profile: the speed of one core, and a verdict a document.
//!
//! `rules FILE.jsonl PROFILE [REPEAT]` prints one line a document (reason, or the hash of the kept text) on standard
//! output and the speed on standard error. bench/peers/rules/ compares both with datatrove's.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use bessemer_rules::{DocumentView, Profile, Scratch, Verdict};
use bessemer_text::hash::xxh64;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, profile, rest @ ..] = arguments.as_slice() else {
        return Err("wanted: rules FILE.jsonl PROFILE [REPEAT]".into());
    };
    let repeat: usize = rest.first().map_or(Ok(1), |repeat| repeat.parse())?;
    let profile = Profile::find(profile)?;
    let lines = std::fs::read_to_string(file)?;
    let mut texts = Vec::new();
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line)?;
        texts.push(value["text"].as_str().ok_or("a line without text")?.to_owned());
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    let mut scratch = Scratch::new();
    let mut seconds = Vec::new();
    let mut verdicts = Vec::new();
    for _ in 0..repeat.max(1) {
        let start = Instant::now();
        verdicts.clear();
        for text in &texts {
            verdicts.push(profile.evaluate_with(&DocumentView::of(text), &mut scratch).verdict);
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    for (verdict, text) in verdicts.iter().zip(&texts) {
        match verdict {
            Verdict::Drop(label) => println!("drop {label}"),
            Verdict::Keep => println!("keep {:016x}", xxh64(text.as_bytes())),
            Verdict::Edit(text) => println!("keep {:016x}", xxh64(text.as_bytes())),
        }
    }
    let median = bessemer_units::stats::upper_median(&mut seconds);
    eprintln!(
        "{{\"tool\": \"bessemer\", \"documents\": {}, \"bytes\": {bytes}, \"seconds\": {median}, \"mb_per_s\": {}}}",
        texts.len(),
        bytes as f64 / median / 1e6
    );
    Ok(())
}
