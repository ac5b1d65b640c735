//! The GPT-2 pre-tokenizer (Radford et al. 2019, `encoder.py`), compiled by hand:
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Alternatives are tried in this order at each position. `\s+(?!\S)` is a run of white space without its last
//! character, unless the run ends the text or has one character only; so the last space goes to the word after it.

use super::classes::{Class, class_at};
use super::runs;

/// End of the pre-token that starts at `at < text.len()`.
#[inline(always)]
pub(super) fn end_of_piece(text: &[u8], at: usize) -> usize {
    let (mut class, mut len) = class_at(text, at);
    let mut from = at;
    if class == Class::Space && at + 1 < text.len() {
        // ` ?`: the space belongs to a following letter, number or other; else it is white space.
        let (next, next_len) = class_at(text, at + 1);
        if !next.is_white() {
            (class, len, from) = (next, next_len, at + 1);
        }
    }
    match class {
        Class::Letter => runs::letters(text, from + len),
        Class::Number => runs::numbers(text, from + len, usize::MAX),
        Class::Other => {
            if text[at] == b'\''
                && let Some(end) = contraction(text, at)
            {
                return end;
            }
            runs::others(text, from + len)
        }
        Class::White | Class::Space | Class::Newline => {
            let run = runs::white(text, at);
            if run.end == text.len() || run.last == at { run.end } else { run.last }
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe.
#[inline]
fn contraction(text: &[u8], at: usize) -> Option<usize> {
    match text[at + 1..] {
        [b's' | b't' | b'm' | b'd', ..] => Some(at + 2),
        [b'r' | b'v', b'e', ..] | [b'l', b'l', ..] => Some(at + 3),
        _ => None,
    }
}
