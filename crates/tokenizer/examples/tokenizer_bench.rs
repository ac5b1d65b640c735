//! Measures training and encoding on a folder of text files and prints one JSON object per figure, a line each.
//!
//! ```text
//! tokenizer_bench train  CORPUS VOCAB THREADS OUT.json     trains on all files, one document a file
//! tokenizer_bench encode CORPUS TOKENIZER.json THREADS REPEATS [LIMIT_BYTES]
//! tokenizer_bench export CORPUS VOCAB gpt2|llama3|qwen2|char DIR   trains, writes the files of transformers
//! tokenizer_bench ids    CORPUS TOKENIZER.json                     ids of each file, special tokens recognised
//! ```
//!
//! Files are read in name order, and those that are not UTF-8 are left out. `bench/peers/tokenizer/compare.py` calls
//! this in turn with its peers; `checksum` there and here proves that the ids are the same.
#![allow(clippy::print_stdout, reason = "a program whose output is its purpose")]

use bessemer_tokenizer::{Tokenizer, TokenizerConfig, TokenizerKind, Trainer};
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
        ["export", corpus, vocab, pattern, out] => {
            export(&documents(corpus, usize::MAX)?, vocab.parse()?, pattern, Path::new(out))
        }
        ["ids", corpus, tokenizer] => ids(&documents(corpus, usize::MAX)?, tokenizer),
        _ => Err("see the head of examples/tokenizer_bench.rs for the arguments")?,
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

/// Seconds that the first thread has spent on a processor; on a shared machine they say more than the clock on the wall.
fn thread_seconds() -> Option<f64> {
    let figures = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    Some(figures.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
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
        let (start, before) = (Instant::now(), thread_seconds());
        let all = tokenizer.encode_batch(texts, threads)?;
        let seconds = start.elapsed().as_secs_f64();
        let own = thread_seconds().zip(before).filter(|_| threads == 1).map(|(after, before)| after - before);
        let figures = serde_json::json!({
            "what": "encode", "threads": threads, "bytes": bytes(texts), "tokens": all.iter().map(Vec::len).sum::<usize>(),
            "checksum": checksum(&all), "seconds": seconds, "cpu_seconds": own, "mb_per_s": bytes(texts) as f64 / seconds / 1e6,
        });
        println!("{figures}");
    }
    Ok(())
}

fn export(texts: &[String], vocab_size: u64, pattern: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    let config = match pattern {
        "char" => TokenizerConfig { kind: TokenizerKind::Char, vocab_size, ..TokenizerConfig::default() },
        _ => {
            let pretokenizer = serde_json::from_value(pattern.into())?;
            TokenizerConfig { vocab_size, pretokenizer, ..TokenizerConfig::default() }
        }
    };
    let mut trainer = Trainer::new(config)?;
    trainer.feed_batch(texts, 2);
    trainer.finish(|_| {})?.write_hf_side_files(out)?;
    Ok(())
}

fn ids(texts: &[String], tokenizer: &str) -> Result<(), Box<dyn Error>> {
    let tokenizer = Tokenizer::load(Path::new(tokenizer))?;
    for text in texts {
        println!("{}", serde_json::to_string(&tokenizer.encode_with_special(text.as_bytes())?)?);
    }
    Ok(())
}
