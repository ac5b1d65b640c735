//! Refusals: which limit or which key of the recipe binds where no layout is found, by how much, and what would do.

use crate::PlannerError;
use crate::explain::classes;
use crate::search::{Found, Search};
use crate::training::name;
use bessemer_plan::{Candidates, Layout, Question, candidates};
use bessemer_recipe::set_argument;
use bessemer_units::Bytes;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Values of a key that an error lists.
const MOST_VALUES: usize = 12;
/// A layout that holds more than so many times what a device has is not planned to say by how much.
const MOST_EXCESS: f64 = 4.0;
/// Growth of the number of devices up to which an error looks for one that would do.
pub(crate) const MOST_GROWTH: usize = 64;

/// A refusal of what the recipe asks for on these ranks.
fn refusal(message: String) -> PlannerError {
    PlannerError::Recipe(message)
}

/// The refusal where no layout has all that is given: which key binds.
pub(crate) fn nothing_divides(search: &Search<'_>) -> PlannerError {
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
        return PlannerError::request(format!(
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
            "no layout matches the recipe ({} layouts of {devices} ranks tried): {given}; some of these keys \
             exclude each other: leave some of them out",
            all.get()
        ),
        false => format!(
            "no layout matches the recipe ({} layouts of {devices} ranks tried): {given}; {}",
            all.get(),
            binding.join("; ")
        ),
    })
}

/// The refusal where no layout can fit: which limit it meets, and by how much.
pub(crate) fn nothing_fits(search: &Search<'_>, found: &Candidates) -> PlannerError {
    let Search { training, machine, .. } = search;
    let Some(smallest) = &found.smallest else { return nothing_divides(search) };
    let layout = &smallest.job.layout;
    let samples = if layout.keeps_model() { 0.0 } else { search.question(search.devices).samples };
    let layout = Some(layout).filter(|_| smallest.least_memory - samples <= MOST_EXCESS * machine.memory);
    let by_class = layout.and_then(|layout| search.memory(layout).ok()).map_or(String::new(), |memory| {
        format!(", by its dry run {} ({})", memory.buffers.total(), classes(&memory, 3))
    });
    refusal(format!(
        "no layout fits ({} tried): the smallest ({}) holds at least {}{by_class} where a {} has {}: {} too \
         much; {}{}",
        found.evaluated,
        name(&smallest.job.layout),
        Bytes(smallest.least_memory as u64),
        machine.name,
        Bytes(machine.memory as u64),
        Bytes((smallest.least_memory - machine.memory).max(0.0) as u64),
        what_would_do(search, layout),
        remedies(search, training.sequences)
    ))
}

/// The refusal where dry runs leave nothing.
pub(crate) fn nothing_planned(search: &Search<'_>, found: &Found) -> PlannerError {
    let machine = search.machine;
    let reason = match &found.reason {
        Some(reason) => format!("; {} are refused, the first because {reason}", found.refused),
        None => String::new(),
    };
    let smallest = found.too_large.iter().min_by_key(|planned| planned.memory.buffers.total().0);
    let nearest = smallest.map_or(String::new(), |planned| {
        let held = planned.memory.buffers.total();
        format!(
            "; the nearest ({}) holds {held}, {} too much ({})",
            name(&planned.candidate.job.layout),
            Bytes((held.0 as f64 - machine.memory).max(0.0) as u64),
            classes(&planned.memory, 3)
        )
    });
    let would_do = what_would_do(search, smallest.map(|planned| &planned.candidate.job.layout));
    refusal(format!(
        "no layout fits (the {} fastest were tried): in a dry run {} hold more than the {} of a \
         {}{nearest}{reason}; {would_do}{}",
        found.not_fitting + found.refused,
        found.not_fitting,
        Bytes(machine.memory as u64),
        machine.name,
        remedies(search, search.training.sequences)
    ))
}

/// Whether a layout would fit without samples of text, for which the first rank holds a model of its own, or with fewer bits of what waits for
/// the backward pass: choices that no plan makes by itself.
fn what_would_do(search: &Search<'_>, layout: Option<&Layout>) -> String {
    let Some(layout) = layout else { return String::new() };
    if let Some(held) = search.without_samples(layout) {
        return format!(
            "without samples of text, for which the first rank has the whole model (eval.samples.every_steps = 0, eval.samples.at_end = false), {} \
             holds {held}; ",
            name(layout)
        );
    }
    let Some((form, held)) = search.compressed(layout) else { return String::new() };
    format!(
        "with {}, which rounds what waits for the backward pass, {} holds {held}; ",
        set_argument("train.compress", &json!(form)),
        name(layout)
    )
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
    let without = fit(&Question { samples: 0.0, ..question }, None);
    if question.samples > 0.0 && without > 0 {
        help.push(format!(
            "without samples of text, for which the first rank has the whole model (eval.samples.every_steps = 0, eval.samples.at_end = \
             false), {without} may fit"
        ));
    }
    for (key, value) in training.given() {
        let count = fit(&question, Some(key));
        if count > 0 {
            help.push(format!("without {} {count} may fit", set_argument(key, &value)));
        }
    }
    if search.elsewhere {
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
