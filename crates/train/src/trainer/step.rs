//! One optimizer step, checked for a spike before its update, and its record.

use super::Trainer;
use super::preferring::Preferences;
use super::samples::{Samples, StepPlace};
use crate::TrainError;
use crate::observer::Observer;
use crate::preferences::PairSums;
use crate::runner::Passes;
use bessemer_filling::RankFill;
use bessemer_loader::TargetCounts;
use bessemer_recipe::SpikeAction;
use bessemer_runlog::Step;
use bessemer_runtime::{LossSum, WeighedLoss};
use std::collections::BTreeMap;
use std::time::Instant;

/// Steps in a row whose loss or gradient may be non-finite (their updates are skipped) before the run gives up.
pub(super) const PATIENCE: u32 = 20;

/// Time and bytes of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepCost {
    pub(super) seconds: f64,
    /// Seconds of the step spent waiting for data.
    pub(super) data_seconds: f64,
    /// Bytes that the process has read from the training split since the step before.
    pub(super) data_bytes: u64,
    /// Share of the bytes that batches requested that was in the cache.
    pub(super) data_hit_share: Option<f64>,
}

/// Message of a run that gives up after [`PATIENCE`] steps.
pub(super) fn not_finite() -> String {
    format!("{PATIENCE} steps in a row had a loss or gradient that is not finite")
}

impl Trainer {
    /// The passes of a step, and the seconds that they waited for data.
    pub(super) fn passes(&mut self) -> Result<(Passes, f64), TrainError> {
        let seed = self.input.recipe.run.seed;
        let place = StepPlace::new(&self.plan, &self.state, &self.runner.worker, seed);
        let wanted = self.step_fill();
        if let Some(fill) = RankFill::of_mut(&mut self.runner.worker) {
            fill.set_step(wanted)?;
        }
        let evaluation = self.evaluator.bubbles().and_then(|b| b.in_bubbles(&self.runner.worker));
        let left = self.plan.steps.saturating_sub(self.state.step);
        let targets = &self.targets;
        let mut samples = Samples::new(&self.loader, &mut self.batches, place, targets, left, &self.skipped)
            .evaluating(evaluation);
        if let Some(preferences) = &mut self.preferences {
            samples.weigh_pairs(preferences, &mut self.runner, &mut *self.backend)?;
            samples.weights = Some(&preferences.weights);
        }
        let (sums, step) = (&self.integrity.sums, self.state.step);
        sums.switch(self.integrity.sums_are_due(step).then_some(step));
        let passes = self.runner.passes(&mut *self.backend, &mut samples);
        sums.switch(None);
        let seconds = samples.seconds()?;
        let mut passes = passes?;
        if let Some(Preferences { weights, .. }) = &self.preferences {
            let PairSums { loss, pairs, .. } = weights.sums;
            passes.loss = LossSum { nats: loss, scored: pairs, ..LossSum::default() };
        }
        Ok((passes, seconds))
    }

    /// One optimizer step; nothing to record if it was gone back from.
    pub(super) fn step(&mut self, observer: &mut dyn Observer) -> Result<Option<Step>, TrainError> {
        let begun = Instant::now();
        let loss_scale = self.state.loss_scale.map(|s| s.scale);
        self.runner.worker.set_loss_scale(loss_scale.unwrap_or(1.0));
        let updates = self.state.updates();
        let before = self.state.updates_before();
        self.runner.worker.set_updates(before, self.state.step - updates);
        let (passes, data_seconds) = self.passes()?;
        let mut experts = self.loads(observer)?;
        let router = self.runner.worker.take_router_not_finite();
        if let Err(e) = self.after_passes(observer) {
            // The state before this step is not finite.
            self.recover(e, observer)?;
            return Ok(None);
        }
        self.tracing.runs(&self.runner.worker);
        // Before the update: it would hide that the passes have read values that were not those of all ranks.
        if self.comparison_is_due() && !self.replicas_agree(self.state.step + 1, observer)? {
            return Ok(None);
        }
        if !self.has_rested(observer)? {
            return Ok(None);
        }
        let Some(Passes { loss: sum, grad_norm }) = self.validated(passes, observer)? else {
            return Ok(None);
        };
        let step = self.state.step;
        let consumed = self.state.loader.samples + self.plan.sequences_per_step;
        let lr = self.rate.at(step);
        let spike = self.spikes.check(&mut self.state.spikes, sum.mean(), grad_norm);
        if let Some(spike) = spike.filter(|_| self.spikes.action == SpikeAction::Rewind)
            && self.rewind(consumed, observer)?
        {
            let back = self.state.step;
            let after = "and continues with the data after this step";
            self.warn(format!("step {}: {spike}; rolled back to step {back} {after}", step + 1), observer)?;
            return Ok(None);
        }
        let update = match spike {
            Some(_) => self.runner.worker.skip(grad_norm),
            None => {
                let t = before + updates + 1;
                self.runner.update(&mut *self.backend, t, lr, grad_norm)?
            }
        };
        // An overflow that a smaller loss scale may cure is no sign of divergence.
        let gave_way = match (&self.scaling, &mut self.state.loss_scale) {
            (Some((config, true)), Some(scale)) if sum.nats.is_finite() => {
                scale.update(config, grad_norm.is_finite()) && !grad_norm.is_finite()
            }
            _ => false,
        };
        let broken = update.skipped && spike.is_none() && !gave_way;
        self.taken = !update.skipped;
        if self.taken {
            let rate = self.input.recipe.model.expert_training().bias_rate as f32;
            let worker = &mut self.runner.worker;
            let mut range = worker.set_routing_state(&mut *self.backend, rate)?;
            if worker.plan().pipeline() > 1 && worker.model().experts.is_some_and(|experts| experts.gate.bias)
            {
                range = worker.largest("range of biases", range)?;
            }
            experts.extend(range.map(|range| ("bias_range".to_owned(), range)));
        }
        self.skipped_in_a_row = if broken { self.skipped_in_a_row + 1 } else { 0 };
        self.state.step += 1;
        self.state.updates = Some(updates + u64::from(self.taken));
        let counts = self.targets.counts.first().copied().unwrap_or_default();
        self.state.tokens += counts.targets;
        self.loader.advance(&mut self.state.loader, consumed);
        if let Some(spike) = spike {
            self.warn(format!("step {}: {spike}; the update was skipped", self.state.step), observer)?;
        }
        if let (true, Some(now)) = (gave_way, self.state.loss_scale) {
            let text = format!(
                "step {}: gradients overflowed at loss scale {}, which is now {}; the update was skipped",
                self.state.step,
                loss_scale.unwrap_or(1.0),
                now.scale
            );
            self.warn(text, observer)?;
        }
        if broken {
            let router = match self.runner.worker.model().experts {
                Some(_) => self.runner.worker.first_router_not_finite(router)?,
                None => None,
            };
            let text = format!(
                "step {}: gradient norm is {}{}; the update was skipped",
                self.state.step,
                update.grad_norm,
                router.map_or_else(String::new, |layer| format!(
                    ", and the router of layer {layer} is not finite"
                ))
            );
            self.warn(text, observer)?;
        }
        if self.skipped_in_a_row >= PATIENCE {
            self.diverged(not_finite(), observer)?;
            return Ok(None);
        }
        self.rests()?;
        let numbers = (lr, update.grad_norm);
        let seconds = begun.elapsed().as_secs_f64();
        let (data_bytes, data_hit_share) = self.take_data_reads();
        let cost = StepCost { seconds, data_seconds, data_bytes, data_hit_share };
        let record = self.record(sum, counts, numbers, cost, observer);
        let preferences = self.preferences.as_ref().map(|preferences| preferences.weights.sums.means());
        Ok(Some(Step { loss_scale, experts, preferences: preferences.unwrap_or_default(), ..record }))
    }

    /// Bytes that this process has read from the training split since the last call, and the share of the requested bytes that was in its
    /// cache, if it has one.
    pub(super) fn take_data_reads(&mut self) -> (u64, Option<f64>) {
        let now = self.input.train.counters();
        let before = std::mem::replace(&mut self.data_read, now);
        let (requested, hit) = (now.requested - before.requested, now.hit - before.hit);
        let cached = requested > 0 && self.input.recipe.loader.cache_config().is_some();
        (now.storage - before.storage, cached.then(|| hit as f64 / requested as f64))
    }

    /// The record of the step that was just taken, with its targets, its learning rate and gradient norm, and its cost.
    pub(super) fn record(
        &mut self,
        sum: LossSum,
        counts: TargetCounts,
        (lr, grad_norm): (f64, f64),
        StepCost { seconds, data_seconds, data_bytes, data_hit_share }: StepCost,
        observer: &mut dyn Observer,
    ) -> Step {
        let tokens_per_s = counts.targets as f64 / seconds;
        let masked = self.input.train.has_mask();
        let left = self.plan.steps.saturating_sub(self.state.step);
        let losses = crate::losses(&self.input.recipe);
        // The step that was made is the one before the state's.
        let step = self.state.step.saturating_sub(1);
        let term = |(number, loss): (usize, &WeighedLoss)| match loss.weight_at(step) {
            0.0 => None,
            weight => {
                let weight = weight * loss.share_of_mean(counts.scored_share());
                Some((loss.name.to_string(), weight * sum.mean_auxiliary(number)))
            }
        };
        // Mean over the whole session so far would lag behind a change of speed; over one step it would jump.
        self.pace = if self.pace == 0.0 { seconds } else { 0.95 * self.pace + 0.05 * seconds };
        Step {
            step: self.state.step,
            tokens: self.state.tokens,
            loss: sum.mean(),
            losses: losses.iter().enumerate().filter_map(term).collect(),
            experts: BTreeMap::new(),
            preferences: BTreeMap::new(),
            lr,
            grad_norm,
            loss_scale: None,
            tokens_per_s,
            mfu: self.input.peak.map(|p| tokens_per_s * self.flops_per_token / p.flops_per_second),
            memory_bytes: Some(observer.resident_bytes().unwrap_or_else(|| self.backend.memory().total().0)),
            seconds,
            data_seconds: Some(data_seconds),
            data_bytes: Some(data_bytes),
            data_hit_share,
            scored: masked.then_some(counts.scored),
            unscored_samples: masked.then_some(counts.unscored_samples),
            eta_s: Some(left as f64 * self.pace),
        }
    }
}
