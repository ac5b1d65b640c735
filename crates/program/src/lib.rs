//! Program of one pass of one unit of a model, as a value: a list of operators and collectives on virtual buffers.
//!
//! A model records each of its distinct units once, for one device ([`Recorder`]): embedding, layer, head, each with a list for
//! each [`Phase`]. Passes rewrite the program, each from program to program:
//!
//! | pass | what it does |
//! |---|---|
//! | [`recompute()`] | values are computed again in the backward pass instead of being saved |
//! | [`partition()`] | global shapes become those of one rank; collectives are inserted where layouts differ |
//! | [`experts()`] | a rank has some experts of a layer; rows of tokens are exchanged by counts |
//! | [`partition_activations()`] | ranks that all have the stream keep some rows of it for the backward pass |
//! | [`fuse()`] | products with their residual sums, token rows with position rows, where there is no communication in between |
//! | [`split()`] | a backward pass becomes its input part and its weight part |
//! | [`overlap()`] | collectives concurrent with products that are made in pieces of rows |
//! | [`overlap_experts()`] | exchanges of rows in pieces, concurrent with products of experts |
//! | [`compress()`] | activations are stored in fewer bits between the forward and the backward pass |
//! | [`offload()`] | stored values are in a second memory until the backward pass |
//! | [`seal()`] | versions of the values that each node touches, for the verifier |
//! | [`plan_memory()`] | which values outlive their list, and the offsets of the others |
//!
//! [`run()`] interprets a list on a [`bessemer_tensor::Backend`]; [`verify()`] refuses one that would be wrong, [`print()`] writes it
//! for people. The list order alone is correct on one device stream.
//!
//! Invariants: no list depends on numbers computed in a step; no value is read in another layout than its own; no pass changes bits
//! unless its documentation states it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod blocks;
mod compress;
mod experts;
mod freeze;
mod fuse;
mod heads;
mod input_aware;
mod localize;
mod loops;
mod loss;
mod memory;
mod node;
mod norm;
mod offload;
mod operands;
mod overlap;
mod overlap_experts;
mod partition;
mod partition_activations;
mod print;
mod progress;
mod rank;
mod recompute;
mod run;
mod split;
mod step;
mod stored;
mod unit;
mod value;
mod verify;
mod verify_blocks;
mod verify_collectives;
mod verify_experts;
mod verify_offload;
mod verify_step;
mod written;
mod zero;

pub use compress::{CompressionError, compress};
pub use experts::{ExchangedTokens, NO_OFFSETS, Shadowing, experts, without_tokens};
pub use freeze::freeze;
pub use fuse::fuse;
pub use input_aware::choose_layers;
pub use loops::{Loop, dim_of, sharded_loop, unshardable};
pub use memory::{ALIGNMENT, Home, Placed, Request, Scratch, UnitMemory, place, plan_memory};
pub use node::{
    AddingForm, ByCounts, Collective, CollectiveKind, ExchangePiece, GradientPart, Launch, Node,
    OffloadedValue, Random, Touch, Version,
};
pub use offload::{OFFLOAD_ALIGNMENT, offload, offloaded_bytes, offloads, reloads, transfer_buffers};
pub use overlap::{LEAST_ROWS, overlap};
pub use overlap_experts::overlap_experts;
pub use partition::{LayoutConflict, partition};
pub use partition_activations::partition_activations;
pub use print::{print, print_step};
pub use rank::{AxisRole, Rank};
pub use recompute::{RecomputeError, recompute};
pub use run::{OneDevice, Ranks, StepValues, each_op, run};
pub use split::split;
pub use step::{
    Action, Filler, GradientAdds, Hand, Message, NormGroup, Pass, RankProgram, StepChunk, StepNode, Stream,
};
pub use unit::{Again, AuxiliaryLoss, Phase, Recorder, UnitProgram};
pub use value::{Class, Input, Value};
pub use verify::{Violation, seal, verify};
pub use verify_experts::verify_experts;
pub use verify_step::{StepViolation, verify_step};
pub use zero::{
    BUCKET, DataProgram, DataRank, FlatParameter, GradientTraffic, PassNode, PiecesInFlight, Residence,
    Transfer, UnitUse, piece_width,
};
