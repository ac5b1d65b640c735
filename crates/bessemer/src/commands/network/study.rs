//! Results about one network.

use crate::cli::{NetworkJobArgs, RoutingChoice};
use crate::failure::Failure;
use bessemer_cluster::collective::SlotSwitch;
use bessemer_cluster::{
    CableKind, DeadPart, Description, Failures, Network, NetworkFacts, Parts, PartsTotal, Routing,
    TrafficJob, TrafficReport, axis_name, run_job, single_failures,
};
use serde_json::{Value, json};
use std::path::Path;

/// A network, a job on it, and the results.
pub(super) struct Study {
    pub(super) network: Network,
    pub(super) facts: NetworkFacts,
    pub(super) parts: Option<Parts>,
    pub(super) slots: Option<SlotSwitch>,
    pub(super) job: TrafficJob,
    pub(super) routing: RoutingChoice,
    pub(super) failed: Vec<String>,
    pub(super) cut_off: usize,
    pub(super) report: TrafficReport,
    pub(super) broken_rules: Vec<String>,
    /// Single failures; `None` if they were not asked for.
    pub(super) dead: Option<Vec<DeadPart>>,
}

/// The policy of a choice.
pub(super) fn routing(choice: RoutingChoice, seed: u64) -> Routing {
    match choice {
        RoutingChoice::Static => Routing::Static,
        RoutingChoice::Ecmp => Routing::Ecmp { seed },
        RoutingChoice::Adaptive => Routing::Adaptive,
        RoutingChoice::Valiant => Routing::Valiant { seed },
        RoutingChoice::Ugal => Routing::Ugal { seed },
    }
}

/// Reads a job from a file.
pub(super) fn job(path: &Path) -> Result<TrafficJob, Failure> {
    let name = path.display().to_string();
    let text = super::read(&name).map_err(|e| Failure::usage(format!("--job {name}: {e}")))?;
    Ok(TrafficJob::parse(&name, &text)?)
}

impl Study {
    pub(super) fn new(description: Description, args: &NetworkJobArgs) -> Result<Study, Failure> {
        let Description { network, parts, slots } = description;
        let job = match &args.job {
            Some(path) => job(path)?,
            None if !args.axis.is_empty() => TrafficJob::from_specs(&args.axis)?,
            None => TrafficJob::all_devices(&network, args.bytes)?,
        };
        let routing = routing(args.routing, args.seed);
        let failures = Failures::parse(&network, &args.fail)?;
        let report = run_job(&network, &job, routing, &failures)?;
        let dead = match args.no_failures || !failures.is_empty() {
            true => None,
            false => Some(single_failures(&network, &job, &report, routing)?),
        };
        Ok(Study {
            facts: NetworkFacts::new(&network),
            broken_rules: job.broken_rail_rules(&network)?,
            cut_off: failures.cut_off(&network).len(),
            failed: args.fail.clone(),
            routing: args.routing,
            network,
            parts,
            slots,
            job,
            report,
            dead,
        })
    }

    pub(super) fn cost(&self) -> Option<PartsTotal> {
        self.parts.as_ref().and_then(|parts| self.facts.cost(parts))
    }

    pub(super) fn power(&self) -> Option<PartsTotal> {
        self.parts.as_ref().and_then(|parts| self.facts.power(parts))
    }

    pub(super) fn routing_name(&self) -> &'static str {
        match self.routing {
            RoutingChoice::Static => "static",
            RoutingChoice::Ecmp => "ecmp",
            RoutingChoice::Adaptive => "adaptive",
            RoutingChoice::Valiant => "valiant",
            RoutingChoice::Ugal => "ugal",
        }
    }

    pub(super) fn json(&self) -> Value {
        let f = &self.facts;
        let link = |kind: CableKind| {
            let class = self.network.class(kind);
            json!({ "name": class.name, "bandwidth": class.link.bandwidth, "latency": class.link.latency })
        };
        let total = |t: PartsTotal| json!({ "total": t.total, "without": t.without });
        let times: Vec<Value> = self
            .report
            .times
            .iter()
            .map(|t| {
                let others: Vec<Value> = (t.others.iter())
                    .map(|(a, seconds)| json!({ "algorithm": a.name(), "seconds": seconds }))
                    .collect();
                json!({
                    "axis": axis_name(t.traffic.axis), "ranks": t.traffic.ranks, "groups": t.groups,
                    "collective": t.traffic.kind.name(), "bytes": t.traffic.bytes.0, "count": t.traffic.count,
                    "algorithm": t.algorithm.name(), "seconds": t.seconds, "others": others,
                    "most_flows": t.most_flows, "shared_links": t.shared_links,
                })
            })
            .collect();
        let dead = self.dead.as_ref().map(|dead| {
            let part = |d: &DeadPart| {
                let (seconds, error) = match &d.total {
                    Ok(seconds) => (Some(*seconds), None),
                    Err(e) => (None, Some(e.to_string())),
                };
                json!({ "part": d.part, "of": d.of, "cut_off": d.cut_off, "seconds": seconds, "error": error })
            };
            dead.iter().map(part).collect::<Vec<Value>>()
        });
        json!({
            "name": self.network.name(),
            "topology": self.network.topology().name(),
            "devices": f.devices, "nodes": f.nodes, "devices_of_node": self.network.node().devices,
            "switches": f.switches, "radix": f.radix, "nics": f.nics, "cables": f.cables, "transceivers": f.transceivers,
            "node_links": f.node_links, "diameter": f.diameter,
            "bisection_cables": f.bisection_cables, "bisection_bandwidth": f.bisection_bandwidth,
            "graph_bytes": f.graph_bytes,
            "links": { "node": link(CableKind::Node), "host": link(CableKind::Host), "fabric": link(CableKind::Fabric) },
            "cost_usd": self.cost().map(total), "power_watts": self.power().map(total),
            "slot_switch": self.slots.map(|s| json!({
                "slots": s.slots, "slot_bytes": s.packet, "throughput": s.throughput(),
                "slots_of_full_rate": s.slots_of_full_rate(),
            })),
            "routing": self.routing_name(), "failed": self.failed, "cut_off": self.cut_off,
            "ranks": self.job.ranks(), "times": times, "seconds": self.report.total, "seconds_together": self.report.together,
            "seconds_between_devices": self.report.between_devices(),
            "broken_rules": self.broken_rules, "single_failures": dead,
        })
    }
}
