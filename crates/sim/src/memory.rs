//! What a rank holds while it works: activations, and versions of the weights.

use crate::visits;
use bessemer_schedule::{Instruction, Pass, Place, Program};
use std::collections::BTreeMap;

/// What instructions do to a rank's live activations, in units of what one micro-batch leaves on the rank (M_B): each
/// chunk that a micro-batch visits holds its share of it. A forward adds; the backward takes away, and its input part
/// leaves `pending_share` of it until the weight part. Gives for each instruction the amount while it runs.
pub fn live_over_time(program: &Program, rank: usize, pending_share: f64) -> Vec<f64> {
    let share: Vec<f64> =
        (0..program.chunks(rank)).map(|chunk| 1.0 / visits(program, Place { rank, chunk }) as f64).collect();
    let unit = |p: &Pass| share[p.chunk];
    let mut live = 0.0f64;
    let mut all = Vec::with_capacity(program.lists[rank].len());
    for instruction in &program.lists[rank] {
        let (adds, frees) = match instruction {
            Instruction::Forward(p) => (unit(p), 0.0),
            Instruction::Backward(p) => (0.0, unit(p)),
            Instruction::BackwardInput(p) => (0.0, unit(p) * (1.0 - pending_share)),
            Instruction::BackwardWeight(p) => (0.0, unit(p) * pending_share),
            Instruction::Together { forward, backward } => (unit(forward), unit(backward)),
            _ => (0.0, 0.0),
        };
        live += adds;
        all.push(live);
        live -= frees;
    }
    all
}

/// Largest amount of live activations of each rank; see [`live_over_time`].
pub fn peak_live(program: &Program, pending_share: f64) -> Vec<f64> {
    let peak = |rank| live_over_time(program, rank, pending_share).into_iter().fold(0.0, f64::max);
    // Thirds of chunks do not add up exactly; nothing real is that small.
    (0..program.ranks()).map(|rank| (peak(rank) * 1e9).round() / 1e9).collect()
}

/// Most versions of a chunk's weights that each rank keeps at once: the latest, and older ones that a pass is still to
/// read. 1 in synchronous schedules.
pub fn weight_versions(program: &Program) -> Vec<usize> {
    program.lists.iter().map(|list| versions(list)).collect()
}

fn passes(instruction: &Instruction) -> [Option<&Pass>; 2] {
    match instruction {
        Instruction::Forward(p) | Instruction::Backward(p) | Instruction::BackwardInput(p) => [Some(p), None],
        Instruction::Together { forward, backward } => [Some(forward), Some(backward)],
        // The weight part multiplies activations with gradients; it reads no weights.
        _ => [None, None],
    }
}

fn versions(list: &[Instruction]) -> usize {
    let mut last_read = BTreeMap::new();
    for (index, instruction) in list.iter().enumerate() {
        for pass in passes(instruction).into_iter().flatten() {
            last_read.insert((pass.chunk, pass.version), index);
        }
    }
    let mut most = 1;
    for (index, instruction) in list.iter().enumerate() {
        if let Instruction::Step { chunk, update } = instruction {
            let older = last_read.range((*chunk, 0)..=(*chunk, *update)).filter(|(_, last)| **last > index);
            most = most.max(older.count() + 1);
        }
    }
    most
}

/// Stages' weights that each rank holds, in units of its part of the model (S/P stages): 2 where two directions are
/// held (Chimera, DualPipe). Versions come on top.
pub fn weight_copies(program: &Program) -> Vec<f64> {
    let held = |rank| program.chunks(rank) as f64;
    (0..program.ranks()).map(|rank| held(rank) * program.ranks() as f64 / program.stages as f64).collect()
}
