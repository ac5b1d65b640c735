//! The n-gram baseline: fitted on exactly the text that the model has been trained on.

use crate::TrainError;
use crate::observer::Observer;
use bessemer_eval::EvalError;
use bessemer_eval::config::NgramConfig;
use bessemer_eval::kneser_ney::{BYTES, KneserNey, KneserNeyTrainer};
use bessemer_loader::Loader;
use bessemer_runlog::Baseline;
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use std::ops::Range;
use std::time::Instant;

/// Tokens read at a time.
const CHUNK: u64 = 1 << 16;

/// Which tokens of a split a run has been trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenText {
    /// Token ranges in reading order, apart from each other.
    pub ranges: Vec<Range<u64>>,
}

impl SeenText {
    /// What the first `samples` samples of `loader` cover: inputs and targets, neighbouring windows joined, so that the
    /// baseline gets every context that the text allows.
    pub fn new(loader: &Loader, samples: u64) -> SeenText {
        let tokens = loader.shards().token_count();
        if samples >= loader.samples_per_epoch() {
            // Every window was seen. What an epoch cuts off at its ends is given to the baseline as well.
            return SeenText { ranges: std::iter::once(0..tokens).collect() };
        }
        let mut starts: Vec<u64> = (0..samples).map(|k| loader.sample(k).token).collect();
        starts.sort_unstable();
        let length = loader.seq_len() as u64 + 1;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for start in starts {
            let end = (start + length).min(tokens);
            match ranges.last_mut() {
                Some(last) if start <= last.end => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        SeenText { ranges }
    }

    /// Tokens in all ranges.
    pub fn tokens(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }
}

/// What the text of a token range is made of.
enum Piece<'a> {
    /// The next bytes begin inside a document.
    Fragment,
    /// The next bytes begin a document.
    Begin,
    /// Bytes of text.
    Bytes(&'a [u8]),
    /// The document ends.
    End,
}

/// Decodes a token range of a split piece by piece.
fn pieces(
    set: &ShardSet,
    tokenizer: &Tokenizer,
    range: &Range<u64>,
    visit: &mut dyn FnMut(Piece<'_>) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let end_of_text = tokenizer.end_of_text();
    let begins = set.document_at(range.start).and_then(|d| set.document(d));
    visit(if begins.is_some_and(|d| d.tokens.start == range.start) {
        Piece::Begin
    } else {
        Piece::Fragment
    })?;
    let mut buffer = Vec::new();
    let mut at = range.start;
    while at < range.end {
        buffer.resize(CHUNK.min(range.end - at) as usize, 0);
        set.read(at, &mut buffer)?;
        for &token in &buffer {
            if Some(token) == end_of_text {
                visit(Piece::End)?;
            } else {
                visit(Piece::Bytes(tokenizer.token_bytes(token).unwrap_or_default()))?;
            }
        }
        at += buffer.len() as u64;
    }
    Ok(())
}

/// Fits a byte n-gram model on `seen` and scores it on all of `validation`.
///
/// Both splits are read back from the shards, so the baseline sees the bytes that the model saw. The convention of bits
/// per byte is the model's: ends of documents cost bits and count no bytes.
///
/// # Errors
/// What shards and baseline answer.
pub fn ngram_baseline(
    train: &ShardSet,
    seen: &SeenText,
    validation: &ShardSet,
    tokenizer: &Tokenizer,
    config: &NgramConfig,
    threads: usize,
    observer: &mut dyn Observer,
) -> Result<Baseline, TrainError> {
    let begun = Instant::now();
    let fail = |e| TrainError::Eval(EvalError::Ngram(e));
    let mut trainer =
        KneserNeyTrainer::new(BYTES, config.order as u32, threads.max(1), config.max_memory).map_err(fail)?;
    let (mut bytes_fitted, mut done) = (0, 0);
    let total = seen.tokens();
    for range in &seen.ranges {
        pieces(train, tokenizer, range, &mut |piece| {
            match piece {
                Piece::Begin => trainer.begin_document(),
                Piece::Fragment => trainer.begin_fragment(),
                Piece::Bytes(bytes) => {
                    bytes_fitted += bytes.len() as u64;
                    trainer.push_bytes(bytes).map_err(fail)?;
                }
                Piece::End => trainer.end_document().map_err(fail)?,
            }
            Ok(())
        })?;
        done += range.end - range.start;
        observer.progress("n-gram baseline", done, total);
    }
    let model = trainer.finish().map_err(fail)?;
    let (bits, bytes_scored) = score(&model, validation, tokenizer)?;
    Ok(Baseline {
        name: format!("byte {}-gram, modified Kneser-Ney", config.order),
        split: validation.split().into(),
        bits_per_byte: bits / bytes_scored as f64,
        bytes_fitted,
        bytes_scored,
        seconds: Some(begun.elapsed().as_secs_f64()),
    })
}

/// Bits and bytes of a split's documents.
fn score(model: &KneserNey, set: &ShardSet, tokenizer: &Tokenizer) -> Result<(f64, u64), TrainError> {
    let (mut bits, mut bytes) = (0.0, 0);
    let mut text = Vec::new();
    for document in set.documents() {
        text.clear();
        let mut ended = false;
        pieces(set, tokenizer, &document.tokens, &mut |piece| {
            match piece {
                Piece::Bytes(b) => text.extend_from_slice(b),
                Piece::End => ended = true,
                Piece::Begin | Piece::Fragment => {}
            }
            Ok(())
        })?;
        // A tokenizer without an end of text gives the neural model no end to predict either.
        bits += model.bits(&text, ended);
        bytes += text.len() as u64;
    }
    Ok((bits, bytes))
}
