//! Sentences, bad words, comments of code and visible text of markup.

use super::{MeasureSpec, compile_pattern, quotient};
use crate::comments::comment_chars;
use crate::error::Result;
use crate::lines::Lines;
use bessemer_text::hash::xxh3_seeded;
use bessemer_text::unicode::{char_count, strip};
use regex::Regex;

/// The measures of this file, in the order of the documentation.
pub(super) const MEASURES: &[MeasureSpec] = &[
    MeasureSpec {
        name: "sentences",
        parameters: &[],
        value: "matches of `\\b[^.!?]+[.!?]*`",
        formula: "matches",
        origin: "RedPajama-V2 (Weber et al. 2024)",
        pattern: Some(|_| compile_pattern(r"\b[^.!?]+[.!?]*")),
        compute: |measure, text, _| Some(measure.pattern.as_ref()?.find_iter(text).count() as f64),
    },
    MeasureSpec {
        name: "paragraphs-with",
        parameters: &["marks", "lines"],
        value: "share of paragraphs that hold a mark, in lower case; 1 if one holds `lorem ipsum`",
        formula: "such paragraphs / paragraphs",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, _| {
            let (mut found, mut paragraphs, mut lorem) = (0, 0, false);
            measure.lines.for_each(text, |paragraph| {
                let paragraph = strip(paragraph).to_lowercase();
                paragraphs += 1;
                lorem |= paragraph.contains("lorem ipsum");
                found += u64::from(measure.marks.iter().any(|mark| paragraph.contains(mark.as_str())));
            });
            if lorem { Some(1.0) } else { quotient(found, paragraphs) }
        },
    },
    MeasureSpec {
        name: "bad-words",
        parameters: &["list", "anywhere", "keep"],
        value: "1 if a word of the list occurs in lower case, else 0; 0 also for a share `keep` of these texts, by their hash",
        formula: "match of (\\W\\|^)(words)(\\W\\|$)",
        origin: "C4 (Raffel et al. 2020)",
        pattern: Some(|parameters| {
            pattern(parameters.list.as_deref().unwrap_or_default(), parameters.anywhere.unwrap_or(false))
        }),
        compute: |measure, text, _| {
            let found = measure.pattern.as_ref()?.is_match(&text.to_lowercase())
                && !is_let_through(measure.keep, text);
            Some(f64::from(u8::from(found)))
        },
    },
    MeasureSpec {
        name: "comment-lines",
        parameters: &[],
        value: "share of lines with content that begin as a comment does in some language",
        formula: "such lines / lines with content",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |_, text, _| {
            let (mut comments, mut lines) = (0, 0);
            Lines::Stripped.for_each(text, |line| {
                lines += 1;
                comments += u64::from(STARTS.iter().any(|start| line.starts_with(start)));
            });
            quotient(comments, lines)
        },
    },
    MeasureSpec {
        name: "comment-chars",
        parameters: &["syntax"],
        value: "share of characters in comments of a family of languages: c, hash, python (with docstrings), sql",
        formula: "chars of comments / chars",
        origin: "SantaCoder (Ben Allal et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| quotient(comment_chars(text, measure.syntax?), scratch.chars(text)),
    },
    MeasureSpec {
        name: "visible-share",
        parameters: &[],
        value: "share of characters outside of tags, scripts and styles",
        formula: "visible chars / chars",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |_, text, scratch| quotient(visible_chars(text), scratch.chars(text)),
    },
    MeasureSpec {
        name: "visible-chars",
        parameters: &[],
        value: "characters outside of tags, scripts and styles",
        formula: "visible chars",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |_, text, _| Some(visible_chars(text) as f64),
    },
    MeasureSpec {
        name: "head-contains",
        parameters: &["marks", "length"],
        value: "1 if the first so many characters hold a mark, else 0",
        formula: "mark in the first chars",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |measure, text, _| {
            let end = text.char_indices().nth(measure.length as usize).map_or(text.len(), |(at, _)| at);
            let head = &text[..end];
            Some(f64::from(u8::from(measure.marks.iter().any(|mark| head.contains(mark.as_str())))))
        },
    },
];

/// Seed of the hash that chooses the texts that are kept in spite of a bad word: not that of other choices by hash.
const KEEP_SEED: u64 = 0x6b65_6570;

/// `(?:\W|^)(w1|w2|...)(?:\W|$)`, or the words anywhere.
fn pattern(list: &[String], anywhere: bool) -> Result<Regex> {
    let words: Vec<String> =
        list.iter().filter(|word| !word.is_empty()).map(|word| regex::escape(word)).collect();
    if words.is_empty() {
        // Nothing is bad: a pattern that matches nothing.
        return compile_pattern(r"[^\s\S]");
    }
    let words = words.join("|");
    compile_pattern(&if anywhere { words } else { format!(r"(?:\W|^)(?:{words})(?:\W|$)") })
}

/// Whether the hash of the text is among the share `keep`: the same for every order of documents and any run.
fn is_let_through(keep: f64, text: &str) -> bool {
    // 53 bits: every value is an f64 of its own, all below 1.
    keep > 0.0 && ((xxh3_seeded(text.as_bytes(), KEEP_SEED) >> 11) as f64) / ((1_u64 << 53) as f64) < keep
}

/// Beginnings of comments.
const STARTS: [&str; 9] = ["//", "#", "/*", "*", "--", ";", "%", "\"\"\"", "<!--"];

/// Characters outside of `<...>`, scripts, styles and comments. A rough look, no parser: what is shown of a page.
fn visible_chars(text: &str) -> u64 {
    let (mut visible, mut rest) = (0, text);
    while let Some(open) = rest.find('<') {
        visible += char_count(&rest[..open]) as u64;
        rest = &rest[open..];
        let starts = |name: &str| {
            rest.as_bytes().get(1..=name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name.as_bytes()))
        };
        let close = if starts("script") {
            "</script"
        } else if starts("style") {
            "</style"
        } else if starts("!--") {
            "-->"
        } else {
            ">"
        };
        let Some(end) = find_ignoring_case(rest, close) else { return visible };
        rest = &rest[end + close.len()..];
        if close.starts_with("</") {
            let Some(end) = rest.find('>') else { return visible };
            rest = &rest[end + 1..];
        }
    }
    visible + char_count(rest) as u64
}

fn find_ignoring_case(text: &str, ascii: &str) -> Option<usize> {
    text.as_bytes().windows(ascii.len()).position(|window| window.eq_ignore_ascii_case(ascii.as_bytes()))
}
