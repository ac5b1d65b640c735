//! Measures training and encoding on a folder of text files and prints one JSON object per figure, a line each.
//!
//! ```text
//! tokenizer_bench train  CORPUS VOCAB THREADS OUT.json     trains on all files, one document a file
//! tokenizer_bench encode CORPUS TOKENIZER.json THREADS REPEATS [LIMIT_BYTES]
//! ```
//!
//! Files are read in name order, and those that are not UTF-8 are left out. `bench/peers/tokenizer/compare.py` calls
//! this in turn with its peers; `checksum` there and here proves that the ids are the same.
#![allow(clippy::print_stdout, reason = "a program whose output is its purpose")]

use bessemer_tokenizer::{Tokenizer, TokenizerConfig, Trainer};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["train", corpus, vocab, threads, out] => {
            train(&documents(corpus, usize::MAX)?, vocab.parse()?, threads.parse()?, out)
        }
        ["encode", corpus, tokenizer, threads, repeats] => {
            encode(&documents(corpus, usize::MAX)?, tokenizer, threads.parse()?, repeats.parse()?)
        }
        ["encode", corpus, tokenizer, threads, repeats, limit] => {
            encode(&documents(corpus, limit.parse()?)?, tokenizer, threads.parse()?, repeats.parse()?)
        }
        _ => Err(
            "usage: tokenizer_bench train CORPUS VOCAB THREADS OUT | encode CORPUS FILE THREADS REPEATS [LIMIT]",
        )?,
    }
}

/// The text files of a folder in name order, until their sizes reach `limit`.
fn documents(folder: &str, limit: usize) -> Result<Vec<String>, Box<dyn Error>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let (mut texts, mut total) = (Vec::new(), 0);
    for path in paths {
        if total >= limit {
            break;
        }
        if let Ok(text) = String::from_utf8(std::fs::read(&path)?) {
            total += text.len();
            texts.push(text);
        }
    }
    Ok(texts)
}

fn bytes(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}

fn train(texts: &[String], vocab_size: u64, threads: usize, out: &str) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut trainer = Trainer::new(TokenizerConfig { vocab_size, ..TokenizerConfig::default() })?;
    trainer.feed_batch(texts, threads);
    let counted = start.elapsed().as_secs_f64();
    let tokenizer = trainer.finish(|_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    tokenizer.save(Path::new(out))?;
    let figures = serde_json::json!({
        "what": "train", "threads": threads, "bytes": bytes(texts), "vocab": tokenizer.vocab_size(),
        "seconds": seconds, "count_seconds": counted, "mb_per_s": bytes(texts) as f64 / seconds / 1e6,
    });
    println!("{figures}");
    Ok(())
}

/// Order-dependent checksum of ids: `h = (h * 31 + id) mod 2^61-1` over all documents.
fn checksum(all: &[Vec<u32>]) -> u64 {
    let modulus = (1u128 << 61) - 1;
    all.iter().flatten().fold(0u64, |h, id| ((u128::from(h) * 31 + u128::from(*id)) % modulus) as u64)
}

fn encode(texts: &[String], tokenizer: &str, threads: usize, repeats: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..repeats {
        // A fresh tokenizer each time: nothing is remembered from the round before.
        let tokenizer = Tokenizer::load(Path::new(tokenizer))?;
        let start = Instant::now();
        let all = tokenizer.encode_batch(texts, threads)?;
        let seconds = start.elapsed().as_secs_f64();
        let figures = serde_json::json!({
            "what": "encode", "threads": threads, "bytes": bytes(texts), "tokens": all.iter().map(Vec::len).sum::<usize>(),
            "checksum": checksum(&all), "seconds": seconds, "mb_per_s": bytes(texts) as f64 / seconds / 1e6,
        });
        println!("{figures}");
    }
    Ok(())
}
