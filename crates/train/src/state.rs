//! Contents of a checkpoint besides tensors, and the checks before a run resumes from it.

use crate::TrainError;
use crate::early_stop::EarlyStopState;
use crate::spikes::SpikeState;
use bessemer_arch::{Adapters, DsInitForm, InitChoice, Model, PositionChoice};
use bessemer_checkpoint::{Manifest, Retention, Store};
use bessemer_durable::ConfinedDir;
use bessemer_loader::LoaderState;
use bessemer_optim::LossScale;
use bessemer_recipe::Recipe;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Directory of a run directory that holds its checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// The checkpoints of a run directory. All users of this store agree on which ones are intact: it compares bytes,
/// manifest, name of the directory and the state of the run.
pub fn checkpoints_in(run: &ConfinedDir) -> Store {
    accepting(Store::open_in(run, CHECKPOINTS))
}

/// [`checkpoints_in`] of the run directory that a path names.
pub fn checkpoints(run: &Path) -> Store {
    accepting(Store::open(run.join(CHECKPOINTS)))
}

fn accepting(store: Store) -> Store {
    store.accepting(|manifest| TrainState::of(manifest).map(|_| ()))
}

/// State of a run after `step` optimizer steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Optimizer steps done, with those whose update was skipped.
    pub step: u64,
    /// Updates applied: the steps without those that were skipped. `None` in checkpoints of older versions, which counted
    /// every step as an update ([`TrainState::updates`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<u64>,
    /// Tokens trained on.
    pub tokens: u64,
    /// Seconds of training so far, over all sessions.
    pub seconds: f64,
    /// The position in the data, and which data in which order.
    pub loader: LoaderState,
    /// Window of the spike detection; absent in checkpoints of older versions.
    #[serde(default)]
    pub spikes: SpikeState,
    /// The loss scale; checkpoints of runs without one have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// (step, validation loss) of the checkpoints that `save.keep_best` keeps, the lowest loss first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<(u64, f64)>,
    /// Point of the run at which the present batch begins; absent where it is that of the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_origin: Option<BatchOrigin>,
    /// State taken over from the checkpoint that the run began with; absent if only its parameters were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<InitialState>,
    /// The teacher of the newest step; absent in runs without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherState>,
    /// Lowest validation loss and the evaluations since; absent in runs without `train.early_stop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStopState>,
    /// Random name of the run, which its log has too; absent in checkpoints of older versions and of imported models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// `model_type` of the Hugging Face configuration that the model was imported from, which exports keep; absent in other models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    /// [`bessemer_checkpoint::base_hash`] of the model that adapters were put on; absent in runs without adapters, or whose base was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Identity of the model and data to which the parameters belong.
    pub identity: RunIdentity,
}

/// State that a run took over from the checkpoint that it began with, besides parameters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialState {
    /// Updates that the optimizer's state had seen; 0 for a fresh one.
    pub updates: u64,
    /// Tokens after which the learning-rate schedule continues; 0 for one from its beginning.
    pub batch_tokens: u64,
}

/// The checkpoint that a run distils.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherState {
    /// Name of the teacher's run, as [`TrainState::run`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Step of the checkpoint.
    pub step: u64,
}

/// Counters of a run at the moment when its batch became the present one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchOrigin {
    /// Steps.
    pub step: u64,
    /// Samples trained on, without those passed over.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Tokens of the global batches of the steps, in which learning-rate schedules count. Steps of documents have them in the mean.
    pub batch_tokens: u64,
}

impl TrainState {
    /// The state in a manifest, checked against the manifest and itself. The model's sizes are checked first: nothing is
    /// listed or planned for a model that cannot be.
    ///
    /// # Errors
    /// The part that cannot be read, or the values that contradict each other.
    pub fn of(manifest: &Manifest) -> Result<TrainState, String> {
        let state = TrainState::deserialize(&manifest.state).map_err(|e| format!("state: {e}"))?;
        let identity = &state.identity;
        identity.model.check().map_err(|e| format!("state.identity: {e}"))?;
        let agree = |what: &str, found: u64, wanted: u64, why: &str| match found == wanted {
            true => Ok(()),
            false => Err(format!("state.{what} is {found}, wanted {wanted}: {why}")),
        };
        agree("step", state.step, manifest.step, "the manifest's step")?;
        agree("tokens", state.tokens, manifest.tokens, "the manifest's tokens")?;
        if state.updates() > state.step {
            return Err(format!(
                "state.updates is {}, wanted at most {}: the steps that the updates belong to",
                state.updates(),
                state.step
            ));
        }
        let product = |a: u64, b: u64| {
            a.checked_mul(b).ok_or_else(|| format!("state: {a} x {b} samples or tokens overflow"))
        };
        let origin = state.batch_origin.unwrap_or_default();
        let Some(steps) = state.step.checked_sub(origin.step) else {
            return Err(format!(
                "state.batch_origin.step is {}, wanted at most {}: the step of the state",
                origin.step, state.step
            ));
        };
        let sum = |a: u64, b: u64| a.checked_add(b).ok_or_else(|| format!("state: {a} + {b} overflow"));
        let new = product(steps, identity.sequences_per_step)?;
        let trained = sum(origin.samples, new)?;
        let most = sum(origin.tokens, product(new, state.loader.seq_len)?)?;
        match state.loader.lengths {
            // Documents may be shorter than a sequence.
            Some(_) if state.tokens <= most => {}
            _ => agree("tokens", state.tokens, most, "the tokens of its steps")?,
        }
        let samples = state.loader.samples;
        match state.spikes.passed_over {
            Some(passed_over) => agree(
                "loader.samples",
                samples,
                trained.saturating_add(passed_over),
                "the samples of its steps and those passed over",
            )?,
            None if samples < trained => {
                return Err(format!(
                    "state.loader.samples is {samples}, wanted at least {trained}: the samples of its steps"
                ));
            }
            None => {}
        }
        if let Some(tokenizer) = manifest.tokenizer.as_ref().filter(|t| **t != identity.tokenizer) {
            return Err(format!(
                "state.identity.tokenizer is {}, the manifest's tokenizer is {tokenizer}",
                identity.tokenizer
            ));
        }
        if !state.seconds.is_finite() || state.seconds < 0.0 {
            return Err(format!("state.seconds is {}, wanted a time", state.seconds));
        }
        Ok(state)
    }

    /// Samples trained on so far, without those passed over.
    pub(crate) fn samples_trained(&self) -> u64 {
        let origin = self.batch_origin.unwrap_or_default();
        origin.samples + (self.step - origin.step) * self.identity.sequences_per_step
    }

    /// Tokens of the global batches of the steps so far; of documents, the tokens trained on since the present batch began.
    pub(crate) fn batch_tokens(&self) -> u64 {
        let origin = self.batch_origin.unwrap_or_default();
        origin.batch_tokens + self.tokens.saturating_sub(origin.tokens)
    }

    /// Updates that the optimizer's state had seen before the run.
    pub(crate) fn updates_before(&self) -> u64 {
        self.initial.unwrap_or_default().updates
    }

    /// Updates applied so far. Bias corrections, second-moment decays and the refresh of K-FAC's curvature count these and not
    /// the steps, as PyTorch's `GradScaler` leaves `state["step"]` where it is when it skips `optimizer.step()`.
    pub fn updates(&self) -> u64 {
        self.updates.unwrap_or(self.step)
    }

    /// The checkpoints that a recipe keeps for a run in this state.
    pub fn retention(&self, recipe: &Recipe) -> Retention {
        recipe.save.retention(self.best.iter().map(|b| b.0), recipe.train.spike_window)
    }

    /// Notes the validation loss of a checkpoint of the present step, and forgets those that are no longer among the
    /// `most` best. Returns whether this one is.
    pub(crate) fn note_validation(&mut self, loss: f64, most: u64) -> bool {
        if !loss.is_finite() {
            return false;
        }
        self.best.retain(|b| b.0 != self.step);
        let place = self.best.partition_point(|b| b.1 <= loss);
        self.best.insert(place, (self.step, loss));
        self.best.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        self.best.iter().any(|b| b.0 == self.step)
    }
}

/// A difference between the model or tokenizer of a recipe and those of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the property.
    pub what: &'static str,
    /// Value in the recipe.
    pub wanted: String,
    /// Value in the checkpoint.
    pub found: String,
}

/// Model and data that parameters belong to, and the batch that they were last trained with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// The model.
    pub model: Model,
    /// Fingerprint of the tokenizer.
    pub tokenizer: String,
    /// Seed of the run.
    pub seed: u64,
    /// Sequences of a step.
    pub sequences_per_step: u64,
}

/// A model without what may change while its parameters are trained: dropout, how far positions reach and how rotary angles are
/// stretched, and how parameters were drawn; of adapters their dropout.
fn fixed(model: &Model) -> Model {
    let learned = model.positions == PositionChoice::Learned;
    Model {
        context: if learned { model.context } else { 0 },
        rope_theta: 0.0,
        rope_scaling: None,
        window: None,
        document_end: None,
        dropout: 0.0,
        adapters: model.adapters.clone().map(|of| Adapters { dropout: 0.0, ..of }),
        init: InitChoice::default(),
        init_std: 0.0,
        init_distribution: None,
        init_gain: 0.0,
        ds_init: DsInitForm::default(),
        ..model.clone()
    }
}

impl RunIdentity {
    /// Errors with the first difference that prevents a resume.
    pub fn check(&self, saved: &RunIdentity, place: &str) -> Result<(), TrainError> {
        let other = |difference| TrainError::OtherRun { place: place.into(), difference };
        self.difference(saved).map_or(Ok(()), |difference| Err(other(difference)))
    }

    /// The first difference that parameters cannot be trained with: another tokenizer, or the parameters of another model. A model that was
    /// imported without a tokenizer goes with any of its size.
    pub fn difference(&self, saved: &RunIdentity) -> Option<Difference> {
        let differ =
            |what: &'static str, wanted: String, found: String| Some(Difference { what, wanted, found });
        if self.tokenizer != saved.tokenizer && !saved.tokenizer.is_empty() {
            return differ("tokenizer fingerprint", self.tokenizer.clone(), saved.tokenizer.clone());
        }
        let (wanted, found) = (fixed(&self.model), fixed(&saved.model));
        if wanted == found {
            return None;
        }
        if self.model.vocab_size != saved.model.vocab_size {
            let rows = |model: &Model| format!("{} rows", model.vocab_size);
            return differ("vocabulary of the model", rows(&self.model), rows(&saved.model));
        }
        let (wanted, found) = (self.model.summary(), saved.model.summary());
        match wanted == found {
            false => differ("model", wanted, found),
            // The summary does not name every choice.
            true => differ("model", format!("{:?}", self.model), format!("{:?}", saved.model)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn identity() -> RunIdentity {
        let model = bessemer_arch::named("gpt2").expect("a listed name");
        let model = Model { vocab_size: 300, ..model };
        RunIdentity { model, tokenizer: "t".into(), seed: 1, sequences_per_step: 4 }
    }

    /// The manifest of a run of 4 sequences of 8 tokens a step, after 3 steps.
    fn manifest() -> Manifest {
        let state = TrainState {
            step: 3,
            updates: Some(2),
            tokens: 96,
            seconds: 1.5,
            loader: LoaderState { samples: 14, seq_len: 8, ..LoaderState::default() },
            spikes: SpikeState { passed_over: Some(2), ..SpikeState::default() },
            loss_scale: None,
            best: Vec::new(),
            batch_origin: None,
            initial: None,
            teacher: None,
            early_stop: None,
            run: None,
            model_type: None,
            base: None,
            identity: identity(),
        };
        Manifest {
            step: 3,
            tokens: 96,
            writer: String::new(),
            tokenizer: Some("t".into()),
            recipe: String::new(),
            state: serde_json::to_value(state).expect("a state is JSON"),
            previous: None,
            files: Vec::new(),
            tensors: Vec::new(),
        }
    }

    #[test]
    fn a_state_that_contradicts_its_manifest_or_itself_is_refused_by_what_differs() {
        TrainState::of(&manifest()).unwrap();
        let refused = |path: &str, value: Value, named: &str| {
            let mut m = manifest();
            *m.state.pointer_mut(path).unwrap() = value;
            let begun = std::time::Instant::now();
            let e = TrainState::of(&m).unwrap_err();
            assert!(e.contains(named), "{path}: {e}");
            assert!(begun.elapsed().as_secs() < 2);
        };
        refused("/step", json!(4), "state.step is 4, wanted 3");
        refused("/updates", json!(4), "state.updates is 4, wanted at most 3");
        refused("/tokens", json!(97), "state.tokens is 97, wanted 96");
        refused("/loader/samples", json!(13), "state.loader.samples is 13, wanted 14");
        refused("/loader/seq_len", json!(9), "state.tokens is 96, wanted 108");
        refused("/identity/sequences_per_step", json!(u64::MAX), "overflow");
        refused("/identity/tokenizer", json!("u"), "tokenizer");
        refused("/identity/model/layers", json!(1_000_000_000_000_000u64), "model.layers: wanted 1 to 10000");
        refused("/identity/model/vocab_size", json!(u64::MAX), "model.vocab_size");
        refused("/identity/model/heads", json!(0), "model.heads");
        refused("/seconds", json!(-1.0), "state.seconds");
        refused("/identity", json!(3), "state: ");
        // A wrong number on which both agree.
        let mut m = manifest();
        (m.tokens, m.state["tokens"]) = (95, json!(95));
        assert!(TrainState::of(&m).unwrap_err().contains("the tokens of its steps"));
        // 1 step of 3 sequences, then 2 of 4.
        let mut m = manifest();
        let origin = BatchOrigin { step: 1, samples: 3, tokens: 24, batch_tokens: 24 };
        m.state["batch_origin"] = serde_json::to_value(origin).unwrap();
        assert!(TrainState::of(&m).unwrap_err().contains("state.tokens is 96, wanted 88"));
        (m.tokens, m.state["tokens"], m.state["loader"]["samples"]) = (88, json!(88), json!(13));
        assert_eq!(TrainState::of(&m).unwrap().samples_trained(), 11);
        m.state["batch_origin"]["step"] = json!(4);
        assert!(TrainState::of(&m).unwrap_err().contains("state.batch_origin.step is 4, wanted at most 3"));
        m.state["batch_origin"] = json!({ "step": 0, "samples": u64::MAX, "tokens": 0, "batch_tokens": 0 });
        assert!(TrainState::of(&m).unwrap_err().contains("overflow"));
        // A checkpoint from before samples that are passed over were counted.
        let mut m = manifest();
        m.state["spikes"] = json!({});
        TrainState::of(&m).unwrap();
        m.state["loader"]["samples"] = json!(11);
        assert!(TrainState::of(&m).unwrap_err().contains("at least 12"));
    }

    #[test]
    fn updates_are_counted_from_the_steps_where_an_older_version_counted_only_those() {
        let mut m = manifest();
        assert_eq!(TrainState::of(&m).unwrap().updates(), 2);
        m.state.as_object_mut().unwrap().remove("updates").unwrap();
        assert_eq!(TrainState::of(&m).unwrap().updates(), 3);
    }

    #[test]
    fn the_best_are_the_lowest_losses() {
        let mut state = TrainState::of(&manifest()).unwrap();
        let mut note = |step, loss| {
            state.step = step;
            (state.note_validation(loss, 2), state.best.iter().map(|b| b.0).collect::<Vec<_>>())
        };
        assert_eq!(note(1, 3.0), (true, vec![1]));
        assert_eq!(note(2, 2.0), (true, vec![2, 1]));
        assert_eq!(note(3, 4.0), (false, vec![2, 1]));
        assert_eq!(note(4, f64::NAN), (false, vec![2, 1]));
        assert_eq!(note(5, 2.5), (true, vec![2, 5]));
        assert_eq!(note(5, 2.5), (true, vec![2, 5]));
        assert_eq!(note(6, 2.0), (true, vec![2, 6]), "of equal ones the older");
    }

    #[test]
    fn the_first_difference_is_named() {
        let a = identity();
        a.check(&a.clone(), "x").unwrap();
        let mut other = RunIdentity { seed: 2, sequences_per_step: 9, ..identity() };
        other.model.dropout = 0.1;
        a.check(&other, "x").unwrap();
        let adapted = |of: Adapters| {
            let model = Model { adapters: Some(of), ..other.model.clone() };
            RunIdentity { model, ..other.clone() }
        };
        let plain = adapted(Adapters::default());
        adapted(Adapters { dropout: 0.1, ..Adapters::default() }).check(&plain, "x").unwrap();
        let magnitudes = adapted(Adapters { magnitude: true, ..Adapters::default() });
        let e = magnitudes.check(&plain, "x").unwrap_err().to_string();
        assert!(e.contains("with magnitudes"), "{e}");
        other.model.context *= 2;
        let e = a.check(&other, "x").unwrap_err().to_string();
        assert!(e.contains("model") && e.contains("train.init.from"), "learned positions: {e}");
        (other.model.positions, other.model.context) = (PositionChoice::Rope, 64);
        let longer = Model { context: 128, rope_theta: 1e6, ..other.model.clone() };
        RunIdentity { model: longer, ..identity() }.check(&other, "x").unwrap();
        let mut other = identity();
        other.model.vocab_size = 301;
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("301 rows"));
        let mut other = identity();
        other.model.activation = bessemer_arch::ActivationChoice::Relu;
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("Relu"));
        let other = RunIdentity { tokenizer: "u".into(), seed: 2, ..identity() };
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("tokenizer"));
        let mut other = identity();
        other.model.layers += 1;
        assert!(a.check(&other, "x").unwrap_err().to_string().contains("5 layers"));
    }
}
