//! The line-wise corrections of RefinedWeb (Penedo et al. 2023, arXiv:2306.01116), as DCLM publishes them.
//!
//! Lines are cut at `\n`. A correction that leaves nothing drops the document (`empty`). The share of the words that the
//! corrections of lines together have cut is the measure `removed-words`; it is counted behind the corrections of the whole
//! text (URLs, newlines).

use super::Edited;
use super::urls::Urls;
use crate::error::{Error, Result};
use crate::evaluate::RuleResult;
use bessemer_text::unicode::{Class, char_count, class, is_space, strip};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Position of a phrase in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PhrasePosition {
    /// At its beginning.
    Prefix,
    /// At its end.
    Suffix,
    /// Anywhere.
    Anywhere,
}

/// One correction of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CorrectionOptions {
    /// URLs and IPv4 addresses are cut out, with up to ten characters of white space before them.
    Urls,
    /// More consecutive newlines become this many.
    MaxNewlines(usize),
    /// Lines with more than this share of upper-case characters are dropped.
    MaxUppercase(f64),
    /// Lines with more than this share of digits are dropped.
    MaxDigits(f64),
    /// Lines that count likes, shares, views and the like are dropped.
    Counters,
    /// Lines with fewer words are dropped; empty lines stay.
    MinWords(usize),
    /// A phrase is cut from lines of at most so many words.
    Phrase {
        /// The phrase; upper and lower case are the same.
        text: String,
        /// Position of the phrase.
        place: PhrasePosition,
        /// Most words of a line from which it is cut.
        max_words: usize,
    },
}

/// A compiled correction.
#[derive(Debug, Clone)]
pub(crate) struct Correction {
    options: CorrectionOptions,
    pattern: Option<Regex>,
    urls: Option<Urls>,
}

const COUNTER: &str = r"^\W*\d(?:,|\.|\d)*(?:K|k|M|m|B|b)?\s+(?:likes|shares|comments|retweets|reposts|quotes|bookmarks|upvotes|downvotes|downloads|views|followers)\W*$";

impl Correction {
    pub(crate) fn new(options: CorrectionOptions) -> Result<Correction> {
        let build = |pattern: &str| {
            let built = RegexBuilder::new(pattern).case_insensitive(true).size_limit(16 << 20).build();
            built.map(Some).map_err(|error| Error::new(format!("the pattern {pattern:?}: {error}")))
        };
        let pattern = match &options {
            CorrectionOptions::Counters => {
                Some(Regex::new(COUNTER).map_err(|error| Error::new(error.to_string()))?)
            }
            CorrectionOptions::Phrase { text, .. } if text.is_empty() => {
                return Err(Error::new("a phrase of no characters: wanted the text that is cut from lines"));
            }
            CorrectionOptions::Phrase { text, place, .. } => {
                // Upstream reads the phrase as a pattern ("Read more..." has three wild cards); here it is what it says.
                let text = regex::escape(text);
                build(&match place {
                    PhrasePosition::Prefix => format!(r"^(?:{text})\s?"),
                    PhrasePosition::Suffix => format!(r"\s?(?:{text})$"),
                    PhrasePosition::Anywhere => format!(r"\s?(?:{text})"),
                })?
            }
            CorrectionOptions::MaxUppercase(share) | CorrectionOptions::MaxDigits(share)
                if !(0.0..=1.0).contains(share) =>
            {
                return Err(Error::new(format!("a share of {share}: wanted 0 to 1")));
            }
            CorrectionOptions::MaxNewlines(0) => {
                return Err(Error::new("max-newlines = 0 would join all lines: wanted 1 or more"));
            }
            _ => None,
        };
        let urls = if options == CorrectionOptions::Urls { Some(Urls::new()?) } else { None };
        Ok(Correction { options, pattern, urls })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.options {
            CorrectionOptions::Urls => "correct.urls",
            CorrectionOptions::MaxNewlines(_) => "correct.max-newlines",
            CorrectionOptions::MaxUppercase(_) => "correct.max-uppercase",
            CorrectionOptions::MaxDigits(_) => "correct.max-digits",
            CorrectionOptions::Counters => "correct.counters",
            CorrectionOptions::MinWords(_) => "correct.min-words",
            CorrectionOptions::Phrase { .. } => "correct.phrase",
        }
    }

    /// Whether lines are corrected, and not the text as a whole.
    pub(crate) fn is_of_lines(&self) -> bool {
        !matches!(self.options, CorrectionOptions::Urls | CorrectionOptions::MaxNewlines(_))
    }

    /// Corrects the lines. The value is the number of lines that were dropped or changed; of URLs or newlines that were cut.
    pub(crate) fn apply(&self, text: &str) -> Edited {
        let mut changed: u64 = 0;
        let new = if let Some(urls) = &self.urls {
            let (without, found) = urls.remove(text);
            changed = found;
            without.into_owned()
        } else if let CorrectionOptions::MaxNewlines(most) = self.options {
            let new = fewer_newlines(text, most);
            changed = (text.len() - new.len()) as u64;
            new
        } else {
            let mut out = String::with_capacity(text.len());
            let mut first = true;
            for line in text.split('\n') {
                let Some(kept) = self.line(line) else {
                    changed += 1;
                    continue;
                };
                changed += u64::from(matches!(kept, Cow::Owned(_)));
                if !first {
                    out.push('\n');
                }
                first = false;
                out.push_str(&kept);
            }
            if matches!(self.options, CorrectionOptions::MinWords(_)) { out } else { strip(&out).to_owned() }
        };
        let mut results = vec![RuleResult::new(self.name(), Some(changed as f64))];
        if new.is_empty() && !matches!(self.options, CorrectionOptions::MaxNewlines(_)) {
            let left = RuleResult::new("correct.characters-left", Some(0.0)).at_least(Some(1.0), "empty");
            results.push(left);
            return Edited { results, ..Edited::default() };
        }
        Edited { text: (new != text).then_some(new), words: None, results }
    }

    /// The line, corrected, or nothing if it is dropped.
    fn line<'l>(&self, line: &'l str) -> Option<Cow<'l, str>> {
        let keep = |holds: bool| holds.then_some(Cow::Borrowed(line));
        match &self.options {
            CorrectionOptions::Urls | CorrectionOptions::MaxNewlines(_) => keep(true),
            CorrectionOptions::MaxUppercase(most) => keep(share(line, char::is_uppercase) <= *most),
            CorrectionOptions::MaxDigits(most) => {
                keep(share(line, |c| class(c).meets(Class::DIGIT)) <= *most)
            }
            CorrectionOptions::Counters => {
                keep(!self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(&line.to_lowercase())))
            }
            CorrectionOptions::MinWords(least) => keep(line.is_empty() || words(line) >= *least),
            CorrectionOptions::Phrase { max_words, .. } => {
                let Some(pattern) = self.pattern.as_ref().filter(|_| words(line) <= *max_words) else {
                    return keep(true);
                };
                let cut = pattern.replace_all(line, "");
                if !line.is_empty() && cut.chars().all(is_space) {
                    return None;
                }
                Some(cut)
            }
        }
    }
}

fn share(line: &str, holds: impl Fn(char) -> bool) -> f64 {
    let chars = char_count(line);
    if chars == 0 { 0.0 } else { line.chars().filter(|&c| holds(c)).count() as f64 / chars as f64 }
}

fn words(line: &str) -> usize {
    line.split(is_space).filter(|word| !word.is_empty()).count()
}

fn fewer_newlines(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut run = 0;
    for c in text.chars() {
        run = if c == '\n' { run + 1 } else { 0 };
        if run <= most {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrected(options: CorrectionOptions, text: &str) -> Option<String> {
        let edited = Correction::new(options).expect("valid").apply(text);
        if edited.results.iter().any(RuleResult::failed) {
            return None;
        }
        Some(edited.text.unwrap_or_else(|| text.to_owned()))
    }

    #[test]
    fn each_correction() {
        use CorrectionOptions as O;
        let phrase = |text: &str, place| O::Phrase { text: text.into(), place, max_words: 10 };
        let same = |options, text: &str, expected: &str| {
            assert_eq!(corrected(options, text).as_deref(), Some(expected), "{text:?}");
        };
        same(O::MaxNewlines(2), "a\n\n\n\nb\nc", "a\n\nb\nc");
        same(O::MaxUppercase(0.5), "ABCd\nABcd\n\nÉÀx", "ABcd");
        same(O::MaxDigits(0.999_999), "123\n12a\n4", "12a");
        same(O::Counters, "a line\n3 likes\n1,234K views!\n12 apples\n(5 Shares)", "a line\n12 apples");
        same(O::MinWords(2), "one\ntwo words\n\nx", "two words\n");
        same(
            phrase("items in cart", PhrasePosition::Anywhere),
            "3 Items in cart now\nitems in cart\nkeep",
            "3 now\nkeep",
        );
        same(
            phrase("Read more...", PhrasePosition::Suffix),
            "The end Read More...\nread more... no",
            "The end\nread more... no",
        );
        same(phrase("Sign-in", PhrasePosition::Prefix), "sign-in Now\nto sign-in", "Now\nto sign-in");
        let long = "a b c d e f g h i j items in cart";
        same(phrase("items in cart", PhrasePosition::Anywhere), long, long);
        assert_eq!(corrected(O::MaxUppercase(0.5), "ABC"), None);
        assert!(Correction::new(O::MaxDigits(2.0)).is_err());
        assert!(Correction::new(phrase("", PhrasePosition::Anywhere)).is_err());
    }
}
