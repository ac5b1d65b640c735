//! One rank of a training job, and the partition of a job over ranks.
//!
//! | axis | partitioned over its ranks | traffic |
//! |---|---|---|
//! | replicate | the batch; each has a copy of the model | gradients |
//! | shard | the batch; a copy's optimizer state, gradients, parameters ([`Stage`]) | gradients and values |
//! | tensor | every layer's matrices ([`bessemer_arch::TensorShard`]) | activations |
//! | pipeline | the layers ([`bessemer_arch::Span`]) | activations and their gradients, from stage to stage |
//!
//! A [`Worker`] holds one or more stages of the model. Each is a [`bessemer_runtime::Decoder`] of this rank's tensor shard of the
//! stage, whose parameters are stored as ZeRO's stage requires, with an optimizer over the stretches that this rank steps, and
//! communicators that run the collectives of its programs. The order of a worker's work is not decided here: it runs a
//! [`bessemer_schedule::Program`]. One rank is no special case: its groups have one member, its program has one stage, and
//! nothing is sent.
//!
//! Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP); Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022;
//! Narayanan et al. 2021 (pipelines).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod chunk;
mod columns;
mod config;
mod control;
mod error;
mod evaluations;
mod exchange;
mod execute;
mod expert_ranks;
mod fill;
mod flat;
mod flow;
mod groups;
mod int8;
mod lengths;
mod memory;
mod memory_plan;
mod messages;
mod norm;
mod notes;
mod offload;
mod operands;
mod owner;
mod param_groups;
mod peers;
mod piece;
mod pipeline;
mod plan;
mod prepare;
mod ranks;
mod replay;
mod rows;
mod second_memory;
mod stash;
mod state;
mod steps;
mod tensor;
mod tensor_config;
mod tie;
mod transfers;
mod window;
mod worker;

pub use bessemer_mesh::{ContextMethod, ContextOrder, ContextSharing, TensorGrid};
pub use chunk::Chunk;
pub use config::{
    ExpertsOver, FillChoice, FillConfig, LayoutChoice, ParallelConfig, PlacedAxis, PlannedLayout, Stage,
};
pub use error::ParallelError;
pub use expert_ranks::{ExpertPeers, compute_rows};
pub use fill::{AnyRank, FillSupplier, FillerWork};
pub use memory_plan::{MemoryPlan, MemoryShortage};
pub use notes::{Notes, OrderSpan};
pub use offload::OffloadTraffic;
pub use operands::{LinearMap, LinearOperands, LinearSpec, OperandSpec};
pub use param_groups::{ParamGroup, ParamGroups};
pub use pipeline::{Pipeline, Schedule};
pub use plan::{Coord, Plan};
pub use replay::UpdateOps;
pub use second_memory::SecondMemory;
pub use state::{
    FinishedCopy, HeldStretch, OwnPiece, OwnSlice, OwnSlices, PendingCopy, ReadElements, StateCopy,
    StateTensor, TakeTensor, WholeState, batches, whole_states,
};
pub use tensor_config::{CubeConfig, PlaneConfig, TensorConfig};
pub use window::Update;
pub use worker::{BatchSource, ExpertLoads, Job, Worker};
