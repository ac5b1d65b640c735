//! `[train.preferences]`: training on pairs of a chosen and a rejected answer.

use crate::recipe::Recipe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[train.preferences]`: direct preference optimisation (Rafailov et al. 2023, equation 7). Of each pair (`corpus.chats.pairs`)
/// `-log sigmoid(beta (r(chosen) - r(rejected)))` is minimised, r the log-probability of an answer less that under the reference, the model
/// that the run begins with. The loss that is reported is the mean over pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PreferencesConfig {
    /// Strength of the tie to the reference: with a smaller one the model may leave it further. 0.1 is usual; 0: no training on pairs.
    pub beta: f64,
    /// Share of pairs whose answers are taken to be exchanged, below 0.5 (conservative DPO, Mitchell 2023).
    pub label_smoothing: f64,
}

impl Default for PreferencesConfig {
    fn default() -> PreferencesConfig {
        PreferencesConfig { beta: 0.0, label_smoothing: 0.0 }
    }
}

impl PreferencesConfig {
    /// Whether the run trains on pairs.
    pub fn is_on(&self) -> bool {
        self.beta > 0.0
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, value, most) in
            [("beta", self.beta, 100.0), ("label_smoothing", self.label_smoothing, 0.499)]
        {
            if !(0.0..=most).contains(&value) {
                return Err(format!("train.preferences.{key} = {value}: expected 0 to {most}"));
            }
        }
        match !self.is_on() && self.label_smoothing > 0.0 {
            true => Err(format!(
                "train.preferences.label_smoothing = {} with train.preferences.beta = 0: expected beta above 0, such as 0.1, or no such key",
                self.label_smoothing
            )),
            false => Ok(()),
        }
    }
}

impl Recipe {
    /// Refuses pairs without preferences and preferences without pairs, and what has no meaning for a loss of pairs.
    pub(crate) fn preferences_fit(&self) -> Result<(), String> {
        let pairs = self.corpus.chats.as_ref().is_some_and(|chats| chats.pairs);
        let on = self.train.preferences.is_on();
        if pairs != on {
            let beta = self.train.preferences.beta;
            return Err(format!(
                "wanted corpus.chats.pairs = true together with train.preferences.beta above 0, such as 0.1; found pairs = {pairs} with beta = {beta}"
            ));
        }
        if !on {
            return Ok(());
        }
        let experts = self.model.experts.is_some();
        let adapters = self.model.adapters.as_ref().map_or(0.0, |adapters| adapters.dropout);
        let found = [
            (self.train.init.from.is_empty(), "train.init.from = \"\"", "the model that is the reference"),
            (
                self.train.lengths != crate::SequenceLengths::Padded,
                "train.lengths of another kind",
                "\"padded\"",
            ),
            (
                self.model.dropout > 0.0 || adapters > 0.0,
                "model.dropout or model.adapters.dropout above 0",
                "0: both passes over a pair must compute the same",
            ),
            (self.train.z_loss > 0.0, "train.z_loss above 0", "0"),
            (self.train.teacher.is_on(), "train.teacher", "none"),
            (experts, "model.experts", "a dense model"),
            (
                self.train.micro_batch % 2 == 1,
                "an odd train.micro_batch",
                "an even number of sequences, or 0 to derive it",
            ),
        ];
        let odd = |at: &u64| at % 2 == 1;
        if let Some(at) = self.train.skip_samples.iter().flatten().copied().find(odd) {
            return Err(format!(
                "train.preferences with {at} in train.skip_samples: wanted even numbers, as samples 2 i and 2 i + 1 are a pair"
            ));
        }
        match found.into_iter().find(|(found, ..)| *found) {
            Some((_, found, wanted)) => Err(format!("train.preferences with {found}: wanted {wanted}")),
            None => Ok(()),
        }
    }
}
