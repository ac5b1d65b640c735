//! V-Half and V-Min (Qi et al. 2024, "Pipeline parallelism with balanced memory", arXiv 2405.15362): the two chunks of a V,
//! micro-batches further apart than in ZB-V, so that less of them is live at once.
//!
//! Every micro-batch repeats one *building block* six units of time after the one before (a unit is a pass of a chunk).
//! How many units lie between the passes of neighbouring ranks sets the memory, on every rank (p+2)/2 micro-batches for
//! V-Half and (p+4)/3 for V-Min, in whole chunks. The block gives the order; a pass may go before others of its block if
//! it can start earlier and memory allows, and weight parts fill the gaps. The order is made for equal times and
//! activations of which half stay until the weight part. Bubble then, as simulated here, in times of a rank's F: `1.5 p - 3.5`
//! for V-Half, at most `2 p - 3.5` for V-Min, where 1F1B has `3 (p-1)`. For models that do not fit under 1F1B.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{synchronous, vee};
use crate::{Instruction, Program, Shape};

/// Units of time from a rank's pass to that of the next: forward there and back, backward there and back.
type Steps = [usize; 4];

pub(crate) fn v_half(shape: &Shape) -> Program {
    program("v-half", shape, [2, 1, 2, 1], shape.ranks + 2)
}

pub(crate) fn v_min(shape: &Shape) -> Program {
    program("v-min", shape, [1, 1, 1, 1], (2 * shape.ranks + 8) / 3)
}

/// Live chunks of a rank never exceed `chunks`.
fn program(name: &str, shape: &Shape, steps: Steps, chunks: usize) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous(name, p, m, vec![vee(p)]);
    let block = block(p, steps);
    let planned = Plan::new(&block, m, 2 * chunks, PERIOD).run();
    // In the order of the block itself every pass finds its input.
    let lists = planned.or_else(|| Plan::new(&block, m, usize::MAX, 0).run());
    program.lists = lists.unwrap_or_default();
    program
}

/// A micro-batch has six passes on each rank, so one can begin in every so many units.
const PERIOD: usize = 6;

/// The passes of a building block that others wait for, in the order of [`Rank::done`].
const PASSES: [(bool, usize); 4] = [(true, 0), (true, 1), (false, 1), (false, 0)];

/// For each rank the start of each pass of the first micro-batch. Where the three turns are is chosen so that the passes
/// of different micro-batches meet on no rank.
fn block(p: usize, steps: Steps) -> Vec<[usize; 4]> {
    let with = |turn: usize, last: usize| {
        let back = steps[0] * (p - 1) + 1;
        let down = back + steps[1] * (p - 1) + 1 + turn;
        let up = down + steps[2] * (p - 1) + 1 + last;
        let start = move |r: usize| {
            [steps[0] * r, back + steps[1] * (p - 1 - r), down + steps[2] * r, up + steps[3] * (p - 1 - r)]
        };
        (0..p).map(start)
    };
    let free = |(turn, last): &(usize, usize)| {
        with(*turn, *last)
            .take(PERIOD)
            .all(|starts| (0..4).all(|a| (0..a).all(|b| starts[a] % PERIOD != starts[b] % PERIOD)))
    };
    let waits = (0..2 * PERIOD).flat_map(|sum| (0..=sum).map(move |turn| (turn, sum - turn)));
    let (turn, last) = waits.into_iter().find(free).unwrap_or_default();
    with(turn, last).collect()
}

/// One rank as far as it is planned.
struct Rank {
    list: Vec<Instruction>,
    /// Passes done, as in [`PASSES`].
    done: [usize; 4],
    /// Weight parts that are due: chunk and micro-batch.
    due: VecDeque<(usize, usize)>,
    free: usize,
    /// Half chunks: a forward takes two, its input part and its weight part give one back each.
    live: usize,
    /// Counts what has been offered, so that older offers are known.
    offer: usize,
}

/// A candidate for a rank's next pass; the least goes first. Weight parts come after everything else that starts as early, unless
/// they free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    start: usize,
    weight: bool,
    /// When the building block has it.
    block: usize,
    rank: usize,
    /// As in [`PASSES`], or 4 for a weight part.
    pass: usize,
    number: usize,
}

struct Plan<'a> {
    block: &'a [[usize; 4]],
    m: usize,
    limit: usize,
    /// How far behind the next pass of the block another may be.
    slack: usize,
    ranks: Vec<Rank>,
    /// End of each forward, then of each input part, by micro-batch and stage.
    end: Vec<usize>,
    queue: BinaryHeap<Reverse<Offer>>,
}

/// Not planned.
const NEVER: usize = usize::MAX;

impl<'a> Plan<'a> {
    fn new(block: &'a [[usize; 4]], m: usize, limit: usize, slack: usize) -> Self {
        let rank = |_| Rank {
            list: Vec::with_capacity(6 * m),
            done: [0; 4],
            due: VecDeque::new(),
            free: 0,
            live: 0,
            offer: 0,
        };
        let ranks = (0..block.len()).map(rank).collect();
        let end = vec![NEVER; 4 * block.len() * m];
        Self { block, m, limit, slack, ranks, end, queue: BinaryHeap::new() }
    }

    /// The lists, or nothing where the memory does not suffice to go on.
    fn run(mut self) -> Option<Vec<Vec<Instruction>>> {
        (0..self.ranks.len()).for_each(|rank| self.offer(rank));
        while let Some(Reverse(offer)) = self.queue.pop() {
            if self.ranks[offer.rank].offer == offer.number {
                self.take(offer);
            }
        }
        let complete = self.ranks.iter().all(|rank| rank.list.len() == 6 * self.m);
        complete.then(|| self.ranks.into_iter().map(|rank| rank.list).collect())
    }

    fn stage(&self, rank: usize, chunk: usize) -> usize {
        if chunk == 0 { rank } else { 2 * self.ranks.len() - 1 - rank }
    }

    fn slot(&self, forward: bool, stage: usize, micro: usize) -> usize {
        (usize::from(!forward) * self.m + micro) * 2 * self.ranks.len() + stage
    }

    /// When the input of a pass is there.
    fn ready(&self, rank: usize, (forward, chunk): (bool, usize), micro: usize) -> usize {
        let (stage, last) = (self.stage(rank, chunk), 2 * self.ranks.len() - 1);
        match forward {
            true if stage == 0 => 0,
            true => self.end[self.slot(true, stage - 1, micro)],
            false if stage == last => self.end[self.slot(true, stage, micro)],
            false => self.end[self.slot(false, stage + 1, micro)],
        }
    }

    /// When the block has the next pass of a sort, if one is left.
    fn in_block(&self, rank: usize, pass: usize) -> Option<usize> {
        let done = self.ranks[rank].done[pass];
        (done < self.m).then(|| self.block[rank][pass] + PERIOD * done)
    }

    /// Returns the best candidate for a rank's next pass.
    fn best(&self, rank: usize) -> Option<Offer> {
        let own = &self.ranks[rank];
        let next = (0..4).filter_map(|pass| self.in_block(rank, pass)).min();
        let mut blocked = false;
        let mut best = None;
        for (pass, kind) in PASSES.into_iter().enumerate() {
            let Some(block) = self.in_block(rank, pass) else { continue };
            if next.is_some_and(|next| block > next + self.slack) {
                continue;
            }
            if kind.0 {
                // Forwards that the block has before this one must still find room.
                let before = |other: usize| self.in_block(rank, other).is_some_and(|other| other < block);
                let forwards = 1 + (0..2).filter(|&other| before(other)).count();
                if own.live + 2 * forwards > self.limit {
                    blocked |= next == Some(block);
                    continue;
                }
            }
            let ready = self.ready(rank, kind, own.done[pass]);
            if ready != NEVER {
                let start = ready.max(own.free);
                let offer = Offer { start, weight: false, block, rank, pass, number: 0 };
                best = Some(best.map_or(offer, |best: Offer| best.min(offer)));
            }
        }
        if !own.due.is_empty() {
            let offer = Offer { start: own.free, weight: !blocked, block: 0, rank, pass: 4, number: 0 };
            best = Some(best.map_or(offer, |best: Offer| best.min(offer)));
        }
        best
    }

    fn offer(&mut self, rank: usize) {
        self.ranks[rank].offer += 1;
        if let Some(best) = self.best(rank) {
            self.queue.push(Reverse(Offer { number: self.ranks[rank].offer, ..best }));
        }
    }

    fn take(&mut self, Offer { start, rank, pass, .. }: Offer) {
        let own = &mut self.ranks[rank];
        own.free = start + 1;
        let Some(&(forward, chunk)) = PASSES.get(pass) else {
            if let Some((chunk, micro)) = own.due.pop_front() {
                own.list.push(Instruction::backward_weight(micro, chunk));
                own.live -= 1;
            }
            return self.offer(rank);
        };
        let micro = own.done[pass];
        own.done[pass] += 1;
        if forward {
            own.live += 2;
            own.list.push(Instruction::forward(micro, chunk));
        } else {
            own.live -= 1;
            own.due.push_back((chunk, micro));
            own.list.push(Instruction::backward_input(micro, chunk));
        }
        let stage = self.stage(rank, chunk);
        let slot = self.slot(forward, stage, micro);
        self.end[slot] = start + 1;
        self.offer(rank);
        let p = self.ranks.len();
        let other = if forward { stage + 1 } else { stage.wrapping_sub(1) };
        let holder = if other < p { other } else { (2 * p - 1).wrapping_sub(other) };
        if other < 2 * p && holder != rank {
            self.offer(holder);
        }
    }
}
