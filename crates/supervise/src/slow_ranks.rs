//! The rank that keeps the others waiting: the one that waits least.
//!
//! A rank's own time in a window of steps is the window's length less the time that its training thread spent in collectives. Two
//! scores in (0, 1], as NVIDIA's resiliency extension has them: the smallest own time of all ranks over this rank's (relative), and
//! this rank's smallest own time of a step so far over its own time of a step now (individual). In a pipeline the work of stages differs, so
//! the relative score says less there than the individual one.

use crate::heartbeat::{Heartbeat, RankPhase};
use std::collections::BTreeMap;
use std::time::Duration;

/// Windows in a row in which a rank must be slow.
const WINDOWS: u32 = 3;
/// Score below which a rank is slow: 10 % slower.
const SLOW: f64 = 1.0 / 1.1;

/// A rank that keeps the others waiting.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRank {
    /// Number of the rank.
    pub rank: usize,
    /// Its process.
    pub place: String,
    /// Smallest own time of all ranks over its own.
    pub relative: f64,
    /// Its smallest own time of a step over that of now.
    pub individual: f64,
    /// Its own time of a step, in seconds.
    pub own_seconds: f64,
}

impl std::fmt::Display for SlowRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} ({}) is slow: it computes {:.3} s a step while the others wait for it; score {:.2} against the fastest rank, {:.2} \
             against its own best",
            self.rank, self.place, self.own_seconds, self.relative, self.individual
        )
    }
}

/// Where a rank stood at the beginning of a window.
#[derive(Debug, Clone, Copy)]
struct WindowStart {
    step: u64,
    /// The process's own clock.
    seconds: f64,
    waited: f64,
}

/// Finds slow ranks in the heartbeats of a launch.
#[derive(Debug, Clone)]
pub struct SlowRanks {
    /// Least steps of a window, and its least length.
    steps: u64,
    length: Duration,
    starts: BTreeMap<usize, WindowStart>,
    /// Smallest own time of a step.
    best: BTreeMap<usize, f64>,
    /// The slow rank of the last windows, and how many of them.
    in_a_row: Option<(usize, u32)>,
}

impl SlowRanks {
    /// Windows of so many steps and so long at least.
    pub fn new(steps: u64, length: Duration) -> SlowRanks {
        SlowRanks { steps, length, starts: BTreeMap::new(), best: BTreeMap::new(), in_a_row: None }
    }

    /// A new launch begins.
    pub fn launch(&mut self) {
        self.starts.clear();
        self.in_a_row = None;
    }

    /// Takes the heartbeats of a moment; returns a rank once it was slow in three windows in a row.
    pub fn observe<'a>(&mut self, beats: impl Iterator<Item = &'a Heartbeat>) -> Option<SlowRank> {
        let beats: Vec<&Heartbeat> = beats.collect();
        let ranks: Vec<_> =
            beats.iter().flat_map(|beat| beat.ranks.iter().map(move |rank| (*beat, rank))).collect();
        // Evaluations and saves are not shared evenly.
        if ranks.len() < 2 || ranks.iter().any(|(_, rank)| rank.phase != RankPhase::Training) {
            self.starts.clear();
            return None;
        }
        let start = |beat: &Heartbeat, rank: &crate::heartbeat::RankBeat| WindowStart {
            step: rank.step,
            seconds: beat.seconds,
            waited: rank.waited,
        };
        if self.starts.len() != ranks.len() {
            self.starts = ranks.iter().map(|(beat, rank)| (rank.rank, start(beat, rank))).collect();
            return None;
        }
        let over = ranks.iter().all(|(beat, rank)| {
            self.starts.get(&rank.rank).is_some_and(|begun| {
                rank.step >= begun.step + self.steps
                    && beat.seconds >= begun.seconds + self.length.as_secs_f64()
            })
        });
        if !over {
            return None;
        }
        // Own seconds of a step.
        let mut own = BTreeMap::new();
        for (beat, rank) in &ranks {
            let begun = self.starts[&rank.rank];
            let steps = (rank.step - begun.step) as f64;
            let seconds = (beat.seconds - begun.seconds - (rank.waited - begun.waited)).max(0.0) / steps;
            own.insert(rank.rank, seconds.max(1e-6));
            self.starts.insert(rank.rank, start(beat, rank));
        }
        for (rank, seconds) in &own {
            let best = self.best.entry(*rank).or_insert(*seconds);
            *best = best.min(*seconds);
        }
        let fastest = own.values().copied().fold(f64::INFINITY, f64::min);
        let (slowest, seconds) = own.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(rank, s)| (*rank, *s))?;
        let relative = fastest / seconds;
        if relative >= SLOW {
            self.in_a_row = None;
            return None;
        }
        let windows = match self.in_a_row {
            Some((rank, windows)) if rank == slowest => windows + 1,
            _ => 1,
        };
        self.in_a_row = Some((slowest, windows));
        let (beat, _) = ranks.iter().find(|(_, rank)| rank.rank == slowest)?;
        let individual = self.best[&slowest] / seconds;
        // Once: not again until it was fast or another one was slower.
        (windows == WINDOWS).then(|| SlowRank {
            rank: slowest,
            place: beat.place(),
            relative,
            individual,
            own_seconds: seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::{HEARTBEAT_VERSION, RankBeat};

    /// Heartbeats of four ranks after `step` steps of a second, of which rank `slow` computes `seconds` and the others 0.5.
    fn beats(step: u64, slow: usize, computed: f64) -> Vec<Heartbeat> {
        let rank = |rank: usize| RankBeat {
            rank,
            step,
            phase: RankPhase::Training,
            activity: step,
            waits: None,
            waited: step as f64 - if rank == slow { computed } else { 0.5 * step as f64 },
        };
        let beat = |process: usize| Heartbeat {
            version: HEARTBEAT_VERSION,
            epoch: 1,
            process,
            identity: format!("v\nhost{process}\n1\n1\nelsewhere"),
            beat: step,
            seconds: step as f64,
            leaves: None,
            ranks: vec![rank(process)],
        };
        (0..4).map(beat).collect()
    }

    #[test]
    fn the_rank_that_waits_least_is_named_after_three_windows_and_once() {
        let mut slow = SlowRanks::new(10, Duration::from_secs(5));
        let mut told = Vec::new();
        // Even work at first.
        for step in 0..=40 {
            told.extend(slow.observe(beats(step, 2, 0.5 * step as f64).iter()));
        }
        assert_eq!(told, []);
        for step in 41..=200u64 {
            let computed = 0.5 * 40.0 + 0.9 * (step - 40) as f64;
            let found = slow.observe(beats(step, 2, computed).iter());
            assert!(found.is_none() || step >= 70, "{step}");
            told.extend(found);
        }
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].rank, 2);
        assert!((told[0].relative - 0.5 / 0.9).abs() < 1e-6 && (told[0].individual - 0.5 / 0.9).abs() < 1e-6);
        assert!(told[0].to_string().starts_with("rank 2 (host host2, pid 1) is slow"), "{}", told[0]);
    }

    #[test]
    fn less_than_a_tenth_is_not_slow() {
        let mut slow = SlowRanks::new(10, Duration::from_secs(5));
        for step in 0..=400 {
            assert_eq!(slow.observe(beats(step, 1, 0.54 * step as f64).iter()), None);
        }
        let found = (401..=800)
            .find_map(|step| slow.observe(beats(step, 1, 0.54 * 400.0 + 0.56 * (step - 400) as f64).iter()));
        assert_eq!(found.map(|found| found.rank), Some(1));
    }
}
