//! ROUGE (Lin 2004): overlap of a summary with a reference, as Google's rouge_score computes it.
//!
//! ROUGE-N counts n-grams that both have, ROUGE-L words of a longest common subsequence of the whole texts, ROUGE-Lsum the union of
//! those of each sentence of the reference with every sentence of the summary; sentences are lines. Words are runs of ASCII letters
//! and digits in lower case, those of more than three letters stemmed if asked for. Cost: O(n m) for L and Lsum.

use crate::counts::{Words, word_grams};
use crate::porter::stem;

/// Precision, recall and their harmonic mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Overlap {
    /// Part of the prediction.
    pub precision: f64,
    /// Part of the reference.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
}

impl Overlap {
    /// From shared items and the items of both sides.
    pub(crate) fn of(shared: f64, prediction: f64, reference: f64) -> Overlap {
        let part = |of: f64| if of > 0.0 { shared / of } else { 0.0 };
        let (precision, recall) = (part(prediction), part(reference));
        let sum = precision + recall;
        Overlap { precision, recall, f1: if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 } }
    }
}

/// A variant of ROUGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rouge {
    /// N-grams, 1 to 4.
    N(usize),
    /// Longest common subsequence of the whole texts.
    L,
    /// Unions of longest common subsequences of lines.
    Lsum,
}

impl Rouge {
    /// Name of the variant: rouge1, rougeL, rougeLsum.
    pub fn name(self) -> String {
        match self {
            Rouge::N(n) => format!("rouge{n}"),
            Rouge::L => "rougeL".into(),
            Rouge::Lsum => "rougeLsum".into(),
        }
    }

    /// The overlap of a prediction with one reference.
    pub fn score(self, prediction: &str, reference: &str, stemmed: bool) -> Overlap {
        let lines = |text: &str| -> Vec<Vec<String>> {
            match self {
                Rouge::Lsum => text
                    .split('\n')
                    .filter(|line| !line.is_empty())
                    .map(|line| tokens(line, stemmed))
                    .collect(),
                _ => vec![tokens(text, stemmed)],
            }
        };
        let (own, other) = (lines(prediction), lines(reference));
        let mut words = Words::default();
        let own: Vec<Vec<u32>> =
            own.iter().map(|line| words.number(line.iter().map(String::as_str))).collect();
        let other: Vec<Vec<u32>> =
            other.iter().map(|line| words.number(line.iter().map(String::as_str))).collect();
        let length = |lines: &[Vec<u32>]| lines.iter().map(Vec::len).sum::<usize>() as f64;
        let shared = match self {
            Rouge::N(n) => {
                let (own, other) = (word_grams(&own[0], n), word_grams(&other[0], n));
                return Overlap::of(own.shared(&other) as f64, own.total() as f64, other.total() as f64);
            }
            Rouge::L => common(&other[0], &own[0]).len(),
            Rouge::Lsum => union(&other, &own),
        };
        Overlap::of(shared as f64, length(&own), length(&other))
    }

    /// The overlap with that of several references whose F is largest, the first of equal ones.
    pub fn best(self, prediction: &str, references: &[&str], stemmed: bool) -> Overlap {
        let mut best = Overlap::default();
        for (i, reference) in references.iter().enumerate() {
            let one = self.score(prediction, reference, stemmed);
            if i == 0 || one.f1 > best.f1 {
                best = one;
            }
        }
        best
    }
}

/// Words of a text.
fn tokens(text: &str, stemmed: bool) -> Vec<String> {
    let lower = text.to_lowercase();
    let words =
        lower.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit()).filter(|word| !word.is_empty());
    words.map(|word| if stemmed && word.len() > 3 { stem(word) } else { word.to_string() }).collect()
}

/// Places in `reference` of one longest common subsequence: from the ends back, a word of the prediction is passed over only where that
/// leaves a longer one than passing over a word of the reference.
fn common(reference: &[u32], prediction: &[u32]) -> Vec<usize> {
    let width = prediction.len() + 1;
    let mut table = vec![0u32; (reference.len() + 1) * width];
    for i in 1..=reference.len() {
        for j in 1..width {
            table[i * width + j] = if reference[i - 1] == prediction[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j, mut places) = (reference.len(), prediction.len(), Vec::new());
    while i > 0 && j > 0 {
        if reference[i - 1] == prediction[j - 1] {
            places.push(i - 1);
            (i, j) = (i - 1, j - 1);
        } else if table[i * width + j - 1] > table[(i - 1) * width + j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
    places
}

/// Words that are in the union of common subsequences, none more often than in either text.
fn union(reference: &[Vec<u32>], prediction: &[Vec<u32>]) -> usize {
    let count = |lines: &[Vec<u32>]| {
        let mut counts = std::collections::HashMap::<u32, usize>::new();
        for word in lines.iter().flatten() {
            *counts.entry(*word).or_default() += 1;
        }
        counts
    };
    let (mut left, mut left_of_prediction) = (count(reference), count(prediction));
    let mut shared = 0;
    for line in reference {
        let mut places: Vec<usize> = prediction.iter().flat_map(|other| common(line, other)).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            let word = line[place];
            if let (Some(a @ 1..), Some(b @ 1..)) = (left.get_mut(&word), left_of_prediction.get_mut(&word)) {
                (*a, *b) = (*a - 1, *b - 1);
                shared += 1;
            }
        }
    }
    shared
}
