//! METEOR of 2007 (Lavie and Agarwal 2007) as NLTK computes it. The program "METEOR 1.5" is another metric of the same name.
//!
//! Words are matched exactly, then by Porter's stem, then by synonyms of the stem, in each stage from the last word of the hypothesis back to the last
//! word of the reference that is left. The third stage compares stems too, as NLTK does: a synonym whose stem is another word is not found.
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
        let (hypothesis, reference) = (hypothesis.to_lowercase(), reference.to_lowercase());
        let (own, other): (Vec<&str>, Vec<&str>) =
            (words(&hypothesis).collect(), words(&reference).collect());
        let mut pairs: Vec<[usize; 2]> = Vec::with_capacity(own.len().min(other.len()));
        let mut left = Left { own: (0..own.len()).collect(), other: (0..other.len()).collect() };
        left.matched(&own.iter().map(|word| [*word]).collect::<Vec<_>>(), &other, &mut pairs);
        let stems = |words: &[&str], left: &[usize]| {
            let mut stems = vec![String::new(); words.len()];
            left.iter().for_each(|&i| stems[i] = stem(words[i]));
            stems
        };
        if !left.own.is_empty() && !left.other.is_empty() {
            let (of_own, of_other) = (stems(&own, &left.own), stems(&other, &left.other));
            let forms: Vec<[&String; 1]> = of_own.iter().map(|stem| [stem]).collect();
            left.matched(&forms, &of_other, &mut pairs);
            if let Some(synonyms) = synonyms {
                let mut forms: Vec<Vec<String>> = vec![Vec::new(); own.len()];
                for &i in &left.own {
                    forms[i] = synonyms(&of_own[i]);
                    forms[i].push(of_own[i].clone());
                }
                left.matched(&forms, &of_other, &mut pairs);
            }
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

/// Words that are not matched yet, by their places in rising order.
struct Left {
    own: Vec<usize>,
    other: Vec<usize>,
}

impl Left {
    /// Matches what is left of both texts: each word of the hypothesis, the last first, with the last word of the reference that is one of its forms.
    fn matched<F: AsRef<[S]>, S: AsRef<str>, R: AsRef<str>>(
        &mut self,
        forms: &[F],
        reference: &[R],
        pairs: &mut Vec<[usize; 2]>,
    ) {
        const NONE: usize = usize::MAX;
        // The last place of each form, and for each place the one before it of the same form.
        let mut last: HashMap<&str, usize> = HashMap::with_capacity(self.other.len());
        let mut before = vec![NONE; reference.len()];
        for &j in &self.other {
            before[j] = last.insert(reference[j].as_ref(), j).unwrap_or(NONE);
        }
        let (mut unmatched, mut taken) = (Vec::new(), vec![false; reference.len()]);
        for &i in self.own.iter().rev() {
            let places = forms[i].as_ref().iter().filter_map(|form| last.get(form.as_ref()).copied());
            match places.filter(|place| *place != NONE).max() {
                Some(j) => {
                    last.insert(reference[j].as_ref(), before[j]);
                    taken[j] = true;
                    pairs.push([i, j]);
                }
                None => unmatched.push(i),
            }
        }
        unmatched.reverse();
        self.own = unmatched;
        self.other.retain(|j| !taken[*j]);
    }
}
