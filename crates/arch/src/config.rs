//! The `[model]` table: what was written, and the checks that make a [`Model`] of it.

use crate::adapters::Adapters;
use crate::choices::{
    ActivationChoice, Distribution, DsInitForm, InitChoice, NormChoice, Placement, PositionChoice,
    QkNormSpan, RopeScaling, RopeScalingKind,
};
use crate::experts::{Experts, ExpertsConfig};
use crate::gates::{ExpertTraining, Gate};
use crate::model::Model;
use crate::named::{NAMED, named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `[model]` table of a recipe. A key that is left out comes from the named architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Named architecture that fills the keys left out: gpt2, gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1.5b, llama,
    /// llama-1b, llama-3b, llama-8b, llama2-7b, llama2-70b, mistral-7b, qwen2.5-0.5b, qwen3-0.6b, mixtral, pr-moe, mixtral-8x7b, qwen1.5-moe-a2.7b, qwen3-30b-a3b, olmoe-1b-7b. "gpt2", "llama", "mixtral" and "pr-moe" are small
    /// models of that style.
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
    /// Experts in place of feed-forward blocks.
    pub experts: Option<ExpertsConfig>,
    /// Low-rank adapters, which are trained while all else is frozen (LoRA). See docs/finetuning.md.
    pub adapters: Option<Adapters>,
    /// Longest sequence that the model can read (positions).
    pub context: Option<u64>,
    /// Normalisation.
    pub norm: Option<NormChoice>,
    /// Where the normalisations stand: before each block, after each residual sum, or after a sum with DeepNorm's factor
    /// (2 layers)^(1/4) on the stream.
    pub placement: Placement,
    /// Added to the variance in a normalisation.
    pub norm_eps: Option<f64>,
    /// Feed-forward non-linearity.
    pub activation: Option<ActivationChoice>,
    /// How positions enter.
    pub positions: Option<PositionChoice>,
    /// Base of the rotary angles.
    pub rope_theta: Option<f64>,
    /// How rotary angles are stretched past the length of an earlier training.
    pub rope_scaling: Option<RopeScaling>,
    /// Sliding window: positions that a query sees at most, its own included (Mistral). Left out: the
    /// architecture's, else all before it.
    pub window: Option<u64>,
    /// Attention stays within a document and positions restart with each, where several are packed into one sequence.
    /// Documents end with the tokenizer's end-of-text token.
    pub document_mask: bool,
    /// RMSNorm over queries and keys, before rotary positions (Qwen3).
    pub qk_norm: Option<bool>,
    /// Columns that `qk_norm` normalises together. Left out: the architecture's, else each head by itself.
    pub qk_norm_span: Option<QkNormSpan>,
    /// Factor on the token embedding. Left out: 1 with init `gpt2` and `mup` unless positions are sinusoidal, sqrt(width)
    /// otherwise, as in the papers.
    pub embedding_scale: Option<f64>,
    /// Biases in linear layers and LayerNorm.
    pub bias: Option<bool>,
    /// Biases of the query, key and value projections although `bias` is false (Qwen2, Qwen2.5).
    pub qkv_bias: Option<bool>,
    /// Output projection shares the token embedding's weights.
    pub tied_embeddings: Option<bool>,
    /// Dropout on embeddings, attention weights and residual branches while training.
    pub dropout: f64,
    /// How the initial weights are drawn. Left out: `deepnorm` with that placement, `gpt2` otherwise.
    pub init: Option<InitChoice>,
    /// Standard deviation of init `gpt2` and of `mup` at its base width; residual outputs get it divided by sqrt(2 layers).
    pub init_std: f64,
    /// Distribution of the other initialisations, with the same variance. Left out: normal for `deepnorm`, uniform
    /// otherwise.
    pub init_distribution: Option<Distribution>,
    /// Gain of `xavier`, alpha of `ds-init`.
    pub init_gain: f64,
    /// Form of `ds-init`: bounds shrink with depth^(-1/2) as printed, or with depth^(-1/4) as in the authors' code.
    pub ds_init: DsInitForm,
    /// Width of the model that hyper-parameters were tuned on; needed by init `mup`.
    pub mup_base_width: Option<u64>,
    /// Head width of that model, if wider models have wider heads rather than more; only with init `mup`.
    pub mup_base_head_dim: Option<u64>,
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
            experts: None,
            adapters: None,
            context: None,
            norm: None,
            placement: Placement::Pre,
            norm_eps: None,
            activation: None,
            positions: None,
            rope_theta: None,
            rope_scaling: None,
            window: None,
            document_mask: false,
            qk_norm: None,
            qk_norm_span: None,
            embedding_scale: None,
            bias: None,
            qkv_bias: None,
            tied_embeddings: None,
            dropout: 0.0,
            init: None,
            init_std: 0.02,
            init_distribution: None,
            init_gain: 1.0,
            ds_init: DsInitForm::Paper,
            mup_base_width: None,
            mup_base_head_dim: None,
        }
    }
}

/// Largest sizes of a model, each from 1.
pub(crate) mod limits {
    pub(crate) const VOCABULARY: u64 = 1 << 28;
    pub(crate) const LAYERS: u64 = 10_000;
    pub(crate) const WIDTH: u64 = 1 << 20;
    pub(crate) const HEADS: u64 = 1 << 16;
    pub(crate) const HEAD_DIM: u64 = 4096;
    pub(crate) const FFN_WIDTH: u64 = 1 << 22;
    pub(crate) const CONTEXT: u64 = 1 << 24;
    pub(crate) const EXPERTS: u64 = 1 << 14;
}

/// Sizes that a `[model]` table gives.
struct Sizes {
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn_width: usize,
    context: usize,
}

/// A `[model]` table that cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("model.{key}: {problem}")]
pub struct ArchError {
    /// Key of the table.
    pub key: &'static str,
    /// Description: what was wanted and found.
    pub problem: String,
}

impl ModelConfig {
    /// The table that resolves to this model, with every key written.
    pub fn of(model: &Model) -> ModelConfig {
        let size = |size: usize| Some(size as u64);
        ModelConfig {
            // A name for readers: every key that it has a default for is written.
            architecture: if model.norm == NormChoice::RmsNorm { "llama" } else { "gpt2" }.into(),
            vocab_size: model.vocab_size as u64,
            layers: size(model.layers),
            width: size(model.width),
            heads: size(model.heads),
            kv_heads: size(model.kv_heads),
            head_dim: size(model.head_dim),
            ffn_width: size(model.ffn_width),
            experts: model.experts.as_ref().map(|experts| {
                ExpertsConfig::of(experts, &model.expert_layers, &model.expert_counts, model.shared_expert)
            }),
            adapters: model.adapters.clone(),
            context: size(model.context),
            norm: Some(model.norm),
            placement: model.placement,
            norm_eps: Some(model.norm_eps),
            activation: Some(model.activation),
            positions: Some(model.positions),
            rope_theta: Some(model.rope_theta),
            rope_scaling: model.rope_scaling,
            window: model.window.map(|window| window as u64),
            document_mask: model.document_end.is_some(),
            qk_norm: Some(model.qk_norm),
            qk_norm_span: model.qk_norm.then_some(model.qk_norm_span),
            embedding_scale: Some(model.embedding_scale),
            bias: Some(model.bias),
            // With biases everywhere the key says nothing.
            qkv_bias: (!model.bias).then_some(model.qkv_bias),
            tied_embeddings: Some(model.tied_embeddings),
            dropout: model.dropout,
            init: Some(model.init),
            init_std: model.init_std,
            init_distribution: model.init_distribution,
            init_gain: model.init_gain,
            ds_init: model.ds_init,
            mup_base_width: model.mup_base_width.map(|width| width as u64),
            mup_base_head_dim: model.mup_base_head_dim.map(|width| width as u64),
        }
    }

    /// Checks what can be checked before the tokenizer is known.
    pub fn check(&self) -> Result<(), ArchError> {
        self.resolve(if self.vocab_size == 0 { Some(1) } else { None }).map(|_| ())
    }

    /// The model that this table means. `tokenizer_vocab` is the tokenizer's size, if known; it must agree with
    /// `vocab_size` unless that is 0.
    pub fn resolve(&self, tokenizer_vocab: Option<usize>) -> Result<Model, ArchError> {
        let base = named(&self.architecture).ok_or_else(|| ArchError {
            key: "architecture",
            problem: format!(
                "unknown name {:?}{}; known: {}",
                self.architecture,
                bessemer_units::did_you_mean(&self.architecture, NAMED.iter().copied()),
                NAMED.join(", ")
            ),
        })?;
        let vocab_size = self.vocabulary(tokenizer_vocab)?;
        let sizes = self.sizes(&base)?;
        let positions = self.positions.unwrap_or(base.positions);
        if positions == PositionChoice::Rope && !sizes.head_dim.is_multiple_of(2) {
            return Err(ArchError {
                key: "head_dim",
                problem: format!("rotary positions need an even head width, found {}", sizes.head_dim),
            });
        }
        let norm = self.norm.unwrap_or(base.norm);
        if norm == NormChoice::None && self.placement != Placement::Pre {
            return Err(ArchError {
                key: "placement",
                problem: "post and deepnorm place normalisations, but norm = \"none\" has none; set \
                          placement = \"pre\""
                    .into(),
            });
        }
        let init = self.chosen_init()?;
        let bias = self.bias.unwrap_or(base.bias);
        let norm_eps = ranged("norm_eps", self.norm_eps.unwrap_or(base.norm_eps), 0.0, 1.0)?;
        let rope_theta = ranged("rope_theta", self.rope_theta.unwrap_or(base.rope_theta), 1.0, 1e12)?;
        let dropout = ranged("dropout", self.dropout, 0.0, 0.99)?;
        let init_std = ranged("init_std", self.init_std, 0.0, 10.0)?;
        let (written, experts) = (self.experts.as_ref(), self.experts(&base, sizes.ffn_width)?);
        let expert_layers = written.and_then(|e| e.layers.clone()).unwrap_or(base.expert_layers);
        let expert_counts = match written {
            Some(written) => written.resolve_counts(&base.expert_counts, &expert_layers, sizes.layers)?,
            None => base.expert_counts,
        };
        let qk_norm = self.qk_norm.unwrap_or(base.qk_norm);
        let model = Model {
            vocab_size,
            layers: sizes.layers,
            width: sizes.width,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            ffn_width: sizes.ffn_width,
            experts,
            expert_layers,
            expert_counts,
            shared_expert: match written {
                Some(experts) => experts.resolve_shared(base.shared_expert)?,
                None => base.shared_expert,
            },
            adapters: self.adapters.clone(),
            context: sizes.context,
            norm,
            placement: self.placement,
            norm_eps,
            activation: self.activation.unwrap_or(base.activation),
            positions,
            rope_theta,
            rope_scaling: self.check_rope_scaling(base.rope_scaling, positions)?,
            window: optional("window", self.window, limits::CONTEXT)?.or(base.window),
            document_end: None,
            qk_norm,
            qk_norm_span: self.resolved_qk_norm_span(qk_norm, base.qk_norm_span)?,
            embedding_scale: self.resolved_embedding_scale(init, positions, sizes.width)?,
            bias,
            qkv_bias: self.resolved_qkv_bias(bias, base.qkv_bias)?,
            tied_embeddings: self.tied_embeddings.unwrap_or(base.tied_embeddings),
            dropout,
            init_std,
            init,
            init_distribution: self.init_distribution,
            init_gain: ranged("init_gain", self.init_gain, 0.0, 100.0)?,
            ds_init: self.ds_init,
            mup_base_width: optional("mup_base_width", self.mup_base_width, limits::WIDTH)?,
            mup_base_head_dim: optional("mup_base_head_dim", self.mup_base_head_dim, limits::HEAD_DIM)?,
        };
        model.check_experts()?;
        model.check_adapters()?;
        Ok(model)
    }

    fn resolved_qk_norm_span(&self, qk_norm: bool, base: QkNormSpan) -> Result<QkNormSpan, ArchError> {
        match self.qk_norm_span {
            Some(_) if !qk_norm => Err(ArchError {
                key: "qk_norm_span",
                problem: "queries and keys are not normalised; take this out or set qk_norm = true".into(),
            }),
            written => Ok(if qk_norm { written.unwrap_or(base) } else { QkNormSpan::Head }),
        }
    }

    /// The experts of the model, whose feed-forward blocks are `ffn_width` wide.
    fn experts(&self, base: &Model, ffn_width: usize) -> Result<Option<Experts>, ArchError> {
        let follows = |experts: &Experts| experts.width == base.ffn_width;
        let base = base.experts.map(|experts| match follows(&experts) {
            true => Experts { width: ffn_width, ..experts },
            false => experts,
        });
        match &self.experts {
            Some(experts) => experts.resolve(base, ffn_width).map(Some),
            None => Ok(base),
        }
    }

    /// Weights of the losses of experts, and the rate of their biases; zeros without experts, and of a table that cannot be.
    pub fn expert_training(&self) -> ExpertTraining {
        let base = named(&self.architecture).and_then(|model| model.experts);
        let written = self.experts.clone().or_else(|| base.map(|_| ExpertsConfig::default()));
        let training = |table: ExpertsConfig| {
            let gate = table.resolve_gate(base.map_or_else(Gate::default, |experts| experts.gate))?;
            table.training(&gate)
        };
        written.map(training).and_then(Result::ok).unwrap_or_default()
    }

    /// Numbers of sequences that must divide those of a micro-batch: groups of capacities and of balance losses.
    pub fn sequences_multiple(&self) -> [u64; 2] {
        let written = self.experts.as_ref();
        let balance = written.and_then(|experts| experts.balance_over?.sequences()).unwrap_or(1);
        let capacity = written.and_then(|experts| experts.capacity_sequences).unwrap_or(1);
        [balance as u64, capacity].map(|of| of.clamp(1, 1 << 20))
    }

    /// Rows of the token table.
    fn vocabulary(&self, tokenizer_vocab: Option<usize>) -> Result<usize, ArchError> {
        match (self.vocab_size as usize, tokenizer_vocab) {
            (0, Some(v)) => Ok(v),
            (0, None) => Err(ArchError {
                key: "vocab_size",
                problem: "0 means the tokenizer's size, but there is no tokenizer yet".into(),
            }),
            (v, Some(t)) if v < t => Err(ArchError {
                key: "vocab_size",
                problem: format!(
                    "the model has {v} rows but the tokenizer has {t} tokens; set 0 to take the tokenizer's size"
                ),
            }),
            (v, _) => Ok(v),
        }
    }

    /// Layers, widths, heads and context: the written value; else, where a size that it follows from was changed, the value
    /// that follows; else the base's.
    fn sizes(&self, base: &Model) -> Result<Sizes, ArchError> {
        let layers = positive("layers", self.layers, base.layers, limits::LAYERS)?;
        let width = positive("width", self.width, base.width, limits::WIDTH)?;
        let heads = positive("heads", self.heads, base.heads, limits::HEADS)?;
        // What follows from other sizes follows from changed ones: a size that repeats the base's is as if left out.
        let (new_width, new_heads) = (width != base.width, heads != base.heads);
        let kv_default = if new_heads { heads } else { base.kv_heads };
        let kv_heads = positive("kv_heads", self.kv_heads, kv_default, limits::HEADS)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(ArchError {
                key: "kv_heads",
                problem: format!("{kv_heads} does not divide {heads} heads"),
            });
        }
        let head_dim = match self.head_dim {
            Some(_) => positive("head_dim", self.head_dim, 1, limits::HEAD_DIM)?,
            None if !new_width && !new_heads => base.head_dim,
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
        let ffn_default = match new_width {
            false => base.ffn_width,
            true if gated => (8 * width).div_ceil(3).next_multiple_of(64),
            true => 4 * width,
        };
        let ffn_width = positive("ffn_width", self.ffn_width, ffn_default, limits::FFN_WIDTH)?;
        let context = positive("context", self.context, base.context, limits::CONTEXT)?;
        Ok(Sizes { layers, width, heads, kv_heads, head_dim, ffn_width, context })
    }

    /// The initialisation, with the keys that only some read checked.
    fn chosen_init(&self) -> Result<InitChoice, ArchError> {
        let init = self.init.unwrap_or(match self.placement {
            Placement::DeepNorm => InitChoice::DeepNorm,
            _ => InitChoice::Gpt2,
        });
        self.check_init(init)?;
        Ok(init)
    }

    /// Whether queries, keys and values alone have biases. `bias = true` includes theirs.
    fn resolved_qkv_bias(&self, bias: bool, base: bool) -> Result<bool, ArchError> {
        match (bias, self.qkv_bias) {
            (true, Some(false)) => Err(ArchError {
                key: "qkv_bias",
                problem: "false, but bias = true gives every linear layer a bias; set bias = false or take this out"
                    .into(),
            }),
            (true, _) => Ok(false),
            (false, written) => Ok(written.unwrap_or(base)),
        }
    }

    /// The factor on the token embedding: what is written, else the one of the initialisation's paper.
    fn resolved_embedding_scale(
        &self,
        init: InitChoice,
        positions: PositionChoice,
        width: usize,
    ) -> Result<f64, ArchError> {
        let usual = match (init, positions) {
            (InitChoice::Gpt2 | InitChoice::MuP, PositionChoice::Sinusoidal) => (width as f64).sqrt(),
            (InitChoice::Gpt2 | InitChoice::MuP, _) => 1.0,
            _ => (width as f64).sqrt(),
        };
        ranged("embedding_scale", self.embedding_scale.unwrap_or(usual), 1e-6, 1e6)
    }

    /// As [`ModelConfig::resolve`], for a tokenizer whose texts end with `end_of_text`: with `document_mask` the model
    /// then knows where documents end.
    pub fn resolve_for(&self, tokenizer_vocab: usize, end_of_text: Option<u32>) -> Result<Model, ArchError> {
        let mut model = self.resolve(Some(tokenizer_vocab))?;
        if self.document_mask {
            model.document_end =
                Some(
                    end_of_text.ok_or_else(|| ArchError {
                        key: "document_mask",
                        problem:
                            "documents are separated by the end-of-text token, and this tokenizer has none"
                                .into(),
                    })?,
                );
        }
        Ok(model)
    }

    fn check_rope_scaling(
        &self,
        base: Option<RopeScaling>,
        positions: PositionChoice,
    ) -> Result<Option<RopeScaling>, ArchError> {
        let wrong = |problem: String| Err(ArchError { key: "rope_scaling", problem });
        if positions != PositionChoice::Rope {
            return match self.rope_scaling {
                Some(_) => wrong("scales rotary positions, and this model has none".into()),
                None => Ok(None),
            };
        }
        let Some(s) = self.rope_scaling.or(base) else { return Ok(None) };
        if !(1.0..=1e6).contains(&s.factor) {
            return wrong(format!("factor: wanted 1 to 1000000, found {}", s.factor));
        }
        let waves =
            s.low_freq_factor > 0.0 && s.high_freq_factor > s.low_freq_factor && s.high_freq_factor <= 1e6;
        if s.kind == RopeScalingKind::Llama3 && !waves {
            return wrong(format!(
                "wanted 0 < low_freq_factor < high_freq_factor, found {} and {}",
                s.low_freq_factor, s.high_freq_factor
            ));
        }
        if !(1..=1 << 24).contains(&s.original_context) {
            return wrong(format!("original_context: wanted 1 to {}, found {}", 1 << 24, s.original_context));
        }
        Ok(Some(s))
    }

    /// Keys that only some initialisations read.
    fn check_init(&self, init: InitChoice) -> Result<(), ArchError> {
        let is_mup = init == InitChoice::MuP;
        let gains = matches!(init, InitChoice::Xavier | InitChoice::DsInit);
        let shaped = !matches!(init, InitChoice::Gpt2 | InitChoice::MuP);
        let foreign = [
            ("init_distribution", self.init_distribution.is_some() && !shaped, "gpt2 and mup are normal"),
            ("init_gain", self.init_gain != 1.0 && !gains, "only xavier and ds-init have a gain"),
            (
                "ds_init",
                self.ds_init != DsInitForm::Paper && init != InitChoice::DsInit,
                "only ds-init reads it",
            ),
            ("mup_base_width", self.mup_base_width.is_some() && !is_mup, "only init = \"mup\" reads it"),
            (
                "mup_base_head_dim",
                self.mup_base_head_dim.is_some() && !is_mup,
                "only init = \"mup\" reads it",
            ),
        ];
        if let Some((key, _, problem)) = foreign.into_iter().find(|f| f.1) {
            return Err(ArchError { key, problem: format!("{problem}; take it out or choose another init") });
        }
        if is_mup && self.mup_base_width.is_none() {
            return Err(ArchError {
                key: "mup_base_width",
                problem:
                    "init = \"mup\" needs the width of the model that its hyper-parameters were tuned on"
                        .into(),
            });
        }
        Ok(())
    }
}

/// A size that may be left out.
fn optional(key: &'static str, value: Option<u64>, most: u64) -> Result<Option<usize>, ArchError> {
    value.map(|_| positive(key, value, 1, most)).transpose()
}

pub(crate) fn positive(
    key: &'static str,
    value: Option<u64>,
    default: usize,
    most: u64,
) -> Result<usize, ArchError> {
    match value {
        None => Ok(default),
        Some(v) if (1..=most).contains(&v) => Ok(v as usize),
        Some(v) => Err(ArchError { key, problem: format!("wanted 1 to {most}, found {v}") }),
    }
}

pub(crate) fn ranged(key: &'static str, value: f64, least: f64, most: f64) -> Result<f64, ArchError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(ArchError { key, problem: format!("wanted {least} to {most}, found {value}") })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
