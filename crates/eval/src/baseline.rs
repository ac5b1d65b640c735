//! The n-gram baseline of a run: a Kneser-Ney model trained on exactly the bytes that the neural model saw, scored on
//! the same validation split in the same bits per byte.
//!
//! A run of less than an epoch sees windows from everywhere in the split. The baseline gets the same tokens: windows that
//! touch or overlap become one range, a document whose beginning was seen begins as a document, other pieces as
//! fragments, and only a document whose last token was seen has an end. How often a token was seen does not matter.
//!
//! With a tokenizer that has no end-of-text token, the neural model sees the documents as one text and predicts no ends;
//! the baseline then does the same.

use crate::config::NgramConfig;
use crate::error::EvalError;
use crate::kneser_ney::{BYTES, KneserNey, KneserNeyTrainer, NgramScore, NgramSizes};
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Tokens read at a time.
const CHUNK: u64 = 1 << 16;

/// Settings of the baseline and its loss.
#[derive(Debug, Clone, PartialEq)]
pub struct NgramReport {
    /// Bytes of an n-gram.
    pub order: u32,
    /// Bytes that it was trained on.
    pub bytes_fitted: u64,
    /// How well it predicts the validation split.
    pub score: NgramScore,
    /// Size of the model, and how much it saw.
    pub sizes: NgramSizes,
    /// Time to train it.
    pub train_time: Duration,
    /// Time to score the validation split.
    pub score_time: Duration,
}

/// Ranges of tokens in any order made disjoint, ascending and as long as they can be.
pub fn merge_ranges(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.into_iter().filter(|r| r.start < r.end).collect();
    sorted.sort_unstable_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Trains the baseline on the tokens `seen` of `train` and scores it on all of `validation`.
///
/// `seen` holds the ranges of tokens that the neural model read or predicted, in any order: for a sample that starts at
/// token t, `t .. t + sequence length + 1`. `progress` is called with (tokens done, tokens to do), of training and
/// scoring together; its error ends the work.
///
/// # Errors
/// [`EvalError::Setting`] for a configuration out of range, [`EvalError::Range`], [`EvalError::UnknownToken`], a damaged
/// shard, [`EvalError::Ngram`] without a token seen or past the memory bound.
pub fn ngram_baseline(
    train: &ShardSet,
    seen: impl IntoIterator<Item = Range<u64>>,
    validation: &ShardSet,
    tokenizer: &Tokenizer,
    config: &NgramConfig,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> Result<(), EvalError>,
) -> Result<NgramReport, EvalError> {
    config.check().map_err(|e| EvalError::Setting(format!("ngram.{e}")))?;
    let seen = merge_ranges(seen);
    let to_fit: u64 = seen.iter().map(|r| r.end - r.start).sum();
    let all = to_fit + validation.token_count();

    let start = Instant::now();
    let (model, bytes_fitted) =
        fit(train, &seen, tokenizer, config, threads, &mut |done| progress(done, all))?;
    let train_time = start.elapsed();

    let start = Instant::now();
    let score = score_split(&model, validation, tokenizer, &mut |done| progress(to_fit + done, all))?;
    Ok(NgramReport {
        order: model.order(),
        bytes_fitted,
        score,
        sizes: model.sizes().clone(),
        train_time,
        score_time: start.elapsed(),
    })
}

/// The bytes of a split's tokens, piece by piece.
struct Texts<'a> {
    set: &'a ShardSet,
    tokenizer: &'a Tokenizer,
    /// By token; special tokens stand for no byte.
    lengths: Vec<u32>,
    tokens: Vec<u32>,
    bytes: Vec<u8>,
}

/// A piece of text and what lies at its borders.
struct Piece<'a> {
    bytes: &'a [u8],
    /// The first byte of a document, of the middle of one, or of neither (the text goes on).
    begins: Option<Begin>,
    /// A document ends after it.
    ends: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Document,
    Fragment,
}

impl<'a> Texts<'a> {
    fn new(set: &'a ShardSet, tokenizer: &'a Tokenizer) -> Texts<'a> {
        Texts { set, tokenizer, lengths: tokenizer.byte_lengths(), tokens: Vec::new(), bytes: Vec::new() }
    }

    /// Shows the text of a range of tokens, cut at its documents if documents have ends.
    fn pieces(
        &mut self,
        range: Range<u64>,
        visit: &mut dyn FnMut(Piece<'_>, u64) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let (total, split) = (self.set.token_count(), self.set.split().to_owned());
        if range.end > total {
            return Err(EvalError::Range { start: range.start, end: range.end, tokens: total, split });
        }
        if self.tokenizer.end_of_text().is_none() {
            return self.piece(range, 0..total, false, visit);
        }
        // Every token of a split belongs to a document.
        let Some(mut number) = self.set.document_at(range.start)? else { return Ok(()) };
        let mut at = range.start;
        while at < range.end {
            let Some(tokens) = self.set.document_tokens(number)? else { break };
            number += 1;
            let here = at..range.end.min(tokens.end);
            if !here.is_empty() {
                at = here.end;
                self.piece(here, tokens, true, visit)?;
            }
        }
        Ok(())
    }

    /// Shows the text of a range of tokens within one document.
    fn piece(
        &mut self,
        range: Range<u64>,
        document: Range<u64>,
        has_end: bool,
        visit: &mut dyn FnMut(Piece<'_>, u64) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let whole = if range.start == document.start { Begin::Document } else { Begin::Fragment };
        let mut begins = Some(whole);
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + CHUNK);
            self.decode(at..end)?;
            let ends = has_end && end == document.end;
            visit(Piece { bytes: &self.bytes, begins: begins.take(), ends }, end - at)?;
            at = end;
        }
        Ok(())
    }

    fn decode(&mut self, range: Range<u64>) -> Result<(), EvalError> {
        self.tokens.resize((range.end - range.start) as usize, 0);
        self.set.read(range.start, &mut self.tokens)?;
        self.bytes.clear();
        for (at, &token) in (range.start..).zip(&self.tokens) {
            let length = self.lengths.get(token as usize).copied();
            match (length, self.tokenizer.token_bytes(token)) {
                (Some(0), Some(_)) => {}
                (Some(_), Some(bytes)) => self.bytes.extend_from_slice(bytes),
                _ => return Err(EvalError::UnknownToken { token, at, split: self.set.split().to_owned() }),
            }
        }
        Ok(())
    }
}

/// Trains a model on ranges of tokens, disjoint and ascending. Returns it and the bytes that it was trained on.
fn fit(
    train: &ShardSet,
    seen: &[Range<u64>],
    tokenizer: &Tokenizer,
    config: &NgramConfig,
    threads: usize,
    progress: &mut dyn FnMut(u64) -> Result<(), EvalError>,
) -> Result<(KneserNey, u64), EvalError> {
    let mut trainer = KneserNeyTrainer::new(BYTES, config.order as u32, threads, config.max_memory)?;
    let mut texts = Texts::new(train, tokenizer);
    let (mut bytes, mut done) = (0, 0);
    for range in seen {
        texts.pieces(range.clone(), &mut |piece, tokens| {
            match piece.begins {
                Some(Begin::Document) => trainer.begin_document(),
                Some(Begin::Fragment) => trainer.begin_fragment(),
                None => {}
            }
            trainer.push_bytes(piece.bytes)?;
            if piece.ends {
                trainer.end_document()?;
            }
            bytes += piece.bytes.len() as u64;
            done += tokens;
            progress(done)
        })?;
    }
    Ok((trainer.finish()?, bytes))
}

/// Scores a whole split.
fn score_split(
    model: &KneserNey,
    validation: &ShardSet,
    tokenizer: &Tokenizer,
    progress: &mut dyn FnMut(u64) -> Result<(), EvalError>,
) -> Result<NgramScore, EvalError> {
    let mut scorer = model.scorer();
    let mut score = NgramScore::default();
    let mut done = 0;
    Texts::new(validation, tokenizer).pieces(0..validation.token_count(), &mut |piece, tokens| {
        // A whole split has no fragments, and after the end of a document the scorer is at the beginning of the next.
        scorer.push_bytes(piece.bytes);
        if piece.ends {
            scorer.end_document();
            score.documents += 1;
        }
        score.bytes += piece.bytes.len() as u64;
        done += tokens;
        progress(done)
    })?;
    score.bits = scorer.nats() / std::f64::consts::LN_2;
    if score.bytes > 0 {
        score.bits_per_byte = score.bits / score.bytes as f64;
    }
    Ok(score)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_shards::{Fingerprint, ShardSetWriter, SplitMeta};
    use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer};

    fn texts(first: usize, count: usize) -> Vec<String> {
        let words = ["steel ", "pig iron, ", "blast\n", "é ", "converter ", "of the ", "air. "];
        (first..first + count)
            .map(|i| (0..(i * 7) % 40).map(|j| words[(i * i + j * j * 3 + j) % words.len()]).collect())
            .collect()
    }

    fn tokenizer(kind: TokenizerKind) -> Tokenizer {
        let config = TokenizerConfig { kind, vocab_size: 300, ..TokenizerConfig::default() };
        let mut trainer = Trainer::new(config).unwrap();
        trainer.feed_batch(&texts(0, 60), 1);
        trainer.finish(|_| ()).unwrap()
    }

    fn split(name: &str, texts: &[String], tokenizer: &Tokenizer) -> (tempfile::TempDir, ShardSet) {
        let dir = tempfile::tempdir().unwrap();
        let meta = SplitMeta {
            split: name.into(),
            vocab_size: tokenizer.vocab_size() as u32,
            tokenizer: Fingerprint([0; 32]),
        };
        // Small files: ranges go across them.
        let mut writer = ShardSetWriter::create(dir.path(), meta, 600).unwrap();
        for text in texts {
            let mut ids = tokenizer.encode(text.as_bytes()).unwrap();
            ids.extend(tokenizer.end_of_text());
            writer.push_document([0; 16], text.len() as u64, &ids).unwrap();
        }
        writer.finish().unwrap();
        let set = ShardSet::open(dir.path(), name).unwrap();
        (dir, set)
    }

    #[test]
    fn a_whole_split_gives_the_model_of_its_documents() {
        let tokenizer = tokenizer(TokenizerKind::ByteBpe);
        let (train_texts, valid_texts) = (texts(0, 60), texts(100, 20));
        let (_a, train) = split("train", &train_texts, &tokenizer);
        let (_b, valid) = split("valid", &valid_texts, &tokenizer);
        let mut told = Vec::new();
        // Windows of 10 tokens that share one token, in a disorder, some twice.
        let n = train.token_count();
        let windows = (0..3 * n / 10).map(|i| (i * 37 % n / 10) * 10).map(|at| at..(at + 11).min(n));
        let windows: Vec<_> =
            windows.chain((0..n.div_ceil(10)).map(|i| i * 10..(i * 10 + 11).min(n))).collect();
        let report = ngram_baseline(
            &train,
            windows,
            &valid,
            &tokenizer,
            &NgramConfig::default(),
            2,
            &mut |done, all| {
                told.push((done, all));
                Ok(())
            },
        )
        .unwrap();
        let model = KneserNey::train(&train_texts, 5, 1, &mut |_| ()).unwrap();
        assert_eq!(report.sizes.ngrams, model.sizes().ngrams);
        assert_eq!(
            (report.order, report.bytes_fitted, report.score.bytes),
            (5, train.text_bytes(), valid.text_bytes())
        );
        assert_eq!((report.sizes.documents, report.score.documents), (60, 20));
        let wanted = model.score(&valid_texts);
        assert!((report.score.bits_per_byte - wanted.bits_per_byte).abs() < 1e-12, "{report:?} {wanted:?}");
        let all = train.token_count() + valid.token_count();
        assert_eq!(told.last(), Some(&(all, all)));
    }

    #[test]
    fn a_part_of_a_split_gives_the_model_of_its_pieces() {
        let tokenizer = tokenizer(TokenizerKind::ByteBpe);
        let (train_texts, valid_texts) = (texts(0, 60), texts(100, 20));
        let (_a, train) = split("train", &train_texts, &tokenizer);
        let (_b, valid) = split("valid", &valid_texts, &tokenizer);
        let (from, until) = (
            train.document(11).unwrap().unwrap().tokens.start + 3,
            train.document(14).unwrap().unwrap().tokens.end - 2,
        );
        let seen = [from..until, 0..train.document(2).unwrap().unwrap().tokens.end];
        let report =
            ngram_baseline(&train, seen, &valid, &tokenizer, &NgramConfig::default(), 1, &mut |_, _| Ok(()))
                .unwrap();
        let mut trainer = KneserNeyTrainer::new(BYTES, 5, 1, 1 << 30).unwrap();
        for text in &train_texts[..3] {
            trainer.push_bytes(text.as_bytes()).unwrap();
            trainer.end_document().unwrap();
        }
        let text = |start, end| {
            let mut ids = vec![0; (end - start) as usize];
            train.read(start, &mut ids).unwrap();
            tokenizer.decode(&ids).unwrap()
        };
        trainer.begin_fragment();
        trainer.push_bytes(&text(from, train.document(11).unwrap().unwrap().tokens.end - 1)).unwrap();
        trainer.end_document().unwrap();
        for document in &train_texts[12..14] {
            trainer.push_bytes(document.as_bytes()).unwrap();
            trainer.end_document().unwrap();
        }
        trainer.push_bytes(&text(train.document(14).unwrap().unwrap().tokens.start, until)).unwrap();
        let model = trainer.finish().unwrap();
        assert_eq!(&report.sizes, model.sizes());
        let wanted = model.score(&valid_texts);
        assert!((report.score.bits_per_byte - wanted.bits_per_byte).abs() < 1e-12, "{report:?} {wanted:?}");
    }

    #[test]
    fn without_an_end_of_text_documents_are_one_text() {
        let tokenizer = tokenizer(TokenizerKind::Char);
        let (train_texts, valid_texts) = (texts(0, 60), texts(0, 20));
        let (_a, train) = split("train", &train_texts, &tokenizer);
        let (_b, valid) = split("valid", &valid_texts, &tokenizer);
        let seen = std::iter::once(0..train.token_count());
        let report =
            ngram_baseline(&train, seen, &valid, &tokenizer, &NgramConfig::default(), 1, &mut |_, _| Ok(()))
                .unwrap();
        let mut trainer = KneserNeyTrainer::new(BYTES, 5, 1, 1 << 30).unwrap();
        trainer.push_bytes(train_texts.concat().as_bytes()).unwrap();
        let wanted = trainer.finish().unwrap().bits(valid_texts.concat().as_bytes(), false);
        assert!((report.score.bits - wanted).abs() < 1e-9 * wanted);
        assert_eq!(report.score.documents, 0);
    }

    #[test]
    fn foreign_tokenizers_ranges_and_settings_are_refused() {
        let bytes = tokenizer(TokenizerKind::ByteBpe);
        let (_a, set) = split("train", &texts(0, 9), &bytes);
        let run = |tokenizer: &Tokenizer, seen: Range<u64>, order| {
            let config = NgramConfig { order, ..NgramConfig::default() };
            ngram_baseline(&set, [seen], &set, tokenizer, &config, 1, &mut |_, _| Ok(())).unwrap_err()
        };
        let chars = tokenizer(TokenizerKind::Char);
        let n = set.token_count();
        assert!(matches!(run(&chars, 0..n, 5), EvalError::UnknownToken { .. }));
        let e = run(&bytes, 1..n + 1, 5);
        assert!(matches!(e, EvalError::Range { start: 1, .. }), "{e}");
        assert!(run(&bytes, 0..n, 9).to_string().starts_with("ngram.order = 9"));
        assert!(matches!(run(&bytes, 3..3, 5), EvalError::Ngram(_)));
    }

    #[test]
    fn ranges_merge_when_they_touch() {
        assert_eq!(merge_ranges([5..9, 0..2, 8..12, 20..20, 2..3, 30..31]), [0..3, 5..12, 30..31]);
        assert_eq!(merge_ranges([0..10, 2..4, 20..21]), [0..10, 20..21]);
        assert!(merge_ranges([]).is_empty());
    }
}
