//! Which unit of K-FAC's work stands where: a function of model, schedule and batch.

use crate::error::ParallelError;
use crate::worker::Job;
use bessemer_arch::{ParamClass, Span};
use bessemer_optim::OptimParam;
use bessemer_schedule::{Filler, Instruction, Program};
use bessemer_sim::fill::{
    FillOptions, Filled, KfacFactor, KfacStage, Need, Operands, Unit, When, fill, kfac_units,
};
use bessemer_sim::{Costs, PassTimes};
use bessemer_tensor::Buffer;
use bessemer_units::DType;

/// Plans the bubbles of a job's program; times are floating-point operations.
///
/// # Errors
/// A program whose bubbles cannot be planned.
pub fn plan_fill(job: &Job<'_>) -> Result<Filled, ParallelError> {
    let program = job.program;
    let spans = job.plan.spans(job.model, program.stages)?;
    let costs = costs(job)?;
    let stages: Vec<KfacStage> = spans.iter().map(|span| stage(job, span)).collect();
    let units = kfac_units(program, &stages, Operands::AfterBackward).map_err(wrong)?;
    fill(program, &costs, &units, &FillOptions::default()).map_err(wrong)
}

pub(super) fn wrong(e: bessemer_sim::SimError) -> ParallelError {
    ParallelError::Layout(format!("parallel.fill: {e}"))
}

/// Floating-point operations of each stage's passes of a micro-batch.
fn times(job: &Job<'_>, spans: &[Span]) -> Vec<PassTimes> {
    let tokens = job.shape.tokens() as f64;
    let of = |flops: bessemer_units::Flops| flops.0 * tokens;
    let times = |span: &Span| {
        let flops = span.flops_per_token(job.model, job.shape.seq);
        PassTimes::new(of(flops.forward), of(flops.backward_input), of(flops.backward_weight))
    };
    spans.iter().map(times).collect()
}

/// What a job's passes take, in floating-point operations.
pub(super) fn costs(job: &Job<'_>) -> Result<Costs, ParallelError> {
    let spans = job.plan.spans(job.model, job.program.stages)?;
    Ok(Costs::per_stage(job.program, &times(job, &spans)))
}

/// Whether it is filler work.
pub(super) fn fills(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Fill(_))
}

fn refused(program: &Program, what: &str, problem: &str) -> ParallelError {
    ParallelError::Layout(format!("schedule {:?} has no room for {what}: {problem}", program.name))
}

/// Refuses programs that have no bubbles for anybody.
pub(super) fn no_room(job: &Job<'_>, what: &str) -> Result<(), ParallelError> {
    let program = job.program;
    let problem = if program.ranks() == 1 {
        "it is no pipeline and has no bubbles"
    } else if program.updates > 1 || job.plan.pipe.asynchronous() {
        "its stages read weights of different steps: take a schedule with a flush, such as \"1f1b\""
    } else if program.lists.iter().flatten().any(fills) {
        "its bubbles are filled already"
    } else {
        return Ok(());
    };
    Err(refused(program, what, problem))
}

/// The job's program with batches that are evaluated in its bubbles, at most `wanted` of them: as many as fit into one step
/// without making it longer, by floating-point operations. They read the weights that the step begins with, and take a slot
/// of activations where one is free, else one more. How many there are.
///
/// # Errors
/// A program that cannot evaluate: none of a pipeline, one without a flush, one filled already.
pub fn plan_evaluations(job: &Job<'_>, wanted: usize) -> Result<(Program, usize), ParallelError> {
    let (program, what) = (job.program, "evaluations");
    no_room(job, what)?;
    let spans = job.plan.spans(job.model, program.stages)?;
    let times = times(job, &spans);
    let costs = Costs::per_stage(program, &times);
    let filled = |count: usize| {
        let mut units: Vec<Unit> = Vec::new();
        for number in 0..count {
            for (stage, place) in program.routes[0].iter().enumerate() {
                let after = if stage > 0 { vec![Need::Unit(units.len() - 1)] } else { Vec::new() };
                let (places, filler, when) = (vec![*place], Filler::Evaluate, When::Spread);
                units.push(Unit { places, filler, number, time: times[stage].forward, when, after });
            }
        }
        fill(program, &costs, &units, &FillOptions::default()).map_err(wrong)
    };
    let fits = |count: usize| filled(count).map(|f| f.interval() == 1 && f.forced == 0);
    let (mut most, mut too_many) = (0, wanted + 1);
    while most + 1 < too_many {
        let middle = most.midpoint(too_many);
        if fits(middle)? { most = middle } else { too_many = middle }
    }
    if most == 0 {
        return Ok((program.clone(), 0));
    }
    let mut program = filled(most)?.programs.swap_remove(0);
    for list in &mut program.lists {
        // What stands behind the update waits with everybody for the norm of the gradient: before it is the same bubble.
        let first = list.iter().position(|i| matches!(i, Instruction::Step { .. })).unwrap_or(list.len());
        let (late, rest): (Vec<_>, Vec<_>) = list.drain(first..).partition(fills);
        list.extend(late.into_iter().chain(rest));
    }
    Ok((program, most))
}

/// K-FAC's work of a stage, its factors in the order of the optimizer's. Costs as [`bessemer_optim::KfacUnit`] has them.
fn stage(job: &Job<'_>, span: &Span) -> KfacStage {
    let tokens = job.shape.tokens() as f64;
    let mut stage = KfacStage::default();
    for spec in span.params(job.model).iter().filter(|p| p.class() == ParamClass::Matrix) {
        let (rows, cols) = spec.matrix();
        let view = Buffer { id: u32::MAX, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols);
        let blocks = OptimParam::of(job.model, spec, view, view).blocks;
        let layer = stage.precondition.len();
        for (n, outputs) in std::iter::once((cols, false)).chain(blocks.iter().map(|b| (*b, true))) {
            let n = n as f64;
            stage.factors.push(KfacFactor {
                layer,
                outputs,
                curvature: 2.0 * tokens * n * n,
                sync: 3.0 * n * n,
                invert: 8.0 / 3.0 * n.powi(3),
            });
        }
        let inputs = cols as f64;
        let direction = |o: f64| 2.0 * o * inputs * (o + inputs) + 2.0 * o * inputs;
        stage.precondition.push(blocks.iter().map(|b| direction(*b as f64)).sum());
    }
    stage
}
