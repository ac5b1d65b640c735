//! The loop: batches in, parameters and records out.

use crate::evaluation::Evaluator;
use crate::memory::optim_params;
use crate::observer::Observer;
use crate::state::{RunIdentity, TrainState};
use crate::{MemoryPlan, TrainError};
use bessemer_arch::{Model, Role};
use bessemer_checkpoint::{Loaded, SaveRequest, Store, TensorSpec, TensorsFrom};
use bessemer_loader::{Batch, Loader};
use bessemer_model::{ActivationConfig, Decoder, LossSum, Purpose, Shape, StepContext, TokenBatch};
use bessemer_optim::{Optimizer, Schedule};
use bessemer_recipe::{BatchPlan, Recipe};
use bessemer_runlog::{
    self as runlog, End, EndReason, Record, Resume, RunLog, Save, Step, TensorBoard, Warning,
};
use bessemer_shards::ShardSet;
use bessemer_tensor::{Backend, View};
use bessemer_tokenizer::Tokenizer;
use bessemer_units::{Bytes, DType};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Steps in a row whose loss or gradient may be non-finite (their updates are skipped) before the run gives up.
const PATIENCE: u32 = 20;

/// The arithmetic peak that utilisation is measured against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Floating-point operations per second of the whole device.
    pub flops_per_second: f64,
}

/// Everything that a run is made from.
pub struct TrainerInput {
    /// The recipe.
    pub recipe: Recipe,
    /// Its text, complete, for checkpoints.
    pub recipe_text: String,
    /// The tokenizer that made the shards.
    pub tokenizer: Arc<Tokenizer>,
    /// Training split.
    pub train: Arc<ShardSet>,
    /// Validation split, if there is one.
    pub validation: Option<Arc<ShardSet>>,
    /// The run directory: metrics.jsonl and checkpoints/ live there.
    pub directory: PathBuf,
    /// Memory that the run may take.
    pub memory_available: Bytes,
    /// For utilisation; without it none is reported.
    pub peak: Option<Peak>,
}

/// How a call of [`Trainer::run`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done and saved.
    Finished,
    /// Asked to stop; the state is saved and another call goes on.
    Stopped,
}

/// A run: its parameters on a device, its place in the data.
pub struct Trainer {
    input: TrainerInput,
    plan: BatchPlan,
    backend: Box<dyn Backend>,
    decoder: Decoder,
    optimizer: Optimizer,
    schedule: Schedule,
    loader: Loader,
    evaluator: Evaluator,
    store: Store,
    log: RunLog,
    /// Made with the first record, so that a run that cannot start leaves no file.
    board: Option<TensorBoard>,
    state: TrainState,
    batch: Batch,
    skipped_in_a_row: u32,
    /// Smoothed seconds of a step.
    pace: f64,
    resumed: Option<Resume>,
    warnings: Vec<String>,
}

impl Trainer {
    /// Plans the run, makes every buffer, and puts the newest intact checkpoint of the run directory (or the
    /// initialisation) into them.
    ///
    /// # Errors
    /// A recipe that does not fit the data, too little memory (found before any buffer is made), a checkpoint of another
    /// run, or what a lower floor answers.
    pub fn new(input: TrainerInput, mut backend: Box<dyn Backend>) -> Result<Trainer, TrainError> {
        let recipe = &input.recipe;
        let wrong = |e: &dyn std::fmt::Display| TrainError::Recipe(e.to_string());
        let model = recipe.model.resolve(Some(input.tokenizer.vocab_size())).map_err(|e| wrong(&e))?;
        let plan = recipe.train.resolve(1, Some(input.train.token_count())).map_err(|e| wrong(&e))?;
        for set in [Some(&input.train), input.validation.as_ref()].into_iter().flatten() {
            set.require(fingerprint(&input.tokenizer)?, input.tokenizer.vocab_size() as u32)?;
        }
        let shape = Shape {
            sequences: plan.micro_batch as usize,
            seq: plan.seq_len as usize,
            purpose: Purpose::Train,
        };
        let activations =
            ActivationConfig { storage: recipe.train.storage, recompute: recipe.train.recompute };
        MemoryPlan::new(&model, shape, activations, &recipe.optim)?.fits(input.memory_available)?;

        let seed = recipe.run.seed;
        let loader = Loader::new(
            Arc::clone(&input.train),
            plan.seq_len as usize,
            recipe.loader.seed_or(seed),
            recipe.loader.shuffle,
        )?;
        let decoder = Decoder::with_activations(&mut *backend, &model, shape, activations)?;
        let optimizer = Optimizer::new(&mut *backend, &optim_params(&decoder), &recipe.optim)?;
        let evaluator = Evaluator::new(&mut *backend, &decoder, &input)?;
        let schedule = Schedule::new(&recipe.optim, plan.steps);
        let state = TrainState {
            step: 0,
            tokens: 0,
            seconds: 0.0,
            loader: loader.state(0),
            identity: RunIdentity {
                model,
                tokenizer: input.tokenizer.fingerprint(),
                seed,
                sequences_per_step: plan.sequences_per_step,
            },
        };
        let store = Store::open(input.directory.join("checkpoints"));
        let log = RunLog::open(&input.directory)?;
        let mut trainer = Trainer {
            input,
            plan,
            backend,
            decoder,
            optimizer,
            schedule,
            loader,
            evaluator,
            store,
            log,
            board: None,
            state,
            batch: Batch::new(),
            skipped_in_a_row: 0,
            pace: 0.0,
            resumed: None,
            warnings: Vec::new(),
        };
        trainer.restore()?;
        Ok(trainer)
    }

    /// Puts the newest intact checkpoint into the buffers, or the initialisation if there is none.
    fn restore(&mut self) -> Result<(), TrainError> {
        let Some(latest) = self.store.latest_valid()? else {
            self.decoder.init(&mut *self.backend, self.input.recipe.run.seed)?;
            self.optimizer.adopt_values(&mut *self.backend)?;
            self.log.truncate_after(0)?;
            return Ok(());
        };
        for skipped in &latest.skipped {
            self.warnings.push(format!(
                "checkpoint {} was passed over: {}",
                skipped.path.display(),
                skipped.why
            ));
        }
        self.load(&latest.loaded)?;
        let dropped = self.log.truncate_after(self.state.step)?;
        let path = latest.loaded.path().strip_prefix(&self.input.directory).unwrap_or(latest.loaded.path());
        self.resumed = Some(Resume {
            step: self.state.step,
            path: path.display().to_string(),
            records_dropped: dropped,
        });
        Ok(())
    }

    fn load(&mut self, loaded: &Loaded) -> Result<(), TrainError> {
        let place = loaded.path().display().to_string();
        let saved: TrainState = serde_json::from_value(loaded.manifest().state.clone())
            .map_err(|e| TrainError::State { place: place.clone(), problem: e.to_string() })?;
        self.state.identity.check(&saved.identity, &place)?;
        self.loader.resume(&saved.loader)?;
        let wanted = self.tensors();
        loaded.require_match(wanted.iter().map(|t| (t.0.name.as_str(), t.0.shape.as_slice())), |_| true)?;
        let mut values = Vec::new();
        for (spec, view) in &wanted {
            values.resize(view.len(), 0.0);
            loaded.read_into(&spec.name, &mut values)?;
            self.backend.write_f32(*view, &values)?;
        }
        self.state = saved;
        Ok(())
    }

    /// Every tensor of the run's state, with its place on the device.
    fn tensors(&self) -> Vec<(TensorSpec, View)> {
        let params = self.decoder.params();
        let spec = |name: String, shape: &[usize], dtype| TensorSpec { name, shape: shape.to_vec(), dtype };
        let mut list: Vec<_> = params
            .iter()
            .map(|p| (spec(p.spec.name.clone(), &p.spec.shape, p.value.dtype()), p.value))
            .collect();
        for (name, view) in self.optimizer.states() {
            let param = name.split_once('.').map_or(name.as_str(), |(_, param)| param);
            let shape = params.iter().find(|p| p.spec.name == param).map(|p| p.spec.shape.clone());
            list.push((spec(name, &shape.unwrap_or_else(|| vec![view.len()]), DType::F32), view));
        }
        list
    }

    /// Steps done and planned.
    pub fn steps(&self) -> (u64, u64) {
        (self.state.step, self.plan.steps)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.state.identity.model
    }

    /// The batch geometry and duration.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// The loader, for what was seen.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Trains until the last step or until `stop` is set, then saves.
    ///
    /// # Errors
    /// What a lower floor answers; everything up to the newest checkpoint stays.
    pub fn run(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Outcome, TrainError> {
        self.announce(observer)?;
        let begun = Instant::now();
        let seconds_before = self.state.seconds;
        let mut last_save = Instant::now();
        let mut saved_step = self.resumed.as_ref().map(|r| r.step);
        let save = self.input.recipe.save.clone();
        let eval = self.input.recipe.eval.clone();
        while self.state.step < self.plan.steps && !stop.load(Ordering::Relaxed) {
            let record = self.step(observer)?;
            self.append(record.into(), observer)?;
            self.state.seconds = seconds_before + begun.elapsed().as_secs_f64();
            let (step, last) = (self.state.step, self.state.step == self.plan.steps);
            if eval.is_due(step) && !last {
                self.evaluate(false, observer)?;
            }
            if eval.samples.is_due(step) && !last {
                self.samples(observer)?;
            }
            if !last && save.due(step, last_save.elapsed().as_secs_f64()) {
                self.save(observer)?;
                (last_save, saved_step) = (Instant::now(), Some(step));
            }
        }
        if save.at_end && saved_step != Some(self.state.step) {
            self.save(observer)?;
        }
        if self.state.step < self.plan.steps {
            return Ok(Outcome::Stopped);
        }
        Ok(Outcome::Finished)
    }

    /// Scores the validation split: all of it, or the share that the recipe gives to evaluation while training.
    ///
    /// # Errors
    /// What evaluation answers.
    pub fn evaluate(&mut self, whole: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let at = (self.state.step, self.state.tokens);
        let record = self.evaluator.score(&mut *self.backend, &mut self.decoder, at, whole, observer)?;
        record.map_or(Ok(()), |r| self.append(r, observer))
    }

    /// Lets the model continue the prompts of the recipe.
    ///
    /// # Errors
    /// What generation answers.
    pub fn samples(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let records = self.evaluator.samples(&mut *self.backend, &self.decoder, self.state.step)?;
        records.into_iter().try_for_each(|r| self.append(r, observer))
    }

    /// What a finished run is judged by: the whole validation split, samples, and the n-gram baseline, as far as the
    /// recipe asks for them and an earlier session has not got to them before it was killed.
    ///
    /// # Errors
    /// What evaluation answers.
    pub fn final_evaluation(
        &mut self,
        threads: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let config = self.input.recipe.eval.clone();
        let log = runlog::read(&self.input.directory)?.records;
        // Evaluation on the way leaves out the last step, so what stands after that step is of the final evaluation.
        let last_step = log.iter().rposition(|r| matches!(r, Record::Step(_))).unwrap_or(0);
        let is_done = |of_kind: fn(&Record) -> bool| log[last_step..].iter().any(of_kind);
        if config.at_end && !is_done(|r| matches!(r, Record::Eval(_))) {
            self.evaluate(true, observer)?;
        }
        if config.samples.at_end && !is_done(|r| matches!(r, Record::Sample(_))) {
            self.samples(observer)?;
        }
        if is_done(|r| matches!(r, Record::Baseline(_))) {
            return Ok(());
        }
        let samples = self.state.loader.samples;
        let record = self.evaluator.baseline(&self.loader, samples, threads, observer)?;
        record.map_or(Ok(()), |r| self.append(r, observer))
    }

    /// Records how this session ended.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn end(
        &mut self,
        reason: EndReason,
        message: Option<String>,
        seconds: f64,
    ) -> Result<(), TrainError> {
        self.log.append(
            &End { step: self.state.step, tokens: self.state.tokens, reason, message, seconds }.into(),
        )?;
        Ok(self.log.sync()?)
    }

    /// One optimizer step: every micro-batch forward and backward, then the update.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<Step, TrainError> {
        let begun = Instant::now();
        let (step, micro) = (self.state.step, self.plan.micro_batch as usize);
        let first = self.state.loader.samples;
        let mut sum = LossSum::default();
        let mut data_seconds = 0.0;
        for i in 0..self.plan.accumulation {
            let fetch = Instant::now();
            self.loader.batch(first + i * micro as u64, micro, &mut self.batch)?;
            data_seconds += fetch.elapsed().as_secs_f64();
            let batch = TokenBatch { ids: &self.batch.inputs, targets: &self.batch.targets, positions: None };
            let context = StepContext {
                seed: self.input.recipe.run.seed,
                step,
                first_sequence: i * micro as u64,
                loss_scale: 1.0 / self.plan.tokens_per_step.0 as f32,
                accumulate: i > 0,
            };
            sum += self.decoder.forward_backward(&mut *self.backend, &batch, &context)?;
        }
        let lr = self.schedule.at(step);
        let update = self.optimizer.step(&mut *self.backend, step + 1, lr)?;
        self.backend.sync()?;
        self.skipped_in_a_row = if update.skipped { self.skipped_in_a_row + 1 } else { 0 };
        self.state.step += 1;
        self.state.tokens += self.plan.tokens_per_step.0;
        self.state.loader = self.loader.state(first + self.plan.sequences_per_step);
        if update.skipped {
            let text = format!(
                "step {}: gradient norm is {}; the update was skipped",
                self.state.step, update.grad_norm
            );
            self.warn(text, observer)?;
        }
        if self.skipped_in_a_row >= PATIENCE {
            return Err(TrainError::Diverged { step: self.state.step, count: PATIENCE });
        }
        let seconds = begun.elapsed().as_secs_f64();
        let tokens_per_s = self.plan.tokens_per_step.0 as f64 / seconds;
        let flops = self.model().train_flops_per_token(self.plan.seq_len as usize).0;
        let left = self.plan.steps - self.state.step;
        // Mean over the whole session so far would lag behind a change of speed; over one step it would jump.
        self.pace = if self.pace == 0.0 { seconds } else { 0.95 * self.pace + 0.05 * seconds };
        Ok(Step {
            step: self.state.step,
            tokens: self.state.tokens,
            loss: sum.mean(),
            lr,
            grad_norm: update.grad_norm,
            tokens_per_s,
            mfu: self.input.peak.map(|p| tokens_per_s * flops / p.flops_per_second),
            memory_bytes: observer.resident_bytes().or(Some(self.backend.memory().total().0)),
            seconds,
            data_seconds: Some(data_seconds),
            eta_s: Some(left as f64 * self.pace),
        })
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.log.sync()?;
        let tensors = self.tensors();
        let backend = &mut self.backend;
        let specs = tensors.iter().map(|t| t.0.clone()).collect();
        let mut source = TensorsFrom::new(specs, |index: usize, values: &mut [f32]| {
            backend.read_f32(tensors[index].1, values).map_err(|e| e.to_string().into())
        });
        let state = serde_json::to_value(&self.state).map_err(|e| TrainError::State {
            place: self.store.path(self.state.step).display().to_string(),
            problem: e.to_string(),
        })?;
        let report = self.store.save(SaveRequest {
            step: self.state.step,
            tokens: self.state.tokens,
            state,
            recipe: self.input.recipe_text.clone(),
            tokenizer: Some(self.input.tokenizer.fingerprint()),
            tensors: &mut source,
            max_file_bytes: self.input.recipe.save.max_file_bytes(),
            progress: &mut |done, total| observer.progress("saving", done, total),
        })?;
        let path =
            report.path.strip_prefix(&self.input.directory).unwrap_or(&report.path).display().to_string();
        let record = Save { step: self.state.step, bytes: report.bytes, seconds: report.seconds, path };
        self.append(record.into(), observer)?;
        self.store.gc(&self.input.recipe.save.retention())?;
        Ok(())
    }

    fn announce(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Some(resume) = self.resumed.clone() {
            self.append(resume.into(), observer)?;
        } else {
            let model = self.model().clone();
            let tables = model.params().into_iter().filter(|p| p.role == Role::Embedding);
            let tables: usize = tables.map(|p| p.len()).sum();
            let record = runlog::Model {
                name: self.input.recipe.model.architecture.clone(),
                parameters: model.parameters() as u64,
                parameters_without_embedding: (model.parameters() - tables) as u64,
                layers: model.layers as u64,
                width: model.width as u64,
                heads: model.heads as u64,
                kv_heads: model.kv_heads as u64,
                vocab_size: model.vocab_size as u64,
                seq_len: self.plan.seq_len,
                flops_per_token: model.train_flops_per_token(self.plan.seq_len as usize).0,
            };
            self.append(record.into(), observer)?;
        }
        // A continued run may have been given more steps.
        let optim = &self.input.recipe.optim;
        let record = runlog::Training {
            steps: self.plan.steps,
            tokens: self.plan.tokens.0,
            batch_tokens: self.plan.tokens_per_step.0,
            micro_batch: self.plan.micro_batch,
            seq_len: self.plan.seq_len,
            samples_per_epoch: self.loader.samples_per_epoch(),
            optimizer: optim.describe(),
            schedule: format!("{}, {} warm-up steps", optim.schedule.name(), optim.warmup(self.plan.steps)),
        };
        self.append(record.into(), observer)?;
        for text in std::mem::take(&mut self.warnings) {
            self.warn(text, observer)?;
        }
        Ok(())
    }

    fn warn(&mut self, message: String, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let record = Warning { step: Some(self.state.step), topic: "training".into(), message };
        self.append(record.into(), observer)
    }

    fn append(&mut self, record: Record, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.log.append(&record)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let mut board = match self.board.take() {
            Some(board) => board,
            None => {
                let resumed = self.resumed.as_ref().map(|r| r.step);
                TensorBoard::create(&self.input.directory, &self.input.recipe.run.name, now, resumed)?
            }
        };
        board.record(now, &record)?;
        self.board = Some(board);
        observer.record(&record);
        Ok(())
    }
}

/// The tokenizer's fingerprint in the form that shards carry.
fn fingerprint(tokenizer: &Tokenizer) -> Result<bessemer_shards::Fingerprint, TrainError> {
    tokenizer.fingerprint().parse().map_err(TrainError::Recipe)
}
