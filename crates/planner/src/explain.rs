//! What a search found, and why: the fastest layout by item, the others with what rules them out.

use crate::Wanted;
use crate::search::{Found, Planned, Search, alike};
use crate::training::name;
use bessemer_cluster::{ClusterError, Expectation, FailingRun};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{
    Candidate, CollectiveChoice, DeviceCost, Job, Layout, MachineCosts, Recompute, Regret, StepTime,
};
use bessemer_report::{seconds, signed_percent};
use bessemer_runlog::{CostItem, OtherLayout, Plan, StepCosts};
use bessemer_train::{PredictedStep, ask_costs, copies_on_host, planned_traffic};
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
    /// Collectives of it that switches sum.
    in_switches: Option<CollectiveChoice>,
}

impl<'a> Explained<'a> {
    pub(crate) fn new(
        search: &'a Search<'a>,
        found: &'a Found,
        detail: &mut dyn FnMut(&str),
    ) -> Explained<'a> {
        let communication = communication(search, &found.planned[0]);
        let mut record = record(search, found, &communication);
        let best = &found.planned[0];
        let mut plain = Vec::new();
        for (kind, fastest) in search.plain(found, detail) {
            let Some(fastest) = fastest else {
                plain.push((kind, "none of the fastest fits".to_owned()));
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
    fn with_failures(&self, wanted: &Wanted<'_>) -> Vec<(f64, Result<Expectation, ClusterError>)> {
        let Some(days) = self.days() else { return Vec::new() };
        let nodes = self.search.devices.div_ceil(self.search.machine.node) as f64;
        let expect = |rate: &f64| {
            let run = FailingRun {
                nodes,
                failures_per_node_day: rate / 1000.0,
                save: wanted.save,
                restart: wanted.restart,
                work: days * DAY,
            };
            (*rate, run.expect())
        };
        wanted.failures.iter().map(expect).collect()
    }

    /// What a layout might have and no candidate has, with the reason.
    fn not_searched(&self) -> Vec<String> {
        let Search { training, machine, .. } = self.search;
        let mut all = Vec::new();
        if let Some(key) = training.without_grids() {
            all.push(format!("grids of tensor-parallel ranks (not with {key})"));
        }
        if training.gives("train.offload") {
            all.push("other layers to offload than the recipe says".to_owned());
        } else if machine.offload_bandwidth.is_none() {
            all.push(format!("train.offload (offload_bandwidth of {} is not known)", machine.name));
        }
        all.push("train.compress (it changes numbers)".to_owned());
        all.push("stages on unequal numbers of devices (no run has them)".to_owned());
        all
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
    fn finish(&self, wanted: &Wanted<'_>) -> String {
        let (Some(days), Some(tokens)) = (self.days(), self.search.training.all_tokens()) else {
            return String::new();
        };
        let mut text =
            format!("to finish {:.2} billion tokens: {days:.2} days without failures\n", tokens / 1e9);
        for (rate, expected) in self.with_failures(wanted) {
            let _ = match expected {
                Ok(run) => writeln!(
                    text,
                    "  {rate} failures in 1,000 days of a node, {} s to save, {} s to restart: {:.2} days, saving every {}; {:.2} % of \
                     the time trains",
                    wanted.save,
                    wanted.restart,
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
    pub(crate) fn text(&self, wanted: &Wanted<'_>) -> String {
        let Explained { search, found, record, .. } = self;
        let Search { training, machine, devices, .. } = search;
        let mut text = format!(
            "{}\n{devices} x {}, {} sequences of {} tokens a step\n{} layouts: {} cannot fit; of the fastest others {} do not fit by \
             their dry run, {} are refused; dry runs: {}{}\n",
            training.model.summary(),
            machine.name,
            training.sequences,
            training.recipe.train.seq_len,
            found.candidates.evaluated,
            found.candidates.too_large,
            found.not_fitting,
            found.refused,
            found.dry_runs,
            match found.postponed {
                0 => String::new(),
                some =>
                    format!(", {some} layouts left for later beside one of the same ranks that is too large"),
            }
        );
        if let Some(reason) = &found.reason {
            let _ = writeln!(text, "first refusal: {reason}");
        }
        let band = search.calibration.band;
        let _ = match search.calibration.fitted.len() {
            0 => writeln!(
                text,
                "times are those of simulated steps, with constants that are not fitted (--fit TABLE fits \
                 them); eight of ten published steps of other software took {:.2} to {:.2} of the closed form",
                band.low, band.high
            ),
            rows => writeln!(
                text,
                "times are those of the closed form, fitted to {rows} steps; eight of ten are expected to take {:.2} to {:.2} of them",
                band.low, band.high
            ),
        };
        let _ = writeln!(text, "not searched: {}", self.not_searched().join("; "));
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
        let _ = match found.regret {
            Some(Regret { low, high, fastest, layouts, .. }) => writeln!(
                text,
                "regret of the first: {:.1} to {:.1} % over the fastest of {layouts} layouts in eight of ten cases; it is the fastest \
                 with probability {:.0} %",
                100.0 * low,
                100.0 * high,
                100.0 * fastest
            ),
            None if search.calibration.fitted.is_empty() => {
                writeln!(text, "regret of the first: not known without --fit TABLE")
            }
            None => Ok(()),
        };
        text += &self.first(wanted);
        if !record.others.is_empty() {
            text += "others, and what rules them out:\n";
            for other in &record.others {
                let _ = writeln!(text, "  {}: {}", other.layout, other.reason);
            }
        }
        let changed = training.changes(&self.best().candidate.job.layout, *devices);
        let arguments = changed.iter().map(|key| match key.contains(['{', ' ', '[', '"']) {
            true => format!("--set '{key}'"),
            false => format!("--set {key}"),
        });
        let _ = writeln!(text, "keys of the first: {}", arguments.collect::<Vec<_>>().join(" "));
        text
    }

    /// The first layout by item.
    fn first(&self, wanted: &Wanted<'_>) -> String {
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
        let copies = copies_on_host(&training.recipe, self.search.devices, memory);
        if self.search.elsewhere && !copies.is_empty() {
            let copies = copies.iter().map(|(class, bytes)| format!("{class} {bytes}"));
            let _ =
                writeln!(text, "host memory of each rank besides: {}", copies.collect::<Vec<_>>().join(", "));
        }
        if !self.communication.is_empty() {
            text += "communication of the first, of one rank in a step:\n";
        }
        for one in &self.communication {
            let link = if one.network { "over the network" } else { "within a node" };
            let took = one.seconds.map_or(String::new(), |time| format!(", {}", seconds(time)));
            let sums = one.in_switches.as_ref().map_or(String::new(), |sums| {
                format!("; sums in switches ({}), {:.1}x", sums.switches.join(" and "), sums.gain())
            });
            let _ = writeln!(text, "  {:<14} {:>10} {link}{took}{sums}", one.label, one.bytes.to_string());
        }
        let _ = writeln!(text, "a day: {:.2} billion tokens", training.tokens() / best.seconds() * DAY / 1e9);
        text += &self.finish(wanted);
        let plain: Vec<String> = self.plain.iter().map(|(kind, stands)| format!("{kind} {stands}")).collect();
        let _ = writeln!(text, "plain layouts beside the first: {}", plain.join(", "));
        text
    }

    /// The search for programs.
    pub(crate) fn as_value(&self, wanted: &Wanted<'_>) -> Value {
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
                "copies_on_host": copies_on_host(&training.recipe, *devices, memory).into_iter().map(|(class, bytes)| (class.to_owned(), json!(bytes.0))).collect::<serde_json::Map<_, _>>(),
            })
        };
        let communication = |one: &Communication| {
            let in_switches = one.in_switches.as_ref().map(|sums| {
                json!({
                    "switches": sums.switches,
                    "seconds": sums.seconds,
                    "between_devices": sums.between_devices,
                    "gain": sums.gain(),
                })
            });
            json!({
                "axis": one.label,
                "bytes": one.bytes.0,
                "seconds": one.seconds,
                "network": one.network,
                "in_switches": in_switches,
            })
        };
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
            "dry_runs": found.dry_runs,
            "left_for_later": found.postponed,
            "refused": found.refused,
            "first_refusal": found.reason,
            "constraints": training.constraints(),
            "not_searched": self.not_searched(),
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
            "with_failures": self.with_failures(wanted).into_iter().map(failures).collect::<Vec<_>>(),
            "energy_joules": joules,
            "price": price,
            "band": search.calibration.band,
            "regret": found.regret,
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
        ("second memory", time.offload),
        ("constant", time.constant),
    ];
    parts.map(|(part, seconds)| (part.to_owned(), seconds)).into()
}

/// The largest classes of a plan of memory.
pub(crate) fn classes(memory: &MemoryPlan, most: usize) -> String {
    let mut classes = memory.buffers.classes.clone();
    classes.push(("workspace", memory.buffers.workspace));
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let held = classes.iter().filter(|(_, bytes)| bytes.0 > 0).take(most);
    held.map(|(class, bytes)| format!("{class} {bytes}")).collect::<Vec<_>>().join(", ")
}

/// Seconds of the closed form by the items that can be measured.
fn items(time: &StepTime) -> Vec<CostItem> {
    let items = [
        (StepCosts::COMPUTE, time.compute + time.last_stage + time.offload),
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
        time: planned.simulated.as_ref().map_or_else(|| items(&planned.candidate.time), PredictedStep::items),
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
    let simulated = best.simulated.as_ref();
    let mut costs = MachineCosts::new(machine, search.calibration.efficiency, *devices).counting();
    if simulated.is_some() && ask_costs(&recipe, *devices, &training.model, 0, &mut costs).is_err() {
        return Vec::new();
    }
    let closed = &best.candidate.time;
    let of = |(label, bytes): (String, Bytes)| {
        let ranks = match label.as_str() {
            "tied table" => plan.first_group("pipeline"),
            "world" => vec![plan.ranks() - 1],
            label => plan.first_group(label),
        };
        let network = ranks.iter().any(|rank| *rank >= machine.node);
        let seconds = match (simulated, label.as_str()) {
            (Some(step), "pipeline") => step.exposed.get("messages").copied(),
            (Some(step), label) => step.exposed.get(label).copied(),
            (None, "tensor") => Some(closed.tensor),
            (None, "context" | "context-heads") => Some(closed.context),
            (None, "pipeline") => Some(closed.messages),
            (None, "shard" | "replicate") => Some(closed.data),
            (None, _) => None,
        };
        let in_switches = costs.in_switches().get(&label).cloned();
        let seconds = seconds.filter(|seconds| *seconds > 0.0);
        Communication { label, bytes, seconds, network, in_switches }
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
    let mut faster: Vec<&Planned> = Vec::new();
    for planned in &found.too_large {
        let alike = |other: &&Planned| alike(&planned.candidate.job.layout, &other.candidate.job.layout);
        if planned.candidate.time.total <= best.candidate.time.total && !faster.iter().any(alike) {
            faster.push(planned);
        }
    }
    for planned in faster.into_iter().take(MOST_TOO_LARGE) {
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
