//! Layouts: what each axis of a mesh does to a tensor, and where a rank's shard of it lies.

use crate::axis::Axis;
use crate::dim::{Dim, DimRange, even_of, joined, total};
use crate::mesh::{Coord, Mesh};
use crate::runs::{ElementRun, LocalRange, element_runs, local};
use std::ops::Range;

/// How the terms of a partial value become the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Terms are added.
    Sum,
    /// The largest.
    Max,
    /// The logarithm of the sum of their exponentials, as of the log-sum-exps of logits over a sharded vocabulary.
    LogSumExp,
}

impl std::fmt::Display for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Max => "maximum",
            Reduction::LogSumExp => "log-sum-exp",
        })
    }
}

/// What the ranks along one axis hold of a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Replicated: each rank has the whole.
    #[default]
    Replicate,
    /// Each its part of one dim.
    Shard {
        /// The dim, from 0.
        dim: usize,
    },
    /// Each a term of a reduction that is still to be made.
    Partial {
        /// The reduction.
        reduce: Reduction,
    },
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Placement::Replicate => f.write_str("replicated"),
            Placement::Shard { dim } => write!(f, "sharded by dim {dim}"),
            Placement::Partial { reduce } => write!(f, "a partial {reduce}"),
        }
    }
}

/// A tensor as far as layouts care: its dims, and the blocks or owners by which each of them is sharded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Form {
    /// The dims.
    pub dims: Vec<Dim>,
}

impl Form {
    /// Dims that may be sharded anywhere.
    pub fn plain(shape: &[usize]) -> Form {
        Form { dims: shape.iter().map(|len| Dim::plain(*len)).collect() }
    }

    /// Length of each dim.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(Dim::len).collect()
    }
}

/// Layout of a tensor: a placement for each axis.
///
/// If several axes shard one dim, they do so one after the other: the tensor axes first (block by block), then context, expert,
/// shard, replicate and pipeline, each of which divides what the ones before have left as consecutive elements. The expert axis divides
/// consecutive elements even if it comes first, because an expert consists of several blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    placements: [Placement; Axis::ALL.len()],
}

/// A layout that is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A layout that no tensor of this form has.
    #[error("{tensor}: {problem}")]
    Impossible {
        /// The tensor.
        tensor: String,
        /// Why.
        problem: String,
    },
}

impl Layout {
    /// Returns the layout that is replicated on every axis.
    pub fn replicated() -> Layout {
        Layout::default()
    }

    /// The same but for one axis.
    pub fn with(mut self, axis: Axis, placement: Placement) -> Layout {
        self.placements[axis.slot()] = placement;
        self
    }

    /// Placement along one axis.
    pub fn at(&self, axis: Axis) -> Placement {
        self.placements[axis.slot()]
    }

    /// Axes that shard a dim, in the order in which they do.
    pub(crate) fn sharding(&self, dim: usize) -> Vec<Axis> {
        Axis::SHARDING.into_iter().filter(|a| self.at(*a) == Placement::Shard { dim }).collect()
    }

    /// Axes of more than one rank that shard a dim, with their ranks.
    fn sharding_on(&self, dim: usize, mesh: &Mesh) -> Vec<(Axis, usize)> {
        let axes = self.sharding(dim).into_iter().map(|a| (a, mesh.degree(a)));
        axes.filter(|a| a.1 > 1).collect()
    }

    /// Refuses what no tensor of this form can have on the mesh: a dim that there is not, owners that there are not, and partial values
    /// of two kinds (a sum of maxima is not the maximum of sums, so the order of two such reductions would matter).
    ///
    /// # Errors
    /// [`LayoutError::Impossible`] with the first of those.
    pub fn check(&self, tensor: &str, form: &Form, mesh: &Mesh) -> Result<(), LayoutError> {
        let wrong = |problem: String| Err(LayoutError::Impossible { tensor: tensor.into(), problem });
        for (d, dim) in form.dims.iter().enumerate() {
            if let Some(problem) = dim.problem(&self.sharding_on(d, mesh)) {
                return wrong(format!("dim {d} {problem}"));
            }
        }
        let mut kind: Option<(Axis, Reduction)> = None;
        for axis in Axis::ALL {
            match self.at(axis) {
                Placement::Shard { dim } if dim >= form.dims.len() => {
                    let dims = form.dims.len();
                    return wrong(format!(
                        "sharded by dim {dim} over the {axis} axis, but it has {dims} dims"
                    ));
                }
                Placement::Partial { reduce } => match kind {
                    Some((other, of)) if of != reduce => {
                        return wrong(format!(
                            "a partial {of} over {other} and a partial {reduce} over {axis}"
                        ));
                    }
                    _ => kind = Some((axis, reduce)),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// For each dim, which elements of it the rank at `coord` holds.
    pub fn ranges(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<Vec<DimRange>> {
        (0..form.dims.len()).map(|d| self.ranges_of(d, form, mesh, coord, Dim::part)).collect()
    }

    /// Elements of one dim; `first`: what the first axis that shards it leaves.
    fn ranges_of(
        &self,
        d: usize,
        form: &Form,
        mesh: &Mesh,
        coord: &Coord,
        first: fn(&Dim, usize, usize) -> Vec<DimRange>,
    ) -> Vec<DimRange> {
        let dim = &form.dims[d];
        let axes = self.sharding_on(d, mesh);
        let Some((&(axis, parts), more)) = axes.split_first() else { return dim.whole() };
        let left = match axis {
            Axis::Expert => even_of(&dim.whole(), parts, coord.at(axis)),
            _ => first(dim, parts, coord.at(axis)),
        };
        more.iter().fold(left, |left, &(axis, parts)| even_of(&left, parts, coord.at(axis)))
    }

    /// Shape of the shard of the rank at `coord`.
    pub fn shape(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<usize> {
        self.ranges(form, mesh, coord).iter().map(|s| total(s)).collect()
    }

    /// The shard of the rank at `coord` as runs of the whole tensor, ascending in both.
    pub fn runs(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<ElementRun> {
        let local: Vec<Vec<LocalRange>> = self.ranges(form, mesh, coord).iter().map(|r| local(r)).collect();
        element_runs(&form.shape(), &self.shape(form, mesh, coord), &local)
    }

    /// The runs of [`Layout::runs`] for which this rank stands in a sum over the whole tensor and in a file, so that every
    /// element of a tensor without partial values is counted once: of ranks that hold the same elements, because an axis
    /// replicates the tensor or a block of heads has fewer heads than parts, the first one counts them.
    pub fn counted_runs(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<ElementRun> {
        let replicates = |axis: &Axis| !matches!(self.at(*axis), Placement::Shard { .. });
        if Axis::ALL.iter().filter(|a| replicates(a)).any(|a| coord.at(*a) > 0) {
            return Vec::new();
        }
        let counted = |(d, held): (usize, &Vec<DimRange>)| -> Vec<LocalRange> {
            let axes = self.sharding_on(d, mesh);
            let Some(&(axis, parts)) = axes.first() else { return local(held) };
            let counted = match axis {
                Axis::Expert => held.clone(),
                _ => form.dims[d].first_part(parts, coord.at(axis)),
            };
            let common =
                |held: LocalRange| counted.iter().map(move |c| held.within(*c)).filter(|l| l.whole.len > 0);
            local(held).into_iter().flat_map(common).collect()
        };
        let held = self.ranges(form, mesh, coord);
        let counted: Vec<Vec<LocalRange>> = held.iter().enumerate().map(counted).collect();
        element_runs(&form.shape(), &self.shape(form, mesh, coord), &counted)
    }

    /// The elements of a shard that other ranks hold too, because a block of heads has fewer heads than there are parts;
    /// `None` if there are none. A gradient of them is partial over these ranks.
    pub fn replicated_blocks(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Option<ReplicatedBlocks> {
        form.dims.iter().enumerate().find_map(|(d, dim)| {
            let &(axis, parts) = self.sharding_on(d, mesh).first()?;
            let (at, mut start, mut ranges) = (coord.at(axis), 0, Vec::new());
            let mut positions = at..at + 1;
            for block in &dim.blocks {
                let (len, replicas) = (block.part(parts, at).len, block.replicas(parts));
                if replicas > 1 {
                    positions = at - at % replicas..at - at % replicas + replicas;
                    ranges.push(DimRange { start, len });
                }
                start += len;
            }
            let local = joined(ranges);
            (!local.is_empty()).then_some(ReplicatedBlocks { axis, positions, dim: d, local })
        })
    }
}

/// What several ranks of an axis hold alike ([`Layout::replicated_blocks`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicatedBlocks {
    /// The axis that shards the dim.
    pub axis: Axis,
    /// Positions on the axis of the ranks that hold the same: the minor sub-axis.
    pub positions: Range<usize>,
    /// The dim.
    pub dim: usize,
    /// Elements of the dim, counted within the shard.
    pub local: Vec<DimRange>,
}
