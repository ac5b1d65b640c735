//! Where each slice of each tensor is. [`Mesh`] says which ranks there are, [`Layout`] what each of them holds, as
//! ranges of each dim and as [`ElementRun`]s, [`BlockSchedule`] which rank computes which block of an attention when, and
//! [`formulas`] what all of this sends and stores.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod axis;
mod blocks;
mod boxes;
mod context;
mod dim;
pub mod formulas;
mod grid;
mod layout;
mod mesh;
mod runs;

pub use axis::Axis;
pub use blocks::{BlockSchedule, BlockTask, Messages, RowsContents, RowsMessage};
pub use boxes::{BoxRange, box_runs, boxes_of, cover_once};
pub use context::{ContextMethod, ContextOrder, ContextSharing, PositionOrder, exchange_problem};
pub use dim::{Block, Dim, DimRange, OwnedChunk, even, total};
pub use grid::TensorGrid;
pub use layout::{Form, Layout, LayoutError, Placement, Reduction, ReplicatedBlocks};
pub use mesh::{Coord, Mesh, MeshConfig, MeshError, label};
pub use runs::{ElementRun, local_ranges, runs_of};
