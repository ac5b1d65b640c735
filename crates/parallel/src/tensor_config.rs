//! `parallel.tensor`: a line of ranks, or a grid of them.

use bessemer_mesh::TensorGrid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most ranks along an axis of a grid.
const MOST_SIDE: u64 = 1 << 10;

/// Ranks that share every layer's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TensorConfig {
    /// Ranks of a line.
    Line(u64),
    /// A grid of two dimensions, or two and a half.
    Plane(PlaneConfig),
    /// A cube.
    Cube(CubeConfig),
}

/// A grid of ranks in two dimensions, in several layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaneConfig {
    /// Ranks along the rows axis, which share the sequences of a micro-batch, and along the columns axis, which share heads, hidden
    /// units and the width.
    pub grid: [u64; 2],
    /// Layers of the grid, which hold the same parameters and share the sequences of a micro-batch: 2.5 dimensions.
    #[serde(default = "one")]
    pub depth: u64,
}

/// A grid of ranks in three dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CubeConfig {
    /// Ranks along each of the three axes.
    pub cube: u64,
}

fn one() -> u64 {
    1
}

impl TensorConfig {
    /// All ranks.
    pub fn ranks(self) -> u64 {
        match self {
            TensorConfig::Line(ranks) => ranks,
            TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth }) => {
                rows.saturating_mul(columns).saturating_mul(depth)
            }
            TensorConfig::Cube(CubeConfig { cube }) => cube.saturating_pow(3),
        }
    }

    /// The grid, if it is no line.
    pub fn grid(self) -> Option<TensorGrid> {
        match self {
            TensorConfig::Line(_) => None,
            TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth }) => Some(TensorGrid::Plane {
                rows: rows as usize,
                columns: columns as usize,
                depth: depth as usize,
            }),
            TensorConfig::Cube(CubeConfig { cube }) => Some(TensorGrid::Cube { side: cube as usize }),
        }
    }

    /// Checks that there are ranks along every axis, and not absurdly many.
    pub(crate) fn check(self, most: u64) -> Result<(), String> {
        let sides = match self {
            TensorConfig::Line(ranks) if (1..=most).contains(&ranks) => return Ok(()),
            TensorConfig::Line(_) => return Err(format!("parallel.tensor = {self}: expected 1 to {most}")),
            TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth }) => [rows, columns, depth],
            TensorConfig::Cube(CubeConfig { cube }) => [cube; 3],
        };
        if sides.iter().any(|side| !(1..=MOST_SIDE).contains(side)) || self.ranks() > most {
            return Err(format!(
                "parallel.tensor = {self}: expected 1 to {MOST_SIDE} ranks along each axis, and at most {most} in all"
            ));
        }
        Ok(())
    }
}

impl From<u64> for TensorConfig {
    fn from(ranks: u64) -> TensorConfig {
        TensorConfig::Line(ranks)
    }
}

/// Compares the number of all ranks.
impl PartialEq<u64> for TensorConfig {
    fn eq(&self, ranks: &u64) -> bool {
        self.ranks() == *ranks
    }
}

/// Compares the number of all ranks.
impl PartialOrd<u64> for TensorConfig {
    fn partial_cmp(&self, ranks: &u64) -> Option<std::cmp::Ordering> {
        self.ranks().partial_cmp(ranks)
    }
}

/// As in a recipe.
impl std::fmt::Display for TensorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TensorConfig::Line(ranks) => write!(f, "{ranks}"),
            TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth: 1 }) => {
                write!(f, "{{ grid = [{rows}, {columns}] }}")
            }
            TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth }) => {
                write!(f, "{{ grid = [{rows}, {columns}], depth = {depth} }}")
            }
            TensorConfig::Cube(CubeConfig { cube }) => write!(f, "{{ cube = {cube} }}"),
        }
    }
}
