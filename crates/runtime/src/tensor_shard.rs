//! A decoder that is one tensor shard of a tensor-parallel group (Shoeybi et al. 2019), with the residual stream whole or sharded by
//! rows (sequence parallelism; Korthikanti et al. 2022), or that has some positions of every sequence and the whole model (context
//! parallelism).

use crate::config::ActivationConfig;
use crate::decoder::{Decoder, Purpose, Shape};
use crate::error::ModelError;
use crate::params::Param;
use crate::stage::StageConfig;
use bessemer_arch::TensorShard;
use bessemer_mesh::{Axis, ContextMethod, ContextSharing, TensorGrid, exchange_problem};
use bessemer_program::{AxisRole, Rank};
use bessemer_tensor::Backend;

/// Layout of the residual stream on the ranks of a line of tensor parallelism.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum LineStream {
    /// All rows, the same on every tensor shard.
    #[default]
    Whole,
    /// The layout of [`LineStream::Whole`] in a pass. Between the forward and the backward pass of a micro-batch tensor shard i of t keeps
    /// rows `i n / t ..` of the input of each layer (Rajbhandari et al. 2020, ZeRO: P_a).
    Partitioned,
    /// Tensor shard i of t holds rows `i n / t ..` of the n rows of a micro-batch, of the stream and of all operators that work row by
    /// row (sequence parallelism).
    Rows,
}

/// Layout of the residual stream on a tensor shard. The axes of a grid determine it: rows in whole sequences, and columns.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Along the axis of tensor parallelism. The rows are those of this rank's positions, if ranks share sequences.
    pub line: LineStream,
    /// Communication of ranks that share sequences around attention, and the positions of each. Each holds the rows of its positions.
    pub context: ContextSharing,
}

impl Stream {
    /// All rows of a micro-batch, or of this rank's positions, on every tensor shard.
    pub const WHOLE: Stream = Stream::of(LineStream::Whole);
    /// [`LineStream::Partitioned`].
    pub const PARTITIONED: Stream = Stream::of(LineStream::Partitioned);
    /// [`LineStream::Rows`].
    pub const ROWS: Stream = Stream::of(LineStream::Rows);

    const fn of(line: LineStream) -> Stream {
        Stream { line, context: ContextSharing::of(ContextMethod::AllGather) }
    }

    /// [`Stream::WHOLE`] on ranks that share sequences so.
    pub const fn shared(context: ContextSharing) -> Stream {
        Stream { line: LineStream::Whole, context }
    }

    /// Refuses micro-batches of `sequences` of any of these lengths whose rows the ranks of a tensor shard's group cannot share.
    ///
    /// # Errors
    /// [`ModelError::TensorShard`]: the value wanted and the one found, and what to change.
    pub fn check(
        self,
        tensor_shard: &TensorShard,
        sequences: usize,
        lengths: &[usize],
    ) -> Result<(), ModelError> {
        let shape = |seq: &usize| Shape { sequences, seq: *seq, purpose: Purpose::Train };
        lengths.iter().try_for_each(|seq| ranks_of(tensor_shard, self, shape(seq)).map(drop))
    }
}

/// The rank that a tensor shard is on every axis of its group, in the order in which programs are rewritten for them.
pub(crate) fn ranks_of(
    tensor_shard: &TensorShard,
    stream: Stream,
    shape: Shape,
) -> Result<Vec<Rank>, ModelError> {
    if let Some(grid) = tensor_shard.grid {
        return grid_ranks(tensor_shard, grid, stream, shape);
    }
    let line = line_rank(tensor_shard, stream.line, shape)?;
    let ranks = [line, heads_rank(tensor_shard)?, context_rank(tensor_shard, stream.context, shape)?];
    let exchanges = |rank: Rank| Rank { exchanges_rows: tensor_shard.spreads_experts(rank.axis), ..rank };
    let several: Vec<Rank> = ranks.into_iter().filter(|rank| rank.degree > 1).map(exchanges).collect();
    Ok(if several.is_empty() { vec![Rank::alone()] } else { several })
}

/// The rank among those that share the experts of its layers, if there are others.
pub(crate) fn expert_rank(tensor_shard: &TensorShard) -> Option<Rank> {
    let axis = Axis::Expert;
    let (degree, index) = tensor_shard.among_experts();
    (degree > 1).then(|| Rank { axis, degree, index, ..Rank::alone() })
}

/// The rank on the axes of a grid.
fn grid_ranks(
    tensor_shard: &TensorShard,
    grid: TensorGrid,
    stream: Stream,
    shape: Shape,
) -> Result<Vec<Rank>, ModelError> {
    if stream.line != LineStream::Whole {
        return Err(ModelError::TensorShard(format!(
            "{:?} for a tensor shard of {grid}: a grid of tensor-parallel ranks needs its own layout of the \
             residual stream, other shards another",
            stream.line
        )));
    }
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

/// The rank on the axis of a line of tensor parallelism.
fn line_rank(tensor_shard: &TensorShard, stream: LineStream, shape: Shape) -> Result<Rank, ModelError> {
    let axis = Axis::Tensor;
    let (degree, index) = (tensor_shard.mesh().degree(axis), tensor_shard.at(axis));
    let rows = shape.tokens() / tensor_shard.mesh().size(&Axis::SEQUENCES);
    if stream != LineStream::Whole && !rows.is_multiple_of(degree) {
        let key = match stream {
            LineStream::Partitioned => "parallel.partition_activations",
            LineStream::Rows | LineStream::Whole => "parallel.sequence",
        };
        let sharing = match shape.tokens() / rows {
            1 => String::new(),
            ranks => format!(" on each of parallel.context = {ranks} ranks"),
        };
        return Err(ModelError::TensorShard(format!(
            "{key} = true with parallel.tensor = {degree}: wanted a number of positions of a micro-batch that {degree} divides, found {} \
             sequences of {} tokens, {rows} positions{sharing}; change train.micro_batch, train.seq_len or parallel.tensor, or take {key} = \
             false",
            shape.sequences, shape.seq
        )));
    }
    let (sequence, partition) = (stream == LineStream::Rows, stream == LineStream::Partitioned);
    Ok(Rank { axis, degree, index, sequence, partition, ..Rank::alone() })
}

/// The rank among those that exchange heads for the positions of their group.
fn heads_rank(tensor_shard: &TensorShard) -> Result<Rank, ModelError> {
    let axis = Axis::ContextHeads;
    let (degree, index) = (tensor_shard.mesh().degree(axis), tensor_shard.at(axis));
    if let Some(problem) = exchange_problem(degree, tensor_shard.model.heads, tensor_shard.model.kv_heads) {
        return Err(ModelError::TensorShard(problem));
    }
    let context = ContextSharing::of(ContextMethod::Ulysses);
    Ok(Rank { axis, degree, index, sequence: true, context, ..Rank::alone() })
}

/// The rank among those that share sequences, or groups of them.
fn context_rank(
    tensor_shard: &TensorShard,
    context: ContextSharing,
    shape: Shape,
) -> Result<Rank, ModelError> {
    let axis = Axis::Context;
    let (degree, index) = (tensor_shard.mesh().degree(axis), tensor_shard.at(axis));
    let order = context.positions(shape.seq, degree);
    let rank = Rank { axis, degree, index, sequence: true, order, context, ..Rank::alone() };
    if degree == 1 {
        return Ok(rank);
    }
    // The heads of this rank's line.
    let (heads, kv_heads) = (tensor_shard.model.heads, tensor_shard.model.kv_heads);
    let problem = context.problem(degree, heads, kv_heads);
    if let Some(problem) = problem.or_else(|| context.length_problem(shape.seq, degree)) {
        return Err(ModelError::TensorShard(problem));
    }
    let (one_sequence, all) = (context.method.one_sequence(), tensor_shard.mesh().size(&Axis::SEQUENCES));
    let shared = if one_sequence { shape.seq } else { shape.tokens() };
    if (one_sequence && shape.sequences != 1) || !shared.is_multiple_of(all) {
        let wanted = match one_sequence {
            true => "one sequence in a micro-batch, of a length",
            false => "a number of tokens of a micro-batch",
        };
        return Err(ModelError::TensorShard(format!(
            "context parallelism over {all} ranks needs {wanted} that {all} divides; found {} of {}; set \
             train.micro_batch = 1 and change train.seq_len or parallel.context",
            shape.sequences, shape.seq
        )));
    }
    Ok(rank)
}

impl Decoder {
    /// A decoder that is one tensor shard of a model. Its parameters are `tensor_shard.params()`, placed by the caller
    /// ([`Decoder::with_params`]; names and initial distributions are not checked beyond the names and shapes of
    /// `tensor_shard.model`) or allocated here. Every tensor shard of the group runs the same passes on the same batches, through
    /// [`crate::StageRanks`] that run the collectives of its program, and all report the same losses.
    ///
    /// # Errors
    /// Same errors as [`Decoder::with_params`]; with [`LineStream::Rows`] and on ranks that share sequences, tokens that they do not divide
    /// evenly; with methods that share one sequence ([`bessemer_mesh::ContextMethod::one_sequence`]), several; heads or an order that do not fit
    /// ([`ContextSharing::problem`]). Operations that a tensor shard does not support are refused at their call: logits, and decoding with a cache.
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
            Some(p) if !p.is_whole_beside_experts() => Err(ModelError::TensorShard(format!(
                "{what} needs the whole model, found tensor shard {} of {}; load the weights into a decoder of their own",
                p.index, p.degree
            ))),
            _ => Ok(()),
        }
    }
}
