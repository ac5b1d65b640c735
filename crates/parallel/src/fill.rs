//! Interface for work that a rank does besides its passes, in the bubbles of its pipeline.
//!
//! A program may have instructions that are no passes ([`Instruction::Fill`](bessemer_schedule::Instruction)). A [`FillSupplier`]
//! supplies programs that have them, and a rank's [`FillerWork`] runs them. The loop over a rank's list requests from the work the
//! program of each step, and delegates to it the instructions that the loop does not implement. Batches of evaluations are passes
//! of the chunks, so the loop runs them without it.

use crate::chunk::Chunk;
use crate::control::ControlMessages;
use crate::error::ParallelError;
use crate::operands::{LinearMap, LinearOperands};
use crate::prepare::{Needs, PlacedInstruction, prepare};
use crate::steps::RankStep;
use crate::worker::{Job, Worker};
use bessemer_collectives::Communicator;
use bessemer_program::StepNode;
use bessemer_schedule::{Fill, Program};
use bessemer_tensor::{Backend, TensorError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Supplier of work in bubbles, the same on every rank.
pub trait FillSupplier: Debug {
    /// Programs that a step may run in place of the schedule's; [`FillerWork::program`] counts in this list.
    fn programs(&self) -> Vec<&Program>;

    /// Makes the work of pipeline rank `rank`, which holds `chunks`.
    ///
    /// # Errors
    /// Memory that the device does not have, or chunks that are not those of the programs.
    fn work(
        &self,
        backend: &mut dyn Backend,
        job: &Job<'_>,
        rank: usize,
        chunks: &mut [Chunk],
    ) -> Result<Box<dyn FillerWork>, ParallelError>;
}

/// Work of a rank for instructions that are no passes. Calls come in the order of the rank's program.
pub trait FillerWork: Any + Debug + Send {
    /// Number of the program that the current step runs, or the next one between steps; none: the schedule's.
    fn program(&self) -> Option<usize>;

    /// Does one unit of work; returns false for work of an unsupported kind.
    ///
    /// # Errors
    /// A unit that was not planned, or an error of the device or of another rank.
    fn run(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
        unit: Fill,
    ) -> Result<bool, ParallelError>;

    /// Whether the current step's operands of linear maps are passed to this work, and not to the optimizer.
    fn reads_operands(&self) -> bool {
        false
    }

    /// Reads the operands from which a backward pass makes the gradient of `map`'s weight.
    ///
    /// # Errors
    /// A map that was not planned, or the device's.
    fn read_operands(
        &mut self,
        _backend: &mut dyn Backend,
        _map: LinearMap,
        _operands: LinearOperands,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// Ends a step; `skipped`: without an update.
    fn end_step(&mut self, _chunks: &mut [Chunk], _skipped: bool) {}

    /// Forgets work that spans several steps.
    fn discard(&mut self) {}

    /// Resumes after the job's state was restored; called on all ranks.
    ///
    /// # Errors
    /// An error of another rank.
    fn resume(&mut self, _chunks: &mut [Chunk], _job: &mut AnyRank<'_>) -> Result<(), ParallelError> {
        Ok(())
    }

    /// Whether the current or the next step continues work that an earlier step has begun.
    fn is_amid_interval(&self) -> bool {
        false
    }
}

/// A reduction of one yes-or-no value over all ranks of the job.
#[derive(Debug)]
pub struct AnyRank<'a> {
    pub(crate) control: &'a mut ControlMessages,
    pub(crate) world: &'a mut dyn Communicator,
}

impl AnyRank<'_> {
    /// Returns on every rank whether `yes` is true on any rank.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn any(&mut self, name: &str, yes: bool) -> Result<bool, ParallelError> {
        Ok(self.control.gather(self.world, name, &[u64::from(yes)])?.contains(&1))
    }
}

/// A supplied program, and this rank's list of it.
#[derive(Debug)]
struct FilledStep {
    program: Program,
    step: Arc<RankStep>,
}

/// Supplied programs with the instructions of this rank, before its chunks are made.
pub(crate) type PlacedPrograms<'a> = Vec<(&'a Program, Vec<PlacedInstruction>)>;

/// Work of a rank in bubbles.
#[derive(Debug, Default)]
pub(crate) struct Fillers {
    steps: Vec<FilledStep>,
    pub(crate) work: Option<Box<dyn FillerWork>>,
}

impl Fillers {
    /// Places the programs of pipeline rank `rank`, whose chunks have these pools of slots. `needs` grows to cover theirs.
    pub(crate) fn place<'a>(
        fill: Option<&'a dyn FillSupplier>,
        (rank, pool_of): (usize, &[usize]),
        needs: &mut [Needs],
    ) -> Result<PlacedPrograms<'a>, ParallelError> {
        let mut placed = Vec::new();
        for program in fill.map(FillSupplier::programs).unwrap_or_default() {
            let prepared = prepare(program, rank, pool_of)?;
            needs.iter_mut().zip(&prepared.needs).for_each(|(all, needs)| all.cover(needs));
            placed.push((program, prepared.instructions));
        }
        Ok(placed)
    }

    /// Adds a supplied program with its list.
    pub(crate) fn add(&mut self, program: &Program, step: RankStep) {
        self.steps.push(FilledStep { program: program.clone(), step: Arc::new(step) });
    }

    /// Whether the current or the next step continues work of earlier steps. The state of that work outlives a skipped update.
    pub(crate) fn are_amid_interval(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.is_amid_interval())
    }

    fn step(&self) -> Option<&FilledStep> {
        self.steps.get(self.work.as_ref()?.program()?)
    }

    /// This rank's list of the current step, if it is another than the schedule's.
    pub(crate) fn step_at_hand(&self) -> Option<&Arc<RankStep>> {
        self.step().map(|step| &step.step)
    }
}

impl Worker {
    /// The work that this rank does in bubbles, if there is any.
    pub fn filler_work(&self) -> Option<&dyn FillerWork> {
        self.fillers.work.as_deref()
    }

    /// The work that this rank does in bubbles, to be changed or set, between two steps and on every rank alike.
    pub fn filler_work_mut(&mut self) -> &mut Option<Box<dyn FillerWork>> {
        &mut self.fillers.work
    }

    /// Whether a checkpoint contains the whole state of the next step, because no work that spans several steps is half done.
    pub fn at_rest(&self) -> bool {
        !self.fillers.are_amid_interval()
    }

    /// The program of the current step, with its fillers: between [`Worker::gradients`] and [`Worker::apply`] the one that
    /// runs.
    pub fn program_at_hand(&self) -> &Program {
        self.fillers.step().map_or(&self.program, |step| &step.program)
    }

    /// The whole steps of this rank that fill bubbles, each in the order in which it runs.
    pub fn filled_step_nodes(&self) -> impl Iterator<Item = &[StepNode]> {
        self.fillers.steps.iter().map(|filled| filled.step.program.nodes.as_slice())
    }

    /// Runs work that is no pass.
    pub(crate) fn fill(&mut self, backend: &mut dyn Backend, unit: Fill) -> Result<(), ParallelError> {
        if let Some(work) = &mut self.fillers.work
            && work.run(backend, &mut self.chunks, unit)?
        {
            return Ok(());
        }
        Err(ParallelError::Layout(format!(
            "schedule {:?} has filler work {unit:?}, which no worker runs",
            self.program.name
        )))
    }

    pub(crate) fn end_filling(&mut self, skipped: bool) {
        if let Some(work) = &mut self.fillers.work {
            work.end_step(&mut self.chunks, skipped);
        }
    }

    /// After state was restored.
    pub(crate) fn resume_fillers(&mut self) -> Result<(), ParallelError> {
        let Worker { fillers, chunks, control, world, .. } = self;
        let mut job = AnyRank { control, world: &mut **world };
        fillers.work.as_mut().map_or(Ok(()), |work| work.resume(chunks, &mut job))
    }
}
