//! Attention in blocks: the queries of one rank and the keys of one rank each. Which rank computes which block at which step, and which
//! messages that takes.
//!
//! | | `ring` (Li et al. 2021; Liu et al. 2023) | `lightseq` (Li et al. 2023, algorithm 2) |
//! |---|---|---|
//! | step t, t = 0, 1, ... | rank r: its queries, keys of rank r - t (mod n) | rank r >= t: its queries, keys of rank r - t; rank r < t: queries of rank r - t + n, its keys, unless the owner has reached that block |
//! | keys come | from the neighbour before, who had them at the step before | from their owner |
//! | gradients of keys go | to the neighbour behind, with the sum so far; from the last one home | to their owner, term by term |
//!
//! A block that the mask hides is no task, and nothing is sent for it.

use std::collections::BTreeSet;

/// One block, and the rank that computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockTask {
    /// Rank that computes it.
    pub rank: usize,
    /// Rank whose queries these are.
    pub queries: usize,
    /// Rank whose keys and values these are.
    pub keys: usize,
}

/// Contents of one rank's rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RowsContents {
    /// The values themselves.
    Whole,
    /// Results for queries that have seen the keys of these ranks only.
    OfKeys(BTreeSet<usize>),
    /// Terms of gradients of keys, from the queries of these ranks only.
    OfQueries(BTreeSet<usize>),
}

/// Message from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsMessage {
    /// Receiver.
    pub to: usize,
    /// Rank whose rows are sent.
    pub rows_of: usize,
    /// Contents of these rows.
    pub contents: RowsContents,
}

/// Messages of one step, by sender: each rank sends at most one and receives at most one.
pub type Messages = Vec<Option<RowsMessage>>;

/// Blocks of an attention over `ranks` ranks, step by step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSchedule {
    /// Ranks.
    pub ranks: usize,
    /// Whether keys, and the sums of their gradients, go from neighbour to neighbour.
    pub relayed: bool,
    /// By step, the tasks: at most one a rank.
    pub steps: Vec<Vec<BlockTask>>,
}

impl BlockSchedule {
    /// Keys and values go round; `sees` says which ranks' queries see which ranks' keys.
    pub fn ring(ranks: usize, sees: impl Fn(usize, usize) -> bool) -> BlockSchedule {
        let task =
            |step: usize, rank: usize| BlockTask { rank, queries: rank, keys: (rank + ranks - step) % ranks };
        BlockSchedule::new(ranks, true, ranks, |step, rank| Some(task(step, rank)), sees)
    }

    /// Ranks whose own queries see few keys compute blocks of others. For causal attention to consecutive positions: only then are the
    /// blocks of which `sees` may be true those of keys before queries.
    pub fn lightseq(ranks: usize, sees: impl Fn(usize, usize) -> bool) -> BlockSchedule {
        let task = |step: usize, rank: usize| match rank.checked_sub(step) {
            Some(keys) => Some(BlockTask { rank, queries: rank, keys }),
            // At the last step of an even number of ranks the owners compute these themselves.
            None if 2 * step < ranks => Some(BlockTask { rank, queries: rank + ranks - step, keys: rank }),
            None => None,
        };
        BlockSchedule::new(ranks, false, ranks / 2 + 1, task, sees)
    }

    fn new(
        ranks: usize,
        relayed: bool,
        steps: usize,
        task: impl Fn(usize, usize) -> Option<BlockTask>,
        sees: impl Fn(usize, usize) -> bool,
    ) -> BlockSchedule {
        let of = |step| {
            let all = (0..ranks).filter_map(|rank| task(step, rank));
            all.filter(|task| sees(task.queries, task.keys)).collect::<Vec<_>>()
        };
        let mut steps: Vec<Vec<BlockTask>> = (0..steps).map(of).collect();
        while steps.last().is_some_and(Vec::is_empty) {
            steps.pop();
        }
        BlockSchedule { ranks, relayed, steps }
    }

    /// The task of a rank at a step.
    pub fn task(&self, step: usize, rank: usize) -> Option<BlockTask> {
        self.steps.get(step)?.iter().copied().find(|task| task.rank == rank)
    }

    /// The last step at which a rank computes with these keys.
    fn last(&self, keys: usize) -> usize {
        let computes = |tasks: &Vec<BlockTask>| tasks.iter().any(|task| task.keys == keys);
        self.steps.iter().rposition(computes).unwrap_or(0)
    }

    fn messages(&self, all: impl Iterator<Item = (usize, RowsMessage)>) -> Messages {
        let mut messages = vec![None; self.ranks];
        all.for_each(|(from, message)| messages[from] = Some(message));
        messages
    }

    fn tasks(&self, step: usize, wanted: impl Fn(&BlockTask) -> bool) -> impl Iterator<Item = BlockTask> {
        self.steps.get(step).into_iter().flatten().copied().filter(move |task| wanted(task))
    }

    /// Keys that are sent for a step, which is not the first.
    pub fn keys(&self, step: usize) -> Messages {
        let whole = |to, rows_of| RowsMessage { to, rows_of, contents: RowsContents::Whole };
        if self.relayed {
            let hops = (0..self.ranks).filter(|keys| step <= self.last(*keys));
            return self.messages(hops.map(|keys| {
                let to = (keys + step) % self.ranks;
                ((to + self.ranks - 1) % self.ranks, whole(to, keys))
            }));
        }
        self.messages(self.tasks(step, |t| t.keys != t.rank).map(|t| (t.keys, whole(t.rank, t.keys))))
    }

    /// Queries that are sent for a step.
    pub fn queries(&self, step: usize) -> Messages {
        let of = |t: BlockTask| RowsMessage { to: t.rank, rows_of: t.queries, contents: RowsContents::Whole };
        self.messages(self.tasks(step, |t| t.queries != t.rank).map(|t| (t.queries, of(t))))
    }

    /// Results of a step that go to the ranks whose queries they are of.
    pub fn results(&self, step: usize) -> Messages {
        let of = |t: BlockTask| {
            let contents = RowsContents::OfKeys([t.keys].into());
            (t.rank, RowsMessage { to: t.queries, rows_of: t.queries, contents })
        };
        self.messages(self.tasks(step, |t| t.queries != t.rank).map(of))
    }

    /// Sums of gradients of keys that go on to the neighbour after a step.
    pub fn gradients_on(&self, step: usize) -> Messages {
        let hops = (0..self.ranks).filter(|keys| self.relayed && step < self.last(*keys));
        self.messages(hops.map(|keys| {
            let from = (keys + step) % self.ranks;
            let contents = RowsContents::OfQueries(self.queries_until(step, keys));
            (from, RowsMessage { to: (from + 1) % self.ranks, rows_of: keys, contents })
        }))
    }

    /// Gradients of keys that go to the rank whose keys they are after a step.
    pub fn gradients_home(&self, step: usize) -> Messages {
        if self.relayed {
            let ends = (0..self.ranks).filter(|keys| step > 0 && step == self.last(*keys));
            return self.messages(ends.map(|keys| {
                let contents = RowsContents::OfQueries(self.queries_until(step, keys));
                ((keys + step) % self.ranks, RowsMessage { to: keys, rows_of: keys, contents })
            }));
        }
        let of = |t: BlockTask| {
            let contents = RowsContents::OfQueries([t.queries].into());
            (t.rank, RowsMessage { to: t.keys, rows_of: t.keys, contents })
        };
        self.messages(self.tasks(step, |t| t.keys != t.rank).map(of))
    }

    /// Ranks whose queries have met these keys up to a step.
    fn queries_until(&self, step: usize, keys: usize) -> BTreeSet<usize> {
        let tasks = self.steps[..=step].iter().flatten().filter(|task| task.keys == keys);
        tasks.map(|task| task.queries).collect()
    }

    /// Part of all ranks' steps in which they compute nothing.
    pub fn idle(&self) -> f64 {
        let all = self.ranks * self.steps.len();
        1.0 - self.steps.iter().map(Vec::len).sum::<usize>() as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PositionOrder;

    fn causal(query: usize, key: usize) -> bool {
        key <= query
    }

    /// Every block that is seen exactly once, at most one a rank and step.
    fn covers(schedule: &BlockSchedule, sees: impl Fn(usize, usize) -> bool) {
        let ranks = schedule.ranks;
        let mut found: Vec<(usize, usize)> =
            schedule.steps.iter().flatten().map(|task| (task.queries, task.keys)).collect();
        found.sort_unstable();
        let all = (0..ranks).flat_map(|q| (0..ranks).map(move |k| (q, k)));
        assert_eq!(found, all.filter(|(q, k)| sees(*q, *k)).collect::<Vec<_>>(), "{schedule:?}");
        for step in &schedule.steps {
            let busy: BTreeSet<usize> = step.iter().map(|task| task.rank).collect();
            assert_eq!(busy.len(), step.len());
        }
    }

    /// A partial permutation, whose senders have what they send, and no message to oneself.
    fn permutes(messages: &Messages) -> usize {
        let sent: Vec<(usize, &RowsMessage)> =
            messages.iter().enumerate().filter_map(|(from, m)| Some((from, m.as_ref()?))).collect();
        let to: BTreeSet<usize> = sent.iter().map(|(_, m)| m.to).collect();
        assert_eq!(to.len(), sent.len(), "{messages:?}");
        assert!(sent.iter().all(|(from, m)| m.to != *from && m.to < messages.len()));
        sent.len()
    }

    #[test]
    fn lightseq_computes_every_causal_block_once_and_odd_numbers_of_ranks_never_wait() {
        for ranks in 2..=16 {
            let schedule = BlockSchedule::lightseq(ranks, causal);
            covers(&schedule, causal);
            assert_eq!(schedule.steps.len(), ranks / 2 + 1);
            let idle = schedule.idle();
            println!("{ranks} ranks: {} steps, idle {:.2} %", schedule.steps.len(), 100.0 * idle);
            // Of an even number half of the ranks have no block at the last of n/2 + 1 steps.
            let wanted = if ranks % 2 == 1 { 0.0 } else { 1.0 / (ranks + 2) as f64 };
            assert!((idle - wanted).abs() < 1e-12, "{ranks}: {idle} {wanted}");
        }
    }

    /// Of consecutive positions, as published: (n^2 - n) / (2 n^2) of all steps. None where every rank sees some of every other's keys.
    #[test]
    fn a_ring_computes_every_block_once_and_waits_where_positions_are_consecutive() {
        for ranks in 2..=16 {
            let schedule = BlockSchedule::ring(ranks, causal);
            covers(&schedule, causal);
            let wanted = (ranks * ranks - ranks) as f64 / (2 * ranks * ranks) as f64;
            assert!((schedule.idle() - wanted).abs() < 1e-12);
            for order in [PositionOrder::ZigZag, PositionOrder::Striped] {
                let sees = |q, k| order.sees(4 * ranks, ranks, None, q, k);
                let schedule = BlockSchedule::ring(ranks, sees);
                covers(&schedule, sees);
                assert_eq!(schedule.idle(), 0.0);
            }
        }
    }

    /// Who receives what it computes with, and every gradient gets home with the terms of all queries, for windows too.
    #[test]
    fn messages_bring_what_tasks_need() {
        for ranks in 2..=9 {
            for window in [None, Some(3), Some(7)] {
                let sees = |q, k| PositionOrder::Consecutive.sees(2 * ranks, ranks, window, q, k);
                for schedule in [BlockSchedule::ring(ranks, sees), BlockSchedule::lightseq(ranks, sees)] {
                    covers(&schedule, sees);
                    follow(&schedule, sees);
                }
            }
        }
    }

    fn follow(schedule: &BlockSchedule, sees: impl Fn(usize, usize) -> bool) {
        let ranks = schedule.ranks;
        let mut has: Vec<BTreeSet<usize>> = (0..ranks).map(|rank| [rank].into()).collect();
        let mut home: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); ranks];
        for step in 0..schedule.steps.len() {
            let mut queries: Vec<BTreeSet<usize>> = (0..ranks).map(|rank| [rank].into()).collect();
            if step > 0 {
                permutes(&schedule.keys(step));
                let before = has.clone();
                for (from, message) in schedule.keys(step).iter().enumerate() {
                    let Some(m) = message else { continue };
                    assert!(before[from].contains(&m.rows_of), "{schedule:?}");
                    has[m.to].insert(m.rows_of);
                }
            }
            for message in schedule.queries(step).into_iter().flatten() {
                queries[message.to].insert(message.rows_of);
            }
            for task in &schedule.steps[step] {
                assert!(has[task.rank].contains(&task.keys) && queries[task.rank].contains(&task.queries));
                if task.keys == task.rank {
                    home[task.keys].insert(task.queries);
                }
            }
            for messages in [schedule.queries(step), schedule.results(step), schedule.gradients_on(step)] {
                permutes(&messages);
            }
            permutes(&schedule.gradients_home(step));
            for message in schedule.gradients_home(step).into_iter().flatten() {
                let RowsContents::OfQueries(terms) = message.contents else { panic!("{schedule:?}") };
                assert!(schedule.relayed || terms.is_disjoint(&home[message.to]));
                home[message.to].extend(terms);
            }
        }
        for (keys, home) in home.iter().enumerate() {
            let wanted: BTreeSet<usize> = (0..ranks).filter(|q| sees(*q, keys)).collect();
            assert_eq!(*home, wanted, "gradients of keys {keys}: {schedule:?}");
        }
    }
}
