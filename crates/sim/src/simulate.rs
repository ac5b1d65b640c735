//! The events: each rank runs its list until it must wait, and goes on when what it waited for has happened.
//!
//! A link has one sender, whose sends are in the order of its list, so a message's arrival is known when it is sent and
//! no queue of events is needed: every instruction is looked at once or twice.

use crate::{Costs, Interval, SimError, Timeline};
use bessemer_schedule::{Fill, Filler, Flow, Instruction, Place, Program};
use std::collections::BTreeMap;

/// Nobody, where a rank's number is wanted.
const NOBODY: u32 = u32::MAX;

/// A message that is in flight or waited for.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// When it is there; not a number until it is sent.
    arrival: f64,
    /// The send that it waited for: its own, or the one that found the link free.
    cause: (u32, u32),
    /// Rank that waits for it.
    waiting: u32,
}

/// Neither sent nor waited for.
const EMPTY: Slot = Slot { arrival: f64::NAN, cause: (NOBODY, 0), waiting: NOBODY };

/// One direction between two ranks.
#[derive(Debug, Clone, Copy)]
struct Wire {
    to: usize,
    free: f64,
    cause: (u32, u32),
}

/// Ranks that come together for a reduce, a gather or a sum of curvature.
#[derive(Debug, Default)]
struct Meeting {
    expected: usize,
    arrived: Vec<(usize, usize, f64)>,
}

/// Which meeting: stage, update or unit, and what for.
type Subject = (usize, usize, Sum);

/// Collective work of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sum {
    Gradients,
    Weights,
    Curvature,
}

struct Simulation<'a> {
    program: &'a Program,
    costs: &'a Costs,
    factors: Option<&'a [Vec<f64>]>,
    /// First place of each rank when places are numbered through.
    base: Vec<usize>,
    /// Stage of each place.
    stage: Vec<Option<usize>>,
    slots: Vec<Slot>,
    wires: Vec<Vec<Wire>>,
    meetings: BTreeMap<Subject, Meeting>,
    /// Passes of evaluation micro-batches that the program has, by place and unit.
    evaluations: BTreeMap<(usize, usize), Slot>,
    next: Vec<usize>,
    clock: Vec<f64>,
    ready: Vec<usize>,
    timeline: Timeline,
}

/// When every instruction of a program begins and ends.
///
/// A rank does its instructions in the order of its list. A receive waits until the message is there; a send takes no
/// time of the rank, and its message keeps the link busy for bytes / bandwidth and arrives a latency later. A reduce, a
/// gather or a sum of curvature begins when all the program's ranks that take part have come to it; an evaluation
/// micro-batch's pass waits for the one in the stage before, where that is part of the program. The optimizer's step
/// concerns its rank only.
/// Whether the order respects the data's way through the model is the verifier's question, not the simulator's.
///
/// # Errors
/// [`SimError`] for costs that do not fit, instructions that name what is not there, and programs that stop.
pub fn simulate(program: &Program, costs: &Costs) -> Result<Timeline, SimError> {
    costs.check(program)?;
    Simulation::new(program, costs, None)?.run()
}

/// The same with the time of each instruction, by rank and position, multiplied by a factor of its own.
pub(crate) fn simulate_stretched(
    program: &Program,
    costs: &Costs,
    factors: &[Vec<f64>],
) -> Result<Timeline, SimError> {
    costs.check(program)?;
    Simulation::new(program, costs, Some(factors))?.run()
}

impl<'a> Simulation<'a> {
    fn new(
        program: &'a Program,
        costs: &'a Costs,
        factors: Option<&'a [Vec<f64>]>,
    ) -> Result<Simulation<'a>, SimError> {
        let ranks = program.ranks();
        let mut base = vec![0];
        for rank in 0..ranks {
            base.push(base[rank] + program.chunks(rank));
        }
        let mut stage = vec![None; base[ranks]];
        for route in &program.routes {
            for (number, place) in route.iter().enumerate() {
                if place.rank < ranks {
                    stage[base[place.rank] + place.chunk] = Some(number);
                }
            }
        }
        let mut simulation = Simulation {
            program,
            costs,
            factors,
            slots: vec![EMPTY; base[ranks] * program.micro_batches() * 2],
            base,
            stage,
            wires: vec![Vec::new(); ranks],
            meetings: BTreeMap::new(),
            evaluations: BTreeMap::new(),
            next: vec![0; ranks],
            clock: vec![0.0; ranks],
            ready: (0..ranks).rev().collect(),
            timeline: Timeline {
                intervals: program.lists.iter().map(|l| vec![Interval::default(); l.len()]).collect(),
                causes: program.lists.iter().map(|l| vec![None; l.len()]).collect(),
                order: Vec::with_capacity(program.lists.iter().map(Vec::len).sum()),
            },
        };
        simulation.check()?;
        Ok(simulation)
    }

    /// Whether every instruction names what is there; counts who comes to which meeting.
    fn check(&mut self) -> Result<(), SimError> {
        let (ranks, micros) = (self.program.ranks(), self.program.micro_batches());
        for (rank, list) in self.program.lists.iter().enumerate() {
            let chunks = self.base[rank + 1] - self.base[rank];
            for (index, instruction) in list.iter().enumerate() {
                let (passes, chunk, place) = named(instruction);
                let wrong = |what: String| {
                    let instruction = instruction.to_string();
                    Err(SimError::Instruction { rank, index, instruction, what })
                };
                if let Some(micro) = passes.into_iter().flatten().map(|(m, _)| m).find(|m| *m >= micros) {
                    return wrong(format!("there is no micro-batch {micro}; the program has {micros}"));
                }
                let named = passes.into_iter().flatten().map(|(_, c)| c).chain(chunk);
                if let Some(chunk) = named.into_iter().find(|c| *c >= chunks) {
                    return wrong(format!("the rank has no chunk {chunk}; it has {chunks}"));
                }
                if let Some(place) = place
                    && (place.rank >= ranks
                        || place.chunk >= self.base[place.rank + 1] - self.base[place.rank])
                {
                    return wrong(format!("there is no rank {} with a chunk {}", place.rank, place.chunk));
                }
                if let Some(subject) = self.subject(rank, instruction) {
                    self.meetings.entry(subject).or_default().expected += 1;
                }
                if let Instruction::Fill(Fill { filler: Filler::Evaluate, chunk, unit }) = instruction {
                    self.evaluations.insert((self.base[rank] + chunk, *unit), EMPTY);
                }
            }
        }
        Ok(())
    }

    /// The meeting that an instruction is part of.
    fn subject(&self, rank: usize, instruction: &Instruction) -> Option<Subject> {
        let (chunk, number, sum) = match instruction {
            Instruction::Reduce { chunk, update } => (*chunk, *update, Sum::Gradients),
            Instruction::Gather { chunk, update } => (*chunk, *update, Sum::Weights),
            Instruction::Fill(Fill { filler: Filler::SyncCurvature, chunk, unit }) => {
                (*chunk, *unit, Sum::Curvature)
            }
            _ => return None,
        };
        self.stage[self.base[rank] + chunk].map(|stage| (stage, number, sum))
    }

    fn slot(&self, flow: Flow, micro: usize, at: Place) -> usize {
        let place = self.base[at.rank] + at.chunk;
        (place * self.program.micro_batches() + micro) * 2 + usize::from(flow == Flow::Gradient)
    }

    fn run(mut self) -> Result<Timeline, SimError> {
        while let Some(rank) = self.ready.pop() {
            while self.next[rank] < self.program.lists[rank].len() && self.advance(rank) {}
        }
        match (0..self.program.ranks()).any(|r| self.next[r] < self.program.lists[r].len()) {
            true => Err(SimError::Stuck(self.waits())),
            false => Ok(self.timeline),
        }
    }

    /// Does the next instruction of a rank; false if it must wait.
    fn advance(&mut self, rank: usize) -> bool {
        let index = self.next[rank];
        let instruction = &self.program.lists[rank][index];
        let now = self.clock[rank];
        let end = match instruction {
            Instruction::Send { flow, micro, to, .. } => {
                let slot = self.slot(*flow, *micro, *to);
                self.send(rank, index, to.rank, slot);
                now
            }
            Instruction::Receive { flow, micro, chunk, .. } => {
                let slot = self.slot(*flow, *micro, Place { rank, chunk: *chunk });
                let message = &mut self.slots[slot];
                if message.arrival.is_nan() {
                    message.waiting = rank as u32;
                    return false;
                }
                if message.arrival > now {
                    self.timeline.causes[rank][index] = Some(message.cause);
                }
                now.max(message.arrival)
            }
            Instruction::Fill(Fill { filler: Filler::Evaluate, chunk, unit }) => {
                return self.evaluate(Place { rank, chunk: *chunk }, *unit, index);
            }
            Instruction::Reduce { .. }
            | Instruction::Gather { .. }
            | Instruction::Fill(Fill { filler: Filler::SyncCurvature, .. }) => {
                if let Some(subject) = self.subject(rank, instruction) {
                    return self.meet(subject, rank, index);
                }
                now + self.time(rank, index)
            }
            _ => now + self.time(rank, index),
        };
        self.finish(rank, index, Interval { start: now, end });
        true
    }

    fn time(&self, rank: usize, index: usize) -> f64 {
        let time = self.costs.time(rank, &self.program.lists[rank][index]);
        time * self.costs.jitter.factor(rank, index) * self.factors.map_or(1.0, |f| f[rank][index])
    }

    fn finish(&mut self, rank: usize, index: usize, interval: Interval) {
        self.timeline.intervals[rank][index] = interval;
        self.timeline.order.push((rank as u32, index as u32));
        self.clock[rank] = interval.end;
        self.next[rank] = index + 1;
    }

    fn send(&mut self, rank: usize, index: usize, to: usize, slot: usize) {
        let (now, link) = (self.clock[rank], self.costs.messages.link(rank, to));
        let own = (rank as u32, index as u32);
        let wires = &mut self.wires[rank];
        let at = wires.iter().position(|w| w.to == to).unwrap_or_else(|| {
            wires.push(Wire { to, free: 0.0, cause: own });
            wires.len() - 1
        });
        let wire = &mut wires[at];
        if wire.free <= now {
            wire.cause = own;
        }
        wire.free = wire.free.max(now) + self.costs.messages.transfer(link);
        let message = &mut self.slots[slot];
        message.arrival = wire.free + link.latency;
        message.cause = wire.cause;
        if message.waiting != NOBODY {
            self.ready.push(std::mem::replace(&mut message.waiting, NOBODY) as usize);
        }
    }

    /// An evaluation micro-batch's pass; false if it must wait for the one in the stage before.
    fn evaluate(&mut self, at: Place, unit: usize, index: usize) -> bool {
        let Place { rank, chunk } = at;
        let mut start = self.clock[rank];
        let route = self.program.routes.iter().find(|route| route.contains(&at));
        let stage = self.stage[self.base[rank] + chunk].and_then(|stage| stage.checked_sub(1));
        let before = route.zip(stage).map(|(route, stage)| self.base[route[stage].rank] + route[stage].chunk);
        if let Some(before) = before.and_then(|place| self.evaluations.get_mut(&(place, unit))) {
            if before.arrival.is_nan() {
                before.waiting = rank as u32;
                return false;
            }
            if before.arrival > start {
                (start, self.timeline.causes[rank][index]) = (before.arrival, Some(before.cause));
            }
        }
        let end = start + self.time(rank, index);
        self.finish(rank, index, Interval { start, end });
        if let Some(own) = self.evaluations.get_mut(&(self.base[rank] + chunk, unit)) {
            (own.arrival, own.cause) = (end, (rank as u32, index as u32));
            if own.waiting != NOBODY {
                self.ready.push(std::mem::replace(&mut own.waiting, NOBODY) as usize);
            }
        }
        true
    }

    /// Comes to a meeting. The last to come lets everybody through; false if this is not the last.
    fn meet(&mut self, subject: Subject, rank: usize, index: usize) -> bool {
        let now = self.clock[rank];
        let meeting = self.meetings.entry(subject).or_default();
        if !meeting.arrived.iter().any(|(r, ..)| *r == rank) {
            meeting.arrived.push((rank, index, now));
        }
        if meeting.arrived.len() < meeting.expected {
            return false;
        }
        let arrived = std::mem::take(&mut meeting.arrived);
        let (last, last_index, start) = arrived
            .iter()
            .copied()
            .reduce(|a, b| if b.2 > a.2 { b } else { a })
            .unwrap_or((rank, index, now));
        for (member, at, came) in arrived {
            if came < start {
                // What the last one waited for is what all waited for.
                let before = last_index.checked_sub(1).map(|i| (last as u32, i as u32));
                self.timeline.causes[member][at] = before;
            }
            let end = start + self.time(member, at);
            self.finish(member, at, Interval { start, end });
            if member != rank {
                self.ready.push(member);
            }
        }
        true
    }

    /// For the message: where each rank stands that has not come to its end.
    fn waits(&self) -> String {
        let lists = self.program.lists.iter().enumerate();
        let stopped = lists.filter(|(rank, list)| self.next[*rank] < list.len());
        let mut all: Vec<String> = stopped
            .map(|(rank, list)| {
                let index = self.next[rank];
                format!("rank {rank} waits at instruction {index} ({})", list[index])
            })
            .collect();
        let more = all.len().saturating_sub(4);
        all.truncate(4);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        all.join("; ") + &rest
    }
}

/// What an instruction names: (micro-batch, chunk) pairs of its rank, a chunk of its rank, a place elsewhere.
type Named = ([Option<(usize, usize)>; 2], Option<usize>, Option<Place>);

fn named(instruction: &Instruction) -> Named {
    match instruction {
        Instruction::Forward(p)
        | Instruction::Backward(p)
        | Instruction::BackwardInput(p)
        | Instruction::BackwardWeight(p) => ([Some((p.micro, p.chunk)), None], None, None),
        Instruction::Together { forward, backward } => {
            ([Some((forward.micro, forward.chunk)), Some((backward.micro, backward.chunk))], None, None)
        }
        Instruction::Send { micro, chunk, to: place, .. }
        | Instruction::Receive { micro, chunk, from: place, .. } => {
            ([Some((*micro, *chunk)), None], None, Some(*place))
        }
        Instruction::Reduce { chunk, .. }
        | Instruction::Step { chunk, .. }
        | Instruction::Gather { chunk, .. } => ([None, None], Some(*chunk), None),
        Instruction::Fill(fill) => ([None, None], Some(fill.chunk), None),
    }
}
