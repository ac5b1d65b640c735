//! What a software stack makes of a machine: the constants of the cost model that no data sheet gives, to be fitted to measured
//! steps. Their first values are those of a plain stack; none is a claim about any. How far a constant may lie from its first value
//! says what is known beforehand: what share of a peak products reach is known well, what a network gives a job is not.

use crate::{Job, Machine, step_time};
use serde::Serialize;

/// Constants of the cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Efficiency {
    /// Share of a device's peak that whole tiles of matrix products reach.
    pub product_share: f64,
    /// Speed of tiles of 128 x 128 beside those of 256 x 128.
    pub small_tile: f64,
    /// Work of a tile besides its products, as elements of their inner dim.
    pub tile_depth: f64,
    /// Seconds between two products.
    pub kernel_seconds: f64,
    /// Share of the peak that fused attention reaches.
    pub attention_share: f64,
    /// Bytes moved for each element of the residual stream in a layer's forward pass, outside the products.
    pub stream_bytes: f64,
    /// Bytes moved for each element of the feed-forward block's inside.
    pub inner_bytes: f64,
    /// Bytes moved for each score of attention that is not fused.
    pub score_bytes: f64,
    /// Bytes of a backward pass beside those of the forward pass.
    pub backward_bytes: f64,
    /// Seconds that the host needs to launch a layer's forward pass; a device that is done earlier waits.
    pub forward_seconds: f64,
    /// Seconds that the host needs to launch a layer's backward pass.
    pub backward_seconds: f64,
    /// Growth of both where a tensor-parallel group fills a node, whose hosts wait for the slowest; of smaller groups by the square
    /// of their part of a node.
    pub group_slowdown: f64,
    /// Time of all-reduces within training beside the time alone.
    pub all_reduce_factor: f64,
    /// Growth of the time of a sum over tensor-parallel ranks with each further such group of its node, where the job has several nodes.
    pub group_contention: f64,
    /// Share of a node's network bandwidth that all-reduces of tensor-parallel ranks on several nodes reach.
    pub tensor_network: f64,
    /// Share that messages between pipeline stages reach.
    pub pipeline_network: f64,
    /// Share that sums of gradients and gathers of parameters reach.
    pub data_network: f64,
    /// Seconds of one of the steps in which a ring hands values from rank to rank, besides their bytes: seen where each layer is gathered.
    pub ring_step_seconds: f64,
    /// Part of the shorter of computation and collectives beside it that is not hidden behind the longer.
    pub exposed: f64,
    /// Bytes of the optimizer's step for each parameter of a rank.
    pub optimizer_bytes: f64,
    /// Bytes moved for each parameter of a rank in each micro-batch, where its gradient is added to those of the micro-batches before.
    pub accumulation_bytes: f64,
    /// Bytes moved for each logit, both passes together.
    pub logit_bytes: f64,
    /// Speed of products whose columns are not aligned to 16 bytes beside those that are.
    pub unaligned: f64,
    /// Growth of the time of passes with each doubling of nodes, which wait for the slowest.
    pub straggling: f64,
    /// Seconds of a step that do not depend on anything.
    pub step_seconds: f64,
}

impl Default for Efficiency {
    fn default() -> Self {
        Efficiency {
            product_share: 0.75,
            small_tile: 0.9,
            tile_depth: 64.0,
            kernel_seconds: 3e-6,
            attention_share: 0.5,
            stream_bytes: 24.0,
            inner_bytes: 8.0,
            score_bytes: 12.0,
            backward_bytes: 1.5,
            forward_seconds: 5e-4,
            backward_seconds: 1.5e-3,
            group_slowdown: 0.3,
            all_reduce_factor: 1.2,
            group_contention: 0.3,
            tensor_network: 0.6,
            pipeline_network: 0.6,
            data_network: 0.5,
            // Seven hops over NVLink and one over the network, by the protocol for long messages: constants of NCCL's tuning.
            ring_step_seconds: 4.7e-6,
            exposed: 0.15,
            optimizer_bytes: 42.0,
            // Written and read again in 2 bytes and added to 2, or added to 4 by the product itself.
            accumulation_bytes: 8.0,
            logit_bytes: 60.0,
            unaligned: 0.4,
            straggling: 0.01,
            step_seconds: 0.01,
        }
    }
}

/// A constant: its name, the standard deviation that its logarithm is expected to have about the first value, and where it lies.
type Constant = (&'static str, f64, fn(&mut Efficiency) -> &mut f64);

impl Efficiency {
    /// All constants.
    pub(crate) const CONSTANTS: [Constant; 25] = [
        ("product_share", 0.15, |e| &mut e.product_share),
        ("small_tile", 0.15, |e| &mut e.small_tile),
        ("tile_depth", 1.0, |e| &mut e.tile_depth),
        ("kernel_seconds", 1.0, |e| &mut e.kernel_seconds),
        ("attention_share", 0.4, |e| &mut e.attention_share),
        ("stream_bytes", 0.6, |e| &mut e.stream_bytes),
        ("inner_bytes", 0.6, |e| &mut e.inner_bytes),
        ("score_bytes", 0.6, |e| &mut e.score_bytes),
        ("backward_bytes", 0.4, |e| &mut e.backward_bytes),
        ("forward_seconds", 0.7, |e| &mut e.forward_seconds),
        ("backward_seconds", 0.7, |e| &mut e.backward_seconds),
        ("group_slowdown", 1.0, |e| &mut e.group_slowdown),
        ("all_reduce_factor", 0.3, |e| &mut e.all_reduce_factor),
        ("group_contention", 1.0, |e| &mut e.group_contention),
        ("tensor_network", 0.7, |e| &mut e.tensor_network),
        ("pipeline_network", 0.7, |e| &mut e.pipeline_network),
        ("data_network", 0.8, |e| &mut e.data_network),
        ("ring_step_seconds", 0.7, |e| &mut e.ring_step_seconds),
        ("exposed", 0.7, |e| &mut e.exposed),
        ("optimizer_bytes", 0.5, |e| &mut e.optimizer_bytes),
        ("accumulation_bytes", 0.6, |e| &mut e.accumulation_bytes),
        ("logit_bytes", 0.6, |e| &mut e.logit_bytes),
        ("unaligned", 0.4, |e| &mut e.unaligned),
        ("straggling", 0.7, |e| &mut e.straggling),
        ("step_seconds", 1.5, |e| &mut e.step_seconds),
    ];

    /// The constants, the logarithm of each moved by so many of its standard deviations.
    pub(crate) fn moved(mut self, deviations: &[f64]) -> Efficiency {
        for ((_, width, constant), deviation) in Self::CONSTANTS.iter().zip(deviations) {
            *constant(&mut self) *= (width * deviation).exp();
        }
        self
    }

    /// Change of the logarithm of a step's time with each constant, for a change of its logarithm by its standard deviation.
    pub(crate) fn sensitivity(&self, job: &Job, machine: &Machine) -> Vec<f64> {
        let seconds = |efficiency: &Efficiency| step_time(job, machine, efficiency).total;
        let now = seconds(self);
        (Self::CONSTANTS.iter())
            .map(|(_, width, constant)| {
                let mut other = *self;
                *constant(&mut other) *= DIFFERENCE.exp();
                (seconds(&other) / now).ln() / DIFFERENCE * width
            })
            .collect()
    }
}

/// Change of the logarithm of a constant for which sensitivities are computed.
const DIFFERENCE: f64 = 1e-3;
