//! The ranks of a job: how many there are, who started them, and training by all of them.

use crate::console::Console;
use crate::failure::Failure;
use bessemer_collectives::launch::{LaunchFlags, LaunchSource, resolve};
use bessemer_collectives::{Communicator, ThreadCommunicator, ThreadSettings};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_train::{Closed, Outcome, Silent, TrainError, Trainer, TrainerInput};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, ScopedJoinHandle};

/// Most ranks that a process may start.
const MOST_RANKS: usize = 1024;

/// How many ranks this process runs, each a thread with threads of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) count: usize,
    /// Threads that each of them computes with.
    pub(crate) threads: usize,
}

impl Ranks {
    /// `asked` on the command line, or one. `threads` is `run.threads`: 0 shares the cores out.
    ///
    /// # Errors
    /// More ranks than make sense, or a launcher that started several processes, which this program cannot join.
    pub(crate) fn new(asked: Option<NonZeroUsize>, threads: u64) -> Result<Ranks, Failure> {
        let count = asked.map_or(1, NonZeroUsize::get);
        if count > MOST_RANKS {
            return Err(Failure::usage(format!("--ranks {count}: expected 1 to {MOST_RANKS}")));
        }
        let launch =
            resolve(LaunchFlags::default(), &|name| std::env::var(name).ok()).map_err(Failure::usage)?;
        if launch.source != LaunchSource::Single && launch.world > 1 {
            return Err(Failure::usage(format!(
                "this is process {launch}; several processes cannot train together in this build: start one process and \
                 give it --ranks {}, or unset the launcher's variables",
                launch.world
            )));
        }
        let threads = match threads {
            0 => (crate::machine::threads(0) / count).max(1),
            n => n as usize,
        };
        Ok(Ranks { count, threads })
    }

    /// Threads of all ranks.
    pub(crate) fn all_threads(&self) -> usize {
        self.count * self.threads
    }
}

/// Why a rank ended.
#[derive(Debug)]
pub(crate) struct Broken {
    failure: Failure,
    /// Another rank has the reason.
    echo: bool,
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

/// What the ranks of this process did.
pub(crate) struct Trained {
    pub(crate) outcome: Result<Outcome, Failure>,
    /// Steps done and planned, and what records the end; nothing if training did not begin.
    pub(crate) closed: Option<((u64, u64), Closed)>,
}

/// What every rank trains.
pub(crate) struct Crew<'a> {
    pub(crate) ranks: Ranks,
    /// A rank's input.
    pub(crate) input: &'a (dyn Fn() -> TrainerInput + Sync),
    pub(crate) stop: &'a AtomicBool,
}

impl Crew<'_> {
    /// Trains to the end or to a stop. The first rank works on this thread and tells `console`; `begun` is called when
    /// it is ready to train. Of several ranks' failures the one that caused the others is told.
    pub(crate) fn train(
        &self,
        console: &mut Console,
        begun: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Trained, Failure> {
        let worlds = ThreadCommunicator::world("world", self.ranks.count, &ThreadSettings::default());
        std::thread::scope(|scope| {
            let mut worlds = worlds.into_iter();
            let first = worlds.next().expect("there is at least one rank");
            let mut others: Vec<ScopedJoinHandle<'_, _>> = Vec::new();
            for (i, world) in worlds.enumerate() {
                let thread = Builder::new().name(format!("rank {}", i + 1));
                others.push(thread.spawn_scoped(scope, move || self.follow(Box::new(world)))?);
            }
            let mut closed = None;
            let led = self.lead(Box::new(first), console, begun, &mut closed);
            let panicked = |_| Err(Failure::new("a thread panicked").into());
            let followed = others.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
            let outcome = told(led, followed.collect());
            Ok(Trained { outcome, closed })
        })
    }

    fn trainer(&self, world: Box<dyn Communicator>) -> Result<Trainer, Broken> {
        let input = (self.input)();
        let backend = CpuBackend::new(CpuConfig {
            threads: self.ranks.threads,
            // Every rank would take the same cores.
            pin: input.recipe.run.pin_threads && self.ranks.count == 1,
            matmul: input.recipe.train.matmul_precision,
        })
        .map_err(Failure::from)?;
        Ok(Trainer::on_rank(input, Box::new(backend), world)?)
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
            outcome = trainer.final_evaluation(self.ranks.all_threads(), console).and(outcome);
        }
        // Whoever waits for this rank must hear that it leaves.
        *closed = Some((trainer.steps(), trainer.close()));
        Ok(outcome?)
    }

    fn follow(&self, world: Box<dyn Communicator>) -> Result<(), Broken> {
        let mut trainer = self.trainer(world)?;
        trainer.run(&mut Silent, self.stop)?;
        Ok(trainer.final_evaluation(self.ranks.threads, &mut Silent)?)
    }
}

/// The first rank's outcome, or the failure that ended the job.
fn told(led: Result<Outcome, Broken>, followed: Vec<Result<(), Broken>>) -> Result<Outcome, Failure> {
    let (mut causes, mut echoes) = (Vec::new(), Vec::new());
    let (outcome, first) = match led {
        Ok(outcome) => (Some(outcome), Ok(())),
        Err(broken) => (None, Err(broken)),
    };
    for (rank, result) in [first].into_iter().chain(followed).enumerate() {
        let Err(mut broken) = result else { continue };
        if rank > 0 {
            broken.failure.message = format!("rank {rank}: {}", broken.failure.message);
        }
        if broken.echo { echoes.push(broken.failure) } else { causes.push(broken.failure) }
    }
    match (causes.into_iter().chain(echoes).next(), outcome) {
        (None, Some(outcome)) => Ok(outcome),
        (Some(failure), _) => Err(failure),
        (None, None) => Err(Failure::new("the first rank ended without a reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(message: &str, echo: bool) -> Broken {
        Broken { failure: Failure::new(message), echo }
    }

    #[test]
    fn the_cause_is_told_and_not_its_echoes() {
        assert_eq!(told(Ok(Outcome::Finished), vec![Ok(()), Ok(())]).unwrap(), Outcome::Finished);
        let followed = vec![Err(broken("gone", true)), Err(broken("no memory", false))];
        let failure = told(Err(broken("rank 2 is gone", true)), followed).unwrap_err();
        assert_eq!(failure.message, "rank 2: no memory");
        let failure = told(Err(broken("disk full", false)), vec![Err(broken("gone", true))]).unwrap_err();
        assert_eq!(failure.message, "disk full");
        let failure = told(Err(broken("a is gone", true)), vec![Err(broken("b is gone", true))]).unwrap_err();
        assert_eq!(failure.message, "a is gone");
    }
}
