//! How each parameter of a model is sharded under tensor parallelism in one dimension (Shoeybi et al. 2019, section 3).
//!
//! | parameter | dim | by |
//! |---|---|---|
//! | `embed.tokens`, `head.weight` | rows | vocabulary; the first parts have one more row where it does not divide |
//! | `attention.qkv.*` | rows | heads: queries, keys and values each by themselves; key and value heads are replicated where there are fewer than ranks |
//! | `attention.out.weight` | columns | heads |
//! | `mlp.up.*`, `mlp.gate_up.*` | rows | hidden units; gate and up each by themselves |
//! | `mlp.down.weight` | columns | hidden units |
//! | biases of `attention.out` and `mlp.down`, norms, `q_norm`, `k_norm`, `embed.positions` | no | |

use crate::model::Model;
use crate::param_id::ParamRole;
use crate::params::ParamSpec;
use bessemer_mesh::{Axis, Block, Dim, Form, Layout, Placement};

/// Over which ranks of the tensor axis a parameter's gradient must still be summed after the backward pass. A sum that
/// is forgotten is not an error anywhere: the replicas drift apart (Korthikanti et al. 2022 leave it to the reader).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradientSum {
    /// No sum: the gradient is complete.
    Nothing,
    /// All of them, if the residual stream is sharded by rows (sequence parallelism): the parameter works on this rank's
    /// rows only. None otherwise.
    IfSequenceParallel,
    /// All of them: the parameter works on this rank's heads only.
    All,
    /// Key and value rows that several ranks hold: those ranks. Query rows are complete.
    Replicas,
}

/// How one parameter is sharded.
#[derive(Debug, Clone, PartialEq)]
pub struct Sharding {
    /// The whole parameter.
    pub spec: ParamSpec,
    /// Its dims with the blocks in which they are sharded.
    pub form: Form,
    /// Over the tensor axis; the other axes replicate it.
    pub layout: Layout,
    /// The sum that completes the gradient.
    pub gradient: GradientSum,
}

impl Sharding {
    /// The dim that the tensor axis shards; `None`: every rank holds all of it.
    pub fn dim(&self) -> Option<usize> {
        match self.layout.at(Axis::Tensor) {
            Placement::Shard { dim } => Some(dim),
            _ => None,
        }
    }
}

impl Model {
    /// How each parameter is sharded over any number of ranks without annotations, in the order of [`Model::params`].
    pub fn shardings(&self) -> Vec<Sharding> {
        self.params().into_iter().map(|spec| self.sharding(spec)).collect()
    }

    /// How each parameter lies on ranks each of which computes some positions of every sequence (context parallelism): all
    /// of it on each, with a gradient that is a sum over them.
    pub fn context_shardings(&self) -> Vec<Sharding> {
        let whole = |sharding: Sharding| Sharding {
            layout: Layout::replicated(),
            gradient: GradientSum::IfSequenceParallel,
            ..sharding
        };
        self.shardings().into_iter().map(whole).collect()
    }

    fn sharding(&self, spec: ParamSpec) -> Sharding {
        let mut form = Form::plain(&spec.shape);
        let heads = Block::heads(self.heads, self.head_dim);
        let kv_heads = Block::heads(self.kv_heads, self.head_dim);
        let hidden = Block::plain(self.ffn_width);
        use ParamRole as R;
        let (dim, gradient) = match spec.id.role() {
            R::QkvWeight | R::QkvBias => {
                form.dims[0] = Dim::of([heads, kv_heads, kv_heads]);
                (Some(0), GradientSum::Replicas)
            }
            R::AttentionOutWeight => {
                form.dims[1] = Dim::of([heads]);
                (Some(1), GradientSum::Nothing)
            }
            R::UpWeight | R::UpBias => {
                form.dims[0] = Dim::of([hidden]);
                (Some(0), GradientSum::Nothing)
            }
            R::GateUpWeight | R::GateUpBias => {
                form.dims[0] = Dim::of([hidden, hidden]);
                (Some(0), GradientSum::Nothing)
            }
            R::DownWeight => (Some(1), GradientSum::Nothing),
            // Every rank makes their gradients from all rows: those of the product are gathered for the weight anyway.
            R::AttentionOutBias | R::DownBias => (None, GradientSum::Nothing),
            R::QueryNormWeight | R::KeyNormWeight => (None, GradientSum::All),
            R::TokenTable | R::HeadWeight => (Some(0), GradientSum::Nothing),
            R::PositionTable
            | R::AttentionNormWeight
            | R::AttentionNormBias
            | R::MlpNormWeight
            | R::MlpNormBias
            | R::FinalNormWeight
            | R::FinalNormBias => (None, GradientSum::IfSequenceParallel),
        };
        let placement = dim.map_or(Placement::Replicate, |dim| Placement::Shard { dim });
        Sharding { spec, form, layout: Layout::replicated().with(Axis::Tensor, placement), gradient }
    }
}
