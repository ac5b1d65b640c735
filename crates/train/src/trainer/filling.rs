//! Work of a run in the bubbles of its steps (`parallel.fill`): when evaluations and saves are due, and their progress.
//!
//! ```text
//! step s ─► an evaluation is due: it is pending; a save is due: its copies are planned
//! step s+1: passes, with both in the bubbles (the worker selects the program for it)
//!        ─► the losses are gathered: the record of step s; then the threads begin with the copies: the checkpoint of step s
//!        ─► the update
//! ```
//! A checkpoint is visible only after the records of its step are in the log: a run that resumes from it finds them there. Only
//! an evaluation that a request to stop has ended is missing, and the run begins with it when it resumes.

use super::Trainer;
use crate::TrainError;
use crate::observer::Observer;
use bessemer_filling::{RankFill, StepFill};
use std::sync::atomic::AtomicBool;

impl Trainer {
    /// Text on the layout of the ranks, and on the work in bubbles.
    pub(super) fn layout_text(&mut self) -> String {
        let batches = self.evaluator.bubbles().map_or(0, |bubbles| bubbles.count());
        let fill = RankFill::of(&self.runner.worker).map(|fill| fill.summary(batches));
        format!("{}{}", self.layout().summary(), fill.unwrap_or_default())
    }

    /// Work of the next step in its bubbles besides the work of every step.
    pub(super) fn step_fill(&mut self) -> StepFill {
        StepFill {
            evaluates: self.evaluator.bubbles().is_some_and(|bubbles| bubbles.is_pending()),
            copies: self.saver.is_planned(),
        }
    }

    /// An evaluation is due: at once, or in the bubbles of the next step. `saved`: the state is saved before that step, and the
    /// record of the evaluation with it.
    pub(super) fn evaluate_when_due(
        &mut self,
        saved: bool,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        let at = (self.state.step, self.state.tokens);
        let waits = !saved || self.saver.in_bubbles();
        match self.evaluator.bubbles() {
            Some(bubbles) if waits => bubbles.begin(&mut *self.backend, &mut self.runner, at, stop),
            _ => self.evaluate(false, observer, stop),
        }
    }

    /// Ends an evaluation that is pending. `passed`: a step has run it in its bubbles; `kept`: and was not gone back from.
    /// One that has not passed ends without a record if a rank is requested to `stop`.
    pub(super) fn end_evaluation(
        &mut self,
        (passed, kept): (bool, bool),
        observer: &mut dyn Observer,
        stop: Option<&AtomicBool>,
    ) -> Result<(), TrainError> {
        let Some(bubbles) = self.evaluator.bubbles().filter(|bubbles| bubbles.is_pending()) else {
            return Ok(());
        };
        if !kept {
            bubbles.forget();
            return Ok(());
        }
        match self.evaluator.end_in_bubbles(&mut *self.backend, &mut self.runner, passed, stop) {
            Err(e) if e.is_stop() => Ok(()),
            ended => ended?.map_or(Ok(()), |record| self.append(record, observer)),
        }
    }

    /// Called when the passes of a step are done and no parameter is updated yet: passes a copy that was made during or by them to a thread,
    /// after the records of the preceding step.
    pub(super) fn after_passes(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.end_copy()?;
        if !self.saver.is_planned() {
            return Ok(());
        }
        self.end_evaluation((true, true), observer, None)?;
        self.begin_saving()
    }

    /// After a step, which was `kept` or gone back from.
    pub(super) fn after_step(&mut self, kept: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.end_evaluation((true, kept), observer, None)?;
        // Copies of an asynchronous schedule, whose updates are within the program.
        if let Err(e) = self.end_copy() {
            self.recover(e, observer)?;
        }
        self.end_saving(false, observer)
    }

    /// Called before the run returns, possibly before the step whose bubbles were to evaluate and to copy.
    pub(super) fn end_filling(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        self.end_evaluation((false, true), observer, Some(stop))?;
        self.end_copying(observer)
    }
}
