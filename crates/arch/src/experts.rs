//! Mixtures of experts: which layers have which experts, and how tokens choose among them.

use crate::config::{ArchError, limits, positive, ranged};
use crate::model::{MlpKind, Model};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Experts in place of the feed-forward block of every layer, each a block of its own; a softmax router chooses some for each token
/// and weighs their results (Shazeer et al. 2017; Jiang et al. 2024, Mixtral).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// E, experts of a layer.
    pub count: usize,
    /// k, experts of a token.
    pub choices: usize,
    /// Width of an expert.
    pub width: usize,
    /// The k weights of a token are divided by their sum.
    pub renormalise: bool,
}

/// `[model.experts]`: experts in place of the feed-forward block of every layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertsConfig {
    /// Experts of each layer.
    pub count: u64,
    /// Experts that compute each token.
    pub choices: u64,
    /// Width of an expert; 0 takes `ffn_width`.
    pub width: u64,
    /// Weights of a token's choices are divided by their sum (Mixtral, Qwen3); otherwise they are the router's probabilities.
    pub renormalise: bool,
    /// Weight of the balance loss of each sequence and layer, which is 1 where every expert has equally many tokens; 0 leaves it out.
    pub balance: f64,
    /// Weight of the router's z-loss, the mean of lse^2, lse the log-sum-exp of a token's router logits (ST-MoE: 1e-3); 0 leaves it out.
    pub z_loss: f64,
}

impl Default for ExpertsConfig {
    fn default() -> Self {
        ExpertsConfig { count: 8, choices: 2, width: 0, renormalise: true, balance: 0.01, z_loss: 0.001 }
    }
}

impl ExpertsConfig {
    /// The experts that this table means in a model whose feed-forward blocks are `ffn_width` wide.
    pub(crate) fn resolve(&self, ffn_width: usize) -> Result<Experts, ArchError> {
        let width = if self.width == 0 { ffn_width as u64 } else { self.width };
        for (key, weight) in [("experts.balance", self.balance), ("experts.z_loss", self.z_loss)] {
            ranged(key, weight, 0.0, 1.0)?;
        }
        let experts = Experts {
            count: positive("experts.count", Some(self.count), 1, limits::EXPERTS)?,
            choices: positive("experts.choices", Some(self.choices), 1, limits::EXPERTS)?,
            width: positive("experts.width", Some(width), 1, limits::FFN_WIDTH)?,
            renormalise: self.renormalise,
        };
        experts.check()?;
        Ok(experts)
    }

    /// The table that resolves to these experts.
    pub(crate) fn of(experts: &Experts) -> ExpertsConfig {
        ExpertsConfig {
            count: experts.count as u64,
            choices: experts.choices as u64,
            width: experts.width as u64,
            renormalise: experts.renormalise,
            ..ExpertsConfig::default()
        }
    }
}

impl Experts {
    fn check(&self) -> Result<(), ArchError> {
        let Experts { count, choices, renormalise, .. } = *self;
        let wrong = |key, problem: String| Err(ArchError { key, problem });
        if choices > count {
            return wrong(
                "experts.choices",
                format!("wanted at most the {count} experts, found {choices}; change experts.count or this"),
            );
        }
        if choices == 1 && renormalise && count > 1 {
            return wrong(
                "experts.renormalise",
                "true with one choice makes every weight 1, and the router gets no gradient; set it to false or \
                 experts.choices = 2"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Model {
    /// Refuses experts that the model's other choices leave undefined.
    pub(crate) fn check_experts(&self) -> Result<(), ArchError> {
        let Some(experts) = &self.experts else { return Ok(()) };
        let sizes = [
            ("experts.count", experts.count, limits::EXPERTS),
            ("experts.choices", experts.choices, limits::EXPERTS),
            ("experts.width", experts.width, limits::FFN_WIDTH),
        ];
        for (key, value, most) in sizes {
            positive(key, Some(value as u64), 1, most)?;
        }
        experts.check()?;
        if self.mlp() != MlpKind::Gated || self.bias {
            let found = if self.bias { "bias = true" } else { "an activation without a gate" };
            return Err(ArchError {
                key: "experts",
                problem: format!(
                    "wanted gated experts without biases, found {found}; set activation = \"swiglu\" and bias = false, as \
                     architecture = \"llama\" does"
                ),
            });
        }
        Ok(())
    }

    /// Parameters of one expert of a layer, 0 without experts.
    pub fn expert_parameters(&self) -> usize {
        self.experts.map_or(0, |experts| 3 * self.width * experts.width)
    }

    /// Parameters that a token uses: all but those of the experts that it does not choose.
    pub fn active_parameters(&self) -> usize {
        let idle = self.experts.map_or(0, |experts| experts.count - experts.choices);
        self.parameters() - self.layers.saturating_mul(idle).saturating_mul(self.expert_parameters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelConfig, named};

    /// Mixtral 8x7B: 46,702,792,704 parameters, 12,879,925,248 active; 82,933,972,992 FLOPs a token at 4,096 tokens.
    #[test]
    fn counts_are_those_of_mixtral() {
        let experts = Experts { count: 8, choices: 2, width: 14336, renormalise: true };
        let mixtral = Model { experts: Some(experts), window: None, ..named("mistral-7b").unwrap() };
        mixtral.check().unwrap();
        assert_eq!(mixtral.parameters(), 46_702_792_704);
        assert_eq!(mixtral.active_parameters(), 12_879_925_248);
        assert_eq!(mixtral.expert_parameters(), 176_160_768);
        assert_eq!(mixtral.train_flops_per_token(4096).0, 82_933_972_992.0);
        assert_eq!(mixtral.params().iter().map(crate::ParamSpec::len).sum::<usize>(), 46_702_792_704);
    }

    #[test]
    fn experts_that_cannot_be_are_refused_by_key() {
        let refused = |experts: ExpertsConfig, architecture: &str| {
            let config = ModelConfig {
                architecture: architecture.into(),
                vocab_size: 100,
                experts: Some(experts),
                ..Default::default()
            };
            config.resolve(None).unwrap_err().to_string()
        };
        let few = ExpertsConfig { count: 2, choices: 3, ..Default::default() };
        let e = refused(few, "llama");
        assert!(e.starts_with("model.experts.choices: wanted at most the 2 experts, found 3"), "{e}");
        let one = ExpertsConfig { choices: 1, ..Default::default() };
        assert!(refused(one, "llama").starts_with("model.experts.renormalise: true with one choice"));
        assert!(refused(ExpertsConfig::default(), "gpt2").contains("found bias = true"));
        let none = ExpertsConfig { count: 0, ..Default::default() };
        assert!(refused(none, "llama").contains("model.experts.count: wanted 1 to"));
    }
}
