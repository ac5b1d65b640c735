//! A decoder-only transformer that can be built.

use crate::adapters::Adapters;
use crate::choices::{
    ActivationChoice, Distribution, DsInitForm, InitChoice, NormChoice, Placement, PositionChoice,
    QkNormSpan, RopeScaling,
};
use crate::config::{ArchError, limits, positive, ranged};
use crate::experts::{ExpertLayers, Experts, SharedExpert};
use serde::{Deserialize, Serialize};

/// Feed-forward block of a resolved model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(f(up x))`.
    Plain,
    /// `down(f(gate x) * up x)`; gate and up are one fused matrix.
    Gated,
}

fn one() -> f64 {
    1.0
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
    /// Experts in place of feed-forward blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Layers that have experts, if the model has any.
    #[serde(default, skip_serializing_if = "ExpertLayers::is_all")]
    pub expert_layers: ExpertLayers,
    /// Experts of each layer that has some, where they differ (Rajbhandari et al. 2022, PR-MoE's pyramid); empty: as many in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_counts: Vec<usize>,
    /// Block beside the experts of a layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_expert: Option<SharedExpert>,
    /// Low-rank matrices beside linear maps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Adapters>,
    /// T, longest sequence.
    pub context: usize,
    /// Normalisation.
    pub norm: NormChoice,
    /// Position of the normalisations.
    #[serde(default)]
    pub placement: Placement,
    /// Added to the variance.
    pub norm_eps: f64,
    /// Feed-forward non-linearity.
    pub activation: ActivationChoice,
    /// How positions enter.
    pub positions: PositionChoice,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// How the rotary angles are stretched.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    /// Positions that a query sees at most, its own included; `None`: all before it.
    #[serde(default)]
    pub window: Option<usize>,
    /// Token that ends a document, if attention and positions are those of each document by itself.
    #[serde(default)]
    pub document_end: Option<u32>,
    /// RMSNorm over queries and keys.
    #[serde(default)]
    pub qk_norm: bool,
    /// Columns that it normalises together.
    #[serde(default, skip_serializing_if = "QkNormSpan::is_head")]
    pub qk_norm_span: QkNormSpan,
    /// Factor on the token embedding.
    #[serde(default = "one")]
    pub embedding_scale: f64,
    /// Biases in linear layers and LayerNorm.
    pub bias: bool,
    /// Biases of the query, key and value projections although `bias` is false; false where `bias` is true.
    #[serde(default)]
    pub qkv_bias: bool,
    /// Output projection shares the token embedding.
    pub tied_embeddings: bool,
    /// Dropout while training.
    pub dropout: f64,
    /// Standard deviation of the Gaussian initialisation.
    pub init_std: f64,
    /// How the initial weights are drawn.
    #[serde(default)]
    pub init: InitChoice,
    /// Shape of the distribution, where it is not the usual one.
    #[serde(default)]
    pub init_distribution: Option<Distribution>,
    /// Gain of Xavier and DS-Init.
    #[serde(default = "one")]
    pub init_gain: f64,
    /// Form of DS-Init.
    #[serde(default)]
    pub ds_init: DsInitForm,
    /// Width at which muP changes nothing.
    #[serde(default)]
    pub mup_base_width: Option<usize>,
    /// Head width of the model of that width; `None`: the same as here.
    #[serde(default)]
    pub mup_base_head_dim: Option<usize>,
}

impl Model {
    /// Whether a token's results depend on no later token, so that the model can generate text.
    pub fn is_causal(&self) -> bool {
        self.experts.is_none_or(|experts| experts.gate.is_causal())
    }

    /// Checks every size and factor against the ranges of the `[model]` table, for models that come from files: before
    /// anything is listed, planned or made of one.
    ///
    /// # Errors
    /// The first key that is out of its range.
    pub fn check(&self) -> Result<(), ArchError> {
        let sizes = [
            ("vocab_size", self.vocab_size, limits::VOCABULARY),
            ("layers", self.layers, limits::LAYERS),
            ("width", self.width, limits::WIDTH),
            ("heads", self.heads, limits::HEADS),
            ("kv_heads", self.kv_heads, limits::HEADS),
            // Left out of a recipe it is width / heads, whatever that is.
            ("head_dim", self.head_dim, limits::WIDTH),
            ("ffn_width", self.ffn_width, limits::FFN_WIDTH),
            ("context", self.context, limits::CONTEXT),
            ("window", self.window.unwrap_or(1), limits::CONTEXT),
            ("mup_base_width", self.mup_base_width.unwrap_or(1), limits::WIDTH),
            ("mup_base_head_dim", self.mup_base_head_dim.unwrap_or(1), limits::HEAD_DIM),
        ];
        for (key, value, most) in sizes {
            positive(key, Some(value as u64), 1, most)?;
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("{} does not divide {} heads", self.kv_heads, self.heads);
            return Err(ArchError { key: "kv_heads", problem });
        }
        if self.positions == PositionChoice::Rope && !self.head_dim.is_multiple_of(2) {
            let problem = format!("rotary positions need an even head width, found {}", self.head_dim);
            return Err(ArchError { key: "head_dim", problem });
        }
        let factors = [
            ("norm_eps", self.norm_eps, 0.0, 1.0),
            ("rope_theta", self.rope_theta, 1.0, 1e12),
            ("embedding_scale", self.embedding_scale, 1e-6, 1e6),
            ("dropout", self.dropout, 0.0, 0.99),
            ("init_std", self.init_std, 0.0, 10.0),
            ("init_gain", self.init_gain, 0.0, 100.0),
        ];
        for (key, value, least, most) in factors {
            ranged(key, value, least, most)?;
        }
        self.check_experts()?;
        self.check_adapters()
    }

    /// Whether the feed-forward block is gated.
    pub fn mlp(&self) -> MlpKind {
        match self.activation {
            ActivationChoice::Swiglu | ActivationChoice::Geglu => MlpKind::Gated,
            _ => MlpKind::Plain,
        }
    }

    /// Stretches of so many heads that QK-norm normalises each by itself, with one weight as wide as a stretch.
    pub fn qk_norm_stretches(&self, heads: usize) -> usize {
        if self.qk_norm_span.is_head() { heads } else { 1 }
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

    /// Factor on the scores of attention: `1 / sqrt(E)`; under muP `sqrt(E_base) / E`, which is the same at the base
    /// head width and 1/E beyond it.
    pub fn attention_scale(&self) -> f64 {
        let head = self.head_dim as f64;
        match (self.init, self.mup_base_head_dim) {
            (InitChoice::MuP, Some(base)) => (base as f64).sqrt() / head,
            _ => 1.0 / head.sqrt(),
        }
    }

    /// Factor on the logits: base width over width under muP, 1 otherwise.
    pub fn logit_scale(&self) -> f64 {
        1.0 / self.mup_ratio()
    }

    /// Factor on the residual stream where a block is added: DeepNorm's alpha, 1 otherwise.
    pub fn residual_scale(&self) -> f64 {
        if self.placement == Placement::DeepNorm { self.deepnorm_alpha() } else { 1.0 }
    }

    /// One line for people: "gpt2 style, 12 layers x 768, 12 heads, vocabulary 50257, 124M parameters".
    pub fn summary(&self) -> String {
        let style = match (self.placement, self.norm) {
            (_, NormChoice::None) => "without normalisation",
            (Placement::Post, _) => "post-normalised",
            (Placement::DeepNorm, _) => "DeepNorm",
            (Placement::Pre, NormChoice::LayerNorm) => "gpt2 style",
            (Placement::Pre, NormChoice::RmsNorm) => "llama style",
        };
        let heads = if self.heads == self.kv_heads {
            format!("{} heads", self.heads)
        } else {
            format!("{} heads ({} kv)", self.heads, self.kv_heads)
        };
        let experts = self.experts.map_or(String::new(), |experts| {
            let active = bessemer_units::Tokens(self.active_parameters() as u64);
            let layers = match self.expert_layers.is_all() {
                true => String::new(),
                false => format!(" in {} layers", self.expert_layers_in(0..self.layers)),
            };
            let fewest =
                self.expert_counts.iter().min().map_or(String::new(), |least| format!("{least} to "));
            format!(
                ", {fewest}{} experts{layers} of which a token takes {} ({active} active)",
                experts.count, experts.choices
            )
        });
        let adapters = self.adapters.as_ref().map_or(String::new(), |adapters| {
            let targets: Vec<&str> = adapters.targets.iter().map(|target| target.name()).collect();
            let trained = bessemer_units::Tokens(self.adapter_parameters() as u64);
            let ranks = adapters.targets.iter().map(|target| adapters.rank_of(*target));
            let ranks: std::collections::BTreeSet<usize> = ranks.collect();
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let kind = if adapters.magnitude { " with magnitudes" } else { "" };
            format!(
                ", adapters of rank {}{kind} for {} ({trained} trained)",
                ranks.join(", "),
                targets.join(", ")
            )
        });
        format!(
            "{style}, {} layers x {}, {heads}, vocabulary {}, context {}, {} parameters{experts}{adapters}",
            self.layers,
            self.width,
            self.vocab_size,
            self.context,
            bessemer_units::Tokens(self.parameters() as u64)
        )
    }
}
