//! A decoder that is one tensor shard of a tensor-parallel group (Shoeybi et al. 2019), with the residual stream whole or sharded by
//! rows (sequence parallelism; Korthikanti et al. 2022), or that has some positions of every sequence and the whole model (context
//! parallelism).

use crate::config::ActivationConfig;
use crate::decoder::{Decoder, Shape};
use crate::error::ModelError;
use crate::params::Param;
use crate::stage::StageConfig;
use bessemer_arch::TensorShard;
use bessemer_mesh::{Axis, ContextSharing, PositionOrder, TensorGrid};
use bessemer_program::{AxisRole, Rank};
use bessemer_tensor::Backend;

/// How a tensor shard holds the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// All rows, the same on every tensor shard.
    Whole,
    /// As [`Stream::Whole`] in a pass. Between the forward and the backward pass of a micro-batch tensor shard i of t keeps
    /// rows `i n / t ..` of what enters each layer (Rajbhandari et al. 2020, ZeRO: P_a).
    Partitioned,
    /// Of the n rows of a micro-batch, tensor shard i of t holds rows `i n / t ..` of the stream and of all that is done row by
    /// row (sequence parallelism).
    Rows,
    /// As [`Stream::Rows`], on ranks of the context axis: no parameter is sharded
    /// ([`bessemer_arch::Model::context_shardings`]), and the method relates positions of different ranks. A rank's rows are those
    /// of [`ContextSharing::positions`].
    Context(ContextSharing),
    /// As the tensor shard's grid says: rows in whole sequences, and columns.
    Grid,
}

impl Stream {
    /// The axis whose ranks share a micro-batch.
    pub fn axis(self) -> Axis {
        match self {
            Stream::Context(_) => Axis::Context,
            Stream::Whole | Stream::Partitioned | Stream::Rows | Stream::Grid => Axis::Tensor,
        }
    }
}

/// The rank that a tensor shard is on every axis of its group, in the order in which programs are rewritten for them.
pub(crate) fn ranks_of(
    tensor_shard: &TensorShard,
    stream: Stream,
    shape: Shape,
) -> Result<Vec<Rank>, ModelError> {
    match (tensor_shard.grid, stream) {
        (Some(grid), Stream::Grid) => grid_ranks(tensor_shard, grid, shape),
        (None, Stream::Grid) | (Some(_), _) => Err(ModelError::TensorShard(format!(
            "{stream:?} for a tensor shard of {}: a grid of tensor-parallel ranks has its own stream, and only it",
            tensor_shard.grid.map_or("a line".into(), |grid| grid.to_string())
        ))),
        (None, _) => Ok(vec![rank_of(tensor_shard, stream, shape)?]),
    }
}

/// The rank on the axes of a grid.
fn grid_ranks(tensor_shard: &TensorShard, grid: TensorGrid, shape: Shape) -> Result<Vec<Rank>, ModelError> {
    let parts = grid.sequence_parts();
    if !shape.sequences.is_multiple_of(parts) {
        return Err(ModelError::TensorShard(format!(
            "a grid of {grid} shards a micro-batch by whole sequences in {parts} parts: wanted a number of sequences that {parts} \
             divides, found {}; change train.micro_batch or parallel.tensor",
            shape.sequences
        )));
    }
    let role = |axis: Axis| match (axis, grid) {
        (Axis::TensorRow, TensorGrid::Cube { .. }) => AxisRole::Line,
        (Axis::TensorColumn, TensorGrid::Cube { .. }) => AxisRole::Turned,
        (Axis::TensorColumn, TensorGrid::Plane { .. }) => AxisRole::Columns,
        _ => AxisRole::Sequences,
    };
    let rank = |axis: Axis| {
        let (degree, index, role) = (grid.degree(axis), tensor_shard.at(axis), role(axis));
        Rank { axis, degree, index, role, sequence: !role.shards_columns(), ..Rank::alone() }
    };
    let ranks: Vec<Rank> = grid.rewriting().into_iter().map(rank).filter(|rank| rank.degree > 1).collect();
    Ok(if ranks.is_empty() { vec![Rank::alone()] } else { ranks })
}

/// The rank of the only axis of a group.
fn rank_of(tensor_shard: &TensorShard, stream: Stream, shape: Shape) -> Result<Rank, ModelError> {
    let (degree, n) = (tensor_shard.degree, shape.tokens());
    let sequence = matches!(stream, Stream::Rows | Stream::Context(_)) && degree > 1;
    let partition = stream == Stream::Partitioned && degree > 1;
    if let Stream::Context(sharing) = stream
        && degree > 1
    {
        let whole = &tensor_shard.whole;
        let problem = sharing.problem(degree, whole.heads, whole.kv_heads);
        if let Some(problem) = problem.or_else(|| sharing.length_problem(shape.seq, degree)) {
            return Err(ModelError::TensorShard(problem));
        }
    }
    let one_sequence = matches!(stream, Stream::Context(sharing) if sharing.method.one_sequence());
    if one_sequence && degree > 1 && (shape.sequences != 1 || !shape.seq.is_multiple_of(degree)) {
        return Err(ModelError::TensorShard(format!(
            "context parallelism over {degree} ranks wants one sequence in a micro-batch, of a length that {degree} divides; found \
             {} of {}; set train.micro_batch = 1 and change train.seq_len or parallel.context",
            shape.sequences, shape.seq
        )));
    }
    if (sequence || partition) && !n.is_multiple_of(degree) {
        let what = if partition { "a partition of activations" } else { "sequence parallelism" };
        return Err(ModelError::TensorShard(format!(
            "{what} over {degree} tensor shards wants a number of tokens of a micro-batch that {degree} divides, \
             found {} x {} = {n}; change the sequences or their length",
            shape.sequences, shape.seq
        )));
    }
    let (order, context) = match stream {
        Stream::Context(sharing) => (sharing.positions(shape.seq, degree), sharing),
        _ => (PositionOrder::Consecutive, ContextSharing::default()),
    };
    let (axis, index, role) = (stream.axis(), tensor_shard.index, AxisRole::Line);
    Ok(Rank { axis, degree, index, role, sequence, order, context, partition })
}

impl Decoder {
    /// A decoder that is one tensor shard of a model. Its parameters are `tensor_shard.params()`, placed by the caller
    /// ([`Decoder::with_params`]; names and initial distributions are not looked at beyond the names and shapes of
    /// `tensor_shard.model`) or allocated here. Every tensor shard of the group runs the same passes on the same batches, through
    /// [`crate::StageRanks`] that run the collectives of its program, and all report the same losses.
    ///
    /// # Errors
    /// As [`Decoder::with_params`]; with [`Stream::Rows`] and [`Stream::Context`], tokens that the ranks do not divide evenly; with
    /// methods that share one sequence ([`bessemer_mesh::ContextMethod::one_sequence`]), several; heads or an order that do not fit
    /// ([`ContextSharing::problem`]). What a tensor shard cannot do is refused where it is asked: logits, and decoding with a cache.
    pub fn of_tensor_shard(
        backend: &mut dyn Backend,
        tensor_shard: &TensorShard,
        stream: Stream,
        shape: Shape,
        config: ActivationConfig,
        placed: Option<Vec<Param>>,
    ) -> Result<Decoder, ModelError> {
        let stage = StageConfig::whole(&tensor_shard.model);
        Decoder::of_stage(backend, tensor_shard, stream, shape, config, &stage, placed)
    }

    /// The tensor shard of the model that this decoder is, unless it was made from a whole one.
    pub fn tensor_shard(&self) -> Option<&TensorShard> {
        self.tensor_shard.as_deref()
    }

    /// Errors if this is not a whole model, which `what` needs.
    pub(crate) fn expect_whole(&self, what: &str) -> Result<(), ModelError> {
        self.expect_all_layers(what)?;
        match &self.tensor_shard {
            Some(p) if !p.is_whole() => Err(ModelError::TensorShard(format!(
                "{what} needs the whole model, found tensor shard {} of {}; load the weights into a decoder of their own",
                p.index, p.degree
            ))),
            _ => Ok(()),
        }
    }
}
