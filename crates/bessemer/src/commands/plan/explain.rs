//! What a search found, and why: the fastest layout by item, the others with what rules them out, and what binds where nothing is found.

use super::search::{Found, Planned, Search};
use super::training::name;
use crate::console::Console;
use crate::failure::{Failure, code};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{Candidate, Candidates, Job, Layout, Question, Recompute, StepTime, candidates};
use bessemer_recipe::set_argument;
use bessemer_report::{seconds, signed_percent};
use bessemer_runlog::{CostItem, OtherLayout, Plan, StepCosts};
use bessemer_train::planned_traffic;
use bessemer_units::Bytes;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Share of a device's memory that should stay free.
const HEADROOM: f64 = 0.05;
const DAY: f64 = 86_400.0;
/// Faster layouts that do not fit, of which the reason is told.
const MOST_TOO_LARGE: usize = 3;
/// Parts of the time that a reason names.
const MOST_PARTS: usize = 3;
/// Values of a key that an error lists.
const MOST_VALUES: usize = 12;
/// Growth of the number of devices up to which an error looks for one that would do.
const MOST_GROWTH: usize = 64;

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

    /// The search in words.
    pub(crate) fn text(&self) -> String {
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
        text += &self.first();
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
    fn first(&self) -> String {
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
        if let (Some(days), Some(tokens)) = (self.days(), training.all_tokens()) {
            let _ = writeln!(
                text,
                "to finish {:.2} billion tokens: {days:.2} days without failures",
                tokens / 1e9
            );
        }
        let plain: Vec<String> = self.plain.iter().map(|(kind, stands)| format!("{kind} {stands}")).collect();
        let _ = writeln!(text, "plain layouts beside the first: {}", plain.join(", "));
        text
    }

    /// The search for programs.
    pub(crate) fn as_value(&self) -> Value {
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
fn classes(memory: &MemoryPlan, most: usize) -> String {
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

/// What rules out a layout that fits: the parts of its time that are longer.
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

/// What rules out a layout that does not fit.
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

/// A refusal of what the recipe asks for on these ranks.
fn refusal(message: String) -> Failure {
    Failure { code: code::RECIPE, message }
}

/// The refusal where no layout has all that is given: which key binds.
pub(super) fn nothing_divides(search: &Search<'_>) -> Failure {
    let Search { training, devices, .. } = search;
    let all = Cell::new(0);
    // Layouts that have all but one key, by that key, with some values that it would have.
    let but_one: RefCell<BTreeMap<&str, (usize, BTreeSet<String>)>> = RefCell::new(BTreeMap::new());
    let count = |layout: &Layout| {
        all.set(all.get() + 1);
        if let [key] = training.violated(layout)[..] {
            let mut keys = but_one.borrow_mut();
            let (count, values) = keys.entry(key).or_default();
            *count += 1;
            if values.len() < MOST_VALUES && *count <= 1000 {
                values.insert(training.value_in(key, layout));
            }
        }
        false
    };
    let counted = candidates(&search.question(*devices), count);
    if counted.is_err() || all.get() == 0 || training.constraints().is_empty() {
        return Failure::usage(format!(
            "no layout of {devices} devices divides the {} sequences of a step (train.batch_tokens / train.seq_len), {} layers and {} \
             heads; take another number of devices or another batch",
            training.sequences, training.model.layers, training.model.heads
        ));
    }
    let given = training.constraints().join(", ");
    let binding: Vec<String> = (but_one.into_inner().into_iter())
        .map(|(key, (count, values))| {
            let values: Vec<String> = values.into_iter().collect();
            format!("without {key} there are {count}, which have {}", values.join(", "))
        })
        .collect();
    refusal(match binding.is_empty() {
        true => format!(
            "none of {} layouts of {devices} ranks has what the recipe gives: {given}; two or more of these keys exclude each other here: \
             leave some to the plan",
            all.get()
        ),
        false => format!(
            "none of {} layouts of {devices} ranks has what the recipe gives: {given}; {}",
            all.get(),
            binding.join("; ")
        ),
    })
}

/// The refusal where no layout can fit: which limit it meets, and by how much.
pub(super) fn nothing_fits(search: &Search<'_>, found: &Candidates) -> Failure {
    let Search { training, machine, .. } = search;
    let Some(smallest) = &found.smallest else { return nothing_divides(search) };
    let by_class = search.memory(&smallest.job.layout).map_or(String::new(), |memory| {
        format!(", by its dry run {} ({})", memory.buffers.total(), classes(&memory, 3))
    });
    refusal(format!(
        "none of {} layouts fits: the smallest ({}) holds at least {}{by_class} where a {} has {}: {} too much; {}",
        found.evaluated,
        name(&smallest.job.layout),
        Bytes(smallest.least_memory as u64),
        machine.name,
        Bytes(machine.memory as u64),
        Bytes((smallest.least_memory - machine.memory).max(0.0) as u64),
        remedies(search, training.sequences)
    ))
}

/// The refusal where dry runs leave nothing.
pub(super) fn nothing_planned(search: &Search<'_>, found: &Found) -> Failure {
    let machine = search.machine;
    let reason = match &found.reason {
        Some(reason) => format!("; {} are refused, the first because {reason}", found.refused),
        None => String::new(),
    };
    let nearest = found.too_large.iter().min_by_key(|planned| planned.memory.buffers.total().0);
    let nearest = nearest.map_or(String::new(), |planned| {
        let held = planned.memory.buffers.total();
        format!(
            "; the nearest ({}) holds {held}, {} too much ({})",
            name(&planned.candidate.job.layout),
            Bytes((held.0 as f64 - machine.memory).max(0.0) as u64),
            classes(&planned.memory, 3)
        )
    });
    refusal(format!(
        "none of the {} fastest layouts fits: {} hold more than the {} of a {} by their dry run{nearest}{reason}; {}",
        found.not_fitting + found.refused,
        found.not_fitting,
        Bytes(machine.memory as u64),
        machine.name,
        remedies(search, search.training.sequences)
    ))
}

/// What would help where nothing fits: keys to leave to the plan, devices, or a smaller training.
fn remedies(search: &Search<'_>, sequences: usize) -> String {
    let Search { training, devices, .. } = search;
    let fit = |question: &Question<'_>, but: Option<&str>| {
        let wanted = |layout: &Layout| {
            training.violated(layout).iter().all(|key| Some(*key) == but)
                && training.goes_with_documents(layout)
        };
        candidates(question, wanted).map_or(0, |found| found.layouts.len())
    };
    let question = search.question(*devices);
    let mut help: Vec<String> = Vec::new();
    for (key, value) in training.given() {
        let count = fit(&question, Some(key));
        if count > 0 {
            help.push(format!("without {} {count} may fit", set_argument(key, &value)));
        }
    }
    if search.may_grow {
        let more = std::iter::successors(Some(2 * devices), |devices| Some(2 * devices)).take_while(|more| {
            *more <= MOST_GROWTH * devices && *more <= sequences.saturating_mul(MOST_GROWTH)
        });
        if let Some(more) = more.into_iter().find(|more| fit(&search.question(*more), None) > 0) {
            help.push(format!("{more} devices may do ({} more)", more - devices));
        }
    }
    if help.is_empty() {
        help.push("take more devices, or a smaller sequence or model".into());
    }
    help.join("; ")
}
