//! One rank's work in bubbles, as [`bessemer_parallel`] runs it.

use crate::plan::{FillPlan, StepFill};
use crate::refresh::Refresh;
use crate::snapshot::Snapshot;
use bessemer_parallel::{
    AnyRank, Chunk, FillChoice, FillConfig, FillSupplier, FillerWork, Job, LinearMap, LinearOperands,
    ParallelError, Worker,
};
use bessemer_schedule::{Fill, Filler, Program};
use bessemer_tensor::{Backend, TensorError};
use std::any::Any;

/// Work of a rank in bubbles.
#[derive(Debug, Default)]
pub struct RankFill {
    fill: FillConfig,
    /// Name of the schedule.
    schedule: String,
    /// Numbers of the programs of steps outside of a refresh, then of the steps of the refresh interval; by [`StepFill`].
    programs: Vec<[Option<usize>; 4]>,
    /// Batches that each of these steps can evaluate.
    evaluations: Vec<usize>,
    lengthening: f64,
    /// What the current step, or the next one, is asked to do.
    wanted: StepFill,
    refresh: Option<Refresh>,
    pub(crate) snapshot: Option<Snapshot>,
}

impl RankFill {
    /// A rank's work in bubbles, if it has any.
    pub fn of(worker: &Worker) -> Option<&RankFill> {
        let work: &dyn Any = worker.filler_work()?;
        work.downcast_ref()
    }

    /// A rank's work in bubbles, to be changed, if it has any.
    pub fn of_mut(worker: &mut Worker) -> Option<&mut RankFill> {
        let work: &mut dyn Any = worker.filler_work_mut().as_deref_mut()?;
        work.downcast_mut()
    }

    /// Sets what the next steps do in their bubbles, of what was planned. The same on every rank, between two steps.
    ///
    /// # Errors
    /// Work that was not planned for the next step.
    pub fn set_step(&mut self, wanted: StepFill) -> Result<(), ParallelError> {
        self.wanted = wanted;
        if wanted != StepFill::default() && self.program().is_none() {
            self.wanted = StepFill::default();
            return Err(ParallelError::Layout(format!(
                "schedule {:?}: the next step has no program for {wanted:?}; wanted work of parallel.fill that was planned for it",
                self.schedule
            )));
        }
        Ok(())
    }

    /// Batches that pass the bubbles of the next step, if it is asked to evaluate.
    pub fn fitting_evaluations(&self) -> usize {
        self.evaluations.get(self.at()).copied().unwrap_or(0)
    }

    /// One line for people: what bubbles do; `evaluations`: batches of each evaluation. Empty where they do nothing.
    pub fn summary(&self, evaluations: usize) -> String {
        let mut text = String::new();
        if let Some(refresh) = &self.refresh {
            text += &format!(", bubbles refresh K-FAC every {} steps", refresh.interval);
        }
        if self.fill.has(FillChoice::Evaluation) && evaluations > 0 {
            let (least, most) = (self.evaluations.iter().min(), self.evaluations.iter().max());
            let range = match (least.copied().unwrap_or(0), most.copied().unwrap_or(0)) {
                (least, most) if least == most => format!("{most}"),
                (least, most) => format!("{least} to {most}"),
            };
            text += &format!(", bubbles evaluate {range} of {evaluations} batches");
        }
        if self.fill.has(FillChoice::Checkpoint) {
            let longer = 100.0 * self.lengthening;
            text += &format!(", bubbles copy checkpoints (that step {longer:.1} % longer, simulated)");
        }
        text
    }

    /// Steps of the refresh interval, where bubbles are filled with K-FAC's work.
    pub fn refresh_interval(&self) -> Option<usize> {
        self.refresh.as_ref().map(|refresh| refresh.interval)
    }

    /// Number of the current step, or the next one, among the planned ones.
    fn at(&self) -> usize {
        self.refresh.as_ref().and_then(|refresh| refresh.phase).map_or(0, |phase| phase + 1)
    }
}

impl FillSupplier for FillPlan {
    fn programs(&self) -> Vec<&Program> {
        self.steps.iter().flat_map(|step| step.programs.iter().flatten()).collect()
    }

    fn work(
        &self,
        backend: &mut dyn Backend,
        job: &Job<'_>,
        rank: usize,
        chunks: &mut [Chunk],
    ) -> Result<Box<dyn FillerWork>, ParallelError> {
        let mut numbers = 0..;
        let programs = self.steps.iter().map(|step| {
            let number = |program: &Option<Program>| program.as_ref().and_then(|_| numbers.next());
            step.programs.each_ref().map(number)
        });
        let programs: Vec<_> = programs.collect();
        let refresh = match self.fill.has(FillChoice::Kfac) {
            true => Some(Refresh::new(backend, job, chunks, rank, programs.len() - 1)?),
            false => None,
        };
        Ok(Box::new(RankFill {
            fill: self.fill.clone(),
            schedule: job.program.name.clone(),
            programs,
            evaluations: self.steps.iter().map(|step| step.evaluations).collect(),
            lengthening: self.lengthening,
            wanted: StepFill::default(),
            refresh,
            snapshot: None,
        }))
    }
}

impl FillerWork for RankFill {
    fn program(&self) -> Option<usize> {
        self.programs.get(self.at())?[self.wanted.index()]
    }

    fn run(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
        unit: Fill,
    ) -> Result<bool, ParallelError> {
        let done = match unit.filler {
            Filler::Evaluate => None,
            Filler::Copy => self.snapshot.as_mut().map(|snapshot| snapshot.run(backend, unit)),
            Filler::Curvature | Filler::SyncCurvature | Filler::Invert | Filler::Precondition => {
                self.refresh.as_mut().map(|refresh| refresh.run(backend, chunks, unit))
            }
        };
        done.map_or(Ok(false), |done| done.map(|()| true))
    }

    fn reads_operands(&self) -> bool {
        self.refresh.as_ref().is_some_and(|refresh| refresh.phase == Some(0))
    }

    fn read_operands(
        &mut self,
        backend: &mut dyn Backend,
        map: LinearMap,
        operands: LinearOperands,
    ) -> Result<(), TensorError> {
        self.refresh.as_ref().map_or(Ok(()), |refresh| refresh.keep(backend, map, operands))
    }

    fn end_step(&mut self, chunks: &mut [Chunk], skipped: bool) {
        if let Some(refresh) = &mut self.refresh {
            refresh.end_step(chunks, skipped);
        }
    }

    fn discard(&mut self) {
        if let Some(refresh) = &mut self.refresh {
            refresh.discard();
        }
    }

    /// A refresh begins, if an earlier update has left what it rests on.
    fn resume(&mut self, chunks: &mut [Chunk], job: &mut AnyRank<'_>) -> Result<(), ParallelError> {
        let Some(refresh) = &mut self.refresh else { return Ok(()) };
        // Ranks without such layers have no state that says so.
        let curved = chunks.iter_mut().any(|chunk| chunk.optimizer().has_curvature());
        if job.any("curvature", curved)? {
            refresh.begin(chunks);
        }
        Ok(())
    }

    fn is_amid_interval(&self) -> bool {
        self.refresh.as_ref().is_some_and(|refresh| refresh.phase.is_some_and(|phase| phase > 0))
    }
}
