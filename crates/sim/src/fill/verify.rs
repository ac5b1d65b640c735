//! The verifier of filled programs: holds the lists against the program without units and against what each unit needs, whoever
//! placed them.
//!
//! | refused | because |
//! |---|---|
//! | an instruction of the program that is missing, or in another order | filling changes no step |
//! | a unit that is missing or there twice | the interval does each unit once, and each step those of every step |
//! | a unit before what it needs, or in different steps on its ranks | it would read what is not made yet, or wait for ever |
//! | a unit of the update among the passes, or another one after them | the gradients are complete at one moment only |
//! | a copy behind a unit that changes the state | a checkpoint holds the state between two steps |
//! | ranks that wait for each other | as [`simulate`] finds |

use super::write::instruction;
use super::{Need, Unit, When, wrong};
use crate::{Costs, PassTimes, SimError, simulate};
use bessemer_schedule::{Fill, Filler, Instruction, Program};
use std::collections::HashMap;

/// Where a unit stands in a list: the step of the interval, and the position.
type Stands = (usize, usize);

/// Checks the programs of an interval, one a step, against the program that they were made from and the units put into its bubbles.
///
/// # Errors
/// [`SimError::Unit`] for a unit that stands in the wrong place, [`SimError::Filled`] for a list that is wrong besides units.
pub fn verify_fill(base: &Program, units: &[Unit], interval: &[Program]) -> Result<(), SimError> {
    let costs = Costs::per_rank(base, &PassTimes::new(1.0, 1.0, 1.0));
    let mut at: HashMap<(usize, Fill), Vec<Stands>> = HashMap::new();
    let mut own: HashMap<(usize, Fill), usize> = HashMap::new();
    for (number, unit) in units.iter().enumerate() {
        for place in &unit.places {
            if let Some(Instruction::Fill(fill)) = instruction(unit, place.rank) {
                own.insert((place.rank, fill), number);
            }
        }
    }
    for (step, program) in interval.iter().enumerate() {
        for (rank, list) in program.lists.iter().enumerate() {
            check_list(base, (step, rank), list, &own, &mut at)?;
        }
        simulate(program, &costs)?;
    }
    let stands = |rank: usize, unit: &Unit| -> &[Stands] {
        match instruction(unit, rank) {
            Some(Instruction::Fill(fill)) => at.get(&(rank, fill)).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    };
    // Where the instructions of the program stand in each step.
    let moved: Vec<Vec<Vec<usize>>> = interval.iter().map(|p| positions(p, &own)).collect();
    for (number, unit) in units.iter().enumerate() {
        let mut steps = None;
        for place in &unit.places {
            let here = stands(place.rank, unit);
            let wanted = if unit.when == When::Spread { 1 } else { interval.len() };
            let each = here.iter().map(|(step, _)| *step).collect::<Vec<_>>();
            let once = each.windows(2).all(|pair| pair[0] < pair[1]);
            if here.len() != wanted || !once {
                let found = here.len();
                return Err(wrong(
                    number,
                    format!("it occurs {found} times in the interval, wanted {wanted}"),
                ));
            }
            if *steps.get_or_insert_with(|| each.clone()) != each {
                return Err(wrong(number, "its ranks do it in different steps"));
            }
            for (step, position) in here {
                for need in &unit.after {
                    needed(units, (number, place.rank), need, (*step, *position), &stands, &moved)?;
                }
            }
        }
    }
    Ok(())
}

/// Checks one list and notes where its units stand.
fn check_list(
    base: &Program,
    (step, rank): (usize, usize),
    list: &[Instruction],
    own: &HashMap<(usize, Fill), usize>,
    at: &mut HashMap<(usize, Fill), Vec<Stands>>,
) -> Result<(), SimError> {
    let filled = |what: String| Err(SimError::Filled { step, rank, what });
    let unit_of = |i: &Instruction| match i {
        Instruction::Fill(fill) => own.get(&(rank, *fill)).copied(),
        _ => None,
    };
    let rest: Vec<Instruction> = list.iter().filter(|i| unit_of(i).is_none()).copied().collect();
    let wanted = base.lists.get(rank).map_or(&[][..], Vec::as_slice);
    if let Some(index) = (0..rest.len().max(wanted.len())).find(|i| rest.get(*i) != wanted.get(*i)) {
        let name = |i: Option<&Instruction>| i.map_or("the end".to_owned(), ToString::to_string);
        let (found, wanted) = (name(rest.get(index)), name(wanted.get(index)));
        return filled(format!("besides units {found} stands where the program has {wanted}"));
    }
    let (mut update, mut stepped, mut changed) = (false, false, None);
    for (position, instruction) in list.iter().enumerate() {
        if let Some(number) = unit_of(instruction) {
            let Instruction::Fill(fill) = instruction else { continue };
            at.entry((rank, *fill)).or_default().push((step, position));
            if stepped || update && !instruction.is_update() {
                return Err(wrong(number, "it comes after the beginning of the update"));
            }
        }
        update |= instruction.is_update();
        stepped |= matches!(instruction, Instruction::Step { .. });
        if update && matches!(instruction, Instruction::Reduce { .. }) {
            return filled(format!("{instruction} stands behind the beginning of the update"));
        }
        match instruction {
            Instruction::Fill(fill) if fill.filler == Filler::Copy => {
                if let Some(before) = changed {
                    return filled(format!(
                        "{instruction} copies the state behind {before}, which changes it"
                    ));
                }
            }
            Instruction::Fill(fill) if fill.filler.changes_state() => changed = Some(*instruction),
            _ => {}
        }
    }
    Ok(())
}

/// By rank: positions of the instructions that are no units.
fn positions(program: &Program, own: &HashMap<(usize, Fill), usize>) -> Vec<Vec<usize>> {
    let of = |(rank, list): (usize, &Vec<Instruction>)| {
        let base = |(_, i): &(usize, &Instruction)| match i {
            Instruction::Fill(fill) => !own.contains_key(&(rank, *fill)),
            _ => true,
        };
        list.iter().enumerate().filter(base).map(|(position, _)| position).collect()
    };
    program.lists.iter().enumerate().map(of).collect()
}

/// Whether what a unit needs comes before it.
fn needed<'a>(
    units: &[Unit],
    (number, rank): (usize, usize),
    need: &Need,
    at: Stands,
    stands: &impl Fn(usize, &Unit) -> &'a [Stands],
    moved: &[Vec<Vec<usize>>],
) -> Result<(), SimError> {
    let unit = &units[number];
    match need {
        Need::EndOfStep if at.0 > 0 => Ok(()),
        Need::EndOfStep => Err(wrong(number, "it is in the first step, for whose end it waits")),
        Need::Instruction(step) if step.rank != rank => Ok(()),
        Need::Instruction(step) => {
            // Of the first step, for units that are spread; else of each step.
            let of = if unit.when == When::Spread { 0 } else { at.0 };
            let before = moved[of][rank].get(step.index).is_some_and(|position| (of, *position) < at);
            if before { Ok(()) } else { Err(wrong(number, "it comes before the instruction that it needs")) }
        }
        Need::Unit(other) => {
            let before = &units[*other];
            let here = before.places.iter().any(|place| place.rank == rank);
            // A batch comes from another rank by a message, for which the simulation has waited; the step must be the same.
            let ok = |other: &Stands| if here { *other < at } else { other.0 <= at.0 };
            let other_rank = if here { rank } else { before.places[0].rank };
            let place = stands(other_rank, before);
            let fits = match unit.when {
                When::Spread => place.iter().all(ok),
                _ => place.iter().filter(|other| other.0 == at.0).all(ok),
            };
            if fits {
                Ok(())
            } else {
                Err(wrong(number, format!("it comes before unit {other}, which it needs")))
            }
        }
    }
}
