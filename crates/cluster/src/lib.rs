//! Networks of devices as values: what they are made of, how messages travel on them, how long collectives take.

pub mod collective;
mod error;
mod fair_share;
mod flow;
mod graph;
mod network;
mod routing;
pub mod topology;

pub use error::ClusterError;
pub use fair_share::FairShares;
pub use flow::{FlowOutcome, PICOSECONDS, Route, Transfer, TransferJob, TransferPhase, simulate};
pub use graph::{CableKind, NetworkGraph, UNREACHABLE};
pub use network::{LinkClass, Network, NodeShape, Vertex};
pub use routing::{Failures, Router, Routing};
