//! The step of one rank as one list: the units of all passes, what travels between and around them, and the updates.
//!
//! A schedule names passes of chunks; [`crate::DataProgram`] says what joins the units of each. Expanded, they are a list of
//! [`StepNode`]s in the order in which the rank runs them, which [`crate::verify_step`] checks, a simulator times and people read.

use crate::unit::Phase;
use crate::zero::{DataProgram, Transfer, UnitUse};

/// What of the residual stream travels between chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Its values, in the direction of the forward pass.
    Values,
    /// Its gradient, in the direction of the backward pass.
    Gradient,
}

/// A message to or from another pipeline rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// The part of the residual stream that travels.
    pub stream: Stream,
    /// Number of the micro-batch; evaluated batches are numbered behind those that train.
    pub micro: usize,
    /// Pipeline rank at the other end.
    pub peer: usize,
    /// Tag, the same at both ends.
    pub tag: u64,
    /// Size.
    pub bytes: u64,
}

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A unit of the chunk runs its list of the phase.
    Unit {
        /// Number of the unit in the chunk.
        unit: usize,
        /// The list.
        phase: Phase,
        /// Number of the micro-batch.
        micro: usize,
        /// It reads an older version of the weights, which was kept for it.
        older: bool,
    },
    /// As [`crate::PassNode::Complete`].
    Complete(Vec<usize>),
    /// As [`crate::PassNode::Start`].
    Start(Transfer),
    /// As [`crate::PassNode::Wait`].
    Wait(Transfer),
    /// As [`crate::PassNode::Add`].
    Add(usize),
    /// The residual stream of a micro-batch leaves the chunk for another rank.
    Send(Message),
    /// The residual stream of a micro-batch comes from another rank.
    Receive(Message),
    /// The residual stream of a micro-batch goes on to another chunk of this rank.
    Hand {
        /// The part of the residual stream that is copied.
        stream: Stream,
        /// Number of the micro-batch.
        micro: usize,
        /// Number of the chunk that receives it.
        to: usize,
    },
    /// Both ends of a tied token table add their terms of its gradient.
    Tie,
    /// The global norm of the gradients of all chunks, for which all ranks meet.
    Norm,
    /// The optimizer's update of the chunk.
    Update {
        /// Micro-batches whose gradients it takes.
        micro_batches: usize,
    },
    /// Other work that the schedule has put into a bubble.
    Filler(String),
}

/// One entry of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepNode {
    /// The chunk that it is about; of [`Action::Norm`] and [`Action::Tie`]: the first.
    pub chunk: usize,
    /// Kind of the entry, with its operands.
    pub action: Action,
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
    /// Its flat parameters.
    pub data: DataProgram,
    /// By [`Phase`]: what each unit's list uses, in the order of the forward pass.
    pub uses: [Vec<UnitUse>; 5],
}

impl StepChunk {
    /// Number of its units.
    pub fn units(&self) -> usize {
        self.names.len()
    }

    /// Number of its flat parameters.
    pub fn flats(&self) -> usize {
        self.data.flats.len()
    }
}
