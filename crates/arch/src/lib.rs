//! A model's shapes, parameters and FLOPs, as pure values: what a recipe's `[model]` table means.
//!
//! [`ModelConfig`] is what was written, [`Model`] what it means; only a `Model` that can be built exists.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod adapters;
mod annotation;
mod choices;
mod config;
mod experts;
mod flops;
mod gates;
mod init;
mod model;
mod named;
mod param_id;
mod params;
mod roles;
mod sharding;
mod span;
mod tensor_shard;

pub use adapters::{AdapterTarget, Adapters};
pub use annotation::{AnnotatedValue, AnnotationError, Annotations, ParamLayout, name_matches};
pub use choices::{
    ActivationChoice, Distribution, DsInitForm, InitChoice, NormChoice, Placement, PositionChoice,
    QkNormSpan, RopeScaling, RopeScalingKind,
};
pub use config::{ArchError, ModelConfig};
pub use experts::{ExpertCount, ExpertLayers, Experts, ExpertsConfig, LayerRule, SharedExpert};
pub use gates::{
    BalanceCounts, BalanceOver, BalanceRule, Capacity, CapacityChoice, ChosenBy, DropChoice, ExpertTraining,
    Gate, GateChoice, GroupChoice, Nodes, ScoreChoice,
};
pub use init::{Init, RowNorms};
pub use model::{MlpKind, Model};
pub use named::{NAMED, named};
pub use param_id::{ParamClass, ParamId, Unit};
pub use params::ParamSpec;
pub use roles::ParamRole;
pub use sharding::{GradientSum, Sharding};
pub use span::{Span, SpanError, SpanFlops, owner};
pub use tensor_shard::{TensorShard, TensorShardError, TensorShardParam};
