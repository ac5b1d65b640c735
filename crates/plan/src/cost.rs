//! Time of a step in closed form: what a layer's products, other kernels and collectives take, and how a pipeline, data-parallel
//! ranks and the optimizer add to it.
//!
//! A product of (M, K) by (K, N) is cut into tiles of 256 x 128, or of 128 x 128 or 64 x 64 where that is faster; each multiprocessor
//! computes one at a time, so that time goes in whole waves:
//! `ceil(tiles / multiprocessors) 2 tile (K + depth) / (peak share / multiprocessors)`, and never less than the operands' bytes take.
//! Other kernels take their bytes. A layer takes at least what its host needs to launch it, joined smoothly: `(a^8 + b^8)^(1/8)`.
//!
//! Pipelines are 1F1B with equal stages: `(m + (p - 1)/v) (f + b)` (Narayanan et al. 2021, section 2.2). Tensor-parallel ranks sum two
//! activations a layer and pass (Shoeybi et al. 2019), data-parallel ones their gradients (a ring). ZeRO-2 scatters gradients in each
//! micro-batch and gathers parameters once, ZeRO-3 gathers twice and scatters once in each (Rajbhandari et al. 2020, section 7).

use crate::bubble::bubble;
use crate::context;
use crate::grid;
use crate::memory;
use crate::operator::{HOP, Products, Spread, between_nodes, collective_seconds, within_node};
use crate::switches::LevelSeconds;
use crate::{Efficiency, Job, Machine, Recompute, ZeroStage};
use bessemer_cluster::collective::formulas::point_to_point;
use bessemer_mesh::Axis;
use bessemer_mesh::formulas::{Exchange, ring};
use bessemer_program::CollectiveKind;
use bessemer_sim::PassTimes;
use bessemer_units::Link;
use serde::Serialize;

/// Seconds of a step by part; `total` is their sum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct StepTime {
    /// Layers and output projection, all micro-batches.
    pub compute: f64,
    /// Collectives of tensor-parallel ranks.
    pub tensor: f64,
    /// Messages between pipeline stages.
    pub messages: f64,
    /// Waiting while the pipeline fills and drains.
    pub bubble: f64,
    /// What the last stage adds by the output projection.
    pub last_stage: f64,
    /// Collectives of data-parallel ranks that nothing hides.
    pub data: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// Keys and values, or heads, that ranks exchange which share sequences, and sums of gradients over these ranks.
    pub context: f64,
    /// Traffic with the second memory that takes longer than the passes beside it.
    pub offload: f64,
    /// Seconds that every step takes.
    pub constant: f64,
    /// The whole step.
    pub total: f64,
}

impl StepTime {
    /// All parts times `factor`.
    pub(crate) fn scaled(self, factor: f64) -> StepTime {
        StepTime {
            compute: self.compute * factor,
            tensor: self.tensor * factor,
            messages: self.messages * factor,
            bubble: self.bubble * factor,
            last_stage: self.last_stage * factor,
            data: self.data * factor,
            optimizer: self.optimizer * factor,
            context: self.context * factor,
            offload: self.offload * factor,
            constant: self.constant * factor,
            total: self.total * factor,
        }
    }
}

/// Bytes of an activation, a parameter on its way and an element of an operand: bf16.
const ELEMENT: f64 = 2.0;
/// Exponent that joins the time of a device and of its host.
const JOIN: i32 = 8;
/// Elements, 16 bytes of them, by which rows of operands are aligned where matrix units work at full speed.
const ALIGNED: usize = 8;

/// Returns the time of a step.
pub fn step_time(job: &Job, machine: &Machine, efficiency: &Efficiency) -> StepTime {
    let cost = Cost { job, machine, efficiency };
    let layout = &job.layout;
    let chunks = layout.chunks as f64;
    let micro_batches = job.micro_batches() as f64;
    let layers = layout.stage_layers(job.model.layers) as f64;

    let pass = cost.layer();
    let logits = cost.logits();
    let seen = if layout.overlap && layout.chunks > 1 { efficiency.exposed } else { 1.0 };
    let sends = if layout.pipeline > 1 { 2.0 * chunks * seen * cost.send() } else { 0.0 };
    let exchange = context::exchange(job, machine, efficiency, pass.attention);
    let stage = layers * (pass.compute + pass.tensor + exchange) + sends;
    // Gradients of weights are the shortest pass; what else a stage does stands before them.
    let weight = (layers * pass.weight).min(stage / 3.0);
    let forward = (layers * pass.forward).min((stage - weight) / 2.0);
    let times = PassTimes::new(forward, stage - forward - weight, weight);

    let mut time = StepTime {
        compute: micro_batches * layers * pass.compute,
        tensor: micro_batches * layers * pass.tensor,
        messages: micro_batches * sends,
        bubble: bubble(layout, &times),
        context: micro_batches * layers * exchange
            + context::gradients(job, machine, efficiency, cost.parameters() * layout.gradient_bytes),
        optimizer: cost.parameters() * efficiency.optimizer_bytes / machine.memory_bandwidth,
        constant: efficiency.step_seconds,
        ..StepTime::default()
    };
    if layout.pipeline > 1 {
        time.last_stage = micro_batches * logits;
    } else {
        time.compute += micro_batches * logits;
    }
    if let Some(of) = layout.grid {
        let bytes = cost.parameters() * layout.gradient_bytes;
        time.tensor += grid::gradients(job, of, machine, efficiency, bytes);
    }
    if let (1.., Some(bandwidth)) = (layout.offload, machine.offload_bandwidth) {
        // Written in forward passes, read in backward passes, a layer behind and ahead of them.
        let moved = 2.0 * layout.offload as f64 * memory::stored(job).0 / bandwidth;
        time.offload = micro_batches * (moved - stage).max(0.0);
    }
    let traffic = cost.data_traffic();
    time.data = if matches!(layout.zero, ZeroStage::Zero2 | ZeroStage::Zero3) {
        // Gathers and scatters go on while the layers compute.
        let (long, short) = (time.compute.max(traffic), time.compute.min(traffic));
        (long + efficiency.exposed * short) - time.compute
    } else if layout.overlap {
        // Beside the passes of one micro-batch, and of the chunks whose gradients are complete before.
        let chunked = (layout.pipeline as f64 - 1.0) * (chunks - 1.0) / chunks;
        traffic - (1.0 - efficiency.exposed) * traffic.min((1.0 + chunked) * layers * pass.compute)
    } else {
        traffic
    };
    if matches!(layout.zero, ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3) {
        time.optimizer /= layout.shards() as f64;
    }
    time.total = time.compute
        + time.tensor
        + time.messages
        + time.bubble
        + time.last_stage
        + time.data
        + time.optimizer
        + time.context
        + time.offload
        + time.constant;
    time
}

/// Seconds of a layer's forward and backward pass over a micro-batch.
struct Pass {
    compute: f64,
    tensor: f64,
    /// Forward pass alone.
    forward: f64,
    /// Gradients of weights alone.
    weight: f64,
    /// Attention of both passes alone.
    attention: f64,
}

struct Cost<'a> {
    job: &'a Job,
    machine: &'a Machine,
    efficiency: &'a Efficiency,
}

impl Cost<'_> {
    fn tokens(&self) -> f64 {
        (self.job.layout.micro_batch * self.job.seq / self.job.layout.context) as f64
    }

    fn ranks(&self) -> f64 {
        self.job.layout.tensor as f64
    }

    /// Seconds of `count` products of (M, K) by (K, N).
    fn products(&self, count: f64, m: f64, n: f64, k: f64) -> f64 {
        let products = Products { count, m, n, k, element: ELEMENT };
        products.seconds(self.machine, self.efficiency) + self.efficiency.kernel_seconds
    }

    /// Seconds of the scores of attention and what is made of them.
    fn attention(&self) -> f64 {
        let (model, seq) = (&self.job.model, self.job.seq as f64);
        let heads = self.job.layout.micro_batch as f64 * model.heads as f64 / self.ranks();
        let head = (model.width / model.heads) as f64;
        if self.job.fused_attention {
            // Half of the square is not computed.
            let flops = 2.0 * heads * seq * seq * head / self.job.layout.context as f64;
            return flops / (self.machine.matrix_flops * self.efficiency.attention_share);
        }
        let queries = seq / self.job.layout.context as f64;
        let products = self.products(heads, queries, seq, head) + self.products(heads, queries, head, seq);
        products + heads * queries * seq * self.efficiency.score_bytes / self.machine.memory_bandwidth
    }

    fn layer(&self) -> Pass {
        let (model, layout, efficiency) = (&self.job.model, &self.job.layout, self.efficiency);
        let (tokens, ranks, width) = (self.tokens(), self.ranks(), model.width as f64);
        let inner = model.ffn_width as f64 / ranks;
        let opening = if model.gated { 2.0 } else { 1.0 };

        let cut = grid::ProductShare::of(layout);
        let first =
            |outputs: f64| self.products(1.0, tokens / cut.rows, outputs / cut.outputs, width / cut.inputs);
        let second = |inputs: f64| {
            let (inputs, outputs) = (inputs / cut.second_inputs, width / cut.second_outputs);
            self.products(1.0, tokens / cut.rows, outputs, inputs)
        };
        let linear = first(model.qkv_width() as f64)
            + second(width)
            + first(opening * model.ffn_width as f64)
            + second(model.ffn_width as f64);
        let attention = self.attention();
        let stream = if layout.shards_stream() { tokens * width / ranks } else { tokens * width };
        let of_stream = stream * efficiency.stream_bytes / self.machine.memory_bandwidth;
        let inside = tokens * opening * inner * efficiency.inner_bytes / self.machine.memory_bandwidth;
        let other = of_stream + inside;

        let slowdown = 1.0
            + efficiency.group_slowdown
                * (ranks.min(self.machine.node as f64) / self.machine.node as f64).powi(2);
        let join = |device: f64, host: f64| {
            (device.powi(JOIN) + (host * slowdown).powi(JOIN)).powf(1.0 / f64::from(JOIN))
        };
        // A backward pass of fused attention computes the scores again: five products instead of two.
        let attention_backward = if self.job.fused_attention { 2.5 } else { 2.0 } * attention;
        let (host, host_backward) = (efficiency.forward_seconds, efficiency.backward_seconds);
        let accumulation = self.accumulation(model.layer_parameters());
        let forward = linear + attention + other;
        let backward = 2.0 * linear + attention_backward + efficiency.backward_bytes * other + accumulation;
        let share = layout.recomputed_share(model.layers);
        // Passes that are made again, the device's part of one, and what is computed again within the backward pass.
        let (passes, pass, again) = match layout.recompute {
            Recompute::None => (0.0, 0.0, 0.0),
            // Of the residual stream's bytes a third are those of normalisations.
            Recompute::Selective => (0.0, 0.0, share * (of_stream / 3.0 + inside)),
            Recompute::Attention if self.job.fused_attention => {
                (0.0, 0.0, share * (attention + of_stream / 3.0 + inside))
            }
            Recompute::Attention => (0.0, 0.0, share * attention),
            Recompute::AttentionOutput => (share, forward - attention, 0.0),
            Recompute::Full => (share, forward, 0.0),
        };
        let nodes = (self.job.devices() as f64 / self.machine.node as f64).max(1.0);
        let straggling = 1.0 + efficiency.straggling * nodes.log2();
        // The host launches collectives too, and runs ahead of them.
        // Beside products, only what is gathered and scattered runs, no sum.
        let seen = if layout.overlap && layout.sequence { efficiency.exposed } else { 1.0 };
        let sums = match layout.grid {
            Some(grid) => grid::layer(self.job, grid, self.machine, efficiency) / 2.0,
            None => 2.0 * seen * self.tensor_sum(),
        };
        let time = |sums: f64| {
            let again = passes * join(pass + sums, host) + join(backward + again + sums, host_backward);
            (join(forward + sums, host) + again) * straggling
        };
        let compute = time(0.0);
        Pass {
            compute,
            tensor: time(sums) - compute,
            forward: join(forward, host),
            weight: linear + accumulation,
            attention: attention + attention_backward,
        }
    }

    /// Seconds in which the gradients of `parameters` parameters of all tensor-parallel ranks are added to those of the micro-batches before,
    /// or with ZeRO-2 and 3 copied to where they are scattered from.
    fn accumulation(&self, parameters: f64) -> f64 {
        parameters / self.ranks() * self.efficiency.accumulation_bytes / self.machine.memory_bandwidth
    }

    /// Seconds of one sum of activations over the tensor-parallel ranks. Ranks that share positions scatter it, and gather it later.
    fn tensor_sum(&self) -> f64 {
        let kind = match self.job.layout.sequence {
            true => CollectiveKind::ReduceScatter,
            false => CollectiveKind::AllReduce,
        };
        // A gather takes what a scatter takes between devices.
        let with_gather = |level: LevelSeconds| {
            level.least() + if self.job.layout.sequence { level.endpoints } else { 0.0 }
        };
        let bytes = self.tokens() * self.job.model.width as f64 * ELEMENT;
        let (ranks, node) = (self.job.layout.tensor, self.machine.node);
        let within = within_node(kind, bytes, ranks.min(node), self.machine, self.efficiency);
        if ranks <= node {
            let groups = if self.job.devices() > node { node / ranks } else { 1 };
            return with_gather(within) * (1.0 + self.efficiency.group_contention * (groups as f64 - 1.0));
        }
        let bandwidth = self.machine.network_bandwidth * self.efficiency.tensor_network;
        let link = (1, Link { latency: HOP, bandwidth });
        let across = between_nodes(kind, bytes, ranks.div_ceil(node), link, self.machine);
        with_gather(within) + with_gather(across)
    }

    /// Seconds of the output projection and the loss, both passes.
    fn logits(&self) -> f64 {
        let (model, tokens) = (&self.job.model, self.tokens());
        let (parts, rows) = match self.job.layout.grid {
            Some(grid) => (grid.degree(grid.line()), tokens / grid.sequence_parts() as f64),
            None => (self.job.layout.tensor, tokens),
        };
        let columns = model.vocab / parts;
        let speed = if columns.is_multiple_of(ALIGNED) { 1.0 } else { self.efficiency.unaligned };
        let columns = columns as f64;
        let ends =
            self.job.layout.grid.map_or(0.0, |of| grid::ends(self.job, of, self.machine, self.efficiency));
        3.0 * self.products(1.0, rows, columns, model.width as f64) / speed
            + rows * columns * self.efficiency.logit_bytes / self.machine.memory_bandwidth
            + ends
            + self.accumulation(model.table_parameters())
    }

    /// Seconds of a message between two stages. All devices of a node send at the same time where stages lie on different nodes.
    fn send(&self) -> f64 {
        let bytes = self.tokens() * self.job.model.width as f64 * ELEMENT;
        if self.job.devices() / self.job.layout.pipeline < self.machine.node {
            return self.machine.all_reduce.seconds(2, bytes);
        }
        // Each of the tensor-parallel ranks sends a part, and they gather it within the node (Narayanan et al. 2021, section 4.1).
        let bandwidth =
            self.machine.network_bandwidth * self.efficiency.pipeline_network / self.machine.node as f64;
        let ranks = self.job.layout.tensor.min(self.machine.node);
        let gather = self.machine.all_reduce.seconds(ranks, bytes) / 2.0;
        point_to_point(bytes / ranks as f64, Link { latency: HOP, bandwidth }) + gather
    }

    /// Parameters of a rank.
    fn parameters(&self) -> f64 {
        let (model, layout) = (&self.job.model, &self.job.layout);
        let layers = model.layer_parameters() * model.layers as f64 / layout.pipeline as f64;
        (layers + model.table_parameters()) / layout.parameter_parts() as f64
    }

    /// Seconds of the collectives over data-parallel ranks, as if nothing hid them.
    fn data_traffic(&self) -> f64 {
        let layout = &self.job.layout;
        if layout.data == 1 {
            return 0.0;
        }
        let parameters = self.parameters();
        let node = self.machine.node;
        if layout.shards() < layout.data {
            return self.hybrid_traffic(parameters);
        }
        let latency = self.ring_latency();
        let passes = layout.zero.passes(self.job.micro_batches(), Exchange::EachMicroBatch);
        // An all-reduce gathers sums of gradients, ZeRO parameters.
        let gathered = if layout.zero == ZeroStage::Ddp { layout.gradient_bytes } else { ELEMENT };
        let passes =
            (passes.reduce_scatters * layout.gradient_bytes + passes.all_gathers * gathered) * parameters;
        // Only whole sums of gradients are all-reduces; scatters and gathers take half of one each.
        let inside = |ranks| match layout.zero {
            ZeroStage::Ddp => {
                let kind = CollectiveKind::AllReduce;
                within_node(kind, passes / 2.0, ranks, self.machine, self.efficiency).least()
            }
            _ => self.machine.all_reduce.seconds(ranks, passes / 2.0) * self.efficiency.all_reduce_factor,
        };
        if self.job.devices() <= node {
            return inside(layout.data) + latency;
        }
        // Ranks of a node that belong to different groups share its interfaces; those of one group send once.
        let lines = (layout.tensor * layout.context).min(node);
        let groups = lines as f64;
        let within = (node / lines).min(layout.data);
        let network = self.machine.network_bandwidth * self.efficiency.data_network / groups;
        let between = LevelSeconds {
            endpoints: ring(passes, layout.data) / network,
            switches: match (&self.machine.switches.network, layout.zero) {
                (Some(switch), ZeroStage::Ddp) => {
                    let nodes = layout.data.div_ceil(within);
                    switch.seconds(CollectiveKind::AllReduce, nodes, passes / 2.0, lines, network)
                }
                _ => None,
            },
        };
        latency + between.least() + inside(within)
    }

    /// Seconds that the steps of rings take where ZeRO-3 gathers and scatters layer by layer, besides bytes: as many steps as the
    /// group has other ranks, for each layer and the table.
    fn ring_latency(&self) -> f64 {
        let layout = &self.job.layout;
        if layout.zero != ZeroStage::Zero3 {
            return 0.0;
        }
        let passes = layout.zero.passes(self.job.micro_batches(), Exchange::EachMicroBatch);
        let units = layout.stage_layers(self.job.model.layers) as f64 + 1.0;
        let steps = (layout.shards() - 1) as f64;
        (passes.reduce_scatters + passes.all_gathers) * units * steps * self.efficiency.ring_step_seconds
    }

    /// The same where groups of data-parallel ranks keep one copy each: ZeRO's collectives within a group, and an all-reduce of each
    /// rank's part of the gradients between groups.
    fn hybrid_traffic(&self, parameters: f64) -> f64 {
        let layout = &self.job.layout;
        let (shards, node) = (layout.shards(), self.machine.node);
        let lines = (layout.tensor * layout.context).min(node);
        let per_node = (node / lines).clamp(1, shards);
        let own = Spread { ranks: shards, per_node, sharing: lines };
        let passes = layout.zero.passes(self.job.micro_batches(), Exchange::EachMicroBatch);
        let seconds = |kind, bytes, spread| {
            collective_seconds(kind, bytes, Axis::Shard, spread, self.machine, self.efficiency)
        };
        let once = seconds(CollectiveKind::AllGather, parameters * ELEMENT, own);
        let between = Spread {
            ranks: layout.data / shards,
            per_node: (node / (lines * per_node)).clamp(1, layout.data / shards),
            sharing: lines * per_node,
        };
        self.ring_latency()
            + (passes.reduce_scatters + passes.all_gathers) * once
            + seconds(CollectiveKind::AllReduce, parameters / shards as f64 * layout.gradient_bytes, between)
    }
}
