//! The step of one rank as one list: the units of all passes, transfers and messages between them, and the updates.
//!
//! A schedule orders passes of chunks, and [`crate::DataProgram`] adds the transfers between the units of each. Expanded, they are a
//! [`RankProgram`]: [`crate::verify_step`] checks it, the executor runs it, a simulator times it and [`crate::print_step`] prints it.

use crate::unit::Phase;
use crate::zero::{DataProgram, Transfer, UnitUse};
use std::ops::Range;

/// Part of the residual stream that travels between chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Its values, in the direction of the forward pass.
    Values,
    /// Its gradient, in the direction of the backward pass.
    Gradient,
}

/// Whether the lists of a pass add to the gradients in memory, for those of each part of a backward pass.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GradientAdds {
    /// Gradients that the input part writes: norms, tables, output projection.
    pub input: bool,
    /// Gradients that the weight part writes: matrices of the layers and their biases.
    pub weight: bool,
}

/// A pass of one micro-batch through the units of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The list that each unit runs.
    pub phase: Phase,
    /// Number of the micro-batch; evaluated batches are numbered after those that train.
    pub micro: usize,
    /// Slot of the micro-batch's activations. The weight part of a split backward pass reads a pending set instead.
    pub slot: Option<usize>,
    /// Version of the weights that the schedule demands: the number of the step's updates of the chunk before it.
    pub version: usize,
    /// Memory of that version: a kept copy, or the weights themselves.
    pub kept: Option<usize>,
    /// Update that its gradients are for, from 0.
    pub update: usize,
    /// Whether its gradients are added to those in memory.
    pub adds: GradientAdds,
    /// No earlier pass has made gradients of matrices for the update.
    pub begins: bool,
}

/// A message to or from another pipeline rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// Part of the residual stream that is sent.
    pub stream: Stream,
    /// Number of the micro-batch, as in [`Pass::micro`].
    pub micro: usize,
    /// Slot of the micro-batch on this rank.
    pub slot: usize,
    /// Pipeline rank at the other end.
    pub peer: usize,
    /// Tag, the same at both ends.
    pub tag: u64,
    /// Size.
    pub bytes: u64,
}

/// A copy of the residual stream from one chunk of a rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hand {
    /// Part of the residual stream that is copied.
    pub stream: Stream,
    /// Number of the micro-batch, as in [`Pass::micro`].
    pub micro: usize,
    /// Slot in the chunk that it leaves.
    pub slot: usize,
    /// Number of the chunk that receives it.
    pub to: usize,
    /// Slot there.
    pub to_slot: usize,
}

/// Ranks over which the squared norm of the gradients is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NormGroup {
    /// Ranks over which the parameters of a group are sharded: the sum of that group's squares.
    Shard(usize),
    /// Ranks that have other experts of the parameters of a group: the sum of that group's squares.
    Experts(usize),
    /// Ranks that share the layers of the chunk.
    Layers,
    /// Ranks of the pipeline.
    Pipeline,
}

impl std::fmt::Display for NormGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NormGroup::Shard(0) => f.write_str("shard"),
            NormGroup::Shard(group) => write!(f, "shard of parameter group {group}"),
            NormGroup::Experts(group) => write!(f, "experts of parameter group {group}"),
            NormGroup::Layers => f.write_str("the ranks of a layer"),
            NormGroup::Pipeline => f.write_str("pipeline"),
        }
    }
}

/// Work that is no pass, such as K-FAC's, in a bubble of the pipeline. The verifier does not look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filler {
    /// Number of the work among the step's.
    pub work: usize,
    /// Description: kind and unit.
    pub name: String,
    /// True if it is a part of the update, after the norm.
    pub update: bool,
}

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A pass begins: tokens and loss factors of a forward pass are written to its slot, a teacher makes its rows of the tokens, and the
    /// step's numbers (weights of losses, random counters) are written to the device.
    Begin(Pass),
    /// A unit of the chunk runs its list of the pass's phase.
    Unit {
        /// Number of the unit in the chunk.
        unit: usize,
        /// The pass, as it began.
        pass: Pass,
    },
    /// A pass ends: the losses that it has made are read, and the pass's memory is free unless another node reads it.
    End(Pass),
    /// The entry [`crate::PassNode::Complete`].
    Complete(Vec<usize>),
    /// The entry [`crate::PassNode::Start`].
    Start(Transfer),
    /// The entry [`crate::PassNode::Wait`].
    Wait(Transfer),
    /// The entry [`crate::PassNode::Add`].
    Add(usize),
    /// The residual stream of a micro-batch is sent to another rank.
    Send(Message),
    /// The residual stream of a micro-batch is received from another rank.
    Receive(Message),
    /// The residual stream of a micro-batch is copied to another chunk of this rank.
    Hand(Hand),
    /// Both ends of a tied token table add their terms of its gradient.
    Tie,
    /// The losses are summed over all ranks.
    Losses,
    /// The squares of the chunk's gradients are summed on this rank.
    Squares,
    /// The sum of the squares becomes that of all ranks of a group.
    SumSquares(NormGroup),
    /// The optimizer prepares the chunk's update.
    Prepare,
    /// The terms of the size of the update are summed over the pipeline.
    SumSize,
    /// The optimizer's update of the chunk.
    Update {
        /// Micro-batches whose gradients it uses.
        micro_batches: usize,
        /// Number of the update, from 0.
        update: usize,
        /// Memory to which the weights are copied before, if a later pass reads them.
        keep: Option<usize>,
    },
    /// Work that is no pass.
    Filler(Filler),
}

/// One entry of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepNode {
    /// Chunk of the entry; 0 if it belongs to all.
    pub chunk: usize,
    /// Kind of the entry, with its operands.
    pub action: Action,
}

/// The step of one rank: the list that is verified, executed, simulated and printed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RankProgram {
    /// The entries, in the order in which the rank runs them.
    pub nodes: Vec<StepNode>,
}

impl RankProgram {
    fn section(&self, of: impl Fn(&Action) -> bool) -> Range<usize> {
        let first = self.nodes.iter().position(|node| of(&node.action));
        let last = self.nodes.iter().rposition(|node| of(&node.action));
        first.zip(last).map_or(self.nodes.len()..self.nodes.len(), |(first, last)| first..last + 1)
    }

    /// Entries that sum the squares of the gradients; empty at the end of the list if there are none.
    pub fn norm(&self) -> Range<usize> {
        self.section(|action| matches!(action, Action::Squares | Action::SumSquares(_)))
    }

    /// Entries before the sum of the losses and the norm: passes, and transfers until the gradients are complete.
    pub fn gradients(&self) -> Range<usize> {
        let losses = self.section(|action| matches!(action, Action::Losses)).start;
        0..losses.min(self.norm().start)
    }

    /// Entries after the norm.
    pub fn updates(&self) -> Range<usize> {
        self.norm().end..self.nodes.len()
    }
}

/// Facts about a chunk for [`crate::verify_step`].
#[derive(Debug, Clone)]
pub struct StepChunk {
    /// Names of its units, in the order of the forward pass: "embedding", "layers.3", "head".
    pub names: Vec<String>,
    /// Whether the chunk begins with the embedding.
    pub embedding: bool,
    /// Whether the chunk ends with the head.
    pub head: bool,
    /// Whether a token table of the chunk is tied to another chunk's.
    pub tied: bool,
    /// Number of the memory of its slots; chunks of one number share them.
    pub pool: usize,
    /// Number of its slots.
    pub slots: usize,
    /// Number of older versions of its weights that can be kept.
    pub kept: usize,
    /// Number of the ranks that share its layers.
    pub layer_ranks: usize,
    /// Number of the ranks of the pipeline.
    pub pipeline_ranks: usize,
    /// Whether the size of an update is summed over the pipeline.
    pub sums_size: bool,
    /// Indexed by group of parameters: whether it is trained.
    pub trained: Vec<bool>,
    /// Indexed by group of parameters: number of the ranks that have other experts of it, 1 if all have the same parameters.
    pub expert_ranks: Vec<usize>,
    /// Its flat parameters.
    pub data: DataProgram,
    /// Indexed by [`Phase`]: the uses of each unit's list, in the order of the forward pass.
    pub uses: [Vec<UnitUse>; 5],
}

impl StepChunk {
    /// Number of its units.
    pub fn units(&self) -> usize {
        self.names.len()
    }

    /// Whether the gradients of its flat parameters are reduced in every pass.
    pub fn settles(&self) -> bool {
        (0..self.flats()).any(|flat| self.data.settles(flat))
    }

    /// Whether the model trains parameters of a group, in this chunk or another.
    pub fn trains(&self, group: usize) -> bool {
        self.trained.get(group).copied().unwrap_or(false)
    }

    /// Number of its flat parameters.
    pub fn flats(&self) -> usize {
        self.data.flats.len()
    }
}
