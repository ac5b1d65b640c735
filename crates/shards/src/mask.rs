//! Masks of scored tokens: one bit a token of a file, in a section that only files with an unscored token have.
//!
//! ```text
//! section     scored tokens u64 | checksums of the pieces of the bits, 8 bytes each | bits: u64 words
//! bit         token t is scored if bit t mod 64 of word t div 64 is 1; bits behind the last token are 0
//! piece       65,536 bytes of words, 524,288 tokens; the last one shorter
//! ```
//!
//! A bit costs a sixteenth of a token of two bytes, whatever the ranges are. The bits of a window are one read at a place that follows from
//! its offset, while ranges would have to be searched for. Count and checksums are verified when the file is opened, and a piece of the
//! bits when it is first touched.

use crate::ShardError;
use crate::file::ShardFile;
use crate::format::{INDEX_PIECE, Section, same_sum, u64_at};
use crate::reader::Verified;
use crate::{Part, ScoredRangeFault};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// Tokens of a word of the mask.
const WORD: u64 = u64::BITS as u64;
/// Bytes of the count of scored tokens.
const COUNT_BYTES: usize = 8;

/// Sizes of the mask of a file; they follow from its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MaskSizes {
    words: usize,
    pieces: usize,
}

impl MaskSizes {
    fn of(tokens: u64) -> MaskSizes {
        let words = tokens.div_ceil(WORD) as usize;
        MaskSizes { words, pieces: (8 * words).div_ceil(INDEX_PIECE) }
    }

    /// Bytes of count and checksums, which are verified when a file is opened.
    fn head(self) -> usize {
        COUNT_BYTES + 8 * self.pieces
    }

    fn bytes(self) -> usize {
        self.head() + 8 * self.words
    }
}

/// Bytes of the mask of a file with so many tokens.
pub(crate) fn mask_bytes(tokens: u64) -> usize {
    MaskSizes::of(tokens).bytes()
}

/// The mask of a file that is written. Memory: one bit a token.
#[derive(Debug)]
pub(crate) struct MaskBits {
    words: Vec<u64>,
    tokens: u64,
}

impl MaskBits {
    /// The mask of so many tokens, all of which are scored.
    pub(crate) fn all_scored(tokens: u64) -> MaskBits {
        let mut mask = MaskBits { words: vec![0; MaskSizes::of(tokens).words], tokens };
        mask.set(0..tokens);
        mask
    }

    /// Appends `tokens` tokens, of which those at `scored` are scored.
    pub(crate) fn push(&mut self, tokens: usize, scored: &[Range<usize>]) {
        let first = self.tokens;
        self.tokens += tokens as u64;
        self.words.resize(MaskSizes::of(self.tokens).words, 0);
        scored.iter().for_each(|range| self.set(first + range.start as u64..first + range.end as u64));
    }

    fn set(&mut self, tokens: Range<u64>) {
        for (word, bits) in words_of(tokens) {
            self.words[word as usize] |= bits;
        }
    }

    /// The section, and the checksum of its count and checksums.
    pub(crate) fn section(&self) -> (Vec<u8>, u64) {
        let sizes = MaskSizes::of(self.tokens);
        let scored: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        let mut out = vec![0; sizes.head()];
        out.reserve(8 * sizes.words);
        out.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        let (head, bits) = out.split_at_mut(sizes.head());
        let sums = bits.chunks(INDEX_PIECE).map(xxh3_64);
        for (place, value) in head.chunks_exact_mut(8).zip(std::iter::once(scored).chain(sums)) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        let sum = xxh3_64(head);
        (out, sum)
    }
}

/// The words that hold the bits of some tokens, and these bits in each.
fn words_of(tokens: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let words = if tokens.is_empty() { 0..0 } else { tokens.start / WORD..tokens.end.div_ceil(WORD) };
    words.map(move |word| {
        let (first, end) = (tokens.start.max(word * WORD), tokens.end.min((word + 1) * WORD));
        (word, (u64::MAX >> (WORD - (end - first))) << (first % WORD))
    })
}

/// Refuses ranges that are not ascending, that overlap or that leave the document.
pub(crate) fn check_ranges(tokens: usize, scored: &[Range<usize>]) -> Result<(), ScoredRangeFault> {
    let mut before = 0;
    for (number, range) in scored.iter().enumerate() {
        if range.start > range.end || range.end > tokens {
            return Err(ScoredRangeFault::Outside { number, range: range.clone(), tokens });
        }
        if range.start < before {
            return Err(ScoredRangeFault::Overlap { number, range: range.clone(), before });
        }
        before = range.end;
    }
    Ok(())
}

/// The mask of an open file.
#[derive(Debug)]
pub(crate) struct Mask {
    section: Section,
    sizes: MaskSizes,
    tokens: u64,
    scored: u64,
    verified: Verified,
}

impl Mask {
    /// Opens the mask in `section`, whose length was found to be that of a mask of `tokens` tokens. Verifies its count and checksums.
    pub(crate) fn open(file: &ShardFile, section: Section, tokens: u64) -> Result<Mask, ShardError> {
        let sizes = MaskSizes::of(tokens);
        let mask = Mask {
            section,
            sizes,
            tokens,
            scored: file.u64_at(section.start)?,
            verified: Verified::none_of(sizes.pieces),
        };
        mask.verify_head(file)?;
        if mask.scored > tokens {
            let what = format!("the mask scores {} of {tokens} tokens", mask.scored);
            return Err(ShardError::malformed(file.path(), section.start, what));
        }
        Ok(mask)
    }

    /// Tokens that are scored.
    pub(crate) fn scored(&self) -> u64 {
        self.scored
    }

    /// First byte of the words.
    fn words_at(&self) -> usize {
        self.section.start + self.sizes.head()
    }

    fn verify_head(&self, file: &ShardFile) -> Result<(), ShardError> {
        let (start, end) = (self.section.start, self.words_at());
        let part = Part::Mask { start: start as u64, end: end as u64 };
        same_sum(file.path(), part, self.section.sum, file.sum(start, end)?)
    }

    fn verify_piece(&self, file: &ShardFile, piece: usize) -> Result<(), ShardError> {
        let start = self.words_at() + piece * INDEX_PIECE;
        let end = (start + INDEX_PIECE).min(self.section.start + self.section.bytes);
        let wanted = file.u64_at(self.section.start + COUNT_BYTES + 8 * piece)?;
        let part = Part::Mask { start: start as u64, end: end as u64 };
        same_sum(file.path(), part, wanted, file.sum(start, end)?)?;
        self.verified.note(piece);
        Ok(())
    }

    /// Verifies all of it, also what no checksum covers: the count, and that no bit is set behind the last token.
    pub(crate) fn verify(&self, file: &ShardFile) -> Result<(), ShardError> {
        self.verify_head(file)?;
        (0..self.sizes.pieces).try_for_each(|piece| self.verify_piece(file, piece))?;
        let (mut found, mut last) = (0, 0);
        file.pieces(self.words_at(), self.section.start + self.section.bytes, |_, bytes| {
            for word in bytes.chunks_exact(8) {
                last = u64_at(word, 0);
                found += u64::from(last.count_ones());
            }
            Ok(())
        })?;
        let within = self.tokens % WORD;
        let wrong = |at, what: String| Err(ShardError::malformed(file.path(), at, what));
        if within > 0 && last >> within != 0 {
            let end = self.section.start + self.section.bytes;
            return wrong(end - 8, format!("the mask scores tokens behind the last of {}", self.tokens));
        }
        match found == self.scored {
            true => Ok(()),
            false => wrong(
                self.section.start,
                format!("the mask scores {found} tokens, its count states {}", self.scored),
            ),
        }
    }

    /// Shows the words that hold the bits of `tokens`, which are in the file: the first token of each among these, and their bits from
    /// bit 0 on, with zeros behind. Verifies each piece on its first touch. Does not allocate.
    pub(crate) fn visit(
        &self,
        file: &ShardFile,
        tokens: Range<u64>,
        mut visit: impl FnMut(Range<u64>, u64),
    ) -> Result<(), ShardError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let (first, end) = (8 * (tokens.start / WORD) as usize, 8 * tokens.end.div_ceil(WORD) as usize);
        for piece in first / INDEX_PIECE..=(end - 1) / INDEX_PIECE {
            if !self.verified.has(piece) {
                self.verify_piece(file, piece)?;
            }
        }
        let mut words = words_of(tokens.clone());
        file.pieces(self.words_at() + first, self.words_at() + end, |_, bytes| {
            for (bytes, (word, bits)) in bytes.chunks_exact(8).zip(words.by_ref()) {
                let here = tokens.start.max(word * WORD)..tokens.end.min((word + 1) * WORD);
                visit(here.clone(), (u64_at(bytes, 0) & bits) >> (here.start % WORD));
            }
            Ok(())
        })
    }
}
