//! The part of a model that one rank of a tensor-parallel group holds, and where it lies in the whole.

use crate::experts::{Experts, SharedExpert};
use crate::init::Init;
use crate::model::Model;
use crate::param_id::ParamId;
use crate::params::ParamSpec;
use crate::roles::ParamRole;
use crate::sharding::{GradientSum, Sharding};
use crate::span::Span;
use bessemer_mesh::{
    Axis, Block, Coord, DimRange, ElementRun, Mesh, Placement, ReplicatedBlocks, TensorGrid, even,
    local_ranges, runs_of, total,
};
use std::ops::Range;

/// Why a model cannot be cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensor parallelism over {degree} ranks: {problem}")]
pub struct TensorShardError {
    /// Ranks.
    pub degree: usize,
    /// Description: what was wanted and found, and what to try.
    pub problem: String,
}

/// Rank `index` of `degree`'s part of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorShard {
    /// The whole model.
    pub whole: Model,
    /// The part, as a model: fewer heads, hidden units and vocabulary rows, everything else as in the whole. Its
    /// parameters' shapes are those of the part; their initial distributions are not (those of some schemes depend on
    /// the whole shape): take them from [`TensorShard::params`].
    pub model: Model,
    /// Ranks in the group.
    pub degree: usize,
    /// Position in the group.
    pub index: usize,
    /// The grid that the group is, if it is no line.
    pub grid: Option<TensorGrid>,
    /// The axes of the group alone, and this rank's place on them.
    place: (Mesh, Coord),
    /// Number in the whole model of the part's first query head.
    pub first_head: usize,
    /// Number in the whole model of the part's first key/value head.
    pub first_kv_head: usize,
    /// Consecutive ranks, from a multiple of this number on, that hold the same key/value head; 1 if no two do.
    pub kv_replicas: usize,
    /// Token id of the part's first row of the token table and of the output projection.
    pub first_vocab_row: usize,
    /// How each parameter is sharded, in the order of [`Model::params`].
    pub shardings: Vec<Sharding>,
}

/// One parameter of a tensor shard.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorShardParam {
    /// The whole parameter (name, whole shape, initial distribution) and how it is sharded.
    pub sharding: Sharding,
    /// Shape of the part.
    pub shape: Vec<usize>,
    /// Of each dim, which elements of the whole the part consists of, in this order. A vector has one dim.
    pub ranges: Vec<Vec<DimRange>>,
    /// Elements of the part whose gradient is partial over the ranks that hold the same key and value heads; `None` if no
    /// other rank does.
    pub replicated: Option<ReplicatedBlocks>,
    /// The group of the tensor shard alone, and this rank's place in it.
    place: (Mesh, Coord),
}

impl Model {
    /// The part of this model on rank `index` of `degree` ranks of tensor parallelism.
    ///
    /// # Errors
    /// Heads or hidden units that `degree` does not divide, key/value heads that neither divide it nor are divided by
    /// it, a vocabulary with fewer rows than ranks.
    pub fn tensor_shard(&self, degree: usize, index: usize) -> Result<TensorShard, TensorShardError> {
        self.tensor_shard_of(self.shardings(), degree, index)
    }

    /// As [`Model::tensor_shard`], with parameters sharded as [`Model::annotated_shardings`] says. What no layer shards need not
    /// be divided by the degree, and the part has all of it.
    ///
    /// # Errors
    /// As [`Model::tensor_shard`].
    pub fn tensor_shard_of(
        &self,
        shardings: Vec<Sharding>,
        degree: usize,
        index: usize,
    ) -> Result<TensorShard, TensorShardError> {
        if index >= degree {
            return Err(TensorShardError { degree, problem: format!("there is no rank {index}") });
        }
        self.layer_shard(&Mesh::along(Axis::Tensor, degree), &[Axis::Expert], shardings, index)
    }

    /// The part of this model on rank `index` of those that share its layers: a line of tensor parallelism, ranks that share sequences
    /// ([`Axis::SEQUENCES`]), or a line for each part of a sequence; and of those that share its experts. `mesh` has no other axes.
    /// Parameters are sharded over the line as `shardings` says, and all of them are at every part of a sequence; experts are sharded
    /// over the ranks that differ on the axes `experts`, among which is [`Axis::Expert`].
    ///
    /// # Errors
    /// As [`Model::tensor_shard`]; experts that these ranks do not divide.
    pub fn layer_shard(
        &self,
        mesh: &Mesh,
        experts: &[Axis],
        mut shardings: Vec<Sharding>,
        index: usize,
    ) -> Result<TensorShard, TensorShardError> {
        if mesh.size(&Axis::SEQUENCES) > 1 {
            shardings = shardings.into_iter().map(|sharding| sharding.over_positions(mesh)).collect();
        }
        let ranks = mesh.size(experts);
        if ranks > 1 {
            self.check_expert_ranks(ranks)?;
            shardings = shardings.into_iter().map(|sharding| sharding.over_experts(experts)).collect();
        }
        self.shard_over((mesh.clone(), None), shardings, index)
    }

    /// The part of this model on rank `index` of `ranks` that share its experts and nothing else.
    ///
    /// # Errors
    /// Experts of a layer that `ranks` does not divide.
    pub fn expert_shard(&self, ranks: usize, index: usize) -> Result<TensorShard, TensorShardError> {
        let axis = Axis::Expert;
        self.layer_shard(&Mesh::along(axis, ranks), &[axis], self.shardings(), index)
    }

    /// Refuses ranks that cannot share the experts of every layer evenly.
    fn check_expert_ranks(&self, ranks: usize) -> Result<(), TensorShardError> {
        let counts: Vec<usize> =
            self.experts.iter().map(|of| of.count).chain(self.expert_counts.clone()).collect();
        let problem = match counts.iter().find(|count| !count.is_multiple_of(ranks)) {
            _ if self.experts.is_none() => format!(
                "parallel.experts = {ranks} with a model without experts; take 1, or set model.experts"
            ),
            Some(count) => format!(
                "parallel.experts = {ranks}: wanted a divisor of the {count} experts of a layer (model.experts.count); {}",
                fitting(&counts, "model.experts.count")
            ),
            None => return Ok(()),
        };
        Err(TensorShardError { degree: ranks, problem })
    }

    /// The part of this model on rank `index` of a grid.
    ///
    /// # Errors
    /// As [`Model::tensor_shard`], for the axis that shards heads, hidden units and vocabulary; a width that the grid does not divide.
    pub fn grid_shard(&self, grid: TensorGrid, index: usize) -> Result<TensorShard, TensorShardError> {
        let (width, inner) = grid.divisors();
        for (what, key, len, divisor) in [
            ("width", "model.width", self.width, width),
            ("attention width", "model.heads", self.attention_width(), inner),
            ("feed-forward width", "model.ffn_width", self.ffn_width, inner),
        ] {
            if !len.is_multiple_of(divisor) {
                let problem = format!(
                    "a grid of {grid} needs a {what} that is a multiple of {divisor}, found {len}; change \
                     {key} or the grid"
                );
                return Err(TensorShardError { degree: grid.ranks(), problem });
            }
        }
        self.shard_over((grid.mesh(), Some(grid)), self.grid_shardings(grid), index)
    }

    fn shard_over(
        &self,
        (mesh, grid): (Mesh, Option<TensorGrid>),
        shardings: Vec<Sharding>,
        index: usize,
    ) -> Result<TensorShard, TensorShardError> {
        if let Some(grid) = grid.filter(|_| self.adapters.is_some()) {
            return Err(TensorShardError {
                degree: mesh.world(),
                problem: format!(
                    "a grid of {grid} does not share adapters: wanted a number of ranks for parallel.tensor with model.adapters"
                ),
            });
        }
        if let Some(grid) = grid.filter(|_| self.experts.is_some()) {
            return Err(TensorShardError {
                degree: mesh.world(),
                problem: format!(
                    "a grid of {grid} does not share the experts of a layer: wanted a number of ranks for parallel.tensor with \
                     model.experts"
                ),
            });
        }
        let group = mesh.world();
        let line = grid.map_or(Axis::Tensor, TensorGrid::line);
        let degree = mesh.degree(line);
        if self.qk_norm && !self.qk_norm_span.is_head() && (degree > 1 || grid.is_some()) {
            return Err(TensorShardError {
                degree: mesh.world(),
                problem: "qk_norm over all heads is not shared by ranks: wanted parallel.tensor = 1 with model.qk_norm_span = \"width\", \
                          or model.qk_norm_span = \"head\""
                    .into(),
            });
        }
        let wrong = |problem: String| Err(TensorShardError { degree, problem });
        if index >= group {
            return wrong(format!("there is no rank {index}"));
        }
        let place = mesh.coord(index);
        let (group_index, index) = (index, place.at(line));
        let parts = |roles: &[ParamRole]| {
            let sharded = |s: &Sharding| {
                roles.contains(&s.spec.id.role()) && matches!(s.layout.at(line), Placement::Shard { .. })
            };
            if shardings.iter().any(sharded) { degree } else { 1 }
        };
        use ParamRole as R;
        let (of_heads, of_vocabulary) = (parts(&[R::QkvWeight]), parts(&[R::TokenTable, R::HeadWeight]));
        let (of_hidden, of_experts) = (parts(&[R::DownWeight]), parts(&[R::ExpertsDownWeight]));
        let of_shared = parts(&[R::SharedDownWeight]);
        let (heads, kv_heads, hidden) = (self.heads, self.kv_heads, self.ffn_width);
        if !heads.is_multiple_of(of_heads) {
            return wrong(format!(
                "wanted a number of heads that it divides, found {heads}; {}",
                fitting(&[heads], "model.heads")
            ));
        }
        if !kv_heads.is_multiple_of(of_heads) && !of_heads.is_multiple_of(kv_heads) {
            return wrong(format!(
                "wanted key/value heads that it divides, or that divide it (they are copied then), found {kv_heads}; \
                 change model.kv_heads or the tensor degree"
            ));
        }
        if !hidden.is_multiple_of(of_hidden) {
            return wrong(format!(
                "wanted a feed-forward width that it divides, found {hidden}; {}",
                fitting(&[hidden], "model.ffn_width")
            ));
        }
        let (width, shared) =
            (self.experts.map_or(0, |of| of.width), self.shared_expert.map_or(0, |of| of.width));
        for (what, key, width, parts) in [
            ("an expert", "model.experts.width", width, of_experts),
            ("the shared expert", "model.experts.shared", shared, of_shared),
        ] {
            if !width.is_multiple_of(parts) {
                return wrong(format!(
                    "wanted a width of {what} that it divides, found {width}; {}",
                    fitting(&[width], key)
                ));
            }
        }
        if self.vocab_size < of_vocabulary {
            return wrong(format!("wanted a row of the vocabulary for each, found {}", self.vocab_size));
        }
        let kv = Block::heads(kv_heads, 1).part(of_heads, index % of_heads);
        let vocabulary = even(self.vocab_size, of_vocabulary, index % of_vocabulary);
        let expert_ranks = mesh.size(expert_axes(&shardings));
        Ok(TensorShard {
            model: Model {
                heads: heads / of_heads,
                kv_heads: kv.len,
                ffn_width: hidden / of_hidden,
                vocab_size: vocabulary.len,
                experts: self.experts.map(|of| {
                    let count = of.count / expert_ranks;
                    Experts { count, width: width / of_experts, ..of }
                }),
                expert_counts: self.expert_counts.iter().map(|count| count / expert_ranks).collect(),
                shared_expert: self.shared_expert.map(|of| SharedExpert { width: shared / of_shared, ..of }),
                ..self.clone()
            },
            whole: self.clone(),
            degree: group,
            index: group_index,
            grid,
            place: (mesh, place),
            first_head: index % of_heads * (heads / of_heads),
            first_kv_head: kv.start,
            kv_replicas: Block::heads(kv_heads, 1).replicas(of_heads),
            first_vocab_row: vocabulary.start,
            shardings,
        })
    }
}

/// Axes whose ranks share the experts of a layer.
fn expert_axes(shardings: &[Sharding]) -> &[Axis] {
    let mut over = shardings.iter().map(|sharding| &sharding.experts_over[..]);
    over.find(|axes| !axes.is_empty()).unwrap_or(&[Axis::Expert])
}

/// Returns the degrees that divide the model.
fn fitting(sizes: &[usize], key: &str) -> String {
    let fits = |degree: &usize| sizes.iter().all(|size| *degree <= *size && size.is_multiple_of(*degree));
    let fits: Vec<String> = (1..=64).filter(fits).map(|degree: usize| degree.to_string()).collect();
    format!("change {key} or take one of {}", fits.join(", "))
}

impl TensorShard {
    /// True if this is the whole model.
    pub fn is_whole(&self) -> bool {
        self.degree == 1
    }

    /// True if it is the whole model but for experts of other ranks.
    pub fn is_whole_beside_experts(&self) -> bool {
        self.degree == self.place.0.degree(Axis::Expert)
    }

    /// The parameters of the part, in the order of `model.params()`, with their place in the whole.
    pub fn params(&self) -> Vec<TensorShardParam> {
        self.shardings.iter().cloned().map(|s| self.param(s)).collect()
    }

    /// The parameters of the part that a span uses, with the shapes that they have here.
    pub fn specs(&self, span: &Span) -> Vec<ParamSpec> {
        let shaped = |(spec, param): (ParamSpec, TensorShardParam)| ParamSpec { shape: param.shape, ..spec };
        let all = self.model.params().into_iter().zip(self.params()).map(shaped);
        all.filter(|spec| span.uses(&self.model, spec.id)).collect()
    }

    /// The model whose heads and widths a parameter of the part has: the whole if every rank has all of the parameter.
    pub fn model_of(&self, id: ParamId) -> &Model {
        let whole = self.shardings.iter().any(|s| s.spec.id == id && !s.is_sharded());
        if whole { &self.whole } else { &self.model }
    }

    fn param(&self, sharding: Sharding) -> TensorShardParam {
        TensorShardParam::new(sharding, self.place.0.clone(), self.index)
    }

    /// The axis that shards heads, hidden units and the vocabulary.
    pub fn line(&self) -> Axis {
        self.grid.map_or(Axis::Tensor, TensorGrid::line)
    }

    /// Position on an axis of the group.
    pub fn at(&self, axis: Axis) -> usize {
        self.place.1.at(axis)
    }

    /// The group alone.
    pub fn mesh(&self) -> &Mesh {
        &self.place.0
    }

    /// Whether ranks along an axis have other experts of a layer.
    pub fn spreads_experts(&self, axis: Axis) -> bool {
        self.shardings.iter().any(|sharding| sharding.experts_over.contains(&axis))
    }

    /// Number of ranks that share the experts of a layer, and this rank's position among them.
    pub fn among_experts(&self) -> (usize, usize) {
        let ((mesh, _), axes) = (&self.place, expert_axes(&self.shardings));
        (mesh.size(axes), mesh.position(self.index, axes))
    }

    /// Positions on [`TensorShard::line`] of the ranks that hold the same key/value heads as this one, itself included.
    pub fn kv_group(&self) -> Range<usize> {
        let at = self.at(self.line());
        let first = at - at % self.kv_replicas;
        first..first + self.kv_replicas
    }

    /// Over which ranks of [`TensorShard::line`], and for which elements of its dim 0, the gradient of a parameter is a partial sum
    /// after the backward pass; `None` if it is complete. `sequence`: these ranks shard the rows of the residual stream. Sums over
    /// other axes are [`Sharding::sums`].
    pub fn gradient_sum(&self, param: &TensorShardParam, sequence: bool) -> Option<(Range<usize>, DimRange)> {
        let line = self.place.0.degree(self.line());
        let all = (0..line, DimRange { start: 0, len: param.shape[0] });
        match param.sharding.gradient {
            _ if line == 1 => None,
            GradientSum::Nothing => None,
            GradientSum::IfSequenceParallel => sequence.then_some(all),
            GradientSum::All => Some(all),
            GradientSum::Replicas => {
                param.replicated.as_ref().map(|blocks| (blocks.positions.clone(), blocks.local[0]))
            }
        }
    }
}

impl TensorShardParam {
    fn new(sharding: Sharding, mesh: Mesh, index: usize) -> TensorShardParam {
        let coord = mesh.coord(index);
        let (over, at) = sharding.place(&mesh, &coord);
        let ranges = sharding.layout.ranges(&sharding.form, &over, &at);
        let shape = ranges.iter().map(|r| total(r)).collect();
        let replicated = sharding.layout.replicated_blocks(&sharding.form, &over, &at);
        TensorShardParam { sharding, shape, ranges, replicated, place: (mesh, coord) }
    }

    /// Returns the parameter's shard on rank `index` of the group.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn on(&self, index: usize) -> TensorShardParam {
        TensorShardParam::new(self.sharding.clone(), self.place.0.clone(), index)
    }

    /// Returns the shard of the rank at position `at` among those that share every layer of a micro-batch.
    pub fn on_layer_rank(&self, at: usize) -> TensorShardParam {
        let (mesh, coord) = &self.place;
        self.on(mesh.rank(&mesh.moved(*coord, &Axis::LAYER, at)))
    }

    /// Returns the parameter's shard at another position of one axis.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn along(&self, axis: Axis, at: usize) -> TensorShardParam {
        let (mesh, coord) = &self.place;
        self.on(mesh.rank(&coord.with(axis, at)))
    }

    /// Unit and role.
    pub fn id(&self) -> ParamId {
        self.sharding.spec.id
    }

    /// Canonical name.
    pub fn name(&self) -> &str {
        &self.sharding.spec.name
    }

    /// Elements of the part.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the part has no element (never for a tensor shard that exists).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part as runs of the whole, ascending in both.
    pub fn runs(&self) -> Vec<ElementRun> {
        runs_of(&self.sharding.spec.shape, &self.ranges)
    }

    /// The part's [`TensorShardParam::runs`], each with the distribution that its elements are drawn from (never
    /// [`Init::Rows`]).
    pub fn initial_runs(&self) -> Vec<(ElementRun, &Init)> {
        let spec = &self.sharding.spec;
        let Init::Rows(list) = &spec.init else {
            return self.runs().into_iter().map(|run| (run, &spec.init)).collect();
        };
        let columns: usize = spec.shape[1..].iter().product();
        let mut first = 0;
        let of_whole: Vec<(Range<usize>, &Init)> = (list.iter())
            .map(|(rows, init)| {
                first += rows * columns;
                (first - rows * columns..first, init)
            })
            .collect();
        let of_run = |run: ElementRun| {
            of_whole.iter().filter_map(move |(elements, init)| Some((run.of_whole(elements)?, *init)))
        };
        self.runs().into_iter().flat_map(of_run).collect()
    }

    /// Elements of the part that this rank, and no other of the tensor axis, stands for in a sum over the whole parameter (the
    /// global gradient norm) and in a file: [`bessemer_mesh::Layout::counted_runs`]. Ranks that share experts are data-parallel ones
    /// to other parameters, and each has counted elements of them.
    pub fn counted(&self) -> Vec<Range<usize>> {
        let ((mesh, coord), Sharding { layout, form, .. }) = (&self.place, &self.sharding);
        let (mesh, coord) = match self.stacks_experts() {
            true => self.sharding.place(mesh, coord),
            false => (mesh.clone(), coord.with(Axis::Expert, 0)),
        };
        local_ranges(&layout.counted_runs(form, &mesh, &coord))
    }

    /// Whether ranks that share experts have different parts of it.
    pub fn stacks_experts(&self) -> bool {
        matches!(self.sharding.layout.at(Axis::Expert), Placement::Shard { .. })
    }
}
