//! Parity: the same few steps under many layouts, each held against one rank.
//!
//! A layout must change nothing but the order of sums. [`trajectory`] trains a small model on made-up text under one
//! layout, on in-process ranks or on whatever communicator it is given; [`Comparison`] says how far two trajectories are
//! apart, and names the first gradient of the first step that differs.

mod compare;
mod layouts;
mod run;
mod text;

pub use compare::{Bounds, Comparison};
pub use layouts::{Layout, SYNCHRONOUS, Style, matrix, pipelines};
pub use run::{ParityJob, Trajectory, in_process, trajectory};
