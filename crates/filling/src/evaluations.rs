//! Which batch is evaluated where: as many as fit into the bubbles of one step.

use crate::plan::{Timed, costs, fills, no_room, times, update_begins, wrong};
use bessemer_parallel::{Job, ParallelError};
use bessemer_schedule::{Filler, Instruction, Program};
use bessemer_sim::fill::{FillOptions, Need, Unit, When, fill, verify_fill};

/// The job's program with batches that are evaluated in its bubbles, at most `wanted` of them: as many as fit into one step
/// without making it longer, by floating-point operations. They read the weights that the step begins with, and take a slot
/// of activations where one is free, else one more. How many there are.
///
/// # Errors
/// A program that cannot evaluate: none of a pipeline, one without a flush, one filled already.
pub fn plan_evaluations(job: &Job<'_>, wanted: usize) -> Result<(Program, usize), ParallelError> {
    no_room(job, "evaluations")?;
    let base = Timed { program: job.program.clone(), costs: costs(job)? };
    let (planned, count) = evaluations(job, &base, wanted)?;
    Ok((planned.program, count))
}

/// `base` with as many of `wanted` batches as its bubbles have space for, and how many these are.
pub(crate) fn evaluations(
    job: &Job<'_>,
    base: &Timed,
    wanted: usize,
) -> Result<(Timed, usize), ParallelError> {
    let program = &base.program;
    let times = times(job, &job.plan.spans(job.model, program.stages)?);
    let units = |count: usize| {
        let mut units: Vec<Unit> = Vec::new();
        for number in 0..count {
            for (stage, place) in program.routes[0].iter().enumerate() {
                let after = if stage > 0 { vec![Need::Unit(units.len() - 1)] } else { Vec::new() };
                let (places, filler, when) = (vec![*place], Filler::Evaluate, When::Spread);
                units.push(Unit { places, filler, number, time: times[stage].forward, when, after });
            }
        }
        units
    };
    let filled = |units: &[Unit]| fill(program, &base.costs, units, &FillOptions::default()).map_err(wrong);
    let fits = |count: usize| filled(&units(count)).map(|f| f.interval() == 1 && f.forced == 0);
    let (mut most, mut too_many) = (0, wanted + 1);
    while most + 1 < too_many {
        let middle = most.midpoint(too_many);
        if fits(middle)? { most = middle } else { too_many = middle }
    }
    if most == 0 {
        return Ok((base.clone(), 0));
    }
    let units = units(most);
    let mut filled = filled(&units)?;
    let mut evaluating = filled.programs.swap_remove(0);
    for list in &mut evaluating.lists {
        // What stands behind the update waits with everybody for the norm of the gradient: before it is the same bubble.
        let (late, rest): (Vec<_>, Vec<_>) =
            list.drain(update_begins(list)..).partition(|i: &Instruction| fills(i) && !i.is_update());
        list.extend(late.into_iter().chain(rest));
    }
    verify_fill(program, &units, std::slice::from_ref(&evaluating)).map_err(wrong)?;
    Ok((Timed { program: evaluating, costs: filled.costs }, most))
}
