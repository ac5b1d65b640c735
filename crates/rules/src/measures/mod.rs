//! What a rule can measure of a document: one number, or nothing where it is not defined. A measure is a file of this folder: its
//! name, parameters, meaning, formula and origin as data, and the function that computes it.
//!
//! A new measure is a file, a test, and a line in the list below; the table of docs/rules.md is written from these values
//! (`BESSEMER_GOLDEN=write cargo test -p bessemer-rules`).

use crate::comments::Syntax;
use crate::error::{Error, Result, named};
use crate::features::Scratch;
use crate::lines::Lines;
use crate::profile::StepFile;
use crate::repetition::Variant;
use crate::words::WordSegmenter;
use bessemer_text::unicode::{char_count, strip_end};
use bessemer_units::did_you_mean;
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

/// Declares the files of the measures and lists what they hold. `cargo fmt` does not see files that a macro declares: they are
/// formatted by `rustfmt crates/rules/src/measures/*.rs`.
macro_rules! measures {
    ($($file:ident)*) => {
        $(mod $file;)*

        /// Every measure, in the order of the documentation.
        pub const MEASURES: &[MeasureSpec] = &[$($file::MEASURE),*];
    };
}

measures! {
    chars
    words
    nonsymbol_words
    mean_word_length
    mean_nonsymbol_word_length
    median_word_length
    longest_word
    marks_per_word
    words_with_marks
    mark_words
    letter_words
    letterless_words
    capital_words
    unique_words
    word_entropy
    distinct_listed_words
    listed_words
    lines
    lines_starting
    lines_ending
    lines_not_ending
    lines_terminated
    short_lines
    longest_line
    mean_line_length
    third_longest_line
    later_duplicates
    later_duplicate_chars
    later_duplicate_chars_of_lines
    repeated_lines
    repeated_line_chars
    repeated_line_chars_of_words
    unique_lines
    unique_line_chars
    top_ngram_chars
    duplicate_ngram_chars
    newlines_per_word
    letter_chars
    alphanumeric_chars
    nonalphanumeric_chars
    digit_chars
    space_chars
    mark_chars
    url_chars
    sentences
    paragraphs_with
    bad_words
    comment_lines
    comment_chars
    visible_share
    visible_chars
    head_contains
    removed_words
}

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
            let near = did_you_mean(name, MEASURES.iter().map(|spec| spec.name));
            return Err(Error::new(format!(
                "no measure has the name {name:?}{near}; docs/rules.md lists them"
            )));
        };
        check(step, name, spec.parameters)?;
        let words = match &step.words {
            None => words,
            Some(name) => named("words", name, &WordSegmenter::ALL, WordSegmenter::name)?,
        };
        let lines = match &step.lines {
            None => Lines::Newlines,
            Some(name) => named("lines", name, &Lines::ALL, Lines::name)?,
        };
        let variant = match &step.variant {
            None => Variant::Datatrove,
            Some(name) => named("variant", name, &Variant::ALL, Variant::name)?,
        };
        let syntax = |name| named("syntax", name, &Syntax::ALL, Syntax::name);
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
            syntax: step.syntax.as_deref().map(syntax).transpose()?,
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
        return Err(Error::new(format!("{name:?}: an empty mark matches everywhere; leave it out")));
    }
    Ok(())
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
