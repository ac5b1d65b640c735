//! Layouts: what each axis of a mesh does to a tensor, and where a rank's part of it lies.

use crate::axis::Axis;
use crate::cut::{Dim, Span, even_of, total};
use crate::mesh::{Coord, Mesh};

/// How the terms of a partial value become the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// They are added.
    Sum,
    /// The largest.
    Max,
}

impl std::fmt::Display for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Max => "maximum",
        })
    }
}

/// What the ranks along one axis hold of a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The same on each.
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

/// A tensor as far as layouts care: its dims, and the blocks in which each of them is cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Form {
    /// The dims.
    pub dims: Vec<Dim>,
}

impl Form {
    /// Dims that may be cut anywhere.
    pub fn plain(shape: &[usize]) -> Form {
        Form { dims: shape.iter().map(|len| Dim::plain(*len)).collect() }
    }

    /// Length of each dim.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(Dim::len).collect()
    }
}

/// Where a tensor is: a placement for each axis.
///
/// If several axes shard one dim, they cut it one after the other: the tensor axes first (block by block), then context,
/// shard, replicate and pipeline, each of which cuts what the ones before have left as one stretch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    placements: [Placement; 8],
}

/// A layout that is impossible, or that is not the one wanted.
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
    /// A tensor that is consumed in another layout than it has.
    #[error("{tensor}: {found} over the {axis} axis, but it is consumed as {wanted}; {remedy}")]
    Mismatch {
        /// The tensor.
        tensor: String,
        /// The first axis on which they differ.
        axis: Axis,
        /// Its placement where the tensor is consumed.
        wanted: Placement,
        /// Its placement where the tensor was made.
        found: Placement,
        /// The collective that leads there, or that there is none.
        remedy: String,
    },
}

impl Layout {
    /// The same on every rank.
    pub fn replicated() -> Layout {
        Layout::default()
    }

    /// The same but for one axis (the expert axis has no placement: its groups are made of other axes).
    pub fn with(mut self, axis: Axis, placement: Placement) -> Layout {
        if let Some(slot) = axis.slot() {
            self.placements[slot] = placement;
        }
        self
    }

    /// Placement along one axis.
    pub fn at(&self, axis: Axis) -> Placement {
        axis.slot().map_or(Placement::Replicate, |s| self.placements[s])
    }

    /// With the placements of axes of one rank forgotten: they say nothing.
    pub(crate) fn on(mut self, mesh: &Mesh) -> Layout {
        for axis in Axis::ALL {
            if mesh.degree(axis) == 1 {
                self = self.with(axis, Placement::Replicate);
            }
        }
        self
    }

    /// Axes that cut a dim, in the order in which they do.
    pub(crate) fn cuts(&self, dim: usize) -> Vec<Axis> {
        Axis::CUTTING.into_iter().filter(|a| self.at(*a) == Placement::Shard { dim }).collect()
    }

    /// Refuses a dim that the tensor does not have, and partial values of two kinds (a sum of maxima is not the maximum
    /// of sums, so the order of two such reductions would matter).
    ///
    /// # Errors
    /// Those.
    pub fn check(&self, tensor: &str, form: &Form) -> Result<(), LayoutError> {
        let wrong = |problem: String| Err(LayoutError::Impossible { tensor: tensor.into(), problem });
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
    pub fn spans(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<Vec<Span>> {
        (form.dims.iter().enumerate())
            .map(|(d, dim)| {
                let mut spans = dim.whole();
                let axes = self.cuts(d).into_iter().filter(|a| mesh.degree(*a) > 1);
                for (i, axis) in axes.enumerate() {
                    let (parts, index) = (mesh.degree(axis), coord.at(axis));
                    spans = if i == 0 { dim.cut(parts, index) } else { even_of(&spans, parts, index) };
                }
                spans
            })
            .collect()
    }

    /// Shape of the part of the rank at `coord`.
    pub fn shape(&self, form: &Form, mesh: &Mesh, coord: &Coord) -> Vec<usize> {
        self.spans(form, mesh, coord).iter().map(|s| total(s)).collect()
    }
}

/// Refuses a tensor that is consumed in another layout than it has. A partial value that is taken for the whole one
/// gives wrong numbers and no error, so this is asked of every edge of a program before step 0.
///
/// # Errors
/// Names the tensor, the axis, and the collective that leads from `found` to `wanted` there.
pub fn require(tensor: &str, wanted: &Layout, found: &Layout, mesh: &Mesh) -> Result<(), LayoutError> {
    for axis in Axis::ALL.into_iter().filter(|a| mesh.degree(*a) > 1) {
        let (wanted, found) = (wanted.at(axis), found.at(axis));
        if wanted != found {
            let remedy = remedy(wanted, found, axis);
            return Err(LayoutError::Mismatch { tensor: tensor.into(), axis, wanted, found, remedy });
        }
    }
    Ok(())
}

/// What leads from one placement to another along one axis.
fn remedy(wanted: Placement, found: Placement, axis: Axis) -> String {
    use Placement::{Partial, Replicate, Shard};
    match (found, wanted) {
        (Partial { .. }, Replicate) => format!("an all-reduce over {axis} leads there"),
        (Partial { .. }, Shard { dim }) => format!("a reduce-scatter of dim {dim} over {axis} leads there"),
        (Shard { dim }, Replicate) => format!("an all-gather of dim {dim} over {axis} leads there"),
        (Shard { dim: from }, Shard { dim: to }) => {
            format!("an all-to-all from dim {from} to dim {to} over {axis} leads there")
        }
        (Replicate, Shard { dim }) => format!("a slice of dim {dim} leads there, without communication"),
        _ => "no collective leads there".into(),
    }
}
