//! Pieces of text as SentencePiece cuts them with a unigram model (Kudo 2018; Kudo and Richardson 2018): what the language
//! models of cc_net were estimated over.
//!
//! ```text
//! normal form   the longest match of the file's table of characters replaced; runs of spaces one; " " is U+2581; one before the text
//! cut           the pieces x_1..x_n of the text with the greatest sum of score(x_i); what no piece covers is one unknown
//!               character of score min - 10; unknown characters side by side are one piece
//! ```
//!
//! Sums are f32 in the order of the original, so that ties fall alike.

mod normalizer;
mod proto;

use crate::error::{Result, ScoreError};
use normalizer::Normalizer;
use proto::{Kind, ModelType};
use std::io::Read;
use std::path::Path;

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// What an unknown character costs beyond the least score.
const UNKNOWN_PENALTY: f32 = 10.0;

/// A unigram model.
#[derive(Debug, Clone)]
pub struct SentencePiece {
    normalizer: Normalizer,
    /// Pieces in the order of their bytes, with their scores; a score of None is never taken.
    pieces: Vec<(Box<str>, Option<f32>)>,
    /// Index of the first piece with each first byte.
    first: Vec<usize>,
    unknown: f32,
    /// Unknown characters become one piece a byte.
    bytes: bool,
}

/// The best cut of the text up to a byte.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f32,
    /// Where its last piece begins; usize::MAX where nothing ends.
    start: usize,
    unknown: bool,
}

impl SentencePiece {
    /// Reads a `.model` file.
    ///
    /// # Errors
    /// Where the file is no SentencePiece model, or one of another type than unigram.
    pub fn open(path: &Path) -> Result<SentencePiece> {
        let failed = |e| ScoreError::io("read", path, e);
        let file = bessemer_durable::open_regular(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length > MAX_FILE {
            return Err(ScoreError::Model {
                name: path.display().to_string(),
                at: 0,
                what: format!("wanted a file of at most {MAX_FILE} bytes, found {length}"),
            });
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
        SentencePiece::read(&bytes, &path.display().to_string())
    }

    /// Reads a model; `name` is what errors call it.
    ///
    /// # Errors
    /// As [`SentencePiece::open`].
    pub fn read(bytes: &[u8], name: &str) -> Result<SentencePiece> {
        let told = |at: usize, what: String| ScoreError::Model { name: name.to_owned(), at: at as u64, what };
        let model = proto::read(bytes).map_err(|fault| told(fault.at, fault.what))?;
        if model.kind != ModelType::Unigram {
            return Err(told(
                0,
                format!("a model of type {:?}: wanted unigram, which cc_net's models are", model.kind),
            ));
        }
        let normal =
            || model.pieces.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
        if normal().next().is_none() {
            return Err(told(0, "no pieces: wanted a SentencePiece .model file".into()));
        }
        let least = normal().fold(f32::INFINITY, f32::min);
        let most = normal().fold(f32::NEG_INFINITY, f32::max);
        let own: Vec<Box<str>> = model
            .pieces
            .iter()
            .filter(|piece| piece.kind == Kind::UserDefined)
            .map(|piece| piece.text.as_str().into())
            .collect();
        let mut pieces: Vec<(Box<str>, Option<f32>)> = Vec::new();
        for piece in model.pieces {
            let score = match piece.kind {
                Kind::Normal => Some(piece.score),
                // As long as many of the best pieces: a user's piece is always taken.
                Kind::UserDefined => Some(piece.text.len() as f32 * most - 0.1),
                Kind::Unused => None,
                Kind::Other => continue,
            };
            pieces.push((piece.text.into(), score));
        }
        pieces.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some(pair) = pieces.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(told(0, format!("the piece {:?} occurs twice", pair[0].0)));
        }
        let first = (0..=256)
            .map(|byte| pieces.partition_point(|(text, _)| text.bytes().next().map_or(0, usize::from) < byte))
            .collect();
        let normalizer = Normalizer::new(model.normalizer, own).map_err(|what| told(0, what))?;
        Ok(SentencePiece {
            normalizer,
            pieces,
            first,
            unknown: least - UNKNOWN_PENALTY,
            bytes: model.byte_fallback,
        })
    }

    /// Calls `each` with the pieces of a text, in order.
    pub fn for_each(&self, text: &str, each: &mut dyn FnMut(&str)) {
        let normal = self.normalizer.apply(text);
        let cut = self.cut(&normal);
        let mut at = 0;
        while at < cut.len() {
            let (start, mut end, unknown) = cut[at];
            at += 1;
            if !unknown {
                each(&normal[start..end]);
                continue;
            }
            if self.bytes {
                normal[start..end].bytes().for_each(|byte| each(&format!("<0x{byte:02X}>")));
                continue;
            }
            while let Some(&(_, next, true)) = cut.get(at) {
                end = next;
                at += 1;
            }
            each(&normal[start..end]);
        }
    }

    /// The pieces of a text.
    pub fn pieces(&self, text: &str) -> Vec<String> {
        let mut all = Vec::new();
        self.for_each(text, &mut |piece| all.push(piece.to_owned()));
        all
    }

    /// The best cut: begin, end and whether it is unknown, of each piece.
    fn cut(&self, text: &str) -> Vec<(usize, usize, bool)> {
        let none = Best { score: 0.0, start: usize::MAX, unknown: false };
        let mut best = vec![none; text.len() + 1];
        for (start, c) in text.char_indices() {
            let (until, single_end) = (best[start].score, start + c.len_utf8());
            let mut single = false;
            self.beginning(&text[start..], &mut |length, score| {
                let Some(score) = score else { return };
                let candidate = score + until;
                let end = &mut best[start + length];
                if end.start == usize::MAX || candidate > end.score {
                    *end = Best { score: candidate, start, unknown: false };
                }
                single |= start + length == single_end;
            });
            if !single {
                let candidate = self.unknown + until;
                let end = &mut best[single_end];
                if end.start == usize::MAX || candidate > end.score {
                    *end = Best { score: candidate, start, unknown: true };
                }
            }
        }
        let (mut cut, mut end) = (Vec::new(), text.len());
        while end > 0 {
            let Best { start, unknown, .. } = best[end];
            cut.push((start, end, unknown));
            end = start;
        }
        cut.reverse();
        cut
    }

    /// Calls `each` with length and score of every piece that `text` begins with, shortest first.
    fn beginning(&self, text: &str, each: &mut dyn FnMut(usize, Option<f32>)) {
        let bytes = text.as_bytes();
        let Some(&byte) = bytes.first() else { return };
        let (mut low, mut high) = (self.first[usize::from(byte)], self.first[usize::from(byte) + 1]);
        for length in 1..=bytes.len() {
            // Within the range all pieces have the first `length` bytes of the text; the shortest stands first.
            let Some((piece, score)) = self.pieces[low..high].first() else { return };
            if piece.len() == length {
                each(length, *score);
                low += 1;
            }
            let Some(&next) = bytes.get(length) else { return };
            let range = &self.pieces[low..high];
            let at = |piece: &str| piece.as_bytes()[length];
            high = low + range.partition_point(|(piece, _)| at(piece) <= next);
            low += range.partition_point(|(piece, _)| at(piece) < next);
        }
    }
}

impl crate::kenlm::Pieces for SentencePiece {
    fn for_each(&self, line: &str, each: &mut dyn FnMut(&str)) {
        SentencePiece::for_each(self, line, each);
    }
}
