//! Chimera (Li & Hoefler 2021, arXiv 2107.06925): pipelines in both directions over the same D ranks, each 1F1B, merged.
//!
//! Bubble D-2 for N = D micro-batches and T_F equal to the whole backward, `2(D-2)T_F` at twice that; D/2+1 micro-batches
//! held at the ends, D in the middle; every stage lies on two ranks (2f with f pairs of pipelines), which sum their
//! gradients. Needs D even, and N even. For few micro-batches an update, no more than there are ranks.
//!
//! More than D micro-batches pass in units of D, one after the other (*concatenation*): forwards of the next unit fill the
//! end of the one before, and with equal times the bubble stays D-2. Where a backward takes twice a forward, gaps are left
//! in the middle of each unit. *Forward doubling* sends two micro-batches forward in a row and takes their backwards
//! singly, which are then as long as the double forward: bubble `1.5 (D-2) T_F` in all, for twice the activations. *Backward
//! halving* is the same order; what counts as a micro-batch there is half of what goes forward. *2f pipelines*, f dividing
//! D/2, begin on ranks that are D/f apart: fewer bubbles, 2f copies of the weights.

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
    let mut program = synchronous("chimera", d, n, routes);
    for (micro, route) in program.route_of.iter_mut().enumerate() {
        *route = micro % unit / per_route;
    }
    program.lists = Merge::new(shape, &program.routes, n / unit, per_route, double).run();
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

/// One pass of a pipeline in a unit.
#[derive(Debug, Clone, Copy)]
struct Operation {
    forward: bool,
    /// Number of the micro-batch within its own pipeline and unit.
    index: usize,
}

/// 1F1B of one pipeline on one of its stages in one unit, forwards in groups of `double`.
fn stream(d: usize, stage: usize, per_route: usize, double: usize) -> Vec<Operation> {
    let groups = per_route / double;
    let mut order = Vec::with_capacity(2 * groups);
    alternate(&mut order, (d - 1 - stage).min(groups), groups, |group| (true, group), |group| (false, group));
    let members = |(forward, group): (bool, usize)| {
        (group * double..(group + 1) * double).map(move |index| Operation { forward, index })
    };
    order.into_iter().flat_map(members).collect()
}

/// A candidate of the list scheduling; the least goes first. The order of the fields is the rule of the schedule: earliest
/// start, then lowest index within its own pipeline, then earliest ready.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    start: f64,
    /// Unit, then index within the unit.
    index: (usize, usize),
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

/// One rank as far as it is planned.
struct Rank {
    list: Vec<Instruction>,
    free: f64,
    /// Stage of each pipeline here.
    stage: Vec<usize>,
    /// The unit whose passes are not all planned, and how many of each pipeline's are, in it and in the next.
    unit: usize,
    done: [Vec<usize>; 2],
    /// Forwards of that unit that are not planned.
    forwards_left: usize,
    /// Passes of that unit that are not planned.
    left: usize,
    live: usize,
    /// Most live micro-batches so far, while only one unit was in flight.
    peak: usize,
    /// Whether the queue holds a candidate, by pipeline, in the unit and the next.
    queued: [Vec<bool>; 2],
}

/// The pipelines merged on every rank by list scheduling: each keeps its own 1F1B order in each unit, and the pass that can
/// start earliest goes next. Forwards of the next unit fill what a unit leaves at its end, when its own forwards are over,
/// without more activations than a unit has.
struct Merge<'a> {
    routes: &'a [Vec<Place>],
    units: usize,
    per_route: usize,
    forward: f64,
    backward: f64,
    /// Each pipeline's own order, by stage.
    order: Vec<Vec<Operation>>,
    ranks: Vec<Rank>,
    /// End of each forward and backward, by unit, pipeline, stage and index.
    end: Vec<f64>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl<'a> Merge<'a> {
    fn new(shape: &Shape, routes: &'a [Vec<Place>], units: usize, per_route: usize, double: usize) -> Self {
        let (d, pipelines) = (shape.ranks, routes.len());
        let mut stages = vec![vec![0; pipelines]; d];
        for (chunk, route) in routes.iter().enumerate() {
            for (stage, place) in route.iter().enumerate() {
                stages[place.rank][chunk] = stage;
            }
        }
        let forwards = pipelines * per_route;
        let rank = |stage| Rank {
            list: Vec::with_capacity(2 * forwards * units),
            free: 0.0,
            stage,
            unit: 0,
            done: [vec![0; pipelines], vec![0; pipelines]],
            forwards_left: forwards,
            left: 2 * forwards,
            live: 0,
            peak: 0,
            queued: [vec![false; pipelines], vec![false; pipelines]],
        };
        Self {
            routes,
            units,
            per_route,
            forward: shape.costs.forward,
            backward: shape.costs.backward + shape.costs.weight,
            order: (0..d).map(|stage| stream(d, stage, per_route, double)).collect(),
            ranks: stages.into_iter().map(rank).collect(),
            end: vec![f64::NAN; 2 * units * forwards * d],
            queue: BinaryHeap::new(),
        }
    }

    fn run(mut self) -> Vec<Vec<Instruction>> {
        for rank in 0..self.ranks.len() {
            self.offer_all(rank);
        }
        while let Some(Reverse(found)) = self.queue.pop() {
            let Candidate { rank, chunk, index: (unit, _), .. } = found;
            let later = unit - self.ranks[rank].unit;
            self.ranks[rank].queued[later][chunk] = false;
            // It may have been offered when its rank was free earlier, or had memory for it.
            match self.candidate(rank, chunk, later) {
                Some(now) if now == found => self.plan(found),
                Some(_) => self.offer(rank, chunk, later),
                None => {}
            }
        }
        self.ranks.into_iter().map(|rank| rank.list).collect()
    }

    fn slot(&self, forward: bool, unit: usize, chunk: usize, stage: usize, index: usize) -> usize {
        let (pipelines, d) = (self.routes.len(), self.ranks.len());
        (((unit * 2 + usize::from(forward)) * pipelines + chunk) * d + stage) * self.per_route + index
    }

    /// The pass that a pipeline wants next on a rank, in its unit or the one `later`, if its input has a time.
    fn candidate(&self, rank: usize, chunk: usize, later: usize) -> Option<Candidate> {
        let own = &self.ranks[rank];
        let (stage, unit) = (own.stage[chunk], own.unit + later);
        if unit == self.units {
            return None;
        }
        let Operation { forward, index } = *self.order[stage].get(own.done[later][chunk])?;
        if later == 1 && (own.forwards_left > 0 || !forward || own.live >= own.peak) {
            return None;
        }
        let ready = match forward {
            true if stage == 0 => 0.0,
            true => self.end[self.slot(true, unit, chunk, stage - 1, index)],
            false if stage + 1 == self.ranks.len() => self.end[self.slot(true, unit, chunk, stage, index)],
            false => self.end[self.slot(false, unit, chunk, stage + 1, index)],
        };
        let start = ready.max(own.free);
        (!ready.is_nan()).then_some(Candidate { start, index: (unit, index), ready, rank, chunk })
    }

    /// Puts a candidate into the queue unless it is there.
    fn offer(&mut self, rank: usize, chunk: usize, later: usize) {
        if !self.ranks[rank].queued[later][chunk] {
            let found = self.candidate(rank, chunk, later);
            self.ranks[rank].queued[later][chunk] = found.is_some();
            self.queue.extend(found.map(Reverse));
        }
    }

    fn offer_all(&mut self, rank: usize) {
        for later in 0..2 {
            (0..self.routes.len()).for_each(|chunk| self.offer(rank, chunk, later));
        }
    }

    fn plan(&mut self, found: Candidate) {
        let Candidate { rank, chunk, start, index: (unit, index), .. } = found;
        let own = &mut self.ranks[rank];
        let (stage, later) = (own.stage[chunk], unit - own.unit);
        let Operation { forward, .. } = self.order[stage][own.done[later][chunk]];
        let micro = (unit * self.routes.len() + chunk) * self.per_route + index;
        own.free = start + if forward { self.forward } else { self.backward };
        own.done[later][chunk] += 1;
        match forward {
            true => {
                own.live += 1;
                own.list.push(Instruction::forward(micro, chunk));
            }
            false => {
                own.live -= 1;
                own.list.push(Instruction::backward(micro, chunk));
            }
        }
        if later == 0 {
            own.peak = own.peak.max(own.live);
            own.left -= 1;
            own.forwards_left -= usize::from(forward);
        }
        if own.left == 0 {
            self.next_unit(rank);
        }
        let slot = self.slot(forward, unit, chunk, stage, index);
        self.end[slot] = start + if forward { self.forward } else { self.backward };
        self.offer_all(rank);
        let after = if forward { stage + 1 } else { stage.wrapping_sub(1) };
        if let Some(place) = self.routes[chunk].get(after) {
            let other = place.rank;
            if let Some(later) = unit.checked_sub(self.ranks[other].unit).filter(|later| *later < 2) {
                self.offer(other, chunk, later);
            }
        }
    }

    fn next_unit(&mut self, rank: usize) {
        let (routes, per_route) = (self.routes.len(), self.per_route);
        let own = &mut self.ranks[rank];
        own.unit += 1;
        own.done.swap(0, 1);
        own.done[1].fill(0);
        own.queued.swap(0, 1);
        own.queued[1].fill(false);
        // Of the next unit only forwards have been planned.
        let planned: usize = own.done[0].iter().sum();
        own.forwards_left = routes * per_route - planned;
        own.left = 2 * routes * per_route - planned;
    }
}
