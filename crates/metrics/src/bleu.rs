//! BLEU (Papineni et al. 2002) with the definitions of sacrebleu (Post 2018).
//!
//! ```text
//! BLEU = BP exp( sum_{n=1..4} ln p_n / 4 ),   BP = exp(1 - r/c) if c < r, 1 otherwise
//! ```
//!
//! p_n are clipped n-gram precisions of the whole corpus, c the tokens of all hypotheses, r those of the reference of each segment that is
//! nearest in length, the shorter of two. Cost: O(tokens log tokens).

use crate::counts::{Counts, Words, word_grams};
use crate::tokens::{Tokens, words};

/// Longest n-grams.
const ORDER: usize = 4;

/// Precision of an order without a match.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Smoothing {
    /// Half of one match for the first such order, a quarter for the second, and so on (mteval, Chen and Cherry 2014).
    Exponential,
    /// A number of matches (sacrebleu's default is 0.1).
    Floor(f64),
    /// A number added to matches and n-grams of all orders but the first (sacrebleu's default is 1).
    Add(f64),
    /// No match, so that the score is 0.
    Off,
}

/// A definition of BLEU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bleu {
    /// Tokenizer.
    pub tokens: Tokens,
    /// Whether texts are compared in lower case.
    pub lower: bool,
    /// Precision of an order without a match.
    pub smoothing: Smoothing,
    /// Whether orders for which a hypothesis is too short are left out: for single sentences.
    pub effective_order: bool,
}

impl Default for Bleu {
    fn default() -> Bleu {
        Bleu {
            tokens: Tokens::Thirteen,
            lower: false,
            smoothing: Smoothing::Exponential,
            effective_order: false,
        }
    }
}

/// Counts of a segment or a corpus; those of a corpus are the sums of its segments'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BleuCounts {
    /// Clipped matches of each order.
    pub matches: [u64; ORDER],
    /// N-grams of the hypotheses.
    pub totals: [u64; ORDER],
    /// Tokens of the hypotheses.
    pub hypothesis: u64,
    /// Tokens of the nearest references.
    pub reference: u64,
}

impl std::ops::AddAssign for BleuCounts {
    fn add_assign(&mut self, other: BleuCounts) {
        for n in 0..ORDER {
            self.matches[n] += other.matches[n];
            self.totals[n] += other.totals[n];
        }
        self.hypothesis += other.hypothesis;
        self.reference += other.reference;
    }
}

impl Bleu {
    /// Counts of one segment against its references, of which there is at least one.
    pub fn counts(&self, hypothesis: &str, references: &[&str]) -> BleuCounts {
        let text = |text: &str| {
            let text = text.trim_end_matches(bessemer_text::unicode::is_space);
            if self.lower { self.tokens.apply(&text.to_lowercase()) } else { self.tokens.apply(text) }
        };
        let hypothesis = text(hypothesis);
        let references: Vec<String> = references.iter().map(|reference| text(reference)).collect();
        let mut numbers = Words::default();
        let own = numbers.number(words(&hypothesis));
        let others: Vec<Vec<u32>> = references.iter().map(|text| numbers.number(words(text))).collect();
        let nearest = others.iter().map(Vec::len).min_by_key(|length| (length.abs_diff(own.len()), *length));
        let mut counts = BleuCounts {
            hypothesis: own.len() as u64,
            reference: nearest.unwrap_or(0) as u64,
            ..BleuCounts::default()
        };
        for n in 0..ORDER {
            let grams = word_grams(&own, n + 1);
            let most = others.iter().map(|other| word_grams(other, n + 1)).reduce(|a, b| a.most(&b));
            counts.totals[n] = grams.total();
            counts.matches[n] = most.unwrap_or_else(Counts::default).shared(&grams);
        }
        counts
    }

    /// The score of counts, 0 to 100.
    pub fn score(&self, counts: &BleuCounts) -> f64 {
        if counts.matches.iter().all(|n| *n == 0) {
            return 0.0;
        }
        let [c, r] = [counts.hypothesis as f64, counts.reference as f64];
        let brevity = if c < r { (1.0 - r / c).exp() } else { 1.0 };
        let (mut halves, mut orders, mut sum) = (1.0, if self.effective_order { 0 } else { ORDER }, 0.0);
        let mut known = 0;
        for n in 0..ORDER {
            let (mut matches, mut total) = (counts.matches[n] as f64, counts.totals[n] as f64);
            if let Smoothing::Add(k) = self.smoothing
                && n > 0
            {
                (matches, total) = (matches + k, total + k);
            }
            if total == 0.0 {
                break;
            }
            if self.effective_order {
                orders = n + 1;
            }
            let precision = match self.smoothing {
                _ if matches > 0.0 => matches / total,
                Smoothing::Exponential => {
                    halves *= 2.0;
                    1.0 / (halves * total)
                }
                Smoothing::Floor(value) => value / total,
                _ => 0.0,
            };
            sum += ln(100.0 * precision);
            known += 1;
        }
        sum += (known..orders).map(|_| ln(0.0)).sum::<f64>();
        brevity * (sum / orders as f64).exp()
    }

    /// The signature that sacrebleu prints for this definition, with the version whose behaviour it is.
    pub fn signature(&self, references: usize) -> String {
        let smoothing = match self.smoothing {
            Smoothing::Exponential => "exp".to_string(),
            Smoothing::Floor(value) => format!("floor[{value:.2}]"),
            Smoothing::Add(value) => format!("add-k[{value:.2}]"),
            Smoothing::Off => "none".into(),
        };
        format!(
            "nrefs:{references}|case:{}|eff:{}|tok:{}|smooth:{smoothing}|version:{}",
            if self.lower { "lc" } else { "mixed" },
            if self.effective_order { "yes" } else { "no" },
            self.tokens.name(),
            crate::SACREBLEU
        )
    }
}

/// The logarithm, and a number far below every logarithm for 0.
fn ln(x: f64) -> f64 {
    if x == 0.0 { -9_999_999_999.0 } else { x.ln() }
}
