//! Asynchronous schedules: several steps in one program, from an empty pipeline to an empty pipeline.
//!
//! A window ends where the whole model is needed: at evaluations, samples and planned saves, at the last step, before samples that are
//! skipped or have no scored target, and at the latest after `parallel.window` steps. The result of a run is then a function of its recipe alone, unless it saves by
//! the clock or is stopped, which happens between windows.

use super::Trainer;
use super::samples::{Samples, StepPlace};
use super::step::{PATIENCE, StepCost, not_finite};
use crate::TrainError;
use crate::observer::Observer;
use bessemer_parallel::{Plan, Schedule as PipelineSchedule};
use bessemer_recipe::{BatchPlan, Recipe, SpikeAction};
use bessemer_runlog::Step;
use bessemer_schedule::Program;
use std::time::Instant;

/// The program of a step or of a whole window.
///
/// # Errors
/// A schedule that does not fit, a file that cannot be read, a setting that an asynchronous schedule does not support.
pub(crate) fn program(recipe: &Recipe, layout: &Plan, plan: &BatchPlan) -> Result<Program, TrainError> {
    let wrong = |text: String| TrainError::Recipe(text);
    let text = match &layout.pipe.schedule {
        PipelineSchedule::File(name) if layout.pipeline() > 1 => Some(
            bessemer_durable::read_to_string(name.as_ref())
                .map_err(|e| wrong(format!("parallel.schedule = {name:?}: {e}")))?,
        ),
        _ => None,
    };
    let mut updates = 1;
    if layout.pipe.asynchronous() {
        let name = layout.pipe.name();
        if recipe.train.spike_action != SpikeAction::Off {
            return Err(wrong(format!(
                "schedule {name:?} updates a stage before the loss of the step is available: set \
                 train.spike_action = \"off\", or use a schedule with a flush such as \"1f1b\""
            )));
        }
        if recipe.train.loss_scale.is_on(recipe.train.f16_gradients()) {
            return Err(wrong(format!(
                "schedule {name:?} updates a stage before an overflow in another stage can be detected: set \
                 train.loss_scale.mode = \"off\" with train.gradients = \"f32\" or \"bf16\", or use a \
                 schedule with a flush such as \"1f1b\""
            )));
        }
        updates = recipe.parallel.window.min(plan.steps).max(1) as usize;
    }
    let program = layout.program(plan.accumulation as usize, updates, text.as_deref());
    program.map_err(|e| wrong(e.to_string()))
}

impl Trainer {
    /// Steps of the next window.
    pub(super) fn window_steps(&self) -> u64 {
        let (recipe, step) = (&self.input.recipe, self.state.step);
        let (eval, tasks) = (&recipe.eval, &recipe.eval.tasks);
        let tasks = if tasks.names.is_empty() { 0 } else { tasks.every_steps };
        let due = [eval.every_steps, tasks, eval.samples.every_steps, recipe.save.every_steps];
        let next = due.into_iter().filter(|every| *every > 0).map(|every| every - step % every);
        let most = recipe.parallel.window.min(self.plan.steps - step);
        let (at, batch) = (self.state.loader.samples, self.plan.sequences_per_step);
        self.skipped.steps_before_next(at, batch, next.fold(most, u64::min)).max(1)
    }

    /// Runs one window of so many steps; their records.
    pub(super) fn window(
        &mut self,
        steps: u64,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Step>, TrainError> {
        let begun = Instant::now();
        self.runner.set_window(self.plan.accumulation as usize, steps as usize)?;
        self.tracing.runs(&self.runner.worker);
        let seed = self.input.recipe.run.seed;
        let place = StepPlace::new(&self.plan, &self.state, &self.runner.worker, seed);
        let left = self.plan.steps.saturating_sub(self.state.step);
        let targets = &self.targets;
        let mut samples = Samples::new(&self.loader, &mut self.batches, place, targets, left, &self.skipped);
        // Stages leave updates out separately, so there is no count that holds for all of them: every step of a window counts.
        let first = self.state.updates();
        let skipped = self.state.step - first;
        let before = self.state.updates_before();
        self.runner.worker.set_updates(before, skipped);
        let of_step = &self.rate;
        let rate = |t: u64| of_step.at(t - before - 1 + skipped);
        let updates = self.runner.window(&mut *self.backend, &mut samples, before + first + 1, &rate);
        let data_seconds = samples.seconds()? / steps as f64;
        let updates = updates?;
        let seconds = begun.elapsed().as_secs_f64() / steps as f64;
        let (data_bytes, data_hit_share) = self.take_data_reads();
        let cost = StepCost { seconds, data_seconds, data_bytes: data_bytes / steps, data_hit_share };
        let mut records = Vec::with_capacity(updates.len());
        let counts = self.targets.counts.clone();
        for (update, counts) in updates.into_iter().zip(counts) {
            let lr = self.rate.at(self.state.step);
            let consumed = self.state.loader.samples + self.plan.sequences_per_step;
            self.state.updates = Some(self.state.updates() + 1);
            self.state.step += 1;
            self.state.tokens += counts.targets;
            self.loader.advance(&mut self.state.loader, consumed);
            let broken = !(update.grad_norm.is_finite() && update.loss.nats.is_finite());
            self.skipped_in_a_row = if broken { self.skipped_in_a_row + 1 } else { 0 };
            self.taken = !broken;
            if broken {
                let text = format!(
                    "step {}: gradient norm is {}; stages whose own gradient is not finite have skipped the update",
                    self.state.step, update.grad_norm
                );
                self.warn(text, observer)?;
            }
            if self.skipped_in_a_row >= PATIENCE {
                // The rollback discards the rest of the window as well.
                self.diverged(not_finite(), observer)?;
                return Ok(Vec::new());
            }
            let numbers = (lr, update.grad_norm);
            records.push(self.record(update.loss, counts, numbers, cost, observer));
        }
        Ok(records)
    }
}
