//! Going on from a saved state under a recipe that may have changed since.
//!
//! Counts continue: steps, samples and tokens are those of the whole run. A step takes the next samples of the order, however
//! many the present batch has, so none is taken twice or left out. Where the batch changes, the state notes what had been done; the rate
//! of a step is that of the present recipe's schedule at as many tokens.

use super::Trainer;
use crate::TrainError;
use crate::mixture::{ContinuedOrder, TrainingData};
use crate::observer::Observer;
use crate::state::{BatchOrigin, TrainState};
use bessemer_checkpoint::Loaded;
use bessemer_loader::Loader;
use bessemer_optim::{OptimConfig, Schedule, is_state_name};
use bessemer_parallel::StateTensor;
use bessemer_recipe::{BatchPlan, TrainedSoFar, parse_recipe};
use bessemer_runlog::{Change, ChangedKey};
use std::sync::Arc;

/// The learning rate of each step of a run.
#[derive(Debug, Clone)]
pub(super) struct LearningRate {
    schedule: Schedule,
    origin: BatchOrigin,
    /// Tokens of earlier training after which the schedule continues.
    before: u64,
    step_tokens: u64,
}

impl LearningRate {
    /// The rates of a run in this state.
    pub(super) fn new(optim: &OptimConfig, plan: &BatchPlan, state: &TrainState) -> LearningRate {
        let (origin, initial) = (state.batch_origin.unwrap_or_default(), state.initial.unwrap_or_default());
        let (step_tokens, before) = (plan.tokens_per_step.0, initial.batch_tokens);
        let schedule = Schedule::of_tokens(optim, before.saturating_add(plan.tokens.0), step_tokens);
        LearningRate { schedule, origin, before, step_tokens }
    }

    /// Rate of step `step`, counted from 0.
    pub(super) fn at(&self, step: u64) -> f64 {
        let own = self.origin.batch_tokens + step.saturating_sub(self.origin.step) * self.step_tokens;
        self.schedule.at(self.before + own)
    }
}

/// Plan for resuming a run from a saved state.
pub(super) struct Continuation {
    state: TrainState,
    plan: BatchPlan,
    loader: Loader,
    change: Option<Change>,
}

/// Keys whose values differ between the recipe of a checkpoint and the present one, both in full; none where the first cannot be read by
/// this version.
fn changed_keys(before: &str, now: &str) -> Vec<ChangedKey> {
    if before == now || before.is_empty() || now.is_empty() {
        return Vec::new();
    }
    let parse = |text: &str| parse_recipe("recipe of the checkpoint", text, &[]);
    let (Ok(before), Ok(now)) = (parse(before), parse(now)) else { return Vec::new() };
    let changed = before.diff(&now).into_iter();
    changed
        .map(|d| ChangedKey {
            key: d.key,
            before: d.left.unwrap_or_default(),
            now: d.right.unwrap_or_default(),
        })
        .collect()
}

impl Trainer {
    /// Determines how the run resumes from a state, which was saved under `recipe` where that is known, in `place`.
    ///
    /// # Errors
    /// A state of another model or tokenizer; data that are too few for the run.
    pub(super) fn continuation(
        &self,
        saved: TrainState,
        recipe: Option<&str>,
        place: &str,
    ) -> Result<Continuation, TrainError> {
        let now = &self.state.identity;
        now.check(&saved.identity, place)?;
        let mut effects = Vec::new();
        let step_of = |sequences: u64, seq_len: u64| format!("{sequences} sequences of {seq_len} tokens");
        let batch = (now.sequences_per_step, self.plan.seq_len);
        let batch_before = (saved.identity.sequences_per_step, saved.loader.seq_len);
        let mut origin = saved.batch_origin;
        if saved.step > 0 && batch != batch_before {
            origin = Some(BatchOrigin {
                step: saved.step,
                samples: saved.samples_trained(),
                tokens: saved.tokens,
                batch_tokens: saved.batch_tokens(),
            });
            effects.push(format!(
                "from step {} on a step has {}, before it had {}",
                saved.step + 1,
                step_of(batch.0, batch.1),
                step_of(batch_before.0, batch_before.1)
            ));
        }
        let done = origin.unwrap_or_default();
        let (train, tokens) = (&self.input.recipe.train, self.input.train.token_count());
        let so_far = TrainedSoFar { steps: done.step, tokens: done.batch_tokens };
        let plan = train.lasting(self.plan, Some(tokens), so_far).map_err(TrainError::Recipe)?;
        let end = done.samples + (plan.steps - done.step) * plan.sequences_per_step;
        let ContinuedOrder { loader, differences } =
            self.training_data().continued(&plan, &saved.loader, end, &self.loader)?;
        effects.extend(differences.iter().map(|d| format!("{}: {}, before {}", d.what, d.now, d.before)));
        if !differences.is_empty() {
            let origin = loader.state(saved.loader.samples).origin.unwrap_or_default();
            effects.push(match origin.given.iter().any(|given| *given > 0) {
                true => "every remaining component continues after its last sample".into(),
                false => "the order of the training samples starts over".into(),
            });
        }
        let keys = recipe.map_or_else(Vec::new, |before| changed_keys(before, &self.input.recipe_text));
        let change = (!keys.is_empty() || !effects.is_empty()).then_some(Change {
            step: saved.step,
            tokens: saved.tokens,
            keys,
            effects,
        });
        let loader_state = loader.state(saved.loader.samples);
        let state = TrainState { batch_origin: origin, loader: loader_state, identity: now.clone(), ..saved };
        Ok(Continuation { state, plan, loader, change })
    }

    /// Resumes as determined, when the tensors are loaded.
    pub(super) fn go_on(&mut self, continuation: Continuation) {
        let Continuation { state, plan, loader, change } = continuation;
        self.batches.replace(Arc::new(loader.clone()));
        (self.state, self.plan, self.loader, self.change) = (state, plan, loader, change);
        self.rate = LearningRate::new(&self.input.recipe.optim, &self.plan, &self.state);
        self.set_up_loss_scale();
    }

    /// Refuses a checkpoint without the state of the recipe's optimizer.
    pub(super) fn require_optimizer(
        &self,
        wanted: &[StateTensor],
        loaded: &Loaded,
        place: &str,
    ) -> Result<(), TrainError> {
        let lacks = |t: &StateTensor| is_state_name(&t.name) && loaded.tensor(&t.name).is_none();
        if !wanted.iter().any(lacks) {
            return Ok(());
        }
        let mut of_optimizer = loaded.manifest().tensors.iter().filter(|t| is_state_name(&t.name));
        Err(TrainError::OtherOptimizer {
            place: place.into(),
            optimizer: self.input.recipe.optim.optimizer.name().into(),
            found: of_optimizer.next().map_or("no".into(), |t| format!("another (it has {:?})", t.name)),
        })
    }

    fn training_data(&self) -> TrainingData<'_> {
        let (recipe, train) = (&self.input.recipe, &self.input.train);
        let separated = recipe.separates_documents() && self.input.tokenizer.end_of_text().is_some();
        TrainingData { recipe, train, separated }
    }

    /// Samples of the whole run, without those passed over.
    pub(super) fn samples_at_end(&self) -> u64 {
        let done = self.state.batch_origin.unwrap_or_default();
        done.samples + (self.plan.steps - done.step) * self.plan.sequences_per_step
    }

    /// Records that the run continues under a changed recipe, if it does.
    pub(super) fn append_change(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.change.take().map_or(Ok(()), |change| self.append(change.into(), observer))
    }
}
