//! Quantiles of a score over a corpus, and the head, middle and tail that they cut it into.
//!
//! The sketch counts numbers in buckets that grow by a fixed factor (DDSketch; Masson, Rim, Lee 2019,
//! arXiv:1908.10693), so every quantile is right to half a per cent of its value. Sketches of parts can be merged: the result
//! is the same for every order and number of parts.

use crate::error::{Result, ScoreError};
use std::collections::BTreeMap;

/// Relative error of a quantile.
pub const RELATIVE_ERROR: f64 = 0.005;

/// A sketch of the numbers that it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sketch {
    positive: BTreeMap<i32, u64>,
    negative: BTreeMap<i32, u64>,
    zeros: u64,
    /// Numbers that were not finite; they are in no quantile.
    rejected: u64,
}

impl Sketch {
    fn factor() -> f64 {
        ((1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)).ln()
    }

    /// Adds a number.
    pub fn add(&mut self, value: f64) {
        let bucket = |magnitude: f64| (magnitude.ln() / Self::factor()).ceil() as i32;
        if !value.is_finite() {
            self.rejected += 1;
        } else if value > 0.0 {
            *self.positive.entry(bucket(value)).or_default() += 1;
        } else if value < 0.0 {
            *self.negative.entry(bucket(-value)).or_default() += 1;
        } else {
            self.zeros += 1;
        }
    }

    /// Adds all that another sketch has.
    pub fn merge(&mut self, other: &Sketch) {
        for (to, from) in [(&mut self.positive, &other.positive), (&mut self.negative, &other.negative)] {
            for (bucket, count) in from {
                *to.entry(*bucket).or_default() += count;
            }
        }
        self.zeros += other.zeros;
        self.rejected += other.rejected;
    }

    /// Finite numbers that were added.
    pub fn count(&self) -> u64 {
        self.zeros + self.positive.values().sum::<u64>() + self.negative.values().sum::<u64>()
    }

    /// Numbers that were not finite.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// The number below which a share `q` in 0..=1 of all lies; `None` without numbers.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 || !(0.0..=1.0).contains(&q) {
            return None;
        }
        let rank = (q * (count - 1) as f64).floor() as u64;
        // Middle of a bucket in the sense that the relative error is the same to both ends.
        let value = |bucket: i32| (bucket as f64 * Self::factor()).exp() * (1.0 - RELATIVE_ERROR);
        let negative = self.negative.iter().rev().map(|(b, c)| (-value(*b), *c));
        let positive = self.positive.iter().map(|(b, c)| (value(*b), *c));
        let mut below = 0;
        for (value, count) in negative.chain(std::iter::once((0.0, self.zeros))).chain(positive) {
            below += count;
            if below > rank {
                return Some(value);
            }
        }
        None
    }
}

/// Which part of a corpus a document belongs to, by its perplexity: cc_net's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Low perplexity: most like the text of the language model.
    Head,
    /// Between.
    Middle,
    /// High perplexity.
    Tail,
}

impl Part {
    /// `head`, `middle` or `tail`.
    pub fn name(self) -> &'static str {
        match self {
            Part::Head => "head",
            Part::Middle => "middle",
            Part::Tail => "tail",
        }
    }
}

/// The two perplexities at which head, middle and tail meet.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cuts {
    /// Below is head.
    pub head: f64,
    /// At and above is tail.
    pub tail: f64,
}

impl Cuts {
    /// Cuts at two quantiles of the corpus, 0.3 and 0.6 in cc_net, usually of one language.
    ///
    /// # Errors
    /// Where the sketch is empty or the quantiles do not rise within 0..=1.
    pub fn of(sketch: &Sketch, head: f64, tail: f64) -> Result<Cuts> {
        match (sketch.quantile(head), sketch.quantile(tail)) {
            (Some(h), Some(t)) if head < tail => Ok(Cuts { head: h, tail: t }),
            _ => Err(ScoreError::Config(format!(
                "cuts at the quantiles {head} and {tail} of {} perplexities: wanted two rising ones in 0 to 1 and at \
                 least one perplexity",
                sketch.count()
            ))),
        }
    }

    /// The part of a document; one whose perplexity is no number is tail.
    pub fn part(&self, perplexity: f64) -> Part {
        if perplexity < self.head {
            Part::Head
        } else if perplexity < self.tail {
            Part::Middle
        } else {
            Part::Tail
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Uniform;

    #[test]
    fn quantiles_are_right_to_half_a_per_cent_and_parts_add_up() {
        let mut draws = Uniform::new(2, 2);
        let mut values: Vec<f64> = (0..5000).map(|_| 500.0 * draws.unit().powi(-2) - 600.0).collect();
        let mut whole = Sketch::default();
        let mut parts = [Sketch::default(), Sketch::default(), Sketch::default()];
        for (i, &value) in values.iter().enumerate() {
            whole.add(value);
            parts[i % 3].add(value);
        }
        let [a, mut b, c] = parts;
        b.merge(&c);
        b.merge(&a);
        assert_eq!(b, whole);
        values.sort_by(f64::total_cmp);
        for q in [0.0, 0.1, 0.3, 0.6, 0.9, 1.0] {
            let exact = values[(q * 4999.0) as usize];
            let found = whole.quantile(q).expect("numbers");
            assert!(
                (found - exact).abs() <= exact.abs() * RELATIVE_ERROR * 1.0001,
                "{q}: {found}, wanted {exact}"
            );
        }
    }

    #[test]
    fn cuts_name_the_parts() {
        let mut sketch = Sketch::default();
        assert!(Cuts::of(&sketch, 0.3, 0.6).is_err());
        for i in 1..=1000 {
            sketch.add(i as f64);
        }
        sketch.add(f64::NAN);
        assert_eq!((sketch.count(), sketch.rejected()), (1000, 1));
        let cuts = Cuts::of(&sketch, 0.3, 0.6).expect("rising");
        assert_eq!(
            [10.0, 400.0, 900.0, f64::NAN].map(|p| cuts.part(p).name()),
            ["head", "middle", "tail", "tail"]
        );
        assert!(Cuts::of(&sketch, 0.6, 0.3).is_err());
    }
}
