//! Bytes that a layout holds at least, in closed form: what cannot fit needs no dry run.
//!
//! Counted are parts that a dry run counts too: parameters, gradients and optimizer states by ZeRO's stage, those of a layer whole where a
//! pass needs them so, what layers store for their backward pass for each micro-batch in flight, what a layer computes again, and the buffer
//! for sums of a layer's gradients over ranks that share sequences. On pipeline rank r of p `min(m, p - r)` micro-batches are between
//! forward and backward pass (1F1B). Where the backward pass is split (ZB-H1), `min(m, r)` more wait for their weight part: for each the rank holds
//! inputs and output gradients of every product of its layers, and for all together the inputs `min(m, p)` times. With sequence parallelism
//! these are gathered rows, because the weight part has no collective. Values that may lie in
//! gradients which are written later take nothing. Left out: embedding, logits and loss, values of a layer at work that no
//! policy recomputes, pieces in flight, workspaces. A test holds it against dry runs.

use crate::memory::stored_bytes;
use crate::{Job, Layout, ParameterBytes, PipelineSchedule, Recompute, ZeroStage};

/// Bytes that each element takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElementBytes {
    /// A parameter, its gradient and its state, a master copy among the last.
    pub parameters: ParameterBytes,
    /// An activation.
    pub activation: f64,
    /// Tables of the vocabulary that a model has: 1, or 2 where the output projection is one of its own.
    pub tables: f64,
}

/// Layers of the stages of a pipeline, as far as its memory depends on them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageSplit {
    /// The first and the last rank, and of the others the first and the last with each number of layers: rank and layers.
    ranks: Vec<(usize, usize)>,
}

impl StageSplit {
    /// The split into stages of so many layers each.
    pub fn new(layers: &[usize]) -> StageSplit {
        let all = layers.iter().copied().enumerate();
        let ends = |rank: usize, layers: &[usize]| {
            rank == 0
                || rank + 1 == layers.len()
                || layers[rank] != layers[rank - 1]
                || layers[rank] != layers[rank + 1]
                || rank == 1
                || rank + 2 == layers.len()
        };
        StageSplit { ranks: all.filter(|(rank, _)| ends(*rank, layers)).collect() }
    }
}

/// Returns the bytes that the device which holds most will hold at least.
pub fn least_memory(job: &Job, bytes: &ElementBytes, split: Option<&StageSplit>) -> f64 {
    let (layout, layers) = (&job.layout, job.model.layers as f64 / job.layout.pipeline as f64);
    let of_rank = OfRank::new(job, bytes);
    match split.filter(|split| layout.chunks == 1 && !split.ranks.is_empty()) {
        None => of_rank.bytes(0, layers),
        Some(split) => {
            split.ranks.iter().map(|(rank, layers)| of_rank.bytes(*rank, *layers as f64)).fold(0.0, f64::max)
        }
    }
}

/// Bytes by what they depend on.
struct OfRank<'a> {
    layout: &'a Layout,
    bytes: &'a ElementBytes,
    micro_batches: usize,
    /// Parameters of a layer and of one table.
    layer: f64,
    table: f64,
    /// What a layer stores that computes nothing again, and one that does.
    all: f64,
    kept: f64,
    /// What the layer at work computes again, where that is its whole forward pass.
    again: f64,
    /// Inputs of a layer's products as they are stored, and as a weight part reads them; output gradients.
    inputs_stored: f64,
    inputs: f64,
    outputs: f64,
}

impl OfRank<'_> {
    fn new<'a>(job: &'a Job, bytes: &'a ElementBytes) -> OfRank<'a> {
        let (model, layout) = (&job.model, &job.layout);
        let parts = layout.parameter_parts() as f64;
        let of = |recompute| {
            stored_bytes(
                &Job { layout: Layout { recompute, recomputed: 0, ..*layout }, ..*job },
                bytes.activation,
            )
        };
        let (kept, again) = of(layout.recompute);
        let tokens = (layout.micro_batch * job.seq / layout.context) as f64 * bytes.activation;
        let (width, ffn, ranks) = (model.width as f64, model.ffn_width as f64, layout.tensor as f64);
        let opening = if model.gated { 2.0 } else { 1.0 };
        let stream = if layout.shards_stream() { ranks } else { 1.0 };
        let inner = (width + ffn) / ranks;
        OfRank {
            layout,
            bytes,
            micro_batches: job.micro_batches(),
            layer: model.layer_parameters() / parts,
            table: model.table_parameters() / parts,
            all: if layout.recompute == Recompute::None { kept } else { of(Recompute::None).0 },
            kept,
            again: if layout.recompute.repeats_products() { (again - kept).max(0.0) } else { 0.0 },
            inputs_stored: tokens * (2.0 * width / stream + inner),
            inputs: tokens * (2.0 * width + inner),
            outputs: tokens * ((model.qkv_width() as f64 + opening * ffn) / ranks + 2.0 * width),
        }
    }

    /// Bytes of stored values that may lie in gradients of so many parameters: where a step has one micro-batch.
    fn in_gradients(&self, parameters: f64) -> f64 {
        let Layout { pipeline, chunks, zero, .. } = *self.layout;
        let kept = matches!(zero, ZeroStage::Ddp | ZeroStage::Zero1) || self.layout.shards() == 1;
        let one = pipeline == 1 && chunks == 1 && self.micro_batches == 1;
        if one && kept { self.bytes.parameters.gradient * parameters } else { 0.0 }
    }

    /// Of a pipeline rank with so many layers.
    fn bytes(&self, rank: usize, layers: f64) -> f64 {
        let OfRank { layout, bytes, layer, .. } = *self;
        let stages = layout.pipeline;
        let tables = match (stages, rank) {
            (1, _) => bytes.tables,
            (_, rank) if rank == 0 || rank + 1 == stages => 1.0,
            _ => 0.0,
        };
        let states =
            layout.zero.bytes(bytes.parameters, layers * layer + tables * self.table, layout.shards());
        // What is whole while a layer is at work.
        let ParameterBytes { parameter, gradient, .. } = bytes.parameters;
        let whole = match layout.zero {
            _ if layout.shards() == 1 => 0.0,
            ZeroStage::Ddp | ZeroStage::Zero1 => 0.0,
            ZeroStage::Zero2 => gradient * layer,
            ZeroStage::Zero3 => (parameter + gradient) * layer,
        };
        let summed = if layout.context > 1 { gradient * layer } else { 0.0 };
        let recomputing = match (layout.recompute, layout.recomputed) {
            (Recompute::None, _) => 0.0,
            (_, 0) => layers,
            (_, some) => layers.min(some as f64),
        };
        let [mut in_flight, waiting] = [stages - rank, rank].map(|most| self.micro_batches.min(most) as f64);
        if layout.chunks > 1 && layout.schedule == PipelineSchedule::OneFOneB {
            // Chunks of which p - 1 more are in flight on the first rank (Narayanan et al. 2021, section 2.2).
            let more = (stages - 1) as f64 / layout.chunks as f64;
            in_flight = (stages as f64 + more).min(self.micro_batches as f64);
        }
        let plain = layers - recomputing;
        let stored = in_flight * (recomputing * self.kept + plain * self.all);
        let offloaded = if layers > 0.0 { (layout.offload as f64 / layers).min(1.0) } else { 0.0 };
        let values = match layout.schedule {
            PipelineSchedule::ZbH1 => {
                let inputs =
                    self.micro_batches.min(stages) as f64 * self.inputs - in_flight * self.inputs_stored;
                stored + plain * inputs + waiting * (layers * self.outputs + recomputing * self.inputs)
            }
            PipelineSchedule::OneFOneB | PipelineSchedule::ZbV => {
                let again = if recomputing > 0.0 { self.again } else { 0.0 };
                let parameters = layers * layer + tables * self.table;
                (stored * (1.0 - offloaded) - self.in_gradients(parameters)).max(0.0) + again
            }
        };
        states + whole + summed + values
    }
}
