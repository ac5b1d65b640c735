//! The loop: batches in, parameters and records out.

use crate::curvature::Capturing;
use crate::evaluation::Evaluator;
use crate::input::TrainerInput;
use crate::memory::optim_params;
use crate::observer::Observer;
use crate::spikes::{SpikeGuard, SpikeState};
use crate::state::{RunIdentity, TrainState};
use crate::{MemoryPlan, TrainError};
use bessemer_arch::{Model, Role};
use bessemer_checkpoint::Store;
use bessemer_loader::{Batch, Loader};
use bessemer_model::{ActivationConfig, Decoder, LossSum, Purpose, Shape, StepContext, TokenBatch};
use bessemer_optim::{Optimizer, Schedule};
use bessemer_recipe::{BatchPlan, SpikeAction};
use bessemer_runlog::{self as runlog, End, EndReason, Record, Resume, RunLog, Step, TensorBoard, Warning};
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

mod saving;

/// Steps in a row whose loss or gradient may be non-finite (their updates are skipped) before the run gives up.
const PATIENCE: u32 = 20;

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
    spikes: SpikeGuard,
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
        let tokenizer = &input.tokenizer;
        let model = recipe
            .model
            .resolve_for(tokenizer.vocab_size(), tokenizer.end_of_text())
            .map_err(|e| wrong(&e))?;
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
        let mut decoder = Decoder::with_activations(&mut *backend, &model, shape, activations)?;
        decoder.set_z_loss(recipe.train.z_loss as f32);
        let mut optimizer = Optimizer::new(&mut *backend, &optim_params(&decoder), &recipe.optim)?;
        optimizer.plan_capture(&mut *backend, shape.tokens(), activations.storage.dtype())?;
        let evaluator = Evaluator::new(&mut *backend, &decoder, &input)?;
        let schedule = Schedule::new(&recipe.optim, plan.steps);
        let spikes = SpikeGuard::new(&recipe.train);
        let state = TrainState {
            step: 0,
            tokens: 0,
            seconds: 0.0,
            loader: loader.state(0),
            spikes: SpikeState::default(),
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
            spikes,
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
            // A step that was gone back from leaves a warning and no record.
            let Some(record) = self.step(observer)? else { continue };
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

    /// Every micro-batch of a step forward and backward: the loss, and the seconds spent on data.
    fn gradients(&mut self) -> Result<(LossSum, f64), TrainError> {
        let (step, micro) = (self.state.step, self.plan.micro_batch as usize);
        let first = self.state.loader.samples;
        let captures = self.optimizer.captures(step + 1);
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
            sum += if captures {
                let mut seams = Capturing { optimizer: &mut self.optimizer, accumulate: i > 0 };
                self.decoder.forward_backward_through(&mut *self.backend, &mut seams, &batch, &context)?
            } else {
                self.decoder.forward_backward(&mut *self.backend, &batch, &context)?
            };
        }
        Ok((sum, data_seconds))
    }

    /// One optimizer step; nothing to record if it was gone back from.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<Option<Step>, TrainError> {
        let begun = Instant::now();
        let (sum, data_seconds) = self.gradients()?;
        let step = self.state.step;
        let consumed = self.state.loader.samples + self.plan.sequences_per_step;
        let lr = self.schedule.at(step);
        let grad_norm = self.optimizer.grad_norm(&mut *self.backend)?;
        let spike = self.spikes.judge(&mut self.state.spikes, sum.mean(), grad_norm);
        if let Some(spike) = spike.filter(|_| self.spikes.action == SpikeAction::Rewind)
            && self.rewind(consumed)?
        {
            let back = self.state.step;
            let after = "and on with the data behind this step";
            self.warn(
                format!("step {}: {spike}; the run went back to step {back} {after}", step + 1),
                observer,
            )?;
            return Ok(None);
        }
        let update = match spike {
            Some(_) => self.optimizer.skip(grad_norm),
            None => self.optimizer.apply(&mut *self.backend, step + 1, lr, grad_norm)?,
        };
        self.backend.sync()?;
        let broken = update.skipped && spike.is_none();
        self.skipped_in_a_row = if broken { self.skipped_in_a_row + 1 } else { 0 };
        self.state.step += 1;
        self.state.tokens += self.plan.tokens_per_step.0;
        self.state.loader = self.loader.state(consumed);
        if let Some(spike) = spike {
            self.warn(format!("step {}: {spike}; the update was skipped", self.state.step), observer)?;
        }
        if broken {
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
        let weight = self.input.recipe.train.z_loss;
        // Mean over the whole session so far would lag behind a change of speed; over one step it would jump.
        self.pace = if self.pace == 0.0 { seconds } else { 0.95 * self.pace + 0.05 * seconds };
        Ok(Some(Step {
            step: self.state.step,
            tokens: self.state.tokens,
            loss: sum.mean(),
            z_loss: (weight > 0.0).then(|| weight * sum.mean_lse_squared()),
            lr,
            grad_norm: update.grad_norm,
            tokens_per_s,
            mfu: self.input.peak.map(|p| tokens_per_s * flops / p.flops_per_second),
            memory_bytes: observer.resident_bytes().or(Some(self.backend.memory().total().0)),
            seconds,
            data_seconds: Some(data_seconds),
            eta_s: Some(left as f64 * self.pace),
        }))
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
