//! The ranks of a job: how many there are, who started them, and training by all of them.
//!
//! Either this process is the job and its ranks are threads (`--ranks`), or it is one rank of several processes that a
//! launcher started, which talk over MPI. The first rank holds the run directory and the terminal; the others only train.

use crate::cli::{RecipeArgs, WaitingArgs};
use crate::commands::plan::auto::{self, LaidOut};
use crate::console::Console;
use crate::failure::{Failure, code};
use crate::machine;
use crate::recipes::{load_planned, load_recipe_for};
use crate::run_dir::RunDir;
use crate::signals::Deadline;
use bessemer_checkpoint::{Latest, Store};
use bessemer_collectives::launch::{Launch, resolve};
use bessemer_collectives::{
    CollectiveError, Communicator, FlightRecorder, MessageCommunicator, MessageSettings,
};
use bessemer_collectives_mpi::MpiWorld;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_launch::{
    Decision, HeartbeatHost, Heartbeats, LAUNCH_VARIABLE, Meeting, ProcessFailure, RankEnds, report_once,
    report_table_once,
};
use bessemer_parallel::ParallelError;
use bessemer_planner::{Host, is_auto};
use bessemer_recipe::RecipeUse;
use bessemer_train::{
    Closed, OtherCheckpoints, Outcome, REMEMBERED_COLLECTIVES, Silent, TrainError, Trainer, TrainerInput,
    recorded_threads,
};
use bessemer_units::Bytes;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

/// Most ranks that a process may start.
const MOST_RANKS: usize = 1024;
/// How long processes wait for the first one before training and after it, where it works alone: it builds the corpus, or
/// writes the report. One that is gone is noticed all the same.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How long the other ranks of a process get to end after one has timed out, at most.
const GRACE: Duration = Duration::from_secs(30);

/// The job that this process is, or is a part of.
pub(crate) struct Job {
    /// Ranks of the job.
    pub(crate) ranks: usize,
    /// Ranks in this process.
    pub(crate) here: usize,
    /// Launcher of the ranks.
    pub(crate) source: String,
    /// Number of this process.
    process: usize,
    /// Ranks on this machine.
    local: usize,
    /// Whether the launcher has given each process cores of its own.
    bound: bool,
    worlds: Vec<Box<dyn Communicator>>,
    /// The last collectives of the ranks in this process.
    recorder: FlightRecorder,
    /// How long a rank waits in a collective.
    timeout: Duration,
    /// Heartbeats of this process to a supervisor.
    beats: Heartbeats,
    /// All processes, to meet before training.
    meeting: Option<Meeting>,
    /// All processes, to agree on who reports what all of them found wrong.
    failures: Option<Box<dyn Communicator>>,
    mpi: Option<MpiWorld>,
}

impl Job {
    /// `asked` ranks as threads, or what the launcher's variables say, or one rank.
    ///
    /// # Errors
    /// Both at once, more ranks than make sense, variables that contradict each other, MPI that does not come up.
    pub(crate) fn start(asked: Option<NonZeroUsize>, waiting: WaitingArgs) -> Result<Job, Failure> {
        let launch = resolve(&|name| std::env::var(name).ok()).map_err(Failure::usage)?;
        match asked.map(NonZeroUsize::get) {
            Some(n) if launch.world > 1 => Err(Failure::usage(format!(
                "--ranks {n} starts ranks as threads of one process, but this is process {launch}: leave out --ranks, or \
                 start one process"
            ))),
            None if launch.world > 1 => Job::process(launch, waiting),
            asked => Job::threads(asked.unwrap_or(1), waiting.timeout()),
        }
    }

    /// Ranks that are threads of this process.
    ///
    /// # Errors
    /// More ranks than make sense.
    pub(crate) fn threads(count: usize, timeout: Duration) -> Result<Job, Failure> {
        if count > MOST_RANKS {
            return Err(Failure::usage(format!("--ranks {count}: expected 1 to {MOST_RANKS}")));
        }
        let (recorder, worlds) = recorded_threads(count, timeout);
        Ok(Job {
            ranks: count,
            here: count,
            source: "threads of this process (--ranks)".into(),
            process: 0,
            local: count,
            bound: false,
            worlds,
            recorder,
            timeout,
            beats: Heartbeats::default(),
            meeting: None,
            failures: None,
            mpi: None,
        })
    }

    fn process(launch: Launch, waiting: WaitingArgs) -> Result<Job, Failure> {
        let timeout = waiting.timeout();
        let settings = bessemer_collectives_mpi::Settings {
            silence: waiting.silence(),
            launch: Some(launch.clone()),
            ..Default::default()
        };
        let mpi = bessemer_collectives_mpi::start(&settings)
            .map_err(|e| Failure::usage(format!("this is process {launch}; {e}")))?;
        let settings = MessageSettings { patience: PATIENCE, ..MessageSettings::default() };
        let mut world = MessageCommunicator::world("world", mpi.transport(), &settings);
        let all: Vec<usize> = (0..mpi.size()).collect();
        let failures = world.group("failures", &all).map_err(Failure::new)?;
        let meeting = world.group("meeting", &all).map_err(Failure::new)?;
        world.set_patience(timeout);
        let recorder = FlightRecorder::of_rank(mpi.rank(), REMEMBERED_COLLECTIVES);
        Ok(Job {
            ranks: mpi.size(),
            here: 1,
            source: format!("processes of {}, {}", launch.source, mpi.library()),
            process: mpi.rank(),
            local: launch.local_world.unwrap_or(launch.world),
            bound: machine::is_bound(),
            worlds: vec![recorder.wrap(mpi.rank(), Box::new(world))],
            recorder: recorder.clone(),
            timeout,
            beats: Heartbeats::default(),
            meeting: Some(Meeting::new(recorder.wrap(mpi.rank(), meeting))),
            failures: Some(failures),
            mpi: Some(mpi),
        })
    }

    /// Whether the first rank is in this process.
    pub(crate) fn is_first(&self) -> bool {
        self.process == 0
    }

    /// Whether the ranks are processes.
    pub(crate) fn is_of_processes(&self) -> bool {
        self.mpi.is_some()
    }

    /// A new communicator of all processes, if the ranks are processes; all of them call this in the same order.
    ///
    /// # Errors
    /// If another process has ended.
    pub(crate) fn group(&mut self, label: &str) -> Result<Option<Box<dyn Communicator>>, Failure> {
        if self.mpi.is_none() {
            return Ok(None);
        }
        let all: Vec<usize> = (0..self.ranks).collect();
        let group = self.worlds.first_mut().map(|world| world.group(label, &all)).transpose();
        group.map_err(|e| Failure::new(format!("rank {}: {e}", self.process)))
    }

    /// Ranks on this machine, which share its memory.
    pub(crate) fn local(&self) -> usize {
        self.local
    }

    /// Threads that each rank computes with. `wanted` is `run.threads`: 0 shares the cores out.
    pub(crate) fn threads_of_a_rank(&self, wanted: u64) -> usize {
        match wanted {
            0 if self.bound => machine::threads(0),
            0 => (machine::threads(0) / self.local).max(1),
            n => machine::threads(n),
        }
    }

    /// Plans the layout of a recipe that leaves it to a plan: the first process does, and all obey.
    ///
    /// # Errors
    /// Errors of [`auto::plan`], the same on every process; another process has ended.
    pub(crate) fn lay_out(
        &mut self,
        args: &RecipeArgs,
        recipe_use: RecipeUse,
        console: &mut Console,
    ) -> Result<LaidOut, Failure> {
        let sets = args.overrides();
        let loaded = load_recipe_for(&args.recipe, &sets, recipe_use)?;
        if !is_auto(&loaded.value) {
            return Ok(LaidOut { loaded, record: None });
        }
        let memory = Bytes(machine::available_memory().0 / self.local as u64);
        let threads = self.threads_of_a_rank(loaded.value.run.threads);
        let host = Host { ranks: self.ranks, local: self.local, threads, memory };
        let (mut said, mut record) = (Vec::new(), None);
        if self.is_first() {
            let planned = auto::plan(&args.recipe, &sets, &host, console);
            said = auto::tell(&planned)?;
            record = planned.ok().and_then(|(_, record)| record);
        }
        if let Some(meeting) = &mut self.meeting {
            said = match meeting.share(said) {
                Ok(said) => said,
                Err(e) => return Err(Broken::from(TrainError::from(ParallelError::from(e))).of_process(self)),
            };
        }
        let plan = auto::hear(&said)?;
        Ok(LaidOut { loaded: load_planned(&args.recipe, &sets, &plan, recipe_use)?, record })
    }

    /// On the first process: prepares the data; `stop` is set if another process was asked to stop meanwhile.
    pub(crate) fn prepare<T>(&mut self, stop: &AtomicBool, work: impl FnOnce() -> T) -> T {
        match &mut self.meeting {
            Some(meeting) => meeting.prepare(stop, work),
            None => work(),
        }
    }

    /// On the first process, which holds the run directory: a supervisor has launched the job under this number, if any.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn launched(&mut self, launch: Option<u64>, run: &RunDir) -> Result<(), Failure> {
        if let Some(meeting) = &mut self.meeting {
            meeting.launch = launch;
        }
        let Some(launch) = launch else { return Ok(()) };
        let ranks = self.process..self.process + self.here;
        let host = HeartbeatHost {
            hostname: machine::hostname(),
            warn: crate::console::warn,
            leave: |message| leave(&Failure::new(message)),
        };
        self.beats = Heartbeats::start(run.handle()?, launch, self.process, ranks, &self.recorder, host)?;
        Ok(())
    }

    /// Returns when the first process has called it: what it has written is there then. `run`: its directory.
    ///
    /// # Errors
    /// [`code::CONTINUE`] if any process was asked to stop; another process has ended.
    pub(crate) fn meet(&mut self, stop: &AtomicBool, run: &RunDir) -> Result<(), Failure> {
        let Some(meeting) = &mut self.meeting else { return Ok(()) };
        let met = if self.process == 0 { meeting.decide(stop) } else { meeting.wait(stop) };
        match met {
            Ok(Decision::Train) if self.process == 0 => Ok(()),
            Ok(Decision::Train) => {
                let launch = self.meeting.as_ref().and_then(|meeting| meeting.launch);
                self.launched(launch, run)
            }
            Ok(Decision::Stop) => Err(interrupted(self.process == 0)),
            Err(e) => Err(Broken::from(TrainError::from(ParallelError::from(e))).of_process(self)),
        }
    }

    /// Ends the job with the result of this process. A user's mistake that several processes found is reported by one.
    ///
    /// # Errors
    /// The failure of this or another process; a process that does not reach the end.
    pub(crate) fn end(mut self, result: Result<(), Failure>) -> Result<(), Failure> {
        self.beats.leave(result.as_ref().map_or_else(|failure| failure.code, |()| code::DONE));
        let Some(mpi) = self.mpi else { return result };
        match result {
            Err(failure) if failure.code != code::CONTINUE && failure.code != code::DONE => {
                let reason = failure.message.clone();
                // Whoever found the same still waits for this process to say so.
                let failure = match &mut self.failures {
                    Some(group) => report_once(&mut **group, failure.into(), &tell).into(),
                    None => failure,
                };
                let vain = self.recorder.timed_out(self.process);
                let lines = vain.then(|| self.recorder.lines());
                let failure = match &mut self.failures {
                    Some(group) => report_table_once(&mut **group, failure.into(), lines, &tell).into(),
                    None => failure,
                };
                drop((self.worlds, self.meeting, self.failures));
                mpi.abandon(&reason);
                Err(failure)
            }
            result => {
                if let (Err(_), Some(meeting)) = (&result, &mut self.meeting) {
                    meeting.stop();
                }
                // A launcher may end the others as soon as one has left: what is to be reported is reported before.
                let result = result.map_err(|failure| {
                    crate::console::complain(&failure);
                    Failure { message: String::new(), ..failure }
                });
                drop((self.worlds, self.meeting, self.failures));
                let finished = mpi.finish(PATIENCE).map_err(Failure::new);
                // Processes that waited for this one may have failed because it was asked to stop.
                result.and(finished)
            }
        }
    }
}

/// Failure of a process that was stopped before training; one process reports it.
pub(crate) fn interrupted(tells: bool) -> Failure {
    let message = if tells { "stopped; run the same command to continue" } else { "" };
    Failure { code: code::CONTINUE, message: message.into() }
}

/// Number of the launch that this process belongs to, if a supervisor launched it.
///
/// # Errors
/// A variable that holds no number.
pub(crate) fn launch_number() -> Result<Option<u64>, Failure> {
    match std::env::var(LAUNCH_VARIABLE) {
        Err(_) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(launch @ 1..) => Ok(Some(launch)),
            _ => Err(Failure::usage(format!(
                "{LAUNCH_VARIABLE} is {text:?}; wanted a number from 1, as `bessemer supervise` sets it. Unset it"
            ))),
        },
    }
}

/// Reports the failure of a process of the job.
fn tell(ProcessFailure { code, message }: &ProcessFailure) {
    crate::console::complain(&Failure { code: *code, message: message.clone() });
}

/// Ends the process from a thread that is not its own.
#[allow(
    clippy::exit,
    reason = "ranks may hang, which cannot be ended or waited for, and must write nothing more"
)]
fn leave(failure: &Failure) {
    crate::console::complain(failure);
    std::process::exit(i32::from(failure.code));
}

/// Why a rank ended.
#[derive(Debug)]
pub(crate) struct Broken {
    failure: Failure,
    /// The failure follows from that of another rank.
    secondary: bool,
    /// Others did not come in time.
    timed_out: bool,
}

impl Broken {
    /// The failure of a rank; `secondary`: it follows from that of another one.
    pub(crate) fn of(failure: Failure, secondary: bool) -> Broken {
        Broken { failure, secondary, timed_out: false }
    }

    /// Whether it follows from no other rank's failure.
    pub(crate) fn is_cause(&self) -> bool {
        !self.secondary
    }

    /// Outcome of this process; [`Job::end`] decides which processes report it.
    fn of_process(mut self, job: &Job) -> Failure {
        // `Job::end` names the rank of a mistake of the user's, once it knows who else has found it.
        let user = [code::RECIPE, code::USAGE].contains(&self.failure.code);
        if !job.is_first() && (self.secondary || !user) {
            self.failure.message = format!("rank {}: {}", job.process, self.failure.message);
        }
        self.failure
    }
}

impl From<TrainError> for Broken {
    fn from(e: TrainError) -> Broken {
        let timed_out =
            matches!(&e, TrainError::Parallel(ParallelError::Collective(CollectiveError::Timeout { .. })));
        Broken { secondary: e.is_secondary(), timed_out, failure: e.into() }
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Broken {
        Broken::of(failure, false)
    }
}

/// Results of the ranks of the first process.
pub(crate) struct Trained {
    pub(crate) outcome: Result<Outcome, Failure>,
    /// Steps done and planned, and what records the end; nothing if training did not begin.
    pub(crate) closed: Option<((u64, u64), Closed)>,
}

/// Training that every rank runs.
pub(crate) struct RankThreads<'a> {
    /// Threads of each rank.
    pub(crate) threads: usize,
    /// Threads of the first rank while the others wait.
    pub(crate) threads_alone: usize,
    /// Whether a rank's threads may each take a core for themselves.
    pub(crate) pin: bool,
    /// A rank's input.
    pub(crate) input: &'a (dyn Fn() -> TrainerInput + Sync),
    /// Opens the checkpoints that a run without any of its own goes on from. Each rank has its own.
    pub(crate) elsewhere: &'a (dyn Fn() -> Result<Option<Store>, Failure> + Sync),
    /// Opens the checkpoint that a new run begins with.
    pub(crate) initial: &'a (dyn Fn() -> Result<Latest, TrainError> + Sync),
    /// Opens the checkpoint that a run distils.
    pub(crate) teacher: &'a (dyn Fn() -> Result<Latest, TrainError> + Sync),
    pub(crate) stop: &'a AtomicBool,
    /// Held back while steps are made and saved.
    pub(crate) deadline: &'a Deadline,
}

impl RankThreads<'_> {
    /// Trains to the end or to a stop. The first rank works on this thread and tells `console`; `begun` is called when
    /// it is ready to train. If several ranks fail, the failure that caused the others is reported.
    pub(crate) fn train(
        &self,
        job: &mut Job,
        console: &mut Console,
        begun: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Trained, Failure> {
        let threads = RankEnds::new(job.here, job.timeout.min(GRACE));
        let ended = |rank: usize, broken: Option<&Broken>| {
            let timed_out = broken.filter(|b| b.timed_out).map(|b| &b.failure);
            let code = timed_out.map_or(code::FAILED, |failure| failure.code);
            let timed_out = timed_out.map(|failure| (rank, failure.message.as_str()));
            threads.end(timed_out, &|message| leave(&Failure { code, message }));
        };
        let mut worlds = std::mem::take(&mut job.worlds).into_iter();
        std::thread::scope(|scope| {
            let first = worlds.next().expect("there is at least one rank");
            let mut others: Vec<ScopedJoinHandle<'_, _>> = Vec::new();
            for (rank, world) in (1..).zip(worlds.by_ref()) {
                let thread = Builder::new().name(format!("rank {rank}"));
                let (ended, beats) = (&ended, job.beats.clone());
                others.push(thread.spawn_scoped(scope, move || {
                    let outcome = self.follow(rank, world, &beats);
                    ended(rank, outcome.as_ref().err());
                    outcome
                })?);
            }
            let mut closed = None;
            let led = self.lead(first, (console, &job.beats), begun, &mut closed);
            ended(0, led.as_ref().err());
            let panicked = |_| Err(Failure::panicked().into());
            let followed = others.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
            // With several processes `Job::end` reports the table of all of them.
            let report = || job.failures.is_none().then(|| job.recorder.report());
            let outcome = job_outcome(led, followed.collect(), &report);
            Ok(Trained { outcome, closed })
        })
    }

    /// The part of a process that is not the first.
    pub(crate) fn assist(&self, job: &mut Job) -> Result<(), Failure> {
        let world = job.worlds.pop().expect("this process is one rank");
        match self.follow(job.process, world, &job.beats) {
            Ok(Outcome::Finished) => Ok(()),
            Ok(Outcome::Stopped) => Err(Failure { code: code::CONTINUE, message: String::new() }),
            Err(broken) => Err(broken.of_process(job)),
        }
    }

    fn trainer(&self, world: Box<dyn Communicator>) -> Result<Trainer, Broken> {
        let input = (self.input)();
        let matmul = input.recipe.train.matmul_precision;
        let backend = CpuBackend::new(CpuConfig { threads: self.threads, pin: self.pin, matmul });
        let elsewhere = (self.elsewhere)()?;
        let others = OtherCheckpoints { elsewhere, initial: Some(self.initial), teacher: Some(self.teacher) };
        Ok(Trainer::on_rank_from(input, Box::new(backend.map_err(Failure::from)?), world, others)?)
    }

    fn lead(
        &self,
        world: Box<dyn Communicator>,
        (console, beats): (&mut Console, &Heartbeats),
        begun: &dyn Fn() -> Result<(), Failure>,
        closed: &mut Option<((u64, u64), Closed)>,
    ) -> Result<Outcome, Broken> {
        let mut trainer = self.trainer(world)?;
        begun()?;
        let mut observer = beats.observer(0, console);
        let held = self.deadline.hold();
        let mut outcome = trainer.run(&mut observer, self.stop);
        drop(held);
        if outcome.is_ok() {
            outcome = trainer.final_evaluation(self.threads_alone, &mut observer, self.stop);
        }
        if outcome.is_ok() {
            // After a failure the others must hear of it first; the upload goes on by itself.
            console.finish_uploads(&mut || beats.feed());
            outcome = trainer.append_remarks(console).and(outcome);
        }
        // Whoever waits for this rank must hear that it leaves.
        *closed = Some((trainer.steps(), trainer.close()));
        Ok(outcome?)
    }

    fn follow(
        &self,
        rank: usize,
        world: Box<dyn Communicator>,
        beats: &Heartbeats,
    ) -> Result<Outcome, Broken> {
        let mut silent = Silent;
        let mut observer = beats.observer(rank, &mut silent);
        let mut trainer = self.trainer(world)?;
        let held = self.deadline.hold();
        trainer.run(&mut observer, self.stop)?;
        drop(held);
        Ok(trainer.final_evaluation(self.threads, &mut observer, self.stop)?)
    }
}

/// Returns the first rank's outcome, or the failure that ended the job. If every failure is a lost peer, `report`, the last
/// collectives of the ranks, follows the message; a timeout contains it already. `report` returns `None` where another
/// function reports them.
pub(crate) fn job_outcome<T>(
    led: Result<T, Broken>,
    followed: Vec<Result<T, Broken>>,
    report: &dyn Fn() -> Option<String>,
) -> Result<T, Failure> {
    let mut causes: Vec<Failure> = Vec::new();
    let mut secondaries: Vec<Failure> = Vec::new();
    let mut outcome = None;
    for (rank, result) in [led].into_iter().chain(followed).enumerate() {
        match result {
            Ok(value) if rank == 0 => outcome = Some(value),
            Ok(_) => {}
            Err(Broken { mut failure, secondary, .. }) => {
                if rank > 0 {
                    failure.message = format!("rank {rank}: {}", failure.message);
                }
                if secondary { secondaries.push(failure) } else { causes.push(failure) }
            }
        }
    }
    if causes.is_empty()
        && let Some(failure) = secondaries.first_mut()
        && let Some(report) = report()
    {
        failure.message = format!("{}\n{report}", failure.message);
    }
    match (causes.into_iter().chain(secondaries).next(), outcome) {
        (None, Some(outcome)) => Ok(outcome),
        (Some(failure), _) => Err(failure),
        (None, None) => Err(Failure::new("rank 0 ended without a result")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken<T>(message: &str, secondary: bool) -> Result<T, Broken> {
        Err(Broken { failure: Failure::new(message), secondary, timed_out: false })
    }

    #[test]
    fn the_cause_is_reported_and_not_its_secondaries() {
        let table = || Some("table".to_string());
        assert_eq!(job_outcome(Ok(1), vec![Ok(2), Ok(3)], &table).unwrap(), 1);
        let message = |led, followed| job_outcome::<i32>(led, followed, &table).unwrap_err().message;
        let followed = vec![broken("gone", true), broken("no memory", false)];
        assert_eq!(message(broken("rank 2 is gone", true), followed), "rank 2: no memory");
        assert_eq!(message(broken("disk full", false), vec![broken("gone", true)]), "disk full");
        assert_eq!(message(broken("a is gone", true), vec![broken("b is gone", true)]), "a is gone\ntable");
        assert_eq!(message(Ok(1), vec![broken("too late", false)]), "rank 1: too late");
        let lost = job_outcome::<i32>(broken("a is gone", true), vec![broken("b is gone", true)], &|| None);
        assert_eq!(lost.unwrap_err().message, "a is gone");
    }

    /// A rank that comes too late ends the job, and the message reports once which rank is blocked in which collective.
    #[test]
    fn a_timeout_of_threads_tells_the_table() {
        let timeout = Duration::from_millis(300);
        let mut job = Job::threads(3, timeout).unwrap();
        let late = std::mem::take(&mut job.worlds).into_iter().enumerate().map(|(rank, world)| {
            let fault = bessemer_collectives::Faulty::new(bessemer_collectives::Fault::Hang(3 * timeout), 2);
            if rank == 2 { fault.wrap(world) } else { world }
        });
        let mut results: Vec<Result<(), Broken>> = std::thread::scope(|scope| {
            let rank = |mut c: Box<dyn Communicator>| {
                scope.spawn(move || {
                    (0..4).try_for_each(|step| {
                        c.barrier(&format!("step {step}"))
                            .map_err(|e| Broken::from(TrainError::from(ParallelError::from(e))))
                    })
                })
            };
            let threads: Vec<_> = late.map(rank).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let led = results.remove(0);
        assert!(led.as_ref().is_err_and(|b| b.timed_out), "{led:?}");
        let said = job_outcome(led, results, &|| Some(job.recorder.report())).unwrap_err().message;
        assert_eq!(said.matches("Last collectives of each rank:").count(), 1, "{said}");
        let waits =
            |rank: usize| format!("rank {rank}: barrier 2 of \"step 2\" in world ({rank} of 3), 0 bytes, ");
        assert!(said.contains(&waits(0)) && said.contains(&waits(1)), "{said}");
        assert!(said.contains("rank 2: barrier 1 of \"step 1\" in world (2 of 3), 0 bytes, done"), "{said}");
        assert!(said.contains("while rank 2 is in no collective"), "{said}");
    }
}
