//! Windows of words and of characters (shingles), and their hashes.
//!
//! A window over words is their text with one space between them (datatrove's `" ".join`), or nothing (`"".join`). Both
//! forms are written once for the whole document, so that a window is a slice of it and costs no copy.

use std::ops::Range;

/// The words of a document laid out one after the other, so that every window is one slice.
#[derive(Debug, Clone, Default)]
pub struct Joined {
    text: String,
    /// Start of each word in `text`, and one more: the end, with its separator.
    starts: Vec<usize>,
    separator: usize,
}

impl Joined {
    /// An empty one, to be filled again and again without allocation.
    pub fn new() -> Joined {
        Joined::default()
    }

    /// Words with one space between them.
    pub fn spaced<'w>(words: impl IntoIterator<Item = &'w str>) -> Joined {
        let mut joined = Joined::new();
        joined.fill(" ", words);
        joined
    }

    /// Replaces the contents by these words with `separator` between them.
    pub fn fill<'w>(&mut self, separator: &str, words: impl IntoIterator<Item = &'w str>) {
        self.text.clear();
        self.starts.clear();
        self.separator = separator.len();
        self.starts.push(0);
        for word in words {
            self.text.push_str(word);
            self.text.push_str(separator);
            self.starts.push(self.text.len());
        }
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of windows of `n` words: 0 if there are fewer words than that.
    pub fn windows_len(&self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.words() + 1).saturating_sub(n) }
    }

    /// Window `index` of `n` words.
    ///
    /// # Panics
    /// If `index + n` exceeds the number of words, or `n` is 0.
    #[inline]
    pub fn window(&self, index: usize, n: usize) -> &str {
        &self.text[self.range(index, n)]
    }

    #[inline]
    fn range(&self, index: usize, n: usize) -> Range<usize> {
        assert!(n > 0, "a window of no words");
        self.starts[index]..self.starts[index + n] - self.separator
    }

    /// All windows of `n` words, in order, repeats included.
    pub fn windows(&self, n: usize) -> impl Iterator<Item = &str> {
        (0..self.windows_len(n)).map(move |index| self.window(index, n))
    }

    /// The hash of every window of `n` words, in order, repeats included.
    pub fn hashes(&self, n: usize, hash: impl Fn(&[u8]) -> u64) -> impl Iterator<Item = u64> {
        (0..self.windows_len(n)).map(move |index| hash(&self.text.as_bytes()[self.range(index, n)]))
    }
}

/// Windows of `n` characters of a text, in order. A text with fewer characters has none.
pub fn char_windows(text: &str, n: usize) -> impl Iterator<Item = &str> {
    let mut starts = text.char_indices().map(|(at, _)| at);
    // Where the window after the next one ends: `n` characters ahead of its start.
    let mut ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).skip(n.saturating_sub(1));
    std::iter::from_fn(move || {
        if n == 0 {
            return None;
        }
        let end = ends.next()?;
        Some(&text[starts.next()?..end])
    })
}

/// The hash of every window of `n` characters.
pub fn char_hashes(text: &str, n: usize, hash: impl Fn(&[u8]) -> u64) -> impl Iterator<Item = u64> {
    char_windows(text, n).map(move |window| hash(window.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha1_64;
    use proptest::prelude::*;

    #[test]
    fn short_and_empty() {
        let joined = Joined::spaced(["a", "b", "c"]);
        assert_eq!(joined.windows(2).collect::<Vec<_>>(), ["a b", "b c"]);
        assert_eq!(joined.windows(3).collect::<Vec<_>>(), ["a b c"]);
        assert_eq!(joined.windows(4).count() + joined.windows(0).count(), 0);
        assert_eq!(Joined::new().windows_len(1), 0);
        assert_eq!(Joined::spaced([]).windows_len(5), 0);
        assert_eq!(char_windows("aé漢", 2).collect::<Vec<_>>(), ["aé", "é漢"]);
        assert_eq!(char_windows("ab", 3).count() + char_windows("ab", 0).count(), 0);
    }

    #[test]
    fn five_shingles_of_nine_words() {
        let joined = Joined::spaced("the quick brown fox jumps over the lazy dog".split(' '));
        let hashes: Vec<u64> = joined.hashes(5, sha1_64).collect();
        assert_eq!(hashes.len(), 5);
        assert_eq!(hashes[1], sha1_64(b"quick brown fox jumps over"));
    }

    proptest! {
        #[test]
        fn windows_are_joins(words in prop::collection::vec("[a-cé漢]{0,3}", 0..12), n in 1usize..5) {
            for separator in [" ", "", "--"] {
                let mut joined = Joined::new();
                joined.fill("xx", ["left over"]);
                joined.fill(separator, words.iter().map(String::as_str));
                let plain: Vec<String> = words.windows(n).map(|w| w.join(separator)).collect();
                prop_assert_eq!(joined.windows(n).collect::<Vec<_>>(), plain);
            }
            let text = words.concat();
            let chars: Vec<char> = text.chars().collect();
            let plain: Vec<String> = chars.windows(n).map(|w| w.iter().collect()).collect();
            prop_assert_eq!(char_windows(&text, n).collect::<Vec<_>>(), plain);
        }
    }
}
