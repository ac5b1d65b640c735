//! Chimera (Li & Hoefler 2021, arXiv 2107.06925): pipelines in both directions over the same D ranks, each 1F1B, merged.
//!
//! Bubble D-2 for N = D micro-batches and T_F equal to the whole backward, `2(D-2)T_F` at twice that; D/2+1 micro-batches
//! held at the ends, D in the middle; every stage lies on two ranks (2f with f pairs of pipelines), which sum their
//! gradients. Needs D even, and N even. For few micro-batches an update, no more than there are ranks.
//!
//! More than D micro-batches pass in units of D, one after the other (*concatenation*). *Forward doubling* sends two
//! micro-batches forward in a row and takes their backwards singly, which are then as long as a double forward: no bubble in
//! the middle for twice the activations. *Backward halving* is the same order; what counts as a micro-batch there is half
//! of what goes forward. *2f pipelines*, f dividing D/2, begin on ranks that are D/f apart: fewer bubbles, 2f copies of
//! the weights.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{one_f_one_b::alternate, synchronous};
use crate::{Instruction, Join, Place, Program, ScheduleError, Shape};

pub(crate) fn chimera(shape: &Shape) -> Result<Program, ScheduleError> {
    let (d, n, f) = (shape.ranks, shape.micro_batches, shape.pairs);
    let wrong = |wanted: &str, found: usize, advice: String| {
        Err(ScheduleError::shape("chimera", wanted, found.to_string(), advice))
    };
    if !d.is_multiple_of(2) {
        return wrong("an even number of ranks", d, format!("take {} ranks or 1f1b", d + 1));
    }
    if f == 0 || !(d / 2).is_multiple_of(f) {
        return wrong("pairs of pipelines that divide half the ranks", f, "take 1 pair".to_owned());
    }
    let times = [shape.costs.forward, shape.costs.backward, shape.costs.weight];
    if !times.iter().all(|time| time.is_finite() && *time >= 0.0) {
        let wanted = "times that are numbers and not negative";
        return Err(ScheduleError::shape("chimera", wanted, format!("{times:?}"), "give T_F, T_B and T_W"));
    }
    let double = if shape.join == Join::Concatenate { 1 } else { 2 };
    let unit = n.min(d * double);
    if !n.is_multiple_of(2 * f * double) || !n.is_multiple_of(unit) {
        let step = if n > d * double { d * double } else { 2 * f * double };
        let wanted = format!("micro-batches that are a multiple of {step}");
        return wrong(&wanted, n, format!("take {}", n.next_multiple_of(step)));
    }
    let routes = routes(d, f);
    let per_route = unit / routes.len();
    let first = merge(shape, &routes, per_route, double);
    let mut program = synchronous("chimera", d, n, routes);
    for (micro, route) in program.route_of.iter_mut().enumerate() {
        *route = micro % unit / per_route;
    }
    for (list, first) in program.lists.iter_mut().zip(first) {
        for start in (0..n).step_by(unit) {
            list.extend(first.iter().map(|operation| operation.instruction(start)));
        }
    }
    Ok(program)
}

/// f pipelines down and f up, their beginnings D/f ranks apart. Chunk k of a rank belongs to pipeline k.
fn routes(d: usize, f: usize) -> Vec<Vec<Place>> {
    let down = (0..f).map(|i| (0..d).map(|stage| (i * (d / f) + stage) % d).collect::<Vec<_>>());
    let up = (0..f).map(|i| (0..d).map(|stage| (i * (d / f) + d - 1 - stage) % d).collect::<Vec<_>>());
    let places =
        |(chunk, ranks): (usize, Vec<usize>)| ranks.into_iter().map(|rank| Place { rank, chunk }).collect();
    down.chain(up).enumerate().map(places).collect()
}

/// One pass of the first unit.
#[derive(Debug, Clone, Copy)]
struct Operation {
    forward: bool,
    /// Within its own pipeline and unit.
    index: usize,
    micro: usize,
    chunk: usize,
}

impl Operation {
    fn instruction(self, start: usize) -> Instruction {
        let Operation { forward, micro, chunk, .. } = self;
        match forward {
            true => Instruction::forward(start + micro, chunk),
            false => Instruction::backward(start + micro, chunk),
        }
    }
}

/// A candidate of the list scheduling; the least goes first. The order of the fields is the rule of the schedule: earliest
/// start, then lowest index within its own pipeline, then earliest ready.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    start: f64,
    index: usize,
    ready: f64,
    rank: usize,
    chunk: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let first = self.start.total_cmp(&other.start).then(self.index.cmp(&other.index));
        let second = first.then(self.ready.total_cmp(&other.ready));
        second.then(self.rank.cmp(&other.rank)).then(self.chunk.cmp(&other.chunk))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The pipelines of one unit merged on every rank by list scheduling: each keeps its own 1F1B order, and the pass that
/// can start earliest goes next.
fn merge(shape: &Shape, routes: &[Vec<Place>], per_route: usize, double: usize) -> Vec<Vec<Operation>> {
    let d = shape.ranks;
    let (forward_time, backward_time) = (shape.costs.forward, shape.costs.backward + shape.costs.weight);
    // Each pipeline's own order, by stage.
    let order: Vec<Vec<Operation>> = (0..d).map(|stage| stream(d, stage, per_route, double)).collect();
    let mut stage_at = vec![vec![0; routes.len()]; d];
    for (chunk, route) in routes.iter().enumerate() {
        for (stage, place) in route.iter().enumerate() {
            stage_at[place.rank][chunk] = stage;
        }
    }
    // End of each forward and backward by pipeline, stage and index.
    let slot = |forward: bool, chunk: usize, stage: usize, index: usize| {
        ((usize::from(forward) * routes.len() + chunk) * d + stage) * per_route + index
    };
    let mut end = vec![f64::NAN; 2 * routes.len() * d * per_route];
    let mut next = vec![vec![0; routes.len()]; d];
    let mut free = vec![0.0_f64; d];
    let mut lists = vec![Vec::with_capacity(2 * routes.len() * per_route); d];
    let mut queue = BinaryHeap::new();
    // The pass that a pipeline wants next on a rank, once its input has a time.
    let candidate = |rank: usize, chunk: usize, next: &[Vec<usize>], end: &[f64], free: &[f64]| {
        let stage = stage_at[rank][chunk];
        let operation = order[stage].get(next[rank][chunk])?;
        let index = operation.index;
        let ready = match operation.forward {
            true if stage == 0 => 0.0,
            true => end[slot(true, chunk, stage - 1, index)],
            false if stage + 1 == d => end[slot(true, chunk, stage, index)],
            false => end[slot(false, chunk, stage + 1, index)],
        };
        let start = ready.max(free[rank]);
        (!ready.is_nan()).then_some(Candidate { start, index, ready, rank, chunk })
    };
    // A pipeline has at most one candidate on a rank; what it could start with only moves later while it waits.
    let mut queued = vec![vec![false; routes.len()]; d];
    for (rank, queued) in queued.iter_mut().enumerate() {
        for (chunk, queued) in queued.iter_mut().enumerate() {
            let found = candidate(rank, chunk, &next, &end, &free);
            *queued = found.is_some();
            queue.extend(found.map(Reverse));
        }
    }
    while let Some(Reverse(found)) = queue.pop() {
        let Candidate { rank, chunk, .. } = found;
        match candidate(rank, chunk, &next, &end, &free) {
            Some(now) if now != found => {
                queue.push(Reverse(now));
                continue;
            }
            _ => queued[rank][chunk] = false,
        }
        let stage = stage_at[rank][chunk];
        let mut operation = order[stage][next[rank][chunk]];
        operation.micro = chunk * per_route + operation.index;
        operation.chunk = chunk;
        let time = if operation.forward { forward_time } else { backward_time };
        free[rank] = found.start + time;
        end[slot(operation.forward, chunk, stage, operation.index)] = free[rank];
        lists[rank].push(operation);
        next[rank][chunk] += 1;
        let after = if operation.forward { stage + 1 } else { stage.wrapping_sub(1) };
        let woken = routes[chunk].get(after).map(|place| place.rank);
        for rank in woken.into_iter().chain([rank]) {
            if !queued[rank][chunk] {
                let found = candidate(rank, chunk, &next, &end, &free);
                queued[rank][chunk] = found.is_some();
                queue.extend(found.map(Reverse));
            }
        }
    }
    lists
}

/// 1F1B of one pipeline on one of its stages, forwards in groups of `double`.
fn stream(d: usize, stage: usize, per_route: usize, double: usize) -> Vec<Operation> {
    let groups = per_route / double;
    let mut order = Vec::with_capacity(2 * groups);
    alternate(&mut order, (d - 1 - stage).min(groups), groups, |group| (true, group), |group| (false, group));
    let members = |(forward, group): (bool, usize)| {
        (group * double..(group + 1) * double).map(move |index| Operation {
            forward,
            index,
            micro: 0,
            chunk: 0,
        })
    };
    order.into_iter().flat_map(members).collect()
}
