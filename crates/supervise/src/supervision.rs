//! The state machine of restarts.
//!
//! ```text
//!              ┌────────────── time is over ───────────────┐
//!              ▼                                           │
//!   start ─► Running ── ended, can go on ──────────────► Waiting ── stop ─► Finished (stopped)
//!              │ │ └─── done, hopeless, crash loop ──────► Finished
//!              │ └─ hang ─► Killing ── ended ─► as Running (with a stop before: Finished)
//!              └─── stop ─► Stopping ── ended ─► Finished (stopped or done)
//!                              └─ a second stop, grace is over, hang ─► Killing
//! ```
//! With [`Policy::roll_back`] the first crash loop is no end: the run goes back by one checkpoint, and all restarts are there again.
//! Never: two launches at once, a launch after a stop, a launch after a hopeless end, more restarts in a row without progress
//! than the policy says.

use crate::exit::{Exit, ExitClass};
use bessemer_units::splitmix::{SplitMix64, unit};
use std::time::Duration;

/// How a supervisor restarts.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Restarts in a row that bring no newer state before the supervisor gives up.
    pub restarts_without_progress: u32,
    /// Wait before the first restart in a row; doubled from one to the next.
    pub first_delay: Duration,
    /// Longest wait.
    pub longest_delay: Duration,
    /// Time that a launch has to save and leave after it was asked to.
    pub stop_grace: Duration,
    /// Time between SIGTERM and SIGKILL for a launch that hangs.
    pub kill_grace: Duration,
    /// Whether a run that dies again and again goes back by one checkpoint, once, before the supervisor gives up.
    pub roll_back: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            restarts_without_progress: 3,
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(60),
            stop_grace: Duration::from_secs(600),
            kill_grace: Duration::from_secs(3),
            roll_back: false,
        }
    }
}

/// Why a launch is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KillReason {
    /// The launch hangs.
    Hang,
    /// The launch did not stop when it was asked to.
    Stop,
}

/// State of a supervisor. Times are since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// A launch runs.
    Running,
    /// A launch was asked to save and leave.
    Stopping {
        /// End of its grace.
        until: Duration,
    },
    /// A launch is being ended by force.
    Killing {
        /// Reason.
        reason: KillReason,
        /// Time of SIGKILL; nothing once it was sent.
        kill_at: Option<Duration>,
        /// Whether the supervisor was asked to stop.
        stopped: bool,
    },
    /// The next launch is due later.
    Waiting {
        /// Time of the launch.
        until: Duration,
    },
    /// The end.
    Finished(Finish),
}

/// How a supervisor ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The run is done.
    Done,
    /// Stopped as asked; the same command goes on.
    Stopped,
    /// A launch ended in a way that another try does not change.
    Hopeless(Exit),
    /// Too many restarts without progress.
    CrashLoop(Exit),
}

/// News for a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// The launch has ended, all of its processes with it. `saved`: newest step from which the next launch can go on.
    Ended {
        /// End of the launcher.
        exit: Exit,
        /// Newest saved step.
        saved: Option<u64>,
    },
    /// Somebody asks the supervisor to stop.
    Stop,
    /// The launch hangs.
    Hang,
    /// Time has passed.
    Tick,
}

/// Action of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Start the launcher.
    Launch,
    /// Ask the launch to save and leave.
    AskToStop,
    /// SIGTERM to the launcher.
    Terminate,
    /// SIGKILL to every process of the launch.
    Kill,
    /// Take the newest checkpoint out of the way: launches that begin there die.
    RollBack,
}

/// A supervisor's restarts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Supervision {
    first_delay: Duration,
    longest_delay: Duration,
    stop_grace: Duration,
    kill_grace: Duration,
    limit: u32,
    roll_back: bool,
    state: State,
    /// Restarts since the last progress.
    in_a_row: u32,
    /// Newest saved step so far.
    saved: Option<u64>,
    launches: u64,
    random: SplitMix64,
}

impl Supervision {
    /// A supervisor whose first launch is to be started now. `saved`: newest saved step before it. `seed`: of the jitter.
    pub fn new(policy: &Policy, saved: Option<u64>, seed: u64) -> Supervision {
        Supervision {
            first_delay: policy.first_delay,
            longest_delay: policy.longest_delay,
            stop_grace: policy.stop_grace,
            kill_grace: policy.kill_grace,
            limit: policy.restarts_without_progress,
            roll_back: policy.roll_back,
            state: State::Waiting { until: Duration::ZERO },
            in_a_row: 0,
            saved,
            launches: 0,
            random: SplitMix64(seed),
        }
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Restarts since the newest saved step grew.
    pub fn restarts_in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Takes an input at a time, and returns what is to be done. Inputs that say nothing in this state are passed over.
    pub fn hear(&mut self, now: Duration, input: Input) -> Option<Order> {
        match (self.state, input) {
            (State::Finished(_), _) => None,
            (State::Waiting { .. }, Input::Stop) => self.finish(Finish::Stopped),
            (State::Waiting { until }, Input::Tick) if now >= until => {
                self.state = State::Running;
                self.launches += 1;
                Some(Order::Launch)
            }
            (State::Waiting { .. }, _) => None,
            (State::Running, Input::Ended { exit, saved }) => self.ended(now, exit, saved),
            (State::Running, Input::Stop) => {
                self.state = State::Stopping { until: now.saturating_add(self.stop_grace) };
                Some(Order::AskToStop)
            }
            (State::Running, Input::Hang) => self.terminate(now, KillReason::Hang, false),
            (State::Running, Input::Tick) => None,
            (State::Stopping { .. }, Input::Ended { exit, .. }) => self.stopped(exit),
            (State::Stopping { .. }, Input::Stop) => self.terminate(now, KillReason::Stop, true),
            (State::Stopping { .. }, Input::Hang) => self.terminate(now, KillReason::Hang, true),
            (State::Stopping { until }, Input::Tick) if now >= until => {
                self.terminate(now, KillReason::Stop, true)
            }
            (State::Stopping { .. }, Input::Tick) => None,
            (State::Killing { stopped: true, .. }, Input::Ended { exit, .. }) => self.stopped(exit),
            (State::Killing { .. }, Input::Ended { exit, saved }) => self.ended(now, exit, saved),
            (State::Killing { reason, kill_at, .. }, Input::Stop) => {
                self.state = State::Killing { reason, kill_at, stopped: true };
                None
            }
            (State::Killing { reason, kill_at: Some(at), stopped }, Input::Tick) if now >= at => {
                self.state = State::Killing { reason, kill_at: None, stopped };
                Some(Order::Kill)
            }
            (State::Killing { .. }, _) => None,
        }
    }

    fn finish(&mut self, finish: Finish) -> Option<Order> {
        self.state = State::Finished(finish);
        None
    }

    fn terminate(&mut self, now: Duration, reason: KillReason, stopped: bool) -> Option<Order> {
        let kill_at = Some(now.saturating_add(self.kill_grace));
        self.state = State::Killing { reason, kill_at, stopped };
        Some(Order::Terminate)
    }

    /// A launch that was asked to stop has ended.
    fn stopped(&mut self, exit: Exit) -> Option<Order> {
        self.finish(match exit.class() {
            ExitClass::Done => Finish::Done,
            ExitClass::Hopeless => Finish::Hopeless(exit),
            _ => Finish::Stopped,
        })
    }

    /// A launch has ended by itself, or because it hung.
    fn ended(&mut self, now: Duration, exit: Exit, saved: Option<u64>) -> Option<Order> {
        match exit.class() {
            ExitClass::Done => return self.finish(Finish::Done),
            ExitClass::Hopeless => return self.finish(Finish::Hopeless(exit)),
            ExitClass::Again
            | ExitClass::OtherHost
            | ExitClass::Rerun
            | ExitClass::Bug
            | ExitClass::Killed(_)
            | ExitClass::Failed => {}
        }
        if saved > self.saved {
            self.saved = saved;
            self.in_a_row = 0;
        }
        let mut order = None;
        if self.in_a_row >= self.limit {
            // Progress is what goes beyond the checkpoint that is given up.
            if !std::mem::take(&mut self.roll_back) || saved.is_none() {
                return self.finish(Finish::CrashLoop(exit));
            }
            (order, self.in_a_row) = (Some(Order::RollBack), 0);
        }
        self.in_a_row += 1;
        let doubled = self.first_delay.saturating_mul(1 << (self.in_a_row - 1).min(16));
        let delay = doubled.min(self.longest_delay).mul_f64(self.jitter());
        self.state = State::Waiting { until: now.saturating_add(delay) };
        order
    }

    /// A factor from 0.75 to 1.25, so that the jobs of a cluster that failed together do not come back together.
    fn jitter(&mut self) -> f64 {
        0.75 + 0.5 * unit(self.random.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What happened so far on one path, beside the machine, to hold it against the promises.
    #[derive(Clone)]
    struct Path {
        machine: Supervision,
        now: Duration,
        running: bool,
        stop_heard: bool,
        hopeless: bool,
        without_progress: u32,
        saved: u64,
        terminated: bool,
    }

    impl Path {
        fn new() -> Path {
            let machine = Supervision::new(&Policy::default(), Some(0), 7);
            let state = (Duration::ZERO, false, false, false, 0, 0, false);
            let (now, running, stop_heard, hopeless, without_progress, saved, terminated) = state;
            Path { machine, now, running, stop_heard, hopeless, without_progress, saved, terminated }
        }

        /// Takes a step and checks every promise.
        fn hear(&mut self, what: Step) {
            let before = self.machine.clone();
            let input = match what {
                Step::Ends(exit, progress) => {
                    if !self.running {
                        return;
                    }
                    self.saved += u64::from(progress);
                    self.running = false;
                    self.hopeless |= exit.class() == ExitClass::Hopeless;
                    Input::Ended { exit, saved: Some(self.saved) }
                }
                Step::Stop => {
                    self.stop_heard = true;
                    Input::Stop
                }
                Step::Hang => Input::Hang,
                Step::Passes(time) => {
                    self.now += time;
                    Input::Tick
                }
            };
            let order = self.machine.hear(self.now, input);
            let finished = matches!(before.state, State::Finished(_));
            assert!(!finished || (order.is_none() && self.machine == before), "something after the end");
            if let Step::Ends(exit, progress) = what {
                self.ended(&before, exit, progress);
                assert_eq!(order, None);
            }
            match order {
                Some(Order::Launch) => {
                    assert!(!self.running && !self.stop_heard && !self.hopeless, "{before:?}");
                    assert!(self.without_progress <= 3);
                    (self.running, self.terminated) = (true, false);
                }
                Some(Order::AskToStop) => assert!(self.running && what == Step::Stop),
                Some(Order::Terminate) => {
                    assert!(self.running && !self.terminated, "{before:?}");
                    self.terminated = true;
                }
                Some(Order::Kill) => assert!(self.running && self.terminated),
                Some(Order::RollBack) => panic!("nobody has asked for it"),
                None => {}
            }
            // Somebody who waits long enough sees something happen: nothing is stuck but a launch that runs.
            if !self.running && !matches!(self.machine.state, State::Finished(_)) {
                let mut later = self.machine.clone();
                let order = later.hear(self.now + 76 * SECOND, Input::Tick);
                assert_eq!(order, Some(Order::Launch), "{later:?}");
            }
            if self.running && self.stop_heard {
                let mut later = self.clone();
                let mut orders = Vec::new();
                for _ in 0..3 {
                    later.now += 601 * SECOND;
                    orders.extend(later.machine.hear(later.now, Input::Tick));
                }
                let killed = matches!(self.machine.state, State::Killing { kill_at: None, .. });
                assert!(killed || orders.last() == Some(&Order::Kill), "{:?}", self.machine);
            }
        }

        fn ended(&mut self, before: &Supervision, exit: Exit, progress: bool) {
            let stopped = self.stop_heard;
            match (exit.class(), self.machine.state) {
                (ExitClass::Done, state) => assert_eq!(state, State::Finished(Finish::Done)),
                (ExitClass::Hopeless, state) => assert_eq!(state, State::Finished(Finish::Hopeless(exit))),
                (_, state) if stopped => assert_eq!(state, State::Finished(Finish::Stopped)),
                (_, State::Finished(finish)) => {
                    assert_eq!(finish, Finish::CrashLoop(exit));
                    assert!(!progress && self.without_progress == 3, "gave up too early");
                }
                (_, State::Waiting { until }) => {
                    self.without_progress = if progress { 1 } else { self.without_progress + 1 };
                    let wanted = SECOND * (1 << (self.without_progress - 1));
                    let delay = until - self.now;
                    assert!(delay >= wanted.mul_f64(0.75) && delay <= wanted.mul_f64(1.25), "{delay:?}");
                }
                (_, state) => panic!("{before:?} {exit:?} {state:?}"),
            }
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        Ends(Exit, bool),
        Stop,
        Hang,
        Passes(Duration),
    }

    fn walk(path: &Path, steps: &[Step], depth: u32, paths: &mut u64) {
        if depth == 0 {
            *paths += 1;
            return;
        }
        for step in steps {
            let mut next = path.clone();
            next.hear(*step);
            walk(&next, steps, depth - 1, paths);
        }
    }

    #[test]
    fn all_paths_keep_the_promises() {
        let mut all: Vec<Step> = [0, 1, 2, 70, 75, 76, 77, 78, 127, 137, 9]
            .into_iter()
            .map(Exit::Code)
            .chain([Exit::Signal(9), Exit::Signal(11)])
            .flat_map(|exit| [Step::Ends(exit, false), Step::Ends(exit, true)])
            .collect();
        let others = [
            Step::Stop,
            Step::Hang,
            Step::Passes(SECOND / 2),
            Step::Passes(2 * SECOND),
            Step::Passes(700 * SECOND),
        ];
        all.extend(others);
        let mut start = Path::new();
        start.hear(Step::Passes(Duration::ZERO));
        assert_eq!(start.machine.state, State::Running);
        let mut paths = 0;
        walk(&start, &all, 3, &mut paths);
        // Fewer kinds of steps, longer.
        let few = [
            Step::Ends(Exit::Signal(9), false),
            Step::Ends(Exit::Code(75), true),
            Step::Stop,
            Step::Hang,
            Step::Passes(700 * SECOND),
        ];
        walk(&start, &few, 7, &mut paths);
        assert!(paths > 90_000, "{paths}");
    }

    #[test]
    fn a_crash_loop_goes_back_by_one_checkpoint_once_if_asked_to() {
        let policy = Policy { roll_back: true, restarts_without_progress: 2, ..Policy::default() };
        let dies = |machine: &mut Supervision, now: &mut Duration, saved| {
            assert_eq!(machine.hear(*now, Input::Tick), Some(Order::Launch));
            let order = machine.hear(*now, Input::Ended { exit: Exit::Signal(9), saved });
            *now += Duration::from_secs(100);
            order
        };
        let (mut machine, mut now) = (Supervision::new(&policy, Some(20), 1), Duration::ZERO);
        let orders: Vec<_> = (0..3).map(|_| dies(&mut machine, &mut now, Some(20))).collect();
        assert_eq!(orders, [None, None, Some(Order::RollBack)]);
        // What is saved again on the way to where it died is no progress.
        assert_eq!(dies(&mut machine, &mut now, Some(10)), None);
        assert_eq!(dies(&mut machine, &mut now, Some(20)), None);
        assert_eq!(machine.state(), State::Finished(Finish::CrashLoop(Exit::Signal(9))));
        // Without a checkpoint there is nothing to go back from.
        let (mut machine, mut now) = (Supervision::new(&policy, None, 1), Duration::ZERO);
        let orders: Vec<_> = (0..3).map(|_| dies(&mut machine, &mut now, None)).collect();
        assert_eq!(orders, [None, None, None]);
        assert_eq!(machine.state(), State::Finished(Finish::CrashLoop(Exit::Signal(9))));
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let policy = Policy { restarts_without_progress: 20, ..Policy::default() };
        let mut machine = Supervision::new(&policy, None, 1);
        let (mut now, mut delays) = (Duration::ZERO, Vec::new());
        for _ in 0..10 {
            assert_eq!(machine.hear(now, Input::Tick), Some(Order::Launch));
            machine.hear(now, Input::Ended { exit: Exit::Signal(9), saved: None });
            let State::Waiting { until } = machine.state() else { panic!("{machine:?}") };
            delays.push((until - now).as_secs_f64());
            now = until;
        }
        for (delay, wanted) in delays.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]) {
            assert!((0.75 * wanted..=1.25 * wanted).contains(delay), "{delays:?}");
        }
        let distinct: std::collections::BTreeSet<u64> = delays.iter().map(|d| d.to_bits()).collect();
        assert_eq!(distinct.len(), delays.len(), "no jitter");
    }
}
