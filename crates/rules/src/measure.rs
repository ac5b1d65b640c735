//! What a rule can measure of a document: one number, or nothing where it is not defined.

use crate::comments::{Syntax, comment_chars};
use crate::error::{Error, Result, nearest};
use crate::features::Scratch;
use crate::lines::Lines;
use crate::repetition::{Variant, ratio};
use crate::words::Cut;
use bessemer_text::hash::xxh3_seeded;
use bessemer_text::unicode::{Class, char_count, class, is_letter, strip, strip_end, strip_start};
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Seed of the hash that chooses the texts that are kept in spite of a bad word: not that of other choices by hash.
const KEEP_SEED: u64 = 0x6b65_6570;

/// The keys of a rule in a profile that say what is measured, beside its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// Kind of words; the profile's, if left out.
    pub words: Option<String>,
    /// Kind of lines.
    pub lines: Option<String>,
    /// Whose way of counting repeated windows.
    pub variant: Option<String>,
    /// Words in a window.
    pub n: Option<usize>,
    /// A length in characters.
    pub length: Option<u64>,
    /// Strings to count, or to find at an end of a line.
    pub marks: Option<Vec<String>>,
    /// White space at the ends of a line is passed over.
    pub trim: Option<bool>,
    /// Words to count.
    pub list: Option<Vec<String>>,
    /// Upper and lower case are the same.
    pub ignore_case: Option<bool>,
    /// A word of the list counts inside of longer words too.
    pub anywhere: Option<bool>,
    /// Share of the texts with a word of the list that count as if they had none.
    pub keep: Option<f64>,
    /// A family of programming languages: c, hash, python, sql.
    pub syntax: Option<String>,
}

/// Names, parameters and meaning of every measure.
pub const MEASURES: &[(&str, &str, &str)] = &[
    ("chars", "", "characters"),
    ("words", "words", "words"),
    ("nonsymbol-words", "words", "words with a character that is no punctuation"),
    ("mean-word-length", "words", "characters per word"),
    (
        "mean-nonsymbol-word-length",
        "words",
        "characters per word, over words with a character that is no punctuation",
    ),
    ("median-word-length", "words", "median of the characters per word"),
    ("longest-word", "words", "characters of the longest word"),
    ("marks-per-word", "marks, words", "occurrences of the marks in the text, per word"),
    ("words-with-marks", "marks, words", "share of words that hold a mark"),
    ("mark-words", "marks, words", "share of words that are a mark, or `#` to more than a half"),
    ("letter-words", "words", "share of words with a letter"),
    ("letterless-words", "words", "share of words without a letter"),
    ("capital-words", "words", "share of words with upper-case letters and no lower-case one"),
    ("unique-words", "words", "different words / words"),
    ("word-entropy", "words", "entropy of the words in nats"),
    ("distinct-listed-words", "list, words", "how many words of the list occur"),
    ("listed-words", "list, ignore_case, words", "how often words of the list occur"),
    ("lines", "lines", "lines"),
    ("lines-starting", "marks, trim, lines", "share of lines that begin with a mark"),
    ("lines-ending", "marks, trim, lines", "share of lines that end with a mark"),
    ("lines-not-ending", "marks, trim, lines", "share of lines that end with none of the marks"),
    ("lines-terminated", "lines", "share of lines that end with a sentence-ending sign of any script"),
    ("short-lines", "length, lines", "share of lines with at most so many characters"),
    ("longest-line", "lines", "characters of the longest line"),
    ("mean-line-length", "lines", "characters per line"),
    ("third-longest-line", "lines", "characters of the third longest line; 0 with fewer lines"),
    ("later-duplicates", "lines", "share of lines that have come before"),
    ("later-duplicate-chars", "lines", "characters of lines that have come before / characters of the text"),
    ("later-duplicate-chars-of-lines", "lines", "the same / characters of the text without newlines"),
    (
        "repeated-lines",
        "lines",
        "share of lines that come more than once, all occurrences; none with one line",
    ),
    ("repeated-line-chars", "lines", "characters of these / characters of all lines; none with one line"),
    ("repeated-line-chars-of-words", "words, lines", "characters of these / characters of all words"),
    ("unique-lines", "lines", "different lines / lines"),
    ("unique-line-chars", "lines", "characters of different lines / characters of all lines"),
    ("top-ngram-chars", "n, variant, words", "share of characters in the most frequent window of n words"),
    ("duplicate-ngram-chars", "n, variant, words", "share of characters in windows of n words that repeat"),
    ("newlines-per-word", "words", "newlines per word"),
    ("letter-chars", "", "share of characters that are letters"),
    ("alphanumeric-chars", "", "share of characters that are letters or numbers"),
    ("nonalphanumeric-chars", "", "share of characters other than ASCII letters, digits, newline and `?!,.`"),
    ("digit-chars", "", "share of characters that are digits"),
    ("space-chars", "", "share of characters that are white space"),
    ("mark-chars", "marks", "share of characters that belong to the marks"),
    ("url-chars", "", "share of characters in URLs with a scheme"),
    ("sentences", "", "matches of `\\b[^.!?]+[.!?]*`"),
    (
        "paragraphs-with",
        "marks, lines",
        "share of paragraphs that hold a mark, in lower case; 1 if one holds `lorem ipsum`",
    ),
    (
        "bad-words",
        "list, anywhere, keep",
        "1 if a word of the list occurs in lower case, else 0; 0 also for a share `keep` of these texts, by their hash",
    ),
    ("comment-lines", "", "share of lines with content that begin as a comment does in some language"),
    (
        "comment-chars",
        "syntax",
        "share of characters in comments of a family of languages: c, hash, python (with docstrings), sql",
    ),
    ("visible-share", "", "share of characters outside of tags, scripts and styles"),
    ("visible-chars", "", "characters outside of tags, scripts and styles"),
    ("head-contains", "marks, length", "1 if the first so many characters hold a mark, else 0"),
    ("removed-words", "words", "share of the words that the line rules of the profile have cut"),
];

/// One measure with its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    cut: Cut,
    lines: Lines,
    variant: Variant,
    n: usize,
    length: u64,
    marks: Vec<String>,
    trim: bool,
    list: HashMap<String, usize>,
    ignore_case: bool,
    /// Of URLs, sentences and bad words.
    pattern: Option<Regex>,
    keep: f64,
    syntax: Option<Syntax>,
}

impl Measure {
    /// Checks name and parameters. `cut` is the profile's kind of words.
    pub(crate) fn new(name: &str, parameters: &Parameters, cut: Cut) -> Result<Measure> {
        let Some(&(name, takes, _)) = MEASURES.iter().find(|(known, _, _)| *known == name) else {
            let near = nearest(name, MEASURES.iter().map(|(known, _, _)| *known));
            return Err(Error::new(format!(
                "no measure has the name {name:?}{near}; docs/rules.md lists them"
            )));
        };
        parameters.check(name, takes)?;
        let p = parameters;
        let cut = match &p.words {
            None => cut,
            Some(words) => named(words, "words", Cut::named, Cut::ALL.map(Cut::name).as_slice())?,
        };
        let lines = match &p.lines {
            None => Lines::Newlines,
            Some(lines) => named(lines, "lines", Lines::named, Lines::ALL.map(Lines::name).as_slice())?,
        };
        let variant = match &p.variant {
            None => Variant::Datatrove,
            Some(variant) => {
                named(variant, "variant", Variant::named, Variant::ALL.map(Variant::name).as_slice())?
            }
        };
        let list = p.list.clone().unwrap_or_default();
        let pattern = match name {
            "url-chars" => Some(compile(
                r"https?://(?:[a-zA-Z]|[0-9]|[$-_@.&+]|[!*\\(\\),]|(?:%[0-9a-fA-F][0-9a-fA-F]))+",
            )?),
            "sentences" => Some(compile(r"\b[^.!?]+[.!?]*")?),
            "bad-words" => Some(bad_words(&list, p.anywhere.unwrap_or(false))?),
            _ => None,
        };
        let syntax = match &p.syntax {
            None => None,
            Some(syntax) => Some(named(syntax, "syntax", Syntax::named, &Syntax::ALL.map(Syntax::name))?),
        };
        Ok(Measure {
            name,
            cut,
            lines,
            variant,
            n: p.n.unwrap_or(1),
            length: p.length.unwrap_or(0),
            marks: p.marks.clone().unwrap_or_default(),
            trim: p.trim.unwrap_or(false),
            list: list.into_iter().zip(0..).collect(),
            ignore_case: p.ignore_case.unwrap_or(false),
            pattern,
            keep: p.keep.unwrap_or(0.0),
            syntax,
        })
    }

    /// Name and window, as in `top-ngram-chars(2)`.
    pub(crate) fn title(&self) -> String {
        match self.name {
            "top-ngram-chars" | "duplicate-ngram-chars" => format!("{}({})", self.name, self.n),
            name => name.to_owned(),
        }
    }

    /// Kind of words that are counted.
    pub(crate) fn cut(&self) -> Cut {
        self.cut
    }

    /// The value for this text.
    pub(crate) fn value(&self, text: &str, scratch: &mut Scratch) -> Option<f64> {
        let cut = self.cut;
        match self.name {
            "chars" => Some(scratch.chars(text) as f64),
            "words" => Some(scratch.word_count(cut, text) as f64),
            "nonsymbol-words" => Some(scratch.stats(cut, text).nonsymbol as f64),
            "mean-word-length" => {
                let list = scratch.words(cut, text);
                quotient(list.total_chars, list.len() as u64)
            }
            "mean-nonsymbol-word-length" => {
                let stats = scratch.stats(cut, text);
                quotient(stats.nonsymbol_chars, stats.nonsymbol)
            }
            "marks-per-word" => {
                let found = self.marks.iter().map(|mark| occurrences(text, mark)).sum();
                quotient(found, scratch.word_count(cut, text))
            }
            "letter-words" => quotient(scratch.stats(cut, text).with_letter, scratch.word_count(cut, text)),
            "letterless-words" => {
                let words = scratch.word_count(cut, text);
                quotient(words - scratch.stats(cut, text).with_letter, words)
            }
            "newlines-per-word" => {
                let newlines = memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
                quotient(newlines, scratch.word_count(cut, text))
            }
            "top-ngram-chars" => scratch.top_ngram(self.variant, cut, self.n, text),
            "duplicate-ngram-chars" => scratch.duplicate_ngrams(self.variant, cut, self.n, text),
            "lines"
            | "later-duplicates"
            | "later-duplicate-chars"
            | "later-duplicate-chars-of-lines"
            | "repeated-lines"
            | "repeated-line-chars"
            | "repeated-line-chars-of-words"
            | "unique-lines"
            | "unique-line-chars" => self.of_duplicates(text, scratch),
            "lines-starting" => self.share_of_lines(text, |line| {
                let line = if self.trim { strip_start(line) } else { line };
                self.marks.iter().any(|mark| line.starts_with(mark.as_str()))
            }),
            "lines-ending" => self.share_of_lines(text, |line| self.ends(line)),
            "lines-not-ending" => self.share_of_lines(text, |line| !self.ends(line)),
            "lines-terminated" => self.share_of_lines(text, |line| {
                line.chars().next_back().is_some_and(|c| class(c).meets(Class::TERMINAL))
            }),
            "short-lines" => self.share_of_lines(text, |line| is_short(line, self.length)),
            "longest-line" | "mean-line-length" | "third-longest-line" => self.of_lengths(text),
            "removed-words" => {
                let before = scratch.words_before?;
                let after = scratch.word_count(cut, text);
                (before > 0).then(|| (before as f64 - after as f64) / before as f64)
            }
            _ => self.of_words(text, scratch).or_else(|| self.of_chars(text, scratch)),
        }
    }

    fn ends(&self, line: &str) -> bool {
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

    fn of_lengths(&self, text: &str) -> Option<f64> {
        let (mut longest, mut sum, mut lines) = ([0; 3], 0, 0);
        self.lines.for_each(text, |line| {
            let chars = char_count(line) as u64;
            sum += chars;
            lines += 1;
            if chars > longest[2] {
                longest[2] = chars;
                longest.sort_unstable_by(|a, b| b.cmp(a));
            }
        });
        match self.name {
            "longest-line" => (lines > 0).then_some(longest[0] as f64),
            "mean-line-length" => quotient(sum, lines),
            _ => Some(longest[2] as f64),
        }
    }

    fn of_duplicates(&self, text: &str, scratch: &mut Scratch) -> Option<f64> {
        let found = scratch.duplicates(self.lines, text);
        let later_chars = found.chars - found.unique_chars;
        match self.name {
            "lines" => Some(found.items as f64),
            "later-duplicates" => quotient(found.items - found.unique, found.items),
            "later-duplicate-chars" => quotient(later_chars, scratch.chars(text)),
            "later-duplicate-chars-of-lines" => {
                let newlines = memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
                quotient(later_chars, scratch.chars(text) - newlines)
            }
            "repeated-lines" if found.items > 1 => quotient(found.repeated, found.items),
            "repeated-line-chars" if found.items > 1 => quotient(found.repeated_chars, found.chars),
            "repeated-line-chars-of-words" => {
                Some(ratio(found.repeated_chars, scratch.words(self.cut, text).total_chars.max(1)))
            }
            "unique-lines" => quotient(found.unique, found.items),
            "unique-line-chars" => quotient(found.unique_chars, found.chars),
            _ => None,
        }
    }

    fn of_words(&self, text: &str, scratch: &mut Scratch) -> Option<f64> {
        let list = scratch.words(self.cut, text);
        let words = list.len() as u64;
        let share = |holds: &dyn Fn(&str) -> bool| {
            quotient(list.iter(text).filter(|word| holds(word)).count() as u64, words)
        };
        match self.name {
            "median-word-length" => Some(median(&list.chars)),
            "longest-word" => list.chars.iter().max().map(|&chars| f64::from(chars)),
            "words-with-marks" => share(&|word| self.marks.iter().any(|mark| word.contains(mark.as_str()))),
            "mark-words" => share(&|word| {
                let hashes = word.bytes().filter(|&b| b == b'#').count();
                self.marks.iter().any(|mark| mark == word) || 2 * hashes > word.chars().count()
            }),
            "capital-words" => {
                share(&|word| word.chars().any(char::is_uppercase) && !word.chars().any(char::is_lowercase))
            }
            "unique-words" | "word-entropy" => {
                let mut counts: HashMap<&str, u64> = HashMap::new();
                list.iter(text).for_each(|word| *counts.entry(word).or_default() += 1);
                if self.name == "unique-words" {
                    return quotient(counts.len() as u64, words);
                }
                // Sorted, so that the sum does not depend on the order of a map.
                let mut counts: Vec<u64> = counts.into_values().collect();
                counts.sort_unstable();
                let entropy = counts.iter().map(|&count| count as f64 / words as f64).map(|p| -p * p.ln());
                (words > 0).then(|| entropy.sum())
            }
            "distinct-listed-words" => {
                let mut seen = vec![false; self.list.len()];
                for place in list.iter(text).filter_map(|word| self.list.get(word)) {
                    seen[*place] = true;
                }
                Some(seen.into_iter().filter(|&seen| seen).count() as f64)
            }
            "listed-words" if self.ignore_case => {
                let listed = |word: &&str| self.list.contains_key(word.to_lowercase().as_str());
                Some(list.iter(text).filter(listed).count() as f64)
            }
            "listed-words" => {
                Some(list.iter(text).filter(|word| self.list.contains_key(*word)).count() as f64)
            }
            _ => None,
        }
    }

    /// Whether the hash of the text is among the share `keep`: the same for every order of documents and any run.
    fn is_let_through(&self, text: &str) -> bool {
        // 53 bits: every value is an f64 of its own, all below 1.
        self.keep > 0.0
            && ((xxh3_seeded(text.as_bytes(), KEEP_SEED) >> 11) as f64) / ((1_u64 << 53) as f64) < self.keep
    }

    fn of_chars(&self, text: &str, scratch: &mut Scratch) -> Option<f64> {
        let chars = scratch.chars(text);
        let share =
            |holds: &dyn Fn(char) -> bool| quotient(text.chars().filter(|&c| holds(c)).count() as u64, chars);
        match self.name {
            "letter-chars" => share(&is_letter),
            "alphanumeric-chars" => share(&|c| is_letter(c) || c.is_numeric()),
            "nonalphanumeric-chars" => {
                share(&|c| !(c.is_ascii_alphanumeric() || matches!(c, '\n' | '?' | '!' | ',' | '.')))
            }
            "digit-chars" => share(&|c| class(c).meets(Class::DIGIT)),
            "space-chars" => share(&|c| matches!(c, ' ' | '\n' | '\t' | '\r' | '\u{b}' | '\u{c}')),
            "mark-chars" => {
                let found =
                    self.marks.iter().map(|mark| occurrences(text, mark) * char_count(mark) as u64).sum();
                quotient(found, chars)
            }
            "url-chars" => {
                let pattern = self.pattern.as_ref()?;
                quotient(pattern.find_iter(text).map(|found| char_count(found.as_str()) as u64).sum(), chars)
            }
            "sentences" => Some(self.pattern.as_ref()?.find_iter(text).count() as f64),
            "bad-words" => {
                let found =
                    self.pattern.as_ref()?.is_match(&text.to_lowercase()) && !self.is_let_through(text);
                Some(f64::from(u8::from(found)))
            }
            "comment-chars" => quotient(comment_chars(text, self.syntax?), chars),
            "paragraphs-with" => {
                let (mut found, mut paragraphs, mut lorem) = (0, 0, false);
                self.lines.for_each(text, |paragraph| {
                    let paragraph = strip(paragraph).to_lowercase();
                    paragraphs += 1;
                    lorem |= paragraph.contains("lorem ipsum");
                    found += u64::from(self.marks.iter().any(|mark| paragraph.contains(mark.as_str())));
                });
                if lorem { Some(1.0) } else { quotient(found, paragraphs) }
            }
            "comment-lines" => {
                const STARTS: [&str; 9] = ["//", "#", "/*", "*", "--", ";", "%", "\"\"\"", "<!--"];
                let (mut comments, mut lines) = (0, 0);
                Lines::Stripped.for_each(text, |line| {
                    lines += 1;
                    comments += u64::from(STARTS.iter().any(|start| line.starts_with(start)));
                });
                quotient(comments, lines)
            }
            "visible-share" => quotient(visible_chars(text), chars),
            "visible-chars" => Some(visible_chars(text) as f64),
            "head-contains" => {
                let end = text.char_indices().nth(self.length as usize).map_or(text.len(), |(at, _)| at);
                let head = &text[..end];
                Some(f64::from(u8::from(self.marks.iter().any(|mark| head.contains(mark.as_str())))))
            }
            _ => None,
        }
    }
}

impl Parameters {
    /// Says which parameters a measure does not take, and which it lacks.
    fn check(&self, name: &str, takes: &str) -> Result<()> {
        let given = [
            ("words", self.words.is_some()),
            ("lines", self.lines.is_some()),
            ("variant", self.variant.is_some()),
            ("n", self.n.is_some()),
            ("length", self.length.is_some()),
            ("marks", self.marks.is_some()),
            ("trim", self.trim.is_some()),
            ("list", self.list.is_some()),
            ("ignore_case", self.ignore_case.is_some()),
            ("anywhere", self.anywhere.is_some()),
            ("keep", self.keep.is_some()),
            ("syntax", self.syntax.is_some()),
        ];
        for (key, is_given) in given {
            let taken = takes.split(", ").any(|taken| taken == key);
            if is_given && !taken {
                let list = if takes.is_empty() { "nothing" } else { takes };
                return Err(Error::new(format!("{name:?} takes no {key}; it takes {list}")));
            }
            if taken && !is_given && matches!(key, "n" | "length" | "marks" | "list" | "syntax") {
                return Err(Error::new(format!("{name:?} needs {key}")));
            }
        }
        if self.n.is_some_and(|n| !(1..=64).contains(&n)) {
            return Err(Error::new(format!("{name:?}: n = {}: wanted 1 to 64", self.n.unwrap_or(0))));
        }
        if let Some(keep) = self.keep.filter(|keep| !(0.0..=1.0).contains(keep)) {
            return Err(Error::new(format!("{name:?}: keep = {keep}: wanted a share from 0 to 1")));
        }
        if self.marks.iter().flatten().any(String::is_empty) {
            return Err(Error::new(format!("{name:?}: an empty mark is everywhere; leave it out")));
        }
        Ok(())
    }
}

fn named<T>(name: &str, key: &str, of: impl Fn(&str) -> Option<T>, names: &[&str]) -> Result<T> {
    of(name).ok_or_else(|| {
        let near = nearest(name, names.iter().copied());
        Error::new(format!("{key} = {name:?}{near}: wanted one of {}", names.join(", ")))
    })
}

fn compile(pattern: &str) -> Result<Regex> {
    regex::RegexBuilder::new(pattern)
        .size_limit(64 << 20)
        .build()
        .map_err(|error| Error::new(format!("the pattern cannot be used: {error}")))
}

/// `(?:\W|^)(w1|w2|...)(?:\W|$)`, or the words anywhere.
fn bad_words(list: &[String], anywhere: bool) -> Result<Regex> {
    let words: Vec<String> =
        list.iter().filter(|word| !word.is_empty()).map(|word| regex::escape(word)).collect();
    if words.is_empty() {
        // Nothing is bad: a pattern that matches nothing.
        return compile(r"[^\s\S]");
    }
    let words = words.join("|");
    compile(&if anywhere { words } else { format!(r"(?:\W|^)(?:{words})(?:\W|$)") })
}

/// Occurrences that do not overlap, from the left.
fn occurrences(text: &str, mark: &str) -> u64 {
    match mark.as_bytes() {
        [byte] => memchr::memchr_iter(*byte, text.as_bytes()).count() as u64,
        mark => memchr::memmem::find_iter(text.as_bytes(), mark).count() as u64,
    }
}

fn is_short(line: &str, length: u64) -> bool {
    // A character has one to four bytes.
    let bytes = line.len() as u64;
    bytes <= length || (bytes <= 4 * length && char_count(line) as u64 <= length)
}

fn quotient(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn median(lengths: &[u32]) -> f64 {
    if lengths.is_empty() {
        return 0.0;
    }
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => f64::from(sorted[middle]),
        _ => (f64::from(sorted[middle - 1]) + f64::from(sorted[middle])) / 2.0,
    }
}

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
