//! datatrove's `simplify_text`: what near-duplicate detection compares.

use super::push_unaccented;
use crate::unicode::{Class, byte_class, class, is_space};

/// Steps of the normalisation, made in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Simplify {
    /// 1. Lower case.
    pub lowercase: bool,
    /// 2. A number, decimal part included, becomes `0`: `\p{Nd}+([.,،٫⎖⎗⎘]\p{Nd}+)?`.
    pub numbers: bool,
    /// 3. English names of weekdays (in lower case) become `WEEKDAY`.
    pub weekdays: bool,
    /// 4. English names of months (in lower case) become `MONTH`.
    pub months: bool,
    /// 5. Each character of `PUNCTUATION` becomes a space.
    pub punctuation: bool,
    /// 6. Trimmed, and each run of white space becomes one space.
    pub whitespace: bool,
    /// 7. NFD without non-spacing marks.
    pub diacritics: bool,
}

impl Default for Simplify {
    /// datatrove's default steps.
    fn default() -> Simplify {
        Simplify {
            lowercase: true,
            numbers: true,
            weekdays: false,
            months: false,
            punctuation: true,
            whitespace: true,
            diacritics: true,
        }
    }
}

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// Signs that stand between the whole and the decimal part of a number.
fn is_decimal_separator(c: char) -> bool {
    matches!(c, '.' | ',' | '،' | '٫' | '⎖' | '⎗' | '⎘')
}

impl Simplify {
    /// The simplified text.
    pub fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        self.apply_into(text, &mut out);
        out
    }

    /// Replaces the contents of `out` by the simplified text.
    pub fn apply_into(&self, text: &str, out: &mut String) {
        out.clear();
        if text.is_ascii() && !self.weekdays && !self.months {
            self.ascii(text, out);
        } else {
            self.general(text, out);
        }
        // The last step trims whatever the switches say.
        let end = out.trim_end_matches(is_space).len();
        out.truncate(end);
        let start = out.len() - out.trim_start_matches(is_space).len();
        if start > 0 {
            out.drain(..start);
        }
    }

    /// One pass over bytes.
    fn ascii(&self, text: &str, out: &mut String) {
        let bytes = text.as_bytes();
        let (mut at, mut pending) = (0, false);
        while at < bytes.len() {
            let mut byte = bytes[at];
            at += 1;
            if self.numbers && byte.is_ascii_digit() {
                at += digits(&bytes[at..]);
                if let [b'.' | b',', next, ..] = &bytes[at..]
                    && next.is_ascii_digit()
                {
                    at += 1 + digits(&bytes[at + 1..]);
                }
                byte = b'0';
            } else if self.lowercase {
                byte = byte.to_ascii_lowercase();
            }
            let classes = byte_class(byte);
            if self.punctuation && classes.meets(Class::PUNCTUATION) {
                byte = b' ';
            }
            if self.whitespace && byte_class(byte).meets(Class::SPACE) {
                pending = true;
                continue;
            }
            if pending {
                if !out.is_empty() {
                    out.push(' ');
                }
                pending = false;
            }
            out.push(char::from(byte));
        }
    }

    /// Steps 1 to 4 where they apply, then 5 and 6 in one pass, then 7.
    fn general(&self, text: &str, out: &mut String) {
        let mut text = if self.lowercase { text.to_lowercase() } else { text.to_owned() };
        if self.numbers {
            text = zeroed_numbers(&text);
        }
        if self.weekdays {
            text = replaced(&text, &WEEKDAYS, "WEEKDAY");
        }
        if self.months {
            text = replaced(&text, &MONTHS, "MONTH");
        }
        let mut plain = String::with_capacity(text.len());
        if self.punctuation || self.whitespace {
            let mut pending = false;
            // Python trims before it replaces, but a leading or trailing run would leave one space, and that is
            // trimmed in the end all the same.
            for mut c in text.chars() {
                let classes = class(c);
                if self.punctuation && classes.meets(Class::PUNCTUATION) {
                    c = ' ';
                }
                if self.whitespace && is_space(c) {
                    pending = true;
                    continue;
                }
                if pending {
                    if !plain.is_empty() {
                        plain.push(' ');
                    }
                    pending = false;
                }
                plain.push(c);
            }
        } else {
            plain = text;
        }
        if self.diacritics {
            push_unaccented(&plain, out);
        } else {
            out.push_str(&plain);
        }
    }

    /// The steps one after the other, each written as its definition: the judge of the faster forms.
    #[cfg(test)]
    fn plain(&self, text: &str) -> String {
        use crate::unicode::strip;
        use unicode_normalization::UnicodeNormalization;
        let mut text = if self.lowercase { text.to_lowercase() } else { text.to_owned() };
        if self.numbers {
            // The digits of Unicode 14, as in the tables: the expressions' own are of a later version.
            let digits = r"[\p{Nd}&&\p{Age:14.0}]+";
            let number =
                regex::Regex::new(&format!("{digits}(?:[.,،٫⎖⎗⎘]{digits})?")).expect("a fixed pattern");
            text = number.replace_all(&text, "0").into_owned();
        }
        if self.weekdays {
            let days = regex::Regex::new(&WEEKDAYS.join("|")).expect("a fixed pattern");
            text = days.replace_all(&text, "WEEKDAY").into_owned();
        }
        if self.months {
            let months = regex::Regex::new(&MONTHS.join("|")).expect("a fixed pattern");
            text = months.replace_all(&text, "MONTH").into_owned();
        }
        if self.punctuation {
            text = text.chars().map(|c| if class(c).meets(Class::PUNCTUATION) { ' ' } else { c }).collect();
        }
        if self.whitespace {
            text = strip(&text).split(is_space).filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
        }
        if self.diacritics {
            text = text.nfd().filter(|&c| !class(c).meets(Class::MARK_NONSPACING)).collect();
        }
        strip(&text).to_owned()
    }
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit()).count()
}

fn zeroed_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let is_digit = |c: char| class(c).meets(Class::DIGIT);
    let mut rest = text;
    while let Some(start) = rest.find(is_digit) {
        out.push_str(&rest[..start]);
        out.push('0');
        rest = rest[start..].trim_start_matches(is_digit);
        let mut ahead = rest.chars();
        if ahead.next().is_some_and(is_decimal_separator) && ahead.next().is_some_and(is_digit) {
            rest = rest.trim_start_matches(is_decimal_separator).trim_start_matches(is_digit);
        }
    }
    out.push_str(rest);
    out
}

/// Leftmost matches of any of the words, of which none is a prefix of another, replaced.
fn replaced(text: &str, words: &[&str], by: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let found = words.iter().filter_map(|word| rest.find(word).map(|at| (at, word.len()))).min();
        let Some((at, len)) = found else { break };
        out.push_str(&rest[..at]);
        out.push_str(by);
        rest = &rest[at + len..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn switches(bits: u8) -> Simplify {
        Simplify {
            lowercase: bits & 1 == 0,
            numbers: bits & 2 == 0,
            weekdays: bits & 4 != 0,
            months: bits & 8 != 0,
            punctuation: bits & 16 == 0,
            whitespace: bits & 32 == 0,
            diacritics: bits & 64 == 0,
        }
    }

    #[test]
    fn values_of_datatrove() {
        // Outputs of datatrove 0.10.1.
        let simplify = Simplify::default();
        assert_eq!(simplify.apply("  Hello,  World!\n\n1,234.5 and 1.2.3"), "hello world 0 0 and 0 0");
        assert_eq!(simplify.apply("Café １２３ Ünïcode — “x”"), "cafe 0 unicode x");
        assert_eq!(simplify.apply("\u{1}a\u{85}b\u{a0}c"), "a b c");
        assert_eq!(simplify.apply(""), "");
        assert_eq!(simplify.apply("...!?"), "");
        let dated = Simplify { weekdays: true, months: true, ..simplify };
        assert_eq!(dated.apply("On Monday, 3 May 2021"), "on WEEKDAY 0 MONTH 0");
    }

    #[test]
    fn digits_that_came_after_unicode_14_stay() {
        // Ol Onal digit one, of Unicode 16.
        let simplify = Simplify::default();
        assert_eq!(simplify.apply("\u{1e5f1}"), "\u{1e5f1}");
        assert_eq!(simplify.plain("\u{1e5f1}7"), "\u{1e5f1}0");
    }

    proptest! {
        #[test]
        fn equal_to_the_steps(
            text in "[ -~\t\n\u{1}]{0,40}|[ a-dX-Z0-9.,!\u{1c}é１٣٫،—İΣ\u{301}\u{85}\u{a0}한]{0,30}|(may|monday|1\\.5| |é){0,8}|\\PC{0,10}",
            bits in 0u8..128,
        ) {
            let simplify = switches(bits);
            prop_assert_eq!(simplify.apply(&text), simplify.plain(&text));
        }
    }
}
