//! The ranks of a job from the start of MPI to its end.

use crate::engine::{Engine, Fault};
use crate::exchange::{Command, Exchange, MpiTransport};
use crate::progress::ProgressThread;
use crate::{MpiError, Settings};
use bessemer_collectives::{Transport, TransportError};
use bessemer_supervise::ProcessIdentity;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The ranks that MPI started. End it with [`MpiWorld::finish`] or [`MpiWorld::abandon`]; dropping it is abandoning it.
#[derive(Debug)]
pub struct MpiWorld {
    transport: Arc<MpiTransport>,
    library: String,
    ranks: Vec<String>,
    over: bool,
}

/// Facts about MPI once it is up.
struct Started {
    rank: usize,
    size: usize,
    library: String,
}

/// Reports a panic of the progress thread to the threads that wait for it, when it is dropped.
struct EndGuard(Arc<Exchange>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.end.is_none() {
            let error = TransportError::Engine("the progress thread panicked".to_owned());
            state.broken.get_or_insert(error.clone());
            state.end = Some(Err(error.into()));
        }
        drop(state);
        self.0.announce();
    }
}

/// Starts the progress thread with the engine and waits until every rank has said hello.
pub(crate) fn open<E: Engine>(
    settings: &Settings,
    engine: impl FnOnce() -> Result<E, Fault> + Send + 'static,
) -> Result<MpiWorld, MpiError> {
    let began = Instant::now();
    let exchange = Arc::new(Exchange::default());
    let (up, started) = mpsc::channel();
    let (shared, silence) = (Arc::clone(&exchange), settings.silence);
    let body = move || {
        let _end = EndGuard(Arc::clone(&shared));
        shared.register_progress_thread();
        match engine() {
            Err(fault) => {
                // Nobody listens if MPI came up too late.
                let _ = up.send(Err(fault));
                shared.lock().end = Some(Ok(()));
            }
            Ok(engine) => {
                let (rank, size, library) = (engine.rank(), engine.size(), engine.library());
                let own = ProcessIdentity::own(engine.host());
                let progress_thread = ProgressThread::new(engine, own, Arc::clone(&shared), silence);
                let _ = up.send(Ok(Started { rank, size, library }));
                let end = progress_thread.run();
                shared.lock().end = Some(end);
            }
        }
    };
    std::thread::Builder::new().name("mpi".into()).spawn(body).map_err(|e| MpiError::Init(e.to_string()))?;
    let up = match started.recv_timeout(settings.join) {
        Ok(Ok(up)) => up,
        Ok(Err(fault)) => return Err(MpiError::Init(fault.to_string())),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let waited = settings.join.as_secs_f64();
            return Err(MpiError::Init(format!("MPI_Init_thread has not returned for {waited:.0} s")));
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            return Err(MpiError::Init("the progress thread panicked".to_owned()));
        }
    };
    let transport =
        Arc::new(MpiTransport { exchange, rank: up.rank, size: up.size, silence: settings.silence });
    let mut world = MpiWorld { transport, library: up.library, ranks: Vec::new(), over: false };
    if let Some(launch) = &settings.launch
        && let Err(error) = launch.agrees("MPI", up.rank, up.size)
    {
        world.abandon(&error.to_string());
        return Err(error.into());
    }
    match world.join(began, settings.join) {
        Ok(ranks) => world.ranks = ranks,
        Err(error) => {
            world.abandon(&error.to_string());
            return Err(error);
        }
    }
    Ok(world)
}

impl MpiWorld {
    /// Waits until all ranks have said hello and returns their identities.
    fn join(&self, began: Instant, patience: Duration) -> Result<Vec<String>, MpiError> {
        let exchange = &self.transport.exchange;
        let joined = exchange.wait(began + patience, patience, |state| {
            if let Some(broken) = &state.broken {
                return Some(Err(broken.clone()));
            }
            state.here.iter().cloned().collect::<Option<Vec<_>>>().map(Ok)
        })?;
        match joined {
            Some(ranks) => Ok(ranks?),
            None => {
                let here = &exchange.lock().here;
                let missing = (0..here.len()).filter(|r| here[*r].is_none()).collect();
                Err(MpiError::Join { missing, waited: patience })
            }
        }
    }

    /// Transport of this rank, for any number of threads.
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport) as Arc<dyn Transport>
    }

    /// Number of this rank.
    pub fn rank(&self) -> usize {
        self.transport.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size
    }

    /// Name and version of the MPI library.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Host and process of each rank: "host a, pid 17".
    pub fn ranks(&self) -> &[String] {
        &self.ranks
    }

    /// Shuts the world down: when every rank has called this and every message has arrived, MPI is finalised.
    /// Waits for the others at most `patience`.
    ///
    /// # Errors
    /// A rank that is gone, or that does not come; MPI that does not end. The process should then leave with an exit code
    /// other than 0, so that the launcher ends the job; MPI is not finalised, because that would hang.
    pub fn finish(mut self, patience: Duration) -> Result<(), MpiError> {
        let exchange = Arc::clone(&self.transport.exchange);
        exchange.command(Command::Finish);
        let all_done =
            exchange.wait(Instant::now() + patience, self.transport.silence.max(patience), |state| {
                if let Some(end) = &state.end {
                    return Some(end.clone());
                }
                if let Some(broken) = &state.broken {
                    return Some(Err(broken.clone().into()));
                }
                state.done.iter().all(|d| *d).then_some(Ok(()))
            })?;
        let result = match all_done {
            None => {
                let done = exchange.lock().done.clone();
                let missing = (0..done.len()).filter(|r| !done[*r]).collect();
                Err(MpiError::Finish { missing, waited: patience })
            }
            Some(Err(error)) => Err(error),
            Some(Ok(())) => {
                let wait = self.transport.silence;
                let ended = exchange.wait(Instant::now() + wait, wait * 2, |state| state.end.clone())?;
                ended.unwrap_or_else(|| {
                    let problem = format!("MPI_Finalize has not returned for {:.0} s", wait.as_secs_f64());
                    Err(MpiError::Finalize(problem))
                })
            }
        };
        match &result {
            Ok(()) => self.over = true,
            Err(error) => self.give_up(&error.to_string()),
        }
        result
    }

    /// Leaves without waiting for anyone, after telling the others why. MPI is not finalised: the process should end soon,
    /// with an exit code other than 0, so that the launcher ends the job.
    pub fn abandon(mut self, why: &str) {
        self.give_up(why);
    }

    fn give_up(&mut self, why: &str) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let exchange = &self.transport.exchange;
        exchange.command(Command::GiveUp(why.to_owned()));
        // The thread needs at most a second to pass it on. One that hangs inside MPI is left behind.
        let patience = Duration::from_secs(2);
        let _ =
            exchange.wait(Instant::now() + patience, patience * 2, |state| state.end.as_ref().map(|_| ()));
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        self.give_up("it left without a word, probably by a panic");
    }
}
