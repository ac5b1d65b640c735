//! The ranks of a job: how many there are, who started them, and training by all of them.
//!
//! Either this process is the job and its ranks are threads (`--ranks`), or it is one rank of several processes that a
//! launcher started, which talk over MPI. The first rank holds the run directory and the terminal; the others only train.

use crate::commands::told;
use crate::console::Console;
use crate::failure::{Failure, code};
use crate::machine;
use bessemer_collectives::launch::{Launch, LaunchFlags, resolve};
use bessemer_collectives::{
    Communicator, MessageCommunicator, MessageSettings, ThreadCommunicator, ThreadSettings,
};
use bessemer_collectives_mpi::MpiWorld;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_train::{Closed, Outcome, Silent, TrainError, Trainer, TrainerInput};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

/// Most ranks that a process may start.
const MOST_RANKS: usize = 1024;
/// How long ranks wait for each other. One that is gone is noticed at once or, over MPI, after its signs of life have
/// stopped for half a minute; this only bounds what one rank does alone, such as building the corpus.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The job that this process is, or is a part of.
pub(crate) struct Job {
    /// Ranks of the job.
    pub(crate) ranks: usize,
    /// Ranks in this process.
    pub(crate) here: usize,
    /// Who started them.
    pub(crate) source: String,
    /// Number of this process.
    process: usize,
    /// Ranks on this machine.
    local: usize,
    /// Whether the launcher has given each process cores of its own.
    bound: bool,
    worlds: Vec<Box<dyn Communicator>>,
    /// All processes, to agree on who tells what all of them found wrong.
    failures: Option<Box<dyn Communicator>>,
    mpi: Option<MpiWorld>,
}

impl Job {
    /// `asked` ranks as threads, or what the launcher's variables say, or one rank.
    ///
    /// # Errors
    /// Both at once, more ranks than make sense, variables that contradict each other, MPI that does not come up.
    pub(crate) fn start(asked: Option<NonZeroUsize>) -> Result<Job, Failure> {
        let launch =
            resolve(LaunchFlags::default(), &|name| std::env::var(name).ok()).map_err(Failure::usage)?;
        match asked.map(NonZeroUsize::get) {
            Some(n) if launch.world > 1 => Err(Failure::usage(format!(
                "--ranks {n} starts ranks as threads of one process, but this is process {launch}: leave out --ranks, or \
                 start one process"
            ))),
            None if launch.world > 1 => Job::process(launch),
            asked => Job::threads(asked.unwrap_or(1)),
        }
    }

    fn threads(count: usize) -> Result<Job, Failure> {
        if count > MOST_RANKS {
            return Err(Failure::usage(format!("--ranks {count}: expected 1 to {MOST_RANKS}")));
        }
        let settings = ThreadSettings { patience: PATIENCE, ..ThreadSettings::default() };
        let worlds = ThreadCommunicator::world("world", count, &settings);
        let boxed = |world| Box::new(world) as Box<dyn Communicator>;
        Ok(Job {
            ranks: count,
            here: count,
            source: "threads of this process (--ranks)".into(),
            process: 0,
            local: count,
            bound: false,
            worlds: worlds.into_iter().map(boxed).collect(),
            failures: None,
            mpi: None,
        })
    }

    fn process(launch: Launch) -> Result<Job, Failure> {
        let settings =
            bessemer_collectives_mpi::Settings { launch: Some(launch.clone()), ..Default::default() };
        let mpi = bessemer_collectives_mpi::start(&settings)
            .map_err(|e| Failure::usage(format!("this is process {launch}; {e}")))?;
        let settings = MessageSettings { patience: PATIENCE, ..MessageSettings::default() };
        let mut world = MessageCommunicator::world("world", mpi.transport(), &settings);
        let all: Vec<usize> = (0..mpi.size()).collect();
        let failures = world.group("failures", &all).map_err(Failure::new)?;
        Ok(Job {
            ranks: mpi.size(),
            here: 1,
            source: format!("processes of {}, {}", launch.source, mpi.library()),
            process: mpi.rank(),
            local: launch.local_world.unwrap_or(launch.world),
            bound: machine::is_bound(),
            worlds: vec![Box::new(world)],
            failures: Some(failures),
            mpi: Some(mpi),
        })
    }

    /// Whether the first rank is in this process.
    pub(crate) fn is_first(&self) -> bool {
        self.process == 0
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
            n => n as usize,
        }
    }

    /// Returns when every process has called it: what the first one has written is there then.
    ///
    /// # Errors
    /// If another process has ended.
    pub(crate) fn meet(&mut self, name: &str) -> Result<(), Failure> {
        if self.mpi.is_none() {
            return Ok(());
        }
        let met = self.worlds.iter_mut().try_for_each(|world| world.barrier(name));
        met.map_err(|e| {
            Broken::from(TrainError::from(bessemer_parallel::ParallelError::from(e))).of_process(self)
        })
    }

    /// Ends the job with the result of this process. A mistake of the user's that several processes found is told by one.
    ///
    /// # Errors
    /// That, or a process that does not come to the end.
    pub(crate) fn end(mut self, result: Result<(), Failure>) -> Result<(), Failure> {
        let Some(mpi) = self.mpi else { return result };
        match result {
            Err(failure) if failure.code != code::CONTINUE && failure.code != code::DONE => {
                let reason = failure.message.clone();
                // Whoever found the same still waits for this process to say so.
                let failure = match &mut self.failures {
                    Some(group) => told::once(&mut **group, failure, &crate::complain),
                    None => failure,
                };
                drop((self.worlds, self.failures));
                mpi.abandon(&reason);
                Err(failure)
            }
            result => {
                drop((self.worlds, self.failures));
                let finished = mpi.finish(PATIENCE).map_err(Failure::new);
                // Processes that waited for this one may have failed because it was asked to stop.
                result.and(finished)
            }
        }
    }
}

/// Why a rank ended.
#[derive(Debug)]
pub(crate) struct Broken {
    failure: Failure,
    /// Another rank has the reason.
    echo: bool,
}

impl Broken {
    /// What this process says of it: the first one tells everything, another one only what it alone knows.
    fn of_process(mut self, job: &Job) -> Failure {
        // `Job::end` names the rank of a mistake of the user's, once it knows who else has found it.
        let user = [code::RECIPE, code::USAGE].contains(&self.failure.code);
        if !job.is_first() && (self.echo || !user) {
            self.failure.message = match self.echo {
                true => String::new(),
                false => format!("rank {}: {}", job.process, self.failure.message),
            };
        }
        self.failure
    }
}

impl From<TrainError> for Broken {
    fn from(e: TrainError) -> Broken {
        Broken { echo: e.is_echo(), failure: e.into() }
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Broken {
        Broken { failure, echo: false }
    }
}

/// What the ranks of the first process did.
pub(crate) struct Trained {
    pub(crate) outcome: Result<Outcome, Failure>,
    /// Steps done and planned, and what records the end; nothing if training did not begin.
    pub(crate) closed: Option<((u64, u64), Closed)>,
}

/// What every rank trains.
pub(crate) struct Crew<'a> {
    /// Threads of each rank.
    pub(crate) threads: usize,
    /// Threads of the first rank while the others wait.
    pub(crate) threads_alone: usize,
    /// Whether a rank's threads may each take a core for themselves.
    pub(crate) pin: bool,
    /// A rank's input.
    pub(crate) input: &'a (dyn Fn() -> TrainerInput + Sync),
    pub(crate) stop: &'a AtomicBool,
}

impl Crew<'_> {
    /// Trains to the end or to a stop. The first rank works on this thread and tells `console`; `begun` is called when
    /// it is ready to train. Of several ranks' failures the one that caused the others is told.
    pub(crate) fn train(
        &self,
        job: &mut Job,
        console: &mut Console,
        begun: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Trained, Failure> {
        let mut worlds = std::mem::take(&mut job.worlds).into_iter();
        std::thread::scope(|scope| {
            let first = worlds.next().expect("there is at least one rank");
            let mut others: Vec<ScopedJoinHandle<'_, _>> = Vec::new();
            for (i, world) in worlds.by_ref().enumerate() {
                let thread = Builder::new().name(format!("rank {}", i + 1));
                others.push(thread.spawn_scoped(scope, move || self.follow(world))?);
            }
            let mut closed = None;
            let led = self.lead(first, console, begun, &mut closed);
            let panicked = |_| Err(Failure::new("a thread panicked").into());
            let followed = others.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
            let outcome = told(led, followed.collect());
            Ok(Trained { outcome, closed })
        })
    }

    /// The part of a process that is not the first.
    pub(crate) fn assist(&self, job: &mut Job) -> Result<(), Failure> {
        let world = job.worlds.pop().expect("this process is one rank");
        match self.follow(world) {
            Ok(Outcome::Finished) => Ok(()),
            Ok(Outcome::Stopped) => Err(Failure { code: code::CONTINUE, message: String::new() }),
            Err(broken) => Err(broken.of_process(job)),
        }
    }

    fn trainer(&self, world: Box<dyn Communicator>) -> Result<Trainer, Broken> {
        let input = (self.input)();
        let matmul = input.recipe.train.matmul_precision;
        let backend = CpuBackend::new(CpuConfig { threads: self.threads, pin: self.pin, matmul });
        Ok(Trainer::on_rank(input, Box::new(backend.map_err(Failure::from)?), world)?)
    }

    fn lead(
        &self,
        world: Box<dyn Communicator>,
        console: &mut Console,
        begun: &dyn Fn() -> Result<(), Failure>,
        closed: &mut Option<((u64, u64), Closed)>,
    ) -> Result<Outcome, Broken> {
        let mut trainer = self.trainer(world)?;
        begun()?;
        let mut outcome = trainer.run(console, self.stop);
        if outcome.is_ok() {
            outcome = trainer.final_evaluation(self.threads_alone, console).and(outcome);
        }
        // Whoever waits for this rank must hear that it leaves.
        *closed = Some((trainer.steps(), trainer.close()));
        Ok(outcome?)
    }

    fn follow(&self, world: Box<dyn Communicator>) -> Result<Outcome, Broken> {
        let mut trainer = self.trainer(world)?;
        let outcome = trainer.run(&mut Silent, self.stop)?;
        trainer.final_evaluation(self.threads, &mut Silent)?;
        Ok(outcome)
    }
}

/// The first rank's outcome, or the failure that ended the job.
fn told<T>(led: Result<T, Broken>, followed: Vec<Result<T, Broken>>) -> Result<T, Failure> {
    let mut causes: Vec<Failure> = Vec::new();
    let mut echoes: Vec<Failure> = Vec::new();
    let mut outcome = None;
    for (rank, result) in [led].into_iter().chain(followed).enumerate() {
        match result {
            Ok(value) if rank == 0 => outcome = Some(value),
            Ok(_) => {}
            Err(Broken { mut failure, echo }) => {
                if rank > 0 {
                    failure.message = format!("rank {rank}: {}", failure.message);
                }
                if echo { echoes.push(failure) } else { causes.push(failure) }
            }
        }
    }
    match (causes.into_iter().chain(echoes).next(), outcome) {
        (None, Some(outcome)) => Ok(outcome),
        (Some(failure), _) => Err(failure),
        (None, None) => Err(Failure::new("the first rank ended without a word")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken<T>(message: &str, echo: bool) -> Result<T, Broken> {
        Err(Broken { failure: Failure::new(message), echo })
    }

    #[test]
    fn the_cause_is_told_and_not_its_echoes() {
        assert_eq!(told(Ok(1), vec![Ok(2), Ok(3)]).unwrap(), 1);
        let message = |led, followed| told::<i32>(led, followed).unwrap_err().message;
        let followed = vec![broken("gone", true), broken("no memory", false)];
        assert_eq!(message(broken("rank 2 is gone", true), followed), "rank 2: no memory");
        assert_eq!(message(broken("disk full", false), vec![broken("gone", true)]), "disk full");
        assert_eq!(message(broken("a is gone", true), vec![broken("b is gone", true)]), "a is gone");
        assert_eq!(message(Ok(1), vec![broken("too late", false)]), "rank 1: too late");
    }
}
