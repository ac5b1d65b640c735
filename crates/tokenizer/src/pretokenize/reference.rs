//! The plain judge of the pre-tokenizers: each pattern transcribed literally, alternative by alternative, with
//! greedy quantifiers and explicit backtracking over decoded characters. Slow, and built from nothing that the fast
//! ones use except the class of a single character.

use super::Pretokenizer;
use super::classes::{Class, class_of};

/// A decoded character: `None` for an invalid byte.
type Char = Option<char>;

fn is_l(c: Char) -> bool {
    c.is_some_and(|c| class_of(c as u32) == Class::Letter)
}
fn is_n(c: Char) -> bool {
    c.is_some_and(|c| class_of(c as u32) == Class::Number)
}
fn is_s(c: Char) -> bool {
    c.is_some_and(char::is_whitespace)
}
fn is_o(c: Char) -> bool {
    !is_l(c) && !is_n(c) && !is_s(c)
}
fn is_break(c: Char) -> bool {
    matches!(c, Some('\r' | '\n'))
}

fn count(text: &[Char], is: impl Fn(Char) -> bool) -> usize {
    text.iter().take_while(|c| is(**c)).count()
}

/// ` ?X+`
fn space_then(text: &[Char], is: impl Fn(Char) -> bool + Copy) -> Option<usize> {
    if text.first() == Some(&Some(' ')) && count(&text[1..], is) > 0 {
        return Some(1 + count(&text[1..], is));
    }
    Some(count(text, is)).filter(|n| *n > 0)
}

/// `'s|'t|'re|'ve|'m|'ll|'d`
fn contraction(text: &[Char], ignore_case: bool) -> Option<usize> {
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"].iter().find_map(|want| {
        let n = want.chars().count();
        let same =
            text.len() >= n
                && want.chars().zip(text).all(|(w, c)| {
                    let c = c.map(|c| {
                        if ignore_case { if c == 'ſ' { 's' } else { c.to_ascii_lowercase() } } else { c }
                    });
                    c == Some(w)
                });
        same.then_some(n)
    })
}

/// `\s+(?!\S)|\s+`: backtrack from the longest run until what follows is no `\S`.
fn white_tail(text: &[Char]) -> Option<usize> {
    let run = count(text, is_s);
    (1..=run).rev().find(|n| text.get(*n).is_none_or(|c| is_s(*c))).or((run > 0).then_some(run))
}

/// `\s*[\r\n]+`: backtrack `\s*` from the longest run until at least one line break follows.
fn through_breaks(text: &[Char]) -> Option<usize> {
    let run = count(text, is_s);
    (0..=run).rev().find_map(|n| Some(count(&text[n..], is_break)).filter(|m| *m > 0).map(|m| n + m))
}

fn one(pretokenizer: Pretokenizer, text: &[Char]) -> usize {
    let first = text[0];
    let found = match pretokenizer {
        Pretokenizer::Gpt2 => contraction(text, false)
            .or_else(|| space_then(text, is_l))
            .or_else(|| space_then(text, is_n))
            .or_else(|| space_then(text, is_o))
            .or_else(|| white_tail(text)),
        Pretokenizer::Llama3 | Pretokenizer::Qwen2 => {
            let digits = if pretokenizer == Pretokenizer::Qwen2 { 1 } else { 3 };
            contraction(text, true)
                .or_else(|| {
                    let prefix = !is_break(first) && !is_l(first) && !is_n(first);
                    let with = if prefix { count(&text[1..], is_l) } else { 0 };
                    if with > 0 { Some(1 + with) } else { Some(count(text, is_l)).filter(|n| *n > 0) }
                })
                .or_else(|| Some(count(text, is_n).min(digits)).filter(|n| *n > 0))
                .or_else(|| space_then(text, is_o).map(|n| n + count(&text[n..], is_break)))
                .or_else(|| through_breaks(text))
                .or_else(|| white_tail(text))
        }
    };
    found.expect("every character is matched by some alternative")
}

/// The pieces of `text`.
pub(super) fn pieces(pretokenizer: Pretokenizer, text: &[u8]) -> Vec<&[u8]> {
    let mut chars: Vec<(Char, usize)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(s) => s,
            Err(e) => std::str::from_utf8(&rest[..e.valid_up_to()]).expect("checked by the line above"),
        };
        chars.extend(valid.chars().map(|c| (Some(c), c.len_utf8())));
        rest = &rest[valid.len()..];
        if !rest.is_empty() {
            chars.push((None, 1));
            rest = &rest[1..];
        }
    }
    let symbols: Vec<Char> = chars.iter().map(|c| c.0).collect();
    let (mut out, mut at, mut byte) = (Vec::new(), 0, 0);
    while at < symbols.len() {
        let n = one(pretokenizer, &symbols[at..]);
        let len: usize = chars[at..at + n].iter().map(|c| c.1).sum();
        out.push(&text[byte..byte + len]);
        at += n;
        byte += len;
    }
    out
}
