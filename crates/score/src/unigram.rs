//! Mean log frequency of the words of a text (datatrove's unigram filter): text of rare or broken words scores low.

use crate::error::{Result, ScoreError};
use bessemer_text::Words;
use std::collections::HashMap;
use std::path::Path;

/// Relative frequency of a word that the table does not have.
const UNKNOWN: f64 = 1e-9;

/// Relative frequencies of lower-cased words.
#[derive(Debug, Clone, Default)]
pub struct Unigrams {
    counts: HashMap<Box<str>, u64>,
    total: u64,
    words: Words,
}

impl Unigrams {
    /// An empty table for words of one kind.
    pub fn new(words: Words) -> Unigrams {
        Unigrams { words, ..Unigrams::default() }
    }

    /// Reads `word,count` or `word TAB count` lines; a first line without a number is taken for a heading.
    ///
    /// # Errors
    /// Where a line has no count or the file cannot be read.
    pub fn open(path: &Path, words: Words) -> Result<Unigrams> {
        let text = bessemer_durable::read_to_string(path).map_err(|e| ScoreError::io("read", path, e))?;
        Unigrams::parse(&text, words, &path.display().to_string())
    }

    /// Reads the text of such a file; `name` is for errors.
    ///
    /// # Errors
    /// A line without a count.
    pub fn parse(text: &str, words: Words, name: &str) -> Result<Unigrams> {
        let mut table = Unigrams::new(words);
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match line
                .rsplit_once(['\t', ','])
                .map(|(word, count)| (word.trim(), count.trim().parse::<u64>()))
            {
                Some((word, Ok(count))) if !word.is_empty() => table.insert(&word.to_lowercase(), count),
                Some((_, Err(_))) if i == 0 => {}
                _ => {
                    let what = format!(
                        "wanted \"word,count\", found {:?}",
                        line.chars().take(40).collect::<String>()
                    );
                    return Err(ScoreError::Line { name: name.to_owned(), line: i as u64 + 1, what });
                }
            }
        }
        if table.total == 0 {
            return Err(ScoreError::Config(format!("{name} has no counts of words")));
        }
        Ok(table)
    }

    fn insert(&mut self, word: &str, count: u64) {
        self.total = self.total.saturating_add(count);
        let entry = self.counts.entry(word.into()).or_default();
        *entry = entry.saturating_add(count);
    }

    /// Counts the words of a document into the table.
    pub fn add(&mut self, text: &str) {
        for word in self.words.split(text) {
            self.insert(&word.to_lowercase(), 1);
        }
    }

    /// Mean natural logarithm of the relative frequencies; 0 for a text without words. datatrove keeps what is above
    /// -10.
    pub fn score(&self, text: &str) -> f64 {
        let (mut sum, mut count) = (0.0, 0u64);
        self.words.for_each(text, |word| {
            let known = self.counts.get(&*word.to_lowercase());
            sum += known.map_or(UNKNOWN, |&c| c as f64 / self.total as f64).ln();
            count += 1;
        });
        if count == 0 { 0.0 } else { sum / count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_the_mean_log_frequency() {
        let table = Unigrams::parse("word,count\nthe,90\nCat,10\n", Words::Whitespace, "t").expect("parses");
        let wanted = (0.9f64.ln() + 0.1f64.ln() + 1e-9f64.ln()) / 3.0;
        assert!((table.score("The cat zzz") - wanted).abs() < 1e-12);
        assert_eq!(table.score(" "), 0.0);
        let error = Unigrams::parse("the,1\ncat\n", Words::Whitespace, "t").expect_err("no count");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
