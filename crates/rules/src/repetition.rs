//! Repeated windows of words (Gopher, arXiv:2112.11446, table A1) in the four ways that the field computes them.
//!
//! With `c(g)` the occurrences of a window `g` of `n` words:
//!
//! | | datatrove | Dolma | DCLM | RedPajama v2 |
//! |---|---|---|---|---|
//! | top window | most frequent, first seen on ties; its length with blanks × c / characters of the text | most frequent, first seen; characters of its words × c / characters of words | most frequent, longest on ties; 0 if c = 1 | first seen; 0 if c = 1 |
//! | repeated windows | one scan: a window seen before adds its characters and is jumped over, another is remembered | characters of all with c > 1 / characters of all windows | characters of words in any window with c > 1 / characters of words | as DCLM |
//!
//! A text with no window has no value for datatrove, Dolma and DCLM (the rule passes), and 0 for RedPajama v2.

use crate::interned::{RepeatedWindow, RepeatedWindows};
use crate::words::WordList;

/// Project whose way of counting is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// datatrove (FineWeb).
    Datatrove,
    /// Dolma's Gopher tagger.
    Dolma,
    /// DCLM and datamap-rs.
    Dclm,
    /// RedPajama v2.
    Rpv2,
}

impl Variant {
    /// Every way.
    pub const ALL: [Variant; 4] = [Variant::Datatrove, Variant::Dolma, Variant::Dclm, Variant::Rpv2];

    /// Its name in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Datatrove => "datatrove",
            Variant::Dolma => "dolma",
            Variant::Dclm => "dclm",
            Variant::Rpv2 => "rpv2",
        }
    }

    /// The most frequent window; `repeated` are those of its `n` words, `chars` the characters of the text.
    pub(crate) fn top(self, list: &WordList, repeated: &RepeatedWindows, chars: u64) -> Option<f64> {
        let n = repeated.n();
        if list.len() < n {
            return (self == Variant::Rpv2).then_some(0.0);
        }
        let windows = repeated.windows().iter();
        let most = windows.clone().map(|&window| repeated.count(window)).max().unwrap_or(1);
        let length = |window: &RepeatedWindow| list.window_chars(window.first as usize, n);
        let mut tied = windows.filter(|&&window| repeated.count(window) == most);
        // Where no window is repeated, all are tied and the first of the text was seen first.
        let top = if self == Variant::Dclm {
            tied.map(length).max().unwrap_or(0)
        } else {
            tied.next().map_or_else(|| list.window_chars(0, n), length)
        };
        let count = u64::from(most);
        Some(match self {
            Variant::Datatrove => ratio((top + n as u64 - 1) * count, chars),
            Variant::Dolma => ratio(top * count, list.total_chars.max(1)),
            Variant::Dclm | Variant::Rpv2 if count == 1 => 0.0,
            Variant::Dclm | Variant::Rpv2 => ratio(top * count, list.total_chars),
        })
    }

    /// Windows that come more than once, where words are kept apart: not for datatrove.
    pub(crate) fn duplicate(self, list: &WordList, repeated: &RepeatedWindows) -> Option<f64> {
        let n = repeated.n();
        let windows = (list.len() + 1).saturating_sub(n);
        if windows == 0 {
            return (self == Variant::Rpv2).then_some(0.0);
        }
        let firsts = repeated.windows().iter().map(|window| window.first as usize);
        if self == Variant::Dolma {
            let mut all = 0;
            let mut length = list.window_chars(0, n);
            for index in 0..windows {
                all += length;
                length -= u64::from(list.chars[index]);
                length += list.chars.get(index + n).map_or(0, |&chars| u64::from(chars));
            }
            let repeated: u64 = firsts.map(|first| list.window_chars(first, n)).sum();
            return Some(ratio(repeated, all.max(1)));
        }
        let (mut covered, mut next) = (0, 0);
        for first in firsts {
            let from = next.max(first);
            covered += list.window_chars(from, first + n - from);
            next = first + n;
        }
        Some(ratio(covered, list.total_chars))
    }
}

/// A quotient of counts; nothing of nothing is nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Scratch;
    use crate::words::WordSegmenter;
    use bessemer_text::Words;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap, HashSet};

    const SPACE: WordSegmenter = WordSegmenter::Words(Words::Whitespace);

    fn len(text: &str) -> f64 {
        text.chars().count() as f64
    }

    /// The definitions, word by word.
    fn plain(variant: Variant, n: usize, text: &str) -> (Option<f64>, Option<f64>) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let total: f64 = words.iter().map(|w| len(w)).sum();
        let windows: Vec<&[&str]> = words.windows(n).collect();
        let chars = |w: &[&str]| w.iter().map(|w| len(w)).sum::<f64>();
        let mut counts: HashMap<&[&str], f64> = HashMap::new();
        windows.iter().for_each(|w| *counts.entry(w).or_default() += 1.0);
        let most = counts.values().copied().fold(0.0, f64::max);
        let mut tied = windows.iter().filter(|w| counts[**w] == most);
        let none = (variant == Variant::Rpv2).then_some(0.0);
        let top = match (windows.is_empty(), variant) {
            (true, _) => none,
            (_, Variant::Datatrove) => Some(len(&tied.next().expect("one").join(" ")) * most / len(text)),
            (_, Variant::Dolma) => Some(chars(tied.next().expect("one")) * most / total.max(1.0)),
            _ if most == 1.0 => Some(0.0),
            (_, Variant::Dclm) => Some(tied.map(|w| chars(w)).fold(0.0, f64::max) * most / total),
            (_, Variant::Rpv2) => Some(chars(tied.next().expect("one")) * most / total),
        };
        let repeated = match variant {
            Variant::Datatrove => {
                let (mut seen, mut index, mut found) = (HashSet::new(), 0, 0.0);
                while index + n <= words.len() {
                    let joined = words[index..index + n].concat();
                    let chars = len(&joined);
                    if seen.insert(joined) {
                        index += 1;
                    } else {
                        found += chars;
                        index += n;
                    }
                }
                Some(if text.is_empty() { 0.0 } else { found / len(text) })
            }
            _ if windows.is_empty() => none,
            Variant::Dolma => {
                let all: f64 = windows.iter().map(|w| chars(w)).sum();
                let found: f64 = windows.iter().filter(|w| counts[**w] > 1.0).map(|w| chars(w)).sum();
                Some(found / all.max(1.0))
            }
            Variant::Dclm | Variant::Rpv2 => {
                let repeats = windows.iter().enumerate().filter(|(_, w)| counts[**w] > 1.0);
                let covered: BTreeSet<usize> = repeats.flat_map(|(i, _)| i..i + n).collect();
                Some(covered.iter().map(|&i| len(words[i])).sum::<f64>() / total)
            }
        };
        (top, repeated)
    }

    proptest! {
        #[test]
        fn equal_to_the_definitions(text in "([ab]{1,2} |é |abc ){0,30}", n in 1usize..6) {
            for variant in Variant::ALL {
                let mut scratch = Scratch::new();
                let found = (
                    scratch.top_ngram(variant, SPACE, n, &text),
                    scratch.duplicate_ngrams(variant, SPACE, n, &text),
                );
                prop_assert_eq!(found, plain(variant, n, &text), "{}", variant.name());
            }
        }
    }

    #[test]
    fn golden_values() {
        let mut scratch = Scratch::new();
        // Dolma, "This is a test.": 4 words, 12 characters of words.
        let text = "This is a test.";
        let top =
            |n, scratch: &mut Scratch| scratch.top_ngram(Variant::Dolma, SPACE, n, text).expect("windows");
        assert_eq!(top(2, &mut scratch), 0.5);
        assert!((top(3, &mut scratch) - 0.583_333).abs() < 1e-6);
        assert_eq!(top(4, &mut scratch), 1.0);
        assert_eq!(scratch.chars(text), 15);
        // DCLM: 30/40, punctuation and spacing left out; on ties the longest window.
        for (text, n, expected) in [
            ("hello      world hello apple.... world hello\n world hello", 2, 30.0 / 40.0),
            ("hello      world hello apple.... world hello\n world hello", 3, 30.0 / 40.0),
            ("a b a b a b ab cd ab cd ab cd abc def abc def", 2, 12.0 / 30.0),
            ("a b a b a b abc def abc def ab cd ab cd ab cd", 2, 12.0 / 30.0),
        ] {
            let found = Scratch::new().top_ngram(Variant::Dclm, WordSegmenter::Uax29Initial, n, text);
            assert_eq!(found, Some(expected), "{text}");
        }
        let text = "hello world hello\n world hello. apple world hello world hello world hello world";
        let found = Scratch::new().duplicate_ngrams(Variant::Dclm, WordSegmenter::Uax29Initial, 5, text);
        assert_eq!(found, Some(60.0 / 65.0));
        // datamap-rs: [a b a c b d], unigrams that repeat cover 4 of 6 characters.
        let found = Scratch::new().duplicate_ngrams(Variant::Dclm, SPACE, 1, "a b a c b d");
        assert_eq!(found, Some(4.0 / 6.0));
    }
}
