//! The loop of a supervisor: it starts what the state machine orders, and tells it what happens.

use super::launches::{Launch, Launches};
use super::target::{OpenTarget, Target};
use crate::cli::SuperviseArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::machine;
use crate::signals::{StopRequest, StopRequests};
use bessemer_checkpoint::{Store, step_name};
use bessemer_durable::ConfinedDir;
use bessemer_launch::LAUNCH_VARIABLE;
use bessemer_runlog::{EndReason, FaultVerdict, Record, read_tail};
use bessemer_supervise::process::ProcessSignal as Signal;
use bessemer_supervise::{
    Alarm, Exit, Finish, HealthServer, HealthStatus, Hosts, Input, Order, Policy, ProcessIdentity,
    ProcessState, RankPhase, ServiceManager, SlowRanks, State, Supervision, Watchdog, WatchdogSettings, code,
    fill_templates, launch_epoch, process, read_heartbeats,
};
use bessemer_train::{SkippedSamples, TrainState};
use bessemer_units::counted;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two looks at the launcher and at requests to stop.
const POLL: Duration = Duration::from_millis(10);
/// Time between two looks at the heartbeats.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two lines of `systemctl status`.
const STATUS: Duration = Duration::from_secs(5);
/// Time that killed processes have to end; the kernel may keep one that waits for a disk.
const DEATH: Duration = Duration::from_secs(20);
/// Time that processes of an earlier supervisor have to save and leave.
const LEAVING: Duration = Duration::from_secs(30);
/// Time of a probe.
const PROBE: Duration = Duration::from_secs(15);
/// Bytes at the end of the run's records that are looked at.
const TAIL: u64 = 256 << 10;
/// Steps of a window in which the work of ranks is compared, and its least length.
const WINDOW: (u64, Duration) = (20, Duration::from_secs(20));

/// A launcher at work.
struct Running {
    child: Child,
    epoch: u64,
    began: Instant,
    started: f64,
    hosts: Option<(Vec<String>, usize)>,
    why: Vec<String>,
    slow: Vec<String>,
    /// Hosts without a sign of life when it hung.
    silent: Vec<String>,
}

/// A supervisor at work.
pub(super) struct Supervisor<'a> {
    args: &'a SuperviseArgs,
    target: Target,
    /// The run directory.
    run: ConfinedDir,
    hosts: Option<Hosts>,
    machine: Supervision,
    watchdog: Watchdog,
    slow: SlowRanks,
    own: ProcessIdentity,
    requests: StopRequests,
    running: Option<Running>,
    /// Newest step that was saved when a launch last ended.
    saved: Option<u64>,
    /// Newest step that was seen when a launch last ended.
    step: Option<u64>,
    begun: Instant,
    looked: Instant,
    notified_manager: Instant,
    alive: Instant,
    pub(super) launches: Launches,
    pub(super) manager: Option<ServiceManager>,
    pub(super) health: Option<HealthServer>,
    console: &'a mut Console,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        args: &'a SuperviseArgs,
        open: OpenTarget,
        hosts: Option<Hosts>,
        policy: &Policy,
        limits: WatchdogSettings,
        launches: Launches,
        console: &'a mut Console,
    ) -> Result<Supervisor<'a>, Failure> {
        let OpenTarget { target, run } = open;
        let own = ProcessIdentity::own(machine::hostname());
        let steps = read_tail(&run, TAIL).unwrap_or_default().into_iter().filter_map(|record| match record {
            Record::Step(step) => Some(step.seconds),
            _ => None,
        });
        let now = Instant::now();
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let mut supervisor = Supervisor {
            args,
            hosts,
            machine: Supervision::new(policy, None, seed),
            watchdog: Watchdog::new(limits, steps),
            slow: SlowRanks::new(WINDOW.0, WINDOW.1),
            own,
            requests: StopRequests::install()?,
            running: None,
            saved: None,
            step: None,
            begun: now,
            looked: now,
            notified_manager: now,
            alive: now,
            launches,
            manager: None,
            health: None,
            console,
            target,
            run,
        };
        supervisor.saved = supervisor.newest_saved();
        supervisor.machine = Supervision::new(policy, supervisor.saved, seed ^ u64::from(supervisor.own.pid));
        Ok(supervisor)
    }

    /// Launches until nothing is left to do.
    ///
    /// # Errors
    /// The system's; too few hosts.
    pub(super) fn supervise(&mut self) -> Result<Finish, Failure> {
        self.end_earlier_launches();
        let finish = self.turn_until_finished();
        if let Some(mut running) = self.running.take() {
            let _ = process::kill_descendants(Some(running.child.id()), DEATH);
            let _ = running.child.wait();
        }
        self.show(&finish.as_ref().map_or_else(|e| e.message.clone(), |finish| format!("{finish:?}")), false);
        self.tell_manager(ServiceManager::stopping);
        finish
    }

    fn turn_until_finished(&mut self) -> Result<Finish, Failure> {
        loop {
            if let Some(request) = self.requests.take() {
                self.stop(request);
            }
            if let Some(running) = &mut self.running
                && let Some(status) = running.child.try_wait()?
            {
                self.ended(status.into())?;
            }
            if self.running.is_some() && self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                self.look();
            }
            self.hear(Input::Tick)?;
            if let State::Finished(finish) = self.machine.state() {
                return Ok(finish);
            }
            if let Some(interval) = self.manager.as_ref().and_then(ServiceManager::interval)
                && self.alive.elapsed() >= interval
            {
                self.alive = Instant::now();
                self.tell_manager(ServiceManager::alive);
            }
            std::thread::sleep(POLL);
        }
    }

    fn stop(&mut self, request: StopRequest) {
        let again = matches!(self.machine.state(), State::Stopping { .. } | State::Killing { .. });
        if again && request == StopRequest::Polite {
            return;
        }
        self.console.say(match again {
            false => "asked to stop: the ranks save and leave; a second Ctrl-C or SIGTERM ends them at once",
            true => "asked again to stop: the ranks are ended",
        });
        // An order that fails is given again when its time is over.
        let _ = self.hear(Input::Stop);
    }

    /// Gives the state machine an input and obeys its order.
    fn hear(&mut self, input: Input) -> Result<(), Failure> {
        match self.machine.hear(self.begun.elapsed(), input) {
            None => Ok(()),
            Some(Order::Launch) => self.launch(),
            Some(Order::AskToStop) => self.signal(match self.args.stop_signal.as_str() {
                "INT" => Signal::INT,
                "TERM" => Signal::TERM,
                _ => Signal::USR1,
            }),
            Some(Order::Terminate) => self.signal(Signal::TERM),
            Some(Order::RollBack) => self.roll_back(),
            Some(Order::Kill) => {
                if let Some(running) = &self.running {
                    self.tell_of_survivors(process::kill_descendants(Some(running.child.id()), DEATH));
                }
                Ok(())
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        match &self.running {
            Some(running) => Ok(process::signal(running.child.id(), signal)?),
            None => Ok(()),
        }
    }

    fn launch(&mut self) -> Result<(), Failure> {
        let run = &self.run;
        let hosts = match &self.hosts {
            Some(hosts) => {
                Some((hosts, hosts.ranks(|ranks| self.target.allows(ranks)).map_err(Failure::new)?))
            }
            None => None,
        };
        let words = fill_templates(&self.args.command, hosts).map_err(Failure::usage)?;
        let hosts = hosts.map(|(hosts, ranks)| (hosts.active().to_vec(), ranks));
        // Whoever still works on the run under an older number ends when it sees this one.
        let epoch = launch_epoch::newest(run)? + 1;
        launch_epoch::claim(run, epoch)?;
        // Not by its path: that may hold a newer program by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bessemer").args(["supervise", "--child-of", &std::process::id().to_string(), "--"]);
        command.args(&words).env(LAUNCH_VARIABLE, epoch.to_string());
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        let child = process::spawn(&mut command)?;
        if let Some((hosts, ranks)) = &hosts {
            self.console.say(&format!("launch {epoch}: {} on {}", counted(*ranks, "rank"), hosts.join(", ")));
        } else if self.machine.launches() > 1 {
            self.console.say(&format!("launch {epoch}"));
        }
        let (now, started) = (Instant::now(), SystemTime::now());
        let started = started.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let (why, slow, silent) = (Vec::new(), Vec::new(), Vec::new());
        self.running = Some(Running { child, epoch, began: now, started, hosts, why, slow, silent });
        self.watchdog.launch(epoch);
        self.slow.launch();
        if self.machine.launches() == 1 {
            self.tell_manager(ServiceManager::ready);
        }
        self.show("launched", true);
        Ok(())
    }

    /// Looks at the heartbeats.
    fn look(&mut self) {
        // A file system that hangs for a moment is no news.
        let beats = read_heartbeats(&self.run).unwrap_or_default();
        let alarm = self.watchdog.observe(self.begun.elapsed(), beats, &self.own);
        let slow = self.slow.observe(self.watchdog.beats());
        if let (Some(slow), Some(running)) = (slow, &mut self.running) {
            self.console.say(&format!("warning: {slow}"));
            running.slow.push(slow.to_string());
        }
        let killing = matches!(self.machine.state(), State::Killing { .. });
        match alarm {
            Some(alarm) if !killing => self.alarm(alarm),
            _ => self.show("", true),
        }
    }

    fn alarm(&mut self, alarm: Alarm) {
        let Alarm { hangs, text, silent_hosts } = alarm;
        self.console.say(&format!("warning: {text}{}", if hangs { "; the launch is ended" } else { "" }));
        self.show(&text, !hangs);
        if let Some(running) = &mut self.running {
            if hangs || running.why.is_empty() {
                running.why = vec![text];
            }
            running.silent = silent_hosts;
        }
        if hangs {
            let _ = self.hear(Input::Hang);
        }
    }

    /// The launcher has ended.
    fn ended(&mut self, exit: Exit) -> Result<(), Failure> {
        let Some(running) = self.running.take() else { return Ok(()) };
        // Ranks that the launcher has left behind.
        self.tell_of_survivors(process::kill_descendants(None, DEATH));
        let beats = read_heartbeats(&self.run).unwrap_or_default();
        self.watchdog.observe(self.begun.elapsed(), beats, &self.own);
        let records = read_tail(&self.run, TAIL).unwrap_or_default();
        let saved = self.newest_saved();
        // A heartbeat is half a second old, and a save may be newer than the last record.
        let step = records.iter().rev().find_map(|record| match record {
            Record::Step(step) => Some(step.step),
            _ => None,
        });
        let step = step.max(self.watchdog.step()).max(saved);
        self.saved = saved;
        self.step = step;
        let mut why = running.why;
        why.extend(recorded_failure(&records, running.started));
        let faults = recorded_faults(&records, running.started);
        let mut lost = running.silent;
        for beat in self.watchdog.beats().filter(|beat| beat.leaves == Some(code::OTHER_HOST)) {
            lost.extend(beat.identity().map(|identity| identity.host));
        }
        let elsewhere = exit == Exit::Code(code::RERUN)
            || self.watchdog.beats().any(|beat| beat.leaves == Some(code::RERUN));
        let launch = Launch {
            epoch: running.epoch,
            started: running.started,
            seconds: running.began.elapsed().as_secs_f64(),
            exit,
            step,
            saved,
            why,
            faults,
            slow: running.slow,
            hosts: running.hosts,
        };
        let stopping =
            matches!(self.machine.state(), State::Stopping { .. } | State::Killing { stopped: true, .. });
        let text = launch.text();
        self.launches.add(launch)?;
        self.hear(Input::Ended { exit, saved })?;
        if let State::Waiting { until } = self.machine.state() {
            let wait = until.saturating_sub(self.begun.elapsed()).as_secs_f64();
            self.console.say(&format!("warning: {text}\nrestart in {wait:.1} s"));
            self.show(&text, true);
            self.replace_hosts(&lost);
            if let (true, Some(hosts)) = (elsewhere, &mut self.hosts) {
                hosts.rotate();
                self.console.say("warning: all ranks move to other hosts, to find the faulty host");
            }
        } else if !stopping && exit != Exit::Code(code::DONE) {
            self.console.say(&format!("warning: {text}"));
        }
        Ok(())
    }

    /// Takes out hosts that were lost or cannot be reached.
    fn replace_hosts(&mut self, lost: &[String]) {
        let Some(hosts) = &mut self.hosts else { return };
        let mut changes = hosts.lose(lost);
        if let Some(probe) = &self.args.probe {
            // Spares that take a place are asked as well.
            loop {
                let unreachable = unreachable(hosts.active(), probe);
                let more = hosts.lose(&unreachable);
                if more.is_empty() {
                    break;
                }
                changes.extend(more);
            }
        }
        changes.iter().for_each(|change| self.console.say(&format!("warning: {change}")));
    }

    /// Moves the newest checkpoint aside, with copies in memory that begin there, and the data since the one before with it if that
    /// is asked for.
    fn roll_back(&mut self) -> Result<(), Failure> {
        let store = bessemer_train::checkpoints_in(&self.run);
        let Some(newest) = self.saved else { return Ok(()) };
        let older = newest.checked_sub(1).and_then(|last| store.latest_complete_until(last).ok().flatten());
        let Some((older, skipped)) = older else {
            self.console.say("warning: cannot roll back: no usable checkpoint before the newest one");
            return Ok(());
        };
        for skipped in &skipped {
            self.console.say(&format!("warning: {skipped}; step {older} is used instead"));
        }
        // Before the checkpoint goes: it would go on behind these data as well.
        let mut behind = String::new();
        if let Some(beyond) = self.args.skip_data {
            let [first, end] = self.span_to_skip(&store, older, newest, beyond)?;
            SkippedSamples::add(&self.run, [first, end])?;
            behind = format!(", skipping samples {first} to {end}");
        }
        let dir = self.run.dir("checkpoints")?;
        let from = step_name(newest);
        let to = format!("{from}.given-up-{}", self.machine.launches());
        dir.rename(&from, &to)?;
        dir.sync()?;
        // Without it copies in memory are those of another run.
        if dir.exists(bessemer_train::MEMORY_RUN_FILE) {
            dir.remove_file(bessemer_train::MEMORY_RUN_FILE)?;
        }
        self.saved = Some(older);
        let to = dir.path().join(to);
        let to = to.display();
        self.console.say(&format!(
            "warning: repeated failures after step {newest}: rolled back to step {older}{behind}; the \
             checkpoint of step {newest} was moved to {to}"
        ));
        Ok(())
    }

    /// Samples from a checkpoint up to those of so many steps behind the newest one that was seen.
    fn span_to_skip(&self, store: &Store, older: u64, newest: u64, beyond: u64) -> Result<[u64; 2], Failure> {
        let state = |step| -> Result<TrainState, Failure> {
            let loaded = store.load_lazily(step)?;
            let problem = |cause| Failure::new(format!("{}: {cause}", store.path(step).display()));
            TrainState::of(loaded.manifest()).map_err(problem)
        };
        let (first, last) = (state(older)?.loader.samples, state(newest)?);
        let steps = self.step.unwrap_or(newest).saturating_sub(newest) + beyond;
        let skipped = SkippedSamples::read(&self.run)?;
        Ok([first, skipped.after_steps(&last, steps)])
    }

    /// The newest step from which a launch can go on.
    fn newest_saved(&self) -> Option<u64> {
        let store = bessemer_train::checkpoints_in(&self.run);
        store.latest_complete_until(u64::MAX).ok().flatten().map(|(step, _)| step)
    }

    /// Ends processes of this host that an earlier supervisor, which was killed, has left behind.
    fn end_earlier_launches(&mut self) {
        let beats = read_heartbeats(&self.run).unwrap_or_default();
        let lives = |beat: &&bessemer_supervise::Heartbeat| {
            matches!(beat.state(&self.own), ProcessState::Runs | ProcessState::Stopped)
        };
        let left: Vec<_> = beats.iter().filter(lives).collect();
        if left.is_empty() {
            return;
        }
        let places: Vec<String> = left.iter().map(|beat| beat.place()).collect();
        self.console.say(&format!(
            "warning: stopping processes that an earlier launch left running: {}",
            places.join("; ")
        ));
        let until = Instant::now() + LEAVING;
        for signal in [Signal::TERM, Signal::KILL] {
            let pids = left.iter().filter(|beat| lives(beat)).filter_map(|beat| beat.identity());
            pids.for_each(|identity| drop(process::signal(identity.pid, signal)));
            while signal == Signal::TERM && left.iter().any(lives) && Instant::now() < until {
                std::thread::sleep(POLL);
            }
        }
    }

    fn tell_of_survivors(&mut self, killed: Result<(), Vec<u32>>) {
        if let Err(left) = killed {
            let numbers: Vec<String> = left.iter().map(u32::to_string).collect();
            let seconds = DEATH.as_secs();
            let text = format!(
                "warning: killed processes have not ended within {seconds} s: {}",
                numbers.join(", ")
            );
            self.console.say(&text);
        }
    }

    /// Shows the state to probes and to the service manager.
    fn show(&mut self, what: &str, healthy: bool) {
        let step = self.watchdog.step();
        let trains = self
            .watchdog
            .beats()
            .any(|beat| beat.ranks.iter().any(|rank| rank.phase != RankPhase::Preparing));
        let training = self.running.is_some() && trains;
        let mut text = format!("launch {}", self.machine.launches());
        if let Some(step) = step {
            text += &format!(", step {step}");
        }
        if !what.is_empty() {
            text += &format!(": {what}");
        }
        if let Some(health) = &self.health {
            let saved = self.saved;
            let (launches, restarts_in_a_row) = (self.machine.launches(), self.machine.restarts_in_a_row());
            health.show(HealthStatus {
                healthy,
                text: text.clone(),
                training,
                launches,
                step,
                saved,
                restarts_in_a_row,
            });
        }
        if self.manager.is_some() && (!what.is_empty() || self.notified_manager.elapsed() >= STATUS) {
            self.notified_manager = Instant::now();
            self.tell_manager(|manager| manager.status(&text));
        }
    }

    /// A service manager that does not listen is no reason to end a run.
    fn tell_manager(&mut self, tell: impl Fn(&ServiceManager) -> std::io::Result<()>) {
        if let Some(manager) = &self.manager
            && let Err(e) = tell(manager)
        {
            self.console.say(&format!("warning: NOTIFY_SOCKET: {e}; nothing more is reported to it"));
            self.manager = None;
        }
    }
}

/// The error with which the run has recorded the end of a launch, if it could. `since`: begin of the launch.
fn recorded_failure(records: &[Record], since: f64) -> Option<String> {
    let of_launch = |record: &Record| matches!(record, Record::Run(run) if run.started_unix_s >= since);
    let first = records.iter().rposition(of_launch)?;
    records[first..].iter().rev().find_map(|record| match record {
        Record::End(end) if end.reason == EndReason::Failed => end.message.clone(),
        _ => None,
    })
}

/// Wrong numbers that the run has recorded since the begin of a launch.
fn recorded_faults(records: &[Record], since: f64) -> Vec<String> {
    let of_launch = |record: &Record| matches!(record, Record::Run(run) if run.started_unix_s >= since);
    let first = records.iter().rposition(of_launch).unwrap_or(records.len());
    let fault = |record: &Record| match record {
        Record::Fault(fault) if fault.verdict != FaultVerdict::Reproduced => Some(fault.message.clone()),
        _ => None,
    };
    records[first..].iter().filter_map(fault).collect()
}

/// Hosts at which a probe fails or does not end in time.
fn unreachable(hosts: &[String], probe: &str) -> Vec<String> {
    let start = |host: &String| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &probe.replace("{host}", host)]).stdout(Stdio::null()).stderr(Stdio::null());
        (host.clone(), process::spawn(&mut shell))
    };
    let mut probes: Vec<_> = hosts.iter().map(start).collect();
    let until = Instant::now() + PROBE;
    let mut failed = Vec::new();
    while !probes.is_empty() {
        let over = Instant::now() >= until;
        probes.retain_mut(|(host, child)| {
            let Ok(child) = child else {
                failed.push(host.clone());
                return false;
            };
            match child.try_wait() {
                Ok(None) if !over => return true,
                Ok(Some(status)) if status.success() => {}
                _ => {
                    failed.push(host.clone());
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
            false
        });
        std::thread::sleep(POLL);
    }
    failed
}
