//! The run's state to and from checkpoints: at its start, on the way, and back again after a spike.
//!
//! Checkpoints do not depend on the layout: the first rank writes whole tensors, which the others gather with
//! it; every rank reads them and keeps its part.

use super::Trainer;
use crate::TrainError;
use crate::observer::Observer;
use crate::state::TrainState;
use bessemer_checkpoint::{
    CheckpointError, Latest, Loaded, SaveReport, SaveRequest, Skipped, Store, TensorSpec, TensorsFrom,
};
use bessemer_optim::LossScale;
use bessemer_parallel::{ParallelError, ReadAhead, StateTensor, Worker};
use bessemer_runlog::{Resume, Save};
use bessemer_tensor::Backend;
use std::time::Instant;

/// Message: whether the first rank found values that are not finite.
const REFUSED: &str = "values of a checkpoint that are not finite";

/// Message: number of the tensor with which the next batch begins, from 1; 0: there is none.
const NEXT: &str = "next tensor of the checkpoint";

/// Reads a tensor on the first rank, and those that come with it in its batch; [`follow`] is what the other ranks do
/// meanwhile.
fn lead(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    tensors: &[StateTensor],
    ahead: &mut ReadAhead,
    index: usize,
    values: &mut [f32],
) -> Result<(), ParallelError> {
    if !worker.plan().cuts_state() {
        return worker.read(backend, &tensors[index], values);
    }
    if ahead.get(index).is_none() {
        worker.broadcast_from_root(NEXT, index as u64 + 1)?;
        ahead.read(index, |batch, values| worker.read_batch(backend, &tensors[batch], values))?;
    }
    values.copy_from_slice(ahead.get(index).unwrap_or_default());
    Ok(())
}

fn read_ahead(tensors: &[StateTensor]) -> ReadAhead {
    ReadAhead::new(tensors.iter().map(StateTensor::len).collect())
}

/// What the other ranks do while the first one saves.
fn follow(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    tensors: &[StateTensor],
) -> Result<(), ParallelError> {
    if !worker.plan().cuts_state() {
        return Ok(());
    }
    let mut ahead = read_ahead(tensors);
    while let Some(index) = worker.broadcast_from_root(NEXT, 0)?.checked_sub(1) {
        ahead.read(index as usize, |batch, values| worker.read_batch(backend, &tensors[batch], values))?;
    }
    Ok(())
}

/// What a checkpoint holds besides tensors, and how it is cut.
pub(super) struct Identity {
    pub(super) step: u64,
    pub(super) tokens: u64,
    pub(super) state: serde_json::Value,
    pub(super) recipe: String,
    pub(super) tokenizer: String,
    pub(super) max_file_bytes: u64,
}

/// Names, shapes and types in files.
pub(super) fn specs(tensors: &[StateTensor]) -> Vec<TensorSpec> {
    let spec = |t: &StateTensor| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype };
    tensors.iter().map(spec).collect()
}

/// Writes a checkpoint; `read` fills in the values of a tensor.
pub(super) fn write_checkpoint(
    store: &Store,
    specs: Vec<TensorSpec>,
    identity: Identity,
    mut read: impl FnMut(usize, &mut [f32]) -> Result<(), ParallelError>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SaveReport, TrainError> {
    let mut lost = None;
    let mut source = TensorsFrom::new(specs, |index: usize, values: &mut [f32]| {
        read(index, values).map_err(|e| {
            let text = e.to_string();
            lost = Some(e);
            text.into()
        })
    });
    let report = store.save(SaveRequest {
        step: identity.step,
        tokens: identity.tokens,
        state: identity.state,
        recipe: identity.recipe,
        tokenizer: Some(identity.tokenizer),
        tensors: &mut source,
        max_file_bytes: identity.max_file_bytes,
        progress,
    });
    drop(source);
    match (report, lost) {
        (Err(_), Some(lost)) => Err(lost.into()),
        (report, _) => Ok(report?),
    }
}

impl Trainer {
    /// The checkpoint that the first rank chose, loaded on every rank, and a remark for each newer one that is damaged and
    /// was passed over. `latest` is `None` on the other ranks, and where there is no checkpoint.
    pub(super) fn load_chosen(
        &mut self,
        name: &str,
        latest: Option<Latest>,
    ) -> Result<Option<(Loaded, Vec<String>)>, TrainError> {
        let chosen = latest.as_ref().map_or(0, |l| l.loaded.manifest().step + 1);
        let Some(step) = self.runner.worker.broadcast_from_root(name, chosen)?.checked_sub(1) else {
            return Ok(None);
        };
        let Some(latest) = latest else { return Ok(Some((self.store.load(step)?, Vec::new()))) };
        let remark = |s: &Skipped| format!("checkpoint {} was passed over: {}", s.path.display(), s.why);
        let remarks = latest.skipped.iter().map(remark).collect();
        Ok(Some((latest.loaded, remarks)))
    }

    /// Puts the newest intact checkpoint into the buffers, or the initialisation if there is none. The first rank chooses.
    pub(super) fn restore(&mut self) -> Result<(), TrainError> {
        let latest = match self.records {
            Some(_) => {
                let latest = self.store.latest_valid()?;
                // Not after hours of training.
                self.store.check_own()?;
                latest
            }
            None => None,
        };
        let Some((loaded, remarks)) = self.load_chosen("checkpoint to go on from", latest)? else {
            self.runner.worker.init(&mut *self.backend, self.input.recipe.run.seed)?;
            self.set_up_loss_scale();
            if let Some(records) = &mut self.records {
                records.go_on_from(0, false)?;
            }
            return Ok(());
        };
        self.warnings.extend(remarks);
        self.load(&loaded)?;
        self.goes_on_from(&loaded)
    }

    fn load(&mut self, loaded: &Loaded) -> Result<(), TrainError> {
        let place = loaded.path().display().to_string();
        let saved = TrainState::of(loaded.manifest())
            .map_err(|problem| TrainError::State { place: place.clone(), problem })?;
        self.state.identity.check(&saved.identity, &place)?;
        self.loader.resume(&saved.loader)?;
        let wanted = self.runner.worker.tensors(&self.input.recipe.optim)?;
        loaded.require_match(wanted.iter().map(|t| (t.name.as_str(), t.shape.as_slice())), |_| true)?;
        let mut values = Vec::new();
        for tensor in &wanted {
            values.resize(tensor.len(), 0.0);
            loaded.read_into(&tensor.name, &mut values)?;
            self.runner.worker.write(&mut *self.backend, tensor, &values)?;
        }
        self.runner.worker.adopt_state(&mut *self.backend)?;
        self.state = saved;
        self.set_up_loss_scale();
        Ok(())
    }

    /// The loss scale that the state carries, or the start of one; none if the recipe has none.
    fn set_up_loss_scale(&mut self) {
        let f16 = self.input.recipe.train.f16_gradients();
        let saved = self.state.loss_scale.take();
        self.state.loss_scale = self.scaling.as_ref().map(|(config, _)| LossScale::go_on(saved, config, f16));
    }

    /// Removes the records of steps after the checkpoint from the log, and notes the resumption for it.
    fn goes_on_from(&mut self, loaded: &Loaded) -> Result<(), TrainError> {
        let step = loaded.manifest().step;
        let records_dropped = match &mut self.records {
            Some(records) => records.go_on_from(step, true)?,
            None => 0,
        };
        let path = loaded.path().strip_prefix(&self.input.directory).unwrap_or(loaded.path());
        self.resumed = Some(Resume { step, path: path.display().to_string(), records_dropped });
        Ok(())
    }

    /// What a checkpoint of the step that is over will be good for: where a planned save of a healthy run stands, a run may
    /// go back to, and one with a low validation loss is kept.
    pub(super) fn note_checkpoint(&mut self) {
        if self.input.recipe.save.due(self.state.step, 0.0) && self.is_healthy() {
            self.state.spikes.rewind_point(self.state.step);
        }
        if let Some(loss) = self.validation_now() {
            self.state.note_validation(loss, self.input.recipe.save.keep_best);
        }
    }

    /// What a checkpoint of the step that is over holds besides tensors.
    pub(super) fn identity(&self) -> Result<Identity, TrainError> {
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
            max_file_bytes: self.input.recipe.save.max_file_bytes(),
        })
    }

    pub(super) fn save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.note_checkpoint();
        let begun = Instant::now();
        let tensors = self.runner.worker.tensors(&self.input.recipe.optim)?;
        let Some(records) = &self.records else {
            follow(&mut self.runner.worker, &mut *self.backend, &tensors)?;
            self.tracing.event("save", begun, self.state.step);
            return match self.runner.worker.broadcast_from_root(REFUSED, 0)? {
                0 => Ok(()),
                _ => Err(self.divergence("rank 0 refused to save values that are not finite".into())),
            };
        };
        records.sync()?;
        let report = match self.write(&tensors, observer) {
            Err(TrainError::Checkpoint(e @ CheckpointError::NotFinite { .. })) => Err(e),
            other => Ok(other?),
        };
        if self.runner.worker.plan().cuts_state() {
            self.runner.worker.broadcast_from_root(NEXT, 0)?;
        }
        self.runner.worker.broadcast_from_root(REFUSED, u64::from(report.is_err()))?;
        let report = report.map_err(|e| self.divergence(e.to_string()))?;
        self.saved(self.state.step, &report, observer)?;
        self.tracing.event("save", begun, self.state.step);
        Ok(())
    }

    /// A checkpoint is there: its record, and what is no longer kept goes.
    pub(super) fn saved(
        &mut self,
        step: u64,
        report: &SaveReport,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let path =
            report.path.strip_prefix(&self.input.directory).unwrap_or(&report.path).display().to_string();
        let record = Save { step, bytes: report.bytes, seconds: report.seconds, path };
        self.append(record.into(), observer)?;
        if let Some(path) = &report.set_aside {
            let text = format!(
                "what stood in the place of the checkpoint is not this program's to remove; it is now {}",
                path.display()
            );
            self.warn(text, observer)?;
        }
        self.rotate()
    }

    /// The first rank's part of a save.
    fn write(
        &mut self,
        tensors: &[StateTensor],
        observer: &mut dyn Observer,
    ) -> Result<SaveReport, TrainError> {
        let identity = self.identity()?;
        let (worker, backend) = (&mut self.runner.worker, &mut *self.backend);
        let mut ahead = read_ahead(tensors);
        let read =
            |index: usize, values: &mut [f32]| lead(worker, backend, tensors, &mut ahead, index, values);
        let progress = &mut |done, total| observer.progress("saving", done, total);
        write_checkpoint(&self.store, specs(tensors), identity, read, progress)
    }

    /// Goes back to the newest planned checkpoint and on with the data behind sample `samples`, so that the run passes
    /// over what it stumbled on (Chowdhery et al. 2022, section 5.1). A damaged one is passed over with a remark, for the
    /// next older one. False if there is no checkpoint, or if it has been gone back to too often already.
    ///
    /// # Errors
    /// If all checkpoints up to that one are damaged; what loading one answers.
    pub(super) fn rewind(&mut self, samples: u64, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        // It may be the one to go back to.
        self.end_saving(true, observer)?;
        let Some(step) = self.state.spikes.may_rewind() else { return Ok(false) };
        let latest = match self.records {
            Some(_) => self.store.latest_valid_until(step)?,
            None => None,
        };
        let Some((loaded, remarks)) = self.load_chosen("checkpoint to go back to", latest)? else {
            return Ok(false);
        };
        let rewinds = self.state.spikes.rewinds + 1;
        self.go_back(&loaded, samples, observer)?;
        self.state.spikes.rewinds = rewinds;
        // Going back has taken later records out of the log.
        remarks.into_iter().try_for_each(|remark| self.warn(remark, observer))?;
        Ok(true)
    }

    /// Goes on from a checkpoint, with the data behind sample `samples`; later checkpoints are no longer the run's.
    pub(super) fn go_back(
        &mut self,
        loaded: &Loaded,
        samples: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.runner.worker.discard();
        self.load(loaded)?;
        self.loader.advance(&mut self.state.loader, samples);
        let trained = self.state.step * self.plan.sequences_per_step;
        self.state.spikes.passed_over = Some(samples.saturating_sub(trained));
        let left = match self.records {
            Some(_) => self.store.abandon_after(self.state.step)?,
            None => Vec::new(),
        };
        self.goes_on_from(loaded)?;
        for path in left {
            let path = path.display();
            self.warn(format!("a checkpoint that the run went back from was kept as {path}"), observer)?;
        }
        Ok(())
    }
}
