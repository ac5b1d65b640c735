//! Texts cut into tokens as metrics of translation define it: mteval's versions 13a and 14 (international), Chinese characters, characters, or blanks alone.
//!
//! Behaviour and names are those of sacrebleu (Post 2018), so that signatures compare.

use bessemer_text::unicode::{is_space, strip};
use regex::Regex;
use std::sync::LazyLock;

/// Parts of a text between blanks.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// A tokenizer of translations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// mteval-v13a: punctuation and symbols of ASCII apart, periods, commas and dashes apart unless within numbers.
    Thirteen,
    /// mteval-v14: punctuation of every script apart unless within numbers, symbols apart.
    International,
    /// Chinese characters apart, as are the signs of [`Tokens::Thirteen`].
    Chinese,
    /// Blanks alone.
    Blanks,
    /// Each character that is no blank.
    Characters,
}

impl Tokens {
    /// Name in signatures.
    pub fn name(self) -> &'static str {
        match self {
            Tokens::Thirteen => "13a",
            Tokens::International => "intl",
            Tokens::Chinese => "zh",
            Tokens::Blanks => "none",
            Tokens::Characters => "char",
        }
    }

    /// The text with one space between tokens.
    pub fn apply(self, text: &str) -> String {
        match self {
            Tokens::Thirteen => thirteen(text),
            Tokens::International => international(text),
            Tokens::Chinese => chinese(text),
            Tokens::Blanks => joined(words(text)),
            Tokens::Characters => {
                let mut out = String::with_capacity(2 * text.len());
                for c in text.chars().filter(|c| !is_space(*c)) {
                    if !out.is_empty() {
                        out.push(' ');
                    }
                    out.push(c);
                }
                out
            }
        }
    }
}

/// Code points that `zh` sets apart. sacrebleu 2.6 writes the ends of two planes as four digits and one more character; the two ranges of the plane 2 are what
/// its comparison of strings makes of them.
const CHINESE: [[char; 2]; 22] = [
    ['\u{3400}', '\u{4db5}'],
    ['\u{4e00}', '\u{9fa5}'],
    ['\u{9fa6}', '\u{9fbb}'],
    ['\u{f900}', '\u{fa2d}'],
    ['\u{fa30}', '\u{fa6a}'],
    ['\u{fa70}', '\u{fad9}'],
    ['\u{2001}', '\u{2a6d}'],
    ['\u{2f81}', '\u{2fa1}'],
    ['\u{ff00}', '\u{ffef}'],
    ['\u{2e80}', '\u{2eff}'],
    ['\u{3000}', '\u{303f}'],
    ['\u{31c0}', '\u{31ef}'],
    ['\u{2f00}', '\u{2fdf}'],
    ['\u{2ff0}', '\u{2fff}'],
    ['\u{3100}', '\u{312f}'],
    ['\u{31a0}', '\u{31bf}'],
    ['\u{fe10}', '\u{fe1f}'],
    ['\u{fe30}', '\u{fe4f}'],
    ['\u{2600}', '\u{26ff}'],
    ['\u{2700}', '\u{27bf}'],
    ['\u{3200}', '\u{32ff}'],
    ['\u{3300}', '\u{33ff}'],
];

fn chinese(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() * 5 / 3);
    for c in strip(text).chars() {
        match CHINESE.iter().any(|[first, last]| (*first..=*last).contains(&c)) {
            true => spaced.extend([' ', c, ' ']),
            false => spaced.push(c),
        }
    }
    western(&spaced)
}

/// The three rules of mteval-v14.
#[allow(clippy::unwrap_used, reason = "patterns of this file")]
static INTERNATIONAL: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
    let rule = |pattern: &str, by| (Regex::new(pattern).unwrap(), by);
    [rule(r"(\P{N})(\p{P})", "$1 $2 "), rule(r"(\p{P})(\P{N})", " $1 $2"), rule(r"(\p{S})", " $1 ")]
});

fn international(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, by) in &*INTERNATIONAL {
        text = pattern.replace_all(&text, *by).into_owned();
    }
    joined(words(&text))
}

fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        out += word;
    }
    out
}

/// Symbols that 13a sets apart wherever they stand: ASCII but letters, digits, space, apostrophe, comma, dash and period.
fn apart(c: char) -> bool {
    matches!(c, '{'..='~' | '['..='`' | '!'..='&' | '('..='+' | ':'..='@' | '/')
}

fn thirteen(text: &str) -> String {
    let text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    // Quotes before ampersands, so that an escaped escape is undone once.
    let text = match text.contains('&') {
        true => text.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"),
        false => text,
    };
    western(&format!(" {text} "))
}

/// Signs of ASCII apart, those of numbers but at their ends.
fn western(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() * 3 / 2);
    for c in text.chars() {
        if apart(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    let after_digit_only =
        pairs(&spaced, |a, b| !a.is_ascii_digit() && point(b), |out, a, b| out.extend([a, ' ', b, ' ']));
    let before_digit_only = pairs(
        &after_digit_only,
        |a, b| point(a) && !b.is_ascii_digit(),
        |out, a, b| out.extend([' ', a, ' ', b]),
    );
    let dashes = pairs(
        &before_digit_only,
        |a, b| a.is_ascii_digit() && b == '-',
        |out, a, b| out.extend([a, ' ', b, ' ']),
    );
    joined(words(&dashes))
}

/// A period or a comma.
fn point(c: char) -> bool {
    c == '.' || c == ','
}

/// Rewrites pairs of neighbours from left to right; a pair that was rewritten shares no character with the next.
fn pairs(text: &str, wanted: fn(char, char) -> bool, write: fn(&mut String, char, char)) -> String {
    let mut out = String::with_capacity(text.len() * 5 / 4);
    let mut chars = text.chars().peekable();
    while let Some(a) = chars.next() {
        match chars.peek() {
            Some(&b) if wanted(a, b) => {
                chars.next();
                write(&mut out, a, b);
            }
            _ => out.push(a),
        }
    }
    out
}
