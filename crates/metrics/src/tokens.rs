//! Texts cut into tokens as metrics of translation define it: mteval's version 13a, characters, or blanks alone.
//!
//! Behaviour and names are those of sacrebleu (Post 2018), so that signatures compare.

use bessemer_text::unicode::is_space;

/// Parts of a text between blanks.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// A tokenizer of translations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// mteval-v13a: punctuation and symbols of ASCII apart, periods, commas and dashes apart unless within numbers.
    Thirteen,
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
            Tokens::Blanks => "none",
            Tokens::Characters => "char",
        }
    }

    /// The text with one space between tokens.
    pub fn apply(self, text: &str) -> String {
        match self {
            Tokens::Thirteen => thirteen(text),
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
    let mut spaced = String::with_capacity(text.len() * 3 / 2);
    spaced.push(' ');
    for c in text.chars() {
        if apart(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    spaced.push(' ');

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
