//! Closed forms: what a step sends and what a rank holds. The ledger and the arena of a run are held against them.
//!
//! Psi is the number of parameters, n the ranks of the data-parallel group, m the micro-batches of a step on a rank.
//! Volumes are elements per rank under ring algorithms.

use crate::even;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the ranks of the shard axis have a part of instead of a whole copy (Rajbhandari et al. 2020).
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ZeroStage {
    /// Nothing: distributed data parallelism. Gradients are all-reduced.
    #[default]
    Ddp,
    /// Optimizer state. Gradients are reduce-scattered, updated parameters gathered.
    Zero1,
    /// Gradients too: every micro-batch's are reduce-scattered as they are made.
    Zero2,
    /// Parameters too (FSDP): a layer's are gathered before they are used and dropped after.
    Zero3,
}

/// When ranks that accumulate gradients exchange them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// After each micro-batch: no rank ever holds a whole gradient.
    EachMicroBatch,
    /// After the last one: whole gradients are held until then.
    LastMicroBatch,
}

/// Collectives of a step that go over all parameters. Those of DDP are the halves of an all-reduce of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Passes {
    /// Reduce-scatters, of gradients.
    pub reduce_scatters: f64,
    /// All-gathers, of parameters.
    pub all_gathers: f64,
}

/// N (n-1)/n: an all-gather or reduce-scatter of N elements over n ranks.
pub fn ring(elements: f64, ranks: usize) -> f64 {
    elements * (ranks as f64 - 1.0) / ranks as f64
}

/// (n-1) (N + 4 B): bytes that all ranks together send for a reduce-scatter as one all-to-all, or for an all-gather, of N elements as
/// codes of 8 bits with f32 scales (Wang et al. 2023, ZeRO++). Each of n ranks has an even part of them, in blocks of `block` elements, the
/// last of which may be shorter: B of all ranks.
pub fn quantised_ring(elements: usize, ranks: usize, block: usize) -> usize {
    let blocks: usize = (0..ranks).map(|rank| even(elements, ranks, rank).len.div_ceil(block)).sum();
    (ranks - 1) * (elements + 4 * blocks)
}

impl ZeroStage {
    /// All stages, by their number.
    pub const ALL: [ZeroStage; 4] = [ZeroStage::Ddp, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];

    /// Number of the stage: 0 (DDP) to 3.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Name in recipes: `ddp`, `zero1`, `zero2` or `zero3`.
    pub fn key(self) -> &'static str {
        ["ddp", "zero1", "zero2", "zero3"][self as usize]
    }

    /// Name in reports: "DDP", "ZeRO-1", "ZeRO-2" or "ZeRO-3".
    pub fn name(self) -> &'static str {
        ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"][self as usize]
    }

    /// Elements that a rank sends in a step, gradients and parameters alike.
    ///
    /// | | one micro-batch | m micro-batches |
    /// |---|---|---|
    /// | DDP | 2 Psi (all-reduce) | 2 Psi |
    /// | ZeRO-1 | 2 Psi (reduce-scatter, all-gather) | 2 Psi |
    /// | ZeRO-2 | 2 Psi | (m + 1) Psi; 2 Psi if exchanged after the last |
    /// | ZeRO-3 | 3 Psi (gather forward, gather backward, reduce-scatter) | 3m Psi; (2m + 1) Psi if exchanged after the last |
    ///
    /// all times (n-1)/n. DDP and ZeRO-1 always exchange after the last micro-batch: they hold whole gradients anyway.
    pub fn volume(self, parameters: f64, ranks: usize, micro_batches: usize, exchange: Exchange) -> f64 {
        let Passes { reduce_scatters, all_gathers } = self.passes(micro_batches, exchange);
        (reduce_scatters + all_gathers) * ring(parameters, ranks)
    }

    /// Reduce-scatters and all-gathers of a step that go over all parameters.
    pub fn passes(self, micro_batches: usize, exchange: Exchange) -> Passes {
        let m = micro_batches as f64;
        let exchanges = match exchange {
            Exchange::EachMicroBatch => m,
            Exchange::LastMicroBatch => 1.0,
        };
        let (reduce_scatters, all_gathers) = match self {
            ZeroStage::Ddp | ZeroStage::Zero1 => (1.0, 1.0),
            ZeroStage::Zero2 => (exchanges, 1.0),
            ZeroStage::Zero3 => (exchanges, 2.0 * m),
        };
        Passes { reduce_scatters, all_gathers }
    }

    /// As [`ZeroStage::volume`] for parts of any length: a reduce-scatter over the ring sends all but the rank's `own`
    /// part, an all-gather all but the part of the `next` rank. All-reduces (DDP) are of equal parts always.
    pub fn volume_of_parts(
        self,
        parameters: f64,
        (own, next): (f64, f64),
        micro_batches: usize,
        exchange: Exchange,
    ) -> f64 {
        let Passes { reduce_scatters, all_gathers } = self.passes(micro_batches, exchange);
        reduce_scatters * (parameters - own) + all_gathers * (parameters - next)
    }

    /// Bytes of parameters, gradients and optimizer state on a rank, with parts of equal length.
    pub fn bytes(self, per_parameter: ParameterBytes, parameters: f64, ranks: usize) -> f64 {
        let part = |cut: bool, bytes: f64| if cut { bytes / ranks as f64 } else { bytes };
        let p = per_parameter;
        let each = part(self == ZeroStage::Zero3, p.parameter)
            + part(matches!(self, ZeroStage::Zero2 | ZeroStage::Zero3), p.gradient)
            + part(self != ZeroStage::Ddp, p.state);
        each * parameters
    }
}

/// Bytes that a parameter costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterBytes {
    /// The value that the model computes with.
    pub parameter: f64,
    /// Its gradient.
    pub gradient: f64,
    /// All that only the optimizer reads: master value, momentum, variance.
    pub state: f64,
}

impl ParameterBytes {
    /// Mixed precision with Adam: 2 + 2 + K, K = 12 (Rajbhandari et al. 2020, section 3.1).
    pub const MIXED_ADAM: ParameterBytes = ParameterBytes { parameter: 2.0, gradient: 2.0, state: 12.0 };
    /// Megatron-LM's distributed optimizer, 16-bit parameters and gradients: 20, or 4 + 16/n with the state sharded
    /// (which has a master gradient too).
    pub const MEGATRON_16_BIT: ParameterBytes = ParameterBytes { parameter: 2.0, gradient: 2.0, state: 16.0 };
    /// Megatron-LM, bf16 parameters and f32 gradients: 18, or 6 + 12/n.
    pub const MEGATRON_BF16: ParameterBytes = ParameterBytes { parameter: 2.0, gradient: 4.0, state: 12.0 };
    /// All f32 with Adam (Megatron-LM, and this program): 16, or 8 + 8/n.
    pub const F32_ADAM: ParameterBytes = ParameterBytes { parameter: 4.0, gradient: 4.0, state: 8.0 };
}

/// Elements that a rank sends for one layer and micro-batch under tensor parallelism over `ranks` ranks, of `batch`
/// sequences of `tokens` tokens at width `width`: four all-reduces of b s h, `8 b s h (t-1)/t`; six, `12 b s h (t-1)/t`,
/// if the forward pass of the layer is computed again for the backward pass (Shoeybi et al. 2019, section 3). With
/// sequence parallelism each all-reduce is a reduce-scatter and an all-gather: the same (Korthikanti et al. 2022,
/// section 4.2.2), without counting an input that is gathered once more for a weight's gradient.
pub fn tensor_parallel_layer(
    batch: usize,
    tokens: usize,
    width: usize,
    ranks: usize,
    recompute: bool,
) -> f64 {
    let all_reduces = if recompute { 6.0 } else { 4.0 };
    2.0 * all_reduces * ring((batch * tokens * width) as f64, ranks)
}

/// Elements that a rank sends for one layer and a micro-batch of `tokens` positions under context parallelism over `ranks` ranks
/// that gather keys and values of width `kv_width` each: 2 all-gathers in the forward pass, again in the backward pass, and
/// reduce-scatters of both gradients, `6 s h_kv (c-1)/c` (the forward part as in Grattafiori et al. 2024, Llama 3, section 3.3.2).
pub fn context_parallel_layer(tokens: usize, kv_width: usize, ranks: usize) -> f64 {
    6.0 * ring((tokens * kv_width) as f64, ranks)
}

/// Elements that a rank sends for one layer and a micro-batch of `tokens` rows under context parallelism over `ranks` ranks that
/// exchange rows for heads: queries of `width` columns, keys and values of `kv_width` columns each, counted once for each rank
/// that has a copy of a head, and the result; in the backward pass their gradients: `4 s (h + h_kv) (c-1)/c^2` (Jacobs et al.
/// 2023, section 3.2, where h_kv = h). A layer that is computed again in full exchanges half of that once more, one that keeps its
/// attention's result `s (h + 2 h_kv) (c-1)/c^2`, one whose attention alone is computed again `s h (c-1)/c^2`.
pub fn ulysses_layer(tokens: usize, width: usize, kv_width: usize, ranks: usize) -> f64 {
    4.0 * ring((tokens * (width + kv_width)) as f64, ranks) / ranks as f64
}

/// Elements that a rank sends, on average over the ranks, for one layer and a micro-batch in a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockElements {
    /// In the type in which activations are stored: queries, keys, values, results and their gradients.
    pub stored: f64,
    /// Always in f32: partial results, sums and terms of gradients, log-sum-exps.
    pub f32: f64,
}

impl BlockElements {
    /// Bytes, where an activation has so many.
    pub fn bytes(self, activation: f64) -> f64 {
        self.stored * activation + self.f32 * 4.0
    }
}

/// Elements of the forward and of the backward pass of one layer where attention is computed in blocks. A forward pass that is made
/// again for the backward pass sends its elements again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockTraffic {
    /// Of the forward pass.
    pub forward: BlockElements,
    /// Of the backward pass.
    pub backward: BlockElements,
}

/// Ring attention of `tokens` positions over `ranks` ranks, keys and values of `kv_width` columns each. Where every rank sees keys of
/// every other (`all`: zig-zag and striped orders), blocks of s/c rows make c - 1 hops: `2 s h_kv (c-1)/c` in the forward pass, the same
/// again in the backward pass, and sums of their gradients, which also come home: `2 s h_kv` in f32 (Liu et al. 2023, section 3). With
/// consecutive positions block i goes on to the last rank only, c - 1 - i hops, and its sums come home from there:
/// `s h_kv (c-1)/c` each way, and `s h_kv (c-1)(c+2)/c^2`.
pub fn ring_layer(tokens: usize, kv_width: usize, ranks: usize, all: bool) -> BlockTraffic {
    let (c, elements) = (ranks as f64, (tokens * kv_width) as f64);
    let hops = if all { 2.0 * ring(elements, ranks) } else { ring(elements, ranks) };
    let sums = match (ranks, all) {
        (1, _) => 0.0,
        (_, true) => 2.0 * elements,
        (_, false) => elements * (c - 1.0) * (c + 2.0) / (c * c),
    };
    let of = |f32| BlockElements { stored: hops, f32 };
    BlockTraffic { forward: of(0.0), backward: of(sums) }
}

/// Attention as LightSeq computes it (Li et al. 2023, algorithm 2), of `tokens` positions over `ranks` ranks: queries of `width` columns
/// in `heads` heads, keys and values of `kv_width` columns each. Of the c(c-1)/2 blocks of different ranks, the queries' rank computes
/// those of keys up to c/2 ranks before; for each it gets keys and values, and gives their gradients back. For each of the others it sends
/// queries to the keys' rank and gets result and log-sum-exps back; in the backward pass it sends queries, result, its gradient and
/// log-sum-exps, and gets the gradient of queries.
pub fn lightseq_layer(
    tokens: usize,
    width: usize,
    heads: usize,
    kv_width: usize,
    ranks: usize,
) -> BlockTraffic {
    let half = ranks / 2;
    let own = half * ranks - half * (half + 1) / 2;
    let rows = |blocks: usize| blocks as f64 * tokens as f64 / (ranks * ranks) as f64;
    let (own, others) = (rows(own), rows(ranks * (ranks - 1) / 2 - own));
    let (h, keys) = (width as f64, 2.0 * kv_width as f64);
    let f32 = others * (width + heads) as f64;
    BlockTraffic {
        forward: BlockElements { stored: own * keys + others * h, f32 },
        backward: BlockElements { stored: own * keys + 3.0 * others * h, f32: f32 + own * keys },
    }
}

/// Elements that a rank of a grid sends along each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlaneVolume {
    /// Along the columns axis: activations, and sums of rows.
    pub columns: f64,
    /// Along the rows axis: parameters and their gradients, and losses.
    pub rows: f64,
    /// Along the depth axis: losses, and sums of gradients.
    pub depth: f64,
}

/// Elements that a rank of a grid of `rows` x `columns` ranks, in `depth` layers, sends for one layer and a micro-batch of `tokens` rows (Xu
/// et al. 2021, by gathers instead of broadcasts). `products`: inputs and outputs of each matrix. With n = tokens / (rows depth) a rank
/// gathers the columns of an input forward and backward and reduce-scatters those of its gradient, `3 n I (c-1)/c`; it gathers a
/// matrix forward and backward and reduce-scatters its gradient, `3 I O/c (r-1)/r`. `row_sums`: numbers that are all-reduced for each
/// row, `2 n (c-1)/c` for each: of a normalisation 2 for RMSNorm and 4 for LayerNorm, and 1 and 2 more if it is computed again.
pub fn plane_layer(
    tokens: usize,
    products: &[(usize, usize)],
    [rows, columns, depth]: [usize; 3],
    row_sums: usize,
) -> PlaneVolume {
    let n = tokens as f64 / (rows * depth) as f64;
    let inputs: usize = products.iter().map(|(inputs, _)| inputs).sum();
    let parameters: usize = products.iter().map(|(inputs, outputs)| inputs * outputs).sum();
    PlaneVolume {
        columns: 3.0 * ring(n * inputs as f64, columns) + 2.0 * ring(n * row_sums as f64, columns),
        rows: 3.0 * ring(parameters as f64 / columns as f64, rows),
        depth: 0.0,
    }
}

/// Elements that a rank of a grid sends for embedding, head and loss of a micro-batch of `tokens` rows, a vocabulary of V tokens and width d.
/// With n as in [`plane_layer`]: the table of tokens is gathered for the embedding and its gradient reduce-scattered, as are those
/// of the output projection, `4 V d/c (r-1)/r`; along columns the embedding reduce-scatters rows and gathers their gradients, the head the
/// other way round, `4 n d (c-1)/c`, and gathers two numbers of each token from every column, `2 n (c-1)`. `row_sums` are those of the
/// last normalisation. The loss of each token is gathered along rows and then along depth.
pub fn plane_ends(
    tokens: usize,
    vocabulary: usize,
    width: usize,
    [rows, columns, depth]: [usize; 3],
    row_sums: usize,
) -> PlaneVolume {
    let n = tokens as f64 / (rows * depth) as f64;
    let table = (vocabulary * width) as f64 / columns as f64;
    let sums = 2.0 * n * columns as f64;
    PlaneVolume {
        columns: 4.0 * ring(n * width as f64, columns)
            + ring(sums, columns)
            + 2.0 * ring(n * row_sums as f64, columns),
        rows: 4.0 * ring(table, rows) + ring(n * rows as f64, rows),
        depth: ring(tokens as f64, depth),
    }
}

/// Elements of parameters, by how a grid shards them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GridElements {
    /// Matrices of products, the table of tokens and the output projection.
    pub matrices: f64,
    /// Biases of the first products of blocks.
    pub first_biases: f64,
    /// Biases of the second ones.
    pub second_biases: f64,
    /// Normalisations of the residual stream, and the table of positions.
    pub vectors: f64,
    /// Normalisations of queries and keys, which every rank has whole.
    pub head_norms: f64,
}

/// Elements that a rank of a grid sends to complete the gradients of a stage: all-reduces over the axes that do not shard a parameter, or not
/// its gradient's rows. Along rows of what the columns alone shard, along depth of everything, along columns of `q_norm` and `k_norm`, whose
/// gradients come from this rank's heads.
pub fn plane_gradients(of: GridElements, [rows, columns, depth]: [usize; 3]) -> PlaneVolume {
    let (r, c) = (rows as f64, columns as f64);
    let by_columns = (of.first_biases + of.second_biases + of.vectors) / c + of.head_norms;
    PlaneVolume {
        columns: 2.0 * ring(of.head_norms, columns),
        rows: 2.0 * ring(by_columns, rows),
        depth: 2.0 * ring(of.matrices / (r * c) + by_columns, depth),
    }
}

/// Elements that a rank of a cube of `side`^3 ranks sends for one layer and a micro-batch of `tokens` rows, along i (parameters), j and
/// l (activations), without normalisations (Bian et al. 2021).
///
/// A product of I inputs and O outputs: its matrix is gathered twice and its gradient reduce-scattered once over i, `3 I O/q^2 (q-1)/q`.
/// Of a first product rows of the input are gathered over j forward and backward and its gradient is reduce-scattered, `3 n I/q^2
/// (q-1)/q`; its outputs are reduce-scattered over l and their gradients gathered, `2 n O/q^2 (q-1)/q`. Of a second product j and l, inputs and
/// outputs, change their roles.
pub fn cube_layer(tokens: usize, products: &[CubeProduct], side: usize) -> CubeVolume {
    let (n, q2) = (tokens as f64, (side * side) as f64);
    let mut volume = CubeVolume { parameters: 0.0, rows: 0.0, columns: 0.0 };
    for product in products {
        let (inputs, outputs) = (product.inputs as f64, product.outputs as f64);
        volume.parameters += 3.0 * ring(inputs * outputs / q2, side);
        let (input, output) = (3.0 * ring(n * inputs / q2, side), 2.0 * ring(n * outputs / q2, side));
        let (rows, columns) = if product.second { (output, input) } else { (input, output) };
        volume.rows += rows;
        volume.columns += columns;
    }
    volume
}

/// Elements that a rank of a cube sends for embedding, head and loss of a micro-batch of `tokens` rows, a vocabulary of V tokens and width d.
///
/// Along i the table of tokens and the output projection are gathered once each and their gradients reduce-scattered,
/// `4 V d/q^2 (q-1)/q`. The embedding reduce-scatters rows over j and gathers their gradients, `2 n d/q^2 (q-1)/q`. In the head ranks along l
/// divide the tokens: rows are gathered over l, `n d/q^2`, and over j, `n d/q`; the projection over l, `V d/q`, and its gradient is
/// reduce-scattered; gradients of rows are all-reduced over j, `n d/q^2`, and gathered over l, `n d/q`, all times (q-1)/q. Two
/// numbers of each token are gathered from every j, and its loss over l and over i. `row_sums` are those of the last normalisation.
pub fn cube_ends(tokens: usize, vocabulary: usize, width: usize, side: usize, row_sums: usize) -> CubeVolume {
    let (n, q) = (tokens as f64, side as f64);
    let (table, stream) = ((vocabulary * width) as f64 / q, n * width as f64 / q);
    CubeVolume {
        parameters: 4.0 * ring(table / q, side) + ring(n, side),
        rows: 4.0 * ring(stream / q, side) + ring(stream, side) + ring(2.0 * n / q, side),
        columns: ring(stream / q, side)
            + ring(stream, side)
            + 2.0 * ring(table, side)
            + ring(n / q, side)
            + 2.0 * ring(n / (q * q) * row_sums as f64, side),
    }
}

/// Elements that a rank of a cube sends to complete the gradients of a stage: all-reduces along i of all but matrices, along j of what is made
/// from this rank's rows of the residual stream alone, along l of `q_norm` and `k_norm`.
pub fn cube_gradients(of: GridElements, side: usize) -> CubeVolume {
    let q = side as f64;
    CubeVolume {
        parameters: 2.0 * ring((of.first_biases + of.second_biases + of.vectors) / q + of.head_norms, side),
        rows: 2.0 * ring(of.vectors / q + of.head_norms, side),
        columns: 2.0 * ring(of.head_norms, side),
    }
}

/// A product of a layer on a cube.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CubeProduct {
    /// Inputs of the matrix.
    pub inputs: usize,
    /// Outputs of the matrix.
    pub outputs: usize,
    /// Whether it is the second of its block.
    pub second: bool,
}

/// Elements that a rank of a cube sends along each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CubeVolume {
    /// Along depth, i: parameters and their gradients.
    pub parameters: f64,
    /// Along rows, j: activations.
    pub rows: f64,
    /// Along columns, l: activations.
    pub columns: f64,
}

/// Elements that the ranks of one pipeline send for a micro-batch of `batch` sequences of `tokens` tokens at width `width`:
/// the residual stream and its gradient, b s h each, over every boundary between stages on different ranks.
pub fn pipeline_micro_batch(batch: usize, tokens: usize, width: usize, boundaries: usize) -> f64 {
    (2 * boundaries * batch * tokens * width) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rajbhandari et al. 2020, figure 1: 7.5e9 parameters over 64 ranks.
    #[test]
    fn published_bytes_of_zero() {
        let gigabytes = ZeroStage::ALL.map(|s| s.bytes(ParameterBytes::MIXED_ADAM, 7.5e9, 64) / 1e9);
        for (found, wanted) in gigabytes.iter().zip([120.0, 31.4, 16.6, 1.9]) {
            assert!((found - wanted).abs() < 0.05, "{gigabytes:?}");
        }
        let total = |p: ParameterBytes| p.parameter + p.gradient + p.state;
        let megatron = [
            (ParameterBytes::MEGATRON_16_BIT, 20.0, 4.0, 16.0),
            (ParameterBytes::MEGATRON_BF16, 18.0, 6.0, 12.0),
            (ParameterBytes::F32_ADAM, 16.0, 8.0, 8.0),
        ];
        for (bytes, whole, kept, cut) in megatron {
            assert_eq!(total(bytes), whole);
            assert_eq!(ZeroStage::Zero1.bytes(bytes, 1.0, 8), kept + cut / 8.0);
        }
    }

    #[test]
    fn published_volumes() {
        let psi = 64.0;
        let of = |m, e| ZeroStage::ALL.map(|s| s.volume(psi, 4, m, e) / (psi * 0.75));
        assert_eq!(of(1, Exchange::EachMicroBatch), [2.0, 2.0, 2.0, 3.0]);
        assert_eq!(of(5, Exchange::EachMicroBatch), [2.0, 2.0, 6.0, 15.0]);
        assert_eq!(of(5, Exchange::LastMicroBatch), [2.0, 2.0, 2.0, 11.0]);
        for stage in ZeroStage::ALL {
            let parts = stage.volume_of_parts(psi, (16.0, 16.0), 5, Exchange::EachMicroBatch);
            assert_eq!(parts, stage.volume(psi, 4, 5, Exchange::EachMicroBatch));
        }
        assert!(ZeroStage::ALL.iter().all(|s| s.volume(psi, 1, 1, Exchange::EachMicroBatch) == 0.0));
        assert_eq!(tensor_parallel_layer(2, 8, 16, 4, false), 8.0 * 256.0 * 0.75);
        assert_eq!(tensor_parallel_layer(2, 8, 16, 4, true), 12.0 * 256.0 * 0.75);
        assert_eq!(context_parallel_layer(16, 8, 4), 6.0 * 128.0 * 0.75);
        // Bian et al. 2021, table 1, and Xu et al. 2021: one square matrix of unit size, all of X and W.
        let plane = plane_layer(16, &[(16, 16)], [4, 4, 1], 0);
        assert_eq!(plane, PlaneVolume { columns: 3.0 * 64.0 * 0.75, rows: 3.0 * 64.0 * 0.75, depth: 0.0 });
        assert_eq!(plane_layer(16, &[(16, 16)], [4, 4, 2], 0).columns, plane.columns / 2.0);
        let product = CubeProduct { inputs: 16, outputs: 16, second: false };
        let cube = cube_layer(16, &[product], 2);
        assert_eq!((cube.parameters, cube.rows, cube.columns), (96.0, 96.0, 64.0));
        assert_eq!(ulysses_layer(16, 24, 8, 4), 4.0 * 512.0 * 0.75 / 4.0);
        let sent = |stored, f32| BlockElements { stored, f32 };
        let ring = ring_layer(16, 8, 4, true);
        assert_eq!((ring.forward, ring.backward), (sent(2.0 * 96.0, 0.0), sent(192.0, 256.0)));
        // Blocks of 4 rows: 6 hops of 2 x 8 columns over all ranks, and 6 + 3 of sums.
        let ring = ring_layer(16, 8, 4, false);
        assert_eq!((ring.forward, ring.backward), (sent(6.0 * 16.0, 0.0), sent(96.0, 9.0 * 16.0)));
        // Distances 1 and 2 by the owners, 3 + 2 blocks; distance 3 by the rank that has the keys.
        let seq = lightseq_layer(16, 24, 3, 8, 4);
        assert_eq!(seq.forward, sent(5.0 * 16.0 + 24.0, 27.0));
        assert_eq!(seq.backward, sent(5.0 * 16.0 + 72.0, 27.0 + 80.0));
        assert_eq!(seq.forward.bytes(2.0), 2.0 * 104.0 + 4.0 * 27.0);
    }
}
