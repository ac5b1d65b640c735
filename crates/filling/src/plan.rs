//! The programs of a job whose bubbles are filled: every kind of work is planned into what the kinds before it have left of the
//! bubbles, by floating-point operations alone. So the plan is a function of model, schedule and batch, and every rank makes
//! the same.
//!
//! ```text
//! the schedule's program ─► K-FAC: one program a step of the refresh interval ─► evaluations ─► copies of the state
//!                           (and the program itself, for steps before the first refresh)
//! ```
//! Evaluations and copies are done in some steps only, so each step of the interval has a program with and without them. A
//! checkpoint is due between two refreshes only: copies are planned into steps outside of a refresh and into its first step,
//! in which nothing that a checkpoint holds changes before the update (curvature waits for the end of that step). Every program is
//! verified against what its units need ([`bessemer_sim::fill::verify_fill`]).

use crate::check::check;
use crate::copies::copies;
use crate::curvature::plan_fill;
use crate::evaluations::evaluations;
use bessemer_arch::Span;
use bessemer_parallel::{FillChoice, FillConfig, Job, ParallelError};
use bessemer_schedule::{Instruction, Program};
use bessemer_sim::{Costs, PassTimes, SimError};

/// Work that a step does in its bubbles if it is asked to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StepFill {
    /// Batches of an evaluation.
    pub evaluates: bool,
    /// Copies of the state.
    pub copies: bool,
}

impl StepFill {
    /// Every combination.
    pub const ALL: [StepFill; 4] = [
        StepFill { evaluates: false, copies: false },
        StepFill { evaluates: true, copies: false },
        StepFill { evaluates: false, copies: true },
        StepFill { evaluates: true, copies: true },
    ];

    pub(crate) fn index(self) -> usize {
        usize::from(self.evaluates) + 2 * usize::from(self.copies)
    }
}

/// A program with the times of its instructions in floating-point operations.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    pub(crate) program: Program,
    pub(crate) costs: Costs,
}

/// The programs of one step of the refresh interval, or of the steps outside of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStep {
    /// By [`StepFill`], in the order of [`StepFill::ALL`]; none for what such a step is never asked for.
    pub programs: [Option<Program>; 4],
    /// Batches that its bubbles evaluate if it is asked to.
    pub evaluations: usize,
}

/// Everything that a job's bubbles are filled with, the same on every rank.
#[derive(Debug, Clone, PartialEq)]
pub struct FillPlan {
    /// Steps outside of a refresh, then the steps of the refresh interval.
    pub steps: Vec<PlannedStep>,
    /// By which share a step that copies the state is longer, at most, simulated by floating-point operations.
    pub lengthening: f64,
    pub(crate) fill: FillConfig,
}

impl FillPlan {
    /// Plans all that `fill` asks for; nothing if it asks for nothing. `wanted`: batches of an evaluation while training, of
    /// which as many pass bubbles as fit.
    ///
    /// # Errors
    /// Work that the job cannot have ([`check`]), or a program whose bubbles cannot be planned.
    pub fn new(job: &Job<'_>, fill: &FillConfig, wanted: usize) -> Result<Option<FillPlan>, ParallelError> {
        check(job.plan, fill, job.optim.optimizer)?;
        if fill.is_none() {
            return Ok(None);
        }
        no_room(job, &format!("parallel.fill = {fill}"))?;
        let mut bases = vec![Timed { program: job.program.clone(), costs: costs(job)? }];
        if fill.has(FillChoice::Kfac) {
            let filled = plan_fill(job)?;
            let costs = filled.costs;
            bases.extend(filled.programs.into_iter().map(|program| Timed { program, costs: costs.clone() }));
        }
        let wanted = if fill.has(FillChoice::Evaluation) { wanted } else { 0 };
        let (mut steps, mut lengthening) = (Vec::with_capacity(bases.len()), 0.0f64);
        for (number, base) in bases.into_iter().enumerate() {
            let (evaluating, count) = evaluations(job, &base, wanted)?;
            let (mut copying, mut both) = (None, None);
            // Between two refreshes, or before the first one.
            if fill.has(FillChoice::Checkpoint) && number <= 1 {
                let planned = copies(job, &base)?;
                lengthening = lengthening.max(planned.lengthening);
                copying = Some(planned.program);
                if wanted > 0 {
                    let planned = copies(job, &evaluating)?;
                    lengthening = lengthening.max(planned.lengthening);
                    both = Some(planned.program);
                }
            }
            let evaluating = (wanted > 0).then_some(evaluating.program);
            steps.push(PlannedStep {
                programs: [Some(base.program), evaluating, copying, both],
                evaluations: count,
            });
        }
        Ok(Some(FillPlan { steps, lengthening, fill: fill.clone() }))
    }

    /// A program that copies the state in its bubbles, if that was planned.
    pub fn copying_program(&self) -> Option<&Program> {
        let copies = StepFill { copies: true, ..StepFill::default() };
        self.steps.first()?.programs[copies.index()].as_ref()
    }
}

pub(crate) fn wrong(e: SimError) -> ParallelError {
    ParallelError::Layout(format!("parallel.fill: {e}"))
}

/// Floating-point operations of each stage's passes of a micro-batch, on one of the ranks that share its layers.
pub(crate) fn times(job: &Job<'_>, spans: &[Span]) -> Vec<PassTimes> {
    let tokens = job.shape.tokens() as f64 / job.plan.tensor() as f64;
    let of = |flops: bessemer_units::Flops| flops.0 * tokens;
    let times = |span: &Span| {
        let flops = span.flops_per_token(job.model, job.shape.seq);
        PassTimes::new(of(flops.forward), of(flops.backward_input), of(flops.backward_weight))
    };
    spans.iter().map(times).collect()
}

/// What a job's passes take, in floating-point operations.
pub(crate) fn costs(job: &Job<'_>) -> Result<Costs, ParallelError> {
    let spans = job.plan.spans(job.model, job.program.stages)?;
    Ok(Costs::per_stage(job.program, &times(job, &spans)))
}

/// Whether it is filler work.
pub(crate) fn fills(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Fill(_))
}

/// Position of the first instruction of the update.
pub(crate) fn update_begins(list: &[Instruction]) -> usize {
    list.iter().position(Instruction::is_update).unwrap_or(list.len())
}

/// Refuses programs that have no bubbles for anybody.
pub(crate) fn no_room(job: &Job<'_>, what: &str) -> Result<(), ParallelError> {
    let program = job.program;
    let problem = if program.ranks() == 1 {
        "it has no pipeline and so no bubbles"
    } else if program.updates > 1 || job.plan.pipe.asynchronous() {
        "its stages read weights of different steps: take a schedule with a flush, such as \"1f1b\""
    } else if program.lists.iter().flatten().any(fills) {
        "its bubbles are filled already"
    } else {
        return Ok(());
    };
    Err(ParallelError::Layout(format!("schedule {:?} has no room for {what}: {problem}", program.name)))
}
