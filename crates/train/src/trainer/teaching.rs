//! The teacher of a run that distils (`train.teacher`): opened, checked, counted and read before the first step.

use super::{OpenInitial, Trainer};
use crate::TrainError;
use crate::input::TrainerInput;
use crate::state::{TeacherState, TrainState};
use bessemer_arch::Model;
use bessemer_checkpoint::{Latest, Loaded, Skipped};
use bessemer_optim::is_state_name;
use bessemer_parallel::{MemoryPlan, ParallelError, Plan};
use bessemer_recipe::Recipe;
use bessemer_runtime::{Shape, Teacher, TeacherOperands};
use bessemer_tensor::{Backend, View};

/// Elements of a parameter that are read at a time.
const READ_AT_ONCE: usize = 1 << 20;

/// Refuses a teacher in a layout whose ranks have no whole rows of logits of their tokens.
pub(crate) fn check_layout(recipe: &Recipe, plan: &Plan) -> Result<(), ParallelError> {
    if !recipe.train.teacher.is_on() {
        return Ok(());
    }
    // The ranks of `tensor` are those that share a layer, context included.
    let degrees =
        [("context", plan.context_ranks()), ("tensor", plan.tensor()), ("pipeline", plan.pipeline())];
    let degree = degrees.into_iter().find(|(_, degree)| *degree > 1);
    let found = match degree {
        Some((axis, degree)) => format!("parallel.{axis} over {degree} ranks"),
        None if recipe.train.has_documents() => "micro-batches of several lengths (train.lengths)".into(),
        None => return Ok(()),
    };
    Err(ParallelError::Layout(format!(
        "train.teacher with {found}: wanted one rank or data parallelism alone (parallel.data, parallel.shard, parallel.experts) and \
         train.lengths = \"packed\"; change these, or leave the teacher out (train.teacher.from = \"\")"
    )))
}

/// A teacher whose checkpoint is open.
pub(super) struct OpenTeacher {
    loaded: Loaded,
    model: Model,
    temperature: f32,
    pub(super) state: TeacherState,
}

impl OpenTeacher {
    /// The teacher of a recipe, if it has one, for a student of this model.
    pub(super) fn of(
        input: &TrainerInput,
        student: &Model,
        open: Option<OpenInitial<'_>>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<OpenTeacher>, TrainError> {
        let config = &input.recipe.train.teacher;
        if !config.is_on() {
            return Ok(None);
        }
        let wrong = |problem: String| {
            TrainError::Recipe(format!("train.teacher.from = {:?}: {problem}", config.from))
        };
        let open = open.ok_or_else(|| wrong("this call cannot open checkpoints".into()))?;
        let Latest { loaded, skipped } = open()?;
        warnings.extend(skipped.iter().map(Skipped::to_string));
        let place = loaded.path().display().to_string();
        let saved = TrainState::of(loaded.manifest())
            .map_err(|problem| TrainError::State { place: place.clone(), problem })?;
        let model = saved.identity.model;
        let (wanted, found) = (input.tokenizer.fingerprint(), saved.identity.tokenizer);
        if !found.is_empty() && found != wanted {
            return Err(wrong(format!(
                "{place} was trained with tokenizer {found}, and the run has tokenizer {wanted}; wanted one vocabulary, token by token: \
                 name the teacher's tokenizer.json in tokenizer.file, or take another teacher"
            )));
        }
        if model.vocab_size != student.vocab_size {
            return Err(wrong(format!(
                "the vocabulary of {place} has {} rows and that of the model {}; wanted equally many: name the teacher's tokenizer.json in \
                 tokenizer.file, or take another teacher",
                model.vocab_size, student.vocab_size
            )));
        }
        let seq = input.recipe.train.seq_len;
        if (model.context as u64) < seq {
            return Err(wrong(format!(
                "{place} has a context of {} tokens, wanted at least train.seq_len = {seq}; shorten the sequences, or take another teacher",
                model.context
            )));
        }
        let state = TeacherState { run: saved.run, step: saved.step };
        Ok(Some(OpenTeacher { loaded, model, temperature: config.temperature as f32, state }))
    }

    /// Counts the teacher in a rank's memory, for micro-batches of this shape; returns the operands that the loss reads.
    pub(super) fn plan(
        &self,
        shape: Shape,
        device: &mut dyn Backend,
    ) -> Result<(MemoryPlan, TeacherOperands), TrainError> {
        Ok(MemoryPlan::of_teacher(&self.model, shape, self.temperature, Some(device))?)
    }

    /// The teacher with its parameters.
    pub(super) fn read(&self, shape: Shape, backend: &mut dyn Backend) -> Result<Teacher, TrainError> {
        let teacher = Teacher::new(backend, &self.model, shape, self.temperature)?;
        let specs = || teacher.params().iter().map(|p| (p.spec.name.as_str(), p.spec.shape.as_slice()));
        self.loaded.require_match(specs(), |name| !is_state_name(name))?;
        let mut values = vec![0.0; READ_AT_ONCE];
        for param in teacher.params() {
            // Every parameter is consecutive.
            let len = param.value.len();
            let all = View { rows: 1, cols: len, stride: len, ..param.value };
            for first in (0..all.len()).step_by(READ_AT_ONCE) {
                let count = READ_AT_ONCE.min(all.len() - first);
                self.loaded.read_runs(&param.spec.name, &[(first, count)], &mut values[..count])?;
                backend.write_f32(all.columns(first, count), &values[..count])?;
            }
        }
        Ok(teacher)
    }

    /// The teacher for people.
    pub(super) fn describe(&self) -> String {
        format!("{}, step {}", self.loaded.path().display(), self.state.step)
    }
}

impl Trainer {
    /// Notes the teacher in the state of the run, and warns if the steps before had another.
    pub(super) fn note_teacher(&mut self, teacher: Option<(TeacherState, String)>) {
        let Some((now, described)) = teacher else { return };
        let goes_on = self.state.step > 0
            && self.input.recipe.train.teacher.until().is_none_or(|until| self.state.step < until);
        let before = self.state.teacher.replace(now.clone());
        if goes_on && before.as_ref() != Some(&now) {
            let before =
                before.map_or("no teacher".to_owned(), |before| format!("a teacher of step {}", before.step));
            self.warnings.push(format!(
                "the teacher is {described}, and the steps before had {before}: the run is not the one that was begun; name one checkpoint in \
                 train.teacher.from, such as runs/NAME/checkpoints/step-{:08}",
                now.step
            ));
        }
    }
}
