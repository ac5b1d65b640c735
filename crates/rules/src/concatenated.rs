//! datatrove's repeated windows, which are compared by the text of their words without anything between: "ab" "c" and "a"
//! "bc" are the same.

use crate::hashing::IdTable;
use crate::words::WordList;
use bessemer_text::hash::xxh3;

/// Bytes by which windows are told apart before they are hashed. Equal windows begin with equal bytes, so most words of
/// most documents begin no repeated window of any length.
const PREFIX: usize = 16;
/// Fewest words of a window for which the candidates are made: shorter windows seldom have so many bytes.
const LEAST: usize = 5;

/// The words of a document one after the other.
#[derive(Debug, Default, Clone)]
pub(crate) struct Concatenated {
    bytes: Vec<u8>,
    /// Where each word begins, and the end.
    starts: Vec<u32>,
    /// Words at which a repeated window of [`LEAST`] words or more can begin.
    candidates: Vec<Candidate>,
    /// Whether the bytes at a word come again at another.
    repeated: Vec<bool>,
    /// Windows met in a scan: the low half of the hash, and the first word.
    met: Vec<(u32, u32)>,
    table: IdTable,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    word: u32,
    /// Whether the first [`PREFIX`] bytes come again; if not, only a shorter window can.
    repeated: bool,
}

impl Concatenated {
    /// Takes the words of a text.
    pub(crate) fn fill(&mut self, text: &[u8], spans: &[(usize, usize)]) {
        self.bytes.clear();
        self.starts.clear();
        for &(start, end) in spans {
            let at = self.bytes.len();
            self.starts.push(at as u32);
            // Most words are short: copying a constant number of bytes is faster than copying the right one.
            match text[start..].first_chunk::<PREFIX>() {
                Some(chunk) if end - start <= PREFIX => {
                    self.bytes.extend_from_slice(chunk);
                    self.bytes.truncate(at + end - start);
                }
                _ => self.bytes.extend_from_slice(&text[start..end]),
            }
        }
        self.starts.push(self.bytes.len() as u32);
        self.find_candidates();
    }

    fn find_candidates(&mut self) {
        let Concatenated { bytes, starts, candidates, repeated, table, .. } = self;
        let words = starts.len() - 1;
        repeated.clear();
        repeated.resize(words, false);
        table.reset(words);
        let prefix = |word: usize| bytes[starts[word] as usize..].first_chunk::<PREFIX>();
        for word in 0..words {
            let Some(bytes) = prefix(word) else { break };
            let packed = u128::from_le_bytes(*bytes);
            let hash = table.hash(packed as u64, (packed >> 64) as u64);
            let first =
                table.find_or_insert(hash, word as u32, |first| prefix(first as usize) == Some(bytes));
            if first != word as u32 {
                repeated[word] = true;
                repeated[first as usize] = true;
            }
        }
        candidates.clear();
        for (word, &repeated) in repeated.iter().enumerate() {
            let end = starts[(word + LEAST).min(words)];
            if repeated || ((end - starts[word]) as usize) < PREFIX {
                candidates.push(Candidate { word: word as u32, repeated });
            }
        }
    }

    /// datatrove's scan: a window met before adds its characters and is jumped over, another is remembered.
    pub(crate) fn repeated_chars(&mut self, n: usize, list: &WordList) -> u64 {
        let Concatenated { bytes, starts, candidates, met, table, .. } = self;
        let window = |word: u32| &bytes[starts[word as usize] as usize..starts[word as usize + n] as usize];
        let windows = starts.len().saturating_sub(n) as u32;
        met.clear();
        let every = n < LEAST;
        table.reset(if every { windows as usize } else { candidates.len() });
        let (mut next, mut chars) = (0, 0);
        let mut visit = |word: u32, repeated: bool| {
            let bytes = window(word);
            if word < next || (!repeated && bytes.len() >= PREFIX) {
                return;
            }
            let hash = xxh3(bytes);
            let tag = hash as u32;
            let new = met.len() as u32;
            let same = |id: u32| {
                let (other, first) = met[id as usize];
                other == tag && window(first) == bytes
            };
            if table.find_or_insert(table.hash(hash, 0), new, same) == new {
                met.push((tag, word));
            } else {
                chars += list.window_chars(word as usize, n);
                next = word + n as u32;
            }
        };
        if every {
            (0..windows).for_each(|word| visit(word, true));
        } else {
            let within = candidates.iter().take_while(|candidate| candidate.word < windows);
            within.for_each(|candidate| visit(candidate.word, candidate.repeated));
        }
        chars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::WordSegmenter;
    use bessemer_text::Words;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// `find_all_duplicate` of datatrove.
    fn plain(words: &[&str], n: usize) -> u64 {
        let (mut seen, mut index, mut chars) = (HashSet::new(), 0, 0);
        while index + n <= words.len() {
            let joined = words[index..index + n].concat();
            let len = joined.chars().count() as u64;
            if seen.insert(joined) {
                index += 1;
            } else {
                chars += len;
                index += n;
            }
        }
        chars
    }

    fn check(text: &str, lengths: std::ops::RangeInclusive<usize>) {
        let mut list = WordList::default();
        list.fill(WordSegmenter::Words(Words::Whitespace), text);
        let words: Vec<&str> = list.iter(text).collect();
        let mut concatenated = Concatenated::default();
        concatenated.fill(b"left over", &[(0, 4), (5, 9)]);
        concatenated.fill(text.as_bytes(), &list.spans);
        assert_eq!(concatenated.bytes, words.concat().as_bytes());
        for n in lengths {
            assert_eq!(concatenated.repeated_chars(n, &list), plain(&words, n), "n = {n}");
        }
    }

    proptest! {
        #[test]
        fn the_scan_is_that_of_datatrove(
            text in "([ab]{1,2} |é |abc |a\u{0}? |(a|b|aab)(a|bb| )(ab|ba| )|[ab]{15,17} |one two three four five six |\\PC{1,20} ){0,60}",
        ) {
            check(&text, 1..=11);
        }
    }

    #[test]
    fn long_texts() {
        check(&"word ".repeat(100_000), 5..=10);
        let distinct: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
        check(&distinct.join(" "), 5..=6);
        // The same words cut elsewhere, with prefixes shorter and longer than the bytes that are compared first.
        check("to get her on the way . together on the w ay . tog ether on the way .", 3..=6);
        check(&format!("{0} b c d e f {0} bc d e f g {0}b c d e fg h", "a".repeat(20)), 5..=6);
    }
}
