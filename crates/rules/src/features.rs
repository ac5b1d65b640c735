//! What is known of one text. Each part is computed when a rule first asks for it, and once.

use crate::concatenated::Concatenated;
use crate::hashing::IdTable;
use crate::interned::{InternedWords, RepeatedWindows};
use crate::lines::{CountedLine, Duplicates, Lines};
use crate::repetition::{Variant, ratio};
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
    interned: InternedWords,
    interned_of: Option<WordSegmenter>,
    repeated: RepeatedWindows,
    repeated_of: Option<WordSegmenter>,
    concatenated: Concatenated,
    concatenated_of: Option<WordSegmenter>,
    table: IdTable,
    lines: Vec<CountedLine>,
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
        self.interned_of = None;
        self.repeated_of = None;
        self.concatenated_of = None;
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
        let stats = if self.interned_of == Some(segmenter) {
            // A word is looked at once, however often it comes.
            let list = &self.lists[segmenter.index()];
            let text = list.text(text);
            let counted = self.interned.distinct().iter();
            WordStats::of(
                counted.map(|word| (&text[word.range()], list.chars[word.first as usize], word.count)),
            )
        } else {
            let list = self.words(segmenter, text);
            WordStats::of(list.iter(text).zip(&list.chars).map(|(word, &chars)| (word, chars, 1)))
        };
        self.stats[index] = Some(stats);
        stats
    }

    /// Repeated lines or paragraphs.
    pub(crate) fn duplicates(&mut self, lines: Lines, text: &str) -> Duplicates {
        if let Some(found) = self.duplicates[lines.index()] {
            return found;
        }
        let found = Duplicates::of(text, lines, &mut self.table, &mut self.lines);
        self.duplicates[lines.index()] = Some(found);
        found
    }

    /// The different words.
    pub(crate) fn interned(&mut self, segmenter: WordSegmenter, text: &str) -> &InternedWords {
        if self.interned_of != Some(segmenter) {
            self.words(segmenter, text);
            let list = &self.lists[segmenter.index()];
            self.interned.fill(list.text(text).as_bytes(), &list.spans);
            self.interned_of = Some(segmenter);
        }
        &self.interned
    }

    /// How many of these words occur.
    pub(crate) fn occurring<'w>(
        &mut self,
        segmenter: WordSegmenter,
        text: &str,
        words: impl Iterator<Item = &'w String>,
    ) -> usize {
        self.interned(segmenter, text);
        let text = self.lists[segmenter.index()].text(text).as_bytes();
        words.filter(|word| self.interned.contains(text, word)).count()
    }

    /// Share of the characters that the most frequent window of `n` words covers.
    pub(crate) fn top_ngram(
        &mut self,
        variant: Variant,
        segmenter: WordSegmenter,
        n: usize,
        text: &str,
    ) -> Option<f64> {
        let chars = self.chars(text);
        self.prepare_repeated(segmenter, n, text);
        variant.top(&self.lists[segmenter.index()], &self.repeated, chars)
    }

    /// Share of the characters that windows of `n` words cover which come more than once.
    pub(crate) fn duplicate_ngrams(
        &mut self,
        variant: Variant,
        segmenter: WordSegmenter,
        n: usize,
        text: &str,
    ) -> Option<f64> {
        if variant != Variant::Datatrove {
            self.prepare_repeated(segmenter, n, text);
            return variant.duplicate(&self.lists[segmenter.index()], &self.repeated);
        }
        let chars = self.chars(text);
        self.words(segmenter, text);
        let list = &self.lists[segmenter.index()];
        if self.concatenated_of != Some(segmenter) {
            self.concatenated.fill(list.text(text).as_bytes(), &list.spans);
            self.concatenated_of = Some(segmenter);
        }
        Some(ratio(self.concatenated.repeated_chars(n, list), chars))
    }

    /// Finds the repeated windows of `n` words, from those of fewer words where they are known.
    fn prepare_repeated(&mut self, segmenter: WordSegmenter, n: usize, text: &str) {
        if self.repeated_of != Some(segmenter) || self.repeated.n() > n {
            self.interned(segmenter, text);
            self.repeated.start(&self.interned);
            self.repeated_of = Some(segmenter);
        }
        while self.repeated.n() < n {
            self.repeated.lengthen();
        }
    }
}
