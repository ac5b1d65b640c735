//! datatrove's repeated windows, which are compared by the text of their words without anything between: "ab" "c" and "a"
//! "bc" are the same.

use crate::hashing::IdTable;
use crate::words::WordList;
use bessemer_text::hash::xxh3;

/// Bytes by which windows are distinguished before they are hashed: equal windows begin with equal bytes, so most words of
/// most documents begin no repeated window of any length. Multiples of [`BLOCK`].
const PREFIXES: [usize; 3] = [16, 32, 64];
const BLOCK: usize = 16;
/// Fewest words of a window for which the candidates are made: shorter windows seldom have so many bytes.
const LEAST: usize = 5;

/// The words of a document one after the other.
#[derive(Debug, Default, Clone)]
pub(crate) struct Concatenated {
    bytes: Vec<u8>,
    /// Offsets at which the words begin, and the end.
    starts: Vec<u32>,
    /// Words at which a repeated window of [`LEAST`] words or more can begin.
    candidates: Vec<Candidate>,
    /// Windows met in a scan: the low half of the hash, and the first word.
    met: Vec<(u32, u32)>,
    table: IdTable,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    word: u32,
    /// A repeated window here has fewer bytes than this.
    below: u32,
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
            match text[start..].first_chunk::<BLOCK>() {
                Some(chunk) if end - start <= BLOCK => {
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
        let Concatenated { bytes, starts, candidates, table, .. } = self;
        let words = starts.len() - 1;
        candidates.clear();
        candidates.extend((0..words as u32).map(|word| Candidate { word, below: PREFIXES[0] as u32 }));
        for (level, len) in PREFIXES.into_iter().enumerate() {
            let longer = PREFIXES.get(level + 1).map_or(u32::MAX, |&longer| longer as u32);
            let prefix = |word: u32| bytes[starts[word as usize] as usize..].get(..len);
            table.reset(candidates.len());
            for index in 0..candidates.len() {
                let Candidate { word, below } = candidates[index];
                // Bytes that come once do not come more often with more bytes behind them.
                let Some(bytes) = prefix(word).filter(|_| below == len as u32) else { continue };
                let hash = bytes.as_chunks::<BLOCK>().0.iter().fold(0, |hash, block| {
                    let block = u128::from_le_bytes(*block);
                    table.hash(block as u64 ^ hash, (block >> 64) as u64)
                });
                let same = |first: u32| prefix(candidates[first as usize].word) == Some(bytes);
                let first = table.find_or_insert(hash, index as u32, same) as usize;
                if first != index {
                    candidates[index].below = longer;
                    candidates[first].below = longer;
                }
            }
            if level == 0 {
                let short = |word: usize| (starts[(word + LEAST).min(words)] - starts[word]) < len as u32;
                candidates.retain(|candidate| candidate.below > len as u32 || short(candidate.word as usize));
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
        let mut visit = |word: u32, below: u32| {
            let bytes = window(word);
            if word < next || bytes.len() as u32 >= below {
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
            (0..windows).for_each(|word| visit(word, u32::MAX));
        } else {
            let within = candidates.iter().take_while(|candidate| candidate.word < windows);
            within.for_each(|candidate| visit(candidate.word, candidate.below));
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
