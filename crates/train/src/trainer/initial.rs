//! Continued training: a run that begins with the parameters of a checkpoint, of another run or an imported model.
//!
//! Steps, samples and records begin at 0, as does the data order. The optimizer's state is fresh, or that of the checkpoint with the count of
//! its updates, without which bias corrections would scale its moments up. The learning-rate schedule begins, or continues after the tokens that
//! the checkpoint was trained on. The run's state contains the values taken over, so that the checkpoint is not opened again.

use super::Trainer;
use super::continuing::LearningRate;
use crate::TrainError;
use crate::state::{InitialState, TrainState};
use bessemer_arch::{AdapterTarget, Model, ParamId};
use bessemer_checkpoint::{Latest, Loaded, Skipped};
use bessemer_model::euclidean;
use bessemer_optim::is_state_name;
use bessemer_parallel::StateTensor;
use bessemer_recipe::{InitOptimizer, InitSchedule};

/// Opens the checkpoint whose parameters a run begins with.
pub type OpenInitial<'a> = &'a dyn Fn() -> Result<Latest, TrainError>;

impl Trainer {
    /// Puts the initial parameters into the buffers: those of `train.init.from`, or drawn ones.
    pub(super) fn begin(&mut self, open: Option<OpenInitial<'_>>) -> Result<(), TrainError> {
        let recipe = &self.input.recipe;
        self.runner.worker.init(&mut *self.backend, recipe.run.seed)?;
        if !recipe.train.init.from.is_empty() {
            let open = open.ok_or_else(|| {
                let from = &self.input.recipe.train.init.from;
                TrainError::Recipe(format!("train.init.from = {from:?}: this call cannot open checkpoints"))
            })?;
            let Latest { loaded, skipped } = open()?;
            self.warnings.extend(skipped.iter().map(Skipped::to_string));
            self.begin_from(&loaded)?;
        }
        self.set_up_loss_scale();
        Ok(())
    }

    fn begin_from(&mut self, loaded: &Loaded) -> Result<(), TrainError> {
        let (recipe, place) = (&self.input.recipe, loaded.path().display().to_string());
        let keeps = recipe.train.init.optimizer == InitOptimizer::Keep;
        let saved = TrainState::of(loaded.manifest())
            .map_err(|problem| TrainError::State { place: place.clone(), problem })?;
        let mut identity = self.state.identity.clone();
        // New adapters begin as drawn, beside the parameters of a model without any.
        let adds = saved.identity.model.adapters.is_none() && identity.model.adapters.take().is_some();
        let identity = if adds { identity } else { self.state.identity.clone() };
        if let Some(difference) = identity.difference(&saved.identity) {
            return Err(TrainError::OtherInitialModel { place, difference });
        }
        if adds && keeps {
            return Err(TrainError::Recipe(format!(
                "train.init.optimizer = \"keep\" with model.adapters, for which {place} has no optimizer state: take \"fresh\""
            )));
        }
        let wanted = self.runner.worker.tensors(&recipe.optim)?;
        let is_new = |name: &str| adds && ParamId::parse(name).is_some_and(|id| id.role().is_adapter());
        let (new, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|tensor| is_new(&tensor.name));
        if keeps {
            self.require_optimizer(&wanted, loaded, &place)?;
        }
        let taken = |name: &str| keeps || !is_state_name(name);
        let wanted: Vec<_> = wanted.into_iter().filter(|t| taken(&t.name)).collect();
        loaded.require_match(wanted.iter().map(|t| (t.name.as_str(), t.shape.as_slice())), taken)?;
        for tensor in &wanted {
            self.runner.worker.write_with(&mut *self.backend, tensor, &mut |runs, values| {
                loaded.read_runs(&tensor.name, runs, values).map_err(TrainError::from)
            })?;
        }
        let model = self.runner.worker.model().clone();
        for tensor in &new {
            let Some(rows) = NormedRows::of(tensor, &model) else { continue };
            self.runner
                .worker
                .write_with(&mut *self.backend, tensor, &mut |runs, norms| rows.norms(loaded, runs, norms))?;
        }
        self.runner.worker.adopt_state(&mut *self.backend)?;
        let continues = recipe.train.init.schedule == InitSchedule::Continue;
        let before = saved.initial.unwrap_or_default();
        let initial = InitialState {
            updates: if keeps { before.updates + saved.updates() } else { 0 },
            batch_tokens: if continues { before.batch_tokens + saved.batch_tokens() } else { 0 },
        };
        self.initial = Some(format!(
            "parameters of {place}, step {}; optimizer {}, learning-rate schedule {}",
            saved.step,
            if keeps { "kept" } else { "fresh" },
            if continues { "continued" } else { "from its beginning" }
        ));
        self.state.model_type = saved.model_type.clone();
        self.state.initial = Some(initial).filter(|initial| *initial != InitialState::default());
        self.rate = LearningRate::new(&recipe.optim, &self.plan, &self.state);
        Ok(())
    }
}

/// Elements of a matrix that are read together.
const READ: usize = 1 << 20;

/// Rows of a matrix of the initial checkpoint whose norms are the first magnitudes of new adapters.
struct NormedRows {
    matrix: String,
    columns: usize,
    first: usize,
}

impl NormedRows {
    /// Those of a tensor of magnitudes.
    fn of(tensor: &StateTensor, model: &Model) -> Option<NormedRows> {
        let id = ParamId::parse(&tensor.name)?;
        let target = AdapterTarget::ALL.into_iter().find(|target| target.magnitude() == id.role())?;
        Some(NormedRows {
            matrix: target.adapts(model).in_layer(id.unit().layer()?).to_string(),
            columns: target.inputs(model),
            first: target.outputs(model).start,
        })
    }

    /// Norms of the rows of these runs, one after the other.
    fn norms(&self, loaded: &Loaded, runs: &[(usize, usize)], norms: &mut [f32]) -> Result<(), TrainError> {
        let together = (READ / self.columns).max(1);
        let (mut rows, mut norms) = (Vec::new(), norms.iter_mut());
        for (first, len) in runs {
            for start in (0..*len).step_by(together) {
                let count = together.min(len - start);
                rows.resize(count * self.columns, 0.0);
                let from = (self.first + first + start) * self.columns;
                loaded.read_runs(&self.matrix, &[(from, rows.len())], &mut rows)?;
                let of_rows = rows.chunks(self.columns).map(|row| euclidean(row) as f32);
                norms.by_ref().zip(of_rows).for_each(|(to, norm)| *to = norm);
            }
        }
        Ok(())
    }
}
