//! Which piece of the state is copied where, when a save is due: a function of model, optimizer, schedule and batch.

use crate::plan::{Timed, costs, no_room, update_begins, wrong};
use bessemer_arch::{ParamSpec, Span};
use bessemer_parallel::{Job, ParallelError, WholeState, whole_states};
use bessemer_schedule::{Fill, Filler, Instruction, Place, Program};
use bessemer_sim::fill::{FillOptions, Unit, When, fill, verify_fill};
use bessemer_sim::simulate;

/// Elements of a piece, unless there would be more than [`MOST_PIECES`].
const PIECE: f64 = 65536.0;
/// Pieces of a rank.
const MOST_PIECES: f64 = 64.0;
/// Floating-point operations that take as long as reading and writing an element: 8 bytes at some 5 GB/s of a core beside
/// some 50 GFLOP/s. Only which bubble a piece stands in depends on it.
const FLOPS_OF_AN_ELEMENT: f64 = 80.0;

/// A program that copies the state.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCopies {
    /// The job's, with the pieces before its update.
    pub program: Program,
    /// By which share such a step is longer than one without, simulated by floating-point operations.
    pub lengthening: f64,
}

/// The job's program with copies of the state in its bubbles ([`crate::plan_snapshot`]). Pieces that fit into no bubble
/// are copied right before the update.
///
/// # Errors
/// A program whose bubbles cannot be planned: none of a pipeline, one without a flush, one filled already.
pub fn plan_copies(job: &Job<'_>) -> Result<PlannedCopies, ParallelError> {
    no_room(job, "copies of the state")?;
    copies(job, &Timed { program: job.program.clone(), costs: costs(job)? })
}

/// `base` with copies of the state.
pub(crate) fn copies(job: &Job<'_>, base: &Timed) -> Result<PlannedCopies, ParallelError> {
    let program = &base.program;
    let units = units(job)?;
    let filled = fill(program, &base.costs, &units, &FillOptions::default()).map_err(wrong)?;
    let mut lists = filled.programs[0].lists.clone();
    let copies = |i: &Instruction| matches!(i, Instruction::Fill(fill) if fill.filler == Filler::Copy);
    for (rank, list) in lists.iter_mut().enumerate() {
        // What is left for later steps, or stands behind the first update, comes before it.
        let behind = list.split_off(update_begins(list));
        let here: Vec<Instruction> = list.iter().copied().filter(copies).collect();
        let mine = units.iter().filter_map(|u| instruction(u, rank));
        list.extend(mine.filter(|i| !here.contains(i)));
        list.extend(behind.into_iter().filter(|i| !copies(i)));
    }
    let copying = Program { lists, ..program.clone() };
    verify_fill(program, &units, std::slice::from_ref(&copying)).map_err(wrong)?;
    let length = simulate(&copying, &filled.costs).map_err(wrong)?.makespan(&copying);
    let lengthening = (length / filled.plain_step - 1.0).max(0.0);
    Ok(PlannedCopies { program: copying, lengthening })
}

fn instruction(unit: &Unit, rank: usize) -> Option<Instruction> {
    let place = unit.places.iter().find(|p| p.rank == rank)?;
    Some(Instruction::Fill(Fill { filler: unit.filler, chunk: place.chunk, unit: unit.number }))
}

/// Pieces of every stage, on the rank that stands for it.
fn units(job: &Job<'_>) -> Result<Vec<Unit>, ParallelError> {
    let program = job.program;
    let spans = job.plan.spans(job.model, program.stages)?;
    let (params, states) = (job.model.params(), whole_states(job.model, job.optim)?);
    let mut units = Vec::new();
    for (stage, span) in spans.iter().enumerate() {
        let place: Place = program.routes[0][stage];
        let elements = elements(job, span, (&params, &states));
        let most = (MOST_PIECES / program.chunks(place.rank) as f64).max(1.0);
        let count = (elements / PIECE).ceil().clamp(1.0, most);
        let time = FLOPS_OF_AN_ELEMENT * elements / count;
        for number in 0..count as usize {
            let (places, filler, when) = (vec![place], Filler::Copy, When::Spread);
            units.push(Unit { places, filler, number, time, when, after: Vec::new() });
        }
    }
    Ok(units)
}

/// About how many elements a rank of a stage copies.
fn elements(job: &Job<'_>, span: &Span, (params, states): (&[ParamSpec], &[WholeState])) -> f64 {
    let values: usize = params.iter().filter(|p| span.owns(p.id)).map(|p| p.len()).sum();
    // A state of no parameter is the first stage's.
    let of_stage = |state: &&WholeState| match state.param {
        Some(number) => span.owns(params[number].id),
        None => span.embedding,
    };
    let state: usize =
        states.iter().filter(of_stage).map(|state| state.shape.iter().product::<usize>()).sum();
    (values as f64 + state as f64 / job.plan.shard() as f64) / job.plan.tensor() as f64
}
