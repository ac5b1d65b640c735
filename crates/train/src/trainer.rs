//! The training loop: steps, and around them records, evaluations, checkpoints and the handling of spikes.

use crate::early_stop::EarlyStopState;
use crate::evaluation::{self, Evaluator};
use crate::held_out::{DocumentScorer, HeldOut};
use crate::input::TrainerInput;
use crate::memory::activations;
use crate::mixture::TrainingData;
use crate::observer::{Activity, Observer};
use crate::offload::give_second_memory;
use crate::runner::{Runner, world_of_one};
use crate::skipped::{SkippedSamples, skipped_samples};
use crate::spikes::{SpikeDetector, SpikeState};
use crate::state::{RunIdentity, TrainState, checkpoints_in};
use crate::{TrainError, mixture};
use bessemer_arch::Model;
use bessemer_checkpoint::{Compression, SaveEvery, Store};
use bessemer_collectives::{Communicator, SumCheck};
use bessemer_filling::FillPlan;
use bessemer_loader::{EvaluationWindows, Loader, OrderOrigin, Prefetcher};
use bessemer_optim::LossScaleConfig;
use bessemer_parallel::{FillSupplier, Job, MemoryPlan, Plan};
use bessemer_recipe::BatchPlan;
use bessemer_runlog::{self as runlog, Change, End, EndReason, Record, Resume, Warning};
use bessemer_runtime::{ActivationConfig, CacheShape, Purpose, Shape, Teacher};
use bessemer_shards::ReadCounters;
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use bessemer_units::{Bytes, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

mod announce;
mod checks;
mod clocks;
mod continuing;
mod copying;
mod disk;
mod divergence;
mod expert_loads;
mod filling;
mod initial;
mod interval;
mod measuring;
mod memory_tier;
mod preferring;
mod reading;
mod records;
mod samples;
mod saving;
mod step;
mod teaching;
mod tracing;
mod windows;
mod writing;

use checks::Integrity;
pub(crate) use checks::norms_differ;
use continuing::LearningRate;
use copying::{CopyPlan, Saver};
use expert_loads::LoadWatch;
pub use initial::OpenInitial;
use interval::SaveInterval;
use measuring::Measuring;
pub(crate) use measuring::item_of_group;
use memory_tier::MemoryTier;
pub use memory_tier::{RUN_FILE as MEMORY_RUN_FILE, sweep_copies_in_memory};
use preferring::Preferences;
pub use reading::read_tensors;
use records::{Missing, Records};
use samples::{StepTargets, prefetch_shape};
use teaching::OpenTeacher;
pub(crate) use teaching::check_layout;
use tracing::Tracing;
pub(crate) use windows::program as step_program;

/// Longest warning in the log, in characters.
const LONGEST_WARNING: usize = 4 << 10;

/// Checkpoints besides those of the run directory; each rank reads the parts that it needs.
#[derive(Default)]
pub struct OtherCheckpoints<'a> {
    /// Store from which a run without a checkpoint of its own resumes.
    pub elsewhere: Option<Store>,
    /// Opens the checkpoint of `train.init.from`; called if there is no checkpoint to resume from.
    pub initial: Option<OpenInitial<'a>>,
    /// Opens the checkpoint of `train.teacher.from`.
    pub teacher: Option<OpenInitial<'a>>,
}

/// Outcome of a call of [`Trainer::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done and saved.
    Finished,
    /// A stop was requested; the state is saved and another call continues.
    Stopped,
}

/// One rank of a run: its part of the parameters on a device, and its position in the data. All ranks make the same calls
/// in the same order.
pub struct Trainer {
    input: TrainerInput,
    plan: BatchPlan,
    backend: Box<dyn Backend>,
    runner: Runner,
    rate: LearningRate,
    spikes: SpikeDetector,
    /// Loss scaling, and whether its factor is dynamic; `None` without loss scaling.
    scaling: Option<(LossScaleConfig, bool)>,
    loader: Loader,
    /// Samples that no step trains on.
    skipped: SkippedSamples,
    /// Targets of the steps that are being made.
    targets: StepTargets,
    evaluator: Evaluator,
    /// Chats of the validation split; `None` of a run on text.
    held_out: Option<(HeldOut, DocumentScorer)>,
    /// Pairs, their reference and weights; `None` of a run on text or single chats.
    preferences: Option<Preferences>,
    saver: Saver,
    /// Chooses when to save, with `save.every = "auto"`.
    interval: Option<SaveInterval>,
    /// Copies of the state in memory, if the recipe requests them.
    memory_tier: Option<MemoryTier>,
    integrity: Integrity,
    store: Store,
    /// Log of the run; `None` on all ranks but the first, which alone writes files.
    records: Option<Records>,
    tracing: Tracing,
    /// Measurements of a planned run, until the session is measured.
    measuring: Option<Measuring>,
    state: TrainState,
    /// Micro-batches, prepared ahead.
    batches: Prefetcher,
    /// Bytes that this process had read of the training split at the last record of a step.
    data_read: ReadCounters,
    skipped_in_a_row: u32,
    load_watch: LoadWatch,
    /// Whether the update of the newest step was applied.
    taken: bool,
    /// Step and loss of the newest evaluation on the way.
    validation: Option<(u64, f64)>,
    /// Smoothed seconds of a step.
    pace: f64,
    /// Operations of a forward and backward pass.
    flops_per_token: f64,
    resumed: Option<Resume>,
    /// True if the checkpoint that the session resumes from is in the run directory, and not in memory or elsewhere.
    has_its_checkpoint: bool,
    /// Changes of the recipe by the session, until they are recorded.
    change: Option<Change>,
    /// Origin of the parameters that a new run begins with, if they were not drawn.
    initial: Option<String>,
    warnings: Vec<String>,
}

impl Trainer {
    /// [`Trainer::on_rank`] for a run of one rank.
    ///
    /// # Errors
    /// Same errors as [`Trainer::on_rank`].
    pub fn new(input: TrainerInput, backend: Box<dyn Backend>) -> Result<Trainer, TrainError> {
        Trainer::on_rank(input, backend, world_of_one())
    }

    /// Plans this rank's part of the run, makes every buffer, and puts the newest intact checkpoint of the run directory
    /// (or the initialisation) into them. All ranks of `world` call this with the same input, except for the memory that
    /// each may take; they see the same files.
    ///
    /// # Errors
    /// A recipe that does not fit the data or the ranks, too little memory (found before any buffer is made), a
    /// checkpoint of another run, or an error of a lower layer or another rank.
    pub fn on_rank(
        input: TrainerInput,
        backend: Box<dyn Backend>,
        world: Box<dyn Communicator>,
    ) -> Result<Trainer, TrainError> {
        Trainer::on_rank_from(input, backend, world, OtherCheckpoints::default())
    }

    /// [`Trainer::on_rank`], with the checkpoints that are used if the run directory has none.
    ///
    /// # Errors
    /// Same errors as [`Trainer::on_rank`].
    pub fn on_rank_from(
        mut input: TrainerInput,
        mut backend: Box<dyn Backend>,
        world: Box<dyn Communicator>,
        others: OtherCheckpoints<'_>,
    ) -> Result<Trainer, TrainError> {
        let unwritten = evaluation::leave_out_samples(&mut input);
        let recipe = &input.recipe;
        let wrong = |e: &dyn std::fmt::Display| TrainError::Recipe(e.to_string());
        if recipe.parallel.awaits_plan() {
            let text = "parallel.layout = \"auto\" and no plan was made: wanted a recipe with its plan, as `bessemer run` makes it, or \
                        parallel.layout = \"manual\"";
            return Err(wrong(&text));
        }
        let tokenizer = &input.tokenizer;
        let model = recipe
            .model
            .resolve_for(tokenizer.vocab_size(), tokenizer.end_of_text())
            .map_err(|e| wrong(&e))?;
        let layout = crate::layout(recipe, world.size(), &model).map_err(|e| wrong(&e))?;
        let tokens = input.train.token_count();
        let ranks = layout.data_ranks() as u64;
        let mut plan = recipe.batch(ranks, Some(tokens)).map_err(|e| wrong(&e))?;
        let former = input.former.as_ref().map(|(_, set)| set);
        for set in [Some(&input.train), input.validation.as_ref(), former].into_iter().flatten() {
            set.require(fingerprint(&input.tokenizer)?, input.tokenizer.vocab_size() as u32)?;
        }
        let separated = recipe.separates_documents() && tokenizer.end_of_text().is_some();
        let data = TrainingData { recipe, train: &input.train, separated };
        let loader = data.loader(&plan, plan.steps * plan.sequences_per_step, OrderOrigin::default())?;
        if recipe.train.has_documents() {
            plan = plan.of_documents(ranks, loader.mean_tokens()).map_err(|e| wrong(&e))?;
        }
        let shape = Shape {
            sequences: plan.micro_batch as usize,
            seq: plan.seq_len as usize,
            purpose: Purpose::Train,
        };
        let mut warnings = Vec::new();
        let teacher = OpenTeacher::of(&input, &model, others.teacher, &mut warnings)?;
        let mut activations = activations(&recipe.train);
        let planned_teacher = match &teacher {
            Some(teacher) => {
                let (planned, operands) = teacher.plan(shape, &mut *backend)?;
                activations.teacher = Some(operands);
                Some(planned)
            }
            None => None,
        };
        if recipe.train.early_stop.patience > 0 && input.validation.is_none() {
            return Err(TrainError::Recipe(format!(
                "train.early_stop.patience = {}: wanted a validation split, found none; hold documents out with corpus.split.validation_fraction",
                recipe.train.early_stop.patience
            )));
        }
        let (first, losses) = (world.rank() == 0, &*crate::losses(recipe));
        let bubbles = evaluation::bubbles(&input, shape, layout.data_ranks())?;
        let program = &step_program(recipe, &layout, &plan)?;
        let (optim, types) = (&recipe.optim, recipe.train.types());
        let job = Job { model: &model, shape, activations, types, optim, losses, plan: &layout, program };
        let evaluations = bubbles.as_ref().map_or(0, |bubbles| bubbles.count());
        let fill = FillPlan::new(&job, &recipe.parallel.fill, evaluations)?;
        let supplier = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
        let mut memory = MemoryPlan::of_rank(&job, supplier, Some(&mut *backend))?;
        if first && recipe.eval.generates() {
            let (shape, cached) =
                (Shape { sequences: 1, seq: 1, ..shape }, Some(CacheShape::one(model.context)));
            let kept = job.activations.clone();
            let decoder = MemoryPlan::of_decoder(&model, shape, kept, cached, Some(&mut *backend))?;
            memory.add_samples(&decoder, !layout.keeps_model());
        }
        planned_teacher.iter().for_each(|planned| memory.add_teacher(planned));
        let (prefetch, ring) = (
            recipe.loader.prefetch_config(),
            prefetch_shape(&plan, &layout, program, recipe.train.preferences.is_on()),
        );
        let splits = u64::from(input.validation.is_some()) + u64::from(input.former.is_some());
        let windows = splits * EvaluationWindows::prefetch_memory(shape.seq, prefetch);
        memory.add("loader", Bytes(prefetch.memory(ring).saturating_add(windows + loader.index_bytes())));
        let cache = recipe.loader.cache_config();
        cache.iter().for_each(|cache| memory.add("block cache", Bytes(input.train.cache_bytes(*cache))));
        let copies = CopyPlan::new(&recipe.save, fill.as_ref(), &mut memory, input.memory_available);
        memory
            .fits(1, input.memory_available)
            .map_err(|e| e.of_experts(&model, &layout, shape, recipe.train.storage))?;
        cache.iter().for_each(|cache| input.train.cache_blocks(*cache));
        let left = Bytes(input.memory_available.0.saturating_sub(memory.buffers.total().0));

        let warmup = optim.warmup_steps;
        let shortened = (warmup > plan.steps).then(|| {
            format!(
                "optim.warmup_steps = {warmup} is longer than the run of {0} steps: the learning rate rises over all {0}; a \
                 warm-up as a fraction of the run is optim.warmup_fraction",
                plan.steps
            )
        });
        let seed = recipe.run.seed;
        let taken = mixture::run_mixture(recipe, &input.train)?;
        warnings.extend(mixture::repetitions(recipe, &input.train, &taken)?);
        warnings.extend(shortened);
        warnings.extend(unwritten.map(String::from));
        if optim.lr == 0.0 {
            warnings
                .push("optim.lr = 0: no step changes a parameter; wanted it above 0, such as 3e-4".into());
        }
        let planned = recipe.parallel.planned.ranks > 0 && !layout.pipe.asynchronous();
        let measuring = planned.then(|| Measuring::new(plan.steps));
        let world = match &measuring {
            Some(measuring) => measuring.wrap(world),
            None => world,
        };
        let sums = SumCheck::default();
        let world = match recipe.train.integrity.every_steps > 0 && world.size() > 1 {
            true => sums.wrap(world),
            false => world,
        };
        let (world, peers) = memory_tier::peer_group(&recipe.save.memory, world)?;
        let read = match &teacher {
            Some(teacher) => Some(teacher.read(shape, &mut *backend)?),
            None => None,
        };
        let teacher_views = read.as_ref().map(Teacher::operands);
        let activations = ActivationConfig { teacher: teacher_views, ..job.activations.clone() };
        let mut runner = Runner::filled(&mut *backend, &Job { activations, ..job }, supplier, world)?;
        let worker = &mut runner.worker;
        read.map_or(Ok(()), |teacher| worker.set_teacher(teacher))?;
        let digest = digest(&input.recipe_text);
        if worker.broadcast_from_root("recipe", digest)? != digest {
            return Err(TrainError::Recipe("the recipe of this rank differs from that of rank 0".into()));
        }
        give_second_memory(worker, &recipe.train.offload_dir, &input.directory)?;
        let compresses = recipe.save.compress == Compression::Zstd;
        let store = checkpoints_in(&input.directory).compressing(compresses);
        if first {
            // Removes the remains of a process that was killed while it removed a checkpoint.
            store.clean();
        }
        let skipped = skipped_samples(worker, recipe, &input.directory)?;
        let saver = Saver::set_up(worker, recipe, store.clone(), fill.as_ref(), copies)?;
        if saver.lacks_memory() {
            warnings.push(format!(
                "training waits while checkpoints are written: two copies of what a rank saves, {}, do not fit into memory beside \
                 the rest (save.async = \"on\" refuses such a run, \"off\" waits without this warning)",
                Bytes(2 * memory.copy.0)
            ));
        }
        let memory_tier = MemoryTier::set_up(worker, &input, peers, left, &mut warnings)?;
        let integrity = Integrity::set_up(worker, recipe, sums)?;
        let evaluator = Evaluator::new(&mut *backend, worker, &input, bubbles)?;
        let held_out = match &input.validation {
            Some(set) => HeldOut::of(&input.recipe, set, &input.tokenizer.byte_lengths())?,
            None => None,
        };
        let held_out = held_out.map(|chats| (chats, DocumentScorer::new(&runner)));
        let preferences = Preferences::of(&input, &runner)?;
        let batches = Prefetcher::new(Arc::new(loader.clone()), prefetch, ring)?;
        let spikes = SpikeDetector::new(&recipe.train);
        let (scaling, f16) = (&recipe.train.loss_scale, recipe.train.f16_gradients());
        let scaling = scaling.is_on(f16).then(|| (scaling.clone(), scaling.is_dynamic(f16)));
        let flops_per_token = model.train_flops_per_token(plan.seq_len as usize).0;
        let state = TrainState {
            step: 0,
            updates: Some(0),
            tokens: 0,
            seconds: 0.0,
            loader: loader.state(0),
            spikes: SpikeState { passed_over: Some(0), ..SpikeState::default() },
            loss_scale: None,
            best: Vec::new(),
            batch_origin: None,
            initial: None,
            teacher: None,
            early_stop: None,
            run: None,
            model_type: None,
            base: None,
            identity: RunIdentity {
                model,
                tokenizer: input.tokenizer.fingerprint(),
                seed,
                sequences_per_step: plan.sequences_per_step,
            },
        };
        let rate = LearningRate::new(&recipe.optim, &plan, &state);
        let records = match first {
            true => Some(Records::open(&input.directory, recipe, &input.recipe_text, &state.identity.model)?),
            false => None,
        };
        let directory = first.then(|| input.directory.clone());
        let tracing = Tracing::new(&recipe.run.trace, directory);
        let mut trainer = Trainer {
            tracing,
            measuring,
            input,
            plan,
            backend,
            runner,
            rate,
            spikes,
            scaling,
            loader,
            skipped,
            targets: StepTargets::default(),
            evaluator,
            held_out,
            preferences,
            saver,
            interval: None,
            memory_tier,
            integrity,
            store,
            records,
            state,
            batches,
            data_read: ReadCounters::default(),
            skipped_in_a_row: 0,
            load_watch: LoadWatch::default(),
            taken: true,
            validation: None,
            pace: 0.0,
            flops_per_token,
            resumed: None,
            has_its_checkpoint: false,
            change: None,
            initial: None,
            warnings,
        };
        trainer.restore(others)?;
        trainer.note_teacher(teacher.map(|teacher| (teacher.state.clone(), teacher.describe())));
        let failures = trainer.records.as_ref().map_or(0, Records::failed_sessions);
        trainer.check_disk()?;
        let save = &trainer.input.recipe.save;
        let auto = save.every == SaveEvery::Auto;
        trainer.interval = auto.then(|| SaveInterval::new(save, failures, trainer.state.step));
        let left = trainer.plan.steps.saturating_sub(trainer.state.step);
        if let Some(measuring) = &mut trainer.measuring {
            measuring.expect(left);
        }
        Ok(trainer)
    }

    /// Steps done and planned.
    pub fn steps(&self) -> (u64, u64) {
        (self.state.step, self.plan.steps)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.state.identity.model
    }

    /// The layout: how ranks share the work.
    pub fn layout(&self) -> &Plan {
        self.runner.worker.plan()
    }

    /// The batch geometry and duration.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// The loader, which counts the samples that were consumed.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Trains until the last step or until `stop` is set on any rank, then saves. All ranks end after the same step.
    ///
    /// # Errors
    /// An error of a lower layer; everything up to the newest checkpoint stays.
    pub fn run(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Outcome, TrainError> {
        self.data_read = self.input.train.counters();
        let outcome = self.run_steps(observer, stop);
        // No step follows, or none before the caller has handled the error.
        self.batches.empty();
        if outcome.is_err() {
            // Why the run ends is known already.
            let _ = self.end_saving_after_error(observer);
        }
        outcome
    }

    fn run_steps(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Outcome, TrainError> {
        self.announce(observer)?;
        self.tracing.begin(&mut self.runner.worker)?;
        match self.prepare_reference(observer, stop) {
            Err(e) if e.is_stop() => return Ok(Outcome::Stopped),
            prepared => prepared?,
        }
        let begun = Instant::now();
        let seconds_before = self.state.seconds;
        let mut last_save = Instant::now();
        let mut saved_step = self.resumed.as_ref().map(|r| r.step).filter(|_| self.has_its_checkpoint);
        if self.owes_save() {
            self.save_when_due(observer)?;
            saved_step = Some(self.state.step);
        }
        let save = self.input.recipe.save.clone();
        let eval = self.input.recipe.eval.clone();
        let missing = match self.resumed.is_none() && self.state.step == 0 && self.evaluator.has_former() {
            true => Missing { evaluation: true, ..Missing::default() },
            false => self.missing_on_the_way()?,
        };
        self.evaluate_on_the_way(missing, false, observer, stop)?;
        // Work that is spread over several steps is not saved: saving and stopping wait for its end.
        let mut save_is_due = false;
        let mut records = Vec::new();
        while !(self.is_over()
            || self.agree_to_stop(stop.load(Ordering::Relaxed), observer)? && self.runner.worker.at_rest())
        {
            observer.begins(Activity::Training, self.state.step);
            let beside = self.saver.is_writing();
            self.turn(&mut records, observer)?;
            records.iter().for_each(|record| self.saver.times.note(record.seconds, beside));
            if records.is_empty() {
                continue;
            }
            records.drain(..).try_for_each(|r: runlog::Step| self.append(r.into(), observer))?;
            self.append_measured(observer)?;
            self.append_remarks(observer)?;
            self.state.seconds = seconds_before + begun.elapsed().as_secs_f64();
            let (step, last) = (self.state.step, self.state.step == self.plan.steps);
            save_is_due |= !last && self.agrees_to_save(last_save.elapsed().as_secs_f64())?;
            if !last {
                let saved = save_is_due && self.runner.worker.at_rest();
                self.evaluate_on_the_way(Missing::due(&eval, step), saved, observer, stop)?;
                save_is_due |= eval.is_due(step) && self.is_among_the_best();
            }
            // Only a compared state is saved.
            let saves = (save_is_due && self.runner.worker.at_rest()) || (self.is_over() && save.at_end);
            if saves && !self.replicas_agree(step, observer)? {
                continue;
            }
            if save_is_due && !last && self.runner.worker.at_rest() {
                save_is_due = false;
                last_save = Instant::now();
                observer.begins(Activity::Saving, step);
                match self.save_when_due(observer) {
                    Ok(()) => saved_step = Some(step),
                    Err(e) => self.recover(e, observer)?,
                }
            }
            self.copy_to_memory(observer)?;
        }
        observer.begins(Activity::Saving, self.state.step);
        self.end_filling(observer, stop)?;
        if save.at_end && saved_step != Some(self.state.step) {
            self.save(observer)?;
            saved_step = Some(self.state.step);
        }
        self.end_memory_tier(saved_step == Some(self.state.step), observer);
        self.gather_trace(false, observer)?;
        if !self.is_over() {
            return Ok(Outcome::Stopped);
        }
        Ok(Outcome::Finished)
    }

    /// Whether no step follows: after the last one, or once the validation loss no longer falls.
    fn is_over(&self) -> bool {
        let config = &self.input.recipe.train.early_stop;
        self.state.step >= self.plan.steps || self.state.early_stop.is_some_and(|state| state.ends(config))
    }

    /// Notes a validation loss for `train.early_stop`, and records whether the run ends with it.
    fn note_for_early_stop(&mut self, at: (u64, f64), observer: &mut dyn Observer) -> Result<(), TrainError> {
        let config = self.input.recipe.train.early_stop;
        if config.patience == 0 {
            return Ok(());
        }
        self.state.early_stop = EarlyStopState::after(self.state.early_stop, &config, at);
        match self.state.early_stop.filter(|state| state.ends(&config)) {
            Some(EarlyStopState { step: best_step, loss: best_loss, evaluations }) => self
                .append(runlog::EarlyStop { step: at.0, best_step, best_loss, evaluations }.into(), observer),
            None => Ok(()),
        }
    }

    /// A step, or as many as one program of an asynchronous schedule has; their records are added to `records`. A step that was
    /// gone back from leaves a warning and no record.
    fn turn(
        &mut self,
        records: &mut Vec<runlog::Step>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.pass_over_skipped(observer)?;
        self.pass_over_unscored(observer)?;
        let asynchronous = self.runner.worker.plan().pipe.asynchronous();
        let steps = if asynchronous { self.window_steps() } else { 1 };
        let steps = self.count_targets(steps)?;
        self.tracing.turn(&mut self.runner.worker, self.state.step, steps);
        if let Some(measuring) = &mut self.measuring {
            measuring.turn(&mut self.runner.worker, self.tracing.traces());
        }
        match asynchronous {
            true => {
                let before = self.state.step;
                records.extend(self.window(steps, observer)?);
                if self.comparison_was_due(before) && !self.replicas_agree(self.state.step, observer)? {
                    records.clear();
                }
            }
            false => records.extend(self.step(observer)?),
        }
        if self.tracing.end_turn(&mut self.runner.worker, self.state.step, !records.is_empty()) {
            self.gather_trace(true, observer)?;
        }
        if let Some(measuring) = &mut self.measuring {
            measuring.end_turn(&mut self.runner.worker, records.last().map(|record| record.seconds));
        }
        self.after_step(!records.is_empty(), observer)
    }

    /// Moves to the first sample of the next step, after the spans that no step trains on.
    fn pass_over_skipped(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let at = self.state.loader.samples;
        let first = self.skipped.first_of_step(at, self.plan.sequences_per_step);
        if first == at {
            return Ok(());
        }
        self.begin_with(first);
        let step = self.state.step + 1;
        self.warn(
            format!("step {step}: begins with sample {first}; samples from {at} on are skipped"),
            observer,
        )
    }

    /// Makes `first` the first sample of the next step.
    pub(super) fn begin_with(&mut self, first: u64) {
        self.loader.advance(&mut self.state.loader, first);
        self.state.spikes.passed_over = Some(first.saturating_sub(self.state.samples_trained()));
    }

    /// Moves to the first sample of the next step with a scored target. A step without one has no mean and no gradient: its samples are
    /// passed over, and steps remain updates.
    fn pass_over_unscored(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let counted = Instant::now();
        let (at, batch) = (self.state.loader.samples, self.plan.sequences_per_step);
        let mut first = at;
        self.targets.counts.clear();
        self.targets.counts.push(loop {
            let counts = self.loader.count_targets(first, batch)?;
            if counts.scored > 0 {
                break counts;
            }
            first = self.skipped.first_of_step(first.saturating_add(batch), batch);
            if first - at > batch.saturating_add(2 * self.loader.samples_per_epoch()) {
                return Err(TrainError::Recipe(format!(
                    "step {}: none of the targets of {} samples from sample {at} on is scored; wanted one: use documents with answers, or \
                     a mixture that has some",
                    self.state.step + 1,
                    first - at
                )));
            }
        });
        self.targets.seconds = counted.elapsed().as_secs_f64();
        if first == at {
            return Ok(());
        }
        self.begin_with(first);
        let step = self.state.step + 1;
        self.warn(
            format!("step {step}: begins with sample {first}; samples from {at} on have no scored target"),
            observer,
        )
    }

    /// Counts the targets of the next `steps` steps, the first of which were counted, and returns how many of them run together: those
    /// before the first without a scored target.
    fn count_targets(&mut self, steps: u64) -> Result<u64, TrainError> {
        let counted = Instant::now();
        let batch = self.plan.sequences_per_step;
        for step in self.targets.counts.len() as u64..steps {
            let counts = self.loader.count_targets(self.state.loader.samples + step * batch, batch)?;
            if counts.scored == 0 {
                break;
            }
            self.targets.counts.push(counts);
        }
        self.targets.seconds += counted.elapsed().as_secs_f64();
        Ok(self.targets.counts.len() as u64)
    }

    /// Records the remarks of the observer.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn append_remarks(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        observer.remarks().into_iter().try_for_each(|remark| self.warn(remark, observer))
    }

    /// Records the measurements of the first steps of a planned run, once they are done.
    fn append_measured(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(mut measuring) = self.measuring.take_if(|measuring| measuring.is_over()) else {
            return Ok(());
        };
        let record = measuring.gather(
            &mut self.runner.worker,
            &*self.backend,
            self.saver.copy_bytes(),
            self.state.step,
        )?;
        self.append(record.into(), observer)
    }

    /// Gathers the ranks' trace events into the file; `step`: events of a traced step are among them.
    fn gather_trace(&mut self, step: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        match self.tracing.gather(&mut self.runner.worker, step)? {
            Some(problem) => self.warn(problem, observer),
            None => Ok(()),
        }
    }

    /// Returns the first rank's answer on every rank.
    fn agree(&mut self, name: &str, word: bool) -> Result<bool, TrainError> {
        Ok(self.runner.worker.broadcast_from_root(name, u64::from(word))? != 0)
    }

    /// Whether a save is due after this step, `seconds` after the last one. Clocks differ between ranks.
    fn agrees_to_save(&mut self, seconds: f64) -> Result<bool, TrainError> {
        let (save, step) = (&self.input.recipe.save, self.state.step);
        let chosen = self.interval.as_mut().is_some_and(|interval| interval.due(step));
        let due = save.due_by_steps(step) || save.due_by_time(seconds) || chosen;
        if save.every_seconds == 0 && self.interval.is_none() {
            return Ok(due);
        }
        self.agree("save", due)
    }

    /// Runs the evaluations of the present step, which is not the last one. A request to stop ends them: they leave no record, and the
    /// session that resumes makes them. `saved`: as of [`Trainer::evaluate_when_due`].
    fn evaluate_on_the_way(
        &mut self,
        missing: Missing,
        saved: bool,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        if missing == Missing::default() {
            return Ok(());
        }
        // Work that spans several steps continues: the session would end after another step than this one.
        let never = AtomicBool::new(false);
        let stop = if self.runner.worker.at_rest() { stop } else { &never };
        observer.begins(Activity::Evaluating, self.state.step);
        let mut evaluate = || {
            if missing.evaluation {
                self.evaluate_when_due(saved, observer, stop)?;
            }
            if missing.tasks {
                self.tasks(observer, stop)?;
            }
            if missing.samples {
                self.samples(observer, stop)?;
            }
            Ok(())
        };
        evaluate().or_else(|e: TrainError| if e.is_stop() { Ok(()) } else { Err(e) })
    }

    /// Evaluations of the step that the session resumes from, which a request to stop has ended.
    fn missing_on_the_way(&mut self) -> Result<Missing, TrainError> {
        let due = Missing::due(&self.input.recipe.eval, self.state.step);
        if self.resumed.is_none() || self.is_over() || due == Missing::default() {
            return Ok(Missing::default());
        }
        let missing = match &self.records {
            Some(records) => records.missing_after(self.state.step, due)?,
            None => Missing::default(),
        };
        Ok(Missing::of_word(self.runner.worker.broadcast_from_root("what to evaluate", missing.word())?))
    }

    /// Scores the validation split: all of it, or the share that the recipe gives to evaluation while training.
    fn evaluate(
        &mut self,
        whole: bool,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        let (at, begun) = ((self.state.step, self.state.tokens), Instant::now());
        let records = match self.held_out {
            Some(_) => self.evaluate_chats(whole, observer, stop)?,
            None => {
                let all = (&mut *observer as &mut dyn Observer, stop);
                let record = self.evaluator.score(&mut *self.backend, &mut self.runner, at, whole, all)?;
                record.into_iter().collect::<Vec<_>>()
            }
        };
        let mut records = records;
        let all = (&mut *observer as &mut dyn Observer, stop);
        let former = self.evaluator.score_former(&mut *self.backend, &mut self.runner, whole, all)?;
        if let Some(Record::Eval(eval)) = records.first_mut() {
            eval.components.extend(former);
        }
        self.tracing.event("evaluation", begun, at.0);
        let loss = match (records.first(), whole) {
            (Some(Record::Eval(eval)), false) => Some((eval.step, eval.loss)),
            _ => None,
        };
        self.validation = loss.or(self.validation);
        records.into_iter().try_for_each(|record| self.append(record, observer))?;
        loss.map_or(Ok(()), |at| self.note_for_early_stop(at, observer))
    }

    /// Lets the model continue the prompts of the recipe.
    fn samples(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<(), TrainError> {
        let begun = Instant::now();
        let records = self.evaluator.samples(&mut *self.backend, &mut self.runner, self.state.step, stop)?;
        self.tracing.event("samples", begun, self.state.step);
        records.into_iter().try_for_each(|r| self.append(r, observer))
    }

    /// Lets the model answer the tasks of the recipe.
    fn tasks(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<(), TrainError> {
        let (at, begun) = ((self.state.step, self.state.tokens), Instant::now());
        let records = self.evaluator.tasks(&mut *self.backend, &mut self.runner, at, (observer, stop))?;
        self.tracing.event("tasks", begun, at.0);
        records.into_iter().try_for_each(|r| self.append(r, observer))
    }

    /// Evaluates a finished run: the whole validation split, tasks, samples, and the n-gram baseline, as far as the
    /// recipe requests them and an earlier session has not made them. Does nothing before the run is over. A request to stop ends
    /// it; the next session makes the missing ones.
    ///
    /// # Errors
    /// An error of evaluation or of another rank.
    pub fn final_evaluation(
        &mut self,
        threads: usize,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Outcome, TrainError> {
        if !self.is_over() {
            return Ok(Outcome::Stopped);
        }
        match self.evaluate_at_end(threads, observer, stop) {
            Err(e) if e.is_stop() => Ok(Outcome::Stopped),
            ended => ended.map(|()| Outcome::Finished),
        }
    }

    fn evaluate_at_end(
        &mut self,
        threads: usize,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        observer.begins(Activity::Evaluating, self.state.step);
        let missing = match &self.records {
            Some(records) => records.missing_at_end(self.state.step)?,
            None => Missing::default(),
        };
        let missing =
            Missing::of_word(self.runner.worker.broadcast_from_root("what to evaluate", missing.word())?);
        let config = self.input.recipe.eval.clone();
        if config.at_end && missing.evaluation {
            self.evaluate(true, observer, stop)?;
        }
        if config.tasks.at_end && missing.tasks {
            self.tasks(observer, stop)?;
        }
        if config.samples.at_end && missing.samples {
            self.samples(observer, stop)?;
        }
        self.gather_trace(false, observer)?;
        if !missing.baseline || self.records.is_none() {
            return Ok(());
        }
        let samples = self.state.loader.samples;
        let record = self.evaluator.baseline(&self.loader, samples, threads, (observer, stop))?;
        record.map_or(Ok(()), |r| self.append(r, observer))
    }

    /// Frees buffers, device and communicators. The remaining parts can record how the session ended.
    pub fn close(self) -> Closed {
        self.tracing.close();
        Closed { records: self.records, step: self.state.step, tokens: self.state.tokens }
    }

    fn warn(&mut self, message: String, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let message = bounded(&message, LONGEST_WARNING).into_owned();
        let record = Warning { step: Some(self.state.step), topic: "training".into(), message };
        self.append(record.into(), observer)
    }

    /// Writes a record and passes it to the observer, on the first rank.
    fn append(&mut self, record: Record, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(records) = &mut self.records else { return Ok(()) };
        let warning = records.append(&record)?;
        observer.record(&record);
        if let Some(warning) = warning {
            observer.record(&warning);
        }
        Ok(())
    }
}

/// The log of a trainer that was closed.
pub struct Closed {
    records: Option<Records>,
    step: u64,
    tokens: u64,
}

impl Closed {
    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Records how the session ended, on the first rank.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn end(self, reason: EndReason, message: Option<String>, seconds: f64) -> Result<(), TrainError> {
        let Some(mut records) = self.records else { return Ok(()) };
        let (step, tokens, ended_at) = (self.step, self.tokens, runlog::rfc3339(records::now()));
        records.append_last(&End { step, tokens, reason, message, seconds, ended_at }.into())
    }
}

/// Hash of a recipe's text, to compare the recipes of ranks.
fn digest(text: &str) -> u64 {
    bessemer_memory_checkpoint::stable_hash(&[text.as_bytes()]) as u64
}

/// The tokenizer's fingerprint in the form that shards carry.
fn fingerprint(tokenizer: &Tokenizer) -> Result<bessemer_shards::Fingerprint, TrainError> {
    tokenizer.fingerprint().parse().map_err(TrainError::Recipe)
}
