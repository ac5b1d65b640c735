//! Other work in a program's bubbles (Osawa et al. 2023, PipeFisher).
//!
//! A program waits at known places for known times. [`fill`] puts [`Unit`]s of other work there: each into the earliest bubble
//! that begins or goes on after what the unit needs, and in which it fits with a margin. What finds no space in a step goes
//! into the next one, so that a whole set of units takes several steps: the *refresh interval* of K-FAC. Units that are
//! part of every update (K-FAC's preconditioning) stand before the optimizer's step and lengthen it.
//!
//! The order in which units choose: by kind, as [`Filler::ALL`] has them (curvature, its sum over ranks, inversion, the
//! rest), then by when they could begin, then by number. The result depends on program, costs and units alone.
//!
//! A unit for which every bubble is too short, however empty, is put into its rank's longest one all the same
//! ([`Filled::forced`]), at most one in a step; the step is longer then.

mod bubbles;
mod kfac;
mod verify;
mod write;

pub use kfac::{KfacFactor, KfacStage, Operands, curvature_number, kfac_units};
pub use verify::verify_fill;

use crate::{Costs, SimError, Step, Timeline, simulate};
use bessemer_schedule::{Fill, Filler, Instruction, Place, Program};
use bubbles::Bubbles;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How often a unit is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// In every step, before the rank's first step of the optimizer.
    Update,
    /// In every step, in a bubble.
    EveryStep,
    /// Once in the steps that all units take together.
    Spread,
}

/// Condition that a unit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// An instruction of the program, on the unit's rank; of the first step, for units that are spread over several.
    Instruction(Step),
    /// The end of the first step, when it is known whether its gradients are good.
    EndOfStep,
    /// Another unit, by its number in the list: on the same rank, or of an evaluation micro-batch in the stage before.
    Unit(usize),
}

/// A piece of other work.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// Where: one place, or all those that do it together (holders of one stage).
    pub places: Vec<Place>,
    /// Kind of work.
    pub filler: Filler,
    /// Number among the units of its kind and place.
    pub number: usize,
    /// How long it takes.
    pub time: f64,
    /// How often.
    pub when: When,
    /// Conditions before it.
    pub after: Vec<Need>,
}

/// How bubbles are filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FillOptions {
    /// Share of a unit's time that its bubble must have space for besides: so much slower may all units be without making
    /// a step longer.
    pub margin: f64,
}

impl Default for FillOptions {
    /// The 5% of the paper's program.
    fn default() -> FillOptions {
        FillOptions { margin: 0.05 }
    }
}

/// A program with its bubbles filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    /// One a step; after the last comes the first again. There are as many as the refresh interval has steps.
    pub programs: Vec<Program>,
    /// The program's costs with those of the units.
    pub costs: Costs,
    /// When everything happens, by step.
    pub timelines: Vec<Timeline>,
    /// For each unit the step in which it is done; 0 for those of every step.
    pub step_of: Vec<usize>,
    /// Units that fitted nowhere.
    pub forced: usize,
    /// Length of a step without any unit.
    pub plain_step: f64,
    /// Length of a step with the units of the update only.
    pub base_step: f64,
    /// Mean length of a step where nothing is filled and every rank does its units of a refresh at the end of the steps,
    /// shared out over them evenly.
    pub serial_step: f64,
    /// Length of each step.
    pub steps: Vec<f64>,
    /// Share of the ranks' time in which they work, without any unit.
    pub utilisation_before: f64,
    /// The same with all units.
    pub utilisation_after: f64,
}

impl Filled {
    /// Steps that all units take together.
    pub fn interval(&self) -> usize {
        self.programs.len()
    }

    /// By which share the longest step is longer than one with the units of the update only.
    pub fn lengthening(&self) -> f64 {
        let longest = self.steps.iter().copied().fold(0.0, f64::max);
        if self.base_step > 0.0 { (longest / self.base_step - 1.0).max(0.0) } else { 0.0 }
    }
}

/// Differences of times below this share of a step are rounding.
const ROUNDING: f64 = 1e-9;
/// Most steps over which units are spread: more is a mistake in the times.
const MOST_STEPS: usize = 1 << 14;

/// Puts units into the bubbles of a program with one update.
///
/// # Errors
/// [`SimError::Unit`] for units that name what is not there, are there twice or wait for each other; what [`simulate`] says
/// of program and costs.
pub fn fill(
    program: &Program,
    costs: &Costs,
    units: &[Unit],
    options: &FillOptions,
) -> Result<Filled, SimError> {
    let costs = check(program, costs, units, options)?;
    let plain = simulate(program, &costs)?;
    let base = write::with_updates(program, units);
    let timeline = simulate(&base.program, &costs)?;
    let mut bubbles = Bubbles::new(&base.program, &timeline);
    let mut planner = Planner { units, base: &base, timeline: &timeline, options, forced: 0 };
    let mut step_of = vec![0; units.len()];
    planner.place(&mut bubbles, When::EveryStep, &mut step_of)?;
    bubbles.begin_steps();
    planner.place(&mut bubbles, When::Spread, &mut step_of)?;
    bubbles.trim();
    let forced = planner.forced;
    let programs = write::programs(&base.program, units, &bubbles);
    let timelines: Vec<Timeline> = programs.iter().map(|p| simulate(p, &costs)).collect::<Result<_, _>>()?;
    let ranks = program.ranks();
    let steps: Vec<f64> = programs.iter().zip(&timelines).map(|(p, t)| t.makespan(p)).collect();
    let busy = |p: &Program, t: &Timeline| (0..ranks).map(|r| t.busy(p, r)).sum::<f64>();
    let worked: f64 = programs.iter().zip(&timelines).map(|(p, t)| busy(p, t)).sum();
    let share = |work: f64, time: f64| if time > 0.0 { work / (ranks as f64 * time) } else { 1.0 };
    let (plain_step, base_step) = (plain.makespan(program), timeline.makespan(&base.program));
    Ok(Filled {
        serial_step: base_step + serial(units, ranks, programs.len()),
        utilisation_before: share(busy(program, &plain), plain_step),
        utilisation_after: share(worked, steps.iter().sum()),
        programs,
        costs,
        timelines,
        step_of,
        forced,
        plain_step,
        base_step,
        steps,
    })
}

/// What the busiest rank's units add to a step where they wait for its end.
fn serial(units: &[Unit], ranks: usize, interval: usize) -> f64 {
    let mut time = vec![0.0; ranks];
    for unit in units {
        let share = match unit.when {
            When::Update => 0.0,
            When::EveryStep => 1.0,
            When::Spread => 1.0 / interval as f64,
        };
        for place in &unit.places {
            time[place.rank] += share * unit.time;
        }
    }
    time.into_iter().fold(0.0, f64::max)
}

fn wrong(unit: usize, what: impl Into<String>) -> SimError {
    SimError::Unit { unit, what: what.into() }
}

/// Whether units name what is there; the costs with theirs.
fn check(program: &Program, costs: &Costs, units: &[Unit], options: &FillOptions) -> Result<Costs, SimError> {
    costs.check(program)?;
    crate::error::time(|| "the margin of a bubble".into(), options.margin)?;
    if program.updates != 1 {
        return Err(wrong(
            0,
            format!(
                "schedule {:?} has {} updates and no end of a step: take one with a flush",
                program.name, program.updates
            ),
        ));
    }
    let mut costs = costs.clone();
    for (number, unit) in units.iter().enumerate() {
        crate::error::time(|| format!("the time of unit {number}"), unit.time)?;
        let Some(first) = unit.places.first() else { return Err(wrong(number, "it has no place")) };
        for place in &unit.places {
            let stage = program.stage_at(*place);
            if place.rank >= program.ranks() || stage.is_none() {
                let Place { rank, chunk } = place;
                return Err(wrong(number, format!("there is no chunk {chunk} on a rank {rank}")));
            }
            if stage != program.stage_at(*first) {
                return Err(wrong(number, "its places hold different stages"));
            }
            let fill = Fill { filler: unit.filler, chunk: place.chunk, unit: unit.number };
            if costs.units.insert((place.rank, fill), unit.time).is_some() {
                return Err(wrong(number, format!("{} is there twice", Instruction::Fill(fill))));
            }
        }
        if unit.places.len() > 1 && !matches!(unit.filler, Filler::SyncCurvature | Filler::Invert) {
            return Err(wrong(number, "several places can only add curvature up together, or invert it"));
        }
        for need in &unit.after {
            needs(program, units, number, need)?;
        }
    }
    Ok(costs)
}

/// Whether a need can be waited for.
fn needs(program: &Program, units: &[Unit], number: usize, need: &Need) -> Result<(), SimError> {
    let unit = &units[number];
    let has = |rank: usize| unit.places.iter().any(|p| p.rank == rank);
    match need {
        Need::EndOfStep if unit.when == When::Spread => Ok(()),
        Need::EndOfStep => Err(wrong(number, "it waits for the end of a step, in every step")),
        Need::Instruction(step) => {
            let there = program.lists.get(step.rank).is_some_and(|list| step.index < list.len());
            match there && has(step.rank) {
                true => Ok(()),
                false => {
                    let Step { rank, index } = step;
                    Err(wrong(number, format!("it waits for instruction {index} of rank {rank}")))
                }
            }
        }
        Need::Unit(other) => {
            let Some(before) = units.get(*other) else {
                return Err(wrong(number, format!("it waits for unit {other}, which is not there")));
            };
            let near = before.places.iter().any(|p| has(p.rank));
            let chain = unit.filler == Filler::Evaluate && before.filler == Filler::Evaluate;
            if !near && !chain {
                return Err(wrong(number, format!("it waits for unit {other} of another rank")));
            }
            if before.when != unit.when {
                return Err(wrong(number, format!("it waits for unit {other}, which is not done as often")));
            }
            Ok(())
        }
    }
}

/// Times in an order; none of them is not a number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct Planner<'a> {
    units: &'a [Unit],
    base: &'a write::Base,
    timeline: &'a Timeline,
    options: &'a FillOptions,
    forced: usize,
}

impl Planner<'_> {
    /// Places all units of one sort.
    fn place(&mut self, bubbles: &mut Bubbles, when: When, step_of: &mut [usize]) -> Result<(), SimError> {
        let mine: Vec<usize> = (0..self.units.len()).filter(|u| self.units[*u].when == when).collect();
        let mut waits = vec![0usize; self.units.len()];
        let mut followers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut ready = vec![0.0f64; self.units.len()];
        let mut queue = BinaryHeap::new();
        for &unit in &mine {
            for need in &self.units[unit].after {
                match need {
                    Need::Instruction(step) => ready[unit] = ready[unit].max(self.end_of(*step)),
                    Need::EndOfStep => ready[unit] = ready[unit].max(bubbles.length),
                    Need::Unit(other) => {
                        waits[unit] += 1;
                        followers.entry(*other).or_default().push(unit);
                    }
                }
            }
            if waits[unit] == 0 {
                queue.push(Reverse((self.units[unit].filler, Time(ready[unit]), unit)));
            }
        }
        while let Some(Reverse((_, Time(from), number))) = queue.pop() {
            let unit = &self.units[number];
            let ranks: Vec<usize> = unit.places.iter().map(|p| p.rank).collect();
            let room = unit.time * (1.0 + self.options.margin);
            let (step, end) = match bubbles.find(&ranks, from, room) {
                Some(at) => bubbles.take(&ranks, at, (unit.time, room), number),
                None => {
                    self.forced += 1;
                    bubbles.force(&ranks, from, number)
                }
            };
            if step >= MOST_STEPS {
                return Err(wrong(number, format!("more than {MOST_STEPS} steps go by before it is done")));
            }
            step_of[number] = step;
            for &next in followers.get(&number).into_iter().flatten() {
                ready[next] = ready[next].max(end);
                waits[next] -= 1;
                if waits[next] == 0 {
                    queue.push(Reverse((self.units[next].filler, Time(ready[next]), next)));
                }
            }
        }
        match mine.into_iter().find(|u| waits[*u] > 0) {
            Some(stuck) => Err(wrong(stuck, "it waits for a unit that waits for it")),
            None => Ok(()),
        }
    }

    /// When an instruction of the program ends in the first step.
    fn end_of(&self, step: Step) -> f64 {
        self.timeline.intervals[step.rank][self.base.moved[step.rank][step.index]].end
    }
}
