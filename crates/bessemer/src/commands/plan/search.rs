//! The search for layouts: the closed form lists them, dry runs decide which of the fastest fit.

use super::layerwise::Shown;
use super::refuse::{nothing_divides, nothing_fits, nothing_planned};
pub(super) use super::training::Training;
use super::training::name;
use super::{explain, machine, picture, text_of};
use crate::cli::PlanArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_model::{Purpose, Shape};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{
    Calibration, Candidate, Candidates, DataParallel, Layout, Machine, MachineCosts, Question, Recompute,
    candidates, choose, read_table,
};
use bessemer_recipe::load_recipe;
use bessemer_train::{PredictedStep, activations, planned_memory, predicted_step};
use std::path::Path;

/// Most dry runs.
const MOST_DRY_RUNS: usize = 200;
/// Most dry runs for a plain kind of layout.
const MOST_OF_A_KIND: usize = 60;
/// Most layouts that a recipe or a model may refuse.
const MOST_REFUSED: usize = 1000;

/// Question of the command line.
pub(super) struct Wanted<'a> {
    pub(super) recipe: &'a Path,
    pub(super) devices: usize,
    pub(super) args: &'a PlanArgs,
}

/// A search.
pub(crate) struct Search<'a> {
    pub(crate) training: &'a Training,
    pub(crate) machine: &'a Machine,
    pub(crate) calibration: &'a Calibration,
    /// Devices, a rank on each.
    pub(crate) devices: usize,
    /// Layouts to plan.
    pub(crate) top: usize,
    /// Whether the devices are elsewhere: there may be more of them, and their collectives are not those of this process.
    pub(crate) elsewhere: bool,
}

/// A layout with its planned memory.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) candidate: Candidate,
    pub(crate) memory: MemoryPlan,
    /// A step of its program on the machine, if it was simulated.
    pub(crate) simulated: Option<PredictedStep>,
}

impl Planned {
    /// Seconds of a step: simulated, or in closed form.
    pub(crate) fn seconds(&self) -> f64 {
        self.simulated.as_ref().map_or(self.candidate.time.total, |step| step.seconds)
    }
}

/// Result of a search.
pub(crate) struct Found {
    pub(crate) candidates: Candidates,
    /// The fastest that fit; at least one.
    pub(crate) planned: Vec<Planned>,
    /// The fastest that do not fit by their dry run.
    pub(crate) too_large: Vec<Planned>,
    /// Layouts that do not fit by their dry run, or hold no less than one of these.
    pub(crate) not_fitting: usize,
    /// Layouts that the recipe or the model refuses.
    pub(crate) refused: usize,
    /// Why the first of them is.
    pub(crate) reason: Option<String>,
}

pub(super) fn run(wanted: &Wanted<'_>, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = machine(&wanted.args.machine)?;
    let calibration = calibration(wanted, &machine)?;
    let training = Training::load(wanted)?;
    let search = Search {
        training: &training,
        machine: &machine,
        calibration: &calibration,
        devices: wanted.devices,
        top: wanted.args.top as usize,
        elsewhere: true,
    };
    let found = search.run(console)?;
    let explained = explain::Explained::new(&search, &found, console);
    if let Some(path) = &wanted.args.svg {
        picture::write(path, &explained.record, console)?;
    }
    Ok(print(&match as_json {
        true => serde_json::to_string(&explained.as_value(wanted.args))?,
        false => explained.text(wanted.args),
    })?)
}

/// The constants of the cost model: fitted to a table, or to nothing.
pub(super) fn calibration(wanted: &Wanted<'_>, machine: &Machine) -> Result<Calibration, Failure> {
    let Some(path) = &wanted.args.fit else { return Ok(Calibration::none()) };
    let table = read_table(&text_of(path)?, machine, true)
        .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
    Ok(Calibration::of(&choose(&table.steps)))
}

/// The fastest layout of a search.
pub(super) struct Best {
    pub(super) plan: Option<Shown>,
    pub(super) evaluated: usize,
}

/// Finds the fastest layout that fits by its dry run.
pub(super) fn best(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    calibration: &Calibration,
    console: &mut Console,
) -> Result<Best, Failure> {
    let search = Search { training, machine, calibration, devices: wanted.devices, top: 1, elsewhere: true };
    let found = search.run(console)?;
    let shown = |planned: &Planned| Shown {
        name: name(&planned.candidate.job.layout),
        keys: training.arguments(&planned.candidate.job.layout, wanted.devices),
        seconds: planned.seconds(),
        sums: f64::NAN,
        memory: planned.candidate.least_memory,
        planned: Some(planned.memory.buffers.total()),
    };
    Ok(Best { plan: found.planned.first().map(shown), evaluated: found.candidates.evaluated })
}

impl Training {
    /// The training of the recipe that is asked about.
    ///
    /// # Errors
    /// A recipe or a model that cannot be.
    pub(super) fn load(wanted: &Wanted<'_>) -> Result<Training, Failure> {
        Training::new(&load_recipe(wanted.recipe, &wanted.args.sets)?)
    }
}

impl Search<'_> {
    /// The question to the closed form, about so many devices.
    pub(super) fn question(&self, devices: usize) -> Question<'_> {
        Question {
            model: self.training.shape,
            seq: self.training.recipe.train.seq_len as usize,
            global_batch: self.training.sequences,
            devices,
            machine: self.machine,
            calibration: self.calibration,
            bytes: self.training.bytes,
        }
    }

    /// Searches.
    ///
    /// # Errors
    /// Nothing that divides or fits: which limit or key of the recipe binds, and by how much.
    pub(crate) fn run(&self, console: &mut Console) -> Result<Found, Failure> {
        let question = self.question(self.devices);
        let found = candidates(&question, |layout| self.training.admits(layout)).map_err(Failure::usage)?;
        if found.evaluated == 0 {
            return Err(nothing_divides(self));
        }
        if found.layouts.is_empty() {
            return Err(nothing_fits(self, &found));
        }
        let mut found = self.dry_runs(found, console);
        if found.planned.is_empty() {
            return Err(nothing_planned(self, &found));
        }
        for planned in &mut found.planned {
            planned.simulated = self.simulate(&planned.candidate.job.layout, console);
        }
        found.planned.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
        Ok(found)
    }

    /// Simulates a step of a layout's program; nothing for what has no such program, and where the closed form was fitted.
    fn simulate(&self, layout: &Layout, console: &mut Console) -> Option<PredictedStep> {
        // A closed form that was fitted to measured steps knows more of them.
        if !self.calibration.fitted.is_empty() {
            return None;
        }
        let recipe = self.training.in_layout(layout, self.devices);
        let mut costs = MachineCosts::new(self.machine, self.calibration.efficiency, self.devices);
        let step = predicted_step(&recipe, self.devices, &self.training.model, &mut costs);
        step.map_err(|cause| console.detail(&format!("{}: {cause}", name(layout)))).ok()
    }

    /// Plans the fastest layouts until enough of them fit.
    fn dry_runs(&self, candidates: Candidates, console: &mut Console) -> Found {
        let mut found = Found {
            candidates,
            planned: Vec::new(),
            too_large: Vec::new(),
            not_fitting: 0,
            refused: 0,
            reason: None,
        };
        let mut runs = 0;
        for candidate in &found.candidates.layouts {
            if found.planned.len() == self.top || runs == MOST_DRY_RUNS || found.refused == MOST_REFUSED {
                break;
            }
            let layout = &candidate.job.layout;
            // One of those that differ in what they compute again: the fastest.
            if found.planned.iter().any(|other| alike(layout, &other.candidate.job.layout)) {
                continue;
            }
            if found.too_large.iter().any(|other| holds_no_less(layout, &other.candidate.job.layout)) {
                found.not_fitting += 1;
                continue;
            }
            match self.memory(layout) {
                Err(reason) => {
                    found.refused += 1;
                    console.detail(&format!("{}: {reason}", name(layout)));
                    found.reason.get_or_insert(reason);
                }
                Ok(memory) => {
                    runs += 1;
                    let planned = Planned { candidate: *candidate, memory, simulated: None };
                    match self.fits(&planned.memory) {
                        true => found.planned.push(planned),
                        false => {
                            found.not_fitting += 1;
                            found.too_large.push(planned);
                        }
                    }
                }
            }
        }
        found
    }

    fn fits(&self, memory: &MemoryPlan) -> bool {
        memory.buffers.total().0 as f64 <= self.machine.memory
    }

    /// What the rank that holds most will hold, by a dry run; text that the first rank writes is counted on it.
    ///
    /// # Errors
    /// Why the recipe or the model refuses the layout.
    pub(crate) fn memory(&self, layout: &Layout) -> Result<MemoryPlan, String> {
        let recipe = self.training.in_layout(layout, self.devices);
        if let Some(problem) = recipe.problems().into_iter().next() {
            return Err(problem.message);
        }
        let model = &self.training.model;
        let text = |cause: &dyn std::fmt::Display| cause.to_string();
        let mut memory = planned_memory(&recipe, self.devices, model).map_err(|cause| text(&cause))?;
        if self.elsewhere {
            memory = memory.of_device();
        }
        if recipe.eval.samples.are_written() {
            let plan = bessemer_train::layout(&recipe, self.devices, model).map_err(|cause| text(&cause))?;
            let shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Score };
            let kept = activations(&recipe.train);
            let decoder = MemoryPlan::of_decoder(model, shape, kept, Some(model.context), None);
            let decoder = decoder.map_err(|cause| text(&cause))?.buffers;
            // By the classes that the device will count.
            let held = decoder.classes.iter().filter(|(class, _)| !plan.keeps_model() || *class == "cache");
            held.copied().for_each(|(class, bytes)| memory.add(class, bytes));
            memory.buffers.workspace = memory.buffers.workspace.max(decoder.workspace);
        }
        Ok(memory)
    }

    /// The fastest layout of each plain kind that fits.
    pub(super) fn plain(&self, found: &Found, console: &mut Console) -> Vec<(&'static str, Option<Planned>)> {
        let kinds: [(&str, Kind); 3] = [
            ("DDP", |layout| alone(layout) && layout.zero == DataParallel::Ddp),
            ("ZeRO-3", |layout| alone(layout) && layout.zero == DataParallel::Zero3),
            ("tensor and pipeline without ZeRO", |layout| !alone(layout) && layout.zero == DataParallel::Ddp),
        ];
        kinds.map(|(kind, is)| (kind, self.fastest(found, is, console))).into()
    }

    /// The fastest layout of a kind that fits, looked for with a few dry runs.
    fn fastest(&self, found: &Found, is: Kind, console: &mut Console) -> Option<Planned> {
        // Ordered by time.
        if let Some(planned) = found.planned.iter().find(|planned| is(&planned.candidate.job.layout)) {
            return Some(planned.clone());
        }
        let mut too_large: Vec<Layout> =
            found.too_large.iter().map(|planned| planned.candidate.job.layout).collect();
        let mut runs = 0;
        // Layers that are alike: there are fewer of these.
        let of_kind =
            |candidate: &&Candidate| is(&candidate.job.layout) && candidate.job.layout.recomputed == 0;
        for candidate in found.candidates.layouts.iter().filter(of_kind) {
            let layout = &candidate.job.layout;
            if too_large.iter().any(|other| holds_no_less(layout, other)) {
                continue;
            }
            if runs == MOST_OF_A_KIND {
                break;
            }
            runs += 1;
            match self.memory(layout) {
                Ok(memory) if self.fits(&memory) => {
                    let simulated = self.simulate(layout, console);
                    return Some(Planned { candidate: *candidate, memory, simulated });
                }
                Ok(_) => too_large.push(*layout),
                Err(_) => {}
            }
        }
        None
    }
}

/// Whether a layout is of a kind.
type Kind = fn(&Layout) -> bool;

/// Whether only data-parallel ranks share the work.
fn alone(layout: &Layout) -> bool {
    layout.tensor * layout.context * layout.pipeline == 1
}

/// Whether two layouts differ only in what they compute again.
pub(super) fn alike(layout: &Layout, other: &Layout) -> bool {
    let rest = |layout: &Layout| Layout { recompute: Recompute::None, recomputed: 0, ..*layout };
    rest(layout) == rest(other)
}

/// Whether a rank in the first layout holds at least what it holds in the second: the same ranks do the same with larger micro-batches, or
/// compute less again.
fn holds_no_less(layout: &Layout, other: &Layout) -> bool {
    let of_one = |layout: &Layout| Layout { micro_batch: 1, ..*layout };
    let rank = |layout: &Layout| match layout.recompute {
        Recompute::None => 0,
        Recompute::Attention => 1,
        Recompute::Full => 2,
    };
    let all = |layout: &Layout| if layout.recomputed == 0 { usize::MAX } else { layout.recomputed };
    let computes_no_more = rank(layout) == 0
        || (rank(layout) == rank(other) && all(layout) <= all(other))
        || (rank(layout) < rank(other) && all(other) == usize::MAX);
    alike(&of_one(layout), &of_one(other)) && layout.micro_batch >= other.micro_batch && computes_no_more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_micro_batches_and_fewer_recomputed_layers_hold_no_less() {
        let layout = |micro_batch, recompute, recomputed| Layout {
            data: 4,
            micro_batch,
            recompute,
            recomputed,
            ..Layout::default()
        };
        let some = layout(4, Recompute::Full, 2);
        for (other, holds) in [
            (layout(4, Recompute::Full, 2), true),
            (layout(8, Recompute::Full, 2), true),
            (layout(2, Recompute::Full, 2), false),
            (layout(4, Recompute::Full, 1), true),
            (layout(4, Recompute::Full, 3), false),
            (layout(4, Recompute::Full, 0), false),
            (layout(4, Recompute::None, 0), true),
            // Attention of all layers beside two whole ones: nobody knows which is less.
            (layout(4, Recompute::Attention, 0), false),
            (Layout { data: 2, tensor: 2, ..layout(8, Recompute::None, 0) }, false),
        ] {
            assert_eq!(holds_no_less(&other, &some), holds, "{other:?}");
        }
        assert!(holds_no_less(&layout(4, Recompute::Attention, 0), &layout(4, Recompute::Full, 0)));
    }
}
