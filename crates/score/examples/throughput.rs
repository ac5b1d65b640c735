//! MB/s of one core for language identification, fastText and KenLM scores, over a text file.
//!
//! ```text
//! cargo run --release -p bessemer-score --example throughput -- TEXT [--fasttext MODEL] [--kenlm MODEL]
//! ```
//!
//! A document is a line of the file. Without models of your own it trains small ones from the text first: their tables
//! fit the caches, so real models are slower. Each figure is the median of five passes.

// A program that prints its result.
#![allow(clippy::print_stdout)]

use bessemer_score::LanguageId;
use bessemer_score::dsir::{Bag, Importance};
use bessemer_score::fasttext::{Example, FastText, Loss, TrainConfig, train};
use bessemer_score::kenlm::{EstimateConfig, LanguageModel, WhiteSpace, estimate, perplexity_of_document};
use bessemer_score::language::{BuiltInLanguages, FastTextLanguages};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Passes of which the median counts.
const PASSES: usize = 5;

fn measure(name: &str, documents: &[&str], mut each: impl FnMut(&str)) {
    let bytes: usize = documents.iter().map(|d| d.len()).sum();
    let mut rates: Vec<f64> = (0..PASSES)
        .map(|_| {
            let start = Instant::now();
            documents.iter().for_each(|document| each(document));
            bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
        })
        .collect();
    println!("{name:<28}{:>10.2} MB/s per core", bessemer_units::stats::upper_median(&mut rates));
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args();
    arguments.find(|a| a == name)?;
    arguments.next()
}

/// Labels by the number of words, so that there is something to learn.
fn small_fasttext(documents: &[&str]) -> Result<FastText, Box<dyn Error>> {
    let config = TrainConfig {
        dim: 16,
        minn: 2,
        maxn: 4,
        bucket: 100_000,
        loss: Loss::Hs,
        epoch: 1,
        ..TrainConfig::default()
    };
    let example = |text: &&str| {
        let labels = vec![format!("__label__{}", text.split(' ').count() % 176)];
        Ok(Example { labels, text: (*text).to_owned() })
    };
    Ok(train(&config, || documents.iter().map(example))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("wanted a text file")?;
    let text = std::fs::read_to_string(&path)?;
    let documents: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let fasttext = match argument("--fasttext") {
        Some(model) => FastText::open(Path::new(&model))?,
        None => small_fasttext(&documents)?,
    };
    let kenlm = match argument("--kenlm") {
        Some(model) => LanguageModel::open(Path::new(&model))?,
        None => {
            let config =
                EstimateConfig { order: 5, memory: 1 << 28, folder: std::env::temp_dir(), fallback: true };
            estimate(&config, documents.iter().map(|d| Ok((*d).to_owned())))?.model()?
        }
    };
    println!("{} documents, {:.1} MB", documents.len(), text.len() as f64 / 1e6);
    measure("language, built in", &documents, |d| {
        black_box(BuiltInLanguages.identify(d));
    });
    measure("fastText, best label", &documents, |d| {
        black_box(fasttext.predict(d, 1, 0.0));
    });
    if let Ok(languages) = FastTextLanguages::new(fasttext.clone()) {
        measure("language, fastText", &documents, |d| {
            black_box(languages.identify(d));
        });
    }
    measure("KenLM, words as they are", &documents, |d| {
        black_box(kenlm.score_sentence(d));
    });
    measure("KenLM, cc_net perplexity", &documents, |d| {
        black_box(perplexity_of_document(&kenlm, &WhiteSpace, d));
    });
    let mut bag = Bag::default();
    documents.iter().take(1000).for_each(|d| bag.add(d));
    let importance = Importance::new(&bag, &Bag::default());
    measure("DSIR weight", &documents, |d| {
        black_box(importance.weight(d));
    });
    Ok(())
}
