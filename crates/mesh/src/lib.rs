//! Where each slice of each tensor is: axes, and how a dim is cut into parts.

mod axis;
mod cut;

pub use axis::Axis;
pub use cut::{Block, Dim, Span, even, total};
