//! The roles of parameters: what each is named, when a model has it, its shape, initial values and sharding. Everything that is
//! known of a kind of parameter is in its row here; lists of parameters, shardings, optimizers and checkpoints follow.

use crate::adapters::AdapterTarget;
use crate::choices::{NormChoice, Placement, PositionChoice};
use crate::experts::Experts;
use crate::init::{Init, Part, RowNorms, Slice, TablePart};
use crate::model::{MlpKind, Model};
use crate::param_id::{ParamClass, ParamId, Unit};
use crate::sharding::GradientSum;
use bessemer_mesh::{Axis, Block, Dim};
use std::ops::Deref;

/// Unit in which a role occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleUnit {
    Embedding,
    /// Each layer.
    Layer,
    Head,
}

/// Layers in which a role occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    Any,
    /// Layers whose feed-forward block is dense.
    Dense,
    Experts,
}

/// Shape and initial values of a parameter.
#[derive(Clone, Copy)]
enum RoleValues {
    /// A table of this many rows of the model's width.
    Table(TablePart, fn(&InLayer<'_>) -> usize),
    /// A linear map that consists of slices, one below the other: `[outputs, inputs]`.
    Matrix(fn(&InLayer<'_>) -> Vec<Slice>),
    /// A vector of one value.
    Vector(f64, fn(&InLayer<'_>) -> usize),
    /// A of the adapter of a target: `[rank, inputs]`.
    LoraA(AdapterTarget),
    /// B: `[outputs, rank]`.
    LoraB(AdapterTarget),
    /// Norms of the rows of its adapted matrix: `[outputs]`.
    Magnitude(AdapterTarget),
}

/// A model as one of its layers has it.
struct InLayer<'a> {
    model: &'a Model,
    /// Experts of the layer.
    experts: Option<Experts>,
}

impl Deref for InLayer<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        self.model
    }
}

impl InLayer<'_> {
    fn new(model: &Model, layer: usize) -> InLayer<'_> {
        InLayer { model, experts: model.experts_of(layer) }
    }
}

/// Loop of a layer's operators that tensor-parallel ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShardedLoop {
    Vocabulary,
    Heads,
    HiddenUnits,
}

impl ShardedLoop {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ShardedLoop::Vocabulary => "rows of the vocabulary",
            ShardedLoop::Heads => "heads",
            ShardedLoop::HiddenUnits => "hidden units",
        }
    }
}

/// Part that a parameter has in a block on a grid of tensor-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GridPart {
    /// First matrix of a block, token table or output projection.
    First,
    /// Second matrix of a block: its inputs are gathered.
    Second,
    /// Bias of a first matrix.
    FirstBias,
    /// Vector as wide as the residual stream.
    Width,
    /// Table whose columns are those of the residual stream.
    Columns,
    /// Vector as wide as a head: on every rank.
    Replicated,
}

/// All that is known of a role.
pub(crate) struct RoleRow {
    constant: &'static str,
    pub(crate) name: &'static str,
    pub(crate) class: ParamClass,
    pub(crate) unit: RoleUnit,
    pub(crate) layers: LayerKind,
    /// Whether a model has it, in layers of that kind.
    present: fn(&Model) -> bool,
    values: RoleValues,
    /// Blocks of the dim that tensor-parallel ranks shard by itself, if they are not plain.
    blocks: Option<fn(&InLayer<'_>) -> Vec<Block>>,
    /// The dim that tensor-parallel ranks shard.
    pub(crate) dim: Option<usize>,
    pub(crate) gradient: GradientSum,
    /// Loop of the operators that read it. A parameter that is never sharded has the loop over which its gradient is a sum.
    pub(crate) sharded_loop: Option<ShardedLoop>,
    grid: GridPart,
}

/// Role of a parameter in its unit: a row of the table of roles, in the order of the forward pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamRole(u8);

impl std::fmt::Debug for ParamRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.row().constant)
    }
}

/// Declares the constants of [`ParamRole`] and their rows.
macro_rules! roles {
    ($($constant:ident: $row:expr,)*) => {
        #[allow(non_upper_case_globals, reason = "roles are matched like variants")]
        #[allow(missing_docs, reason = "the rows of the table describe them")]
        impl ParamRole {
            $(pub const $constant: ParamRole = ParamRole(Number::$constant as u8);)*
        }

        /// Numbers of the rows.
        enum Number {
            $($constant,)*
        }

        static ROLES: &[RoleRow] = &[$(RoleRow { constant: stringify!($constant), ..$row },)*];
    };
}

fn heads(model: &InLayer<'_>) -> Block {
    Block::heads(model.heads, model.head_dim)
}

fn qkv_blocks(model: &InLayer<'_>) -> Vec<Block> {
    let keys = Block::heads(model.kv_heads, model.head_dim);
    vec![heads(model), keys, keys]
}

fn qkv_slices(model: &InLayer<'_>) -> Vec<Slice> {
    let (d, keys) = (model.width, model.kv_heads * model.head_dim);
    vec![(Part::QueryOrKey, d, model.attention_width()), (Part::QueryOrKey, d, keys), (Part::Value, d, keys)]
}

fn gate_up_slices(model: &InLayer<'_>) -> Vec<Slice> {
    let (d, f) = (model.width, model.ffn_width);
    vec![(Part::Gate, d, f), (Part::Up, d, f)]
}

fn outputs(slices: &[Slice]) -> usize {
    slices.iter().map(|slice| slice.2).sum()
}

fn rank_of(model: &Model, target: AdapterTarget) -> usize {
    model.adapters_of(target).map_or(0, |adapters| adapters.rank_of(target))
}

fn keys(model: &InLayer<'_>) -> Vec<Block> {
    vec![Block::heads(model.kv_heads, model.head_dim)]
}

fn queries(model: &InLayer<'_>) -> Vec<Block> {
    vec![heads(model)]
}

fn hidden_units(model: &InLayer<'_>) -> Vec<Block> {
    vec![Block::plain(model.ffn_width)]
}

fn width(model: &InLayer<'_>) -> usize {
    model.width
}

fn has_norms(model: &Model) -> bool {
    model.norm != NormChoice::None
}

fn has_norm_biases(model: &Model) -> bool {
    model.bias && model.norm == NormChoice::LayerNorm
}

fn is_gated(model: &Model) -> bool {
    model.mlp() == MlpKind::Gated
}

fn is_plain(model: &Model) -> bool {
    model.mlp() == MlpKind::Plain
}

/// Slices of every expert of a layer, one expert below the other.
fn expert_slices(model: &InLayer<'_>, of: impl Fn(usize) -> Vec<Slice>) -> Vec<Slice> {
    model.experts.map_or_else(Vec::new, |experts| {
        std::iter::repeat_with(|| of(experts.width)).take(experts.count).flatten().collect()
    })
}

fn expert_count(model: &InLayer<'_>) -> usize {
    model.experts.map_or(0, |experts| experts.count)
}

fn shared_width(model: &InLayer<'_>) -> usize {
    model.shared_expert.map_or(0, |shared| shared.width)
}

const TABLE: RoleRow = RoleRow {
    constant: "",
    name: "",
    class: ParamClass::Embedding,
    unit: RoleUnit::Embedding,
    layers: LayerKind::Any,
    present: |_| true,
    values: RoleValues::Table(TablePart::Embedding, |model| model.vocab_size),
    blocks: None,
    dim: Some(0),
    gradient: GradientSum::Nothing,
    sharded_loop: Some(ShardedLoop::Vocabulary),
    grid: GridPart::First,
};

const MATRIX: RoleRow = RoleRow { class: ParamClass::Matrix, unit: RoleUnit::Layer, ..TABLE };

/// The matrices of all experts of a layer, one below the other. Tensor-parallel ranks share the hidden units of each.
const EXPERTS: RoleRow = RoleRow {
    layers: LayerKind::Experts,
    sharded_loop: Some(ShardedLoop::HiddenUnits),
    grid: GridPart::Replicated,
    ..MATRIX
};

/// Numbers of the experts of a layer that are no trained parameters: once a step they follow from the loads. f32 whatever the type of weights.
const ROUTING_STATE: RoleRow = RoleRow { class: ParamClass::Bias, dim: None, sharded_loop: None, ..EXPERTS };

/// Bias of a linear map of a layer.
const BIAS: RoleRow = RoleRow {
    class: ParamClass::Bias,
    unit: RoleUnit::Layer,
    present: |model| model.bias,
    grid: GridPart::FirstBias,
    ..TABLE
};

/// Bias of a second matrix: every rank makes its gradient from all rows, because those of the product are gathered for the weight.
const SECOND_BIAS: RoleRow =
    RoleRow { values: RoleValues::Vector(0.0, width), dim: None, grid: GridPart::Width, ..BIAS };

const NORM_WEIGHT: RoleRow = RoleRow {
    class: ParamClass::Norm,
    unit: RoleUnit::Layer,
    present: has_norms,
    values: RoleValues::Vector(1.0, width),
    dim: None,
    gradient: GradientSum::IfSequenceParallel,
    sharded_loop: None,
    grid: GridPart::Width,
    ..TABLE
};

const NORM_BIAS: RoleRow =
    RoleRow { present: has_norm_biases, values: RoleValues::Vector(0.0, width), ..NORM_WEIGHT };

/// Width of the weight of the norm of so many heads.
fn qk_norm_width(model: &Model, heads: usize) -> usize {
    heads * model.head_dim / model.qk_norm_stretches(heads).max(1)
}

/// Weight of the norm of queries or keys, one head wide, or as wide as all of them: a rank's gradient is that of its heads.
const HEAD_NORM: RoleRow = RoleRow {
    present: |model| model.qk_norm,
    gradient: GradientSum::All,
    sharded_loop: Some(ShardedLoop::Heads),
    grid: GridPart::Replicated,
    ..NORM_WEIGHT
};

/// A of an adapter. Ranks with rows of their own have a term of its gradient.
const LORA_A: RoleRow = RoleRow {
    dim: None,
    gradient: GradientSum::IfSequenceParallel,
    sharded_loop: None,
    grid: GridPart::Replicated,
    ..MATRIX
};

/// B of an adapter of a first matrix of attention: the rows of a rank's heads.
const HEADS_LORA_B: RoleRow = RoleRow {
    dim: Some(0),
    gradient: GradientSum::Replicas,
    sharded_loop: Some(ShardedLoop::Heads),
    ..LORA_A
};

/// The matrix of an adapter on the side of the hidden units.
const HIDDEN_LORA: RoleRow = RoleRow {
    layers: LayerKind::Dense,
    dim: Some(0),
    blocks: Some(hidden_units),
    gradient: GradientSum::Nothing,
    sharded_loop: Some(ShardedLoop::HiddenUnits),
    ..LORA_A
};

const fn lora_a(target: AdapterTarget) -> RoleRow {
    RoleRow { values: RoleValues::LoraA(target), ..LORA_A }
}

const fn heads_lora_b(target: AdapterTarget) -> RoleRow {
    RoleRow { values: RoleValues::LoraB(target), ..HEADS_LORA_B }
}

/// Of a row of the role `by` of an adapter, whose sharding of rows it has.
const fn magnitude(target: AdapterTarget, by: RoleRow) -> RoleRow {
    RoleRow { values: RoleValues::Magnitude(target), class: ParamClass::Norm, ..by }
}

roles! {
    TokenTable: RoleRow { name: "embed.tokens", ..TABLE },
    PositionTable: RoleRow {
        name: "embed.positions",
        present: |model| model.positions == PositionChoice::Learned,
        values: RoleValues::Table(TablePart::Embedding, |model| model.context),
        dim: None,
        gradient: GradientSum::IfSequenceParallel,
        sharded_loop: None,
        grid: GridPart::Columns,
        ..TABLE
    },
    AttentionNormWeight: RoleRow { name: "attention_norm.weight", ..NORM_WEIGHT },
    AttentionNormBias: RoleRow { name: "attention_norm.bias", ..NORM_BIAS },
    QkvWeight: RoleRow {
        name: "attention.qkv.weight",
        sharded_loop: Some(ShardedLoop::Heads),
        values: RoleValues::Matrix(qkv_slices),
        blocks: Some(qkv_blocks),
        gradient: GradientSum::Replicas,
        ..MATRIX
    },
    QkvBias: RoleRow {
        name: "attention.qkv.bias",
        sharded_loop: Some(ShardedLoop::Heads),
        present: |model| model.bias || model.qkv_bias,
        values: RoleValues::Vector(0.0, |model| outputs(&qkv_slices(model))),
        blocks: Some(qkv_blocks),
        gradient: GradientSum::Replicas,
        ..BIAS
    },
    QkvLoraA: RoleRow { name: "attention.qkv.lora_a", ..lora_a(AdapterTarget::Qkv) },
    QkvLoraB: RoleRow { name: "attention.qkv.lora_b", blocks: Some(qkv_blocks), ..heads_lora_b(AdapterTarget::Qkv) },
    QkvMagnitude: RoleRow {
        name: "attention.qkv.magnitude",
        blocks: Some(qkv_blocks),
        ..magnitude(AdapterTarget::Qkv, HEADS_LORA_B)
    },
    QueryLoraA: RoleRow { name: "attention.query.lora_a", ..lora_a(AdapterTarget::Query) },
    QueryLoraB: RoleRow { name: "attention.query.lora_b", blocks: Some(queries), ..heads_lora_b(AdapterTarget::Query) },
    QueryMagnitude: RoleRow {
        name: "attention.query.magnitude",
        blocks: Some(queries),
        ..magnitude(AdapterTarget::Query, HEADS_LORA_B)
    },
    KeyLoraA: RoleRow { name: "attention.key.lora_a", ..lora_a(AdapterTarget::Key) },
    KeyLoraB: RoleRow { name: "attention.key.lora_b", blocks: Some(keys), ..heads_lora_b(AdapterTarget::Key) },
    KeyMagnitude: RoleRow {
        name: "attention.key.magnitude",
        blocks: Some(keys),
        ..magnitude(AdapterTarget::Key, HEADS_LORA_B)
    },
    ValueLoraA: RoleRow { name: "attention.value.lora_a", ..lora_a(AdapterTarget::Value) },
    ValueLoraB: RoleRow { name: "attention.value.lora_b", blocks: Some(keys), ..heads_lora_b(AdapterTarget::Value) },
    ValueMagnitude: RoleRow {
        name: "attention.value.magnitude",
        blocks: Some(keys),
        ..magnitude(AdapterTarget::Value, HEADS_LORA_B)
    },
    QueryNormWeight: RoleRow {
        name: "attention.q_norm.weight",
        values: RoleValues::Vector(1.0, |model| qk_norm_width(model, model.heads)),
        ..HEAD_NORM
    },
    KeyNormWeight: RoleRow {
        name: "attention.k_norm.weight",
        values: RoleValues::Vector(1.0, |model| qk_norm_width(model, model.kv_heads)),
        ..HEAD_NORM
    },
    AttentionOutWeight: RoleRow {
        name: "attention.out.weight",
        sharded_loop: Some(ShardedLoop::Heads),
        values: RoleValues::Matrix(|model| vec![(Part::AttentionOut, model.attention_width(), model.width)]),
        blocks: Some(|model| vec![heads(model)]),
        dim: Some(1),
        grid: GridPart::Second,
        ..MATRIX
    },
    AttentionOutBias: RoleRow {
        name: "attention.out.bias",
        sharded_loop: Some(ShardedLoop::Heads),
        ..SECOND_BIAS
    },
    OutLoraA: RoleRow {
        name: "attention.out.lora_a",
        values: RoleValues::LoraA(AdapterTarget::Out),
        blocks: Some(queries),
        dim: Some(1),
        gradient: GradientSum::Nothing,
        sharded_loop: Some(ShardedLoop::Heads),
        ..LORA_A
    },
    OutLoraB: RoleRow {
        name: "attention.out.lora_b",
        values: RoleValues::LoraB(AdapterTarget::Out),
        ..LORA_A
    },
    OutMagnitude: RoleRow { name: "attention.out.magnitude", ..magnitude(AdapterTarget::Out, LORA_A) },
    MlpNormWeight: RoleRow { name: "mlp_norm.weight", ..NORM_WEIGHT },
    MlpNormBias: RoleRow { name: "mlp_norm.bias", ..NORM_BIAS },
    UpWeight: RoleRow {
        name: "mlp.up.weight",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        present: is_plain,
        values: RoleValues::Matrix(|model| vec![(Part::Up, model.width, model.ffn_width)]),
        blocks: Some(|model| vec![Block::plain(model.ffn_width)]),
        ..MATRIX
    },
    UpBias: RoleRow {
        name: "mlp.up.bias",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        present: |model| model.bias && is_plain(model),
        values: RoleValues::Vector(0.0, |model| model.ffn_width),
        blocks: Some(|model| vec![Block::plain(model.ffn_width)]),
        ..BIAS
    },
    GateUpWeight: RoleRow {
        name: "mlp.gate_up.weight",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        present: is_gated,
        values: RoleValues::Matrix(gate_up_slices),
        blocks: Some(|model| vec![Block::plain(model.ffn_width); 2]),
        ..MATRIX
    },
    GateUpBias: RoleRow {
        name: "mlp.gate_up.bias",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        present: |model| model.bias && is_gated(model),
        values: RoleValues::Vector(0.0, |model| outputs(&gate_up_slices(model))),
        blocks: Some(|model| vec![Block::plain(model.ffn_width); 2]),
        ..BIAS
    },
    RouterWeight: RoleRow {
        name: "mlp.router.weight",
        values: RoleValues::Matrix(|model| {
            vec![(Part::Router, model.width, expert_count(model))]
        }),
        dim: None,
        gradient: GradientSum::IfSequenceParallel,
        sharded_loop: None,
        ..EXPERTS
    },
    RouterCorrection: RoleRow {
        name: "mlp.router.correction",
        present: |model| model.experts.is_some_and(|experts| experts.gate.bias),
        values: RoleValues::Vector(0.0, expert_count),
        ..ROUTING_STATE
    },
    RouterLoads: RoleRow {
        name: "mlp.router.loads",
        present: |model| {
            model.experts.is_some_and(|experts| experts.gate.balance_over.sequences().is_none())
        },
        values: RoleValues::Vector(1.0, expert_count),
        ..ROUTING_STATE
    },
    ExpertsGateUpWeight: RoleRow {
        name: "mlp.experts.gate_up.weight",
        values: RoleValues::Matrix(|model| {
            let d = model.width;
            expert_slices(model, |f| vec![(Part::Gate, d, f), (Part::Up, d, f)])
        }),
        blocks: Some(|model| {
            let blocks = |experts: Experts| vec![Block::plain(experts.width); 2 * experts.count];
            model.experts.map_or_else(Vec::new, blocks)
        }),
        ..EXPERTS
    },
    ExpertsDownWeight: RoleRow {
        name: "mlp.experts.down.weight",
        values: RoleValues::Matrix(|model| expert_slices(model, |f| vec![(Part::Down, f, model.width)])),
        dim: Some(1),
        ..EXPERTS
    },
    SharedGateUpWeight: RoleRow {
        name: "mlp.shared.gate_up.weight",
        present: |model| model.shared_expert.is_some(),
        values: RoleValues::Matrix(|model| {
            let (d, f) = (model.width, shared_width(model));
            vec![(Part::Gate, d, f), (Part::Up, d, f)]
        }),
        blocks: Some(|model| vec![Block::plain(shared_width(model)); 2]),
        ..EXPERTS
    },
    SharedDownWeight: RoleRow {
        name: "mlp.shared.down.weight",
        present: |model| model.shared_expert.is_some(),
        values: RoleValues::Matrix(|model| vec![(Part::Down, shared_width(model), model.width)]),
        dim: Some(1),
        ..EXPERTS
    },
    SharedGateWeight: RoleRow {
        name: "mlp.shared.gate.weight",
        present: |model| model.shared_expert.is_some_and(|shared| shared.gate),
        values: RoleValues::Matrix(|model| vec![(Part::Router, model.width, 1)]),
        dim: None,
        gradient: GradientSum::IfSequenceParallel,
        sharded_loop: None,
        ..EXPERTS
    },
    MixtureWeight: RoleRow {
        name: "mlp.mixture.weight",
        present: |model| model.shared_expert.is_some_and(|shared| shared.mixed),
        values: RoleValues::Matrix(|model| vec![(Part::Router, model.width, 2)]),
        dim: None,
        gradient: GradientSum::IfSequenceParallel,
        sharded_loop: None,
        ..EXPERTS
    },
    GateLoraA: RoleRow { name: "mlp.gate.lora_a", layers: LayerKind::Dense, ..lora_a(AdapterTarget::Gate) },
    GateLoraB: RoleRow { name: "mlp.gate.lora_b", values: RoleValues::LoraB(AdapterTarget::Gate), ..HIDDEN_LORA },
    GateMagnitude: RoleRow { name: "mlp.gate.magnitude", ..magnitude(AdapterTarget::Gate, HIDDEN_LORA) },
    UpLoraA: RoleRow { name: "mlp.up.lora_a", layers: LayerKind::Dense, ..lora_a(AdapterTarget::Up) },
    UpLoraB: RoleRow { name: "mlp.up.lora_b", values: RoleValues::LoraB(AdapterTarget::Up), ..HIDDEN_LORA },
    UpMagnitude: RoleRow { name: "mlp.up.magnitude", ..magnitude(AdapterTarget::Up, HIDDEN_LORA) },
    DownWeight: RoleRow {
        name: "mlp.down.weight",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        values: RoleValues::Matrix(|model| vec![(Part::Down, model.ffn_width, model.width)]),
        dim: Some(1),
        grid: GridPart::Second,
        ..MATRIX
    },
    DownBias: RoleRow {
        name: "mlp.down.bias",
        layers: LayerKind::Dense,
        sharded_loop: Some(ShardedLoop::HiddenUnits),
        ..SECOND_BIAS
    },
    DownLoraA: RoleRow {
        name: "mlp.down.lora_a",
        values: RoleValues::LoraA(AdapterTarget::Down),
        dim: Some(1),
        ..HIDDEN_LORA
    },
    DownLoraB: RoleRow {
        name: "mlp.down.lora_b",
        layers: LayerKind::Dense,
        values: RoleValues::LoraB(AdapterTarget::Down),
        ..LORA_A
    },
    DownMagnitude: RoleRow {
        name: "mlp.down.magnitude",
        layers: LayerKind::Dense,
        ..magnitude(AdapterTarget::Down, LORA_A)
    },
    FinalNormWeight: RoleRow {
        name: "final_norm.weight",
        unit: RoleUnit::Head,
        present: |model| has_norms(model) && model.placement == Placement::Pre,
        ..NORM_WEIGHT
    },
    FinalNormBias: RoleRow {
        name: "final_norm.bias",
        unit: RoleUnit::Head,
        present: |model| has_norm_biases(model) && model.placement == Placement::Pre,
        ..NORM_BIAS
    },
    HeadWeight: RoleRow {
        name: "head.weight",
        unit: RoleUnit::Head,
        present: |model| !model.tied_embeddings,
        values: RoleValues::Table(TablePart::Head, |model| model.vocab_size),
        ..TABLE
    },
}

impl ParamRole {
    /// Every role, in the order of the forward pass.
    pub fn all() -> impl Iterator<Item = ParamRole> {
        (0..ROLES.len()).map(|number| ParamRole(number as u8))
    }

    pub(crate) fn row(self) -> &'static RoleRow {
        &ROLES[usize::from(self.0)]
    }

    /// Whether a model has parameters of this role.
    pub fn occurs_in(self, model: &Model) -> bool {
        let experts = model.expert_layers_in(0..model.layers);
        let somewhere = match self.row().layers {
            LayerKind::Any => true,
            LayerKind::Dense => experts < model.layers,
            LayerKind::Experts => experts > 0,
        };
        somewhere && self.row().is_present(model)
    }

    /// Kind of the parameter.
    pub fn class(self) -> ParamClass {
        self.row().class
    }

    /// True for a vector that is added, of a linear layer or of a normalisation.
    pub fn is_bias(self) -> bool {
        self.row().name.ends_with(".bias")
    }

    /// Returns true for the matrices of all experts of a layer, one below the other.
    pub fn stacks_experts(self) -> bool {
        matches!(self, ParamRole::ExpertsGateUpWeight | ParamRole::ExpertsDownWeight)
    }

    /// Returns true for the matrices and magnitudes of adapters.
    pub fn is_adapter(self) -> bool {
        let values = self.row().values;
        matches!(values, RoleValues::LoraA(_) | RoleValues::LoraB(_) | RoleValues::Magnitude(_))
    }

    /// Returns true for numbers that are set from the loads of experts once a step, and not trained.
    pub fn is_routing_state(self) -> bool {
        matches!(self, ParamRole::RouterCorrection | ParamRole::RouterLoads)
    }

    /// The identity of the parameter in layer `layer`, or outside the layers for a role of the embedding or the head.
    pub fn in_layer(self, layer: usize) -> ParamId {
        let unit = match self.row().unit {
            RoleUnit::Embedding => Unit::Embedding,
            RoleUnit::Layer => Unit::Layer(layer),
            RoleUnit::Head => Unit::Head,
        };
        ParamId::new(unit, self)
    }
}

impl ParamId {
    /// Rows of the matrices that the parameter of a model consists of, one below the other; empty if it is no matrix of a layer.
    pub fn stacked(self, model: &Model) -> Vec<usize> {
        match (self.role().row().values, self.unit()) {
            (RoleValues::Matrix(slices), Unit::Layer(layer)) => {
                slices(&InLayer::new(model, layer)).iter().map(|slice| slice.2).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl RoleRow {
    /// Whether layer `layer` of a model has it; outside of layers: whether the model has it.
    pub(crate) fn is_in(&self, model: &Model, layer: usize) -> bool {
        let of_kind = match self.layers {
            LayerKind::Any => true,
            LayerKind::Dense => !model.has_experts(layer),
            LayerKind::Experts => model.has_experts(layer),
        };
        of_kind && self.is_present(model)
    }

    /// Whether a model has it, in layers of its kind.
    fn is_present(&self, model: &Model) -> bool {
        match self.values {
            RoleValues::LoraA(target) | RoleValues::LoraB(target) => model.adapters_of(target).is_some(),
            RoleValues::Magnitude(target) => model.adapters_of(target).is_some_and(|of| of.magnitude),
            _ => (self.present)(model),
        }
    }

    /// Shape of the parameter in layer `layer` of a model: matrices are `[outputs, inputs]`, tables `[rows, width]`.
    pub(crate) fn shape(&self, model: &Model, layer: usize) -> Vec<usize> {
        let model = &InLayer::new(model, layer);
        match self.values {
            RoleValues::Table(_, rows) => vec![rows(model), model.width],
            RoleValues::Matrix(slices) => {
                let slices = slices(model);
                vec![outputs(&slices), slices[0].1]
            }
            RoleValues::Vector(_, len) => vec![len(model)],
            RoleValues::LoraA(target) => vec![rank_of(model, target), target.inputs(model)],
            RoleValues::LoraB(target) => vec![target.outputs(model).len(), rank_of(model, target)],
            RoleValues::Magnitude(target) => vec![target.outputs(model).len()],
        }
    }

    /// Initial values in layer `layer`.
    pub(crate) fn init(&self, model: &Model, layer: usize) -> Init {
        let model = &InLayer::new(model, layer);
        match self.values {
            RoleValues::Table(part, rows) => model.table_init(part, rows(model)),
            RoleValues::Matrix(slices) => model.matrix_init(layer, &slices(model)),
            RoleValues::Vector(value, _) => Init::Constant(value),
            RoleValues::LoraA(target) => Init::Uniform(1.0 / (target.inputs(model) as f64).sqrt()),
            RoleValues::LoraB(_) => Init::Constant(0.0),
            RoleValues::Magnitude(target) => {
                let weight = target.adapts(model);
                let (columns, first) = (target.inputs(model), target.outputs(model).start);
                let init = Box::new(weight.row().init(model, layer));
                Init::RowNorms(RowNorms { of: weight.in_layer(layer), columns, first, init })
            }
        }
    }

    /// The sharded dim with its blocks, where they are not plain.
    pub(crate) fn blocks(&self, model: &Model, layer: usize) -> Option<(usize, Dim)> {
        Some((self.dim?, Dim::of(self.blocks?(&InLayer::new(model, layer)))))
    }

    /// Axes of a grid and the dims that they shard.
    pub(crate) fn grid(&self, cube: bool) -> &'static [(Axis, usize)] {
        use Axis::{TensorColumn as Column, TensorDepth as Depth, TensorRow as Row};
        match (self.grid, cube) {
            (GridPart::Replicated, _) => &[],
            (GridPart::Columns, _) => &[(Column, 1)],
            (GridPart::FirstBias, true) => &[(Row, 0)],
            (GridPart::FirstBias, false) | (GridPart::Width, _) => &[(Column, 0)],
            (GridPart::First | GridPart::Second, false) => &[(Column, 0), (Row, 1)],
            (GridPart::Second, true) => &[(Row, 1), (Column, 0), (Depth, 0)],
            (GridPart::First, true) => &[(Row, 0), (Column, 1), (Depth, 1)],
        }
    }

    /// Returns true for the second matrix of a block.
    pub(crate) fn is_second(&self) -> bool {
        self.grid == GridPart::Second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role is one row: a toy with a name, a shape, initial values and a sharding of its own.
    #[test]
    fn a_row_is_all_that_a_role_needs() {
        let toy = RoleRow {
            name: "attention.sink.weight",
            values: RoleValues::Vector(0.5, |model| model.heads * model.head_dim),
            blocks: Some(|model| vec![heads(model)]),
            dim: Some(0),
            gradient: GradientSum::Nothing,
            grid: GridPart::FirstBias,
            ..NORM_WEIGHT
        };
        let model = crate::named("gpt2").unwrap();
        assert!(toy.is_in(&model, 3));
        assert_eq!(toy.shape(&model, 3), [model.heads * model.head_dim]);
        assert_eq!(toy.init(&model, 3), Init::Constant(0.5));
        let (dim, blocks) = toy.blocks(&model, 3).unwrap();
        assert_eq!((dim, blocks.len()), (0, model.heads * model.head_dim));
        assert_eq!(
            (toy.grid(true), toy.grid(false)),
            (&[(Axis::TensorRow, 0)][..], &[(Axis::TensorColumn, 0)][..])
        );
    }

    #[test]
    fn roles_are_numbered_in_the_order_of_the_table() {
        for (number, role) in ParamRole::all().enumerate() {
            assert_eq!(usize::from(role.0), number);
        }
        assert_eq!(format!("{:?}", ParamRole::QkvWeight), "QkvWeight");
        assert_eq!(ParamRole::HeadWeight.row().name, "head.weight");
    }
}
