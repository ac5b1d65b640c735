//! The small models that layouts are tried on.

use bessemer_arch::{ArchError, Model, ModelConfig, Placement, PositionChoice};

/// Tokens of the vocabulary. No tensor degree divides it.
const VOCABULARY: u64 = 101;
/// Token that ends a document, in models whose attention stays within documents.
const DOCUMENT_END: u32 = 0;

/// The two families of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// LayerNorm, GELU, learned positions, biases, tied embeddings, dropout.
    Gpt2,
    /// RMSNorm, SwiGLU, rotary positions, grouped heads, no biases, untied.
    Llama,
}

impl Style {
    /// Both of them.
    pub const ALL: [Style; 2] = [Style::Gpt2, Style::Llama];

    /// "gpt2", "llama".
    pub fn name(self) -> &'static str {
        match self {
            Style::Gpt2 => "gpt2",
            Style::Llama => "llama",
        }
    }

    /// A small model of the family: 4 layers x 64, 8 heads, a vocabulary that no degree divides.
    ///
    /// # Errors
    /// A context that no model may have.
    pub fn model(self, context: usize) -> Result<Model, ArchError> {
        self.config(4, 64, context).resolve(None)
    }

    /// As [`Style::model`], with enough layers for sixteen stages: 14 layers x 32.
    ///
    /// # Errors
    /// As [`Style::model`].
    pub fn deep_model(self, context: usize) -> Result<Model, ArchError> {
        self.config(14, 32, context).resolve(None)
    }

    fn config(self, layers: u64, width: u64, context: usize) -> ModelConfig {
        let small = ModelConfig {
            architecture: self.name().into(),
            vocab_size: VOCABULARY,
            layers: Some(layers),
            width: Some(width),
            heads: Some(8),
            context: Some(context as u64),
            ..ModelConfig::default()
        };
        match self {
            Style::Gpt2 => ModelConfig { dropout: 0.1, ..small },
            Style::Llama => {
                let (kv_heads, ffn_width) = (Some(2), Some(160));
                ModelConfig { kv_heads, ffn_width, tied_embeddings: Some(false), ..small }
            }
        }
    }
}

/// A model of a family with other attention or other embeddings than the family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// The family.
    pub style: Style,
    /// How positions enter; `None`: as in the family.
    pub positions: Option<PositionChoice>,
    /// Placement of normalisations.
    pub placement: Placement,
    /// RMSNorm over each head of queries and keys.
    pub qk_norm: bool,
    /// Positions that a query sees at most; `None`: all before it.
    pub window: Option<u64>,
    /// Attention stays within a document, and positions restart with each.
    pub documents: bool,
    /// Key/value heads, beside 8 query heads.
    pub kv_heads: u64,
    /// Output projection shares the token embedding's weights.
    pub tied_embeddings: bool,
}

impl Variant {
    /// "llama, alibi, post, QK-norm, window 11, documents, 2 kv heads, tied".
    pub fn name(&self) -> String {
        let window = self.window.map(|w| format!("window {w}"));
        let lower = |text: String| text.to_lowercase();
        let parts = [
            Some(self.style.name().to_owned()),
            self.positions.map(|p| lower(format!("{p:?}"))),
            (self.placement != Placement::Pre).then(|| lower(format!("{:?}", self.placement))),
            self.qk_norm.then(|| "QK-norm".to_owned()),
            window,
            self.documents.then(|| "documents".to_owned()),
            Some(format!("{} kv heads", self.kv_heads)),
            self.tied_embeddings.then(|| "tied".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The model: 6 layers x 32, 8 heads.
    ///
    /// # Errors
    /// As [`Style::model`].
    pub fn model(&self, context: usize) -> Result<Model, ArchError> {
        let config = ModelConfig {
            positions: self.positions,
            placement: self.placement,
            qk_norm: Some(self.qk_norm),
            window: self.window,
            kv_heads: Some(self.kv_heads),
            tied_embeddings: Some(self.tied_embeddings),
            ..self.style.config(6, 32, context)
        };
        let document_end = self.documents.then_some(DOCUMENT_END);
        Ok(Model { document_end, ..config.resolve(None)? })
    }
}
