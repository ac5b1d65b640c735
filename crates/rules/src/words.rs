//! The words of a document, cut once for each kind that its rules ask for.

use bessemer_text::Words;
use bessemer_text::split::english;
use bessemer_text::unicode::{Class, class, is_letter, is_space};
use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

/// How words are cut: the kinds of [`Words`], and those that one origin alone has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WordSegmenter {
    /// One of the kinds of the crate `text`.
    Words(Words),
    /// Pieces of UAX #29 whose first character is a letter or a number (DCLM's `uniseg` words without punctuation).
    Uax29Initial,
    /// Runs between fastText's separators whose first character is a letter or a number (DCLM's word count).
    Fasttext,
    /// `\w+|[^\w\s]+` (RedPajama v2's raw words).
    WordPunct,
    /// White-space words of the lower-case text without ASCII punctuation, in NFD (RedPajama v2's normalised words).
    Normalized,
}

impl WordSegmenter {
    /// Every kind.
    pub const ALL: [WordSegmenter; 7] = [
        WordSegmenter::Words(Words::Whitespace),
        WordSegmenter::Words(Words::Uax29),
        WordSegmenter::Words(Words::English),
        WordSegmenter::Uax29Initial,
        WordSegmenter::Fasttext,
        WordSegmenter::WordPunct,
        WordSegmenter::Normalized,
    ];

    /// Its name in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            WordSegmenter::Words(words) => words.name(),
            WordSegmenter::Uax29Initial => "uax29-initial",
            WordSegmenter::Fasttext => "fasttext",
            WordSegmenter::WordPunct => "word-punct",
            WordSegmenter::Normalized => "rpv2-normalized",
        }
    }

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|&cut| cut == self).expect("every kind is listed")
    }
}

/// The words of one text.
#[derive(Debug, Default, Clone)]
pub(crate) struct WordList {
    /// The text that the spans point into, where it is not the document's.
    own: Option<String>,
    /// First and last byte of each word.
    pub(crate) spans: Vec<(usize, usize)>,
    /// Characters of each word.
    pub(crate) chars: Vec<u32>,
    /// Sum of `chars`.
    pub(crate) total_chars: u64,
    /// Every token of English, white space included: sentences are counted over them.
    pub(crate) tokens: Vec<english::Token>,
    tokenizer: english::Tokenizer,
}

impl WordList {
    /// Cuts a text.
    pub(crate) fn fill(&mut self, segmenter: WordSegmenter, text: &str) {
        self.own = None;
        self.spans.clear();
        self.chars.clear();
        self.tokens.clear();
        let base = text.as_ptr() as usize;
        let spans = &mut self.spans;
        let push = |spans: &mut Vec<(usize, usize)>, word: &str| {
            let start = word.as_ptr() as usize - base;
            spans.push((start, start + word.len()));
        };
        match segmenter {
            WordSegmenter::Words(Words::English) => {
                self.tokenizer.tokenize(text, &mut self.tokens);
                spans.extend(self.tokens.iter().filter(|t| !t.space).map(|t| (t.start, t.end)));
            }
            WordSegmenter::Words(words) => words.for_each(text, |word| push(spans, word)),
            WordSegmenter::Uax29Initial => {
                text.split_word_bounds()
                    .filter(|word| starts_alphanumeric(word))
                    .for_each(|word| push(spans, word));
            }
            WordSegmenter::Fasttext => text
                .split([' ', '\n', '\r', '\t', '\u{b}', '\u{c}', '\0'])
                .filter(|word| starts_alphanumeric(word))
                .for_each(|word| push(spans, word)),
            WordSegmenter::WordPunct => word_punct(text, |start, end| spans.push((start, end))),
            WordSegmenter::Normalized => {
                let normalized = normalized(text);
                let base = normalized.as_ptr() as usize;
                Words::Whitespace.for_each(&normalized, |word| {
                    let start = word.as_ptr() as usize - base;
                    spans.push((start, start + word.len()));
                });
                self.own = Some(normalized);
            }
        }
        let over = self.own.as_deref().unwrap_or(text);
        if over.is_ascii() {
            self.chars.extend(self.spans.iter().map(|&(start, end)| (end - start) as u32));
        } else {
            self.chars.extend(self.spans.iter().map(|&(start, end)| over[start..end].chars().count() as u32));
        }
        self.total_chars = self.chars.iter().map(|&chars| u64::from(chars)).sum();
    }

    /// Number of words.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The words, given the text that was cut.
    pub(crate) fn iter<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> + Clone {
        let over = self.text(text);
        self.spans.iter().map(move |&(start, end)| &over[start..end])
    }

    /// The text that the spans point into, given the text that was cut.
    pub(crate) fn text<'t>(&'t self, text: &'t str) -> &'t str {
        self.own.as_deref().unwrap_or(text)
    }

    /// Characters of `n` words.
    pub(crate) fn window_chars(&self, first: usize, n: usize) -> u64 {
        self.chars[first..first + n].iter().map(|&chars| u64::from(chars)).sum()
    }
}

fn starts_alphanumeric(word: &str) -> bool {
    word.chars().next().is_some_and(char::is_alphanumeric)
}

/// RedPajama v2's normal form: ASCII punctuation deleted, lower case, one blank between words, NFD.
fn normalized(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let lower = kept.to_lowercase();
    let mut spaced = String::with_capacity(lower.len());
    for word in lower.split(is_space).filter(|word| !word.is_empty()) {
        if !spaced.is_empty() {
            spaced.push(' ');
        }
        spaced.push_str(word);
    }
    if spaced.is_ascii() { spaced } else { spaced.nfd().collect() }
}

/// Runs of `\w`, and runs of what is neither `\w` nor white space.
fn word_punct(text: &str, mut each: impl FnMut(usize, usize)) {
    let mut run: Option<(usize, bool)> = None;
    for (at, c) in text.char_indices() {
        let kind = if is_space(c) { None } else { Some(is_word(c)) };
        match (run, kind) {
            (Some((start, word)), kind) if kind != Some(word) => {
                each(start, at);
                run = kind.map(|word| (at, word));
            }
            (None, Some(word)) => run = Some((at, word)),
            _ => {}
        }
    }
    if let Some((start, _)) = run {
        each(start, text.len());
    }
}

/// Python's `\w`: letters, numbers and the underscore.
fn is_word(c: char) -> bool {
    c == '_' || is_letter(c) || c.is_numeric()
}

/// Counts over a list of words that several rules share.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordStats {
    /// Words with a character that is no symbol.
    pub(crate) nonsymbol: u64,
    /// Characters of these.
    pub(crate) nonsymbol_chars: u64,
    /// Words with a letter.
    pub(crate) with_letter: u64,
}

impl WordStats {
    /// Counts words, given each with its characters and its occurrences.
    pub(crate) fn of<'t>(words: impl Iterator<Item = (&'t str, u32, u32)>) -> WordStats {
        let mut stats = WordStats::default();
        for (word, chars, count) in words {
            let count = u64::from(count);
            // Most words begin with an ASCII letter, which settles both questions.
            let first = word.as_bytes()[0];
            let (letter, nonsymbol) = if first.is_ascii_alphabetic() {
                (true, true)
            } else {
                (word.chars().any(is_letter), word.chars().any(|c| !class(c).meets(Class::SYMBOL)))
            };
            stats.with_letter += u64::from(letter) * count;
            if nonsymbol {
                stats.nonsymbol += count;
                stats.nonsymbol_chars += u64::from(chars) * count;
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Scratch;

    fn words(segmenter: WordSegmenter, text: &str) -> Vec<String> {
        let mut list = WordList::default();
        list.fill(WordSegmenter::Words(Words::Whitespace), "left over");
        list.fill(segmenter, text);
        list.iter(text).map(str::to_owned).collect()
    }

    #[test]
    fn each_kind() {
        let text = "Hello, World's (end)…  Été_1 4\u{a0}x";
        assert_eq!(words(WordSegmenter::Uax29Initial, text), ["Hello", "World's", "end", "Été_1", "4", "x"]);
        assert_eq!(words(WordSegmenter::Fasttext, text), ["Hello,", "World's", "Été_1", "4\u{a0}x"]);
        assert_eq!(
            words(WordSegmenter::WordPunct, text),
            ["Hello", ",", "World", "'", "s", "(", "end", ")…", "Été_1", "4", "x"]
        );
        assert_eq!(
            words(WordSegmenter::Normalized, text),
            ["hello", "worlds", "end…", "e\u{301}te\u{301}1", "4", "x"]
        );
        for segmenter in WordSegmenter::ALL {
            assert!(words(segmenter, "").is_empty());
        }
    }

    #[test]
    fn counts() {
        let text = "Ab, 12 … #é 漢!";
        let (words, text) = (WordSegmenter::Words(Words::Whitespace), text.repeat(2));
        let mut scratch = Scratch::new();
        let stats = scratch.stats(words, &text);
        assert_eq!((stats.nonsymbol, stats.nonsymbol_chars, stats.with_letter), (7, 18, 5));
        assert_eq!(scratch.words(words, &text).total_chars, 20);
        scratch.start();
        scratch.interned(words, &text);
        assert_eq!(scratch.stats(words, &text), stats);
    }
}
