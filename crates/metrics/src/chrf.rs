//! chrF and chrF++ (Popović 2015, 2017) with the definitions of sacrebleu (Post 2018).
//!
//! F-scores of character n-grams up to 6 without blanks, for chrF++ also of word n-grams up to 2: with beta = 2 recall counts
//! four times precision. Precision and recall are averaged over orders that both texts have; with `eps` F is averaged over all orders
//! instead, as in the program of the paper. Cost: one sort of the characters of each text.

use crate::counts::{CharGrams, Words, word_grams};
use crate::tokens::words;
use bessemer_text::unicode::is_space;

/// A definition of chrF.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChrF {
    /// Longest n-grams of characters, 1 to 6.
    pub characters: usize,
    /// Longest n-grams of words, 0 to 4: 2 for chrF++.
    pub words: usize,
    /// Weight of recall.
    pub beta: f64,
    /// Whether texts are compared in lower case.
    pub lower: bool,
    /// Whether F is averaged over all orders, those that a text does not have included.
    pub eps: bool,
}

impl Default for ChrF {
    fn default() -> ChrF {
        ChrF { characters: 6, words: 0, beta: 2.0, lower: false, eps: false }
    }
}

/// N-grams of the hypothesis, of the reference, and of both, for each order.
pub type ChrFCounts = Vec<[u64; 3]>;

/// Signs that chrF++ sets apart at the ends of a word: those of ASCII.
fn is_sign(c: char) -> bool {
    c.is_ascii_punctuation()
}

/// Words with a sign at one end set apart: the last character, or else the first.
fn chrf_words(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for word in words(text) {
        let (first, last) = (word.chars().next(), word.chars().next_back());
        match (first, last) {
            (Some(a), _) if a.len_utf8() == word.len() => parts.push(word),
            (_, Some(z)) if is_sign(z) => parts.extend([&word[..word.len() - 1], &word[word.len() - 1..]]),
            (Some(a), _) if is_sign(a) => parts.extend([&word[..1], &word[1..]]),
            _ => parts.push(word),
        }
    }
    parts
}

impl ChrF {
    /// Counts of a segment against one reference.
    fn against(&self, hypothesis: &str, reference: &str) -> ChrFCounts {
        let chars = |text: &str| text.chars().filter(|c| !is_space(*c)).collect::<Vec<char>>();
        let (own, other) = (chars(hypothesis), chars(reference));
        let mut counts: ChrFCounts = Vec::with_capacity(self.characters + self.words);
        // An order that the reference does not have does not count against the hypothesis.
        let mut push = |own: u64, other: u64, shared: u64| {
            counts.push([if other > 0 { own } else { 0 }, other, shared]);
        };
        let (own, other) = (CharGrams::new(&own, self.characters), CharGrams::new(&other, self.characters));
        for n in 1..=self.characters {
            push(own.total(n), other.total(n), own.shared(&other, n));
        }
        let mut numbers = Words::default();
        let own = numbers.number(chrf_words(hypothesis).into_iter());
        let other = numbers.number(chrf_words(reference).into_iter());
        for n in 1..=self.words {
            let (own, other) = (word_grams(&own, n), word_grams(&other, n));
            push(own.total(), other.total(), own.shared(&other));
        }
        counts
    }

    /// Counts of one segment against that of its references for which the score is best, the first of equal ones.
    pub fn counts(&self, hypothesis: &str, references: &[&str]) -> ChrFCounts {
        let text = |text: &str| if self.lower { text.to_lowercase() } else { text.to_string() };
        let hypothesis = text(hypothesis);
        let mut best: Option<(f64, ChrFCounts)> = None;
        for reference in references {
            let counts = self.against(&hypothesis, &text(reference));
            let score = self.score(&counts);
            if best.as_ref().is_none_or(|(before, _)| score > *before) {
                best = Some((score, counts));
            }
        }
        best.map_or_else(|| vec![[0; 3]; self.characters + self.words], |(_, counts)| counts)
    }

    /// The score of counts, 0 to 100.
    pub fn score(&self, counts: &ChrFCounts) -> f64 {
        const EPS: f64 = 1e-16;
        let factor = self.beta * self.beta;
        let (mut sum, mut orders, mut precisions, mut recalls) = (0.0, 0.0, 0.0, 0.0);
        for [own, other, shared] in counts {
            let part = |of: u64| if of > 0 { *shared as f64 / of as f64 } else { EPS };
            let (precision, recall) = (part(*own), part(*other));
            let denominator = factor * precision + recall;
            sum += if denominator > 0.0 { (1.0 + factor) * precision * recall / denominator } else { EPS };
            if *own > 0 && *other > 0 {
                (precisions, recalls, orders) = (precisions + precision, recalls + recall, orders + 1.0);
            }
        }
        if self.eps {
            return 100.0 * sum / counts.len() as f64;
        }
        if orders == 0.0 || precisions + recalls == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precisions / orders, recalls / orders);
        100.0 * (1.0 + factor) * precision * recall / (factor * precision + recall)
    }

    /// The signature that sacrebleu prints for this definition.
    pub fn signature(&self, references: usize) -> String {
        format!(
            "nrefs:{references}|case:{}|eff:{}|nc:{}|nw:{}|space:no|version:{}",
            if self.lower { "lc" } else { "mixed" },
            if self.eps { "no" } else { "yes" },
            self.characters,
            self.words,
            crate::SACREBLEU
        )
    }
}
