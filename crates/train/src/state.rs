//! What a checkpoint holds besides tensors, and what must agree before a run goes on from it.

use crate::TrainError;
use crate::spikes::SpikeState;
use bessemer_arch::Model;
use bessemer_loader::LoaderState;
use bessemer_optim::LossScale;
use serde::{Deserialize, Serialize};

/// State of a run after `step` optimizer steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Optimizer steps done.
    pub step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Seconds of training so far, over all sessions.
    pub seconds: f64,
    /// The position in the data, and which data in which order.
    pub loader: LoaderState,
    /// What spikes are judged by; checkpoints from before there was such a thing have none.
    #[serde(default)]
    pub spikes: SpikeState,
    /// The loss scale; checkpoints of runs without one have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// What the parameters belong to.
    pub identity: RunIdentity,
}

/// What may not change between sessions of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// The model.
    pub model: Model,
    /// Fingerprint of the tokenizer.
    pub tokenizer: String,
    /// Seed of the run.
    pub seed: u64,
    /// Sequences of a step.
    pub sequences_per_step: u64,
}

impl RunIdentity {
    /// Errors with the first difference: going on would not be the same run.
    pub fn check(&self, saved: &RunIdentity, place: &str) -> Result<(), TrainError> {
        let differ = |what: &str, wanted: String, found: String| {
            Err(TrainError::OtherRun { place: place.into(), what: what.into(), wanted, found })
        };
        if self.tokenizer != saved.tokenizer {
            return differ("tokenizer fingerprint", self.tokenizer.clone(), saved.tokenizer.clone());
        }
        if self.model != saved.model {
            return differ("model", self.model.summary(), saved.model.summary());
        }
        let numbers = [
            ("run.seed", self.seed, saved.seed),
            ("sequences per step", self.sequences_per_step, saved.sequences_per_step),
        ];
        for (what, wanted, found) in numbers {
            if wanted != found {
                return differ(what, wanted.to_string(), found.to_string());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> RunIdentity {
        let model = bessemer_arch::named("gpt2").expect("a listed name");
        RunIdentity { model, tokenizer: "t".into(), seed: 1, sequences_per_step: 4 }
    }

    #[test]
    fn the_first_difference_is_named() {
        let a = identity();
        a.check(&a.clone(), "x").unwrap();
        let other = RunIdentity { seed: 2, ..identity() };
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("run.seed"));
        let other = RunIdentity { tokenizer: "u".into(), seed: 2, ..identity() };
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("tokenizer"));
        let mut other = identity();
        other.model.layers += 1;
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("5 layers"));
    }
}
