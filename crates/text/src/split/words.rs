//! Words. Which kind is meant belongs to the name of whatever counts them.

use super::english;
use crate::unicode::{Class, byte_class, is_space};
use std::fmt;
use std::str::FromStr;
use unicode_segmentation::UnicodeSegmentation;

/// How a text is cut into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Words {
    /// Runs of anything but white space, as Python's `str.split()` (dolma, RedPajama v2).
    Whitespace,
    /// The pieces of UAX #29 that hold a letter or a digit (DCLM, datamap-rs).
    #[default]
    Uax29,
    /// The words of spaCy's rules for English (datatrove): see [`super::english`].
    English,
}

impl Words {
    /// Every kind.
    pub const ALL: [Words; 3] = [Words::Whitespace, Words::Uax29, Words::English];

    /// `whitespace`, `uax29` or `english`.
    pub const fn name(self) -> &'static str {
        match self {
            Words::Whitespace => "whitespace",
            Words::Uax29 => "uax29",
            Words::English => "english",
        }
    }

    /// Calls `each` with every word, in order.
    #[inline]
    pub fn for_each<'t>(self, text: &'t str, mut each: impl FnMut(&'t str)) {
        match self {
            Words::Whitespace => whitespace(text, each),
            Words::Uax29 => text.unicode_words().for_each(&mut each),
            Words::English => {
                let mut tokens = Vec::new();
                english::Tokenizer::new().tokenize(text, &mut tokens);
                tokens.iter().filter(|token| !token.space).for_each(|token| each(token.of(text)));
            }
        }
    }

    /// Every word, in order.
    pub fn split(self, text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        self.for_each(text, |word| words.push(word));
        words
    }

    /// Number of words.
    pub fn count(self, text: &str) -> usize {
        let mut count = 0;
        self.for_each(text, |_| count += 1);
        count
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no kind of words has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWords(pub String);

impl fmt::Display for UnknownWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Words::ALL.iter().map(|words| words.name()).collect();
        write!(f, "words {:?}: wanted one of {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownWords {}

impl FromStr for Words {
    type Err = UnknownWords;

    fn from_str(name: &str) -> Result<Words, UnknownWords> {
        Self::ALL.into_iter().find(|words| words.name() == name).ok_or_else(|| UnknownWords(name.to_owned()))
    }
}

/// Runs of anything but Python's white space.
fn whitespace<'t>(text: &'t str, mut each: impl FnMut(&'t str)) {
    let bytes = text.as_bytes();
    let mut start = None;
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        let (space, len) = if byte.is_ascii() {
            (byte_class(byte).meets(Class::SPACE), 1)
        } else {
            // `at` is always the start of a character.
            let c = text[at..].chars().next().expect("a character starts here");
            (is_space(c), c.len_utf8())
        };
        match (space, start) {
            (true, Some(from)) => {
                each(&text[from..at]);
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
        at += len;
    }
    if let Some(from) = start {
        each(&text[from..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kinds_differ() {
        let text = "Don't stop—it's 3.5 km (or \"so\") … 漢字\u{1c}x\u{a0}y";
        assert_eq!(
            Words::Whitespace.split(text),
            ["Don't", "stop—it's", "3.5", "km", "(or", "\"so\")", "…", "漢字", "x", "y"]
        );
        assert_eq!(
            Words::Uax29.split(text),
            ["Don't", "stop", "it's", "3.5", "km", "or", "so", "漢", "字", "x", "y"]
        );
        for words in Words::ALL {
            assert_eq!(words.name().parse(), Ok(words));
            assert_eq!(words.count(text), words.split(text).len());
            assert_eq!(words.count(""), 0);
        }
        assert!("icu".parse::<Words>().unwrap_err().to_string().contains("whitespace"));
    }

    proptest! {
        #[test]
        fn whitespace_is_a_filtered_split(text in "[ab \n\u{1c}\u{a0}\u{2003}é漢]{0,30}") {
            let plain: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
            prop_assert_eq!(Words::Whitespace.split(&text), plain);
        }
    }
}
