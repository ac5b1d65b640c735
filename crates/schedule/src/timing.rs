//! When each pass of a program happens, from given durations: what a generator needs to compare orders. The simulator
//! (`bessemer-sim`) is the instrument for everything else.

use crate::communicate::Map;
use crate::{Instruction, Program, ScheduleError};

/// Start of a rank's first pass and end of its last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) first: f64,
    pub(crate) last: f64,
}

/// The span of each rank, or nothing where the passes wait for each other in a circle. A pass starts when its rank is free
/// and its input there; a message takes `message` and occupies nobody.
pub(crate) fn spans(
    program: &Program,
    cost: impl Fn(&Instruction) -> f64,
    message: f64,
) -> Result<Option<Vec<Span>>, ScheduleError> {
    let map = Map::of(program)?;
    let stages = program.stages;
    // End of each forward, then of each backward, by micro-batch and stage; a negative number says who waits for it.
    let backwards = program.micro_batches() * stages;
    let mut end = vec![f64::NAN; 2 * backwards];
    let mut waiting = vec![usize::MAX; 2 * backwards];
    let mut next = vec![0; program.ranks()];
    let mut span = vec![Span { first: f64::NAN, last: 0.0 }; program.ranks()];
    let mut ready: Vec<usize> = (0..program.ranks()).rev().collect();
    while let Some(rank) = ready.pop() {
        'rank: while let Some(instruction) = program.lists[rank].get(next[rank]) {
            let mut start = span[rank].last;
            let mut makes = [None; 2];
            for (slot, pass) in instruction.passes().enumerate() {
                let wrong = |what| instruction.error(rank, next[rank], what);
                let stage = map.stage_of_pass(program, rank, pass).map_err(wrong)?;
                let at = pass.micro * stages + stage;
                let forward = slot == 0 && !is_backward(instruction);
                makes[slot] = match instruction {
                    Instruction::BackwardWeight(_) => None,
                    _ if forward => Some(at),
                    _ => Some(backwards + at),
                };
                let needs = match instruction {
                    Instruction::BackwardWeight(_) => [Some(backwards + at), None],
                    _ if forward => [(stage > 0).then(|| at - 1), None],
                    _ => [Some(at), (stage + 1 < stages).then(|| backwards + at + 1)],
                };
                for need in needs.into_iter().flatten() {
                    if end[need].is_nan() {
                        waiting[need] = rank;
                        break 'rank;
                    }
                    let maker = program.place(pass.micro, need % stages).rank;
                    start = start.max(end[need] + if maker == rank { 0.0 } else { message });
                }
            }
            let finish = start + cost(instruction);
            for made in makes.into_iter().flatten() {
                end[made] = finish;
                if waiting[made] != usize::MAX {
                    ready.push(std::mem::replace(&mut waiting[made], usize::MAX));
                }
            }
            if instruction.passes().next().is_some() {
                if span[rank].first.is_nan() {
                    span[rank].first = start;
                }
                span[rank].last = finish;
            }
            next[rank] += 1;
        }
    }
    let finished = next.iter().zip(&program.lists).all(|(&next, list)| next == list.len());
    Ok(finished.then_some(span))
}

fn is_backward(instruction: &Instruction) -> bool {
    !matches!(instruction, Instruction::Forward(_) | Instruction::Together { .. })
}

/// Last end over all ranks minus first start over all.
pub(crate) fn makespan(spans: &[Span]) -> f64 {
    let first = spans.iter().map(|s| s.first).fold(f64::INFINITY, f64::min);
    let last = spans.iter().map(|s| s.last).fold(0.0, f64::max);
    last - first
}
