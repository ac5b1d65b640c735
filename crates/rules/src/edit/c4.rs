//! The line rules of C4 (Raffel et al. 2020), as datatrove orders them.
//!
//! For each line of `splitlines()`, trimmed: a word that is too long drops it; citations are cut out; without a closing
//! mark it goes (if asked for); with too few words it goes (counted before citations were cut); `lorem ipsum` drops the
//! document; `javascript` drops the line; `{` drops the document; a policy phrase drops the line. Too few sentences in
//! what is left drop the document. So `lorem ipsum` and `{` count only in lines that came this far.

use super::Edited;
use crate::error::{Error, Result};
use crate::evaluate::RuleResult;
use crate::features::Scratch;
use crate::words::WordSegmenter;
use bessemer_text::Words;
use bessemer_text::split::english::{Token, Tokenizer, sentence_count};
use bessemer_text::split::{lines::splitlines, sentences};
use bessemer_text::unicode::{Class, char_count, class, is_space, strip};
use regex::Regex;
use serde::{Deserialize, Serialize};

/// The switches of the line rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct C4Options {
    /// A line without a closing mark (`. ? ! " '`, no ellipsis) is dropped.
    pub terminal: bool,
    /// `[1]`, `[edit]` and `[citation needed]` are cut out.
    pub citations: bool,
    /// Fewest words of a line; 0 switches the rule off.
    pub min_words: usize,
    /// Most characters of a word; 0 switches the rule off.
    pub max_word_chars: usize,
    /// Fewest sentences of the lines that are left; 0 switches the rule off.
    pub min_sentences: u64,
    /// `lorem ipsum` drops the document.
    pub lorem_ipsum: bool,
    /// A line with `javascript` is dropped.
    pub javascript: bool,
    /// `{` drops the document.
    pub curly_bracket: bool,
    /// A line with a phrase of privacy and cookie policies is dropped.
    pub policy: bool,
}

impl Default for C4Options {
    fn default() -> Self {
        C4Options {
            terminal: true,
            citations: true,
            min_words: 3,
            max_word_chars: 1000,
            min_sentences: 5,
            lorem_ipsum: true,
            javascript: true,
            curly_bracket: true,
            policy: true,
        }
    }
}

const POLICY: [&str; 6] =
    ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"];

/// The compiled rule.
#[derive(Debug, Clone)]
pub(crate) struct C4Lines {
    options: C4Options,
    words: Words,
    /// Whether any phrase may occur at all: asked once of the whole text.
    phrases: Regex,
}

/// Lines that each rule dropped.
#[derive(Debug, Default)]
struct Counts {
    total: u64,
    long_word: u64,
    terminal: u64,
    few_words: u64,
    javascript: u64,
    policy: u64,
    kept: u64,
    sentences: u64,
    lorem_ipsum: u64,
    curly_bracket: u64,
    /// The first line that loses the document has a bracket.
    bracket_first: bool,
}

impl C4Lines {
    pub(crate) fn new(options: C4Options, words: Words) -> Result<C4Lines> {
        let phrases = format!("(?i-u)lorem ipsum|javascript|{}", POLICY.join("|"));
        let phrases = Regex::new(&phrases).map_err(|error| Error::new(error.to_string()))?;
        Ok(C4Lines { options, words, phrases })
    }

    /// Checks and edits the lines. With `all`, goes on after the document is lost, so that every count is of the whole text.
    pub(crate) fn apply(&self, text: &str, scratch: &mut Scratch, all: bool) -> Edited {
        let options = &self.options;
        // U+212A, the Kelvin sign, is the one character whose lower case is a letter of the phrases.
        let phrases = self.phrases.is_match(text) || text.contains('\u{212a}');
        let brackets = options.curly_bracket && memchr::memchr(b'{', text.as_bytes()).is_some();
        let citations = options.citations && memchr::memchr(b'[', text.as_bytes()).is_some();
        let mut sentences = Sentences::new(self.words, text, scratch);
        let mut kept = String::with_capacity(text.len());
        let mut counts = Counts::default();
        let base = text.as_ptr() as usize;
        let (mut words, mut lost) = (0, false);
        for line in splitlines(text) {
            let line = strip(line);
            counts.total += 1;
            if options.max_word_chars > 0 && longest_word_exceeds(line, options.max_word_chars) {
                counts.long_word += 1;
                continue;
            }
            let cut = if citations { without_citations(line) } else { None };
            let shown = cut.as_deref().unwrap_or(line);
            if options.terminal && (!shown.ends_with(['.', '?', '!', '"', '\'']) || shown.ends_with("...")) {
                counts.terminal += 1;
                continue;
            }
            if !has_words(line, options.min_words) {
                counts.few_words += 1;
                continue;
            }
            let lower = if phrases { shown.to_lowercase() } else { String::new() };
            if phrases && options.lorem_ipsum && lower.contains("lorem ipsum") {
                counts.lorem_ipsum += 1;
                lost = true;
                if !all {
                    break;
                }
                continue;
            }
            if phrases && options.javascript && lower.contains("javascript") {
                counts.javascript += 1;
                continue;
            }
            if brackets && shown.contains('{') {
                counts.bracket_first |= counts.lorem_ipsum == 0;
                counts.curly_bracket += 1;
                lost = true;
                if !all {
                    break;
                }
                continue;
            }
            if phrases && options.policy && POLICY.iter().any(|phrase| lower.contains(phrase)) {
                counts.policy += 1;
                continue;
            }
            let (found, len) = match &cut {
                None => sentences.of_slice(line.as_ptr() as usize - base, line),
                Some(cut) => sentences.of_other(cut),
            };
            counts.sentences += found;
            words += len;
            if counts.kept > 0 {
                kept.push('\n');
            }
            kept.push_str(shown);
            counts.kept += 1;
        }
        let known = sentences.counts_words().then_some(words);
        let results = self.results(&counts);
        if lost || results.iter().any(RuleResult::failed) {
            return Edited { results, ..Edited::default() };
        }
        let trimmed = strip(&kept);
        let kept = if trimmed.len() == kept.len() { kept } else { trimmed.to_owned() };
        Edited { text: (kept != text).then_some(kept), words: known, results }
    }

    fn results(&self, counts: &Counts) -> Vec<RuleResult> {
        let limit = |on: bool| on.then_some(0.0);
        let value = |name: &str, count| RuleResult::new(name, Some(count as f64));
        let mut results = vec![
            value("c4-lines.lorem-ipsum", counts.lorem_ipsum)
                .at_most(limit(self.options.lorem_ipsum), "lorem_ipsum"),
            value("c4-lines.curly-bracket", counts.curly_bracket)
                .at_most(limit(self.options.curly_bracket), "curly_bracket"),
            value("c4-lines.sentences", counts.sentences)
                .at_least(Some(self.options.min_sentences as f64), "too_few_sentences"),
        ];
        // The first line that loses the document says why, also where later ones would for the other reason.
        if counts.bracket_first && counts.lorem_ipsum > 0 {
            results.swap(0, 1);
        }
        results.extend([
            value("c4-lines.lines", counts.total),
            value("c4-lines.kept", counts.kept),
            value("c4-lines.long-word", counts.long_word),
            value("c4-lines.no-closing-mark", counts.terminal),
            value("c4-lines.few-words", counts.few_words),
            value("c4-lines.javascript", counts.javascript),
            value("c4-lines.policy", counts.policy),
        ]);
        results
    }
}

/// Counts sentences and words of lines. For English, tokens of the whole text are taken from the rules before.
struct Sentences<'s> {
    words: Words,
    tokens: Option<&'s [Token]>,
    next: usize,
    own: Vec<Token>,
    tokenizer: Tokenizer,
    whole: &'s str,
}

impl<'s> Sentences<'s> {
    fn new(words: Words, text: &'s str, scratch: &'s Scratch) -> Self {
        let tokens = match words {
            Words::English => {
                scratch.words_if_cut(WordSegmenter::Words(words)).map(|list| list.tokens.as_slice())
            }
            _ => None,
        };
        Sentences { words, tokens, next: 0, own: Vec::new(), tokenizer: Tokenizer::new(), whole: text }
    }

    fn counts_words(&self) -> bool {
        self.words == Words::English
    }

    /// Sentences and words of a line that starts at byte `start` of the text.
    fn of_slice(&mut self, start: usize, line: &str) -> (u64, u64) {
        let Some(tokens) = self.tokens else { return self.of_other(line) };
        while tokens.get(self.next).is_some_and(|token| token.start < start) {
            self.next += 1;
        }
        let end = start + line.len();
        let len = tokens[self.next..].iter().take_while(|token| token.end <= end).count();
        let within = &tokens[self.next..self.next + len];
        self.next += len;
        let words = within.iter().filter(|token| !token.space).count() as u64;
        (sentence_count(self.whole, within) as u64, words)
    }

    /// Sentences and words of any text.
    fn of_other(&mut self, line: &str) -> (u64, u64) {
        if self.words != Words::English {
            return (sentences(line).count() as u64, 0);
        }
        self.tokenizer.tokenize(line, &mut self.own);
        let words = self.own.iter().filter(|token| !token.space).count() as u64;
        (sentence_count(line, &self.own) as u64, words)
    }
}

/// Whether a line has at least so many white-space words.
fn has_words(line: &str, least: usize) -> bool {
    let (mut found, mut within) = (0, false);
    if least == 0 {
        return true;
    }
    for c in line.chars() {
        let space = is_space(c);
        if !space && !within {
            found += 1;
            if found >= least {
                return true;
            }
        }
        within = !space;
    }
    false
}

fn longest_word_exceeds(line: &str, chars: usize) -> bool {
    line.len() > chars && line.split(is_space).any(|word| word.len() > chars && char_count(word) > chars)
}

/// `\[\d*]|\[edit]|\[citation needed]` cut out, if there is any.
fn without_citations(line: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = line;
    let mut from = 0;
    while let Some(open) = memchr::memchr(b'[', &rest.as_bytes()[from..]).map(|at| at + from) {
        let inside = &rest[open + 1..];
        let digits = inside.trim_start_matches(|c| class(c).meets(Class::DIGIT));
        let after = digits
            .strip_prefix(']')
            .or_else(|| inside.strip_prefix("edit]"))
            .or_else(|| inside.strip_prefix("citation needed]"));
        match after {
            Some(after) => {
                out.push_str(&rest[..open]);
                rest = after;
                from = 0;
            }
            None => from = open + 1,
        }
    }
    if rest.len() == line.len() {
        return None;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(options: C4Options) -> C4Lines {
        C4Lines::new(options, Words::English).expect("the phrases compile")
    }

    fn apply(options: C4Options, text: &str) -> Edited {
        rule(options).apply(text, &mut Scratch::new(), false)
    }

    fn reason(edited: &Edited) -> Option<&str> {
        edited.results.iter().find(|result| result.failed()).map(|result| result.label.as_str())
    }

    #[test]
    fn the_order_of_the_rules() {
        let few = C4Options { min_sentences: 1, ..C4Options::default() };
        // A bracket in a line that another rule has dropped before does not count.
        for (text, expected) in [
            ("Two words{.\nThis line is good.", None),
            ("This has a { bracket.\nThis line is good.", Some("curly_bracket")),
            ("This has a { bracket\nThis line is good.", None),
            ("Enable javascript here {.\nThis line is good.", None),
            ("Lorem Ipsum dolor sit.\nThis line is good.", Some("lorem_ipsum")),
            ("Our Privacy Policy has {.\nThis line is good.", Some("curly_bracket")),
            ("Loo\u{212a} at our coo\u{212a}ie policy now.\nx y z", Some("too_few_sentences")),
            ("Only this [1] here", Some("too_few_sentences")),
        ] {
            assert_eq!(reason(&apply(few.clone(), text)), expected, "{text}");
        }
        assert_eq!(
            reason(&apply(C4Options::default(), "One is one. Two is two. Three. Four.")),
            Some("too_few_sentences")
        );
        assert_eq!(reason(&apply(C4Options::default(), "One is one. Two is two. Three. Four. Five.")), None);
    }

    #[test]
    fn lines_that_stay() {
        let options = C4Options { min_sentences: 1, ..C4Options::default() };
        let text = "  Kept [12] as it is[edit].  \r\n\nno mark here\nends in dots...\nIt said \"so it is\"\nshort one.";
        let edited = apply(options.clone(), text);
        assert_eq!(edited.text.as_deref(), Some("Kept  as it is.\nIt said \"so it is\""));
        assert_eq!(edited.words, Some(12));
        // Words are counted before citations are cut, and a line of nothing is a sentence all the same.
        let bare = C4Options { terminal: false, ..options };
        assert_eq!(apply(bare.clone(), "[1] [2] [3]").results[2].value, Some(1.0));
        let long = format!("one two {}\nthis is kept", "x".repeat(1001));
        assert_eq!(apply(bare, &long).text.as_deref(), Some("this is kept"));
    }

    proptest! {
        #[test]
        fn tokens_of_the_whole_text_serve_its_lines(text in "([A-Za-z]{1,3}|[.!?:)(' ]|\\[1\\]|it's|\n| ){0,60}") {
            let options = C4Options { terminal: false, min_words: 1, min_sentences: 1, ..C4Options::default() };
            let mut scratch = Scratch::new();
            let fresh = rule(options.clone()).apply(&text, &mut scratch, true);
            scratch.words(WordSegmenter::Words(Words::English), &text);
            let shared = rule(options).apply(&text, &mut scratch, true);
            prop_assert_eq!(&fresh.results, &shared.results);
            prop_assert_eq!(fresh.words, shared.words);
            let kept = fresh.text.as_deref().unwrap_or(&text);
            if !fresh.results.iter().any(RuleResult::failed) {
                prop_assert_eq!(fresh.words, Some(Words::English.count(kept) as u64));
            }
        }

        #[test]
        fn citations_are_those_of_the_pattern(line in "(\\[|\\]|[0-9１]|edit|citation needed|\\[edit\\]|\\[7\\]|x){0,12}") {
            let pattern = Regex::new(r"\[\d*]|\[edit]|\[citation needed]").expect("a fixed pattern");
            let plain = pattern.replace_all(&line, "").into_owned();
            prop_assert_eq!(without_citations(&line).unwrap_or_else(|| line.clone()), plain);
        }
    }
}
