//! Other work of a rank, in the bubbles of its pipeline.
//!
//! A program has instructions that are no passes ([`Instruction::Fill`](bessemer_schedule::Instruction)); somebody supplies what
//! they do. That is the one point at which such work hangs: the loop over a rank's list knows [`Fillers`], asks it for the
//! list of the step at hand, hands it the instructions that it does not know itself, and says when a step begins and ends.
//!
//! | work | supplied by | planned by |
//! |---|---|---|
//! | K-FAC's curvature, inverses and directions | [`refresh`] | [`plan_fill`] |
//! | copies of the state for checkpoints | [`crate::snapshot`] | [`plan_copies`] |
//! | batches of evaluations | passes of the chunks themselves | [`plan_evaluations`] |
//!
//! What there is at once, and in which steps: [`plan_steps`].

mod check;
mod copies;
mod curvature;
mod evaluations;
mod plan;
mod refresh;

pub(crate) use check::{check_plan, check_program};
pub use copies::{PlannedCopies, plan_copies};
pub use curvature::plan_fill;
pub use evaluations::plan_evaluations;
pub use plan::{PlannedStep, PlannedSteps, StepFill, plan_steps};

use crate::chunk::Chunk;
use crate::config::FillChoice;
use crate::error::ParallelError;
use crate::prepare::{ExecOp, Needs, prepare};
use crate::snapshot::Snapshot;
use crate::worker::{Job, Worker};
use bessemer_program::StepNode;
use bessemer_schedule::{Fill, Filler, Program};
use bessemer_tensor::Backend;
use refresh::Refresh;
use std::fmt::Debug;

/// A supplier of what instructions do that are no passes.
pub(crate) trait FillerWork: Debug {
    /// Whether it supplies this kind of work.
    fn runs(&self, filler: Filler) -> bool;

    /// Does one unit of the work.
    fn run(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
        unit: Fill,
    ) -> Result<(), ParallelError>;

    /// A step begins.
    fn begin_step(&mut self, _chunks: &mut [Chunk]) {}

    /// A step ends; `skipped`: without an update.
    fn end_step(&mut self, _chunks: &mut [Chunk], _skipped: bool) {}

    /// Forgets work that spans several steps.
    fn discard(&mut self) {}

    /// Whether an earlier step has begun work that the current step, or the next one, goes on with.
    fn is_amid_interval(&self) -> bool {
        false
    }
}

/// A program of a step, and this rank's list of it.
#[derive(Debug)]
struct FilledStep {
    program: Program,
    ops: Vec<ExecOp>,
}

/// What a rank does in bubbles.
#[derive(Debug, Default)]
pub(crate) struct Fillers {
    /// Steps outside of an interval, then the steps of the interval; by [`StepFill`]. Empty without a fill.
    steps: Vec<[Option<FilledStep>; 4]>,
    /// Batches that each of these steps can evaluate.
    evaluations: Vec<usize>,
    lengthening: f64,
    /// What the step at hand, or the next one, is asked to do.
    wanted: StepFill,
    refresh: Option<Refresh>,
    pub(crate) snapshot: Option<Snapshot>,
}

impl Fillers {
    /// Plans the work of pipeline rank `rank`. `needs` grows to what the programs need.
    pub(crate) fn plan(job: &Job<'_>, rank: usize, needs: &mut [Needs]) -> Result<Fillers, ParallelError> {
        let Some(planned) = plan_steps(job)? else { return Ok(Fillers::default()) };
        let mut fillers = Fillers { lengthening: planned.lengthening, ..Fillers::default() };
        for step in planned.steps {
            let mut filled = [None, None, None, None];
            for (place, program) in filled.iter_mut().zip(step.programs) {
                let Some(program) = program else { continue };
                let prepared = prepare(&program, rank)?;
                needs.iter_mut().zip(&prepared.needs).for_each(|(all, needs)| all.cover(needs));
                *place = Some(FilledStep { program, ops: prepared.ops });
            }
            fillers.steps.push(filled);
            fillers.evaluations.push(step.evaluations);
        }
        Ok(fillers)
    }

    /// Allocates the memory of work that spans steps.
    pub(crate) fn allocate(
        &mut self,
        backend: &mut dyn Backend,
        job: &Job<'_>,
        chunks: &mut [Chunk],
        rank: usize,
    ) -> Result<(), ParallelError> {
        if job.plan.pipe.fill.has(FillChoice::Kfac) {
            self.refresh = Some(Refresh::new(backend, job, chunks, rank, self.steps.len() - 1)?);
        }
        Ok(())
    }

    fn work(&mut self) -> impl Iterator<Item = &mut dyn FillerWork> {
        let refresh = self.refresh.as_mut().map(|work| work as &mut dyn FillerWork);
        let snapshot = self.snapshot.as_mut().map(|work| work as &mut dyn FillerWork);
        refresh.into_iter().chain(snapshot)
    }

    /// Does a unit of work; returns whether anybody here does such work.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
        unit: Fill,
    ) -> Result<bool, ParallelError> {
        match self.work().find(|work| work.runs(unit.filler)) {
            Some(work) => work.run(backend, chunks, unit).map(|()| true),
            None => Ok(false),
        }
    }

    pub(crate) fn begin_step(&mut self, chunks: &mut [Chunk]) {
        self.work().for_each(|work| work.begin_step(chunks));
    }

    pub(crate) fn end_step(&mut self, chunks: &mut [Chunk], skipped: bool) {
        self.work().for_each(|work| work.end_step(chunks, skipped));
    }

    pub(crate) fn discard(&mut self) {
        self.work().for_each(FillerWork::discard);
    }

    /// Whether the step at hand, or the next one, goes on with work of earlier steps: what that rests on outlives a skipped update.
    pub(crate) fn are_amid_interval(&self) -> bool {
        self.refresh.as_ref().is_some_and(FillerWork::is_amid_interval)
    }

    /// Number of the step at hand, or the next one, among the planned ones.
    fn at(&self) -> usize {
        self.refresh.as_ref().and_then(|refresh| refresh.phase).map_or(0, |phase| phase + 1)
    }

    fn step(&self) -> Option<&FilledStep> {
        self.steps.get(self.at())?[self.wanted.index()].as_ref()
    }

    /// This rank's list of the step at hand, if it is another than the schedule's.
    pub(crate) fn ops(&self) -> Option<&[ExecOp]> {
        self.step().map(|step| step.ops.as_slice())
    }

    /// The program of the step at hand, if it is another than the schedule's.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.step().map(|step| &step.program)
    }
}

impl Worker {
    /// Says what the next steps do in their bubbles, of what was planned. The same on every rank, between two steps.
    ///
    /// # Errors
    /// Work that was not planned for the next step.
    pub fn set_step_fill(&mut self, wanted: StepFill) -> Result<(), ParallelError> {
        self.fillers.wanted = wanted;
        if wanted != StepFill::default() && self.fillers.step().is_none() {
            self.fillers.wanted = StepFill::default();
            return Err(ParallelError::Layout(format!(
                "schedule {:?}: the next step has no program for {wanted:?}; wanted work of parallel.fill that was planned for it",
                self.program.name
            )));
        }
        Ok(())
    }

    /// A program that copies the state in its bubbles, if that was planned.
    pub fn copying_program(&self) -> Option<&Program> {
        let copies = StepFill { copies: true, ..StepFill::default() };
        let step = self.fillers.steps.first()?[copies.index()].as_ref()?;
        Some(&step.program)
    }

    /// Batches that pass the bubbles of the next step, if it is asked to evaluate.
    pub fn fitting_evaluations(&self) -> usize {
        self.fillers.evaluations.get(self.fillers.at()).copied().unwrap_or(0)
    }

    /// One line for people: what bubbles do; `evaluations`: batches of each evaluation. Empty where they do nothing.
    pub fn fill_summary(&self, evaluations: usize) -> String {
        let (mut text, fillers) = (String::new(), &self.fillers);
        if let Some(refresh) = &fillers.refresh {
            text += &format!(", bubbles refresh K-FAC every {} steps", refresh.interval);
        }
        if self.plan.pipe.fill.has(FillChoice::Evaluation) && evaluations > 0 {
            let (least, most) = (fillers.evaluations.iter().min(), fillers.evaluations.iter().max());
            let range = match (least.copied().unwrap_or(0), most.copied().unwrap_or(0)) {
                (least, most) if least == most => format!("{most}"),
                (least, most) => format!("{least} to {most}"),
            };
            text += &format!(", bubbles evaluate {range} of {evaluations} batches");
        }
        if self.plan.pipe.fill.has(FillChoice::Checkpoint) {
            let longer = 100.0 * fillers.lengthening;
            text += &format!(", bubbles copy checkpoints (that step {longer:.1} % longer, simulated)");
        }
        text
    }

    /// Steps of the refresh interval, where bubbles are filled with K-FAC's work.
    pub fn refresh_interval(&self) -> Option<usize> {
        self.fillers.refresh.as_ref().map(|refresh| refresh.interval)
    }

    /// Whether a checkpoint holds all that the next step needs, because no work is half done that spans several steps.
    pub fn at_rest(&self) -> bool {
        !self.fillers.are_amid_interval()
    }

    /// The program of the step at hand, with its fillers: between [`Worker::gradients`] and [`Worker::apply`] the one that
    /// runs.
    pub fn program_at_hand(&self) -> &Program {
        self.fillers.program().unwrap_or(&self.program)
    }

    /// The whole steps of this rank that fill bubbles, each in the order in which it runs.
    pub fn filled_step_nodes(&self) -> Vec<Vec<StepNode>> {
        let filled = self.fillers.steps.iter().flatten().flatten();
        filled.map(|step| self.nodes_of(&step.ops)).collect()
    }

    /// After state was restored: work that spans steps begins, if an earlier update has left what it rests on.
    pub(crate) fn resume_fillers(&mut self) -> Result<(), ParallelError> {
        if self.fillers.refresh.is_none() {
            return Ok(());
        }
        // Ranks without such layers have no state that says so.
        let curved = self.chunks.iter().any(|c| c.optimizer.has_curvature());
        let curved = self.any("curvature", curved)?;
        if let Some(refresh) = self.fillers.refresh.as_mut().filter(|_| curved) {
            refresh.begin(&mut self.chunks);
        }
        Ok(())
    }

    /// Bytes of host memory that work in bubbles will ask for before the first step.
    pub(crate) fn filler_bytes(&self, job: &Job<'_>) -> Result<u64, ParallelError> {
        match job.plan.pipe.fill.has(FillChoice::Checkpoint) {
            true => self.snapshot_bytes(job.optim),
            false => Ok(0),
        }
    }
}
