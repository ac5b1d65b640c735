//! Shingles: a document as a set of hashes of neighbouring words or characters.

use bessemer_corpus_config::dedup::ShingleBy;
use bessemer_text::ngram::{Joined, char_hashes};
use bessemer_text::{Simplify, Words, hash};
use bessemer_units::splitmix::mix;

/// Makes hashed shingles; keeps its buffers between documents.
#[derive(Debug)]
pub struct Shingler {
    by: ShingleBy,
    length: usize,
    text: String,
    joined: Joined,
    words: Vec<u64>,
    simplify: Simplify,
}

impl Shingler {
    /// Shingles of `length` words or characters.
    pub fn new(by: ShingleBy, length: usize) -> Self {
        Shingler {
            by,
            length: length.max(1),
            text: String::new(),
            joined: Joined::new(),
            words: Vec::new(),
            simplify: Simplify::default(),
        }
    }

    /// Appends the hashed shingles of a text, in order, repeats included. A text shorter than one shingle is, for
    /// words and characters, one shingle (so equal short texts are found); for datatrove it has none and never matches.
    pub fn push(&mut self, text: &str, out: &mut Vec<u64>) {
        match self.by {
            ShingleBy::Words => self.push_words(text, out),
            ShingleBy::Characters => self.push_characters(text, out),
            ShingleBy::Datatrove => self.push_datatrove(text, hash::xxh64, out),
            ShingleBy::DatatroveSha1 => self.push_datatrove(text, hash::sha1_64, out),
        }
    }

    /// The set of shingles, sorted, without repeats.
    pub fn set(&mut self, text: &str, out: &mut Vec<u64>) {
        out.clear();
        self.push(text, out);
        out.sort_unstable();
        out.dedup();
    }

    fn push_datatrove(&mut self, text: &str, hash: fn(&[u8]) -> u64, out: &mut Vec<u64>) {
        let mut simple = std::mem::take(&mut self.text);
        simple.clear();
        self.simplify.apply_into(text, &mut simple);
        self.joined.fill(" ", Words::English.split(&simple));
        out.extend(self.joined.hashes(self.length, hash));
        self.text = simple;
    }

    fn push_characters(&mut self, text: &str, out: &mut Vec<u64>) {
        self.text.clear();
        let mut gap = false;
        for c in text.chars() {
            if c.is_whitespace() {
                gap = !self.text.is_empty();
            } else {
                if std::mem::take(&mut gap) {
                    self.text.push(' ');
                }
                self.text.extend(c.to_lowercase());
            }
        }
        let before = out.len();
        out.extend(char_hashes(&self.text, self.length, hash::xxh3));
        if out.len() == before && !self.text.is_empty() {
            out.push(hash::xxh3(self.text.as_bytes()));
        }
    }

    fn push_words(&mut self, text: &str, out: &mut Vec<u64>) {
        self.words.clear();
        word_hashes(text, &mut self.words);
        if self.words.is_empty() {
            return;
        }
        let length = self.length.min(self.words.len());
        out.extend(self.words.windows(length).map(fold));
    }
}

/// A window's hash from its words' hashes; the order of words matters.
#[inline]
fn fold(window: &[u64]) -> u64 {
    mix(window
        .iter()
        .fold(0, |key: u64, &word| (key.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Every byte of a word of eight.
const fn all(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bit of each byte of `x`, all below 128, that lies in `from..=to`.
#[inline]
fn between(x: u64, from: u8, to: u8) -> u64 {
    x.wrapping_add(all(0x80 - from)) & !x.wrapping_add(all(0x7f - to)) & all(0x80)
}

/// Eight bytes at `at`, zeros beyond the end.
#[inline]
fn load(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 8).and_then(|eight| eight.first_chunk::<8>()) {
        Some(eight) => u64::from_le_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            let rest = bytes.get(at..).unwrap_or_default();
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(eight)
        }
    }
}

/// For each of the 64 bytes at `at` one bit: whether it is an ASCII letter or digit, and whether it is no ASCII.
#[inline]
fn classify(bytes: &[u8], at: usize) -> (u64, u64) {
    /// The highest bits of eight bytes, side by side: bit 8i + 7 moves to 56 + i, all others out of the word or below.
    fn gather(high: u64) -> u64 {
        (high & all(0x80)).wrapping_mul(0x0002_0408_1020_4081) >> 56
    }
    let mut padded = [0; 64];
    let block = match bytes.get(at..at + 64).and_then(|block| block.first_chunk::<64>()) {
        Some(block) => block,
        None => {
            let rest = bytes.get(at..).unwrap_or_default();
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        }
    };
    let (mut within, mut foreign) = (0, 0);
    for (index, eight) in block.as_chunks::<8>().0.iter().enumerate() {
        let eight = u64::from_le_bytes(*eight);
        let plain = eight & all(0x7f);
        let letters = between(plain | all(0x20), b'a', b'z');
        let digits = between(plain, b'0', b'9');
        within |= gather((letters | digits) & !eight) << (8 * index);
        foreign |= gather(eight) << (8 * index);
    }
    (within, foreign)
}

/// Hashes of the words of a text: maximal runs of alphanumeric characters, lowercased.
///
/// Bytes are classified 64 at a time, so that where one word ends does not wait for the one before. An ASCII letter
/// or digit is lowercased by setting the bit 0x20. A word that touches another script, or is longer than a block,
/// goes by characters.
fn word_hashes(text: &str, out: &mut Vec<u64>) {
    let bytes = text.as_bytes();
    // Where no word has begun yet.
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (within, foreign) = if byte < 128 { classify(bytes, at) } else { (0, 1) };
        // Bits from here on say nothing about ASCII words.
        let limit = foreign.trailing_zeros() as usize;
        let mut from = 0;
        while from < limit {
            let begin = from + (within >> from).trailing_zeros() as usize;
            if begin >= limit {
                from = limit;
                break;
            }
            let end = begin + (!(within >> begin)).trailing_zeros() as usize;
            from = begin;
            if end >= limit {
                break;
            }
            out.push(ascii_word(bytes, at + begin, end - begin));
            // What ends a word is one byte and no part of the next.
            from = end + 1;
        }
        at += from;
        if from == 0 {
            let mut word = Word::default();
            at += word_by_characters(&text[at..], &mut word);
            if word.count > 0 {
                out.push(word.finish());
            }
        }
    }
}

/// The hash of a word of ASCII letters and digits.
#[inline]
fn ascii_word(bytes: &[u8], mut at: usize, mut length: usize) -> u64 {
    let mut word = Word::default();
    while length >= 8 {
        word.fold(load(bytes, at) | all(0x20));
        at += 8;
        length -= 8;
    }
    word.end((load(bytes, at) | all(0x20)) & ((1 << (8 * length)) - 1), length as u64);
    word.finish()
}

/// The word that begins a text, if one does, and where to go on after it.
#[cold]
fn word_by_characters(text: &str, word: &mut Word) -> usize {
    *word = Word::default();
    let (mut pending, mut held) = (0, 0);
    for (at, c) in text.char_indices() {
        if !c.is_alphanumeric() {
            word.end(pending, held);
            return at + c.len_utf8();
        }
        for c in c.to_lowercase() {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                pending |= u64::from(byte) << (8 * held);
                held += 1;
                if held == 8 {
                    word.fold(pending);
                    (pending, held) = (0, 0);
                }
            }
        }
    }
    word.end(pending, held);
    text.len()
}

/// A word's hash while its bytes come, eight by eight, each folded by a multiplication. Words are short, so a call to a
/// hash for long inputs would cost more than it saves.
#[derive(Default)]
struct Word {
    key: u64,
    count: u64,
}

impl Word {
    /// Takes eight bytes.
    #[inline]
    fn fold(&mut self, eight: u64) {
        self.key = (self.key ^ eight).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        self.count += 8;
    }

    /// Takes the last bytes, fewer than eight.
    #[inline]
    fn end(&mut self, rest: u64, length: u64) {
        self.key ^= rest;
        self.count += length;
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The length tells "a" from "a\0", which no word is, and long words from their beginnings.
        let mixed = (self.key ^ self.count.rotate_right(8)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }
}

/// Words of a text for features that are not windows: as [`ShingleBy::Words`] tells them.
pub(crate) fn words_of(text: &str, out: &mut Vec<u64>) {
    out.clear();
    word_hashes(text, out);
}

/// Uses the words of `bessemer-text`: UAX #29, as `bff` does.
pub(crate) fn uax_words(text: &str) -> Vec<&str> {
    Words::Uax29.split(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shingles(by: ShingleBy, length: usize, text: &str) -> Vec<u64> {
        let mut out = Vec::new();
        Shingler::new(by, length).push(text, &mut out);
        out
    }

    #[test]
    fn case_punctuation_and_space_do_not_count_for_words() {
        let plain = shingles(ShingleBy::Words, 3, "The quick brown fox");
        assert_eq!(plain, shingles(ShingleBy::Words, 3, "the  QUICK, brown -- fox!"));
        assert_eq!(plain.len(), 2);
        assert_ne!(plain[0], plain[1]);
        // The way through characters and the way through bytes agree.
        assert_eq!(
            shingles(ShingleBy::Words, 2, "alpha beta internationalisation gamma"),
            shingles(ShingleBy::Words, 2, "Alpha — beta, INTERNATIONALISATION … gamma")
        );
        assert_eq!(shingles(ShingleBy::Words, 1, "Ärger"), shingles(ShingleBy::Words, 1, "ärger"));
        assert_ne!(shingles(ShingleBy::Words, 2, "a b"), shingles(ShingleBy::Words, 2, "b a"));
        assert_ne!(shingles(ShingleBy::Words, 1, "a"), shingles(ShingleBy::Words, 1, "aa"));
    }

    #[test]
    fn short_texts() {
        assert_eq!(shingles(ShingleBy::Words, 5, "a b").len(), 1);
        assert_eq!(shingles(ShingleBy::Words, 5, " ... ").len(), 0);
        assert_eq!(shingles(ShingleBy::Characters, 5, "漢字").len(), 1);
        assert_eq!(shingles(ShingleBy::Characters, 2, "漢字か").len(), 2);
        assert_eq!(shingles(ShingleBy::Characters, 5, "  ").len(), 0);
        assert_eq!(shingles(ShingleBy::Datatrove, 5, "one two three four").len(), 0);
        assert_eq!(shingles(ShingleBy::Datatrove, 5, "one two three four five").len(), 1);
    }

    #[test]
    fn datatrove_hashes_the_joined_window() {
        let found = shingles(ShingleBy::DatatroveSha1, 5, "The quick, brown fox jumps over the lazy dog.");
        assert_eq!(found.len(), 5);
        assert_eq!(found[0], hash::sha1_64(b"the quick brown fox jumps"));
    }

    #[test]
    fn words_by_eight_bytes_are_words_by_characters() {
        let plain = |text: &str| -> Vec<u64> {
            let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            words
                .map(|word| {
                    let mut state = Word::default();
                    word_by_characters(word, &mut state);
                    state.finish()
                })
                .collect()
        };
        // Every ASCII byte as a separator or part, words of every length up to 20, at every offset.
        let mut texts: Vec<String> = (0..128_u8).map(|byte| format!("ab{}cd", char::from(byte))).collect();
        for length in 0..20 {
            for offset in 0..9 {
                texts.push(format!("{}{}", " ".repeat(offset), "aZ09xYq".repeat(3)[..length].to_owned()));
                texts.push(format!("{}é{}", "A".repeat(offset), "b".repeat(length)));
                texts.push(format!("{}—{}-", "A".repeat(offset), "b".repeat(length)));
            }
        }
        // Longer than a block, and words across its end.
        texts.push(format!("{} {}é {}", "x".repeat(200), "y".repeat(70), "z".repeat(64)));
        texts.extend((50..80).map(|gap| format!("{}word—other {}", " ".repeat(gap), "q".repeat(gap))));
        texts.push("naïve ÄRGER straße 漢字 x²y İstanbul".into());
        for text in texts {
            let mut found = Vec::new();
            word_hashes(&text, &mut found);
            assert_eq!(found, plain(&text), "{text:?}");
        }
    }

    #[test]
    fn words_rarely_collide() {
        let mut text: String = (0..200_000).map(|i: u64| format!("w{i} ")).collect();
        text.extend((0..100_000).map(|i: u64| format!("{i:x}suffix{i} ")));
        let mut hashes = Vec::new();
        word_hashes(&text, &mut hashes);
        let count = hashes.len();
        assert_eq!(count, 300_000);
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
