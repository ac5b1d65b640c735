//! The search for layouts: the closed form lists them, dry runs decide which of the fastest fit.

use crate::layerwise::Shown;
use crate::refuse::{MOST_GROWTH, nothing_divides, nothing_fits, nothing_planned};
use crate::training::name;
use crate::{PlannerError, Training, Wanted, explain, machine, text_of};
use bessemer_checkpoint::AsyncChoice;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, CpuError};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{
    Calibration, Candidate, Candidates, Job, Layout, Machine, MachineCosts, Question, Recompute, Regret,
    StageSplit, TableReader, TensorGrid, ZeroStage, candidates, choose, read_table,
};
use bessemer_program::PiecesInFlight;
use bessemer_recipe::{Recipe, RecipeUse};
use bessemer_runlog::Plan;
use bessemer_runtime::{CacheShape, Purpose, Shape};
use bessemer_tensor::Backend;
use bessemer_train::{
    COPIES, PredictedStep, TrainError, activations, copies_on_host, planned_memory_on, predicted_step,
};
use bessemer_units::{Bytes, Compression};
use std::cell::OnceCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Layouts that are planned and simulated at least, however few are shown: the order of the closed form is not that of simulated steps.
pub(crate) const LEAST_PLANNED: usize = 5;
/// Most dry runs.
const MOST_DRY_RUNS: usize = 200;
/// Most dry runs for a plain kind of layout.
const MOST_OF_A_KIND: usize = 60;
/// Most layouts that a recipe or a model may refuse.
const MOST_REFUSED: usize = 1000;

/// Layouts whose simulated step is so much longer than the fastest are not tried in other orders of axes.
const WORTH_REFINING: f64 = 0.3;
/// Part of a step that a change of order or of pieces in flight leaves at most.
const SAVES: f64 = 0.995;
/// Most layouts with which the first is compared for its regret.
const MOST_COMPARED: usize = 64;
/// Steps that are simulated at the same time: one of hundreds of billions of parameters takes more than a GiB.
const AT_ONCE: usize = 4;
/// Events of simulated steps after which no further order of axes and no more pieces in flight are tried.
const MOST_EVENTS: usize = 4_000_000;
/// Part of what a dry run found beyond the closed form that a layout of the same ranks is expected to hold beyond it too.
const EXPECTED: f64 = 0.9;
/// Pieces of parameters and gradients in flight that are tried.
const MORE_IN_FLIGHT: [usize; 3] = [8, 32, 128];

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
    /// Threads of a rank, where the devices are not elsewhere.
    pub(crate) threads: usize,
    /// Grids of tensor-parallel ranks that are searched beside lines.
    pub(crate) grids: Vec<TensorGrid>,
    /// Layouts that are wanted.
    pub(crate) only: fn(&Layout) -> bool,
    /// Made by the first question.
    pub(crate) made_once: MadeOnce,
}

/// Values that a search makes once.
#[derive(Default)]
pub(crate) struct MadeOnce {
    /// By number of stages: how many layers each has.
    splits: OnceCell<Vec<StageSplit>>,
    /// What the first rank holds to generate text, if the recipe asks for samples or for answers to tasks.
    decoder: OnceCell<Result<Option<MemoryPlan>, String>>,
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
    /// Dry runs that were made.
    pub(crate) dry_runs: usize,
    /// Layouts that were left for later, because one of the same ranks held much more than the closed form counts.
    pub(crate) postponed: usize,
    /// Layouts that the recipe or the model refuses.
    pub(crate) refused: usize,
    /// Why the first of them is.
    pub(crate) reason: Option<String>,
    /// What the choice of the first may cost beside the others; none where there are no others.
    pub(crate) regret: Option<Regret>,
}

/// The fastest layouts among those whose layers are alike: the text to print, and the record of the plan.
///
/// # Errors
/// Nothing that divides or fits: which limit or key of the recipe binds, and by how much.
pub fn exhaustive(
    wanted: &Wanted<'_>,
    as_json: bool,
    detail: &mut dyn FnMut(&str),
) -> Result<(String, Plan), PlannerError> {
    let machine = machine(wanted.machine)?;
    let calibration = calibration(wanted, &machine)?;
    let training = wanted.recipe.training()?;
    let search = Search {
        training: &training,
        machine: &machine,
        calibration: &calibration,
        devices: wanted.devices,
        top: LEAST_PLANNED.max(wanted.top as usize),
        elsewhere: true,
        threads: 1,
        grids: training.grids(wanted.devices),
        only: |_| true,
        made_once: MadeOnce::default(),
    };
    let mut found = search.run(detail)?;
    found.planned.truncate(wanted.top as usize);
    let explained = explain::Explained::new(&search, &found, detail);
    let text = match as_json {
        true => serde_json::to_string(&explained.as_value(wanted))?,
        false => explained.text(wanted),
    };
    Ok((text, explained.record))
}

/// The constants of the cost model: fitted to a table, or to nothing.
pub(crate) fn calibration(wanted: &Wanted<'_>, machine: &Machine) -> Result<Calibration, PlannerError> {
    let Some(path) = wanted.fit else { return Ok(Calibration::none()) };
    let reader = TableReader { machine: Some(machine), only: true, given: wanted.columns };
    let table = read_table(&text_of(path)?, &reader)
        .map_err(|cause| PlannerError::failed(format!("{}: {cause}", path.display())))?;
    Ok(Calibration::of(&choose(&table.steps)))
}

/// The fastest layout of a search.
pub(crate) struct Best {
    pub(crate) plan: Option<Shown>,
    pub(crate) evaluated: usize,
}

/// Finds the fastest of the layouts that are wanted and fit by their dry run.
pub(crate) fn best(
    wanted: &Wanted<'_>,
    (training, only): (&Training, fn(&Layout) -> bool),
    machine: &Machine,
    calibration: &Calibration,
    detail: &mut dyn FnMut(&str),
) -> Result<Best, PlannerError> {
    let devices = wanted.devices;
    let grids = training.grids(devices);
    let search = Search {
        training,
        machine,
        calibration,
        devices,
        top: LEAST_PLANNED,
        elsewhere: true,
        threads: 1,
        grids,
        only,
        made_once: MadeOnce::default(),
    };
    let found = search.run(detail)?;
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

impl Search<'_> {
    /// The question to the closed form, about so many devices.
    pub(crate) fn question(&self, devices: usize) -> Question<'_> {
        Question {
            model: self.training.shape,
            seq: self.training.recipe.train.seq_len as usize,
            global_batch: self.training.sequences,
            devices,
            machine: self.machine,
            calibration: self.calibration,
            bytes: self.training.bytes,
            grids: &self.grids,
            splits: self.made_once.splits.get_or_init(|| self.splits()),
            samples: self.decoder().ok().flatten().map_or(0.0, |decoder| model_of(decoder).0 as f64),
        }
    }

    /// By number of stages that divide the devices: how many layers each has. The stages of a recipe that gives them are its own.
    fn splits(&self) -> Vec<StageSplit> {
        let model = &self.training.model;
        let split = |stages: usize| {
            // A split looks at every pair of end stages. Of more devices only multiples are asked about.
            if stages == 0 || !(MOST_GROWTH * self.devices).is_multiple_of(stages) {
                return None;
            }
            let spans = model.split(stages).ok()?;
            Some(StageSplit::new(&spans.iter().map(|span| span.layers.len()).collect::<Vec<_>>()))
        };
        match self.training.gives("parallel.stages") {
            true => Vec::new(),
            false => (0..=model.layers).map(|stages| split(stages).unwrap_or_default()).collect(),
        }
    }

    /// What the first rank holds to generate text, if the recipe asks for samples or for answers to tasks.
    fn decoder(&self) -> Result<Option<&MemoryPlan>, String> {
        let made = self.made_once.decoder.get_or_init(|| {
            let Training { recipe, model, .. } = self.training;
            if !recipe.eval.generates() {
                return Ok(None);
            }
            let text = |cause: &dyn std::fmt::Display| cause.to_string();
            let shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Score };
            let mut device = self.device().map_err(|cause| text(&cause))?;
            let asked = device.as_mut().map(|device| device as &mut dyn Backend);
            let kept = activations(&recipe.train);
            let decoder =
                MemoryPlan::of_decoder(model, shape, kept, Some(CacheShape::one(model.context)), asked);
            decoder.map(Some).map_err(|cause| text(&cause))
        });
        made.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// Searches.
    ///
    /// # Errors
    /// Nothing that divides or fits: which limit or key of the recipe binds, and by how much.
    pub(crate) fn run(&self, detail: &mut dyn FnMut(&str)) -> Result<Found, PlannerError> {
        let question = self.question(self.devices);
        let wanted = |layout: &Layout| (self.only)(layout) && self.training.admits(layout);
        let found = candidates(&question, wanted).map_err(PlannerError::request)?;
        if found.evaluated == 0 {
            return Err(nothing_divides(self));
        }
        if found.layouts.is_empty() {
            return Err(nothing_fits(self, &found));
        }
        let mut found = self.dry_runs(found, detail);
        if found.planned.is_empty() {
            return Err(nothing_planned(self, &found));
        }
        let layouts: Vec<Layout> = found.planned.iter().map(|planned| planned.candidate.job.layout).collect();
        for (planned, simulated) in found.planned.iter_mut().zip(self.simulate(&layouts, detail)) {
            planned.simulated = simulated;
        }
        found.planned.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
        let near = found.planned.first().map_or(0.0, |best| (1.0 + WORTH_REFINING) * best.seconds());
        let mut events = 0;
        for planned in found.planned.iter_mut().take_while(|planned| planned.seconds() <= near) {
            self.refine(planned, &mut events, detail);
        }
        if events > MOST_EVENTS {
            detail(
                "other orders of axes and pieces in flight were tried for some layouts only: simulated steps are long",
            );
        }
        found.planned.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
        found.regret = self.regret(&found);
        Ok(found)
    }

    /// What the choice of the first layout may cost beside the other planned ones and the fastest that are not known to be too large. None
    /// where nothing was fitted: deviations of layouts from each other are not known then.
    fn regret(&self, found: &Found) -> Option<Regret> {
        if self.calibration.fitted.is_empty() {
            return None;
        }
        let mut layouts: Vec<(&Job, &Machine, f64)> = (found.planned.iter())
            .map(|planned| (&planned.candidate.job, self.machine, planned.seconds()))
            .collect();
        let too_large = |layout: &Layout| {
            found.too_large.iter().any(|other| holds_no_less(layout, &other.candidate.job.layout))
        };
        let others = found.candidates.layouts.iter().filter(|candidate| {
            let layout = &candidate.job.layout;
            found.planned.iter().all(|planned| !alike(layout, &planned.candidate.job.layout))
                && !too_large(layout)
        });
        let others = others.take(MOST_COMPARED.saturating_sub(layouts.len()));
        layouts.extend(others.map(|candidate| (&candidate.job, self.machine, candidate.time.total)));
        self.calibration.regret(&layouts, 0)
    }

    /// Simulates a step of each layout's program, several at the same time; nothing for what has no such program, and where the closed form was
    /// fitted.
    fn simulate(&self, layouts: &[Layout], detail: &mut dyn FnMut(&str)) -> Vec<Option<PredictedStep>> {
        // A closed form that was fitted to measured steps knows more of them.
        if !self.calibration.fitted.is_empty() {
            return layouts.iter().map(|_| None).collect();
        }
        let (training, machine, devices) = (self.training, self.machine, self.devices);
        let efficiency = self.calibration.efficiency;
        let simulate = |layout: &Layout| {
            let recipe = training.in_layout(layout, devices);
            let mut costs = MachineCosts::new(machine, efficiency, devices);
            predicted_step(&recipe, devices, &training.model, &mut costs)
        };
        let made: Vec<OnceLock<Result<PredictedStep, TrainError>>> =
            layouts.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((layout, made)) = {
                let number = next.fetch_add(1, Ordering::Relaxed);
                layouts.get(number).zip(made.get(number))
            } {
                made.get_or_init(|| simulate(layout));
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        std::thread::scope(|scope| {
            (1..layouts.len().min(cores).min(AT_ONCE)).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let result = |(layout, made): (&Layout, OnceLock<_>)| match made.into_inner()? {
            Ok(simulated) => Some(simulated),
            Err(cause) => {
                detail(&format!("{}: {cause}", name(layout)));
                None
            }
        };
        layouts.iter().zip(made).map(result).collect()
    }

    /// Tries other orders of the axes on the nodes, then more pieces in flight, and keeps what makes the simulated step faster and fits.
    /// `events` counts what was simulated for all of them.
    fn refine(&self, planned: &mut Planned, events: &mut usize, detail: &mut dyn FnMut(&str)) {
        let mut least = match &planned.simulated {
            Some(step) => step.seconds,
            None => return,
        };
        let layout = planned.candidate.job.layout;
        let mut simulate = |layouts: &[Layout]| {
            let mut made = Vec::new();
            for layouts in layouts.chunks(AT_ONCE) {
                if *events > MOST_EVENTS {
                    break;
                }
                made.extend(self.simulate(layouts, detail));
                let counts = made.iter().rev().take(layouts.len()).flatten().map(|made| made.events);
                *events += counts.sum::<usize>();
            }
            made
        };
        if self.devices > self.machine.node && !self.training.gives("parallel.order") {
            let others = layout.other_orders(self.machine.node);
            let others: Vec<Layout> = others.into_iter().map(|order| Layout { order, ..layout }).collect();
            for (other, made) in others.iter().zip(simulate(&others)) {
                if let Some(made) = made.filter(|made| made.seconds < SAVES * least) {
                    least = made.seconds;
                    planned.candidate.job.layout = *other;
                    planned.simulated = Some(made);
                }
            }
        }
        let given =
            ["parallel.values_in_flight", "parallel.gradients_in_flight"].map(|key| self.training.gives(key));
        if layout.data == 1 || given.contains(&true) || !self.training.recipe.parallel.overlap {
            return;
        }
        for pieces in MORE_IN_FLIGHT {
            let in_flight = PiecesInFlight { values: pieces, gradients: pieces };
            let other = Layout { in_flight, ..planned.candidate.job.layout };
            let made = simulate(std::slice::from_ref(&other)).pop().flatten();
            let Some(made) = made.filter(|made| made.seconds < SAVES * least) else { break };
            let Some(memory) = self.memory(&other).ok().filter(|memory| self.fits(memory)) else { break };
            least = made.seconds;
            (planned.candidate.job.layout, planned.memory, planned.simulated) = (other, memory, Some(made));
        }
    }

    /// Plans the fastest layouts until enough of them fit.
    fn dry_runs(&self, candidates: Candidates, detail: &mut dyn FnMut(&str)) -> Found {
        let mut found = Found {
            candidates,
            planned: Vec::new(),
            too_large: Vec::new(),
            not_fitting: 0,
            dry_runs: 0,
            postponed: 0,
            refused: 0,
            reason: None,
            regret: None,
        };
        let mut postponed = Vec::new();
        let mut first = found.candidates.layouts.iter();
        let mut later = None;
        loop {
            let candidate = match (first.next(), &mut later) {
                (Some(candidate), _) => candidate,
                (None, None) => {
                    later = Some(std::mem::take(&mut postponed).into_iter());
                    continue;
                }
                (None, Some(later)) => match later.next() {
                    Some(candidate) => candidate,
                    None => break,
                },
            };
            let enough = found.planned.len() == self.top;
            if enough || found.dry_runs == MOST_DRY_RUNS || found.refused == MOST_REFUSED {
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
            if later.is_none() && self.expected(candidate, &found.too_large) > self.machine.memory {
                found.postponed += 1;
                postponed.push(candidate);
                continue;
            }
            match self.memory(layout) {
                Err(reason) => {
                    found.refused += 1;
                    detail(&format!("{}: {reason}", name(layout)));
                    found.reason.get_or_insert(reason);
                }
                Ok(memory) => {
                    found.dry_runs += 1;
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

    /// Bytes that a layout will hold, if it holds as much beyond the closed form as those of the same ranks that are too large; in closed form
    /// where there is none.
    fn expected(&self, candidate: &Candidate, too_large: &[Planned]) -> f64 {
        let of_ranks = |layout: &Layout| {
            let Layout { tensor, grid, sequence, context, pipeline, schedule, chunks, micro_batch, .. } =
                *layout;
            (tensor, grid, sequence, context, pipeline, schedule, chunks, micro_batch)
        };
        let ranks = of_ranks(&candidate.job.layout);
        let beyond = too_large
            .iter()
            .filter(|other| of_ranks(&other.candidate.job.layout) == ranks)
            .map(|other| other.memory.buffers.total().0 as f64 - other.candidate.least_memory)
            .reduce(f64::min);
        candidate.least_memory + EXPECTED * beyond.unwrap_or(0.0)
    }

    /// What a layout would hold if the first rank wrote no samples of text, where it would fit then.
    pub(crate) fn without_samples(&self, layout: &Layout) -> Option<Bytes> {
        let mut recipe = self.training.in_layout(layout, self.devices);
        if !recipe.eval.samples.are_written() {
            return None;
        }
        recipe.eval.samples.every_steps = 0;
        recipe.eval.samples.at_end = false;
        let memory = self.memory_of(&recipe).ok().filter(|memory| self.fits(memory))?;
        Some(memory.buffers.total())
    }

    /// What a layout would hold if what waits for the backward pass were kept in fewer bits, where it would fit then.
    pub(crate) fn compressed(&self, layout: &Layout) -> Option<(Compression, Bytes)> {
        [Compression::Bf16, Compression::Int8].into_iter().find_map(|form| {
            let mut recipe = self.training.in_layout(layout, self.devices);
            recipe.train.compress = form;
            let memory = self.memory_of(&recipe).ok().filter(|memory| self.fits(memory))?;
            Some((form, memory.buffers.total()))
        })
    }

    fn fits(&self, memory: &MemoryPlan) -> bool {
        memory.buffers.total().0 as f64 <= self.machine.memory
    }

    /// What the rank that holds most will hold, by a dry run; text that the first rank writes is counted on it.
    ///
    /// # Errors
    /// Why the recipe or the model refuses the layout.
    pub(crate) fn memory(&self, layout: &Layout) -> Result<MemoryPlan, String> {
        self.memory_of(&self.training.in_layout(layout, self.devices))
    }

    /// The same for a recipe.
    fn memory_of(&self, recipe: &Recipe) -> Result<MemoryPlan, String> {
        if let Some(problem) = recipe.problems_for(RecipeUse::Layout).into_iter().next() {
            return Err(problem.message);
        }
        let model = &self.training.model;
        let text = |cause: &dyn std::fmt::Display| cause.to_string();
        // The workspace of operators is known where they run here.
        let mut device = self.device().map_err(|cause| text(&cause))?;
        let asked = device.as_mut().map(|device| device as &mut dyn Backend);
        let mut memory =
            planned_memory_on(recipe, self.devices, model, asked).map_err(|cause| text(&cause))?;
        if self.elsewhere {
            memory = memory.of_device();
        }
        if let Some(decoder) = self.decoder()?.filter(|_| recipe.eval.generates()) {
            let plan = bessemer_train::layout(recipe, self.devices, model).map_err(|cause| text(&cause))?;
            let decoder = &decoder.buffers;
            // By the classes that the device will count.
            let held = decoder.classes.iter().filter(|(class, _)| !plan.keeps_model() || *class == "cache");
            held.copied().for_each(|(class, bytes)| memory.add(class, bytes));
            memory.buffers.workspace = memory.buffers.workspace.max(decoder.workspace);
        }
        if !self.elsewhere && recipe.save.asynchronous != AsyncChoice::Off {
            // Of ranks of this process the host's memory is the device's. Training waits for its saves where the copies do not fit.
            let copies = copies_on_host(recipe, self.devices, &memory).into_iter();
            let mut with = memory.clone();
            copies.filter(|(class, _)| *class == COPIES).for_each(|(class, bytes)| with.add(class, bytes));
            if recipe.save.asynchronous == AsyncChoice::On || self.fits(&with) {
                memory = with;
            }
        }
        Ok(memory)
    }

    /// What the ranks compute with, where they run here.
    fn device(&self) -> Result<Option<CpuBackend>, CpuError> {
        let (threads, matmul) = (self.threads, self.training.recipe.train.matmul_precision);
        let config = CpuConfig { threads, pin: false, matmul };
        if self.elsewhere { Ok(None) } else { CpuBackend::new(config).map(Some) }
    }

    /// The fastest layout of each plain kind that fits.
    pub(crate) fn plain(
        &self,
        found: &Found,
        detail: &mut dyn FnMut(&str),
    ) -> Vec<(&'static str, Option<Planned>)> {
        let kinds: [(&str, Kind); 3] = [
            ("DDP", |layout| alone(layout) && layout.zero == ZeroStage::Ddp),
            ("ZeRO-3", |layout| alone(layout) && layout.zero == ZeroStage::Zero3),
            ("tensor and pipeline without ZeRO", |layout| !alone(layout) && layout.zero == ZeroStage::Ddp),
        ];
        kinds.map(|(kind, is)| (kind, self.fastest(found, is, detail))).into()
    }

    /// The fastest layout of a kind that fits, looked for with a few dry runs.
    fn fastest(&self, found: &Found, is: Kind, detail: &mut dyn FnMut(&str)) -> Option<Planned> {
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
                    let simulated = self.simulate(std::slice::from_ref(layout), detail).pop().flatten();
                    return Some(Planned { candidate: *candidate, memory, simulated });
                }
                Ok(_) => too_large.push(*layout),
                Err(_) => {}
            }
        }
        None
    }
}

/// Bytes that a decoder takes besides its cache.
fn model_of(decoder: &MemoryPlan) -> Bytes {
    let classes = decoder.buffers.classes.iter();
    classes.filter(|(class, _)| *class != "cache").map(|(_, bytes)| *bytes).sum()
}

/// Whether a layout is of a kind.
type Kind = fn(&Layout) -> bool;

/// Whether only data-parallel ranks share the work.
fn alone(layout: &Layout) -> bool {
    layout.tensor * layout.context * layout.pipeline == 1
}

/// Whether two layouts differ only in what they compute again.
pub(crate) fn alike(layout: &Layout, other: &Layout) -> bool {
    let rest = |layout: &Layout| Layout {
        recompute: Recompute::None,
        recomputed: 0,
        offload: 0,
        order: Layout::USUAL_ORDER,
        in_flight: PiecesInFlight::DEFAULT,
        ..*layout
    };
    rest(layout) == rest(other)
}

/// Whether a rank in the first layout holds at least what it holds in the second: the same ranks do the same with larger micro-batches, or
/// compute less again.
fn holds_no_less(layout: &Layout, other: &Layout) -> bool {
    let of_one = |layout: &Layout| Layout { micro_batch: 1, ..*layout };
    let rank = |layout: &Layout| Recompute::ALL.iter().position(|of| *of == layout.recompute);
    let all = |layout: &Layout| if layout.recomputed == 0 { usize::MAX } else { layout.recomputed };
    let computes_no_more = layout.recompute == Recompute::None
        || (rank(layout) == rank(other) && all(layout) <= all(other))
        || (rank(layout) < rank(other) && all(other) == usize::MAX);
    alike(&of_one(layout), &of_one(other))
        && layout.micro_batch >= other.micro_batch
        && computes_no_more
        && layout.offload <= other.offload
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
            (Layout { offload: 1, ..some }, false),
        ] {
            assert_eq!(holds_no_less(&other, &some), holds, "{other:?}");
        }
        assert!(holds_no_less(&layout(4, Recompute::Attention, 0), &layout(4, Recompute::Full, 0)));
        assert!(holds_no_less(&some, &Layout { offload: 1, ..some }));
    }
}
