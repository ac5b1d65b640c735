//! Pre-tokenizers: cut text into pieces that BPE merges never cross.
//!
//! Each is a regular expression of a published tokenizer, compiled by hand, working on bytes: one pass, no
//! look-behind, O(n) in total. All three patterns have names in llama.cpp (`gpt-2`, `llama-bpe`, `qwen2`), so a
//! tokenizer trained here can be exported to GGUF. A byte that is no part of valid UTF-8 counts as one character of
//! `[^\s\p{L}\p{N}]`; on valid UTF-8 the pieces are exactly those of the expression.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod classes;
mod gpt2;
mod llama3;
mod qwen2;
mod runs;
mod unicode_ranges;

pub(crate) use classes::decode;

/// Published pre-tokenizer patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pretokenizer {
    /// GPT-2: optional space + letters, numbers of any length, or punctuation.
    #[default]
    Gpt2,
    /// Llama-3: any one leading character + letters, numbers in threes, line breaks kept with what precedes them.
    Llama3,
    /// Qwen2: as Llama-3, with each number character on its own.
    Qwen2,
}

impl Pretokenizer {
    /// Every pattern, for messages and tests.
    pub const ALL: [Pretokenizer; 3] = [Pretokenizer::Gpt2, Pretokenizer::Llama3, Pretokenizer::Qwen2];

    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Pretokenizer::Gpt2 => "gpt2",
            Pretokenizer::Llama3 => "llama3",
            Pretokenizer::Qwen2 => "qwen2",
        }
    }

    /// The name that llama.cpp gives the same pattern (GGUF key `tokenizer.ggml.pre`).
    pub fn gguf_name(self) -> &'static str {
        match self {
            Pretokenizer::Gpt2 => "gpt-2",
            Pretokenizer::Llama3 => "llama-bpe",
            Pretokenizer::Qwen2 => "qwen2",
        }
    }

    /// The regular expression, as written into tokenizer.json and understood by Hugging Face and tiktoken.
    pub fn pattern(self) -> &'static str {
        match self {
            Pretokenizer::Gpt2 => {
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
            }
            Pretokenizer::Llama3 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
            Pretokenizer::Qwen2 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
        }
    }

    /// The pretokenizer with this pattern, in the spelling of [`Self::pattern`] or another published one of the same
    /// meaning.
    pub(crate) fn from_pattern(pattern: &str) -> Option<Self> {
        // tiktoken's spelling.
        if pattern == r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+" {
            return Some(Pretokenizer::Gpt2);
        }
        Self::ALL.into_iter().find(|known| known.pattern() == pattern)
    }

    /// Calls `visit` with the bounds `start..end` of every piece of `text`, in order. Pieces are not empty and cover
    /// the text without gaps.
    #[inline(always)]
    pub(crate) fn for_each_piece(self, text: &[u8], visit: impl FnMut(usize, usize)) {
        match self {
            Pretokenizer::Gpt2 => walk(text, gpt2::end_of_piece, visit),
            Pretokenizer::Llama3 => walk(text, llama3::end_of_piece::<3>, visit),
            Pretokenizer::Qwen2 => walk(text, qwen2::end_of_piece, visit),
        }
    }

    /// The pieces of `text`, for inspection; the encoder itself never collects them.
    pub fn pieces(self, text: &[u8]) -> Vec<&[u8]> {
        let mut pieces = Vec::new();
        self.for_each_piece(text, |start, end| pieces.push(&text[start..end]));
        pieces
    }
}

#[inline(always)]
fn walk(text: &[u8], end_of_piece: impl Fn(&[u8], usize) -> usize, mut visit: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < text.len() {
        let end = end_of_piece(text, at);
        visit(at, end);
        at = end;
    }
}

/// Cuts a long text into parts of about `target` bytes whose pieces, taken one after the other, are the pieces of the
/// whole text. A cut lies between an ASCII letter and white space: no alternative of any pattern holds a letter
/// followed by white space, so a piece ends there whatever came before, and none of the patterns looks behind.
/// Text without such a place is not cut.
pub(crate) fn safe_parts(text: &[u8], target: usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.len() > target {
        let window = &rest[target - 1..];
        let found = window
            .windows(2)
            .position(|pair| pair[0].is_ascii_alphabetic() && matches!(pair[1], b' ' | b'\n'));
        let Some(offset) = found else { break };
        let (part, tail) = rest.split_at(target + offset);
        parts.push(part);
        rest = tail;
    }
    parts.push(rest);
    parts
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Characters that exercise every branch: contractions in both cases, the long s, classes beyond ASCII,
    /// all kinds of white space, broken UTF-8.
    fn awkward_text() -> impl Strategy<Value = Vec<u8>> {
        let atoms: Vec<&'static [u8]> = vec![
            b"'",
            b"'",
            b"s",
            b"S",
            b"t",
            b"re",
            b"RE",
            b"vE",
            b"ll",
            b"l",
            b"m",
            b"d",
            b"a",
            b"Zebra",
            b"zymurgyologist",
            b" ",
            b" ",
            b"  ",
            b"\t",
            b"\n",
            b"\r\n",
            b"\r",
            b"\x0b",
            b"0",
            b"12",
            b"4567",
            b"!",
            b"..",
            b"_",
            b"<|",
            "ſ".as_bytes(),
            "é".as_bytes(),
            "漢字".as_bytes(),
            "Ⅷ".as_bytes(),
            "٣".as_bytes(),
            "\u{a0}".as_bytes(),
            "\u{3000}".as_bytes(),
            "\u{85}".as_bytes(),
            "\u{301}".as_bytes(),
            "😀".as_bytes(),
            "\u{200b}".as_bytes(),
            b"\xff",
            b"\xc3",
            b"\xe2\x82",
            b"\xf0\x9f",
            b"\xed\xa0\x80",
            b"\x80",
            b"\0",
        ];
        prop::collection::vec(prop::sample::select(atoms), 0..40).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn pieces_equal_those_of_the_literal_transcription(text in awkward_text()) {
            for pretokenizer in Pretokenizer::ALL {
                prop_assert_eq!(pretokenizer.pieces(&text), reference::pieces(pretokenizer, &text), "{}", pretokenizer.name());
            }
        }

        #[test]
        fn pieces_equal_those_of_the_literal_transcription_on_arbitrary_bytes(
            text in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            for pretokenizer in Pretokenizer::ALL {
                prop_assert_eq!(pretokenizer.pieces(&text), reference::pieces(pretokenizer, &text), "{}", pretokenizer.name());
            }
        }

        #[test]
        fn cutting_into_safe_parts_leaves_the_pieces_as_they_were(text in awkward_text(), target in 1usize..20) {
            for pretokenizer in Pretokenizer::ALL {
                let parts = safe_parts(&text, target);
                let pieces: Vec<&[u8]> = parts.iter().flat_map(|part| pretokenizer.pieces(part)).collect();
                prop_assert_eq!(pieces, pretokenizer.pieces(&text));
            }
        }
    }

    #[test]
    fn known_cuts() {
        let show = |pretokenizer: Pretokenizer, text: &str| {
            let pieces = pretokenizer.pieces(text.as_bytes());
            pieces.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect::<Vec<_>>()
        };
        let text = "I'll pay 12345 DON'T\n\n  x = y;\n";
        assert_eq!(
            show(Pretokenizer::Gpt2, text),
            ["I", "'ll", " pay", " 12345", " DON", "'", "T", "\n\n ", " x", " =", " y", ";", "\n"]
        );
        assert_eq!(
            show(Pretokenizer::Llama3, text),
            ["I", "'ll", " pay", " ", "123", "45", " DON", "'T", "\n\n", " ", " x", " =", " y", ";\n"]
        );
        assert_eq!(
            show(Pretokenizer::Qwen2, text),
            [
                "I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " DON", "'T", "\n\n", " ", " x", " =",
                " y", ";\n"
            ]
        );
    }
}
