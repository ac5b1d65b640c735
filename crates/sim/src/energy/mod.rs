//! Which work may run at a lower clock: EnvPipe (Choi et al., ATC 2023) and Perseus (Chung et al., arXiv 2312.06902).
//!
//! Some work of a pipeline is followed by a bubble. Run slower, until the bubble is filled, it takes less energy (power
//! falls faster than time grows) and the step takes no longer. [`plan`] finds such work with a [`Profile`] of what clocks
//! cost:
//! 1. instructions are reordered so that bubbles come right after work that nothing else waits for;
//! 2. work off the critical path gets lower clocks until its slack is filled;
//! 3. where the simulated step then takes longer than allowed, clocks on its critical path are raised again.
//!
//! What the plan saves is a prediction from the simulation: without control over clocks it says what is attainable.
//! [`ClockControl`] is how a run applies it.

mod control;
mod profile;
mod reorder;
mod slack;

pub use control::{ClockControl, ClockError, Recorder};
pub use profile::{Clock, Effect, Profile, ProfileError};

use crate::simulate::simulate_stretched;
use crate::timeline::is_work;
use crate::{Costs, SimError, Timeline, simulate};
use bessemer_schedule::Program;
use slack::Graph;

/// Limits of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Most that the step may take longer, as a share of it.
    pub slowdown: f64,
    /// Whether instructions may change places.
    pub reorder: bool,
    /// What of a micro-batch's activations stays until the weight part: reordering does not raise any rank's peak.
    pub pending_share: f64,
}

impl Default for Options {
    /// Not a moment longer, in another order.
    fn default() -> Options {
        Options { slowdown: 0.0, reorder: true, pending_share: 0.5 }
    }
}

/// Time and energy of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Last end minus first start, in the unit of the costs.
    pub makespan: f64,
    /// Of all ranks: watts times the unit of the costs.
    pub energy: f64,
    /// The part of it that ranks take while they wait.
    pub idle_energy: f64,
}

/// Clocks for a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The program, perhaps in another order.
    pub program: Program,
    /// For each instruction the index of its clock in [`Profile::clocks`]; 0 is the highest.
    pub clocks: Vec<Vec<usize>>,
    /// When everything happens at these clocks.
    pub timeline: Timeline,
    /// The program as it was, at the highest clock.
    pub before: Prediction,
    /// The plan.
    pub after: Prediction,
    /// Instructions that changed places.
    pub moves: usize,
}

impl Plan {
    /// Share of the energy that the plan saves.
    pub fn saving(&self) -> f64 {
        if self.before.energy > 0.0 { 1.0 - self.after.energy / self.before.energy } else { 0.0 }
    }

    /// Applies what a rank's instruction needs; call it before each. Asks the control only when the clock changes.
    ///
    /// # Errors
    /// Clocks that the control sets.
    pub fn apply(
        &self,
        profile: &Profile,
        rank: usize,
        index: usize,
        control: &mut dyn ClockControl,
    ) -> Result<(), ClockError> {
        let list = &self.program.lists[rank];
        if !is_work(&list[index]) {
            return Ok(());
        }
        let clock = self.clocks[rank][index];
        let before = (0..index).rev().find(|i| is_work(&list[*i])).map(|i| self.clocks[rank][i]);
        if before == Some(clock) {
            return Ok(());
        }
        control.set(rank, profile.clocks[clock].mhz)
    }
}

/// Plans clocks for a program.
///
/// # Errors
/// [`SimError`] as of [`simulate`].
pub fn plan(
    program: &Program,
    costs: &Costs,
    profile: &Profile,
    options: &Options,
) -> Result<Plan, SimError> {
    let timeline = simulate(program, costs)?;
    let highest: Vec<Vec<usize>> = program.lists.iter().map(|l| vec![0; l.len()]).collect();
    let before = predict(program, &timeline, profile, &highest);
    let limit = before.makespan * (1.0 + options.slowdown);
    let mut best = fill_slack(program, costs, profile, limit)?;
    let mut moves = 0;
    let mut ordered = program.clone();
    if options.reorder {
        let found = reorder::improve(program, costs, profile, limit, options.pending_share, best)?;
        (ordered, best, moves) = (found.program, found.best, found.moves);
    }
    let after = predict(&ordered, &best.timeline, profile, &best.clocks);
    Ok(Plan { program: ordered, clocks: best.clocks, timeline: best.timeline, before, after, moves })
}

/// Clocks and what comes of them.
#[derive(Debug, Clone)]
struct Filled {
    clocks: Vec<Vec<usize>>,
    timeline: Timeline,
    energy: f64,
}

/// Energy of a timeline whose instructions have these clocks.
fn predict(program: &Program, timeline: &Timeline, profile: &Profile, clocks: &[Vec<usize>]) -> Prediction {
    let makespan = timeline.makespan(program);
    let (mut energy, mut busy) = (0.0, 0.0);
    for (rank, clocks) in clocks.iter().enumerate() {
        for (index, instruction, t) in timeline.work(program, rank) {
            energy += profile.effect(clocks[index], instruction).watts * t.length();
            busy += t.length();
        }
    }
    let idle_energy = profile.idle_watts * (program.ranks() as f64 * makespan - busy).max(0.0);
    Prediction { makespan, energy: energy + idle_energy, idle_energy }
}

fn factors(program: &Program, profile: &Profile, clocks: &[Vec<usize>]) -> Vec<Vec<f64>> {
    let row = |(list, clocks): (&Vec<_>, &Vec<usize>)| {
        list.iter().zip(clocks).map(|(i, c)| profile.effect(*c, i).time).collect()
    };
    program.lists.iter().zip(clocks).map(row).collect()
}

/// Lowers clocks until the slack is filled, then raises those on the critical path while the step is too long.
fn fill_slack(program: &Program, costs: &Costs, profile: &Profile, limit: f64) -> Result<Filled, SimError> {
    let mut clocks: Vec<Vec<usize>> = program.lists.iter().map(|l| vec![0; l.len()]).collect();
    let timeline = simulate(program, costs)?;
    let graph = Graph::new(program, costs, &timeline);
    let tolerance = limit * 1e-9;
    // Each round lowers what has room by one step; that many rounds fill what can be filled.
    for _ in 0..4 * profile.clocks.len() {
        if graph.lower(program, profile, &timeline, &mut clocks, limit + tolerance) == 0 {
            break;
        }
    }
    loop {
        let timeline = simulate_stretched(program, costs, &factors(program, profile, &clocks))?;
        let path = timeline.critical_path(program);
        let lowered: Vec<_> = path.into_iter().filter(|s| clocks[s.rank][s.index] > 0).collect();
        if timeline.makespan(program) <= limit + tolerance || lowered.is_empty() {
            let energy = predict(program, &timeline, profile, &clocks).energy;
            return Ok(Filled { clocks, timeline, energy });
        }
        for step in lowered {
            clocks[step.rank][step.index] -= 1;
        }
    }
}
