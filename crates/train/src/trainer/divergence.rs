//! A run with values that are not finite: the checkpoints that it keeps, and the way back to a healthy one.

use super::Trainer;
use super::saving::Restored;
use crate::TrainError;
use crate::observer::Observer;
use crate::spikes::Rollback;
use bessemer_checkpoint::CheckpointError;
use bessemer_recipe::OnDivergence;

/// Rollbacks that do not get the run past where it diverged, before it gives up.
const ROLLBACKS: u32 = 3;

impl Trainer {
    /// Whether the newest step was applied: no spike, and all values finite.
    pub(super) fn is_healthy(&self) -> bool {
        self.taken && self.skipped_in_a_row == 0 && self.state.spikes.in_a_row == 0
    }

    /// Removes the checkpoints that the recipe does not keep; none while steps are skipped, because the earlier ones
    /// may be the last healthy ones.
    /// `beside`: while training continues.
    pub(super) fn rotate(&mut self, beside: bool) -> Result<(), TrainError> {
        if !self.is_healthy() {
            return Ok(());
        }
        let retention = self.state.retention(&self.input.recipe);
        match beside {
            true => self.saver.begin_removal(self.store.clone(), retention),
            false => Ok(self.store.gc(&retention).map(|_| ())?),
        }
    }

    /// The validation loss of the step that is over, if checkpoints are kept by it and the run is healthy.
    pub(super) fn validation_now(&self) -> Option<f64> {
        let kept = self.input.recipe.save.keep_best > 0 && self.is_healthy();
        self.validation.filter(|v| kept && v.0 == self.state.step).map(|v| v.1)
    }

    /// Whether the last step has one of the lowest validation losses so far.
    pub(super) fn is_among_the_best(&self) -> bool {
        let most = self.input.recipe.save.keep_best;
        self.validation_now().is_some_and(|loss| self.state.clone().note_validation(loss, most))
    }

    /// The error for a run that diverged. The last healthy checkpoint was saved before the steps that were skipped.
    pub(super) fn divergence(&self, mut what: String) -> TrainError {
        let mut healthy = None;
        if self.records.is_some() {
            match self.store.latest_valid_until(self.last_taken()) {
                Ok(latest) => {
                    healthy = latest.map(|l| {
                        l.skipped.iter().for_each(|skipped| what.push_str(&format!("; {skipped}")));
                        l.loaded.path().to_owned()
                    });
                }
                Err(e) => what.push_str(&format!("; {e}")),
            }
        }
        TrainError::Diverged { step: self.state.step, what, healthy }
    }

    /// Whether there seems to be a checkpoint of a step up to `last`, on the first rank.
    fn has_checkpoint_until(&self, last: u64) -> bool {
        self.records.is_some() && matches!(self.store.latest_complete_until(last), Ok(Some(_)))
    }

    /// The last step before those that were skipped.
    fn last_taken(&self) -> u64 {
        self.state.step - u64::from(self.skipped_in_a_row)
    }

    /// Handles a save that was refused because of values that are not finite: goes back if the recipe requests it. Returns any other
    /// error unchanged.
    pub(super) fn recover(&mut self, e: TrainError, observer: &mut dyn Observer) -> Result<(), TrainError> {
        match e {
            TrainError::Diverged { what, .. } => self.diverged(what, observer),
            other => Err(other),
        }
    }

    /// Handles a divergence, on all ranks: goes back to the last healthy checkpoint and continues with the data after those
    /// consumed, or ends with an error that names that checkpoint.
    pub(super) fn diverged(&mut self, what: String, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let rolls_back = self.input.recipe.train.on_divergence == OnDivergence::Rollback;
        // A checkpoint that is being written may be the one to go back to.
        self.end_saving(true, observer)?;
        let (from, samples) = (self.state.step, self.state.loader.samples);
        let window = self.input.recipe.train.spike_window;
        // The run has not got far past the last time: the checkpoint of that time was not healthy after all.
        let again = self.state.spikes.rollback.filter(|r| from <= r.from.saturating_add(window));
        let times = again.map_or(0, |r| r.times) + 1;
        if !rolls_back || times > ROLLBACKS {
            return Err(self.divergence(what));
        }
        // Tries a checkpoint before the one that did not help, if there is one.
        let older = again.and_then(|r| r.to.checked_sub(1)).filter(|last| self.has_checkpoint_until(*last));
        let last = older.unwrap_or_else(|| self.last_taken());
        let last = self.runner.worker.broadcast_from_root("checkpoint to roll back to, at most", last)?;
        // If none can be read, the error of the divergence reports it.
        let restored = match self.load_newest("checkpoint to roll back to", last, true) {
            Err(TrainError::Checkpoint(
                CheckpointError::NothingValid { .. } | CheckpointError::OnRank { .. },
            )) => None,
            other => other?,
        };
        let Some(Restored { loaded, remarks }) = restored else {
            return Err(self.divergence(what));
        };
        let to = loaded.manifest().step;
        self.go_back(&loaded, samples, observer)?;
        self.state.spikes.rollback = Some(Rollback { from, to, times });
        (self.skipped_in_a_row, self.taken, self.validation) = (0, true, None);
        let text = format!(
            "step {from}: {what}; rolled back to step {to}; training continues with the data after this step \
             (rollback {times} of {ROLLBACKS})"
        );
        self.warn(text, observer)?;
        remarks.into_iter().try_for_each(|remark| self.warn(remark, observer))
    }
}
