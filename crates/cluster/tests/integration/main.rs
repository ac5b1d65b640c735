//! Networks: sizes, routes, flows and collectives against closed forms, published figures and plain references.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test's own plumbing is a failed test")]

mod collectives;
mod descriptions;
mod flows;
mod networks;
mod placement;
mod reliability;
mod routes;
mod topologies;
mod tori;
