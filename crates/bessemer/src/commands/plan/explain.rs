//! What a search found, and why: the fastest layout by item, the others with what rules them out.

use super::search::{Found, Planned, Search};
use super::training::name;
use crate::cli::PlanArgs;
use crate::console::Console;
use bessemer_cluster::{ClusterError, Expectation, FailingRun};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{Candidate, DeviceCost, Job, Layout, Recompute, StepTime};
use bessemer_report::{seconds, signed_percent};
use bessemer_runlog::{CostItem, OtherLayout, Plan, StepCosts};
use bessemer_train::planned_traffic;
use bessemer_units::{Bytes, Seconds};
use serde_json::{Value, json};
use std::fmt::Write;

/// Share of a device's memory that should stay free.
const HEADROOM: f64 = 0.05;
const DAY: f64 = 86_400.0;
/// Most faster layouts that do not fit among the others.
const MOST_TOO_LARGE: usize = 3;
/// Parts of the time that a reason names.
const MOST_PARTS: usize = 3;

/// A search with what there is to say about it.
pub(crate) struct Explained<'a> {
    search: &'a Search<'a>,
    found: &'a Found,
    /// The record of the plan.
    pub(crate) record: Plan,
    communication: Vec<Communication>,
    /// Plain kinds of layouts, with how the fastest of them stands to the first.
    plain: Vec<(&'static str, String)>,
}

/// What the first rank sends in a step in groups of one label.
struct Communication {
    label: String,
    bytes: Bytes,
    /// Seconds that nothing hides, with waiting for other ranks.
    seconds: Option<f64>,
    /// Whether a group lies on several nodes.
    network: bool,
}

impl<'a> Explained<'a> {
    pub(crate) fn new(search: &'a Search<'a>, found: &'a Found, console: &mut Console) -> Explained<'a> {
        let communication = communication(search, &found.planned[0]);
        let mut record = record(search, found, &communication);
        let best = &found.planned[0];
        let mut plain = Vec::new();
        for (kind, fastest) in search.plain(found, console) {
            let Some(fastest) = fastest else {
                plain.push((kind, "does not fit".to_owned()));
                continue;
            };
            plain.push((kind, signed_percent(fastest.seconds() / best.seconds() - 1.0)));
            if found.planned.iter().all(|planned| planned.candidate != fastest.candidate) {
                let reason = format!("the fastest of {kind}; {}", slower(&fastest, best));
                record.others.push(other(&fastest, reason));
            }
        }
        Explained { search, found, record, communication, plain }
    }

    fn best(&self) -> &Planned {
        &self.found.planned[0]
    }

    /// Days until all tokens of the recipe are trained on, where it says how many.
    fn days(&self) -> Option<f64> {
        let training = self.search.training;
        let steps = training.all_tokens()? / training.tokens();
        Some(steps * self.best().seconds() / DAY)
    }

    /// The same with failures of nodes, for each of some rates: failures in 1,000 days of a node, with what is expected.
    fn with_failures(&self, args: &PlanArgs) -> Vec<(f64, Result<Expectation, ClusterError>)> {
        let Some(days) = self.days() else { return Vec::new() };
        let nodes = self.search.devices.div_ceil(self.search.machine.node) as f64;
        let expect = |rate: &f64| {
            let run = FailingRun {
                nodes,
                failures_per_node_day: rate / 1000.0,
                save: args.save,
                restart: args.restart,
                work: days * DAY,
            };
            (*rate, run.expect())
        };
        args.failures.iter().map(expect).collect()
    }

    /// Joules and price until the training is finished, of each what the machine knows.
    fn costs(&self) -> [Option<f64>; 2] {
        let hours = self.days().map(|days| 24.0 * days * self.search.devices as f64);
        let of = |rate: fn(&DeviceCost) -> Option<f64>| {
            Some(hours? * self.search.machine.cost.as_ref().and_then(rate)?)
        };
        [of(|cost| cost.watts).map(|watt_hours| 3600.0 * watt_hours), of(|cost| cost.price_per_hour)]
    }

    /// How long the training takes and what it costs, where the recipe and the machine say enough.
    fn finish(&self, args: &PlanArgs) -> String {
        let (Some(days), Some(tokens)) = (self.days(), self.search.training.all_tokens()) else {
            return String::new();
        };
        let mut text =
            format!("to finish {:.2} billion tokens: {days:.2} days without failures\n", tokens / 1e9);
        for (rate, expected) in self.with_failures(args) {
            let _ = match expected {
                Ok(run) => writeln!(
                    text,
                    "  {rate} failures in 1,000 days of a node, {} s to save, {} s to restart: {:.2} days, saving every {}; {:.2} % of \
                     the time trains",
                    args.save,
                    args.restart,
                    run.days(),
                    Seconds(run.interval),
                    100.0 * run.ettr()
                ),
                Err(cause) => writeln!(text, "  {rate} failures in 1,000 days of a node: {cause}"),
            };
        }
        let [joules, price] = self.costs();
        if let Some(joules) = joules {
            let _ = writeln!(text, "  energy: {:.3} MWh", joules / 3.6e9);
        }
        if let (Some(price), Some(cost)) = (price, &self.search.machine.cost) {
            let _ = writeln!(text, "  price: {price:.2} {}", cost.currency);
        }
        text
    }

    /// The search in words.
    pub(crate) fn text(&self, args: &PlanArgs) -> String {
        let Explained { search, found, record, .. } = self;
        let Search { training, machine, devices, .. } = search;
        let mut text = format!(
            "{}\n{devices} x {}, {} sequences of {} tokens a step\n{} layouts: {} cannot fit; of the fastest others {} do not fit by \
             their dry run, {} are refused\n",
            training.model.summary(),
            machine.name,
            training.sequences,
            training.recipe.train.seq_len,
            found.candidates.evaluated,
            found.candidates.too_large,
            found.not_fitting,
            found.refused
        );
        if let Some(reason) = &found.reason {
            let _ = writeln!(text, "first refusal: {reason}");
        }
        if search.calibration.fitted.is_empty() {
            text += "constants of the cost model that were fitted to nothing: times may be off by a third (--fit TABLE)\n";
        }
        let constraints = training.constraints();
        if !constraints.is_empty() {
            let _ = writeln!(text, "kept as the recipe says: {}", constraints.join(", "));
        }
        let _ = writeln!(text, "{:>10} {:>12} {:>7} {:>10}  layout", "step", "tokens/s", "MFU", "memory");
        for planned in &found.planned {
            let held = planned.memory.buffers.total();
            let full = held.0 as f64 > (1.0 - HEADROOM) * machine.memory;
            let _ = writeln!(
                text,
                "{:>10} {:>12.0} {:>5.1} % {:>10}  {}{}",
                seconds(planned.seconds()),
                training.tokens() / planned.seconds(),
                100.0 * utilisation(planned, machine.matrix_flops),
                held.to_string(),
                name(&planned.candidate.job.layout),
                if full { "; less than 5 % of the memory is free" } else { "" }
            );
        }
        text += &self.first(args);
        if !record.others.is_empty() {
            text += "others, and what rules them out:\n";
            for other in &record.others {
                let _ = writeln!(text, "  {}: {}", other.layout, other.reason);
            }
        }
        let arguments = record.keys.iter().map(|key| match key.contains(['{', ' ', '[', '"']) {
            true => format!("--set '{key}'"),
            false => format!("--set {key}"),
        });
        let _ = writeln!(text, "keys of the first: {}", arguments.collect::<Vec<_>>().join(" "));
        text
    }

    /// The first layout by item.
    fn first(&self, args: &PlanArgs) -> String {
        let Search { training, machine, .. } = self.search;
        let best = self.best();
        let memory = &best.memory;
        let shares = parts(best).into_iter().filter(|(_, part)| *part > 0.0);
        let shares: Vec<String> =
            shares.map(|(part, share)| format!("{part} {:.1} %", 100.0 * share / best.seconds())).collect();
        let mut text = format!("time of the first: {}\n", shares.join(", "));
        let free = machine.memory - memory.buffers.total().0 as f64;
        let _ = writeln!(
            text,
            "memory of the first: {}; {} of {} free",
            classes(memory, usize::MAX),
            Bytes(free.max(0.0) as u64),
            Bytes(machine.memory as u64)
        );
        if !self.communication.is_empty() {
            text += "communication of the first, of one rank in a step:\n";
        }
        for one in &self.communication {
            let link = if one.network { "over the network" } else { "within a node" };
            let took = one.seconds.map_or(String::new(), |time| format!(", {}", seconds(time)));
            let _ = writeln!(text, "  {:<14} {:>10} {link}{took}", one.label, one.bytes.to_string());
        }
        let _ = writeln!(text, "a day: {:.2} billion tokens", training.tokens() / best.seconds() * DAY / 1e9);
        text += &self.finish(args);
        let plain: Vec<String> = self.plain.iter().map(|(kind, stands)| format!("{kind} {stands}")).collect();
        let _ = writeln!(text, "plain layouts beside the first: {}", plain.join(", "));
        text
    }

    /// The search for programs.
    pub(crate) fn as_value(&self, args: &PlanArgs) -> Value {
        let Explained { search, found, record, .. } = self;
        let Search { training, machine, devices, .. } = search;
        let layout = |planned: &Planned| {
            let Planned { candidate, memory, simulated } = planned;
            let classes: serde_json::Map<String, Value> = memory
                .buffers
                .classes
                .iter()
                .map(|(class, bytes)| (class.to_string(), json!(bytes.0)))
                .collect();
            json!({
                "layout": candidate.job.layout,
                "name": name(&candidate.job.layout),
                "keys": training.arguments(&candidate.job.layout, *devices),
                "seconds": planned.seconds(),
                "time": candidate.time,
                "simulated": simulated.as_ref().map(|step| json!({ "seconds": step.seconds, "time": step.items() })),
                "tokens_per_second": training.tokens() / planned.seconds(),
                "model_flops_utilisation": utilisation(planned, machine.matrix_flops),
                "memory": memory.buffers.total().0,
                "least_memory": candidate.least_memory,
                "memory_by_class": classes,
            })
        };
        let communication = |one: &Communication| json!({ "axis": one.label, "bytes": one.bytes.0, "seconds": one.seconds, "network": one.network });
        let failures = |(rate, expected): (f64, Result<Expectation, ClusterError>)| match expected {
            Ok(run) => json!({
                "failures_per_thousand_node_days": rate,
                "days": run.days(),
                "interval": run.interval,
                "ettr": run.ettr(),
                "failures": run.failures,
            }),
            Err(cause) => json!({ "failures_per_thousand_node_days": rate, "error": cause.to_string() }),
        };
        let [joules, price] = self.costs();
        json!({
            "machine": machine.name,
            "evaluated": found.candidates.evaluated,
            "cannot_fit": found.candidates.too_large,
            "too_large_by_dry_run": found.not_fitting,
            "refused": found.refused,
            "first_refusal": found.reason,
            "constraints": training.constraints(),
            "layouts": found.planned.iter().map(layout).collect::<Vec<_>>(),
            "communication": self.communication.iter().map(communication).collect::<Vec<_>>(),
            "others": record.others.iter().map(|other| json!({
                "layout": other.layout,
                "seconds": other.predicted.seconds,
                "memory": other.predicted.memory_bytes(),
                "reason": other.reason,
            })).collect::<Vec<_>>(),
            "tokens_per_day": training.tokens() / self.best().seconds() * DAY,
            "days": self.days(),
            "with_failures": self.with_failures(args).into_iter().map(failures).collect::<Vec<_>>(),
            "energy_joules": joules,
            "price": price,
            "band": search.calibration.band,
        })
    }
}

/// Model FLOPs utilisation: operations without those of recomputation, over the peak.
fn utilisation(planned: &Planned, peak: f64) -> f64 {
    let candidate = &planned.candidate;
    let layout = Layout { recompute: Recompute::None, recomputed: 0, ..candidate.job.layout };
    Job { layout, ..candidate.job }.hardware_flops() / (planned.seconds() * peak)
}

/// Seconds of a step by part: of its simulation, or of the closed form.
fn parts(planned: &Planned) -> Vec<(String, f64)> {
    if let Some(step) = &planned.simulated {
        return step.items().into_iter().map(|item| (item.name, item.value)).collect();
    }
    let time = &planned.candidate.time;
    let parts = [
        ("compute", time.compute),
        ("last stage", time.last_stage),
        ("tensor collectives", time.tensor),
        ("context collectives", time.context),
        ("messages", time.messages),
        ("bubble", time.bubble),
        ("data collectives", time.data),
        ("optimizer", time.optimizer),
        ("constant", time.constant),
    ];
    parts.map(|(part, seconds)| (part.to_owned(), seconds)).into()
}

/// The largest classes of a plan of memory.
pub(super) fn classes(memory: &MemoryPlan, most: usize) -> String {
    let mut classes = memory.buffers.classes.clone();
    classes.push(("workspace", memory.buffers.workspace));
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let held = classes.iter().filter(|(_, bytes)| bytes.0 > 0).take(most);
    held.map(|(class, bytes)| format!("{class} {bytes}")).collect::<Vec<_>>().join(", ")
}

/// Seconds of the closed form by the items that can be measured.
fn items(time: &StepTime) -> Vec<CostItem> {
    let items = [
        (StepCosts::COMPUTE, time.compute + time.last_stage),
        (StepCosts::TENSOR, time.tensor),
        (StepCosts::CONTEXT, time.context),
        (StepCosts::PIPELINE, time.messages + time.bubble),
        (StepCosts::DATA, time.data),
        (StepCosts::OPTIMIZER, time.optimizer),
        (StepCosts::OTHER, time.constant),
    ];
    let some = items.into_iter().filter(|item| item.1 > 0.0);
    some.map(|(name, value)| CostItem::new(name, value)).collect()
}

/// A prediction by the items that can be measured.
fn costs(planned: &Planned, communication: &[Communication]) -> StepCosts {
    let memory = &planned.memory;
    let classes = memory.buffers.classes.iter().copied().chain([("workspace", memory.buffers.workspace)]);
    let held = classes.filter(|(_, bytes)| bytes.0 > 0);
    StepCosts {
        seconds: planned.seconds(),
        time: planned.simulated.as_ref().map_or_else(|| items(&planned.candidate.time), |step| step.items()),
        memory: held.map(|(class, bytes)| CostItem::new(class, bytes.0 as f64)).collect(),
        traffic: communication.iter().map(|one| CostItem::new(&one.label, one.bytes.0 as f64)).collect(),
    }
}

/// A layout that was not chosen.
fn other(planned: &Planned, reason: String) -> OtherLayout {
    OtherLayout { layout: name(&planned.candidate.job.layout), reason, predicted: costs(planned, &[]) }
}

/// What the first rank sends in a layout; nothing where a dry run of the step refuses.
fn communication(search: &Search<'_>, best: &Planned) -> Vec<Communication> {
    let Search { training, machine, devices, .. } = search;
    let recipe = training.in_layout(&best.candidate.job.layout, *devices);
    let (Ok(plan), Ok(sent)) = (
        bessemer_train::layout(&recipe, *devices, &training.model),
        planned_traffic(&recipe, *devices, &training.model),
    ) else {
        return Vec::new();
    };
    let closed = &best.candidate.time;
    let of = |(label, bytes): (String, Bytes)| {
        let ranks = match label.as_str() {
            "tied table" => plan.first_group("pipeline"),
            "world" => vec![plan.ranks() - 1],
            label => plan.first_group(label),
        };
        let network = ranks.iter().any(|rank| *rank >= machine.node);
        let seconds = match (&best.simulated, label.as_str()) {
            (Some(step), "pipeline") => step.exposed.get("messages").copied(),
            (Some(step), label) => step.exposed.get(label).copied(),
            (None, "tensor") => Some(closed.tensor),
            (None, "context" | "context-heads") => Some(closed.context),
            (None, "pipeline") => Some(closed.messages),
            (None, "shard" | "replicate") => Some(closed.data),
            (None, _) => None,
        };
        Communication { label, bytes, seconds: seconds.filter(|seconds| *seconds > 0.0), network }
    };
    let mut all: Vec<Communication> = sent.into_iter().map(of).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    all
}

/// The record of a plan.
fn record(search: &Search<'_>, found: &Found, communication: &[Communication]) -> Plan {
    let best = &found.planned[0];
    let limit = search.machine.memory;
    let mut others: Vec<OtherLayout> = Vec::new();
    let faster =
        found.too_large.iter().filter(|other| other.candidate.time.total <= best.candidate.time.total);
    for planned in faster.take(MOST_TOO_LARGE) {
        others.push(other(planned, over(planned, &best.candidate, limit)));
    }
    for planned in &found.planned[1..] {
        others.push(other(planned, slower(planned, best)));
    }
    Plan {
        ranks: search.devices as u64,
        machine: search.machine.name.clone(),
        layout: name(&best.candidate.job.layout),
        keys: search.training.arguments(&best.candidate.job.layout, search.devices),
        predicted: costs(best, communication),
        memory_limit: limit as u64,
        evaluated: found.candidates.evaluated as u64,
        others,
    }
}

/// Reason against a layout that fits: the parts of its time that are longer.
fn slower(other: &Planned, best: &Planned) -> String {
    let difference = other.seconds() / best.seconds() - 1.0;
    let least = parts(best);
    let of = |name: &str| least.iter().find(|(part, _)| part == name).map_or(0.0, |(_, seconds)| *seconds);
    let mut longer: Vec<(String, f64)> =
        parts(other).into_iter().map(|(part, seconds)| (part.clone(), seconds - of(&part))).collect();
    longer.retain(|(_, more)| *more > 1e-3 * best.seconds());
    longer.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named: Vec<String> =
        longer.iter().take(MOST_PARTS).map(|(part, more)| format!("{part} +{}", seconds(*more))).collect();
    let held = |planned: &Planned| planned.memory.buffers.total().0;
    match (named.is_empty(), held(other) > held(best)) {
        (false, _) => format!("{:.1} % slower: {}", 100.0 * difference, named.join(", ")),
        (true, true) => format!(
            "{:.1} % slower, and holds {} more",
            100.0 * difference.max(0.0),
            Bytes(held(other) - held(best))
        ),
        (true, false) => format!("{:.1} % slower", 100.0 * difference.max(0.0)),
    }
}

/// Reason against a layout that does not fit.
fn over(planned: &Planned, best: &Candidate, limit: f64) -> String {
    let held = planned.memory.buffers.total();
    let speed = 100.0 * (1.0 - planned.candidate.time.total / best.time.total);
    let faster = match speed {
        0.05.. => format!("{speed:.1} % faster, but "),
        _ => String::new(),
    };
    format!(
        "{faster}holds {held}, {} over the limit ({})",
        Bytes((held.0 as f64 - limit).max(0.0) as u64),
        classes(&planned.memory, 2)
    )
}
