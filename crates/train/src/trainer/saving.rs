//! The run's state to and from checkpoints: at its start, on the way, and back again after a spike.

use super::Trainer;
use crate::TrainError;
use crate::observer::Observer;
use crate::state::TrainState;
use bessemer_checkpoint::{Loaded, SaveRequest, TensorSpec, TensorsFrom};
use bessemer_runlog::{Resume, Save};
use bessemer_tensor::View;
use bessemer_units::DType;

impl Trainer {
    /// Puts the newest intact checkpoint into the buffers, or the initialisation if there is none.
    pub(super) fn restore(&mut self) -> Result<(), TrainError> {
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
        self.optimizer.adopt_state(&mut *self.backend)?;
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
            // A moment has its parameter's shape; a factor or a counter its own.
            let like = params.iter().find(|p| p.spec.name == param && p.spec.len() == view.len());
            let own = if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] };
            let shape = like.map_or(own, |p| p.spec.shape.clone());
            list.push((spec(name, &shape, DType::F32), view));
        }
        list
    }

    pub(super) fn save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.log.sync()?;
        if self.input.recipe.save.due(self.state.step, 0.0) {
            self.state.spikes.rewind_point(self.state.step);
        }
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

    /// Goes back to the newest planned checkpoint and on with the data behind sample `samples`, so that the run passes
    /// over what it stumbled on (Chowdhery et al. 2022, section 5.1). False if there is no such checkpoint, or if it has
    /// been gone back to too often already.
    pub(super) fn rewind(&mut self, samples: u64) -> Result<bool, TrainError> {
        let Some(step) = self.state.spikes.may_rewind() else { return Ok(false) };
        let Ok(loaded) = self.store.load(step) else { return Ok(false) };
        let rewinds = self.state.spikes.rewinds + 1;
        self.optimizer.discard();
        self.load(&loaded)?;
        self.state.loader = self.loader.state(samples);
        self.state.spikes.rewinds = rewinds;
        let dropped = self.log.truncate_after(step)?;
        let path = loaded.path().strip_prefix(&self.input.directory).unwrap_or(loaded.path());
        // A new file of scalars, from this step on.
        self.board = None;
        let path = path.display().to_string();
        self.resumed = Some(Resume { step, path, records_dropped: dropped });
        Ok(true)
    }
}
