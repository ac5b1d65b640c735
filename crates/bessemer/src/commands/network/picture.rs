//! A network drawn with the loads of its cables.

use super::study::Study;
use bessemer_cluster::sketch;
use bessemer_report::plot::{NetworkChart, NetworkEdge, NetworkPoint};

pub(super) fn chart(study: &Study) -> NetworkChart {
    let drawn = sketch(&study.network, &study.report.link_bytes);
    let busiest = drawn.edges.iter().map(|e| e.busy).fold(0.0, f64::max);
    NetworkChart {
        title: format!(
            "{}: {} devices, {}",
            study.network.name(),
            study.facts.devices,
            study.network.topology().name()
        ),
        note: match busiest > 0.0 {
            true => format!("busiest cable: {:.3} ms of sending a step", busiest * 1e3),
            false => "no cable carries anything".into(),
        },
        points: drawn
            .points
            .into_iter()
            .map(|p| NetworkPoint { at: p.at, label: p.label, is_device: p.is_device })
            .collect(),
        edges: drawn
            .edges
            .into_iter()
            .map(|e| NetworkEdge {
                ends: e.ends,
                load: if busiest > 0.0 { e.busy / busiest } else { 0.0 },
                bowed: e.wraps,
            })
            .collect(),
    }
}
