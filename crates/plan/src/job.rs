//! What is trained and how it is spread over devices: the input of a prediction.

use crate::PlanError;
use bessemer_mesh::formulas::DataParallel;
use serde::{Deserialize, Serialize, Serializer};

/// Shape of a decoder-only transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Transformer {
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of the feed-forward block.
    pub ffn_width: usize,
    /// Whether the feed-forward block has a gate, a third matrix.
    pub gated: bool,
    /// Layers.
    pub layers: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
}

impl Transformer {
    /// A model in the style of GPT-2: as many key heads as query heads, a feed-forward block of four times the width.
    pub fn gpt(width: usize, heads: usize, layers: usize, vocab: usize) -> Transformer {
        Transformer { width, heads, kv_heads: heads, ffn_width: 4 * width, gated: false, layers, vocab }
    }

    /// Columns of the product of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        self.width + 2 * self.width / self.heads * self.kv_heads
    }

    /// Elements of the matrices of one layer.
    pub fn layer_parameters(&self) -> f64 {
        let (h, f) = (self.width as f64, self.ffn_width as f64);
        h * self.qkv_width() as f64 + h * h + h * f * if self.gated { 3.0 } else { 2.0 }
    }

    /// Elements of the token table, which is the output projection too.
    pub fn table_parameters(&self) -> f64 {
        self.width as f64 * self.vocab as f64
    }

    /// Floating-point operations of the matrix products of one layer in a forward pass over one sequence, attention over the whole
    /// square: 24 s h^2 (1 + s/(6h)) for the shape of GPT (Narayanan et al. 2021, appendix).
    pub fn layer_flops(&self, seq: usize) -> f64 {
        let (s, h) = (seq as f64, self.width as f64);
        2.0 * s * self.layer_parameters() + 4.0 * s * s * h
    }

    /// The same of the output projection.
    pub fn logit_flops(&self, seq: usize) -> f64 {
        2.0 * seq as f64 * self.table_parameters()
    }
}

/// What the backward pass computes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Scores and probabilities of attention: what Korthikanti et al. 2022 call selective.
    Attention,
    /// The whole layer.
    Full,
}

/// How a job is spread over devices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Layout {
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Data-parallel ranks.
    pub data: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Parts of the model on a pipeline rank (interleaved 1F1B).
    pub chunks: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// What data-parallel ranks keep a part of.
    #[serde(serialize_with = "stage")]
    pub zero: DataParallel,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Whether tensor-parallel ranks share positions between the products (sequence parallelism).
    pub sequence: bool,
}

/// Writes the number of ZeRO's stage.
fn stage<S: Serializer>(zero: &DataParallel, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(match zero {
        DataParallel::Ddp => 0,
        DataParallel::Zero1 => 1,
        DataParallel::Zero2 => 2,
        DataParallel::Zero3 => 3,
    })
}

/// A model, its batch and its layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Job {
    /// The model.
    pub model: Transformer,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Whether attention runs in one kernel that stores no scores.
    pub fused_attention: bool,
    /// How it is spread.
    pub layout: Layout,
}

impl Job {
    /// Devices that the job takes.
    pub fn devices(&self) -> usize {
        self.layout.tensor * self.layout.data * self.layout.pipeline
    }

    /// Micro-batches of a step on one rank.
    pub fn micro_batches(&self) -> usize {
        self.global_batch / (self.layout.data * self.layout.micro_batch).max(1)
    }

    /// Floating-point operations of the matrix products of a step on one device, with those of recomputed layers:
    /// 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) / devices for GPT with everything recomputed (Narayanan et al. 2021, equation 3).
    pub fn hardware_flops(&self) -> f64 {
        let passes = match self.layout.recompute {
            Recompute::Full => 4.0,
            Recompute::None | Recompute::Attention => 3.0,
        };
        let layers = passes * self.model.layers as f64 * self.model.layer_flops(self.seq);
        self.global_batch as f64 * (layers + 3.0 * self.model.logit_flops(self.seq)) / self.devices() as f64
    }

    /// Checks that everything divides.
    ///
    /// # Errors
    /// The first number that does not divide, with what was wanted.
    pub fn check(&self) -> Result<(), PlanError> {
        let Layout { tensor, data, pipeline, chunks, micro_batch, .. } = self.layout;
        let divides = |what: &'static str, number: usize, by: &'static str, divisor: usize| {
            if divisor == 0 || number == 0 || !number.is_multiple_of(divisor) {
                return Err(PlanError::NotDivided { what, number, by, divisor });
            }
            Ok(())
        };
        divides("width", self.model.width, "heads", self.model.heads)?;
        divides("heads", self.model.heads, "tensor ranks", tensor)?;
        divides("ffn_width", self.model.ffn_width, "tensor ranks", tensor)?;
        divides("layers", self.model.layers, "pipeline stages times chunks", pipeline * chunks)?;
        divides("global batch", self.global_batch, "data ranks times micro-batch", data * micro_batch)
    }
}
