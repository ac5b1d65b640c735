//! Repeated lines and repeated windows of words.

use super::{MeasureSpec, newlines, quotient};
use crate::repetition::ratio;

/// The measures of this file, in the order of the documentation.
pub(super) const MEASURES: &[MeasureSpec] = &[
    MeasureSpec {
        name: "later-duplicates",
        parameters: &["lines"],
        value: "share of lines that have come before",
        formula: "(lines - different lines) / lines",
        origin: "datatrove's Gopher",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            quotient(found.items - found.unique, found.items)
        },
    },
    MeasureSpec {
        name: "later-duplicate-chars",
        parameters: &["lines"],
        value: "characters of lines that have come before / characters of the text",
        formula: "chars of later copies / chars",
        origin: "datatrove's Gopher",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            quotient(found.chars - found.unique_chars, scratch.chars(text))
        },
    },
    MeasureSpec {
        name: "later-duplicate-chars-of-lines",
        parameters: &["lines"],
        value: "characters of lines that have come before / characters of the text without newlines",
        formula: "chars of later copies / (chars - newlines)",
        origin: "FineWeb (Penedo et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            quotient(found.chars - found.unique_chars, scratch.chars(text) - newlines(text))
        },
    },
    MeasureSpec {
        name: "repeated-lines",
        parameters: &["lines"],
        value: "share of lines that come more than once, all occurrences; none with one line",
        formula: "lines with a copy / lines",
        origin: "Dolma (Soldaini et al. 2024), RefinedWeb (Penedo et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            if found.items > 1 { quotient(found.repeated, found.items) } else { None }
        },
    },
    MeasureSpec {
        name: "repeated-line-chars",
        parameters: &["lines"],
        value: "characters of lines that come more than once / characters of all lines; none with one line",
        formula: "chars of lines with a copy / chars of lines",
        origin: "RefinedWeb (Penedo et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            if found.items > 1 { quotient(found.repeated_chars, found.chars) } else { None }
        },
    },
    MeasureSpec {
        name: "repeated-line-chars-of-words",
        parameters: &["words", "lines"],
        value: "characters of lines that come more than once / characters of all words",
        formula: "chars of lines with a copy / chars of words",
        origin: "Dolma (Soldaini et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            Some(ratio(found.repeated_chars, scratch.words(measure.words, text).total_chars.max(1)))
        },
    },
    MeasureSpec {
        name: "unique-lines",
        parameters: &["lines"],
        value: "different lines / lines",
        formula: "different lines / lines",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            quotient(found.unique, found.items)
        },
    },
    MeasureSpec {
        name: "unique-line-chars",
        parameters: &["lines"],
        value: "characters of different lines / characters of all lines",
        formula: "chars of different lines / chars of lines",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = scratch.duplicates(measure.lines, text);
            quotient(found.unique_chars, found.chars)
        },
    },
    MeasureSpec {
        name: "top-ngram-chars",
        parameters: &["n", "variant", "words"],
        value: "share of characters in the most frequent window of n words",
        formula: "chars of the top n-gram · its count / chars; what chars are: the variant",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| scratch.top_ngram(measure.variant, measure.words, measure.n, text),
    },
    MeasureSpec {
        name: "duplicate-ngram-chars",
        parameters: &["n", "variant", "words"],
        value: "share of characters in windows of n words that repeat",
        formula: "chars of repeated n-grams / chars; which of them: the variant",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| {
            scratch.duplicate_ngrams(measure.variant, measure.words, measure.n, text)
        },
    },
];
