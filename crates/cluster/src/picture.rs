//! Where the parts of a network are drawn, and how busy its cables are.
//!
//! Switched networks are drawn in rows, devices at the bottom; dragonflies on a circle; tori as grids, planes beside each other.
//! What is too fine to be drawn is merged: a point stands for neighbours, an edge for the busiest of its cables.

use crate::topology::Topology;
use crate::{Network, Vertex};
use std::collections::BTreeMap;

/// Points and edges in a square of side 1, the origin at the top left.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSketch {
    /// Points in the order of their vertices.
    pub points: Vec<SketchPoint>,
    /// Edges in the order of their ends.
    pub edges: Vec<SketchEdge>,
}

/// One or several vertices.
#[derive(Debug, Clone, PartialEq)]
pub struct SketchPoint {
    /// Position.
    pub at: [f64; 2],
    /// "devices 0 to 15", "switch 3".
    pub label: String,
    /// Whether these are devices.
    pub is_device: bool,
}

/// One or several cables.
#[derive(Debug, Clone, PartialEq)]
pub struct SketchEdge {
    /// The points that they join.
    pub ends: [usize; 2],
    /// Cables.
    pub cables: u32,
    /// Seconds in which the busiest direction of one cable sends.
    pub busy: f64,
    /// Whether the edge closes a ring of a torus, so that it passes other points.
    pub wraps: bool,
}

/// Most points of a row, of a circle, and along a dim of a torus.
const ROW: u32 = 48;
const CIRCLE: u32 = 120;
const DIM: u32 = 12;

/// A cell of the picture with its position.
struct Cell {
    key: [u32; 3],
    at: [f64; 2],
}

/// Draws a network whose links carry these bytes in a step.
pub fn sketch(network: &Network, link_bytes: &[f64]) -> NetworkSketch {
    let graph = network.graph();
    let mut index = BTreeMap::new();
    let mut points = Vec::new();
    let mut last: Vec<(u32, u32)> = Vec::new();
    let mut point_of = vec![0; graph.vertices()];
    for vertex in 0..graph.vertices() as u32 {
        let cell = cell(network, vertex);
        let point = *index.entry(cell.key).or_insert_with(|| {
            points.push(SketchPoint {
                at: cell.at,
                label: String::new(),
                is_device: vertex < network.devices(),
            });
            last.push((vertex, 0));
            points.len() - 1
        });
        last[point].1 += 1;
        point_of[vertex as usize] = point;
    }
    for (point, (first, count)) in points.iter_mut().zip(&last) {
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        point.label = network.label(*first) + &more;
    }
    let mut edges: BTreeMap<[usize; 2], SketchEdge> = BTreeMap::new();
    for cable in 0..graph.cables() as u32 {
        let ends = graph.ends(cable);
        let mut points = ends.map(|v| point_of[v as usize]);
        points.sort_unstable();
        if points[0] == points[1] {
            continue;
        }
        let bandwidth = network.link(2 * cable).bandwidth;
        let bytes = link_bytes[2 * cable as usize].max(link_bytes[2 * cable as usize + 1]);
        let edge = edges.entry(points).or_insert(SketchEdge {
            ends: points,
            cables: 0,
            busy: 0.0,
            wraps: wraps(network, ends),
        });
        edge.cables += 1;
        edge.busy = edge.busy.max(bytes / bandwidth);
    }
    NetworkSketch { points, edges: edges.into_values().collect() }
}

/// Whether a cable of a torus leads from the last device of a dim to the first.
fn wraps(network: &Network, [a, b]: [u32; 2]) -> bool {
    let Topology::Torus(torus) = network.topology() else { return false };
    (0..torus.dims().len()).any(|dim| torus.coordinate(a, dim).abs_diff(torus.coordinate(b, dim)) > 1)
}

fn cell(network: &Network, vertex: u32) -> Cell {
    match network.topology() {
        Topology::Torus(torus) => {
            let dims = torus.dims();
            let size = |dim: usize| dims.get(dim).copied().unwrap_or(1);
            let bin = |dim: usize| match size(dim) {
                1 => 0,
                k => torus.coordinate(vertex, dim) * k.min(DIM) / k,
            };
            let planes = size(2).min(DIM);
            let [x, y, z] = [bin(0), bin(1), bin(2)];
            // Planes beside each other in as many columns as rows.
            let columns = f64::from(planes).sqrt().ceil();
            let (column, row) = (f64::from(z) % columns, (f64::from(z) / columns).floor());
            let inside = |at: u32, of: u32| (f64::from(at) + 0.5) / f64::from(of.min(DIM)) * 0.85;
            let at = [(column + inside(x, size(0))) / columns, (row + inside(y, size(1))) / columns];
            Cell { key: [x, y, z], at }
        }
        Topology::Dragonfly(dragonfly) => {
            let (share, radius, row) = match network.at(vertex) {
                Vertex::Device(device) => (f64::from(device) / f64::from(network.devices()), 0.48, 0),
                Vertex::NodeSwitch(node) => (f64::from(node) / f64::from(network.nodes()), 0.44, 1),
                Vertex::Switch(router) => (f64::from(router) / f64::from(dragonfly.routers()), 0.38, 2),
            };
            let bin = (share * f64::from(CIRCLE)).floor();
            let angle = (bin + 0.5) / f64::from(CIRCLE) * std::f64::consts::TAU;
            Cell { key: [row, bin as u32, 0], at: [0.5 + radius * angle.sin(), 0.5 - radius * angle.cos()] }
        }
        topology => {
            let several = network.node().devices > 1;
            let switches = topology.switches();
            // The last switch is one of the highest level.
            let top = switches.checked_sub(1).map_or(0, |last| topology.level(last) + 1);
            let rows = 1 + u32::from(several) + top;
            let level = |l: u32| u32::from(several) + 1 + l;
            let (row, share) = match network.at(vertex) {
                Vertex::Device(device) => (0, f64::from(device) / f64::from(network.devices())),
                Vertex::NodeSwitch(node) => (1, f64::from(node) / f64::from(network.nodes())),
                Vertex::Switch(switch) => {
                    let (at, of) = rank_in_level(topology, switch, switches);
                    (level(topology.level(switch)), f64::from(at) / f64::from(of))
                }
            };
            let count = match network.at(vertex) {
                Vertex::Device(_) => network.devices(),
                Vertex::NodeSwitch(_) => network.nodes(),
                Vertex::Switch(switch) => rank_in_level(topology, switch, switches).1,
            };
            let bins = count.min(ROW);
            let bin = (share * f64::from(bins) + 1e-9).floor();
            let y = 1.0 - (f64::from(row) + 0.5) / f64::from(rows);
            Cell { key: [row, bin as u32, 0], at: [(bin + 0.5) / f64::from(bins), y] }
        }
    }
}

/// Position of a switch among those of its level, and their number.
fn rank_in_level(topology: &Topology, switch: u32, switches: u32) -> (u32, u32) {
    // Rails have their levels one after another.
    let (clos, copies) = match topology {
        Topology::Clos(clos) => (clos, 1),
        Topology::RailOptimised(rails) => (rails.clos(), 1),
        Topology::RailOnly(rails) => (rails.rail(), rails.rails()),
        _ => return (switch, switches),
    };
    let (copy, own) = (switch / clos.switches(), switch % clos.switches());
    let level = clos.level_range(clos.level(own));
    let of = level.end - level.start;
    (copy * of + own - level.start, copies * of)
}
