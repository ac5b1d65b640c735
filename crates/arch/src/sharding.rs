//! How each parameter of a model is cut under tensor parallelism in one dimension (Shoeybi et al. 2019, section 3).
//!
//! | parameter | cut | by |
//! |---|---|---|
//! | `embed.tokens`, `head.weight` | rows | vocabulary; the first parts have one more row where it does not divide |
//! | `attention.qkv.*` | rows | heads: queries, keys and values each by themselves; key and value heads are copied where there are fewer than ranks |
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
    /// None: the gradient is complete.
    Nothing,
    /// All of them, if the residual stream is sharded by rows (sequence parallelism): the parameter works on this rank's
    /// rows only. None otherwise.
    IfSequenceParallel,
    /// All of them: the parameter works on this rank's heads only.
    All,
    /// Key and value rows that are copied: the ranks that hold the same copy. Query rows are complete.
    Copies,
}

/// How one parameter is cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Sharding {
    /// The whole parameter.
    pub spec: ParamSpec,
    /// Its dims with the blocks in which they are cut.
    pub form: Form,
    /// The dim that is cut; `None`: every rank holds all of it.
    pub cut: Option<usize>,
    /// What the gradient lacks.
    pub gradient: GradientSum,
}

impl Sharding {
    /// The layout of the parameter over the tensor axis.
    pub fn layout(&self) -> Layout {
        match self.cut {
            Some(dim) => Layout::replicated().with(Axis::Tensor, Placement::Shard { dim }),
            None => Layout::replicated(),
        }
    }
}

impl Model {
    /// How each parameter is cut over any number of ranks, in the order of [`Model::params`].
    pub fn shardings(&self) -> Vec<Sharding> {
        self.params().into_iter().map(|spec| self.sharding(spec)).collect()
    }

    fn sharding(&self, spec: ParamSpec) -> Sharding {
        let mut form = Form::plain(&spec.shape);
        let heads = Block::heads(self.heads, self.head_dim);
        let kv_heads = Block::heads(self.kv_heads, self.head_dim);
        let hidden = Block::plain(self.ffn_width);
        use ParamRole as R;
        let (cut, gradient) = match spec.id.role() {
            R::QkvWeight | R::QkvBias => {
                form.dims[0] = Dim::of([heads, kv_heads, kv_heads]);
                (Some(0), GradientSum::Copies)
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
        Sharding { spec, form, cut, gradient }
    }
}
