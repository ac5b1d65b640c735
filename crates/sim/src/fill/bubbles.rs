//! Where a program waits, and what has been put there, step after step.

use super::ROUNDING;
use crate::Timeline;
use crate::timeline::is_work;
use bessemer_schedule::{Instruction, Program};

/// A time in which a rank waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gap {
    start: f64,
    end: f64,
    /// Position in the rank's list before which something may be put.
    pub(super) at: usize,
}

/// Part of a gap that is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slot {
    start: f64,
    end: f64,
    pub(super) unit: usize,
}

/// Unit of work in a gap.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    /// In the order of time.
    pub(super) slots: Vec<Slot>,
    /// Its longest free part.
    free: f64,
    /// Something that is too long for it stands here, and nothing more is to come.
    full: bool,
}

/// By rank and gap.
type Rows = Vec<Vec<Row>>;

/// Where in a step a unit begins: the same moment in a gap of each of its ranks.
#[derive(Debug, Clone)]
pub(super) struct At {
    step: usize,
    start: f64,
    gaps: Vec<usize>,
}

/// The bubbles of all steps. Steps have one length and follow each other without a pause.
#[derive(Debug)]
pub(super) struct Bubbles {
    /// Of a step.
    pub(super) length: f64,
    /// By rank; the last one stands before the optimizer's steps and is there even if it has no length.
    pub(super) gaps: Vec<Vec<Gap>>,
    /// A step with what is done in every step.
    every: Rows,
    pub(super) steps: Vec<Rows>,
    /// Whether there is one step only, which stands for all.
    single: bool,
}

impl Bubbles {
    pub(super) fn new(program: &Program, timeline: &Timeline) -> Bubbles {
        let ends = timeline.intervals.iter().flatten().map(|t| t.end);
        let length = ends.fold(0.0, f64::max);
        let least = length * ROUNDING;
        let gaps: Vec<Vec<Gap>> =
            (0..program.ranks()).map(|rank| gaps(program, timeline, rank, (length, least))).collect();
        let row = |gap: &Gap| Row { free: gap.end - gap.start, ..Row::default() };
        let every: Rows = gaps.iter().map(|gaps| gaps.iter().map(row).collect()).collect();
        Bubbles { length, gaps, steps: vec![every.clone()], every, single: true }
    }

    /// What has been placed so far is done in every step; what follows in one of them.
    pub(super) fn begin_steps(&mut self) {
        self.every = self.steps[0].clone();
        self.single = false;
    }

    /// The earliest moment from `from` on in which all `ranks` have `room` in a bubble; none if even empty steps have none.
    pub(super) fn find(&mut self, ranks: &[usize], from: f64, room: f64) -> Option<At> {
        let first = self.step_at(from);
        let mut step = first;
        let mut from = from - step as f64 * self.length;
        let mut fresh = false;
        loop {
            if self.single && step > 0 {
                return None;
            }
            while self.steps.len() <= step && !self.single {
                self.steps.push(self.every.clone());
                fresh = true;
            }
            if let Some((start, gaps)) = self.find_in(&self.steps[step], ranks, from, room) {
                return Some(At { step, start, gaps });
            }
            // A step with nothing in it but what every step has, looked through from its beginning.
            if fresh && from <= 0.0 {
                return None;
            }
            fresh = false;
            step += 1;
            from = 0.0;
        }
    }

    fn find_in(&self, rows: &Rows, ranks: &[usize], from: f64, room: f64) -> Option<(f64, Vec<usize>)> {
        let least = self.length * ROUNDING;
        let mut start = from;
        let mut gaps = vec![0; ranks.len()];
        loop {
            let before = start;
            for (gap, &rank) in gaps.iter_mut().zip(ranks) {
                (*gap, start) = (0..self.gaps[rank].len()).find_map(|g| {
                    let row = &rows[rank][g];
                    if row.full || row.free + least < room {
                        return None;
                    }
                    fit(&row.slots, &self.gaps[rank][g], start, room, least).map(|start| (g, start))
                })?;
            }
            if start <= before || ranks.len() == 1 {
                return Some((start, gaps));
            }
        }
    }

    /// Takes a place; the step and the moment at which a unit of `time` is over there.
    pub(super) fn take(
        &mut self,
        ranks: &[usize],
        at: At,
        (time, room): (f64, f64),
        unit: usize,
    ) -> (usize, f64) {
        let At { step, start, gaps } = at;
        for (gap, &rank) in gaps.into_iter().zip(ranks) {
            let whole = self.gaps[rank][gap];
            let row = &mut self.steps[step][rank][gap];
            let at = row.slots.partition_point(|s| s.start <= start);
            row.slots.insert(at, Slot { start, end: start + room, unit });
            let mut free = 0.0f64;
            let mut last = whole.start;
            for slot in &row.slots {
                free = free.max(slot.start - last);
                last = last.max(slot.end);
            }
            row.free = free.max(whole.end - last);
        }
        // The margin counts: what follows begins when the unit is over even if it is slower.
        (step, step as f64 * self.length + start + room.max(time))
    }

    /// Puts a unit that fits nowhere into the longest gap of its rank, in the first step in which that is empty; one of
    /// several ranks behind everything else. The step, and its end.
    pub(super) fn force(&mut self, ranks: &[usize], from: f64, unit: usize) -> (usize, f64) {
        let least = self.length * ROUNDING;
        let longest = |rank: usize| {
            let gaps = &self.gaps[rank];
            let last = gaps.len() - 1;
            let length = |g: usize| gaps[g].end - gaps[g].start;
            let empty = (0..last).filter(|g| self.every[rank][*g].slots.is_empty());
            let best = empty.fold(last, |best, g| if length(g) > length(best) + least { g } else { best });
            if ranks.len() > 1 { last } else { best }
        };
        let gaps: Vec<usize> = ranks.iter().map(|r| longest(*r)).collect();
        let mut step = self.step_at(from);
        loop {
            while self.steps.len() <= step && !self.single {
                self.steps.push(self.every.clone());
            }
            let begin = from - step as f64 * self.length;
            let last = |rank: usize| self.gaps[rank].len() - 1;
            let free = ranks.iter().zip(&gaps).all(|(&rank, &gap)| {
                let row = &self.steps[step][rank][gap];
                let alone = gap == last(rank)
                    || (row.slots.is_empty() && self.gaps[rank][gap].start + least >= begin);
                alone && !self.steps[step][rank].iter().any(|row| row.full)
            });
            if free || self.single {
                break;
            }
            step += 1;
        }
        for (&rank, &gap) in ranks.iter().zip(&gaps) {
            let end = self.gaps[rank][gap].end;
            let row = &mut self.steps[step][rank][gap];
            row.slots.push(Slot { start: end, end: f64::INFINITY, unit });
            row.full = true;
        }
        (step, (step + 1) as f64 * self.length)
    }

    /// Leaves out steps at the end in which nothing is done.
    pub(super) fn trim(&mut self) {
        let slots = |rows: &Rows| rows.iter().flatten().map(|row| row.slots.len()).sum::<usize>();
        while self.steps.len() > 1 && self.steps.last().is_some_and(|last| slots(last) == slots(&self.every))
        {
            self.steps.pop();
        }
    }

    fn step_at(&self, time: f64) -> usize {
        if self.length > 0.0 { (time / self.length * (1.0 + ROUNDING)) as usize } else { 0 }
    }
}

/// The earliest start from `from` on with `room` between what is taken.
fn fit(slots: &[Slot], gap: &Gap, from: f64, room: f64, least: f64) -> Option<f64> {
    let mut start = gap.start.max(from);
    for slot in slots {
        if start + room <= slot.start + least {
            return Some(start);
        }
        start = start.max(slot.end);
    }
    (start + room <= gap.end + least).then_some(start)
}

/// The times in which a rank waits. Those between the passes end when the instruction that waited goes on; the last one
/// stands before the optimizer's steps, which may be as late as the step's end allows.
fn gaps(program: &Program, timeline: &Timeline, rank: usize, (length, least): (f64, f64)) -> Vec<Gap> {
    let (list, times) = (&program.lists[rank], &timeline.intervals[rank]);
    let updates = list.iter().rev().take_while(|i| {
        matches!(i, Instruction::Step { .. } | Instruction::Gather { .. } | Instruction::Fill(_))
    });
    let block = list.len() - updates.count();
    let mut gaps = Vec::new();
    let mut clock = 0.0f64;
    for (index, (instruction, time)) in list.iter().zip(times).enumerate().take(block) {
        let goes_on = if is_work(instruction) { time.start } else { time.end };
        if goes_on > clock + least {
            gaps.push(Gap { start: clock, end: goes_on, at: index });
        }
        clock = clock.max(time.end);
    }
    let busy: f64 = (block..list.len()).map(|i| times[i].length()).sum();
    gaps.push(Gap { start: clock, end: (length - busy).max(clock), at: block });
    gaps
}
