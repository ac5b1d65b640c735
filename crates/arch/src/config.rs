//! The `[model]` table: raw configuration and the checked model that it resolves to.

use crate::named::{NAMED, named};
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
}

/// Non-linearity of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationChoice {
    /// ReLU.
    Relu,
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
    /// Rotary embedding of queries and keys, halves layout (Llama as in Hugging Face).
    Rope,
}

/// The `[model]` table of a recipe. A key that is left out comes from the named architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Named architecture that fills the keys left out: gpt2, gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1.5b, llama,
    /// llama-1b, llama-3b, llama-8b, llama2-7b, llama2-70b, mistral-7b. "gpt2" and "llama" are small models of that style.
    pub architecture: String,
    /// Vocabulary size; 0 takes it from the tokenizer.
    pub vocab_size: u64,
    /// Transformer layers.
    pub layers: Option<u64>,
    /// Width of the residual stream (d_model).
    pub width: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key/value heads; a divisor of `heads`. Equal to `heads`: multi-head; 1: multi-query; between: grouped-query.
    pub kv_heads: Option<u64>,
    /// Width of a head; left out: width / heads.
    pub head_dim: Option<u64>,
    /// Width of the feed-forward block.
    pub ffn_width: Option<u64>,
    /// Longest sequence that the model can read (positions).
    pub context: Option<u64>,
    /// Normalisation.
    pub norm: Option<NormChoice>,
    /// Added to the variance in a normalisation.
    pub norm_eps: Option<f64>,
    /// Feed-forward non-linearity.
    pub activation: Option<ActivationChoice>,
    /// How positions enter.
    pub positions: Option<PositionChoice>,
    /// Base of the rotary angles.
    pub rope_theta: Option<f64>,
    /// Biases in linear layers and LayerNorm.
    pub bias: Option<bool>,
    /// Output projection shares the token embedding's weights.
    pub tied_embeddings: Option<bool>,
    /// Dropout on embeddings, attention weights and residual branches while training.
    pub dropout: f64,
    /// Standard deviation of the Gaussian initialisation; residual outputs get it divided by sqrt(2 layers) (GPT-2).
    pub init_std: f64,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            architecture: "gpt2".into(),
            vocab_size: 0,
            layers: None,
            width: None,
            heads: None,
            kv_heads: None,
            head_dim: None,
            ffn_width: None,
            context: None,
            norm: None,
            norm_eps: None,
            activation: None,
            positions: None,
            rope_theta: None,
            bias: None,
            tied_embeddings: None,
            dropout: 0.0,
            init_std: 0.02,
        }
    }
}

/// A `[model]` table that cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("model.{key}: {problem}")]
pub struct ArchError {
    /// Key of the table.
    pub key: &'static str,
    /// What was wanted and found.
    pub problem: String,
}

/// Feed-forward block of a resolved model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(f(up x))`.
    Plain,
    /// `down(f(gate x) * up x)`; gate and up are one fused matrix.
    Gated,
}

/// A decoder-only transformer that can be built: every size known and consistent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// V.
    pub vocab_size: usize,
    /// L.
    pub layers: usize,
    /// D, width of the residual stream.
    pub width: usize,
    /// H, query heads.
    pub heads: usize,
    /// G, key/value heads.
    pub kv_heads: usize,
    /// E, width of a head.
    pub head_dim: usize,
    /// F, width of the feed-forward block.
    pub ffn_width: usize,
    /// T, longest sequence.
    pub context: usize,
    /// Normalisation.
    pub norm: NormChoice,
    /// Added to the variance.
    pub norm_eps: f64,
    /// Feed-forward non-linearity.
    pub activation: ActivationChoice,
    /// How positions enter.
    pub positions: PositionChoice,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Biases in linear layers and LayerNorm.
    pub bias: bool,
    /// Output projection shares the token embedding.
    pub tied_embeddings: bool,
    /// Dropout while training.
    pub dropout: f64,
    /// Standard deviation of the Gaussian initialisation.
    pub init_std: f64,
}

impl ModelConfig {
    /// Checks what can be checked before the tokenizer is known.
    pub fn check(&self) -> Result<(), ArchError> {
        self.resolve(if self.vocab_size == 0 { Some(1) } else { None }).map(|_| ())
    }

    /// The model that this table means. `tokenizer_vocab` is the tokenizer's size, if known; it must agree with
    /// `vocab_size` unless that is 0.
    pub fn resolve(&self, tokenizer_vocab: Option<usize>) -> Result<Model, ArchError> {
        let base = named(&self.architecture).ok_or_else(|| ArchError {
            key: "architecture",
            problem: format!("unknown name {:?}; known: {}", self.architecture, NAMED.join(", ")),
        })?;
        let vocab_size = match (self.vocab_size as usize, tokenizer_vocab) {
            (0, Some(v)) => v,
            (0, None) => {
                return Err(ArchError {
                    key: "vocab_size",
                    problem: "0 means the tokenizer's size, but there is no tokenizer yet".into(),
                });
            }
            (v, Some(t)) if v < t => {
                return Err(ArchError {
                    key: "vocab_size",
                    problem: format!(
                        "the model has {v} rows but the tokenizer has {t} tokens; set 0 to take the tokenizer's size"
                    ),
                });
            }
            (v, _) => v,
        };
        let layers = positive("layers", self.layers, base.layers, 10_000)?;
        let width = positive("width", self.width, base.width, 1 << 20)?;
        let heads = positive("heads", self.heads, base.heads, 1 << 16)?;
        // A changed number of heads leaves the base's grouping only if it was written too.
        let kv_default = if self.heads.is_some() && self.kv_heads.is_none() { heads } else { base.kv_heads };
        let kv_heads = positive("kv_heads", self.kv_heads, kv_default, 1 << 16)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(ArchError {
                key: "kv_heads",
                problem: format!("{kv_heads} does not divide {heads} heads"),
            });
        }
        let head_dim = match self.head_dim {
            Some(_) => positive("head_dim", self.head_dim, 1, 4096)?,
            None if self.width.is_none() && self.heads.is_none() => base.head_dim,
            None if width.is_multiple_of(heads) => width / heads,
            None => {
                return Err(ArchError {
                    key: "heads",
                    problem: format!(
                        "{heads} heads do not divide width {width}; change one of them or set head_dim"
                    ),
                });
            }
        };
        let activation = self.activation.unwrap_or(base.activation);
        let gated = matches!(activation, ActivationChoice::Swiglu | ActivationChoice::Geglu);
        // The field's defaults: 4 widths, or 8/3 widths rounded up to a multiple of 64 for a gated block (same FLOPs).
        let ffn_default = match self.width {
            None => base.ffn_width,
            Some(_) if gated => (8 * width).div_ceil(3).next_multiple_of(64),
            Some(_) => 4 * width,
        };
        let ffn_width = positive("ffn_width", self.ffn_width, ffn_default, 1 << 22)?;
        let context = positive("context", self.context, base.context, 1 << 24)?;
        let positions = self.positions.unwrap_or(base.positions);
        if positions == PositionChoice::Rope && !head_dim.is_multiple_of(2) {
            return Err(ArchError {
                key: "head_dim",
                problem: format!("rotary positions need an even head width, found {head_dim}"),
            });
        }
        let norm_eps = ranged("norm_eps", self.norm_eps.unwrap_or(base.norm_eps), 0.0, 1.0)?;
        let rope_theta = ranged("rope_theta", self.rope_theta.unwrap_or(base.rope_theta), 1.0, 1e12)?;
        let dropout = ranged("dropout", self.dropout, 0.0, 0.99)?;
        let init_std = ranged("init_std", self.init_std, 0.0, 10.0)?;
        Ok(Model {
            vocab_size,
            layers,
            width,
            heads,
            kv_heads,
            head_dim,
            ffn_width,
            context,
            norm: self.norm.unwrap_or(base.norm),
            norm_eps,
            activation,
            positions,
            rope_theta,
            bias: self.bias.unwrap_or(base.bias),
            tied_embeddings: self.tied_embeddings.unwrap_or(base.tied_embeddings),
            dropout,
            init_std,
        })
    }
}

fn positive(key: &'static str, value: Option<u64>, default: usize, most: u64) -> Result<usize, ArchError> {
    match value {
        None => Ok(default),
        Some(v) if (1..=most).contains(&v) => Ok(v as usize),
        Some(v) => Err(ArchError { key, problem: format!("wanted 1 to {most}, found {v}") }),
    }
}

fn ranged(key: &'static str, value: f64, least: f64, most: f64) -> Result<f64, ArchError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(ArchError { key, problem: format!("wanted {least} to {most}, found {value}") })
}

impl Model {
    /// Whether the feed-forward block is gated.
    pub fn mlp(&self) -> MlpKind {
        match self.activation {
            ActivationChoice::Swiglu | ActivationChoice::Geglu => MlpKind::Gated,
            _ => MlpKind::Plain,
        }
    }

    /// Columns of the fused query, key and value projection: (H + 2G) E.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// H E, columns of the attention's output before its projection.
    pub fn attention_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the first feed-forward matrix: F, or 2F for a gated block.
    pub fn mlp_in_width(&self) -> usize {
        match self.mlp() {
            MlpKind::Plain => self.ffn_width,
            MlpKind::Gated => 2 * self.ffn_width,
        }
    }

    /// One line for people: "gpt2 style, 12 layers x 768, 12 heads, vocabulary 50257, 124M parameters".
    pub fn summary(&self) -> String {
        let style = match self.norm {
            NormChoice::LayerNorm => "gpt2 style",
            NormChoice::RmsNorm => "llama style",
        };
        let heads = if self.heads == self.kv_heads {
            format!("{} heads", self.heads)
        } else {
            format!("{} heads ({} kv)", self.heads, self.kv_heads)
        };
        format!(
            "{style}, {} layers x {}, {heads}, vocabulary {}, context {}, {} parameters",
            self.layers,
            self.width,
            self.vocab_size,
            self.context,
            bessemer_units::Tokens(self.parameters() as u64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_and_impossible_sizes_are_refused_by_key() {
        let bad = [
            (ModelConfig { architecture: "gtp2".into(), ..Default::default() }, "model.architecture"),
            (ModelConfig { heads: Some(5), width: Some(64), ..Default::default() }, "model.heads"),
            (
                ModelConfig { heads: Some(4), kv_heads: Some(3), width: Some(64), ..Default::default() },
                "model.kv_heads",
            ),
            (ModelConfig { layers: Some(0), ..Default::default() }, "model.layers"),
            (ModelConfig { dropout: 1.5, ..Default::default() }, "model.dropout"),
            (ModelConfig { dropout: f64::NAN, ..Default::default() }, "model.dropout"),
        ];
        for (config, key) in bad {
            let e = config.check().unwrap_err().to_string();
            assert!(e.starts_with(key), "{e}");
        }
    }

    #[test]
    fn vocabulary_must_hold_the_tokenizer() {
        let c = ModelConfig { vocab_size: 100, ..Default::default() };
        assert!(c.resolve(Some(101)).unwrap_err().to_string().contains("101 tokens"));
        assert_eq!(c.resolve(Some(99)).unwrap().vocab_size, 100);
        assert_eq!(ModelConfig::default().resolve(Some(99)).unwrap().vocab_size, 99);
    }

    #[test]
    fn a_new_width_gives_the_usual_feed_forward_width() {
        let c = ModelConfig { width: Some(256), heads: Some(4), ..Default::default() };
        assert_eq!(c.resolve(Some(9)).unwrap().ffn_width, 1024);
        let c = ModelConfig {
            architecture: "llama".into(),
            width: Some(256),
            heads: Some(4),
            ..Default::default()
        };
        assert_eq!(c.resolve(Some(9)).unwrap().ffn_width, 704);
    }
}
