//! When every instruction begins and ends.

use bessemer_schedule::{Instruction, Program};

/// From when to when. A receive lasts from when the rank asks until the message is there.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Beginning.
    pub start: f64,
    /// End.
    pub end: f64,
}

impl Interval {
    /// `end - start`.
    pub fn length(&self) -> f64 {
        self.end - self.start
    }
}

/// An instruction of a program: position `index` in the list of `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step {
    /// Rank.
    pub rank: usize,
    /// Position, from 0.
    pub index: usize,
}

/// A program's instructions in time. Everything starts at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// By rank and position, as in [`Program::lists`].
    pub intervals: Vec<Vec<Interval>>,
    /// Where an instruction that waited for another rank waited for the end of.
    pub(crate) causes: Vec<Vec<Option<(u32, u32)>>>,
    /// Every (rank, position) in an order in which each comes after all that it waited for.
    pub(crate) order: Vec<(u32, u32)>,
}

/// Whether an instruction is work: it takes time of its own. Receives only wait, sends only hand over.
pub(crate) fn is_work(instruction: &Instruction) -> bool {
    !matches!(instruction, Instruction::Send { .. } | Instruction::Receive { .. })
}

impl Timeline {
    /// The work of a rank: its instructions that take time.
    pub fn work<'a>(
        &'a self,
        program: &'a Program,
        rank: usize,
    ) -> impl Iterator<Item = (usize, &'a Instruction, Interval)> + 'a {
        let list = program.lists[rank].iter().zip(&self.intervals[rank]).enumerate();
        list.filter(|(_, (i, t))| is_work(i) && t.end > t.start).map(|(index, (i, t))| (index, i, *t))
    }

    /// Time in which a rank works.
    pub fn busy(&self, program: &Program, rank: usize) -> f64 {
        self.work(program, rank).map(|(_, _, t)| t.length()).sum()
    }

    /// First start and last end of a rank's work; `None` if it has none.
    pub fn extent(&self, program: &Program, rank: usize) -> Option<Interval> {
        self.work(program, rank)
            .map(|(_, _, t)| t)
            .reduce(|a, b| Interval { start: a.start.min(b.start), end: a.end.max(b.end) })
    }

    /// Last end minus first start of a rank's work.
    pub fn span(&self, program: &Program, rank: usize) -> f64 {
        self.extent(program, rank).map_or(0.0, |t| t.length())
    }

    /// Last end over all ranks minus first start over all ranks.
    pub fn makespan(&self, program: &Program) -> f64 {
        let all = (0..program.ranks()).filter_map(|rank| self.extent(program, rank));
        let whole = all.reduce(|a, b| Interval { start: a.start.min(b.start), end: a.end.max(b.end) });
        whole.map_or(0.0, |t| t.length())
    }

    /// What the makespan consists of: from the work that ends last back to a beginning, each time the instruction for
    /// whose end the next one waited. In the order of time.
    pub fn critical_path(&self, program: &Program) -> Vec<Step> {
        let ends = (0..program.ranks()).flat_map(|rank| {
            self.work(program, rank).map(move |(index, _, t)| (t.end, Step { rank, index }))
        });
        let last = ends.fold(None, |best: Option<(f64, Step)>, next| match best {
            Some(b) if b.0 >= next.0 => Some(b),
            _ => Some(next),
        });
        let mut path = Vec::new();
        let mut at = last.map(|(_, step)| step);
        while let Some(step) = at {
            let Step { rank, index } = step;
            let t = self.intervals[rank][index];
            if is_work(&program.lists[rank][index]) && t.end > t.start {
                path.push(step);
            }
            at = match self.causes[rank][index] {
                Some((rank, index)) => Some(Step { rank: rank as usize, index: index as usize }),
                None => index.checked_sub(1).map(|index| Step { rank, index }),
            };
        }
        path.reverse();
        path
    }
}
