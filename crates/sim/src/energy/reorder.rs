//! Other orders of the same work, in which bubbles come right after work that nothing waits for.

use super::{Filled, Profile, fill_slack};
use crate::{Costs, SimError, peak_live, simulate};
use bessemer_schedule::{Instruction, Program};
use std::ops::Range;

/// Instructions that may be looked at in all tries together.
const EFFORT: usize = 40_000_000;

/// The best order that was found.
pub(super) struct Found {
    pub(super) program: Program,
    pub(super) best: Filled,
    pub(super) moves: usize,
}

/// A pass with the receives before it and the sends after it.
struct Unit {
    range: Range<usize>,
    work: usize,
}

/// Exchanges a unit before a bubble with the one before it, wherever that saves energy, keeps the step as short and no
/// rank's peak of activations rises; until nothing helps or the effort is spent. Passes of one micro-batch keep their
/// order, and so does everything around an update.
pub(super) fn improve(
    program: &Program,
    costs: &Costs,
    profile: &Profile,
    limit: f64,
    pending_share: f64,
    best: Filled,
) -> Result<Found, SimError> {
    let instructions: usize = program.lists.iter().map(Vec::len).sum();
    let mut tries = EFFORT / (instructions.max(1) * (profile.clocks.len() + 4));
    let peak = peak_live(program, pending_share);
    let mut found = Found { program: program.clone(), best, moves: 0 };
    loop {
        let before = found.moves;
        for (rank, &peak) in peak.iter().enumerate() {
            let mut at = 0;
            while let Some((first, second)) = candidate(&found, costs, rank, at)? {
                at = second.work;
                if tries == 0 {
                    return Ok(found);
                }
                tries -= 1;
                let list = &found.program.lists[rank];
                let exchanged = [&list[second.range.clone()], &list[first.range.clone()]].concat();
                let mut other = found.program.clone();
                other.lists[rank].splice(first.range.start..second.range.end, exchanged);
                if peak_live(&other, pending_share)[rank] > peak {
                    continue;
                }
                // An order that makes the step longer even at full clocks, or stops it, is no candidate.
                let Ok(timeline) = simulate(&other, costs) else { continue };
                if timeline.makespan(&other) > limit * (1.0 + 1e-9) {
                    continue;
                }
                let filled = fill_slack(&other, costs, profile, limit)?;
                if filled.energy < found.best.energy * (1.0 - 1e-9) {
                    found = Found { program: other, best: filled, moves: found.moves + 1 };
                }
            }
        }
        if found.moves == before {
            return Ok(found);
        }
    }
}

/// The next pair of units on a rank, behind position `after`, whose second is followed by a bubble at full clocks.
fn candidate(
    found: &Found,
    costs: &Costs,
    rank: usize,
    after: usize,
) -> Result<Option<(Unit, Unit)>, SimError> {
    let timeline = simulate(&found.program, costs)?;
    let list = &found.program.lists[rank];
    let units = units(list);
    for (at, pair) in units.windows(2).enumerate() {
        let (first, second) = (&pair[0], &pair[1]);
        if second.work <= after
            || first.range.end != second.range.start
            || related(list, first.work, second.work)
        {
            continue;
        }
        let end = timeline.intervals[rank][second.work].end;
        let next = units.get(at + 2).map(|u| timeline.intervals[rank][u.work].start);
        if next.is_none_or(|start| start > end) {
            let copy = |u: &Unit| Unit { range: u.range.clone(), work: u.work };
            return Ok(Some((copy(first), copy(second))));
        }
    }
    Ok(None)
}

/// Whether two passes have a micro-batch in common: then one may need the other.
fn related(list: &[Instruction], a: usize, b: usize) -> bool {
    list[a].passes().any(|p| list[b].passes().any(|q| p.micro == q.micro))
}

/// A list's passes with their messages.
fn units(list: &[Instruction]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut start = 0;
    for (index, instruction) in list.iter().enumerate() {
        match instruction {
            Instruction::Receive { .. } => {}
            Instruction::Send { .. } => {
                // What a pass made goes out behind it.
                if let Some(last) = units.last_mut().filter(|u| u.range.end == index) {
                    last.range.end = index + 1;
                }
                start = index + 1;
            }
            _ if instruction.passes().next().is_some() => {
                units.push(Unit { range: start..index + 1, work: index });
                start = index + 1;
            }
            _ => start = index + 1,
        }
    }
    units
}
