//! Where each slice of each tensor is. [`Mesh`] says which ranks there are, [`Layout`] what each of them holds,
//! [`redistribute()`] which collectives lead from one layout to another, [`require`] refuses a tensor that is consumed in
//! a layout that it does not have, and [`formulas`] hold what all of this sends and stores.

mod axis;
mod cut;
pub mod formulas;
mod layout;
mod mesh;
mod redistribute;

pub use axis::Axis;
pub use cut::{Block, Dim, Span, even, total};
pub use layout::{Form, Layout, LayoutError, Placement, Reduction, require};
pub use mesh::{Coord, Folded, Mesh, MeshConfig, MeshError, label};
pub use redistribute::{Action, Step, redistribute};
