//! The automatic zero-bubble schedule (Qi et al. 2024, arXiv 2401.10241, section 3.1): a heuristic that knows the times of
//! the passes and messages and a limit of memory, and a search over its options by simulated cost.
//!
//! The cost is the longest span of a rank (each steps its own optimizer), then the makespan. No bubble is left from a limit
//! of about `((p-1)(T_B+2T_comm)+p T_F)/T_F` micro-batches on, near 2p; m >= 3p is enough. ZB-H1, ZB-H2 and 1F1B with fewer
//! warm-up forwards take part where they keep the limit, so the result is never worse than they. For measured times.

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
    for delay_first in [false, true] {
        for skip in [false, true] {
            for greedy in [false, true] {
                let options = Options { delay_first, skip, greedy };
                candidates.extend(Heuristic::new(shape, limit, &options).run());
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
    delay_first: bool,
    /// Skip a forward where the rank is more than one ahead of the next and the backward would wait for it.
    skip: bool,
    /// Put a weight part into a gap that is too small for it even where that rank has bubbles to spare.
    greedy: bool,
}

/// One rank as far as it is planned.
#[derive(Debug, Clone, Default)]
struct Rank {
    list: Vec<Instruction>,
    forward_end: Vec<f64>,
    input_end: Vec<f64>,
    weights: usize,
    /// End of what is planned.
    end: f64,
    /// Time without work since its first pass.
    bubble: f64,
}

impl Rank {
    fn forwards(&self) -> usize {
        self.forward_end.len()
    }

    fn inputs(&self) -> usize {
        self.input_end.len()
    }

    fn pending(&self) -> usize {
        self.inputs() - self.weights
    }
}

/// The heuristic: waves of forwards down the ranks and of backwards up again, weight parts in the gaps.
struct Heuristic<'a> {
    m: usize,
    costs: Costs,
    limit: f64,
    share: f64,
    options: &'a Options,
    ranks: Vec<Rank>,
    /// Largest bubble of all ranks.
    largest: f64,
}

impl<'a> Heuristic<'a> {
    fn new(shape: &Shape, limit: f64, options: &'a Options) -> Self {
        let (p, m) = (shape.ranks, shape.micro_batches);
        let rank = Rank { list: Vec::with_capacity(3 * m), ..Rank::default() };
        let (costs, share) = (shape.costs, shape.weight_share);
        Self { m, costs, limit, share, options, ranks: vec![rank; p], largest: 0.0 }
    }

    /// The lists, or nothing where the options need more memory than there is.
    fn run(mut self) -> Option<Vec<Vec<Instruction>>> {
        let p = self.ranks.len();
        (0..p).for_each(|rank| self.forward(rank));
        for (rank, ahead) in self.ahead().into_iter().enumerate() {
            (0..ahead).for_each(|_| self.forward(rank));
        }
        (0..p).rev().for_each(|rank| self.input(rank));
        for _ in 1..self.m {
            for (rank, wanted) in self.wave().into_iter().enumerate() {
                if wanted {
                    while self.live(rank) + 1.0 > self.limit + 1e-9 {
                        if self.ranks[rank].pending() == 0 {
                            return None;
                        }
                        self.weight(rank);
                    }
                    if rank > 0 {
                        self.fill(rank, self.ranks[rank - 1].forward_end[self.ranks[rank].forwards()]);
                    }
                    self.forward(rank);
                }
            }
            for rank in (0..p).rev() {
                if let Some(next) = self.ranks.get(rank + 1) {
                    self.fill(rank, next.input_end[self.ranks[rank].inputs()]);
                }
                // Nothing but backwards is left on the first rank: only its end counts.
                while rank == 0 && self.ranks[0].forwards() == self.m && self.ranks[0].pending() > 0 {
                    self.weight(0);
                }
                self.input(rank);
            }
        }
        for rank in 0..p {
            while self.ranks[rank].pending() > 0 {
                self.weight(rank);
            }
        }
        Some(self.ranks.into_iter().map(|rank| rank.list).collect())
    }

    /// How many forwards each rank takes between its first and the first backward: as many as memory and time allow, and
    /// fewer than the rank before.
    fn ahead(&self) -> Vec<usize> {
        let p = self.ranks.len();
        let mut ahead = vec![0_usize; p];
        let mut input_end = self.ranks[p - 1].end + self.costs.backward;
        for rank in (0..p - 1).rev() {
            let ready = input_end + self.costs.message;
            let mut end = self.ranks[rank].end;
            while ahead[rank] + 1 < self.m && (ahead[rank] + 2) as f64 <= self.limit + 1e-9 {
                let taken = match self.options.delay_first {
                    true => end < ready - 1e-9,
                    false => end + self.costs.forward <= ready + 1e-9,
                };
                if !taken {
                    break;
                }
                end += self.costs.forward;
                ahead[rank] += 1;
            }
            input_end = end.max(ready) + self.costs.backward;
        }
        for rank in 1..p {
            let before = ahead[rank - 1];
            // Behind a rank that has taken all forwards there is nothing to keep back for.
            let most = if before + 1 == self.m { before } else { before.saturating_sub(1) };
            ahead[rank] = ahead[rank].min(most);
        }
        ahead
    }

    /// Which ranks take part in the next wave of forwards.
    fn wave(&self) -> Vec<bool> {
        let p = self.ranks.len();
        let mut wanted: Vec<bool> =
            (0..p).map(|rank| self.ranks[rank].forwards() < self.m && !self.skips(rank)).collect();
        for rank in (0..p - 1).rev() {
            // Whoever is followed by a skip would only run further ahead.
            wanted[rank] &= wanted[rank + 1];
        }
        wanted
    }

    fn skips(&self, rank: usize) -> bool {
        let own = &self.ranks[rank];
        let Some(next) = self.ranks.get(rank + 1) else { return false };
        if !self.options.skip || own.forwards() < next.forwards() + 2 {
            return false;
        }
        // The next rank's gradient comes no sooner than after one more forward and backward there.
        let Costs { forward, backward, weight, message } = self.costs;
        let gradient = next.end + forward + backward + message;
        let over = (self.live(rank) + 1.0 - self.limit).max(0.0);
        let frees = if self.share > 0.0 { (over / self.share - 1e-9).ceil() } else { 0.0 };
        let ends = own.end + forward + weight * frees.min(own.pending() as f64);
        own.end >= gradient || (ends > gradient && gradient - own.end <= self.largest - own.bubble)
    }

    /// Weight parts before something that is ready at `ready` where it was made: all that fit into the gap, and one more
    /// if the rank's bubble would become the largest.
    fn fill(&mut self, rank: usize, made: f64) {
        let ready = made + self.costs.message;
        let gap = |rank: &Rank| ready - rank.end;
        while self.ranks[rank].pending() > 0 && gap(&self.ranks[rank]) >= self.costs.weight - 1e-9 {
            self.weight(rank);
        }
        let own = &self.ranks[rank];
        if own.pending() > 0 && gap(own) > 1e-9 {
            let largest = gap(own) + own.bubble > self.largest;
            if largest || self.options.greedy {
                self.weight(rank);
            }
        }
    }

    fn live(&self, rank: usize) -> f64 {
        let own = &self.ranks[rank];
        (own.forwards() - own.inputs()) as f64 + own.pending() as f64 * self.share
    }

    fn forward(&mut self, rank: usize) {
        let micro = self.ranks[rank].forwards();
        let ready = match rank.checked_sub(1) {
            Some(before) => self.ranks[before].forward_end[micro] + self.costs.message,
            None => 0.0,
        };
        let end = self.pass(rank, ready, self.costs.forward, Instruction::forward(micro, 0));
        self.ranks[rank].forward_end.push(end);
    }

    fn input(&mut self, rank: usize) {
        let micro = self.ranks[rank].inputs();
        let ready = match self.ranks.get(rank + 1) {
            Some(next) => next.input_end[micro] + self.costs.message,
            None => self.ranks[rank].forward_end[micro],
        };
        let end = self.pass(rank, ready, self.costs.backward, Instruction::backward_input(micro, 0));
        self.ranks[rank].input_end.push(end);
    }

    fn weight(&mut self, rank: usize) {
        let micro = self.ranks[rank].weights;
        self.pass(rank, 0.0, self.costs.weight, Instruction::backward_weight(micro, 0));
        self.ranks[rank].weights += 1;
    }

    fn pass(&mut self, rank: usize, ready: f64, time: f64, instruction: Instruction) -> f64 {
        let own = &mut self.ranks[rank];
        let start = own.end.max(ready);
        if !own.list.is_empty() {
            own.bubble += start - own.end;
            self.largest = self.largest.max(own.bubble);
        }
        own.end = start + time;
        own.list.push(instruction);
        own.end
    }
}
