//! Which heartbeats mean that a launch hangs, and which rank is the cause.
//!
//! A rank gets on as long as its `activity` grows. A step may take five times the 99th percentile of the steps so far, and never
//! less than a floor; evaluations and saves report their progress and may be silent ten times as long as a step. What a rank prepares
//! before its first step may take any time. A process that shows no heartbeat for as long as a step may take is stopped or gone with its host, whatever it
//! was doing. What takes longer is an alarm; what takes one and a half times as long is a hang.

use crate::heartbeat::{Heartbeat, RankBeat, RankPhase};
use crate::identity::{ProcessIdentity, ProcessState};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Steps whose times are remembered.
const STEPS: usize = 512;
/// Ratio of a hang to an alarm.
const HARD: f64 = 1.5;
/// Ratio of the time of an alarm to the 99th percentile of steps.
const STEP: f64 = 5.0;
/// Ratio of the silence of other work to that of a step.
const OTHER_WORK: u32 = 10;

/// Limits of a watchdog.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WatchdogSettings {
    /// Least time of an alarm.
    pub floor: Duration,
    /// Time of an alarm while no step has been seen.
    pub first_step: Duration,
    /// Time after the first process has failed until the launcher must have ended the others.
    pub leaving: Duration,
}

impl Default for WatchdogSettings {
    fn default() -> WatchdogSettings {
        WatchdogSettings {
            floor: Duration::from_secs(30),
            first_step: Duration::from_secs(600),
            leaving: Duration::from_secs(10),
        }
    }
}

/// A launch that does not get on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Whether the launch hangs and must be killed.
    pub hangs: bool,
    /// Ranks or processes and their state, in a sentence.
    pub text: String,
    /// Hosts of the processes that show no sign of life.
    pub silent_hosts: Vec<String>,
}

/// Newest state of a process.
#[derive(Debug, Clone)]
struct ProcessSeen {
    beat: Heartbeat,
    /// When the number of the heartbeat last grew.
    alive: Duration,
    /// When each of its ranks last got on.
    active: Vec<Duration>,
    /// When it first said that it leaves with a failure.
    failed: Option<Duration>,
}

/// Watches the heartbeats of launches, one launch after the other.
#[derive(Debug, Clone)]
pub struct Watchdog {
    settings: WatchdogSettings,
    seen: BTreeMap<usize, ProcessSeen>,
    epoch: u64,
    /// Seconds of the steps of the first rank.
    steps: VecDeque<f64>,
    /// Step of the first rank, and when it was first seen.
    step: Option<(u64, Duration)>,
    /// Whether an alarm was given since the ranks last got on.
    alarmed: bool,
}

impl Watchdog {
    /// A watchdog that has seen nothing. `steps`: seconds of earlier steps, if the run has a record of them.
    pub fn new(settings: WatchdogSettings, steps: impl IntoIterator<Item = f64>) -> Watchdog {
        let mut watchdog = Watchdog {
            settings,
            seen: BTreeMap::new(),
            epoch: 0,
            steps: VecDeque::new(),
            step: None,
            alarmed: false,
        };
        steps.into_iter().for_each(|seconds| watchdog.record_step(seconds));
        watchdog
    }

    /// A new launch begins: only its heartbeats count.
    pub fn launch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.seen.clear();
        self.step = None;
        self.alarmed = false;
    }

    fn record_step(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            if self.steps.len() == STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(seconds);
        }
    }

    /// Seconds below which 99 of 100 steps stay.
    pub fn p99(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.steps.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len() * 99).div_ceil(100);
        sorted.get(at.checked_sub(1)?).copied()
    }

    /// Time after which a step that does not get on is an alarm.
    pub fn soft(&self) -> Duration {
        match self.p99() {
            Some(p99) => self.settings.floor.max(Duration::from_secs_f64((STEP * p99).min(1e6))),
            None => self.settings.floor.max(self.settings.first_step),
        }
    }

    /// The newest heartbeats of the launch.
    pub fn beats(&self) -> impl Iterator<Item = &Heartbeat> {
        self.seen.values().map(|seen| &seen.beat)
    }

    /// Step that the first rank has done.
    pub fn step(&self) -> Option<u64> {
        self.step.map(|(step, _)| step)
    }

    /// Takes the heartbeats of a moment. Returns an alarm if the launch does not get on: once before it hangs, and when it does.
    /// `own`: a process of the supervisor's host, which can see whether others of it are stopped.
    pub fn observe(&mut self, now: Duration, beats: Vec<Heartbeat>, own: &ProcessIdentity) -> Option<Alarm> {
        let epoch = self.epoch;
        beats.into_iter().filter(|beat| beat.epoch == epoch).for_each(|beat| self.take(now, beat));
        let alarm = self.failed(now, own).or_else(|| self.silent(now, own)).or_else(|| self.stalled(now));
        match alarm {
            Some(alarm) if alarm.hangs => Some(alarm),
            Some(alarm) => (!std::mem::replace(&mut self.alarmed, true)).then_some(alarm),
            None => {
                self.alarmed = false;
                None
            }
        }
    }

    fn take(&mut self, now: Duration, beat: Heartbeat) {
        if let Some(first) = beat.ranks.first().filter(|rank| rank.rank == 0) {
            match self.step {
                Some((step, since)) if first.step > step => {
                    let steps = (first.step - step) as f64;
                    // Time of evaluations and saves is in it, which makes the limit longer, not shorter.
                    self.record_step((now - since).as_secs_f64() / steps);
                    self.step = Some((first.step, now));
                }
                Some((step, _)) if first.step == step => {}
                // A launch begins, or goes back.
                _ => self.step = Some((first.step, now)),
            }
        }
        let fails = beat.leaves.is_some_and(|code| code != crate::exit::code::DONE);
        let Some(seen) = self.seen.get_mut(&beat.process) else {
            let (active, failed) = (vec![now; beat.ranks.len()], fails.then_some(now));
            self.seen.insert(beat.process, ProcessSeen { beat, alive: now, active, failed });
            return;
        };
        if beat.beat > seen.beat.beat {
            seen.alive = now;
        }
        seen.active.resize(beat.ranks.len(), now);
        for (i, rank) in beat.ranks.iter().enumerate() {
            let before = seen.beat.ranks.get(i);
            if before.is_none_or(|b| b.activity != rank.activity || b.phase != rank.phase) {
                seen.active[i] = now;
            }
        }
        seen.failed = seen.failed.or(fails.then_some(now));
        seen.beat = beat;
    }

    /// A process has failed and the launcher does not end the others, or itself: its host may be cut off from it.
    fn failed(&self, now: Duration, own: &ProcessIdentity) -> Option<Alarm> {
        let (seen, since) = self.seen.values().find_map(|seen| Some((seen, seen.failed?)))?;
        let after = now.saturating_sub(since);
        if after < self.settings.leaving {
            return None;
        }
        let code = seen.beat.leaves.unwrap_or_default();
        let text = format!(
            "{} exited with code {code} {:.0} s ago, but the launcher is still running",
            seen.beat.place(),
            after.as_secs_f64()
        );
        Some(Alarm { hangs: true, text, silent_hosts: self.silent_hosts(now, own) })
    }

    /// Processes that have sent no heartbeat for as long as a step may take.
    fn silent(&self, now: Duration, own: &ProcessIdentity) -> Option<Alarm> {
        let soft = self.settings.floor;
        let age = |seen: &ProcessSeen| now.saturating_sub(seen.alive);
        let living = self.seen.values().filter(|seen| seen.beat.leaves.is_none());
        let silent: Vec<&ProcessSeen> = living.filter(|seen| age(seen) >= soft).collect();
        let longest = silent.iter().map(|seen| age(seen)).max()?;
        let who: Vec<String> = silent
            .iter()
            .map(|seen| {
                let state = match seen.beat.state(own) {
                    ProcessState::Stopped => "; it is stopped (by SIGSTOP, a terminal or a debugger)",
                    ProcessState::Gone => "; it has ended",
                    ProcessState::Runs => "; it runs, but its file system may hang",
                    ProcessState::Unknown => "",
                };
                format!(
                    "process {} ({}), last seen {} at step {}{state}",
                    seen.beat.process,
                    seen.beat.place(),
                    seen.beat.ranks.first().map_or("", |rank| rank.phase.name()),
                    seen.beat.ranks.first().map_or(0, |rank| rank.step)
                )
            })
            .collect();
        let seconds = longest.as_secs_f64();
        let text = format!("no heartbeat for {seconds:.1} s: {}", who.join("; "));
        let hangs = longest >= soft.mul_f64(HARD);
        Some(Alarm { hangs, text, silent_hosts: self.silent_hosts(now, own) })
    }

    /// Hosts of the processes that show no sign of life and that nobody sees running.
    fn silent_hosts(&self, now: Duration, own: &ProcessIdentity) -> Vec<String> {
        let silent = self.seen.values().filter(|seen| {
            seen.beat.leaves.is_none()
                && now.saturating_sub(seen.alive) >= self.settings.floor.min(self.settings.leaving)
        });
        let unseen = silent.filter(|seen| seen.beat.state(own) == ProcessState::Unknown);
        let mut hosts: Vec<String> = unseen.filter_map(|seen| Some(seen.beat.identity()?.host)).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// Living processes whose ranks do not get on.
    fn stalled(&self, now: Duration) -> Option<Alarm> {
        let soft = self.soft();
        let mut ranks: Vec<(&RankBeat, Duration)> = Vec::new();
        for seen in self.seen.values().filter(|seen| seen.beat.leaves.is_none()) {
            ranks.extend(
                seen.beat
                    .ranks
                    .iter()
                    .zip(&seen.active)
                    .map(|(rank, active)| (rank, now.saturating_sub(*active))),
            );
        }
        // All ranks wait for one that works.
        let limit = |rank: &RankBeat| match rank.phase {
            // How long a corpus takes is not known.
            RankPhase::Preparing => None,
            RankPhase::Training => Some(soft),
            RankPhase::Evaluating | RankPhase::Saving => Some(soft.saturating_mul(OTHER_WORK)),
        };
        let over = |hard: f64| {
            ranks.iter().all(|(rank, idle)| limit(rank).is_some_and(|limit| *idle >= limit.mul_f64(hard)))
        };
        let idle = ranks.iter().map(|(_, idle)| *idle).min()?;
        if !over(1.0) {
            return None;
        }
        let hangs = over(HARD);
        let ranks: Vec<&RankBeat> = ranks.into_iter().map(|(rank, _)| rank).collect();
        let text = format!("no rank made progress for {:.1} s: {}", idle.as_secs_f64(), culprit(&ranks));
        Some(Alarm { hangs, text, silent_hosts: Vec::new() })
    }
}

/// Which ranks keep the others waiting: those in no collective, those behind, those in another collective.
fn culprit(ranks: &[&RankBeat]) -> String {
    let list = |ranks: &[&RankBeat]| {
        let numbers: Vec<String> = ranks.iter().map(|rank| rank.rank.to_string()).collect();
        format!("rank {}", numbers.join(", "))
    };
    let (waiting, busy): (Vec<&RankBeat>, Vec<&RankBeat>) =
        ranks.iter().partition(|rank| rank.waits.is_some());
    let call = |rank: &RankBeat| {
        rank.waits
            .as_ref()
            .map_or(String::new(), |w| format!("{} number {} in {}", w.what, w.sequence, w.group))
    };
    if waiting.is_empty() {
        let first =
            busy.first().map_or(String::new(), |rank| format!("{} at step {}", rank.phase.name(), rank.step));
        return format!("{} in no collective, {first}", list(&busy));
    }
    if !busy.is_empty() {
        let (phase, step) = busy.first().map_or(("", 0), |rank| (rank.phase.name(), rank.step));
        return format!(
            "{} in no collective, {phase} at step {step}, while {} waits in {}",
            list(&busy),
            list(&waiting),
            waiting.first().map_or(String::new(), |rank| call(rank))
        );
    }
    // All wait: who is behind in a group that others share, or in a group of its own?
    let mut calls: BTreeMap<String, Vec<&RankBeat>> = BTreeMap::new();
    waiting.iter().for_each(|rank| calls.entry(call(rank)).or_default().push(rank));
    if calls.len() == 1 {
        return format!("{} waits in {}", list(&waiting), call(waiting[0]));
    }
    let behind = |rank: &&&RankBeat| {
        let Some(own) = &rank.waits else { return false };
        let others = waiting.iter().filter_map(|other| other.waits.as_ref());
        others.filter(|other| other.group == own.group).any(|other| other.sequence > own.sequence)
    };
    let late: Vec<&RankBeat> = waiting.iter().filter(behind).copied().collect();
    let each: Vec<String> = calls.iter().map(|(call, ranks)| format!("{} in {call}", list(ranks))).collect();
    match late.is_empty() {
        true => each.join("; "),
        false => format!("{} is behind: {}", list(&late), each.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::{HEARTBEAT_VERSION, WaitingCall};

    fn rank(rank: usize, step: u64, activity: u64, waits: Option<(&str, u64)>) -> RankBeat {
        let waits = waits.map(|(group, sequence)| WaitingCall {
            what: "all-reduce of \"gradients\"".into(),
            group: group.into(),
            sequence,
            seconds: 1.0,
        });
        RankBeat { rank, step, phase: RankPhase::Training, activity, waits, waited: 0.0 }
    }

    fn beat(process: usize, beat: u64, ranks: Vec<RankBeat>) -> Heartbeat {
        let identity = format!("v\nhost{process}\n{}\n5\nelsewhere", 100 + process);
        let (version, epoch) = (HEARTBEAT_VERSION, 1);
        Heartbeat { version, epoch, process, identity, beat, seconds: 0.0, leaves: None, ranks }
    }

    fn own() -> ProcessIdentity {
        ProcessIdentity::own("here".into())
    }

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A watchdog that has seen `steps` steps of a second by two processes, and the time of the last.
    fn trained(steps: u64) -> (Watchdog, f64) {
        let mut watchdog = Watchdog::new(WatchdogSettings::default(), []);
        watchdog.launch(1);
        for step in 0..=steps {
            let beats = (0..2).map(|p| beat(p, step + 1, vec![rank(p, step, step, None)])).collect();
            assert_eq!(watchdog.observe(at(step as f64), beats, &own()), None);
        }
        (watchdog, steps as f64)
    }

    #[test]
    fn limits_follow_the_steps() {
        let (watchdog, _) = trained(200);
        assert_eq!(watchdog.p99(), Some(1.0));
        assert_eq!(watchdog.soft(), at(30.0));
        let watchdog = Watchdog::new(WatchdogSettings::default(), (1..=100).map(f64::from));
        assert_eq!(watchdog.p99(), Some(99.0));
        assert_eq!(watchdog.soft(), at(495.0));
        assert_eq!(Watchdog::new(WatchdogSettings::default(), []).soft(), at(600.0));
    }

    #[test]
    fn a_rank_in_no_collective_is_named_then_the_launch_hangs() {
        let (mut watchdog, end) = trained(50);
        let (mut soft, mut hard) = (None, None);
        for half in 1..200u64 {
            let now = end + half as f64 / 2.0;
            let beats = vec![
                beat(0, 100 + half, vec![rank(0, 50, 51, Some(("data", 7)))]),
                beat(1, 100 + half, vec![rank(1, 50, 50, None)]),
            ];
            match watchdog.observe(at(now), beats, &own()) {
                Some(alarm) if alarm.hangs => {
                    hard = hard.or(Some((now - end, alarm.text)));
                }
                Some(alarm) => {
                    assert!(soft.is_none(), "told twice");
                    soft = Some((now - end, alarm.text));
                }
                None => {}
            }
        }
        let (time, text) = soft.unwrap();
        assert!((30.0..31.5).contains(&time), "{time}");
        let wanted = "rank 1 in no collective, training at step 50, while rank 0 waits in all-reduce of \"gradients\" number 7 in data";
        assert!(text.contains(wanted), "{text}");
        let (time, _) = hard.unwrap();
        assert!((45.0..46.5).contains(&time), "{time}");
    }

    #[test]
    fn a_process_without_a_sign_of_life_is_named_with_its_host() {
        let (mut watchdog, end) = trained(50);
        let mut told = Vec::new();
        for half in 1..100u64 {
            let beats = vec![
                beat(0, 100 + half, vec![rank(0, 50, 51, Some(("data", 7)))]),
                beat(1, 51, vec![rank(1, 50, 50, None)]),
            ];
            told.extend(watchdog.observe(at(end + half as f64 / 2.0), beats, &own()));
        }
        assert!(!told[0].hangs && told[1].hangs, "{told:?}");
        assert!(
            told[0].text.contains("process 1 (host host1, pid 101), last seen training at step 50"),
            "{told:?}"
        );
        assert_eq!(told[1].silent_hosts, ["host1"]);
    }

    #[test]
    fn saves_and_evaluations_that_get_on_are_no_hang() {
        let (mut watchdog, end) = trained(50);
        let phased = |phase, activity, number| {
            let saving = RankBeat { phase, ..rank(0, 50, activity, None) };
            let waiting = RankBeat { phase, ..rank(1, 50, 0, Some(("data", 7))) };
            vec![beat(0, number, vec![saving]), beat(1, number, vec![waiting])]
        };
        // An hour of saving that writes all the time, then one that writes every 200 seconds.
        for second in 1..7200u64 {
            let activity = if second < 3600 { second } else { second / 200 };
            let beats = phased(RankPhase::Saving, activity, 100 + second);
            assert_eq!(watchdog.observe(at(end + second as f64), beats, &own()), None, "{second}");
        }
        // One that writes nothing.
        let mut told = Vec::new();
        for second in 7200..8200u64 {
            let beats = phased(RankPhase::Saving, 0, 100 + second);
            told.extend(watchdog.observe(at(end + second as f64), beats, &own()));
        }
        assert!(told.iter().any(|alarm| alarm.hangs), "{told:?}");
    }

    #[test]
    fn a_launcher_that_outlives_its_processes_hangs() {
        let (mut watchdog, end) = trained(5);
        let leaving = |code| Heartbeat { leaves: Some(code), ..beat(0, 100, vec![rank(0, 5, 5, None)]) };
        assert_eq!(watchdog.observe(at(end + 1.0), vec![leaving(75)], &own()), None);
        assert_eq!(watchdog.observe(at(end + 10.0), vec![leaving(75)], &own()), None);
        let alarm = watchdog.observe(at(end + 17.0), vec![leaving(75)], &own()).unwrap();
        assert!(alarm.hangs && alarm.text.contains("exited with code 75"), "{alarm:?}");
        assert_eq!(alarm.silent_hosts, ["host1"]);
    }

    #[test]
    fn other_launches_are_passed_over() {
        let (mut watchdog, end) = trained(50);
        watchdog.launch(2);
        let stale = vec![beat(0, 51, vec![rank(0, 50, 50, None)])];
        assert_eq!(watchdog.observe(at(end + 1000.0), stale, &own()), None);
        assert_eq!(watchdog.beats().count(), 0);
    }

    #[test]
    fn the_cause_of_a_hang_is_named() {
        let ranks = [
            rank(0, 3, 0, Some(("data", 7))),
            rank(1, 3, 0, Some(("data", 6))),
            rank(2, 3, 0, Some(("data", 7))),
        ];
        let text = culprit(&ranks.iter().collect::<Vec<_>>());
        assert!(text.starts_with("rank 1 is behind: "), "{text}");
        let ranks = [rank(0, 3, 0, Some(("data", 7))), rank(1, 3, 0, Some(("tensor", 9)))];
        let text = culprit(&ranks.iter().collect::<Vec<_>>());
        assert!(text.contains("rank 0 in all-reduce of \"gradients\" number 7 in data; rank 1 in"), "{text}");
        let ranks = [rank(0, 3, 0, None), rank(1, 3, 0, None)];
        assert_eq!(
            culprit(&ranks.iter().collect::<Vec<_>>()),
            "rank 0, 1 in no collective, training at step 3"
        );
    }
}
