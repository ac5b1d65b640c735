//! Networks of devices as values: what they are made of, how messages travel on them, how long collectives take.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod catalogue;
pub mod collective;
mod description;
mod error;
mod examples;
mod facts;
mod fair_share;
mod flow;
mod graph;
mod job;
mod network;
mod picture;
mod placement;
mod reliability;
mod routing;
pub mod topology;
mod what_if;

pub use bessemer_units::{best_interval, daly_interval, young_interval};
pub use catalogue::{CatalogueLink, catalogue};
pub use description::{Description, Parts};
pub use error::ClusterError;
pub use examples::EXAMPLES;
pub use facts::{NetworkFacts, PartsTotal};
pub use fair_share::FairShares;
pub use flow::{FlowOutcome, PICOSECONDS, Route, Transfer, TransferJob, TransferPhase, simulate};
pub use graph::{CableKind, NetworkGraph, UNREACHABLE};
pub use job::{AxisTraffic, TrafficJob, TrafficReport, TrafficTime, axis_name, run_job};
pub use network::{LinkClass, Network, NodeShape, Vertex};
pub use picture::{NetworkSketch, SketchEdge, SketchPoint, sketch};
pub use placement::{AxisCost, AxisDemand, AxisExchange, PlacedAxes, Placement};
pub use reliability::{Expectation, FailingRun, PUBLISHED_RATES, PublishedRate, first_order_ettr};
pub use routing::{Failures, Router, Routing};
pub use what_if::{DeadPart, single_failures};
