//! Grids of tensor parallelism: which axes they have, and how many ranks along each.

use crate::axis::Axis;
use crate::mesh::{Mesh, MeshConfig};

/// Tensor parallelism over more than one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorGrid {
    /// Two dimensions (Xu et al. 2021, Optimus), or two and a half (Wang et al. 2021, Tesseract): sequences over rows and depth,
    /// columns of every matrix over columns. Parameters are sharded over rows and columns.
    Plane {
        /// Ranks along [`Axis::TensorRow`].
        rows: usize,
        /// Ranks along [`Axis::TensorColumn`].
        columns: usize,
        /// Ranks along [`Axis::TensorDepth`], which hold the same parameters.
        depth: usize,
    },
    /// Three dimensions (Bian et al. 2021): parameters and activations are sharded over all of them.
    Cube {
        /// Ranks along each axis.
        side: usize,
    },
}

impl TensorGrid {
    /// The axes of a grid.
    pub const AXES: [Axis; 3] = [Axis::TensorDepth, Axis::TensorRow, Axis::TensorColumn];

    /// The axes, in the order in which programs are rewritten for them: one that divides sequences and gathers parameters comes first.
    pub fn rewriting(self) -> [Axis; 3] {
        match self {
            TensorGrid::Plane { .. } => TensorGrid::AXES,
            // The loss is divided by tokens before it is divided by the vocabulary.
            TensorGrid::Cube { .. } => [Axis::TensorDepth, Axis::TensorColumn, Axis::TensorRow],
        }
    }

    /// Ranks along an axis.
    pub fn degree(self, axis: Axis) -> usize {
        match (self, axis) {
            (TensorGrid::Plane { rows, .. }, Axis::TensorRow) => rows,
            (TensorGrid::Plane { columns, .. }, Axis::TensorColumn) => columns,
            (TensorGrid::Plane { depth, .. }, Axis::TensorDepth) => depth,
            (TensorGrid::Cube { side }, Axis::TensorRow | Axis::TensorColumn | Axis::TensorDepth) => side,
            _ => 1,
        }
    }

    /// All ranks.
    pub fn ranks(self) -> usize {
        TensorGrid::AXES.iter().map(|axis| self.degree(*axis)).product()
    }

    /// The axis over which heads, hidden units and the vocabulary are sharded.
    pub fn line(self) -> Axis {
        match self {
            TensorGrid::Plane { .. } => Axis::TensorColumn,
            TensorGrid::Cube { .. } => Axis::TensorRow,
        }
    }

    /// Parts into which the sequences of a micro-batch are divided: a divisor of their number.
    pub fn sequence_parts(self) -> usize {
        match self {
            TensorGrid::Plane { rows, depth, .. } => rows * depth,
            TensorGrid::Cube { side } => side * side,
        }
    }

    /// What must divide the width of the residual stream, and what the inputs of the second matrix of a block.
    pub fn divisors(self) -> (usize, usize) {
        match self {
            // The least common multiple: columns of the stream, and inputs of first matrices by rows.
            TensorGrid::Plane { rows, columns, .. } => {
                let most = (1..=rows).rev().find(|d| rows.is_multiple_of(*d) && columns.is_multiple_of(*d));
                (rows * columns / most.unwrap_or(1), rows)
            }
            TensorGrid::Cube { side } => (side * side, side),
        }
    }

    /// The grid alone as a mesh.
    ///
    /// # Panics
    /// If an axis has no rank.
    pub fn mesh(self) -> Mesh {
        let with = |config: MeshConfig, axis: &Axis| config.with(*axis, self.degree(*axis));
        let config = TensorGrid::AXES.iter().fold(MeshConfig::new(), with);
        Mesh::new(&config, self.ranks()).expect("a grid has at least one rank along each axis")
    }
}

impl std::fmt::Display for TensorGrid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TensorGrid::Plane { rows, columns, depth: 1 } => write!(f, "{rows} x {columns}"),
            TensorGrid::Plane { rows, columns, depth } => write!(f, "{rows} x {columns} x depth {depth}"),
            TensorGrid::Cube { side } => write!(f, "cube {side}"),
        }
    }
}
