//! What a rule can measure of a document: one number, or nothing where it is not defined. A measure is a file of this folder: its
//! name, parameters, meaning, formula and origin as data, and the function that computes it.
//!
//! A new measure is a file with its test, a `mod` line and a line in [`MEASURES`]; the table of docs/rules.md is written from
//! these values (`BESSEMER_GOLDEN=write cargo test -p bessemer-rules`).

mod alphanumeric_chars;
mod bad_words;
mod capital_words;
mod chars;
mod comment_chars;
mod comment_lines;
mod digit_chars;
mod distinct_listed_words;
mod duplicate_ngram_chars;
mod head_contains;
mod later_duplicate_chars;
mod later_duplicate_chars_of_lines;
mod later_duplicates;
mod letter_chars;
mod letter_words;
mod letterless_words;
mod lines;
mod lines_ending;
mod lines_not_ending;
mod lines_starting;
mod lines_terminated;
mod listed_words;
mod longest_line;
mod longest_word;
mod mark_chars;
mod mark_words;
mod marks_per_word;
mod mean_line_length;
mod mean_nonsymbol_word_length;
mod mean_word_length;
mod median_word_length;
mod newlines_per_word;
mod nonalphanumeric_chars;
mod nonsymbol_words;
mod paragraphs_with;
mod removed_words;
mod repeated_line_chars;
mod repeated_line_chars_of_words;
mod repeated_lines;
mod sentences;
mod short_lines;
mod space_chars;
mod third_longest_line;
mod top_ngram_chars;
mod unique_line_chars;
mod unique_lines;
mod unique_words;
mod url_chars;
mod visible_chars;
mod visible_share;
mod word_entropy;
mod words;
mod words_with_marks;

use crate::comments::Syntax;
use crate::error::{Error, Result, nearest};
use crate::features::Scratch;
use crate::lines::Lines;
use crate::profile::StepFile;
use crate::repetition::Variant;
use crate::words::WordSegmenter;
use bessemer_text::unicode::{char_count, strip_end};
use regex::Regex;
use std::collections::HashMap;

/// Description of a measure, and the function that computes it.
#[derive(Debug, Clone, Copy)]
pub struct MeasureSpec {
    /// Name in a profile.
    pub name: &'static str,
    /// Keys of [`StepFile`] that it takes.
    pub parameters: &'static [&'static str],
    /// Meaning of its value.
    pub value: &'static str,
    /// How the value is computed.
    pub formula: &'static str,
    /// The paper or program whose rules it comes from.
    pub origin: &'static str,
    /// Makes the pattern that it searches for, where it has one.
    pattern: Option<fn(&StepFile) -> Result<Regex>>,
    /// Computes the value of a text; none where it is not defined.
    compute: fn(&Measure, &str, &mut Scratch) -> Option<f64>,
}

/// Every measure, in the order of the documentation.
pub const MEASURES: &[MeasureSpec] = &[
    chars::MEASURE,
    words::MEASURE,
    nonsymbol_words::MEASURE,
    mean_word_length::MEASURE,
    mean_nonsymbol_word_length::MEASURE,
    median_word_length::MEASURE,
    longest_word::MEASURE,
    marks_per_word::MEASURE,
    words_with_marks::MEASURE,
    mark_words::MEASURE,
    letter_words::MEASURE,
    letterless_words::MEASURE,
    capital_words::MEASURE,
    unique_words::MEASURE,
    word_entropy::MEASURE,
    distinct_listed_words::MEASURE,
    listed_words::MEASURE,
    lines::MEASURE,
    lines_starting::MEASURE,
    lines_ending::MEASURE,
    lines_not_ending::MEASURE,
    lines_terminated::MEASURE,
    short_lines::MEASURE,
    longest_line::MEASURE,
    mean_line_length::MEASURE,
    third_longest_line::MEASURE,
    later_duplicates::MEASURE,
    later_duplicate_chars::MEASURE,
    later_duplicate_chars_of_lines::MEASURE,
    repeated_lines::MEASURE,
    repeated_line_chars::MEASURE,
    repeated_line_chars_of_words::MEASURE,
    unique_lines::MEASURE,
    unique_line_chars::MEASURE,
    top_ngram_chars::MEASURE,
    duplicate_ngram_chars::MEASURE,
    newlines_per_word::MEASURE,
    letter_chars::MEASURE,
    alphanumeric_chars::MEASURE,
    nonalphanumeric_chars::MEASURE,
    digit_chars::MEASURE,
    space_chars::MEASURE,
    mark_chars::MEASURE,
    url_chars::MEASURE,
    sentences::MEASURE,
    paragraphs_with::MEASURE,
    bad_words::MEASURE,
    comment_lines::MEASURE,
    comment_chars::MEASURE,
    visible_share::MEASURE,
    visible_chars::MEASURE,
    head_contains::MEASURE,
    removed_words::MEASURE,
];

/// A measure with its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Measure {
    spec: &'static MeasureSpec,
    words: WordSegmenter,
    lines: Lines,
    variant: Variant,
    n: usize,
    length: u64,
    marks: Vec<String>,
    trim: bool,
    list: HashMap<String, usize>,
    ignore_case: bool,
    pattern: Option<Regex>,
    keep: f64,
    syntax: Option<Syntax>,
}

/// Lengths of the lines of a text.
struct LineLengths {
    lines: u64,
    /// Characters of all lines.
    chars: u64,
    /// Characters of the three longest lines.
    longest: [u64; 3],
}

impl Measure {
    /// Checks the name and the parameters, which are keys of the step. `words` is the profile's kind of words.
    pub(crate) fn new(name: &str, step: &StepFile, words: WordSegmenter) -> Result<Measure> {
        let Some(spec) = MEASURES.iter().find(|spec| spec.name == name) else {
            let near = nearest(name, MEASURES.iter().map(|spec| spec.name));
            return Err(Error::new(format!(
                "no measure has the name {name:?}{near}; docs/rules.md lists them"
            )));
        };
        check(step, name, spec.parameters)?;
        let words = match &step.words {
            None => words,
            Some(words) => named(
                words,
                "words",
                WordSegmenter::named,
                WordSegmenter::ALL.map(WordSegmenter::name).as_slice(),
            )?,
        };
        let lines = match &step.lines {
            None => Lines::Newlines,
            Some(lines) => named(lines, "lines", Lines::named, Lines::ALL.map(Lines::name).as_slice())?,
        };
        let variant = match &step.variant {
            None => Variant::Datatrove,
            Some(variant) => {
                named(variant, "variant", Variant::named, Variant::ALL.map(Variant::name).as_slice())?
            }
        };
        let syntax = match &step.syntax {
            None => None,
            Some(syntax) => Some(named(syntax, "syntax", Syntax::named, &Syntax::ALL.map(Syntax::name))?),
        };
        Ok(Measure {
            spec,
            words,
            lines,
            variant,
            n: step.n.unwrap_or(1),
            length: step.length.unwrap_or(0),
            marks: step.marks.clone().unwrap_or_default(),
            trim: step.trim.unwrap_or(false),
            list: step.list.clone().unwrap_or_default().into_iter().zip(0..).collect(),
            ignore_case: step.ignore_case.unwrap_or(false),
            pattern: spec.pattern.map(|pattern| pattern(step)).transpose()?,
            keep: step.keep.unwrap_or(0.0),
            syntax,
        })
    }

    /// Name, as in a profile.
    pub(crate) fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Name and window, as in `top-ngram-chars(2)`.
    pub(crate) fn title(&self) -> String {
        match self.spec.parameters.contains(&"n") {
            true => format!("{}({})", self.name(), self.n),
            false => self.name().to_owned(),
        }
    }

    /// Kind of words that are counted.
    pub(crate) fn words(&self) -> WordSegmenter {
        self.words
    }

    /// The value for this text.
    pub(crate) fn value(&self, text: &str, scratch: &mut Scratch) -> Option<f64> {
        (self.spec.compute)(self, text, scratch)
    }

    /// Whether a line ends with a mark.
    fn ends_line(&self, line: &str) -> bool {
        let line = if self.trim { strip_end(line) } else { line };
        self.marks.iter().any(|mark| line.ends_with(mark.as_str()))
    }

    fn share_of_lines(&self, text: &str, holds: impl Fn(&str) -> bool) -> Option<f64> {
        let (mut found, mut lines) = (0, 0);
        self.lines.for_each(text, |line| {
            lines += 1;
            found += u64::from(holds(line));
        });
        quotient(found, lines)
    }

    fn share_of_words(&self, text: &str, scratch: &mut Scratch, holds: impl Fn(&str) -> bool) -> Option<f64> {
        let list = scratch.words(self.words, text);
        quotient(list.iter(text).filter(|word| holds(word)).count() as u64, list.len() as u64)
    }

    fn line_lengths(&self, text: &str) -> LineLengths {
        let mut found = LineLengths { lines: 0, chars: 0, longest: [0; 3] };
        self.lines.for_each(text, |line| {
            let chars = char_count(line) as u64;
            found.chars += chars;
            found.lines += 1;
            if chars > found.longest[2] {
                found.longest[2] = chars;
                found.longest.sort_unstable_by(|a, b| b.cmp(a));
            }
        });
        found
    }
}

/// Checks the parameters of a step: which a measure does not take, and which it lacks.
fn check(step: &StepFile, name: &str, takes: &[&str]) -> Result<()> {
    for (key, is_given) in step.parameters_given() {
        let taken = takes.contains(&key);
        if is_given && !taken {
            let list = if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") };
            return Err(Error::new(format!("{name:?} takes no {key}; it takes {list}")));
        }
        if taken && !is_given && matches!(key, "n" | "length" | "marks" | "list" | "syntax") {
            return Err(Error::new(format!("{name:?} needs {key}")));
        }
    }
    if let Some(n) = step.n.filter(|n| !(1..=64).contains(n)) {
        return Err(Error::new(format!("{name:?}: n = {n}: wanted 1 to 64")));
    }
    if let Some(keep) = step.keep.filter(|keep| !(0.0..=1.0).contains(keep)) {
        return Err(Error::new(format!("{name:?}: keep = {keep}: wanted a share from 0 to 1")));
    }
    if step.marks.iter().flatten().any(String::is_empty) {
        return Err(Error::new(format!("{name:?}: an empty mark is everywhere; leave it out")));
    }
    Ok(())
}

fn named<T>(name: &str, key: &str, of: impl Fn(&str) -> Option<T>, names: &[&str]) -> Result<T> {
    of(name).ok_or_else(|| {
        let near = nearest(name, names.iter().copied());
        Error::new(format!("{key} = {name:?}{near}: wanted one of {}", names.join(", ")))
    })
}

/// A pattern of a measure.
fn compile_pattern(pattern: &str) -> Result<Regex> {
    regex::RegexBuilder::new(pattern)
        .size_limit(64 << 20)
        .build()
        .map_err(|error| Error::new(format!("the pattern cannot be used: {error}")))
}

/// Occurrences that do not overlap, from the left.
fn occurrences(text: &str, mark: &str) -> u64 {
    match mark.as_bytes() {
        [byte] => memchr::memchr_iter(*byte, text.as_bytes()).count() as u64,
        mark => memchr::memmem::find_iter(text.as_bytes(), mark).count() as u64,
    }
}

fn newlines(text: &str) -> u64 {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64
}

fn share_of_chars(text: &str, scratch: &mut Scratch, holds: impl Fn(char) -> bool) -> Option<f64> {
    quotient(text.chars().filter(|&c| holds(c)).count() as u64, scratch.chars(text))
}

fn quotient(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
