//! The gate of a job: the number of threads inside, counted by a tree.
//!
//! Every group of workers has a counter, every [`FAN_IN`] counters have one above them, and so on to the root. A counter that is
//! not zero counts as one in the counter above it, so the root is zero exactly if no thread is inside (a scalable nonzero indicator:
//! Ellen, Lev, Luchangco & Moir 2007, doi:10.1145/1281100.1281106, without its version numbers: threads that find zero enter above
//! first, and leave there again if another came before them). At most FAN_IN workers or counters write to a counter, and there are
//! O(log p) levels for p workers, instead of p serial updates of a single counter.

use super::Line;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters below a counter at most.
pub(crate) const FAN_IN: usize = 8;

/// Bit of the state that lets workers in; above it the epoch.
const OPEN: u64 = 1;

/// Lets workers into the job of an epoch while it is open.
pub(super) struct Gate {
    state: Line<AtomicU64>,
    /// Counters of the groups first, the root last.
    levels: Vec<Vec<Line<AtomicUsize>>>,
}

impl Gate {
    /// A closed gate for so many groups.
    pub(super) fn new(groups: usize) -> Gate {
        let level = |counters| (0..counters).map(|_| Line(AtomicUsize::new(0))).collect::<Vec<_>>();
        let mut levels = vec![level(groups.max(1))];
        while let Some(counters) = levels.last().map(Vec::len).filter(|&n| n > 1) {
            levels.push(level(counters.div_ceil(FAN_IN)));
        }
        Gate { state: Line(AtomicU64::new(0)), levels }
    }

    /// Opens it under a new epoch, which it returns. Only when it is closed and empty.
    pub(super) fn open(&self) -> u32 {
        let epoch = self.epoch().wrapping_add(1);
        self.state.0.store(u64::from(epoch) << 1 | OPEN, Ordering::SeqCst);
        epoch
    }

    /// Closes the gate: only threads of a group that has a thread inside may still enter.
    pub(super) fn close(&self) {
        self.state.0.fetch_and(!OPEN, Ordering::SeqCst);
    }

    /// True if no thread is inside, or about to enter or to find the gate closed. If the gate is closed, no thread enters after that.
    pub(super) fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|root| root[0].0.load(Ordering::SeqCst) == 0)
    }

    /// The epoch of the last opening; inside it stays.
    pub(super) fn epoch(&self) -> u32 {
        (self.state.0.load(Ordering::SeqCst) >> 1) as u32
    }

    /// Enters for `group`; `None` if the gate is closed, else true for the first of the group.
    pub(super) fn enter(&self, group: usize) -> Option<bool> {
        self.enter_at(0, group)
    }

    /// Leaves for `group`, after having entered.
    pub(super) fn leave(&self, group: usize) {
        self.leave_at(0, group);
    }

    fn enter_at(&self, level: usize, index: usize) -> Option<bool> {
        let count = &self.levels[level][index].0;
        if level + 1 == self.levels.len() {
            // Increments the count before it reads the state; the closing thread writes the state before it reads the count: one of
            // the two sees the other.
            let before = count.fetch_add(1, Ordering::SeqCst);
            if self.state.0.load(Ordering::SeqCst) & OPEN == 0 {
                count.fetch_sub(1, Ordering::SeqCst);
                return None;
            }
            return Some(before == 0);
        }
        let mut seen = count.load(Ordering::SeqCst);
        loop {
            if seen == 0 {
                self.enter_at(level + 1, index / FAN_IN)?;
            }
            let outcome = count.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::SeqCst);
            match outcome {
                Ok(_) => return Some(seen == 0),
                Err(now) => {
                    if seen == 0 {
                        self.leave_at(level + 1, index / FAN_IN);
                    }
                    seen = now;
                }
            }
        }
    }

    fn leave_at(&self, level: usize, index: usize) {
        let before = self.levels[level][index].0.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && level + 1 < self.levels.len() {
            self.leave_at(level + 1, index / FAN_IN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_counts_groups_and_not_workers() {
        for groups in [1, 2, 8, 9, 64, 65] {
            let gate = Gate::new(groups);
            assert_eq!(gate.enter(0), None, "closed");
            assert!(gate.is_empty());
            let epoch = gate.open();
            assert_eq!(gate.epoch(), epoch);
            for group in 0..groups {
                for member in 0..3 {
                    assert_eq!(gate.enter(group), Some(member == 0));
                }
            }
            let root = gate.levels.last().unwrap();
            // With one group the root is its counter.
            let below = if groups == 1 { 3 } else { gate.levels[gate.levels.len() - 2].len() };
            assert_eq!((root.len(), root[0].0.load(Ordering::SeqCst)), (1, below), "{groups} groups");
            assert!(below <= FAN_IN);
            gate.close();
            for group in 0..groups {
                assert!(!gate.is_empty());
                (0..3).for_each(|_| gate.leave(group));
            }
            assert!(gate.is_empty());
            assert!((0..groups).all(|group| gate.enter(group).is_none()) && gate.is_empty());
            assert_eq!(gate.open(), epoch + 1);
        }
    }

    /// Threads that enter and leave as fast as they can: when a closed gate is empty no thread is inside, and no thread is inside of
    /// an epoch that is over.
    #[test]
    fn a_closed_and_empty_gate_has_nobody_inside() {
        const GROUPS: usize = 9;
        let gate = Gate::new(GROUPS);
        let (inside, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let entered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let (gate, inside, stop, entered) = (&gate, &inside, &stop, &entered);
                scope.spawn(move || {
                    let mut turn = worker;
                    while stop.load(Ordering::Relaxed) == 0 {
                        // Two at a time in a few of the groups, so that counters go from zero to one and back all the time.
                        let group = [0, 0, 1, 8][turn % 4];
                        turn += 1;
                        if gate.enter(group).is_some() {
                            inside.fetch_add(1, Ordering::SeqCst);
                            let epoch = gate.epoch();
                            std::hint::spin_loop();
                            assert_eq!(gate.epoch(), epoch, "an epoch ended with somebody inside");
                            entered.fetch_add(1, Ordering::Relaxed);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            gate.leave(group);
                        } else {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for round in 0..150 {
                gate.open();
                while round == 0 && entered.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                std::thread::yield_now();
                gate.close();
                while !gate.is_empty() {
                    std::thread::yield_now();
                }
                assert_eq!(inside.load(Ordering::SeqCst), 0, "round {round}");
            }
            stop.store(1, Ordering::Relaxed);
        });
        assert!(entered.load(Ordering::Relaxed) > 0);
    }
}
