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
    /// Stochastic gradient descent with momentum and decoupled decay; `[optim.sgd]`.
    Sgd,
    /// Factored second moments (Shazeer & Stern 2018); `[optim.adafactor]`.
    Adafactor,
    /// The sign of two interpolated momenta (Chen et al. 2023); wants a rate 3 to 10 times smaller than AdamW's.
    Lion,
    /// Orthogonalised momentum for hidden matrices (Jordan et al. 2024), AdamW for the rest; `[optim.muon]`.
    Muon,
    /// Kronecker-factored curvature for hidden matrices (Martens & Grosse 2015), AdamW for the rest; `[optim.kfac]`.
    Kfac,
}

impl OptimizerChoice {
    /// The name as a recipe writes it.
    pub const fn name(self) -> &'static str {
        match self {
            OptimizerChoice::AdamW => "adamw",
            OptimizerChoice::Sgd => "sgd",
            OptimizerChoice::Adafactor => "adafactor",
            OptimizerChoice::Lion => "lion",
            OptimizerChoice::Muon => "muon",
            OptimizerChoice::Kfac => "kfac",
        }
    }
}

/// Memory of AdamW's moments.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StateChoice {
    /// 4 bytes a value.
    #[default]
    F32,
    /// 8 bits by blocks of 256 (Dettmers et al. 2022) for the matrices of layers. Tables, output projections, biases, norms and
    /// matrices of fewer than 4096 elements on a rank stay in f32.
    Int8,
    /// As "int8", tables and output projections too.
    Int8Embeddings,
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
    /// The peak times sqrt(w / i) at step i after w warm-up steps (Vaswani et al. 2017), not below the final rate.
    #[serde(rename = "inverse-sqrt")]
    InverseSqrt,
    /// From the peak to the final rate by (1 - x)^`decay_power`.
    Polynomial,
    /// `cycles` half cosines, each from the peak (Loshchilov & Hutter 2017).
    #[serde(rename = "cosine-restarts")]
    CosineRestarts,
}

impl ScheduleChoice {
    /// The name as a recipe writes it.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleChoice::Cosine => "cosine",
            ScheduleChoice::Wsd => "wsd",
            ScheduleChoice::Linear => "linear",
            ScheduleChoice::Constant => "constant",
            ScheduleChoice::InverseSqrt => "inverse-sqrt",
            ScheduleChoice::Polynomial => "polynomial",
            ScheduleChoice::CosineRestarts => "cosine-restarts",
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

/// `[optim.sgd]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SgdConfig {
    /// Decay of the velocity; 0 keeps none.
    pub momentum: f64,
    /// Take the gradient's step from where the velocity leads.
    pub nesterov: bool,
}

impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { momentum: 0.9, nesterov: false }
    }
}

/// `[optim.adafactor]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdafactorConfig {
    /// Rate min(0.01, 1/sqrt(step)) instead of `lr` and its schedule.
    pub relative_step: bool,
    /// Scale the learning rate by the root mean square of the parameter (Shazeer and Stern 2018, section 8).
    pub scale_parameter: bool,
    /// Decay of a running mean of updates; 0 keeps none and its memory.
    pub momentum: f64,
    /// p of the second moment's decay 1 - step^-p.
    pub decay_power: f64,
    /// Largest root mean square of an update before the rate.
    pub clip_threshold: f64,
    /// Added to squared gradients.
    pub eps: f64,
    /// Least root mean square that a parameter counts with.
    pub eps_parameter: f64,
}

impl Default for AdafactorConfig {
    fn default() -> Self {
        AdafactorConfig {
            relative_step: false,
            scale_parameter: true,
            momentum: 0.0,
            decay_power: 0.8,
            clip_threshold: 1.0,
            eps: 1e-30,
            eps_parameter: 1e-3,
        }
    }
}

/// How Muon orthogonalises.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MuonMethod {
    /// One quintic polynomial, repeated (Jordan et al. 2024): singular values between 0.7 and 1.2.
    #[default]
    NewtonSchulz,
    /// The best quintic of each step (Amsel et al. 2025).
    PolarExpress,
}

/// Factor on Muon's orthogonal update.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MuonScale {
    /// 0.2 sqrt(max(rows, cols)): updates as large as AdamW's, one rate for both (Liu et al. 2025).
    #[default]
    Moonlight,
    /// sqrt(max(1, rows / cols)) (Jordan et al. 2024); wants `optim.muon.lr` of about 0.02.
    Jordan,
}

/// `[optim.muon]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MuonConfig {
    /// Peak learning rate of hidden matrices; 0 takes `optim.lr`, which the others have.
    pub lr: f64,
    /// Decay of the momentum.
    pub momentum: f64,
    /// Mix the gradient into the momentum once more.
    pub nesterov: bool,
    /// Steps of the polynomial.
    pub steps: u64,
    /// Polynomial: "newton-schulz" or "polar-express".
    pub method: MuonMethod,
    /// Factor on the update: "moonlight" or "jordan".
    pub scale: MuonScale,
}

impl Default for MuonConfig {
    fn default() -> Self {
        MuonConfig {
            lr: 0.0,
            momentum: 0.95,
            nesterov: true,
            steps: 5,
            method: MuonMethod::NewtonSchulz,
            scale: MuonScale::Moonlight,
        }
    }
}

/// `[optim.kfac]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KfacConfig {
    /// Peak learning rate of hidden matrices; 0 takes `optim.lr`, which the others have.
    pub lr: f64,
    /// Decay of the velocity of preconditioned gradients; 0 keeps none.
    pub momentum: f64,
    /// Damping of the curvature, split between its two factors.
    pub damping: f64,
    /// Decay of the running means of the factors.
    pub decay: f64,
    /// Steps between batches that the factors see.
    pub curvature_every: u64,
    /// Steps between inversions.
    pub inverse_every: u64,
    /// Largest change of the model's distribution in a step, by its quadratic estimate; 0 is no limit.
    pub kl_clip: f64,
}

impl Default for KfacConfig {
    fn default() -> Self {
        KfacConfig {
            lr: 0.0,
            momentum: 0.9,
            damping: 3e-3,
            decay: 0.95,
            curvature_every: 1,
            inverse_every: 10,
            kl_clip: 1e-3,
        }
    }
}

/// The `[optim]` table of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimConfig {
    /// Optimizer: "adamw", "sgd", "adafactor", "lion", "muon" or "kfac".
    pub optimizer: OptimizerChoice,
    /// Memory of AdamW's moments: "f32", "int8" (2 bytes a value instead of 8 for the matrices of layers) or "int8-embeddings"
    /// (tables and output projections too).
    pub state: StateChoice,
    /// Peak learning rate.
    pub lr: f64,
    /// Final learning rate divided by the peak.
    pub min_lr_ratio: f64,
    /// Decay of the running mean of gradients (AdamW); weight of the momentum in a step (Lion).
    pub beta1: f64,
    /// Decay of the running mean of squared gradients (AdamW), of the momentum (Lion).
    pub beta2: f64,
    /// Added to the root of the running mean of squares (AdamW).
    pub eps: f64,
    /// Decoupled weight decay, multiplied by the learning rate; on tensors of two or more dims only.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; a longer one is scaled down to it. 0 turns clipping off.
    pub clip: f64,
    /// Learning rate over the run: "cosine", "wsd", "linear", "constant", "inverse-sqrt", "polynomial" or
    /// "cosine-restarts".
    pub schedule: ScheduleChoice,
    /// Steps over which the learning rate rises to its peak, at most those of the run; 0 takes `warmup_fraction`.
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
    /// Power of a "polynomial" schedule.
    pub decay_power: f64,
    /// Half cosines of a "cosine-restarts" schedule.
    pub cycles: u64,
    /// Settings of "sgd" alone.
    pub sgd: SgdConfig,
    /// Settings of "adafactor" alone.
    pub adafactor: AdafactorConfig,
    /// Settings of "muon" alone.
    pub muon: MuonConfig,
    /// Settings of "kfac" alone.
    pub kfac: KfacConfig,
}

impl Default for OptimConfig {
    fn default() -> Self {
        OptimConfig {
            optimizer: OptimizerChoice::AdamW,
            state: StateChoice::F32,
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
            decay_power: 1.0,
            cycles: 1,
            sgd: SgdConfig::default(),
            adafactor: AdafactorConfig::default(),
            muon: MuonConfig::default(),
            kfac: KfacConfig::default(),
        }
    }
}

/// Least `eps` with moments in 8 bits. Second moments below 2^-100 are taken for zero, gradients below 1e-15 then, and `eps` must
/// outweigh these.
const LEAST_INT8_EPS: f64 = 1e-12;

/// An `[optim]` table that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("optim.{key}: {problem}")]
pub struct OptimConfigError {
    /// Key of the table.
    pub key: &'static str,
    /// Expected and found value.
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
        let whole = |key, value: u64, most: u64| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(OptimConfigError { key, problem: format!("wanted 1 to {most}, found {value}") })
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
        within("decay_power", self.decay_power, 0.0, 10.0)?;
        whole("cycles", self.cycles, 1 << 20)?;
        within("sgd.momentum", self.sgd.momentum, 0.0, 0.999_999_9)?;
        let a = &self.adafactor;
        within("adafactor.momentum", a.momentum, 0.0, 0.999_999_9)?;
        within("adafactor.decay_power", a.decay_power, 0.1, 1.0)?;
        within("adafactor.clip_threshold", a.clip_threshold, 1e-6, 1e6)?;
        within("adafactor.eps", a.eps, f64::from(f32::MIN_POSITIVE), 1.0)?;
        within("adafactor.eps_parameter", a.eps_parameter, 0.0, 1.0)?;
        within("muon.lr", self.muon.lr, 0.0, 100.0)?;
        within("muon.momentum", self.muon.momentum, 0.0, 0.999_999_9)?;
        whole("muon.steps", self.muon.steps, 100)?;
        let k = &self.kfac;
        within("kfac.lr", k.lr, 0.0, 100.0)?;
        within("kfac.momentum", k.momentum, 0.0, 0.999_999_9)?;
        within("kfac.damping", k.damping, 0.0, 1e6)?;
        within("kfac.decay", k.decay, 0.0, 0.999_999_9)?;
        whole("kfac.curvature_every", k.curvature_every, 1 << 40)?;
        whole("kfac.inverse_every", k.inverse_every, 1 << 40)?;
        within("kfac.kl_clip", k.kl_clip, 0.0, 1e30)?;
        self.check_state()?;
        self.check_rates()
    }

    /// Moments in 8 bits.
    fn check_state(&self) -> Result<(), OptimConfigError> {
        if self.state == StateChoice::F32 {
            return Ok(());
        }
        if self.optimizer != OptimizerChoice::AdamW {
            let problem = format!(
                "wanted \"f32\" with optim.optimizer = \"{}\": only \"adamw\" keeps its moments in 8 bits",
                self.optimizer.name()
            );
            return Err(OptimConfigError { key: "state", problem });
        }
        if self.eps < LEAST_INT8_EPS {
            let problem = format!(
                "wanted at least {LEAST_INT8_EPS:e} with optim.state in 8 bits, which takes small second moments for zero, found {:e}",
                self.eps
            );
            return Err(OptimConfigError { key: "eps", problem });
        }
        Ok(())
    }

    /// Rates that depend on each other.
    fn check_rates(&self) -> Result<(), OptimConfigError> {
        let own = match self.optimizer {
            OptimizerChoice::Muon => Some(("muon.lr", self.muon.lr)),
            OptimizerChoice::Kfac => Some(("kfac.lr", self.kfac.lr)),
            _ => None,
        };
        if let Some((key, lr)) = own.filter(|(_, lr)| *lr > 0.0 && self.lr == 0.0) {
            let problem = format!(
                "found {lr} with optim.lr = 0: the schedule of both follows optim.lr; wanted it above 0"
            );
            return Err(OptimConfigError { key, problem });
        }
        let most = own.map_or(self.lr, |(_, lr)| lr.max(self.lr));
        if most * self.weight_decay > 1.0 {
            return Err(OptimConfigError {
                key: "weight_decay",
                problem: format!(
                    "lr * weight_decay = {} flips the sign of every weight; wanted at most 1",
                    most * self.weight_decay
                ),
            });
        }
        Ok(())
    }

    /// A rate of its own over `lr`; 1 if it is 0.
    pub(crate) fn lr_ratio(&self, own: f64) -> f64 {
        if own > 0.0 { own / self.lr } else { 1.0 }
    }

    /// The optimizer and its settings in words, for logs.
    pub fn describe(&self) -> String {
        let OptimConfig { lr, beta1, beta2, weight_decay, clip, .. } = self;
        let rate = |own: f64| if own > 0.0 { own } else { *lr };
        let own = match self.optimizer {
            OptimizerChoice::AdamW => {
                let state = match self.state {
                    StateChoice::F32 => "",
                    StateChoice::Int8 => " with moments of layers in 8 bits",
                    StateChoice::Int8Embeddings => " with moments in 8 bits",
                };
                format!("AdamW{state}, learning rate {lr}, betas {beta1} and {beta2}")
            }
            OptimizerChoice::Sgd => {
                let nesterov = if self.sgd.nesterov { " (Nesterov)" } else { "" };
                format!("SGD, learning rate {lr}, momentum {}{nesterov}", self.sgd.momentum)
            }
            OptimizerChoice::Adafactor if self.adafactor.relative_step => "Adafactor, relative steps".into(),
            OptimizerChoice::Adafactor => format!("Adafactor, learning rate {lr}"),
            OptimizerChoice::Lion => format!("Lion, learning rate {lr}, betas {beta1} and {beta2}"),
            OptimizerChoice::Muon => format!(
                "Muon, learning rate {}, momentum {}; AdamW for the rest, learning rate {lr}, betas {beta1} and {beta2}",
                rate(self.muon.lr),
                self.muon.momentum
            ),
            OptimizerChoice::Kfac => format!(
                "K-FAC, learning rate {}, damping {}; AdamW for the rest, learning rate {lr}, betas {beta1} and {beta2}",
                rate(self.kfac.lr),
                self.kfac.damping
            ),
        };
        format!("{own}, weight decay {weight_decay}, clip {clip}")
    }

    /// Warm-up steps of a run of `total_steps`.
    pub fn warmup(&self, total_steps: u64) -> u64 {
        match self.warmup_steps {
            0 => (self.warmup_fraction * total_steps as f64).round() as u64,
            steps => steps.min(total_steps),
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
            (OptimConfig { eps: 1e-13, state: StateChoice::Int8, ..d() }, "optim.eps"),
            (
                OptimConfig { optimizer: OptimizerChoice::Lion, state: StateChoice::Int8, ..d() },
                "optim.state",
            ),
            (OptimConfig { clip: f64::INFINITY, ..d() }, "optim.clip"),
            (OptimConfig { min_lr_ratio: 1.5, ..d() }, "optim.min_lr_ratio"),
            (OptimConfig { warmup_fraction: 2.0, ..d() }, "optim.warmup_fraction"),
            (OptimConfig { lr: 2.0, weight_decay: 0.6, ..d() }, "optim.weight_decay"),
            (OptimConfig { muon: MuonConfig { steps: 0, ..Default::default() }, ..d() }, "optim.muon.steps"),
            (
                OptimConfig {
                    optimizer: OptimizerChoice::Muon,
                    lr: 0.0,
                    muon: MuonConfig { lr: 0.02, ..Default::default() },
                    ..d()
                },
                "optim.muon.lr",
            ),
            (
                OptimConfig { kfac: KfacConfig { damping: -1.0, ..Default::default() }, ..d() },
                "optim.kfac.damping",
            ),
        ];
        for (config, key) in bad {
            let e = config.check().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{key}: ")), "{e}");
        }
    }
}
