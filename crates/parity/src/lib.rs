//! Parity: the same few steps under many layouts, each held against one rank.
//!
//! A layout must change nothing but the order of sums. [`trajectory`] trains a small model on made-up text under one
//! layout, on in-process ranks or on whatever communicator it is given; [`Comparison`] says how far two trajectories are
//! apart, and names the first gradient of the first step that differs. Asynchronous schedules are other algorithms: they are
//! held against one process that reads weights as old ([`stale_reference`]). Choices of experts are compared with those of one rank, and its
//! choices replayed where some differ ([`routed`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod compare;
mod layouts;
mod models;
mod nodes;
mod pairwise;
mod reference;
mod routed;
mod routes;
mod run;
mod stale;
mod text;

pub use compare::{Bounds, Comparison};
pub use layouts::{
    ASYNCHRONOUS, Layout, Mixture, SYNCHRONOUS, asynchronous, contexts, grids, in_int8, matrix, mixtures,
    pipelines, placed,
};
pub use models::{Style, Variant};
pub use pairwise::{Case, pairwise};
pub use reference::{MakeBackend, Reference, References};
pub use routed::{RoutedComparison, routed};
pub use routes::{OtherChoice, Routes, RoutesFound};
pub use run::{ParityJob, Trajectory, in_process, trajectory};
pub use stale::stale_reference;
