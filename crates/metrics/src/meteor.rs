//! METEOR of 2007 (Lavie and Agarwal 2007) as NLTK computes it. The program "METEOR 1.5" is another metric of the same name.
//!
//! Words are matched exactly, then by Porter's stem, then by synonyms, in each stage from the last word of the hypothesis back to the last
//! word of the reference that is left.
//!
//! ```text
//! F = P R / (alpha P + (1 - alpha) R),  score = F (1 - gamma (chunks / matches)^beta)
//! ```

use crate::porter::stem;
use crate::tokens::words;
use std::collections::HashMap;

/// Synonyms of a word, in lower case.
pub type Synonyms<'a> = &'a dyn Fn(&str) -> Vec<String>;

/// The constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Meteor {
    /// Weight of precision in the denominator of F.
    pub alpha: f64,
    /// Exponent of the penalty.
    pub beta: f64,
    /// Largest penalty.
    pub gamma: f64,
}

impl Default for Meteor {
    fn default() -> Meteor {
        Meteor { alpha: 0.9, beta: 3.0, gamma: 0.5 }
    }
}

impl Meteor {
    /// The score against one reference, 0 to 1. Words are what lies between blanks. Without synonyms the third stage is left out.
    pub fn score(&self, hypothesis: &str, reference: &str, synonyms: Option<Synonyms<'_>>) -> f64 {
        let split = |text: &str| words(text).map(str::to_lowercase).collect::<Vec<String>>();
        let (own, other) = (split(hypothesis), split(reference));
        let mut pairs: Vec<[usize; 2]> = Vec::new();
        let mut left: [Vec<usize>; 2] = [(0..own.len()).collect(), (0..other.len()).collect()];
        let exact = |word: &str| vec![word.to_string()];
        let stems = |word: &str| vec![stem(word)];
        stage(&own, &other, &mut left, &mut pairs, &exact, &exact);
        stage(&own, &other, &mut left, &mut pairs, &stems, &stems);
        if let Some(synonyms) = synonyms {
            let or_itself = |word: &str| {
                let mut all = synonyms(word);
                all.push(word.to_string());
                all
            };
            stage(&own, &other, &mut left, &mut pairs, &or_itself, &exact);
        }
        let matches = pairs.len() as f64;
        if matches == 0.0 {
            return 0.0;
        }
        pairs.sort_unstable();
        let breaks = pairs.windows(2).filter(|p| p[1] != [p[0][0] + 1, p[0][1] + 1]).count();
        let (precision, recall) = (matches / own.len() as f64, matches / other.len() as f64);
        let mean = precision * recall / (self.alpha * precision + (1.0 - self.alpha) * recall);
        let fragments = (breaks + 1) as f64 / matches;
        (1.0 - self.gamma * fragments.powf(self.beta)) * mean
    }

    /// The best score over references.
    pub fn best(&self, hypothesis: &str, references: &[&str], synonyms: Option<Synonyms<'_>>) -> f64 {
        references.iter().map(|reference| self.score(hypothesis, reference, synonyms)).fold(0.0, f64::max)
    }
}

/// Matches what is left of both texts: each word of the hypothesis, the last first, with the last word of the reference that has one of its
/// forms.
fn stage(
    own: &[String],
    other: &[String],
    [left_of_own, left_of_other]: &mut [Vec<usize>; 2],
    pairs: &mut Vec<[usize; 2]>,
    forms: &dyn Fn(&str) -> Vec<String>,
    form_of_reference: &dyn Fn(&str) -> Vec<String>,
) {
    let mut places: HashMap<String, Vec<usize>> = HashMap::new();
    for &j in &*left_of_other {
        for form in form_of_reference(&other[j]) {
            places.entry(form).or_default().push(j);
        }
    }
    let mut unmatched = Vec::new();
    for &i in left_of_own.iter().rev() {
        let found = forms(&own[i]);
        let best = found.iter().filter_map(|form| places.get(form)?.last().map(|j| (*j, form))).max();
        match best {
            Some((j, form)) => {
                places.get_mut(form).map(Vec::pop);
                pairs.push([i, j]);
                left_of_other.retain(|other| *other != j);
            }
            None => unmatched.push(i),
        }
    }
    unmatched.reverse();
    *left_of_own = unmatched;
}
