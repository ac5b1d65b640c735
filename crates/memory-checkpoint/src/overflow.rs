//! Where the part of a rank's state goes that its own memory has no space for: to other ranks' memory, the rest to a slower store.
//!
//! Rank i has s_i bytes and memory for c_i. It overflows by o_i = max(0, s_i - c_i), and rank j has l_j = max(0, c_j - s_j) to spare. Sought
//! are x_ij bytes from i to j, at rate B_ij; what is left goes to the store of i at rate B_i. Training waits for the slowest rank:
//! ```text
//! minimise  T = max_i [ (o_i - sum_j x_ij) / B_i + sum_j x_ij / B_ij ]     with  sum_j x_ij <= o_i,  sum_i x_ij <= l_j,  x_ij >= 0
//! ```
//! It is a linear programme. With T = max_i o_i / B_i - y it has the feasible basis x = 0, y = 0, from which the simplex method (Dantzig
//! 1947; ties by Bland 1977) goes to the optimum. A tableau of r rows and n columns costs r n operations a pivot, so the programme is
//! solved where r n is at most [`TABLEAU`]. Beyond it, and for the rounding of the optimum to whole pieces, a greedy rule gives the rank
//! that waits longest the memory that it reaches at the highest rate, a little at a time.
//! A transfer occupies its sender and its receiver, so ranks that send to the same one wait for each other, which T leaves out: an open
//! shop. Each transfer begins as soon as both are free, the longest first. Such a schedule is never longer than twice the shortest
//! (Racsmany, in Barany and Fiala 1982), and as long as T where no two send to one rank.
//!
//! The problem is that of Maurya et al. 2021 (MASCOTS); the formulation is this project's.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Most numbers of a tableau: 64 MiB.
const TABLEAU: usize = 1 << 23;
/// Steps of the greedy rule in which all that overflows is given away.
const GREEDY_STEPS: u64 = 1 << 14;
/// Smaller numbers of a tableau are rounding.
const ROUNDING: f64 = 1e-9;

/// Memory for copies and what is to lie in it, by rank.
#[derive(Debug, Clone, Default)]
pub struct Tiers {
    /// Bytes of each rank's state.
    pub state: Vec<u64>,
    /// Bytes of memory that each rank has for copies.
    pub capacity: Vec<u64>,
    /// Bytes a second to each rank's slower store; 0: it has none.
    pub slow: Vec<f64>,
    /// Bytes a second from one rank's state to another rank's memory. Pairs that are not listed cannot send.
    pub rates: HashMap<Pair, f64>,
}

/// A rank that sends and the one that holds what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pair {
    /// Rank whose state it is.
    pub from: usize,
    /// Rank in whose memory it lies.
    pub to: usize,
}

/// Bytes that a rank sends to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The two ranks.
    pub pair: Pair,
    /// How many bytes, at least 1.
    pub bytes: u64,
}

/// A solution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverflowPlan {
    /// What goes to other ranks, in the order in which it is sent.
    pub transfers: Vec<Transfer>,
    /// By rank: bytes that go to its slower store.
    pub stored: Vec<u64>,
    /// Seconds for which the slowest rank sends and stores, T.
    pub seconds: f64,
    /// Seconds until the last rank is done where ranks wait for each other.
    pub scheduled: f64,
}

impl OverflowPlan {
    /// The plan where each of `ranks` ranks has memory for its own state.
    pub fn none(ranks: usize) -> OverflowPlan {
        OverflowPlan { transfers: Vec::new(), stored: vec![0; ranks], seconds: 0.0, scheduled: 0.0 }
    }
}

impl Tiers {
    /// Bytes that a rank's own memory has no space for.
    pub fn overflow(&self, rank: usize) -> u64 {
        self.state[rank].saturating_sub(self.capacity[rank])
    }

    /// Bytes of memory that a rank's own state leaves.
    pub fn spare(&self, rank: usize) -> u64 {
        self.capacity[rank].saturating_sub(self.state[rank])
    }

    /// Finds where what overflows goes, in pieces of `unit` bytes. `None` if some of it fits nowhere.
    pub fn plan(&self, unit: u64) -> Option<OverflowPlan> {
        let mut work = Assignment::new(self, unit.max(1));
        if let Some(start) = self.optimum() {
            work.start(&start);
        }
        work.fill();
        work.finish()
    }

    /// Pairs over which something can go, with their rates.
    fn routes(&self) -> Vec<(Pair, f64)> {
        let useful = |(pair, rate): &(Pair, f64)| {
            *rate > 0.0 && self.overflow(pair.from) > 0 && self.spare(pair.to) > 0
        };
        let mut routes: Vec<_> =
            self.rates.iter().map(|(pair, rate)| (*pair, *rate)).filter(useful).collect();
        routes.sort_by_key(|(pair, _)| *pair);
        routes
    }

    /// Rate to a rank's store. One that has none sends as much as it can: to it, a store seems a thousand times slower than its slowest peer.
    fn slow_rate(&self, rank: usize) -> f64 {
        if self.slow[rank] > 0.0 {
            return self.slow[rank];
        }
        let own = self.rates.iter().filter(|(pair, _)| pair.from == rank).map(|(_, rate)| *rate);
        own.filter(|rate| *rate > 0.0).fold(f64::INFINITY, f64::min).min(1e12) / 1e3
    }

    /// Bytes of each route at the optimum of the linear programme, if it is small enough.
    fn optimum(&self) -> Option<Vec<(Pair, f64)>> {
        let routes = self.routes();
        let ranks = self.state.len();
        let mut senders: Vec<usize> = routes.iter().map(|(pair, _)| pair.from).collect();
        let mut holders: Vec<usize> = routes.iter().map(|(pair, _)| pair.to).collect();
        for list in [&mut senders, &mut holders] {
            list.sort_unstable();
            list.dedup();
        }
        let (rows, columns) = (2 * senders.len() + holders.len(), routes.len() + 1);
        if rows == 0 || (rows + 1).saturating_mul(columns + rows + 1) > TABLEAU {
            return None;
        }
        // All that overflows is 1, and so is the time of the slowest rank without transfers: numbers of one size.
        let bytes = (0..ranks).map(|rank| self.overflow(rank)).max().unwrap_or(0) as f64;
        let alone = |rank: usize| self.overflow(rank) as f64 / self.slow_rate(rank);
        let slowest = (0..ranks).map(alone).fold(0.0, f64::max);
        let mut simplex = Simplex::new(rows, columns);
        let number = |list: &[usize], rank: usize| list.binary_search(&rank).unwrap_or(0);
        for (column, (pair, rate)) in routes.iter().enumerate() {
            let sender = number(&senders, pair.from);
            // Time that the sender gains by each part of the bytes.
            let gain = (1.0 / self.slow_rate(pair.from) - 1.0 / rate) * bytes / slowest;
            simplex.set(sender, column, -gain);
            simplex.set(senders.len() + sender, column, 1.0);
            simplex.set(2 * senders.len() + number(&holders, pair.to), column, 1.0);
        }
        for (row, rank) in senders.iter().enumerate() {
            simplex.set(row, columns - 1, 1.0);
            simplex.set_limit(row, 1.0 - alone(*rank) / slowest);
            simplex.set_limit(senders.len() + row, self.overflow(*rank) as f64 / bytes);
        }
        for (row, rank) in holders.iter().enumerate() {
            simplex.set_limit(2 * senders.len() + row, self.spare(*rank) as f64 / bytes);
        }
        // Ranks that cannot send bound what can be gained.
        let bound =
            (0..ranks).filter(|rank| senders.binary_search(rank).is_err()).map(alone).fold(0.0, f64::max);
        let found = simplex.maximise_last(1.0 - bound / slowest);
        Some(routes.iter().zip(found).map(|((pair, _), part)| (*pair, part * bytes)).collect())
    }
}

/// Bytes assigned so far.
struct Assignment<'a> {
    tiers: &'a Tiers,
    unit: u64,
    routes: Vec<(Pair, f64)>,
    sent: Vec<u64>,
    /// By rank.
    left: Vec<u64>,
    spare: Vec<u64>,
    /// By rank: its routes, the fastest first.
    of: Vec<Vec<usize>>,
}

impl<'a> Assignment<'a> {
    fn new(tiers: &'a Tiers, unit: u64) -> Assignment<'a> {
        let routes = tiers.routes();
        let ranks = tiers.state.len();
        let mut of = vec![Vec::new(); ranks];
        routes.iter().enumerate().for_each(|(number, (pair, _))| of[pair.from].push(number));
        of.iter_mut().for_each(|list| list.sort_by(|a, b| routes[*b].1.total_cmp(&routes[*a].1)));
        // Memory is full at a whole number of pieces; what overflows is what those leave.
        let left = |rank: usize| match tiers.overflow(rank) {
            0 => 0,
            _ => tiers.state[rank] - tiers.capacity[rank] / unit * unit,
        };
        let spare = |rank: usize| tiers.spare(rank) / unit * unit;
        Assignment {
            tiers,
            unit,
            sent: vec![0; routes.len()],
            left: (0..ranks).map(left).collect(),
            spare: (0..ranks).map(spare).collect(),
            routes,
            of,
        }
    }

    fn give(&mut self, route: usize, bytes: u64) {
        let Pair { from, to } = self.routes[route].0;
        self.sent[route] += bytes;
        self.left[from] -= bytes;
        self.spare[to] -= bytes;
    }

    /// Gives what a solution says, in whole pieces.
    fn start(&mut self, solution: &[(Pair, f64)]) {
        for (route, (pair, bytes)) in solution.iter().enumerate() {
            let whole = (bytes / self.unit as f64 + 1e-6).floor().max(0.0) as u64 * self.unit;
            let bytes = whole.min(self.left[pair.from] / self.unit * self.unit).min(self.spare[pair.to]);
            self.give(route, bytes);
        }
    }

    /// Seconds that a rank sends and stores.
    fn seconds(&self, rank: usize) -> f64 {
        let sent = self.of[rank].iter().map(|route| self.sent[*route] as f64 / self.routes[*route].1);
        let stored = match self.left[rank] {
            0 => 0.0,
            left => left as f64 / self.tiers.slow_rate(rank),
        };
        stored + sent.sum::<f64>()
    }

    /// Gives the rank that waits longest the memory that it reaches fastest, until no rank gains by more.
    fn fill(&mut self) {
        let total: u64 = self.left.iter().sum();
        let step = (total / GREEDY_STEPS).div_ceil(self.unit).max(1) * self.unit;
        let mut seconds: Vec<f64> = (0..self.left.len()).map(|rank| self.seconds(rank)).collect();
        let mut open: Vec<usize> = (0..self.left.len()).filter(|rank| self.left[*rank] > 0).collect();
        while let Some(place) = (0..open.len()).max_by(|a, b| seconds[open[*a]].total_cmp(&seconds[open[*b]]))
        {
            let rank = open[place];
            let slow = self.tiers.slow_rate(rank);
            let next = self.of[rank].iter().copied().find(|route| {
                let (pair, rate) = self.routes[*route];
                self.spare[pair.to] > 0 && rate > slow
            });
            match next.filter(|_| self.left[rank] > 0) {
                Some(route) => {
                    let bytes = step.min(self.left[rank]).min(self.spare[self.routes[route].0.to]);
                    self.give(route, bytes);
                    seconds[rank] = self.seconds(rank);
                }
                None => {
                    open.swap_remove(place);
                }
            }
        }
    }

    fn finish(self) -> Option<OverflowPlan> {
        let ranks = 0..self.left.len();
        if ranks.clone().any(|rank| self.left[rank] > 0 && self.tiers.slow[rank] <= 0.0) {
            return None;
        }
        let seconds = ranks.clone().map(|rank| self.seconds(rank)).fold(0.0, f64::max);
        let sent = self.routes.iter().zip(&self.sent).filter(|(_, bytes)| **bytes > 0);
        let timed = |((pair, rate), bytes): (&(Pair, f64), &u64)| {
            (Transfer { pair: *pair, bytes: *bytes }, *bytes as f64 / rate)
        };
        let (transfers, busy) = schedule(sent.map(timed).collect(), ranks.len());
        let stored = |rank: usize| self.left[rank] as f64 / self.tiers.slow_rate(rank);
        let end = |rank: usize| busy[rank] + if self.left[rank] > 0 { stored(rank) } else { 0.0 };
        let scheduled = ranks.map(end).fold(0.0, f64::max);
        Some(OverflowPlan { transfers, stored: self.left, seconds, scheduled })
    }
}

/// Orders transfers of known seconds: always the one that can begin first, of those the longest. Returns them and when each rank is done.
fn schedule(mut waiting: Vec<(Transfer, f64)>, ranks: usize) -> (Vec<Transfer>, Vec<f64>) {
    waiting.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.pair.cmp(&b.0.pair)));
    let (mut free, mut ordered) = (vec![0.0f64; ranks], Vec::with_capacity(waiting.len()));
    loop {
        let start = |(transfer, _): &(Transfer, f64)| free[transfer.pair.from].max(free[transfer.pair.to]);
        let Some(first) =
            (0..waiting.len()).min_by(|a, b| start(&waiting[*a]).total_cmp(&start(&waiting[*b])))
        else {
            return (ordered, free);
        };
        let begin = start(&waiting[first]);
        let (transfer, seconds) = waiting.remove(first);
        (free[transfer.pair.from], free[transfer.pair.to]) = (begin + seconds, begin + seconds);
        ordered.push(transfer);
    }
}

/// Maximises a variable under limits of sums, all variables and limits at least 0. Rows: a limit's coefficients, one slack variable for each row,
/// the limit. The last row is the objective.
struct Simplex {
    rows: usize,
    columns: usize,
    width: usize,
    table: Vec<f64>,
    /// By row: the variable whose value the row has.
    basis: Vec<usize>,
}

impl Simplex {
    fn new(rows: usize, columns: usize) -> Simplex {
        // One more row bounds the last variable.
        let rows = rows + 1;
        let width = columns + rows + 1;
        let mut table = vec![0.0; (rows + 1) * width];
        (0..rows).for_each(|row| table[row * width + columns + row] = 1.0);
        Simplex { rows, columns, width, table, basis: (columns..columns + rows).collect() }
    }

    fn set(&mut self, row: usize, column: usize, value: f64) {
        self.table[row * self.width + column] = value;
    }

    fn set_limit(&mut self, row: usize, limit: f64) {
        self.table[row * self.width + self.width - 1] = limit.max(0.0);
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.table[row * self.width + column]
    }

    /// Values of all variables but the slack ones where the last of them is largest, at most `bound`.
    fn maximise_last(mut self, bound: f64) -> Vec<f64> {
        let (last, limit) = (self.columns - 1, self.width - 1);
        self.set(self.rows - 1, last, 1.0);
        self.set_limit(self.rows - 1, bound);
        self.set(self.rows, last, -1.0);
        // Bland's rule ends after finitely many pivots; rounding may undo that, so they are counted.
        for _ in 0..64 * (self.rows + self.columns) {
            let Some(column) = (0..limit).find(|column| self.at(self.rows, *column) < -ROUNDING) else {
                break;
            };
            let ratio = |row: usize| self.at(row, limit) / self.at(row, column);
            let leaving = (0..self.rows)
                .filter(|row| self.at(*row, column) > ROUNDING)
                .min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(self.basis[*a].cmp(&self.basis[*b])));
            let Some(row) = leaving else { break };
            self.pivot(row, column);
        }
        let mut values = vec![0.0; self.columns];
        for (row, variable) in self.basis.iter().enumerate().filter(|(_, variable)| **variable < self.columns)
        {
            values[*variable] = self.at(row, limit);
        }
        values
    }

    fn pivot(&mut self, row: usize, column: usize) {
        let width = self.width;
        let by = self.at(row, column);
        let pivot: Vec<f64> =
            self.table[row * width..(row + 1) * width].iter().map(|value| value / by).collect();
        for (number, other) in self.table.chunks_exact_mut(width).enumerate() {
            let factor = other[column];
            if number == row {
                other.copy_from_slice(&pivot);
            } else if factor != 0.0 {
                other.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
        self.basis[row] = column;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tiers(state: &[u64], capacity: &[u64], slow: f64, rates: &[(usize, usize, f64)]) -> Tiers {
        let rates = rates.iter().map(|(from, to, rate)| (Pair { from: *from, to: *to }, *rate)).collect();
        Tiers { state: state.into(), capacity: capacity.into(), slow: vec![slow; state.len()], rates }
    }

    /// The greedy rule alone.
    fn plan_greedily(case: &Tiers) -> Option<OverflowPlan> {
        let mut work = Assignment::new(case, 1);
        work.fill();
        work.finish()
    }

    fn sent(plan: &OverflowPlan) -> Vec<(usize, usize, u64)> {
        plan.transfers.iter().map(|t| (t.pair.from, t.pair.to, t.bytes)).collect()
    }

    /// s = (10, 4, 4), c = (6, 8, 6), B_slow = 1, B_12 = 4, B_13 = 2: all 4 units go to the second rank in 1 s, instead of 4 s to the store.
    #[test]
    fn golden_case() {
        let case = tiers(&[10, 4, 4], &[6, 8, 6], 1.0, &[(0, 1, 4.0), (0, 2, 2.0)]);
        for plan in [case.plan(1).unwrap(), plan_greedily(&case).unwrap()] {
            assert_eq!(plan.scheduled, 1.0);
            assert_eq!((sent(&plan), &plan.stored[..], plan.seconds), (vec![(0, 1, 4)], &[0, 0, 0][..], 1.0));
        }
        let alone = Tiers { rates: HashMap::new(), ..case }.plan(1).unwrap();
        assert_eq!((alone.transfers.len(), &alone.stored[..], alone.seconds), (0, &[4, 0, 0][..], 4.0));
    }

    /// The first rank reaches both memories equally fast, the second one only the first: the greedy rule lets them share that.
    #[test]
    fn the_optimum_leaves_memory_to_the_rank_that_reaches_no_other() {
        let rates = [(0, 2, 4.0), (0, 3, 4.0), (1, 2, 4.0)];
        let case = tiers(&[400, 400, 0, 0], &[0, 0, 400, 400], 0.1, &rates);
        let (best, greedy) = (case.plan(1).unwrap(), plan_greedily(&case).unwrap());
        assert_eq!((sent(&best), best.seconds), (vec![(0, 3, 400), (1, 2, 400)], 100.0));
        assert!(greedy.seconds > 10.0 * best.seconds, "{greedy:?}");
    }

    /// Two ranks send to one and one of them to another: 3 s + 3 s there, which the 2 s to the other fit beside.
    #[test]
    fn ranks_that_send_to_one_wait_for_each_other() {
        let transfer = |from, to, bytes| (Transfer { pair: Pair { from, to }, bytes }, bytes as f64);
        let (order, done) = schedule(vec![transfer(0, 2, 3), transfer(1, 2, 3), transfer(1, 3, 2)], 4);
        let order: Vec<_> = order.iter().map(|t| (t.pair.from, t.pair.to)).collect();
        assert_eq!((order, done), (vec![(0, 2), (1, 3), (1, 2)], vec![3.0, 6.0, 6.0, 2.0]));
    }

    #[test]
    fn what_fits_nowhere_has_no_plan() {
        let case = tiers(&[10, 4], &[6, 8], 0.0, &[(0, 1, 4.0)]);
        assert_eq!(sent(&case.plan(1).unwrap()), [(0, 1, 4)]);
        let case = tiers(&[10, 5], &[6, 8], 0.0, &[(0, 1, 4.0)]);
        assert_eq!(case.plan(1), None);
        let store = Tiers { slow: vec![2.0, 0.0], ..case }.plan(1).unwrap();
        assert_eq!((sent(&store), &store.stored[..], store.seconds), (vec![(0, 1, 3)], &[1, 0][..], 1.25));
    }

    #[test]
    fn a_thousand_ranks_take_no_tableau() {
        // Every fourth rank overflows by 300; the three behind it have 100 to spare each.
        let ranks = 4000;
        let state: Vec<u64> = (0..ranks).map(|r| if r % 4 == 0 { 400 } else { 0 }).collect();
        let rates: Vec<_> =
            (0..ranks / 4).flat_map(|g| (1..4).map(move |i| (4 * g, 4 * g + i, 100.0))).collect();
        let plan = tiers(&state, &vec![100; ranks], 1.0, &rates).plan(1).unwrap();
        assert_eq!((plan.transfers.len(), plan.seconds, plan.scheduled), (3000, 3.0, 3.0));
    }

    /// The least time over all ways to share out whole units.
    fn by_enumeration(case: &Tiers) -> f64 {
        fn go(
            case: &Tiers,
            routes: &[(Pair, f64)],
            left: &mut Vec<u64>,
            spare: &mut Vec<u64>,
            time: &mut Vec<f64>,
        ) -> f64 {
            let Some(((pair, rate), rest)) = routes.split_first() else {
                let rank = |r: usize| time[r] + left[r] as f64 / case.slow[r];
                return (0..left.len()).map(rank).fold(0.0, f64::max);
            };
            let most = left[pair.from].min(spare[pair.to]);
            (0..=most)
                .map(|n| {
                    (left[pair.from], spare[pair.to]) = (left[pair.from] - n, spare[pair.to] - n);
                    time[pair.from] += n as f64 / rate;
                    let best = go(case, rest, left, spare, time);
                    (left[pair.from], spare[pair.to]) = (left[pair.from] + n, spare[pair.to] + n);
                    time[pair.from] -= n as f64 / rate;
                    best
                })
                .fold(f64::INFINITY, f64::min)
        }
        let ranks = 0..case.state.len();
        let (mut left, mut spare) = (
            ranks.clone().map(|r| case.overflow(r)).collect(),
            ranks.clone().map(|r| case.spare(r)).collect(),
        );
        go(case, &case.routes(), &mut left, &mut spare, &mut vec![0.0; ranks.len()])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Limits hold, and no way to share out whole units takes less time than the plan in fine pieces.
        #[test]
        fn plans_are_feasible_and_optimal(
            state in prop::collection::vec(0u64..8, 4),
            capacity in prop::collection::vec(0u64..8, 4),
            slow in prop::collection::vec(1u32..4, 4),
            speeds in prop::collection::vec(0u32..6, 16),
        ) {
            let rate = |i: usize| (Pair { from: i / 4, to: i % 4 }, f64::from(speeds[i]));
            let rates: HashMap<Pair, f64> = (0..16).map(rate).collect();
            let slow: Vec<f64> = slow.iter().map(|s| f64::from(*s)).collect();
            let whole = Tiers { state, capacity, slow, rates };
            // The same in pieces that are a thousandth of a unit.
            let fine = |n: &u64| 1000 * n;
            let case = Tiers {
                state: whole.state.iter().map(fine).collect(),
                capacity: whole.capacity.iter().map(fine).collect(),
                ..whole.clone()
            };
            let best = by_enumeration(&whole);
            let plan = case.plan(1).unwrap();
            prop_assert!(plan.seconds / 1e3 <= best + 0.02, "{plan:?}, {best}");
            // No schedule is shorter than what one rank sends, stores or receives.
            let received = |to: usize| {
                let list = plan.transfers.iter().filter(|t| t.pair.to == to);
                list.map(|t| t.bytes as f64 / case.rates[&t.pair]).sum::<f64>()
            };
            let bound = (0..4).map(received).fold(plan.seconds, f64::max);
            prop_assert!((bound - 1e-6..2.0 * bound + 1e-6).contains(&plan.scheduled), "{plan:?}, {bound}");
            let greedy = plan_greedily(&case).unwrap();
            prop_assert!(plan.seconds <= greedy.seconds + 20.0, "{plan:?}, {greedy:?}");
            for rank in 0..4 {
                let from = plan.transfers.iter().filter(|t| t.pair.from == rank);
                let to = plan.transfers.iter().filter(|t| t.pair.to == rank);
                prop_assert_eq!(from.map(|t| t.bytes).sum::<u64>() + plan.stored[rank], case.overflow(rank));
                prop_assert!(to.map(|t| t.bytes).sum::<u64>() <= case.spare(rank));
            }
        }
    }
}
