//! The `[optim]` table of a recipe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Optimizer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerChoice {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019), in PyTorch's order of operations.
    #[default]
    AdamW,
}

/// Learning rate over the run, after warm-up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleChoice {
    /// Half a cosine from the peak to the final rate.
    #[default]
    Cosine,
    /// Warm-up, stable, decay: the peak, then a decay over the last part of the run.
    Wsd,
    /// A straight line from the peak to the final rate.
    Linear,
    /// The peak until the end.
    Constant,
}

impl ScheduleChoice {
    /// The name as a recipe writes it.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleChoice::Cosine => "cosine",
            ScheduleChoice::Wsd => "wsd",
            ScheduleChoice::Linear => "linear",
            ScheduleChoice::Constant => "constant",
        }
    }
}

/// Form of the decay of a warm-up-stable-decay schedule; x goes from 0 to 1 over it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DecayShape {
    /// 1 - x.
    #[default]
    Linear,
    /// 1 - sqrt(x) (Hägele et al. 2024).
    Sqrt,
}

/// The `[optim]` table of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimConfig {
    /// Optimizer: "adamw".
    pub optimizer: OptimizerChoice,
    /// Peak learning rate.
    pub lr: f64,
    /// Final learning rate divided by the peak.
    pub min_lr_ratio: f64,
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the running mean of squares.
    pub eps: f64,
    /// Decoupled weight decay, multiplied by the learning rate; on tensors of two or more dims only.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; a longer one is scaled down to it. 0 turns clipping off.
    pub clip: f64,
    /// Learning rate over the run: "cosine", "wsd", "linear" or "constant".
    pub schedule: ScheduleChoice,
    /// Steps over which the learning rate rises to its peak; 0 takes `warmup_fraction`.
    pub warmup_steps: u64,
    /// Warm-up as a fraction of the run's steps, if `warmup_steps` is 0.
    pub warmup_fraction: f64,
    /// True: step i of w warm-up steps has i/w of the peak, so that the first step has none (Hugging Face). False:
    /// (i+1)/(w+1), so that no step is lost (nanoGPT).
    pub warmup_from_zero: bool,
    /// Fraction of the run's steps over which a "wsd" schedule decays.
    pub decay_fraction: f64,
    /// Form of a "wsd" schedule's decay: "linear" or "sqrt".
    pub decay_shape: DecayShape,
}

impl Default for OptimConfig {
    fn default() -> Self {
        OptimConfig {
            optimizer: OptimizerChoice::AdamW,
            lr: 1e-3,
            min_lr_ratio: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
            schedule: ScheduleChoice::Cosine,
            warmup_steps: 0,
            warmup_fraction: 0.02,
            warmup_from_zero: false,
            decay_fraction: 0.2,
            decay_shape: DecayShape::Linear,
        }
    }
}

/// An `[optim]` table that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("optim.{key}: {problem}")]
pub struct OptimConfigError {
    /// Key of the table.
    pub key: &'static str,
    /// What was wanted and found.
    pub problem: String,
}

impl OptimConfig {
    /// Errors for the first value that is out of range, naming key, value and range.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        let within = |key, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(OptimConfigError { key, problem: format!("wanted {least} to {most}, found {value}") })
        };
        within("lr", self.lr, 0.0, 100.0)?;
        within("min_lr_ratio", self.min_lr_ratio, 0.0, 1.0)?;
        // The largest f64 below 1 that is also below 1 in f32, in which the update is computed.
        within("beta1", self.beta1, 0.0, 0.999_999_9)?;
        within("beta2", self.beta2, 0.0, 0.999_999_9)?;
        // The smallest normal f32: a smaller one would be 0 on the device and divide 0 by 0 for unused rows.
        within("eps", self.eps, f64::from(f32::MIN_POSITIVE), 1.0)?;
        within("weight_decay", self.weight_decay, 0.0, 100.0)?;
        within("clip", self.clip, 0.0, 1e30)?;
        within("warmup_fraction", self.warmup_fraction, 0.0, 1.0)?;
        within("decay_fraction", self.decay_fraction, 0.0, 1.0)?;
        if self.lr * self.weight_decay > 1.0 {
            return Err(OptimConfigError {
                key: "weight_decay",
                problem: format!(
                    "lr * weight_decay = {} turns the sign of every weight; wanted at most 1",
                    self.lr * self.weight_decay
                ),
            });
        }
        Ok(())
    }

    /// Warm-up steps of a run of `total_steps`.
    pub fn warmup(&self, total_steps: u64) -> u64 {
        match self.warmup_steps {
            0 => (self.warmup_fraction * total_steps as f64).round() as u64,
            steps => steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_allowed_and_values_out_of_range_are_refused_by_key() {
        OptimConfig::default().check().unwrap();
        let d = OptimConfig::default;
        let bad = [
            (OptimConfig { lr: -1e-3, ..d() }, "optim.lr"),
            (OptimConfig { lr: f64::NAN, ..d() }, "optim.lr"),
            (OptimConfig { beta1: 1.0, ..d() }, "optim.beta1"),
            (OptimConfig { beta2: 0.999_999_999_9, ..d() }, "optim.beta2"),
            (OptimConfig { eps: 0.0, ..d() }, "optim.eps"),
            (OptimConfig { eps: 1e-300, ..d() }, "optim.eps"),
            (OptimConfig { clip: f64::INFINITY, ..d() }, "optim.clip"),
            (OptimConfig { min_lr_ratio: 1.5, ..d() }, "optim.min_lr_ratio"),
            (OptimConfig { warmup_fraction: 2.0, ..d() }, "optim.warmup_fraction"),
            (OptimConfig { lr: 2.0, weight_decay: 0.6, ..d() }, "optim.weight_decay"),
        ];
        for (config, key) in bad {
            let e = config.check().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{key}: ")), "{e}");
        }
    }
}
