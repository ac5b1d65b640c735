//! What is trained and how it is spread over devices: the input of a prediction.

use crate::PlanError;
use bessemer_mesh::ContextMethod;
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

/// When the ranks of a pipeline do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// 1F1B, interleaved where a rank has several chunks (Narayanan et al. 2021).
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// ZB-H1: gradients of weights fill what would be waiting (Qi et al. 2024).
    #[serde(rename = "zb-h1")]
    ZbH1,
    /// ZB-V: two chunks a rank, the second in the opposite order (Qi et al. 2024).
    #[serde(rename = "zb-v")]
    ZbV,
}

/// How a job is spread over devices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Layout {
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Ranks that share each sequence.
    pub context: usize,
    /// What they exchange for attention.
    #[serde(serialize_with = "method")]
    pub context_method: ContextMethod,
    /// Data-parallel ranks.
    pub data: usize,
    /// Of these, ranks that keep a part each of what ZeRO's stage shards; 0: all. Fewer make several such groups (hybrid sharding).
    pub shard: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// When they do what.
    pub schedule: PipelineSchedule,
    /// Parts of the model on a pipeline rank.
    pub chunks: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// What data-parallel ranks keep a part of.
    #[serde(serialize_with = "stage")]
    pub zero: DataParallel,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Layers of each stage of which it does; 0: all.
    pub recomputed: usize,
    /// Whether tensor-parallel ranks share positions between the products (sequence parallelism).
    pub sequence: bool,
    /// Whether collectives run beside computation: of gradients and parameters beside the passes of one micro-batch, of positions beside products,
    /// messages of interleaved pipelines beside passes.
    pub overlap: bool,
    /// Bytes of an element of the gradients that data-parallel ranks sum.
    pub gradient_bytes: f64,
}

impl Default for Layout {
    /// One device.
    fn default() -> Self {
        Layout {
            tensor: 1,
            context: 1,
            context_method: ContextMethod::default(),
            data: 1,
            shard: 0,
            pipeline: 1,
            schedule: PipelineSchedule::default(),
            chunks: 1,
            micro_batch: 1,
            zero: DataParallel::Ddp,
            recompute: Recompute::None,
            recomputed: 0,
            sequence: false,
            overlap: false,
            gradient_bytes: 4.0,
        }
    }
}

impl Layout {
    /// Ranks of a group that keeps one copy of what ZeRO's stage shards.
    pub fn shards(&self) -> usize {
        if self.shard == 0 { self.data } else { self.shard }
    }

    /// Layers of the longest stage.
    pub fn stage_layers(&self, layers: usize) -> usize {
        layers.div_ceil(self.pipeline)
    }

    /// Part of a stage's layers that the backward pass computes again, in part or whole.
    pub fn recomputed_share(&self, layers: usize) -> f64 {
        match (self.recompute, self.recomputed) {
            (Recompute::None, _) => 0.0,
            (_, 0) => 1.0,
            (_, some) => some as f64 / self.stage_layers(layers) as f64,
        }
    }
}

/// Writes the name of a method.
fn method<S: Serializer>(method: &ContextMethod, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(method.name())
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
        self.layout.tensor * self.layout.context * self.layout.data * self.layout.pipeline
    }

    /// Micro-batches of a step on one rank.
    pub fn micro_batches(&self) -> usize {
        self.global_batch / (self.layout.data * self.layout.micro_batch).max(1)
    }

    /// Floating-point operations of the matrix products of a step on one device, with those of recomputed layers:
    /// 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) / devices for GPT with everything recomputed (Narayanan et al. 2021, equation 3).
    pub fn hardware_flops(&self) -> f64 {
        let passes = match self.layout.recompute {
            Recompute::Full => 3.0 + self.layout.recomputed_share(self.model.layers),
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
        let Layout { tensor, context, data, pipeline, chunks, micro_batch, .. } = self.layout;
        let divides = |what: &'static str, number: usize, by: &'static str, divisor: usize| {
            if divisor == 0 || number == 0 || !number.is_multiple_of(divisor) {
                return Err(PlanError::NotDivided { what, number, by, divisor });
            }
            Ok(())
        };
        divides("width", self.model.width, "heads", self.model.heads)?;
        divides("heads", self.model.heads, "tensor ranks", tensor)?;
        divides("ffn_width", self.model.ffn_width, "tensor ranks", tensor)?;
        divides("sequence", self.seq, "context ranks", context)?;
        divides("data ranks", data, "shard", self.layout.shards())?;
        if chunks == 1 && self.model.layers < pipeline {
            let (number, divisor) = (self.model.layers, pipeline);
            return Err(PlanError::NotDivided { what: "layers", number, by: "pipeline stages", divisor });
        }
        if chunks > 1 {
            divides("layers", self.model.layers, "pipeline stages times chunks", pipeline * chunks)?;
        }
        divides("global batch", self.global_batch, "data ranks times micro-batch", data * micro_batch)
    }
}
