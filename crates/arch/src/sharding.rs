//! How each parameter of a model is sharded under tensor parallelism in one dimension (Shoeybi et al. 2019, section 3).
//!
//! | parameter | dim | by |
//! |---|---|---|
//! | `embed.tokens`, `head.weight` | rows | vocabulary; the first parts have one more row where it does not divide |
//! | `attention.qkv.*` | rows | heads: queries, keys and values each by themselves; key and value heads are replicated where there are fewer than ranks |
//! | `attention.out.weight` | columns | heads |
//! | `mlp.up.*`, `mlp.gate_up.*` | rows | hidden units; gate and up each by themselves |
//! | `mlp.down.weight` | columns | hidden units |
//! | `mlp.experts.*` | rows, over the axis of experts | whole experts |
//! | biases of `attention.out` and `mlp.down`, norms, `q_norm`, `k_norm`, `embed.positions` | no | |

use crate::model::Model;
use crate::params::ParamSpec;
use bessemer_mesh::{Axis, Coord, Dim, Form, Layout, Mesh, Placement, TensorGrid};

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
    /// Over the axes of tensor parallelism and of experts; the other axes replicate it.
    pub layout: Layout,
    /// The sum over the axis of heads that completes the gradient.
    pub gradient: GradientSum,
    /// Further axes over which the gradient is a sum: those of a grid, and of ranks that share sequences.
    pub sums: Vec<Axis>,
    /// Axes whose ranks have other experts of this stack of them, all at one place of [`Axis::Expert`] in `layout`
    /// ([`bessemer_mesh::Mesh::folded`]); none for other parameters.
    pub experts_over: Vec<Axis>,
}

impl Sharding {
    /// Whether some axis shards it.
    pub fn is_sharded(&self) -> bool {
        Axis::ALL.iter().any(|axis| matches!(self.layout.at(*axis), Placement::Shard { .. }))
    }

    /// The dim that the axis of a line of tensor-parallel ranks shards; `None`: every rank of it holds all of it.
    pub fn dim(&self) -> Option<usize> {
        match self.layout.at(Axis::Tensor) {
            Placement::Shard { dim } => Some(dim),
            _ => None,
        }
    }

    /// The parameter on ranks of a mesh each of which computes some positions of every sequence (context parallelism): its gradient is
    /// a sum over them.
    pub(crate) fn over_positions(self, mesh: &Mesh) -> Sharding {
        let layout = if mesh.degree(Axis::Tensor) > 1 { self.layout } else { Layout::replicated() };
        let mut sums = self.sums;
        sums.extend(Axis::SEQUENCES.into_iter().filter(|axis| mesh.degree(*axis) > 1));
        Sharding { layout, sums, ..self }
    }

    /// The parameter on ranks each of which has some experts of a layer: consecutive ones, whole. The ranks differ on `axes`: rows of all
    /// of them come to an expert, so its gradient is no sum over any.
    pub(crate) fn over_experts(self, axes: &[Axis]) -> Sharding {
        if !self.spec.id.role().stacks_experts() {
            return self;
        }
        let whole = axes.iter().fold(self.layout, |layout, axis| layout.with(*axis, Placement::Replicate));
        let mut sums = self.sums;
        sums.retain(|axis| !axes.contains(axis));
        let layout = whole.with(Axis::Expert, Placement::Shard { dim: 0 });
        Sharding { layout, sums, experts_over: axes.to_vec(), ..self }
    }

    /// Mesh and place by which `layout` shards the parameter on the rank at `coord` of `mesh`.
    pub(crate) fn place(&self, mesh: &Mesh, coord: &Coord) -> (Mesh, Coord) {
        match &self.experts_over[..] {
            [] => (mesh.clone(), *coord),
            axes => mesh.folded(coord, axes, Axis::Expert),
        }
    }
}

impl Model {
    /// How each parameter is sharded over any number of ranks without annotations, in the order of [`Model::params`].
    pub fn shardings(&self) -> Vec<Sharding> {
        self.params().into_iter().map(|spec| self.sharding(spec)).collect()
    }

    fn sharding(&self, spec: ParamSpec) -> Sharding {
        let row = spec.id.role().row();
        let mut form = Form::plain(&spec.shape);
        if let Some((dim, blocks)) = row.blocks(self, spec.id.unit().layer().unwrap_or(0)) {
            form.dims[dim] = blocks;
        }
        let (dim, gradient) = (row.dim, row.gradient);
        let placement = dim.map_or(Placement::Replicate, |dim| Placement::Shard { dim });
        let layout = Layout::replicated().with(Axis::Tensor, placement);
        Sharding { spec, form, layout, gradient, sums: Vec::new(), experts_over: Vec::new() }
    }

    /// How each parameter is sharded over a grid, in the order of [`Model::params`].
    ///
    /// | parameter | two dimensions: columns, rows | three: rows (j), columns (l), depth (i) |
    /// |---|---|---|
    /// | first matrix of a block | dim 0, dim 1 | dim 0, dim 1, dim 1 |
    /// | second matrix of a block | dim 0, dim 1 | dim 1, dim 0, dim 0 |
    /// | token table, output projection | dim 0, dim 1 | dim 0, dim 1, dim 1 |
    /// | bias of a first matrix | dim 0, no | dim 0, no, no |
    /// | bias of a second matrix, norms | dim 0, no | no, dim 0, no |
    /// | table of positions | dim 1, no | no, dim 1, no |
    /// | `q_norm`, `k_norm` | no, no | no, no, no |
    ///
    /// Depth in two and a half dimensions replicates everything.
    pub fn grid_shardings(&self, grid: TensorGrid) -> Vec<Sharding> {
        self.params().into_iter().map(|spec| self.grid_sharding(spec, grid)).collect()
    }

    fn grid_sharding(&self, spec: ParamSpec, grid: TensorGrid) -> Sharding {
        use Axis::{TensorColumn as Column, TensorRow as Row};
        let cube = matches!(grid, TensorGrid::Cube { .. });
        let line = self.sharding(spec);
        let row = line.spec.id.role().row();
        let (second, by) = (row.is_second(), row.grid(cube));
        let mut form = line.form;
        if second && !cube {
            // Its inputs are gathered as they are stored, not by heads.
            form.dims[1] = Dim::plain(form.dims[1].len());
        }
        let with =
            |layout: Layout, (axis, dim): &(Axis, usize)| layout.with(*axis, Placement::Shard { dim: *dim });
        let layout = by.iter().fold(Layout::replicated(), with);
        let sharded = |axis: Axis| by.iter().any(|(by, _)| *by == axis);
        let heads = line.gradient == GradientSum::All;
        // Ranks along rows of a cube have other rows of the residual stream, and gather them for its products.
        let by_rows = heads || line.gradient == GradientSum::IfSequenceParallel;
        let sum = |axis: &Axis| match axis {
            Row if cube => by_rows,
            Column => heads,
            _ => !sharded(*axis),
        };
        let sums = TensorGrid::AXES.into_iter().filter(|axis| grid.degree(*axis) > 1 && sum(axis)).collect();
        let gradient = match line.gradient {
            GradientSum::Replicas => GradientSum::Replicas,
            _ => GradientSum::Nothing,
        };
        Sharding { spec: line.spec, form, layout, gradient, sums, experts_over: Vec::new() }
    }
}
