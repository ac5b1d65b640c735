//! Rotary positions and the ways to stretch them past the length of training.

use super::rule;
use super::{Describe, Rule, Visit, expect_indices, read, update};
use crate::{TensorError, View};

/// How the frequencies of [`Rope`] are changed so that a model reads positions beyond those it was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RopeScaling {
    /// As in the paper.
    #[default]
    None,
    /// Every frequency divided by `factor`: positions are interpolated (Chen et al. 2023).
    Linear {
        /// At least 1: how many times longer the text may be.
        factor: f32,
    },
    /// Llama 3.1's: a frequency whose wave is longer than `original_positions / low_freq_factor` is divided by `factor`,
    /// one whose wave is shorter than `original_positions / high_freq_factor` stays, between them the two are mixed.
    Llama3 {
        /// At least 1: what the low frequencies are divided by.
        factor: f32,
        /// Waves that fit fewer times than this into the original length count as low.
        low_freq_factor: f32,
        /// Waves that fit more often than this count as high; above `low_freq_factor`.
        high_freq_factor: f32,
        /// Positions of the original training.
        original_positions: usize,
    },
}

impl RopeScaling {
    /// The frequency (radians per position) that takes the place of `frequency`.
    pub fn scaled(&self, frequency: f64) -> f64 {
        match *self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let waves = original_positions as f64 * frequency / std::f64::consts::TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                kept * frequency + (1.0 - kept) * frequency / f64::from(factor)
            }
        }
    }

    /// Errors unless the factors make sense.
    fn check(&self, op: &'static str) -> Result<(), TensorError> {
        let wrong = |wanted: &str| TensorError::Shape {
            op,
            operand: "scaling",
            wanted: wanted.to_owned(),
            found: format!("{self:?}"),
        };
        match *self {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. }
                if !(factor >= 1.0 && factor.is_finite()) =>
            {
                Err(wrong("a finite factor of at least 1"))
            }
            RopeScaling::Linear { .. } => Ok(()),
            RopeScaling::Llama3 {
                low_freq_factor: low, high_freq_factor: high, original_positions, ..
            } => {
                if low > 0.0 && high > low && high.is_finite() && original_positions > 0 {
                    Ok(())
                } else {
                    Err(wrong("0 < low_freq_factor < high_freq_factor and original_positions above 0"))
                }
            }
        }
    }
}

/// Rotates every head of `x` in place by its position (Su et al. 2021), in the layout that pairs i with i + E/2:
/// `(a, b) <- (a cos - b sin, b cos + a sin)`, angle = position times the pair's frequency. `inverse` rotates back (the
/// backward pass).
///
/// Sharding: x (n, h e), positions (n); n, h free, e whole; linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// `[N, heads * E]`.
    pub x: View,
    /// u32 `[1, N]`.
    pub positions: View,
    /// Heads in a row of `x`.
    pub heads: usize,
    /// Base of the angles, 10000 in the paper.
    pub theta: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Rotate by the negative angle.
    pub inverse: bool,
}

impl Rope {
    /// Radians per position of pair `i < E/2`: `theta^(-2i/E)`, scaled.
    pub fn frequency(&self, i: usize) -> f64 {
        let width = (self.x.cols / self.heads) as f64;
        self.scaling.scaled(f64::from(self.theta).powf(-2.0 * i as f64 / width))
    }
}

impl Describe for Rope {
    const NAME: &'static str = "rope";
    fn visit(&mut self, see: &mut Visit<'_>) {
        update(see, "x", &mut self.x);
        read(see, "positions", &mut self.positions);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, h) = (rule.free("n", self.x.rows), rule.free("h", self.heads));
        let e = rule.whole("e", self.x.cols.checked_div(self.heads).unwrap_or(0));
        rule.dims("x", &[n], &[h, e]);
        rule.dims("positions", &[], &[n]);
        rule.linear("x", rule::Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * self.x.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_indices(Self::NAME, "positions", &self.positions, self.x.rows)?;
        if self.heads == 0
            || !self.x.cols.is_multiple_of(self.heads)
            || !(self.x.cols / self.heads).is_multiple_of(2)
        {
            return Err(TensorError::Shape {
                op: Self::NAME,
                operand: "x",
                wanted: format!("{} heads of even width", self.heads),
                found: format!("{} columns", self.x.cols),
            });
        }
        self.scaling.check(Self::NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers.modeling_rope_utils._compute_llama3_parameters` with Llama 3.1's values: head width 128, base 5e5.
    #[test]
    fn llama3_frequencies_are_those_of_transformers() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 8192,
        };
        let golden = [
            (0, 1.0),
            (14, 0.056_669_619),
            (28, 0.003_211_446_1),
            (29, 0.002_166_570_6),
            (31, 0.000_856_751_46),
            (34, 0.000_178_507_79),
            (35, 9.556_212_2e-5),
            (63, 3.068_925_9e-7),
        ];
        for (i, wanted) in golden {
            let frequency = 5e5f64.powf(-2.0 * f64::from(i) / 128.0);
            let found = scaling.scaled(frequency);
            assert!((found - wanted).abs() < 1e-6 * wanted, "pair {i}: {found}, transformers {wanted}");
        }
    }

    #[test]
    fn linear_scaling_divides_and_bad_factors_are_named() {
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.scaled(0.5), 0.125);
        let bad = [
            RopeScaling::Linear { factor: 0.0 },
            RopeScaling::Linear { factor: f32::NAN },
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 4.0,
                high_freq_factor: 4.0,
                original_positions: 1,
            },
        ];
        for scaling in bad {
            let e = scaling.check("rope").unwrap_err().to_string();
            assert!(e.contains("scaling should be") && e.contains("factor"), "{e}");
        }
    }
}
