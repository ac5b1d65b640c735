//! The automatic zero-bubble schedule (Qi et al. 2024, arXiv 2401.10241, section 3.1): a heuristic that knows the times of
//! the passes and messages and a limit of memory, and a search over its options by simulated cost.
//!
//! The cost is the longest span of a rank (each steps its own optimizer), then the makespan. No bubble is left from a limit
//! of about `((p-1)(T_B+2T_comm)+p T_F)/T_F` micro-batches on, near 2p; m >= 3p is enough. ZB-H1, ZB-H2 and 1F1B with fewer
//! warm-up forwards take part where they keep the limit, so the result is never worse than they. For measured times.

use std::cmp::Ordering;

use super::{straight, synchronous, zb_h1::split};
use crate::timing::{makespan, spans};
use crate::{Costs, Instruction, Program, ScheduleError, Shape};

pub(crate) fn zb_auto(shape: &Shape) -> Result<Program, ScheduleError> {
    let (p, m, costs) = (shape.ranks, shape.micro_batches, shape.costs);
    let limit = shape.memory_limit.unwrap_or(2.0 * p as f64);
    let wrong = |wanted: &str, found: String, advice: &str| {
        Err(ScheduleError::shape("zb-auto", wanted, found, advice))
    };
    if limit.is_nan() || limit < 1.0 {
        return wrong(
            "memory for at least 1 micro-batch",
            limit.to_string(),
            "give a limit of p for that of 1f1b",
        );
    }
    let times = [costs.forward, costs.backward, costs.weight];
    if !times.iter().all(|&time| time.is_finite() && time > 0.0) {
        return wrong("times above 0", format!("{times:?}"), "give T_F, T_B and T_W");
    }
    if !(costs.message.is_finite() && costs.message >= 0.0) {
        return wrong("a time for messages that is not negative", costs.message.to_string(), "give 0");
    }
    if !(0.0..=1.0).contains(&shape.weight_share) {
        return wrong("a weight share from 0 to 1", shape.weight_share.to_string(), "give 0.5");
    }
    // Whole forwards that fit, and no more than there are.
    let most = limit.min(m as f64) as usize;
    let narrow = |warm: usize, pending: usize, r: usize| (warm.min(p - 1 - r).min(most - 1), pending);
    let mut candidates = vec![
        lists(p, m, |r| narrow(p, 0, r)),
        lists(p, m, |r| narrow(p, r, r)),
        lists(p, m, |r| ((2 * (p - 1 - r)).min(m), 2 * r)),
    ];
    for fill_before_backward in [false, true] {
        for skip in [false, true] {
            for keep_ahead in [false, true] {
                let options = Options { fill_before_backward, skip, keep_ahead };
                candidates.extend(Heuristic::new(shape, limit, options).run());
            }
        }
    }
    let mut best: Option<((f64, f64), Program)> = None;
    for candidate in candidates {
        if candidate.iter().any(|list| peak(list, shape.weight_share) > limit + 1e-9) {
            continue;
        }
        let mut program = synchronous("zb-auto", p, m, vec![straight(p)]);
        program.lists = candidate;
        let Some(cost) = cost(&program, &costs)? else { continue };
        let better = |best: &(f64, f64)| {
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
            if close(cost.0, best.0) { cost.1 < best.1 } else { cost.0 < best.0 }
        };
        if best.as_ref().is_none_or(|(best, _)| better(best)) {
            best = Some((cost, program));
        }
    }
    best.map(|(_, program)| program).ok_or_else(|| {
        ScheduleError::shape("zb-auto", "an order within the memory", limit.to_string(), "raise the limit")
    })
}

/// Forwards ahead and weight parts put off, both by rank, as in ZB-H1.
fn lists(p: usize, m: usize, of: impl Fn(usize) -> (usize, usize)) -> Vec<Vec<Instruction>> {
    let list = |r: usize| {
        let ((warm, pending), mut list) = (of(r), Vec::with_capacity(3 * m));
        split(&mut list, warm, pending, m);
        list
    };
    (0..p).map(list).collect()
}

/// Longest span and makespan.
fn cost(program: &Program, costs: &Costs) -> Result<Option<(f64, f64)>, ScheduleError> {
    let time = |instruction: &Instruction| match instruction {
        Instruction::Forward(_) => costs.forward,
        Instruction::BackwardInput(_) => costs.backward,
        _ => costs.weight,
    };
    let spans = spans(program, time, costs.message)?;
    Ok(spans.map(|spans| (spans.iter().map(|s| s.last - s.first).fold(0.0, f64::max), makespan(&spans))))
}

/// Most live activations of a list.
fn peak(list: &[Instruction], share: f64) -> f64 {
    let (mut full, mut pending, mut peak) = (0_i64, 0_i64, 0.0_f64);
    for instruction in list {
        match instruction {
            Instruction::Forward(_) => full += 1,
            Instruction::BackwardInput(_) => (full, pending) = (full - 1, pending + 1),
            _ => pending -= 1,
        }
        peak = peak.max(full as f64 + pending as f64 * share);
    }
    peak
}

/// The options that are searched.
#[derive(Debug, Clone, Copy)]
struct Options {
    /// Take another forward before the first backward even if the backward has to wait for it.
    fill_before_backward: bool,
    /// Skip a forward when the rank is more than one ahead of the next.
    skip: bool,
    /// Keep every rank at least one forward ahead of the next.
    keep_ahead: bool,
}

/// One rank as far as it is planned.
#[derive(Debug, Clone, Default)]
struct Rank {
    list: Vec<Instruction>,
    forwards: usize,
    inputs: usize,
    weights: usize,
    /// End of what is planned.
    clock: f64,
    /// Time in which it did nothing, from its first pass on.
    bubble: f64,
    /// Whether the last pass other than a weight part was an input part.
    after_input: bool,
    forward_end: Vec<f64>,
    input_end: Vec<f64>,
}

/// What a rank does next.
enum Decision {
    Forward,
    Input,
    Weight,
    WaitUntil(f64),
    /// Its neighbours have to decide first.
    Unknown,
}

struct Heuristic {
    p: usize,
    m: usize,
    costs: Costs,
    limit: f64,
    share: f64,
    options: Options,
    ranks: Vec<Rank>,
    /// Largest bubble of all ranks.
    largest: f64,
}

impl Heuristic {
    fn new(shape: &Shape, limit: f64, options: Options) -> Self {
        let (p, m) = (shape.ranks, shape.micro_batches);
        let rank = Rank { list: Vec::with_capacity(3 * m), ..Rank::default() };
        Self {
            p,
            m,
            costs: shape.costs,
            limit,
            share: shape.weight_share,
            options,
            ranks: vec![rank; p],
            largest: 0.0,
        }
    }

    /// The lists, or nothing where the options lead nowhere (ranks keep ahead of each other with too little memory).
    fn run(mut self) -> Option<Vec<Vec<Instruction>>> {
        let mut queue = std::collections::BinaryHeap::new();
        queue.extend((0..self.p).map(|rank| Turn { clock: 0.0, rank }));
        let mut queued = vec![true; self.p];
        let mut stuck = std::collections::BTreeSet::new();
        loop {
            let (rank, forced) = match queue.pop() {
                Some(Turn { rank, .. }) => (rank, false),
                // Everybody waits for a neighbour: what is put off can be done meanwhile.
                None => match stuck.iter().copied().find(|&rank: &usize| self.pending(rank) > 0) {
                    Some(rank) => (rank, true),
                    None => break,
                },
            };
            queued[rank] = false;
            stuck.remove(&rank);
            if self.ranks[rank].weights == self.m {
                continue;
            }
            let decision = if forced { Decision::Weight } else { self.decide(rank) };
            if let Decision::Unknown = decision {
                stuck.insert(rank);
                continue;
            }
            self.apply(rank, decision);
            let neighbours = [rank.checked_sub(1), Some(rank), (rank + 1 < self.p).then_some(rank + 1)];
            for other in neighbours.into_iter().flatten() {
                if !std::mem::replace(&mut queued[other], true) {
                    stuck.remove(&other);
                    queue.push(Turn { clock: self.ranks[other].clock, rank: other });
                }
            }
        }
        let complete = self.ranks.iter().all(|rank| rank.weights == self.m);
        complete.then(|| self.ranks.into_iter().map(|rank| rank.list).collect())
    }

    fn pending(&self, rank: usize) -> usize {
        self.ranks[rank].inputs - self.ranks[rank].weights
    }

    /// When the input of the next forward is there, if that is known, and whether the rank may take it.
    fn next_forward(&self, rank: usize) -> (Option<f64>, bool) {
        let own = &self.ranks[rank];
        let Some(before) = rank.checked_sub(1).map(|before| &self.ranks[before]) else {
            return (Some(0.0), own.forwards < self.m);
        };
        let ready = before.forward_end.get(own.forwards).map(|end| end + self.costs.message);
        let ahead =
            !self.options.keep_ahead || before.forwards == self.m || before.forwards >= own.forwards + 2;
        (ready, own.forwards < self.m && ahead)
    }

    /// When the next input part can start, if that is known.
    fn next_input(&self, rank: usize) -> Option<f64> {
        let own = &self.ranks[rank];
        match self.ranks.get(rank + 1) {
            Some(after) => after.input_end.get(own.inputs).map(|end| end + self.costs.message),
            None => own.forward_end.get(own.inputs).copied(),
        }
    }

    fn decide(&self, rank: usize) -> Decision {
        let own = &self.ranks[rank];
        let (now, pending) = (own.clock, self.pending(rank));
        let (forward, may) = self.next_forward(rank);
        let input = self.next_input(rank);
        let live = (own.forwards - own.inputs) as f64 + pending as f64 * self.share;
        let fits = live + 1.0 <= self.limit + 1e-9;
        let there = |time: Option<f64>| time.is_some_and(|time| time <= now + 1e-9);
        let (forward_now, input_now) = (may && there(forward), there(input));
        let ahead = self.ranks.get(rank + 1).map_or(0, |after| own.forwards.saturating_sub(after.forwards));
        let skipped = self.options.skip && ahead > 1 && own.inputs > 0 && input_now;
        let delays = input.is_some_and(|input| input < now + self.costs.forward - 1e-9);
        let warm = own.inputs == 0 && (!delays || self.options.fill_before_backward) && !input_now;
        let due = warm || own.after_input;
        if forward_now && due && !skipped {
            if fits {
                return Decision::Forward;
            }
            if pending > 0 {
                return Decision::Weight;
            }
        }
        if input_now {
            return Decision::Input;
        }
        if forward_now && fits && own.inputs > 0 && !delays {
            return Decision::Forward;
        }
        // When something can start at the earliest, known or not yet.
        let from = |other: Option<usize>, time: f64| {
            let other = other.and_then(|other| self.ranks.get(other))?;
            Some(other.clock.max(now) + time + self.costs.message)
        };
        let early_forward = match forward {
            Some(time) if may && (fits || pending == 0) => Some((time.max(now), fits)),
            _ if own.forwards == self.m => None,
            Some(_) => None,
            None => from(rank.checked_sub(1), self.costs.forward).map(|time| (time, false)),
        };
        let early_input = match input {
            Some(time) => Some((time, true)),
            None if own.inputs == self.m => None,
            None => from(Some(rank + 1), self.costs.backward).map(|time| (time, false)),
        };
        let earlier = |a: (f64, bool), b: (f64, bool)| if b.0 < a.0 { b } else { a };
        let Some((time, known)) = early_forward.into_iter().chain(early_input).reduce(earlier) else {
            return if pending > 0 { Decision::Weight } else { Decision::Unknown };
        };
        let gap = time - now;
        if pending > 0 && gap >= self.costs.weight - 1e-9 {
            return Decision::Weight;
        }
        if !known {
            return Decision::Unknown;
        }
        if pending > 0 && own.bubble + gap > self.largest + 1e-9 {
            return Decision::Weight;
        }
        // A forward that waits for memory alone is not worth waiting for.
        if gap <= 1e-9 { Decision::Unknown } else { Decision::WaitUntil(time) }
    }

    fn apply(&mut self, rank: usize, decision: Decision) {
        let (forward, input) =
            (self.next_forward(rank).0.unwrap_or(0.0), self.next_input(rank).unwrap_or(0.0));
        let own = &mut self.ranks[rank];
        match decision {
            Decision::Forward => {
                own.list.push(Instruction::forward(own.forwards, 0));
                own.forwards += 1;
                own.clock = own.clock.max(forward) + self.costs.forward;
                own.forward_end.push(own.clock);
                own.after_input = false;
            }
            Decision::Input => {
                own.list.push(Instruction::backward_input(own.inputs, 0));
                own.inputs += 1;
                own.clock = own.clock.max(input) + self.costs.backward;
                own.input_end.push(own.clock);
                own.after_input = true;
            }
            Decision::Weight => {
                own.list.push(Instruction::backward_weight(own.weights, 0));
                own.weights += 1;
                own.clock += self.costs.weight;
            }
            Decision::WaitUntil(time) => {
                if own.forwards > 0 {
                    own.bubble += time - own.clock;
                    self.largest = self.largest.max(own.bubble);
                }
                own.clock = time;
            }
            Decision::Unknown => {}
        }
    }
}

/// A rank that is to decide; the one whose plan ends first comes first.
#[derive(Debug, PartialEq)]
struct Turn {
    clock: f64,
    rank: usize,
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        other.clock.total_cmp(&self.clock).then(other.rank.cmp(&self.rank))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
