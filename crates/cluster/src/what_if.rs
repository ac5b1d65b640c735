//! What a job loses when one part of the network dies.

use crate::job::one_after_another;
use crate::{CableKind, ClusterError, Failures, Network, Router, Routing, TrafficJob, TrafficReport, Vertex};
use std::collections::BTreeSet;

/// One dead part.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadPart {
    /// "switch 0 (level 1)", "cable from device 0 to switch 0".
    pub part: String,
    /// How many parts of this class there are.
    pub of: usize,
    /// Devices that are cut off from the others.
    pub cut_off: u32,
    /// Communication of a step in seconds, or why the job cannot run.
    pub total: Result<f64, ClusterError>,
}

/// Class of a part: parts of one class are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PartClass {
    Cable(CableKind, u32, u32),
    NodeSwitch,
    Switch(u32),
}

/// Lets the first part of each class die alone: every kind of cable, the switch in a node, a switch of each level. The algorithms
/// are those of `report`.
///
/// # Errors
/// What [`crate::run_job`] refuses, devices that are cut off excepted.
pub fn single_failures(
    network: &Network,
    job: &TrafficJob,
    report: &TrafficReport,
    routing: Routing,
) -> Result<Vec<DeadPart>, ClusterError> {
    let mut fixed = job.clone();
    for (traffic, time) in fixed.traffic.iter_mut().zip(&report.times) {
        traffic.algorithm = Some(time.algorithm);
    }
    let graph = network.graph();
    let level = |vertex: u32| match network.at(vertex) {
        Vertex::Switch(switch) => 1 + network.topology().level(switch),
        Vertex::Device(_) | Vertex::NodeSwitch(_) => 0,
    };
    let mut classes: Vec<(PartClass, u32, usize)> = Vec::new();
    let mut note = |class: PartClass, part: u32| match classes.iter_mut().find(|c| c.0 == class) {
        Some(known) => known.2 += 1,
        None => classes.push((class, part, 1)),
    };
    for cable in 0..graph.cables() as u32 {
        let [a, b] = graph.ends(cable).map(level);
        note(PartClass::Cable(graph.kind(cable), a, b), cable);
    }
    for vertex in network.devices()..graph.vertices() as u32 {
        match network.at(vertex) {
            Vertex::NodeSwitch(_) => note(PartClass::NodeSwitch, vertex),
            _ => note(PartClass::Switch(level(vertex)), vertex),
        }
    }
    let mut dead = Vec::new();
    for (class, part, of) in classes {
        let (failures, name) = match class {
            PartClass::Cable(..) => {
                let [a, b] = graph.ends(part).map(|v| network.label(v));
                (
                    Failures { cables: BTreeSet::from([part]), ..Failures::default() },
                    format!("cable from {a} to {b}"),
                )
            }
            PartClass::NodeSwitch => {
                (Failures { vertices: BTreeSet::from([part]), ..Failures::default() }, network.label(part))
            }
            PartClass::Switch(level) => {
                let failures = Failures { vertices: BTreeSet::from([part]), ..Failures::default() };
                (failures, format!("{} (level {level})", network.label(part)))
            }
        };
        let cut_off = failures.cut_off(network).len() as u32;
        let mut router = Router::new(network, routing, &failures);
        let total = match one_after_another(&mut router, &fixed) {
            Ok((report, _)) => Ok(report.total),
            Err(e @ ClusterError::CutOff { .. }) => Err(e),
            Err(e) => return Err(e),
        };
        dead.push(DeadPart { part: name, of, cut_off, total });
    }
    Ok(dead)
}
