//! What is trained and how it is spread over devices: the input of a prediction.

use crate::PlanError;
use bessemer_mesh::formulas::ZeroStage;
use bessemer_mesh::{Axis, ContextMethod, TensorGrid};
use bessemer_program::PiecesInFlight;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

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
        2.0 * seq as f64 * self.layer_parameters() + self.attention_flops(seq)
    }

    /// Those of the two products of attention among them.
    pub fn attention_flops(&self, seq: usize) -> f64 {
        let (s, h) = (seq as f64, self.width as f64);
        4.0 * s * s * h
    }

    /// The same of the output projection.
    pub fn logit_flops(&self, seq: usize) -> f64 {
        2.0 * seq as f64 * self.table_parameters()
    }
}

/// Activations that the backward pass recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Normalised rows, activations and gated products: no product is computed twice.
    Selective,
    /// Scores and probabilities of attention: what Korthikanti et al. 2022 call selective.
    Attention,
    /// The whole layer but the scores of attention, whose result is stored (Li et al. 2023, DistFlashAttn, section 3.3).
    #[serde(rename = "attention-output")]
    AttentionOutput,
    /// The whole layer.
    Full,
}

impl Recompute {
    /// All, those that keep more first.
    pub const ALL: [Recompute; 5] = [
        Recompute::None,
        Recompute::Selective,
        Recompute::Attention,
        Recompute::AttentionOutput,
        Recompute::Full,
    ];

    /// Whether the products of a layer are computed again, and its collectives run again.
    pub fn repeats_products(self) -> bool {
        matches!(self, Recompute::AttentionOutput | Recompute::Full)
    }
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
    /// Tensor-parallel ranks, all of a grid's.
    pub tensor: usize,
    /// The grid that they are, if they are no line.
    #[serde(serialize_with = "grid")]
    pub grid: Option<TensorGrid>,
    /// Ranks that share each sequence.
    pub context: usize,
    /// Values that they exchange for attention.
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
    /// State of which data-parallel ranks keep a part.
    #[serde(serialize_with = "stage")]
    pub zero: ZeroStage,
    /// Activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// Layers of each stage of which it does; 0: all.
    pub recomputed: usize,
    /// Layers of each stage whose stored activations wait for the backward pass in a second memory; 0: none.
    pub offload: usize,
    /// Whether tensor-parallel ranks share positions between the products (sequence parallelism).
    pub sequence: bool,
    /// Whether collectives run beside computation: of gradients and parameters beside the passes of one micro-batch, of positions beside products,
    /// messages of interleaved pipelines beside passes.
    pub overlap: bool,
    /// Bytes of an element of the gradients that data-parallel ranks sum.
    pub gradient_bytes: f64,
    /// Axes, the one whose ranks are neighbours first. The closed form knows the usual order only.
    #[serde(serialize_with = "order")]
    pub order: [Axis; 5],
    /// Most pieces of parameters and gradients that travel at once, likewise.
    #[serde(serialize_with = "in_flight")]
    pub in_flight: PiecesInFlight,
}

impl Default for Layout {
    /// One device.
    fn default() -> Self {
        Layout {
            tensor: 1,
            grid: None,
            context: 1,
            context_method: ContextMethod::default(),
            data: 1,
            shard: 0,
            pipeline: 1,
            schedule: PipelineSchedule::default(),
            chunks: 1,
            micro_batch: 1,
            zero: ZeroStage::Ddp,
            recompute: Recompute::None,
            recomputed: 0,
            offload: 0,
            sequence: false,
            overlap: false,
            gradient_bytes: 4.0,
            order: Layout::USUAL_ORDER,
            in_flight: PiecesInFlight::DEFAULT,
        }
    }
}

impl Layout {
    /// The order of the axes where nobody says another; the tensor axis stands for those of a grid, the shard axis for all data-parallel ranks
    /// where these make one group.
    pub const USUAL_ORDER: [Axis; 5] =
        [Axis::Tensor, Axis::Context, Axis::Shard, Axis::Pipeline, Axis::Replicate];

    /// Ranks along an axis of [`Layout::order`].
    pub fn ranks_along(&self, axis: Axis) -> usize {
        let shard = if self.zero == ZeroStage::Ddp { 1 } else { self.shards() };
        match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Shard => shard,
            Axis::Pipeline => self.pipeline,
            Axis::Replicate => self.data / shard,
            _ => 1,
        }
    }

    /// Other orders of the axes, one for each way in which nodes of `node` ranks can hold the groups along the axes.
    pub fn other_orders(&self, node: usize) -> Vec<[Axis; 5]> {
        let mut found = vec![(self.within_node(node), self.order)];
        permute(&mut Layout::USUAL_ORDER.to_vec(), 0, &mut |order| {
            let within = Layout { order, ..*self }.within_node(node);
            if found.iter().all(|(other, _)| *other != within) {
                found.push((within, order));
            }
        });
        found.into_iter().skip(1).map(|(_, order)| order).collect()
    }

    /// Ranks of a group on one node, along each axis of [`Layout::USUAL_ORDER`].
    fn within_node(&self, node: usize) -> [usize; 5] {
        Layout::USUAL_ORDER.map(|axis| {
            let before = self.order.iter().take_while(|other| **other != axis);
            let stride: usize = before.map(|axis| self.ranks_along(*axis)).product();
            (node / stride.min(node)).clamp(1, self.ranks_along(axis))
        })
    }

    /// Ranks of a group that keeps one copy of what ZeRO's stage shards.
    pub fn shards(&self) -> usize {
        if self.shard == 0 { self.data } else { self.shard }
    }

    /// Whether each tensor-parallel rank has a part of the residual stream.
    pub fn shards_stream(&self) -> bool {
        self.sequence || self.grid.is_some()
    }

    /// Parts into which the tensor-parallel ranks divide the parameters: the layers of a grid of two and a half dimensions hold the same.
    pub fn parameter_parts(&self) -> usize {
        match self.grid {
            Some(TensorGrid::Plane { rows, columns, .. }) => rows * columns,
            Some(TensorGrid::Cube { .. }) | None => self.tensor,
        }
    }

    /// Whether every rank has the whole model between steps.
    pub fn keeps_model(&self) -> bool {
        let values = self.zero != ZeroStage::Zero3 || self.shards() == 1;
        self.tensor * self.pipeline == 1 && values
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

/// Calls `each` with every order of the axes from `at` on.
fn permute(axes: &mut Vec<Axis>, at: usize, each: &mut dyn FnMut([Axis; 5])) {
    if let (true, Ok(order)) = (at == axes.len(), <[Axis; 5]>::try_from(axes.as_slice())) {
        return each(order);
    }
    for other in at..axes.len() {
        axes.swap(at, other);
        permute(axes, at + 1, each);
        axes.swap(at, other);
    }
}

/// Writes the names of axes.
fn order<S: Serializer>(order: &[Axis; 5], to: S) -> Result<S::Ok, S::Error> {
    order.map(Axis::name).serialize(to)
}

/// Writes two numbers.
fn in_flight<S: Serializer>(of: &PiecesInFlight, to: S) -> Result<S::Ok, S::Error> {
    [("values", of.values), ("gradients", of.gradients)].into_iter().collect::<BTreeMap<_, _>>().serialize(to)
}

/// Writes the name of a method.
fn method<S: Serializer>(method: &ContextMethod, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(method.name())
}

/// Writes a grid in words.
fn grid<S: Serializer>(grid: &Option<TensorGrid>, to: S) -> Result<S::Ok, S::Error> {
    grid.map(|grid| grid.to_string()).serialize(to)
}

/// Writes the number of ZeRO's stage.
fn stage<S: Serializer>(zero: &ZeroStage, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(zero.number())
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
        let (model, share) = (&self.model, self.layout.recomputed_share(self.model.layers));
        let layer = model.layer_flops(self.seq);
        let again = match self.layout.recompute {
            Recompute::Full => share * layer,
            Recompute::AttentionOutput => share * (layer - model.attention_flops(self.seq)),
            Recompute::None | Recompute::Selective | Recompute::Attention => 0.0,
        };
        let layers = model.layers as f64 * (3.0 * layer + again);
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
        let line = match self.layout.grid {
            Some(grid) => grid.degree(grid.line()),
            None => tensor,
        };
        divides("heads", self.model.heads, "tensor ranks", line)?;
        divides("ffn_width", self.model.ffn_width, "tensor ranks", line)?;
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
