//! What is known of one text. Each part is computed when a rule first asks for it, and once.

use crate::hashing::{Table, WindowKeys};
use crate::lines::{Duplicates, Lines};
use crate::repetition::Variant;
use crate::words::{WordList, WordSegmenter, WordStats};
use bessemer_text::unicode::char_count;

/// Buffers and results of one document after the other. One per thread; made once, it allocates little later.
#[derive(Debug, Default, Clone)]
pub struct Scratch {
    chars: Option<u64>,
    lists: [WordList; WordSegmenter::ALL.len()],
    filled: [bool; WordSegmenter::ALL.len()],
    stats: [Option<WordStats>; WordSegmenter::ALL.len()],
    counts: [Option<u64>; WordSegmenter::ALL.len()],
    duplicates: [Option<Duplicates>; Lines::ALL.len()],
    joined: WindowKeys,
    joined_of: Option<WordSegmenter>,
    spaced: WindowKeys,
    spaced_of: Option<WordSegmenter>,
    pub(crate) table: Table,
    lengths: Vec<(u64, u32)>,
    /// Words that a line rule counted before it edited, by the cut that it counts with.
    pub(crate) words_before: Option<u64>,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Forgets everything about the last text.
    pub(crate) fn start(&mut self) {
        self.forget();
        self.words_before = None;
    }

    /// Forgets what an edit of the text has made wrong.
    pub(crate) fn forget(&mut self) {
        self.chars = None;
        self.filled = Default::default();
        self.stats = Default::default();
        self.counts = Default::default();
        self.duplicates = Default::default();
        self.joined_of = None;
        self.spaced_of = None;
    }

    /// Says how many words the text has, when whoever edited it knows.
    pub(crate) fn know_words(&mut self, segmenter: WordSegmenter, count: u64) {
        self.counts[segmenter.index()] = Some(count);
    }

    /// Number of characters.
    pub(crate) fn chars(&mut self, text: &str) -> u64 {
        *self.chars.get_or_insert_with(|| char_count(text) as u64)
    }

    /// The words.
    pub(crate) fn words(&mut self, segmenter: WordSegmenter, text: &str) -> &WordList {
        let index = segmenter.index();
        if !self.filled[index] {
            self.lists[index].fill(segmenter, text);
            self.filled[index] = true;
        }
        &self.lists[index]
    }

    /// The words, if some rule has asked for them.
    pub(crate) fn words_if_cut(&self, segmenter: WordSegmenter) -> Option<&WordList> {
        let index = segmenter.index();
        self.filled[index].then(|| &self.lists[index])
    }

    /// Number of words.
    pub(crate) fn word_count(&mut self, segmenter: WordSegmenter, text: &str) -> u64 {
        match self.counts[segmenter.index()] {
            Some(count) => count,
            None => self.words(segmenter, text).len() as u64,
        }
    }

    /// Counts over the words.
    pub(crate) fn stats(&mut self, segmenter: WordSegmenter, text: &str) -> WordStats {
        let index = segmenter.index();
        if let Some(stats) = self.stats[index] {
            return stats;
        }
        let stats = WordStats::of(self.words(segmenter, text), text);
        self.stats[index] = Some(stats);
        stats
    }

    /// Repeated lines or paragraphs.
    pub(crate) fn duplicates(&mut self, lines: Lines, text: &str) -> Duplicates {
        if let Some(found) = self.duplicates[lines.index()] {
            return found;
        }
        let found = Duplicates::of(text, lines, &mut self.table, &mut self.lengths);
        self.duplicates[lines.index()] = Some(found);
        found
    }

    /// Share of the characters that the most frequent window of `n` words covers.
    pub(crate) fn top_ngram(
        &mut self,
        variant: Variant,
        segmenter: WordSegmenter,
        n: usize,
        text: &str,
    ) -> Option<f64> {
        self.prepare_spaced(segmenter, text);
        let chars = self.chars(text);
        let list = &self.lists[segmenter.index()];
        variant.top(n, list, &self.spaced, &mut self.table, chars)
    }

    /// Share of the characters that windows of `n` words cover which come more than once.
    pub(crate) fn duplicate_ngrams(
        &mut self,
        variant: Variant,
        segmenter: WordSegmenter,
        n: usize,
        text: &str,
    ) -> Option<f64> {
        let chars = self.chars(text);
        if variant == Variant::Datatrove {
            self.prepare_joined(segmenter, text);
            let list = &self.lists[segmenter.index()];
            return variant.duplicate(n, list, &self.joined, &mut self.table, chars);
        }
        self.prepare_spaced(segmenter, text);
        let list = &self.lists[segmenter.index()];
        variant.duplicate(n, list, &self.spaced, &mut self.table, chars)
    }

    fn prepare_spaced(&mut self, segmenter: WordSegmenter, text: &str) {
        if self.spaced_of != Some(segmenter) {
            self.words(segmenter, text);
            self.spaced.fill(true, self.lists[segmenter.index()].iter(text).map(str::as_bytes));
            self.spaced_of = Some(segmenter);
        }
    }

    fn prepare_joined(&mut self, segmenter: WordSegmenter, text: &str) {
        if self.joined_of != Some(segmenter) {
            self.words(segmenter, text);
            self.joined.fill(false, self.lists[segmenter.index()].iter(text).map(str::as_bytes));
            self.joined_of = Some(segmenter);
        }
    }
}
