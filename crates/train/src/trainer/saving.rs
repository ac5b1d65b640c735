//! The run's state to and from checkpoints: at its start, on the way, and back again after a spike.
//!
//! Checkpoints do not depend on the layout: every rank writes its slices of the whole tensors, and reads those that its layout
//! needs, whatever layout has written them.

use super::continuing::Continuation;
use super::copying::SaveCost;
use super::interval::SaveSeconds;
use super::reading::{read_tensors, read_tensors_once, reads_once};
use super::writing::{Identity, Written};
use super::{OtherCheckpoints, Trainer};
use crate::TrainError;
use crate::observer::Observer;
use crate::state::TrainState;
use bessemer_checkpoint::{CheckpointError, Loaded, SaveReport, Skipped};
use bessemer_optim::LossScale;
use bessemer_parallel::{ParallelError, StateTensor};
use bessemer_runlog::{LogSync, Resume, Save};
use std::time::Instant;

/// Message: the part of a checkpoint that a rank found damaged.
const DAMAGED: &str = "damage in a checkpoint";
/// Message: whether a rank can use a checkpoint.
const UNREADABLE: &str = "ranks that cannot use a checkpoint";

/// Marker in place of a step: there are checkpoints, and none can be used.
const NONE_VALID: u64 = u64::MAX;

/// Result of [`Trainer::load_newest`].
pub(super) struct Restored {
    pub(super) loaded: Loaded,
    /// A remark for each newer checkpoint that is damaged and was passed over, on the first rank.
    pub(super) remarks: Vec<String>,
}

/// A rank could not read a checkpoint that it needs, or could not use it.
enum LoadFailure {
    Read(CheckpointError),
    Other(TrainError),
}

impl From<CheckpointError> for LoadFailure {
    fn from(e: CheckpointError) -> Self {
        LoadFailure::Read(e)
    }
}

impl From<ParallelError> for LoadFailure {
    fn from(e: ParallelError) -> Self {
        LoadFailure::Other(e.into())
    }
}

impl Trainer {
    /// Reads the newest intact checkpoint of a step up to `last` into the buffers; `None` if there is no checkpoint. The first rank
    /// chooses by manifests and lengths, then every rank reads its elements, and verifies them; if one of them finds damage, all
    /// continue with the next older checkpoint. `discards`: passes of a step have begun, whose results are dropped first.
    ///
    /// # Errors
    /// If all checkpoints are damaged; a checkpoint of another run; an error of another rank.
    pub(super) fn load_newest(
        &mut self,
        name: &str,
        mut last: u64,
        discards: bool,
    ) -> Result<Option<Restored>, TrainError> {
        let mut skipped = Vec::new();
        let once = reads_once(&mut self.runner.worker, self.input.recipe.save.read)?;
        loop {
            let chosen = match self.records {
                Some(_) => self.choose(last, &mut skipped),
                None => Ok(None),
            };
            let word = chosen.as_ref().map_or(NONE_VALID, |step| step.map_or(0, |step| step + 1));
            let word = self.runner.worker.broadcast_from_root(name, word)?;
            chosen?;
            if word == NONE_VALID {
                let problem = "no checkpoint can be used".into();
                return Err(CheckpointError::OnRank { rank: 0, problem }.into());
            }
            let Some(step) = word.checked_sub(1) else { return Ok(None) };
            if discards {
                self.runner.worker.discard();
            }
            let path = self.store.path(step);
            let opened = self.store.load_lazily(step).map_err(LoadFailure::Read);
            let result = self.load(opened, once)?;
            let damage = match &result {
                Err(LoadFailure::Read(e)) if e.is_damage() => e.to_string(),
                _ => String::new(),
            };
            let found = self.runner.worker.gather_bytes(DAMAGED, damage.as_bytes())?;
            match (found.iter().position(|text| !text.is_empty()), result) {
                (None, Ok(loaded)) => {
                    let remarks = skipped.iter().map(Skipped::to_string).collect();
                    self.runner.worker.adopt_state(&mut *self.backend)?;
                    return Ok(Some(Restored { loaded, remarks }));
                }
                (None, Err(LoadFailure::Read(e))) => return Err(e.into()),
                (None, Err(LoadFailure::Other(e))) => return Err(e),
                (Some(_), Err(LoadFailure::Read(why))) => {
                    skipped.push(Skipped { path, why: Box::new(why) });
                }
                (Some(rank), _) => {
                    let problem = String::from_utf8_lossy(&found[rank]).into_owned();
                    let why = Box::new(CheckpointError::OnRank { rank, problem });
                    skipped.push(Skipped { path, why });
                }
            }
            last = step.saturating_sub(1);
            if step == 0 {
                return Err(CheckpointError::NothingValid { dir: self.store.dir().into(), skipped }.into());
            }
        }
    }

    /// The newest checkpoint up to `last` whose manifest and files exist; incomplete ones are added to `skipped`. An error if there
    /// are only such.
    fn choose(&self, last: u64, skipped: &mut Vec<Skipped>) -> Result<Option<u64>, TrainError> {
        match self.store.latest_complete_until(last) {
            Ok(Some((step, newer))) => {
                skipped.extend(newer);
                Ok(Some(step))
            }
            Ok(None) if skipped.is_empty() => Ok(None),
            Ok(None) => {
                let (dir, skipped) = (self.store.dir().into(), std::mem::take(skipped));
                Err(CheckpointError::NothingValid { dir, skipped }.into())
            }
            Err(CheckpointError::NothingValid { dir, skipped: newer }) => {
                let mut skipped = std::mem::take(skipped);
                skipped.extend(newer);
                Err(CheckpointError::NothingValid { dir, skipped }.into())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Puts the newest intact checkpoint into the buffers, or the initial parameters if there is none.
    pub(super) fn restore(&mut self, others: OtherCheckpoints<'_>) -> Result<(), TrainError> {
        if self.records.is_some() {
            // Checked here, not after hours of training.
            self.store.check_own()?;
        }
        if self.restore_from_memory()? {
            return Ok(());
        }
        let mut restored = self.load_newest("checkpoint to go on from", u64::MAX, false)?;
        self.has_its_checkpoint = restored.is_some();
        if let (None, Some(elsewhere)) = (&restored, others.elsewhere) {
            let own = std::mem::replace(&mut self.store, elsewhere);
            let found = self.load_newest("checkpoint of an object store", u64::MAX, false);
            self.store = own;
            restored = found?;
        }
        let Some(Restored { loaded, remarks }) = restored else {
            self.begin(others.initial)?;
            self.forget_copies_after(0)?;
            self.identify(0)?;
            if let Some(records) = &mut self.records {
                records.go_on_from(0, false)?;
            }
            return Ok(());
        };
        self.warnings.extend(remarks);
        self.goes_on_from(&loaded)
    }

    /// Reads a checkpoint into the buffers: of each tensor the elements that this rank has. `once`: common elements are read by one
    /// of them, if all could open the checkpoint.
    fn load(
        &mut self,
        opened: Result<Loaded, LoadFailure>,
        once: bool,
    ) -> Result<Result<Loaded, LoadFailure>, TrainError> {
        let checked = opened.and_then(|loaded| {
            let (continuation, wanted) = self.check(&loaded)?;
            Ok((loaded, continuation, wanted))
        });
        if once {
            let failed = self.runner.worker.gather_numbers(UNREADABLE, &[u64::from(checked.is_err())])?;
            if let Some(rank) = failed.iter().position(|failed| *failed == 1) {
                let problem = "it cannot read the checkpoint".into();
                let others = || LoadFailure::Read(CheckpointError::OnRank { rank, problem });
                return Ok(checked.and_then(|_| Err(others())));
            }
        }
        Ok(checked.and_then(|(loaded, continuation, wanted)| {
            let read = if once { read_tensors_once::<LoadFailure> } else { read_tensors::<LoadFailure> };
            read(&mut self.runner.worker, &mut *self.backend, &loaded, &wanted)?;
            self.go_on(continuation);
            Ok(loaded)
        }))
    }

    /// Checks that a checkpoint is of this run's model and optimizer. Returns how the run continues it, and the tensors to read.
    fn check(&self, loaded: &Loaded) -> Result<(Continuation, Vec<StateTensor>), LoadFailure> {
        let place = loaded.path().display().to_string();
        let other = |e: TrainError| LoadFailure::Other(e);
        let saved = TrainState::of(loaded.manifest())
            .map_err(|problem| other(TrainError::State { place: place.clone(), problem }))?;
        let recipe = loaded.manifest().recipe.as_str();
        let continuation = self.continuation(saved, Some(recipe), &place).map_err(other)?;
        let wanted = self.runner.worker.tensors(&self.input.recipe.optim)?;
        self.require_optimizer(&wanted, loaded, &place).map_err(other)?;
        loaded
            .require_match(wanted.iter().map(|t| (t.name.as_str(), t.shape.as_slice())), |_| true)
            .map_err(LoadFailure::Read)?;
        Ok((continuation, wanted))
    }

    /// The loss scale that the state carries, or the start of one; none if the recipe has none.
    pub(super) fn set_up_loss_scale(&mut self) {
        let f16 = self.input.recipe.train.f16_gradients();
        let saved = self.state.loss_scale.take();
        self.state.loss_scale = self.scaling.as_ref().map(|(config, _)| LossScale::go_on(saved, config, f16));
    }

    /// Removes the records of steps after the checkpoint from the log, and notes the resumption for it.
    fn goes_on_from(&mut self, loaded: &Loaded) -> Result<(), TrainError> {
        let step = loaded.manifest().step;
        self.forget_copies_after(step)?;
        self.identify(step)?;
        let records_dropped = match &mut self.records {
            Some(records) => records.go_on_from(step, true)?,
            None => 0,
        };
        let path = loaded.path().strip_prefix(self.input.directory.path()).unwrap_or(loaded.path());
        self.resumed = Some(Resume { step, path: path.display().to_string(), records_dropped });
        Ok(())
    }

    /// Compares the log with the checkpoint whose state is loaded, on the first rank.
    pub(super) fn identify(&mut self, step: u64) -> Result<(), TrainError> {
        if let Some(records) = &mut self.records {
            let (run, warning) = records.identify(self.state.run.as_deref(), step)?;
            self.state.run = Some(run);
            self.warnings.extend(warning);
        }
        Ok(())
    }

    /// Registers the uses of a checkpoint of the last step: a run may go back to a planned save of a healthy run, and one with a low
    /// validation loss is kept.
    pub(super) fn note_checkpoint(&mut self) {
        if self.input.recipe.save.due_by_steps(self.state.step) && self.is_healthy() {
            self.state.spikes.rewind_point(self.state.step);
        }
        if let Some(loss) = self.validation_now() {
            self.state.note_validation(loss, self.input.recipe.save.keep_best);
        }
    }

    /// Contents of a checkpoint of the last step besides tensors. `log`: the run's, which is durable before the checkpoint.
    pub(super) fn identity(&self, log: LogSync) -> Result<Identity, TrainError> {
        let state = serde_json::to_value(&self.state).map_err(|e| TrainError::State {
            place: self.store.path(self.state.step).display().to_string(),
            problem: e.to_string(),
        })?;
        Ok(Identity {
            step: self.state.step,
            tokens: self.state.tokens,
            state,
            recipe: self.input.recipe_text.clone(),
            tokenizer: self.input.tokenizer.fingerprint().to_owned(),
            log: Some(log),
        })
    }

    /// Saves while training waits.
    pub(super) fn save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.note_checkpoint();
        let begun = Instant::now();
        let (step, written) = (self.state.step, self.write_now(observer)?);
        let cost = SaveCost { stalled: begun.elapsed().as_secs_f64(), copied: None, beside: false };
        self.written(step, written, cost, observer)?;
        self.tracing.event("save", begun, step);
        Ok(())
    }

    /// Called when a save has ended on all ranks.
    pub(super) fn written(
        &mut self,
        step: u64,
        written: Written,
        cost: SaveCost,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        match written {
            Written::Durable(Some(report)) => self.saved(step, &report, cost, observer),
            Written::Durable(None) => Ok(()),
            Written::Refused(text) => Err(self.divergence(text)),
        }
    }

    /// Called when a checkpoint is durable: writes its record, and removes checkpoints that are no longer kept.
    fn saved(
        &mut self,
        step: u64,
        report: &SaveReport,
        cost: SaveCost,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let path = report
            .path
            .strip_prefix(self.input.directory.path())
            .unwrap_or(&report.path)
            .display()
            .to_string();
        let beside = self.saver.times.take();
        let record = Save {
            step,
            bytes: report.bytes,
            seconds: report.seconds,
            stall_seconds: Some(cost.stalled),
            copy_seconds: cost.copied,
            steps_beside: Some(beside.steps),
            slowdown: beside.slowdown,
            path,
        };
        self.append(record.into(), observer)?;
        let save =
            SaveSeconds { stalled: cost.stalled, interference: beside.seconds, writing: report.seconds };
        self.adjust_interval(step, save, observer)?;
        if let Some(path) = &report.set_aside {
            let text = format!(
                "a file or directory in the place of the checkpoint was not written by this program; it was \
                 moved to {}",
                path.display()
            );
            self.warn(text, observer)?;
        }
        self.rotate(cost.beside)
    }

    /// With `save.every = "auto"`: the duration and cost of the save of `step` change how often the run saves.
    fn adjust_interval(
        &mut self,
        step: u64,
        save: SaveSeconds,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (Some(interval), Some(clean)) = (&mut self.interval, self.saver.times.clean()) else {
            return Ok(());
        };
        let update = interval.measured(step, save, clean, self.state.seconds);
        if let Some(record) = update.changed {
            self.append(record.into(), observer)?;
        }
        update.warning.map_or(Ok(()), |text| self.warn(text, observer))
    }

    /// Goes back to the newest planned checkpoint and continues with the data after sample `samples`, so that the run skips
    /// the data of the spike (Chowdhery et al. 2022, section 5.1). A damaged one is skipped with a remark, for the
    /// next older one. False if there is no checkpoint, or if it has been gone back to too often already.
    ///
    /// # Errors
    /// If all checkpoints up to that one are damaged; errors of loading one.
    pub(super) fn rewind(&mut self, samples: u64, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        // It may be the one needed for the rollback.
        self.end_saving(true, observer)?;
        let Some(step) = self.state.spikes.may_rewind() else { return Ok(false) };
        let rewinds = self.state.spikes.rewinds + 1;
        let restored = self.load_newest("checkpoint to go back to", step, true)?;
        let Some(Restored { loaded, remarks }) = restored else { return Ok(false) };
        self.go_back(&loaded, samples, observer)?;
        self.state.spikes.rewinds = rewinds;
        // Going back has taken later records out of the log.
        remarks.into_iter().try_for_each(|remark| self.warn(remark, observer))?;
        Ok(true)
    }

    /// Resumes from a checkpoint that was loaded, with the data after sample `samples`; later checkpoints are no longer the run's.
    pub(super) fn go_back(
        &mut self,
        loaded: &Loaded,
        samples: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.state_was_replaced();
        self.begin_with(samples);
        let left = match self.records {
            Some(_) => self.store.abandon_after(self.state.step)?,
            None => Vec::new(),
        };
        self.goes_on_from(loaded)?;
        self.append_change(observer)?;
        for path in left {
            let path = path.display();
            self.warn(format!("rolled back: the newer checkpoint was kept as {path}"), observer)?;
        }
        Ok(())
    }
}
