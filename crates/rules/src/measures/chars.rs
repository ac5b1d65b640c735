//! Counts and shares of characters.

use super::{MeasureSpec, compile_pattern, occurrences, quotient, share_of_chars};
use bessemer_text::unicode::{Class, char_count, class, is_letter};

/// The measures of this file, in the order of the documentation.
pub(super) const MEASURES: &[MeasureSpec] = &[
    MeasureSpec {
        name: "chars",
        parameters: &[],
        value: "characters",
        formula: "chars",
        origin: "datatrove, Ziya2 (Gan et al. 2023)",
        pattern: None,
        compute: |_, text, scratch| Some(scratch.chars(text) as f64),
    },
    MeasureSpec {
        name: "letter-chars",
        parameters: &[],
        value: "share of characters that are letters",
        formula: "letters / chars",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |_, text, scratch| share_of_chars(text, scratch, is_letter),
    },
    MeasureSpec {
        name: "alphanumeric-chars",
        parameters: &[],
        value: "share of characters that are letters or numbers",
        formula: "letters and numbers / chars",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |_, text, scratch| share_of_chars(text, scratch, |c| is_letter(c) || c.is_numeric()),
    },
    MeasureSpec {
        name: "nonalphanumeric-chars",
        parameters: &[],
        value: "share of characters other than ASCII letters, digits, newline and `?!,.`",
        formula: "such characters / chars",
        origin: "NeMo Curator",
        pattern: None,
        compute: |_, text, scratch| {
            share_of_chars(text, scratch, |c| {
                !(c.is_ascii_alphanumeric() || matches!(c, '\n' | '?' | '!' | ',' | '.'))
            })
        },
    },
    MeasureSpec {
        name: "digit-chars",
        parameters: &[],
        value: "share of characters that are digits",
        formula: "digits / chars",
        origin: "NeMo Curator",
        pattern: None,
        compute: |_, text, scratch| share_of_chars(text, scratch, |c| class(c).meets(Class::DIGIT)),
    },
    MeasureSpec {
        name: "space-chars",
        parameters: &[],
        value: "share of characters that are white space",
        formula: "white space / chars",
        origin: "NeMo Curator",
        pattern: None,
        compute: |_, text, scratch| {
            share_of_chars(text, scratch, |c| matches!(c, ' ' | '\n' | '\t' | '\r' | '\u{b}' | '\u{c}'))
        },
    },
    MeasureSpec {
        name: "mark-chars",
        parameters: &["marks"],
        value: "share of characters that belong to the marks",
        formula: "chars of marks / chars",
        origin: "NeMo Curator, RedPajama-V2 (Weber et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            let of = |mark: &String| occurrences(text, mark) * char_count(mark) as u64;
            quotient(measure.marks.iter().map(of).sum(), scratch.chars(text))
        },
    },
    MeasureSpec {
        name: "url-chars",
        parameters: &[],
        value: "share of characters in URLs with a scheme",
        formula: "chars of matches / chars",
        origin: "NeMo Curator",
        pattern: Some(|_| compile_pattern(URL)),
        compute: |measure, text, scratch| {
            let found = measure.pattern.as_ref()?.find_iter(text);
            quotient(found.map(|found| char_count(found.as_str()) as u64).sum(), scratch.chars(text))
        },
    },
];

/// NeMo Curator's pattern.
const URL: &str = r"https?://(?:[a-zA-Z]|[0-9]|[$-_@.&+]|[!*\\(\\),]|(?:%[0-9a-fA-F][0-9a-fA-F]))+";
