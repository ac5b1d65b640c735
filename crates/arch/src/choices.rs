//! The choices of a model that are names in a recipe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Normalisation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NormChoice {
    /// LayerNorm with a weight, and with a bias where the model has biases (GPT-2).
    LayerNorm,
    /// RMSNorm with a weight (Llama).
    RmsNorm,
    /// No normalisation anywhere (T-Fixup, Huang et al. 2020).
    None,
}

/// Where a layer's normalisations stand. f is the attention or the feed-forward block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// `x <- x + f(Norm(x))`, and one more normalisation before the output projection (GPT-2, Llama).
    #[default]
    Pre,
    /// `x <- Norm(x + f(x))`, without a final normalisation (Vaswani et al. 2017).
    Post,
    /// `x <- Norm(alpha x + f(x))`, alpha = (2 layers)^(1/4), without a final normalisation (Wang et al. 2022).
    DeepNorm,
}

/// Non-linearity of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationChoice {
    /// ReLU.
    Relu,
    /// ReLU, squared (So et al. 2021, Primer; nanochat).
    ReluSquared,
    /// GELU, tanh form (GPT-2's `gelu_new`).
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
    /// Gated with SiLU: `down(silu(gate x) * up x)` (Llama).
    Swiglu,
    /// Gated with GELU (tanh form).
    Geglu,
}

/// How a position enters the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PositionChoice {
    /// A learned table added to the token embedding (GPT-2).
    Learned,
    /// A fixed table of sines and cosines added to the token embedding (Vaswani et al. 2017).
    Sinusoidal,
    /// Rotary embedding of queries and keys, halves layout (Llama as in Hugging Face).
    Rope,
    /// Attention scores lowered in proportion to the distance, each head with its own slope (Press et al. 2022).
    Alibi,
    /// Nothing: only the causal mask tells positions apart.
    None,
}

/// Columns of queries and keys that `qk_norm` normalises together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QkNormSpan {
    /// Each head by itself, with one weight for all heads (Qwen3).
    #[default]
    Head,
    /// All heads of a token, with a weight for each column (OLMoE).
    Width,
}

impl QkNormSpan {
    /// True for each head by itself.
    pub fn is_head(&self) -> bool {
        *self == QkNormSpan::Head
    }
}

/// How the angles of rotary positions are stretched past the length of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RopeScalingKind {
    /// All frequencies divided by `factor` (Chen et al. 2023).
    Linear,
    /// Long waves divided by `factor`, short ones as they are, those between mixed (Llama 3.1).
    Llama3,
}

/// `[model.rope_scaling]`: rotary positions beyond the length of an earlier training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RopeScaling {
    /// Frequencies that are stretched.
    pub kind: RopeScalingKind,
    /// How many times longer the text may be.
    pub factor: f64,
    /// `llama3`: waves that fit fewer times than this into `original_context` are divided by `factor`.
    pub low_freq_factor: f64,
    /// `llama3`: waves that fit more often than this stay; above `low_freq_factor`.
    pub high_freq_factor: f64,
    /// `llama3`: positions of the earlier training.
    pub original_context: u64,
}

impl Default for RopeScaling {
    fn default() -> Self {
        RopeScaling {
            kind: RopeScalingKind::Linear,
            factor: 1.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        }
    }
}

/// How the initial weights are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InitChoice {
    /// Normal with `init_std`; the two matrices of a layer that write into the residual stream with
    /// `init_std / sqrt(2 layers)` (Radford et al. 2019).
    #[default]
    Gpt2,
    /// Variance `2 gain^2 / (inputs + outputs)` (Glorot & Bengio 2010).
    Xavier,
    /// Lipschitz-restricted: uniform within `sqrt(1 / inputs)` (Xu et al. 2020).
    Lri,
    /// Xavier, smaller with depth (Zhang et al. 2019).
    DsInit,
    /// Xavier with factors that make normalisation and warm-up unnecessary (Huang et al. 2020).
    TFixup,
    /// Xavier with `beta = (8 layers)^(-1/4)` on values, attention output and feed-forward block (Wang et al. 2022).
    #[serde(rename = "deepnorm")]
    DeepNorm,
    /// Maximal update parametrisation: initial variances, multipliers and learning rates by width (Yang et al. 2022).
    #[serde(rename = "mup")]
    MuP,
}

/// Shape of the distribution that an initialisation draws from; its variance stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Uniform around zero.
    Uniform,
    /// Normal.
    Normal,
}

/// Form of DS-Init.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DsInitForm {
    /// As printed: the bound shrinks with `depth^(-1/2)`.
    #[default]
    Paper,
    /// As in the authors' code, which scales the variance instead: the bound shrinks with `depth^(-1/4)`.
    Code,
}
