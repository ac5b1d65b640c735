//! Words of a document as numbers, and the windows of words that come more than once.

use crate::hashing::IdTable;
use bessemer_text::hash::{PACKED, packed, xxh3};

/// A different word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DistinctWord {
    /// All its bytes, or the hash of a longer word.
    packed: u128,
    /// Its first byte in the text, and its bytes.
    start: u32,
    len: u32,
    /// Its first occurrence, as an index of the words.
    pub(crate) first: u32,
    /// Its occurrences.
    pub(crate) count: u32,
}

/// Words as numbers: equal words have the same one, counted from 0 in order of their first occurrence.
#[derive(Debug, Default, Clone)]
pub(crate) struct InternedWords {
    ids: Vec<u32>,
    distinct: Vec<DistinctWord>,
    table: IdTable,
}

impl InternedWords {
    /// Numbers the words that lie at these bytes of a text.
    pub(crate) fn fill(&mut self, text: &[u8], spans: &[(usize, usize)]) {
        let InternedWords { ids, distinct, table } = self;
        ids.clear();
        distinct.clear();
        table.reset(spans.len());
        for (index, &(start, end)) in spans.iter().enumerate() {
            let (packed, len) = (pack(text, start, end), (end - start) as u32);
            let new = distinct.len() as u32;
            let id = table.find_or_insert(hash(table, packed), new, |id| {
                let known = &distinct[id as usize];
                known.packed == packed
                    && known.len == len
                    && (end - start <= PACKED || text[known.range()] == text[start..end])
            });
            if id == new {
                distinct.push(DistinctWord {
                    packed,
                    start: start as u32,
                    len,
                    first: index as u32,
                    count: 0,
                });
            }
            distinct[id as usize].count += 1;
            ids.push(id);
        }
    }

    /// The different words, in order of their first occurrence.
    pub(crate) fn distinct(&self) -> &[DistinctWord] {
        &self.distinct
    }

    /// Whether a word occurs in the text that was numbered.
    pub(crate) fn contains(&self, text: &[u8], word: &str) -> bool {
        let packed = pack(word.as_bytes(), 0, word.len());
        let same = |id: u32| text[self.distinct[id as usize].range()] == *word.as_bytes();
        self.table.find(hash(&self.table, packed), same).is_some()
    }
}

impl DistinctWord {
    /// The bytes of its first occurrence.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

fn hash(table: &IdTable, packed: u128) -> u64 {
    table.hash(packed as u64, (packed >> 64) as u64)
}

/// The bytes of a short word as a number, or the hash of a long one.
#[inline]
fn pack(text: &[u8], start: usize, end: usize) -> u128 {
    packed(text, start, end).unwrap_or_else(|| u128::from(xxh3(&text[start..end])))
}

/// A window of words that comes more than once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RepeatedWindow {
    /// Its first word.
    pub(crate) first: u32,
    /// Equal windows have the same number.
    id: u32,
}

/// The windows of `n` words that come more than once. Those of `n + 1` words are found among them: both windows of `n`
/// words in a repeated one are repeated.
#[derive(Debug, Default, Clone)]
pub(crate) struct RepeatedWindows {
    n: usize,
    /// Every occurrence, in order of the text.
    windows: Vec<RepeatedWindow>,
    /// Occurrences, by number of the window.
    counts: Vec<u32>,
    /// The numbers of the two shorter windows in a window, by its number.
    pairs: Vec<(u32, u32)>,
    table: IdTable,
}

impl RepeatedWindows {
    /// Begins with the windows of one word.
    pub(crate) fn start(&mut self, words: &InternedWords) {
        self.n = 1;
        self.counts.clear();
        self.counts.extend(words.distinct.iter().map(|word| word.count));
        self.windows.clear();
        let all = words.ids.iter().zip(0..).map(|(&id, first)| RepeatedWindow { first, id });
        self.windows.extend(all.filter(|window| self.counts[window.id as usize] > 1));
    }

    /// Words in a window.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Goes on to the windows with one word more.
    pub(crate) fn lengthen(&mut self) {
        let RepeatedWindows { n, windows, counts, pairs, table } = self;
        *n += 1;
        counts.clear();
        pairs.clear();
        table.reset(windows.len());
        let mut kept = 0;
        for index in 1..windows.len() {
            let (window, next) = (windows[index - 1], windows[index]);
            if next.first != window.first + 1 {
                continue;
            }
            let new = pairs.len() as u32;
            let pair = (window.id, next.id);
            let hash = table.hash(u64::from(pair.0) << 32 | u64::from(pair.1), 0);
            let id = table.find_or_insert(hash, new, |id| pairs[id as usize] == pair);
            if id == new {
                pairs.push(pair);
                counts.push(0);
            }
            counts[id as usize] += 1;
            windows[kept] = RepeatedWindow { first: window.first, id };
            kept += 1;
        }
        windows.truncate(kept);
        windows.retain(|window| counts[window.id as usize] > 1);
    }

    /// Every occurrence, in order of the text.
    pub(crate) fn windows(&self) -> &[RepeatedWindow] {
        &self.windows
    }

    /// How often this window occurs.
    pub(crate) fn count(&self, window: RepeatedWindow) -> u32 {
        self.counts[window.id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_text::Words;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn spans(text: &str) -> Vec<(usize, usize)> {
        let start = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
        Words::Whitespace
            .split(text)
            .into_iter()
            .map(|word| (start(word), start(word) + word.len()))
            .collect()
    }

    /// Every window of `n` words that comes more than once: its first word and its occurrences.
    fn plain(words: &[&str], n: usize) -> Vec<(u32, u32)> {
        let mut counts: HashMap<&[&str], u32> = HashMap::new();
        words.windows(n).for_each(|window| *counts.entry(window).or_default() += 1);
        let repeated = words.windows(n).zip(0..).map(|(window, first)| (first, counts[window]));
        repeated.filter(|&(_, count)| count > 1).collect()
    }

    fn check(text: &str, up_to: usize) {
        let words = Words::Whitespace.split(text);
        let mut interned = InternedWords::default();
        interned.fill(b"left over", &[(0, 4), (5, 9)]);
        interned.fill(text.as_bytes(), &spans(text));
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        for (word, &id) in words.iter().zip(&interned.ids) {
            let new = numbers.len() as u32;
            assert_eq!(id, *numbers.entry(word).or_insert(new), "{word}");
            assert!(interned.contains(text.as_bytes(), word));
            let known = interned.distinct()[id as usize];
            assert_eq!(&text[known.range()], *word);
            assert_eq!(words[known.first as usize], *word);
        }
        assert_eq!(interned.distinct().len(), numbers.len());
        for absent in ["", "b\u{0}", "zz", "a long word that does not occur"] {
            assert_eq!(interned.contains(text.as_bytes(), absent), words.contains(&absent));
        }
        let mut repeated = RepeatedWindows::default();
        repeated.start(&interned);
        for n in 1..=up_to {
            let found: Vec<(u32, u32)> =
                repeated.windows().iter().map(|&window| (window.first, repeated.count(window))).collect();
            assert_eq!((repeated.n(), found), (n, plain(&words, n)));
            repeated.lengthen();
        }
    }

    proptest! {
        #[test]
        fn numbers_and_repeats_are_those_of_maps(
            text in "([ab]{1,2} |é |abc |a\u{0}? |[ab]{15,17} |\\PC{1,20} ){0,60}",
        ) {
            check(&text, 7);
        }
    }

    #[test]
    fn long_texts() {
        check(&"word ".repeat(100_000), 12);
        let distinct: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
        check(&distinct.join(" "), 3);
        // Words that differ in the middle only.
        check(&format!("{0}x{0} {0}y{0} {0}x{0} {0}y{0}", "long".repeat(20)), 3);
    }
}
