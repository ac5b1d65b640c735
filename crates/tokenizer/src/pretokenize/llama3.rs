//! The Llama-3 pre-tokenizer (Llama 3 release, 2024; the pattern of OpenAI's cl100k with plain quantifiers):
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! What differs from GPT-2: contractions ignore case (the folding of `s` includes U+017F, the long s), a word takes
//! any one character that is no line break, letter or number in front, numbers are cut into threes, punctuation takes
//! the line breaks after it, and white space ends after its last line break. The number limit is a parameter,
//! because Qwen2's pattern is this one with a limit of one.

use super::classes::{Class, class_at};
use super::runs;

/// End of the pre-token that starts at `at < text.len()`, with numbers of at most `MAX_DIGITS` characters.
#[inline(always)]
pub(super) fn end_of_piece<const MAX_DIGITS: usize>(text: &[u8], at: usize) -> usize {
    let (class, len) = class_at(text, at);
    let next = at + len;
    match class {
        Class::Letter => runs::letters(text, next),
        Class::Number => runs::numbers(text, next, MAX_DIGITS - 1),
        Class::Other => {
            if text[at] == b'\''
                && let Some(end) = contraction(text, at)
            {
                return end;
            }
            let letters = runs::letters(text, next);
            if letters > next { letters } else { runs::newlines(text, runs::others(text, next)) }
        }
        Class::Space | Class::White => {
            if next < text.len() {
                match class_at(text, next) {
                    (Class::Letter, letter) => return runs::letters(text, next + letter),
                    (Class::Other, other) if class == Class::Space => {
                        return runs::newlines(text, runs::others(text, next + other));
                    }
                    _ => {}
                }
            }
            white_space(text, at)
        }
        Class::Newline => white_space(text, at),
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
#[inline(always)]
fn white_space(text: &[u8], at: usize) -> usize {
    let run = runs::white(text, at);
    match run.after_newline {
        Some(end) => end,
        None if run.end == text.len() || run.last == at => run.end,
        None => run.last,
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at an apostrophe.
#[inline]
fn contraction(text: &[u8], at: usize) -> Option<usize> {
    match text[at + 1..] {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => Some(at + 2),
        [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => Some(at + 3),
        // U+017F, LATIN SMALL LETTER LONG S.
        [0xC5, 0xBF, ..] => Some(at + 3),
        _ => None,
    }
}
