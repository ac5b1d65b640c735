//! Direct preference optimisation (Rafailov et al. 2023, equation 7) of a run on pairs of a chosen and a rejected answer.
//!
//! ```text
//! nll(y)   -log p(y | question), summed over the scored tokens of an answer      ref(y)   the same of the reference, made once
//! z        = beta ((ref(chosen) - nll(chosen)) - (ref(rejected) - nll(rejected)))
//! loss     = (1 - e) softplus(-z) + e softplus(z)                                e        label smoothing
//! d loss / d nll(chosen) = beta ((1 - e) sigmoid(-z) - e sigmoid(z)) = - d loss / d nll(rejected)
//! ```
//!
//! A step first scores its pairs, then trains on them with these derivatives as weights of the tokens' gradients: one forward pass more than
//! training on text, in every layout. Every rank has the losses of all, so that weights and means have the same bits on each.

use bessemer_parallel::{ParallelError, Plan};
use bessemer_recipe::{PreferencesConfig, Recipe};
use std::collections::BTreeMap;

/// Refuses preferences in layouts that update parameters while micro-batches are in flight.
pub(crate) fn check_layout(recipe: &Recipe, plan: &Plan) -> Result<(), ParallelError> {
    if !recipe.train.preferences.is_on() {
        return Ok(());
    }
    match plan.pipe.asynchronous() {
        true => Err(ParallelError::Layout(
            "train.preferences with an asynchronous parallel.schedule, in which the parameters change between scoring and training of a \
             pair: wanted a schedule with a flush, such as \"1f1b\""
                .into(),
        )),
        false => Ok(()),
    }
}

/// Sums over pairs.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct PairSums {
    pub(crate) pairs: u64,
    pub(crate) loss: f64,
    /// Pairs whose chosen answer has become more probable than the rejected one, relative to the reference.
    correct: u64,
    /// z.
    margin: f64,
    /// beta (ref - nll) of the chosen and of the rejected answers.
    rewards: [f64; 2],
}

impl PairSums {
    /// Means by name, for records.
    pub(crate) fn means(&self) -> BTreeMap<String, f64> {
        let n = self.pairs as f64;
        let [chosen, rejected] = self.rewards;
        [
            ("accuracy", self.correct as f64),
            ("margin", self.margin),
            ("chosen", chosen),
            ("rejected", rejected),
        ]
        .map(|(name, sum)| (name.to_owned(), sum / n))
        .into()
    }

    /// Adds a pair, given nll and ref of its answers; returns the derivative of its loss by nll of the chosen answer.
    pub(crate) fn add(&mut self, config: &PreferencesConfig, nll: [f64; 2], reference: [f64; 2]) -> f64 {
        let PreferencesConfig { beta, label_smoothing: e } = *config;
        let rewards = [0, 1].map(|at| beta * (reference[at] - nll[at]));
        let z = rewards[0] - rewards[1];
        self.pairs += 1;
        self.loss += (1.0 - e) * softplus(-z) + e * softplus(z);
        self.correct += u64::from(z > 0.0);
        self.margin += z;
        self.rewards.iter_mut().zip(rewards).for_each(|(sum, reward)| *sum += reward);
        beta * ((1.0 - e) * sigmoid(-z) - e * sigmoid(z))
    }
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// log(1 + e^z).
fn softplus(z: f64) -> f64 {
    z.max(0.0) + (-z.abs()).exp().ln_1p()
}

/// Weights of the tokens of a step's micro-batches, and the losses of its pairs.
#[derive(Debug, Default)]
pub(crate) struct PairWeights {
    /// By micro-batch of this rank, in the order of its tokens.
    of_tokens: Vec<Vec<f32>>,
    pub(crate) sums: PairSums,
}

impl PairWeights {
    /// No weights yet, of so many micro-batches.
    pub(crate) fn begin(&mut self, micro_batches: usize) {
        self.of_tokens.resize_with(micro_batches, Vec::new);
        self.sums = PairSums::default();
    }

    /// Weights of a micro-batch.
    pub(crate) fn of(&self, micro: usize) -> Option<&[f32]> {
        self.of_tokens.get(micro).map(Vec::as_slice)
    }

    /// Adds a pair of any rank; `here` on the rank that trains on it: its micro-batch, the place of the chosen answer there, and tokens of
    /// a sequence. `share`: factor that makes the mean over scored tokens the mean over pairs.
    pub(crate) fn add(
        &mut self,
        config: &PreferencesConfig,
        (nll, reference): ([f64; 2], [f64; 2]),
        here: Option<(usize, usize, usize)>,
        share: f64,
    ) {
        let slope = self.sums.add(config, nll, reference);
        let Some((micro, place, length)) = here else { return };
        let weights = &mut self.of_tokens[micro];
        weights.resize((place + 2) * length, 0.0);
        weights[place * length..][..length].fill((slope * share) as f32);
        weights[(place + 1) * length..][..length].fill((-slope * share) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The derivative is that of the loss, on both sides of an even pair.
    #[test]
    fn the_weight_of_a_pair_is_the_slope_of_its_loss() {
        for label_smoothing in [0.0, 0.2] {
            let config = PreferencesConfig { beta: 0.3, label_smoothing };
            for nll in [[3.0, 9.0], [9.0, 3.0], [40.0, 400.0], [4e4, 4.0]] {
                let loss = |nll: [f64; 2]| {
                    let mut sums = PairSums::default();
                    let slope = sums.add(&config, nll, [5.0, 5.0]);
                    (sums.loss, slope)
                };
                let (_, slope) = loss(nll);
                let h = 1e-4;
                let difference = |a: [f64; 2], b: [f64; 2]| (loss(a).0 - loss(b).0) / (2.0 * h);
                let chosen = difference([nll[0] + h, nll[1]], [nll[0] - h, nll[1]]);
                let rejected = difference([nll[0], nll[1] + h], [nll[0], nll[1] - h]);
                assert!(
                    (slope - chosen).abs() < 1e-6 && (slope + rejected).abs() < 1e-6,
                    "{nll:?}: {slope} {chosen}"
                );
            }
        }
        let mut even = PairSums::default();
        even.add(&PreferencesConfig { beta: 0.1, label_smoothing: 0.0 }, [2.0, 3.0], [2.0, 3.0]);
        assert_eq!((even.loss, even.correct), (std::f64::consts::LN_2, 0));
    }
}

#[cfg(test)]
#[path = "preferences_tests.rs"]
mod golden;
