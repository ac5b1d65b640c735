//! Runs a stream on the worker threads while the calling thread pulls its batches, in order.
//!
//! One partition: workers take morsels in turn under a lock and run them in parallel; finished batches wait in
//! an ordered window, and no morsel further than the window ahead of the consumer is begun. Several partitions:
//! each worker runs a whole partition into a spool, and the spools are emptied in partition order.
//! When the consumer returns, early or at the end, the workers end too.
//!
//! What a consumer does with each batch by itself is a function `prepare`. Of one partition the workers run it too, so the calling
//! thread is left with what must be done in order.

use super::spool::{Spool, SpoolReader};
use super::{Executor, Stream};
use crate::error::{Error, Result};
use crate::source::{Morsel, Scan};
use arrow_array::RecordBatch;
use bessemer_durable::thread_error;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Gives a consumer the next batch as `prepare` left it, or none at the end.
type Next<'a, B> = dyn FnMut() -> Result<Option<B>> + 'a;

/// Consumer of a stream, on the calling thread: it pulls batches until there are none, or until it has seen enough.
pub(super) type Body<'c, B, T> = dyn FnMut(&mut Next<'_, B>) -> Result<T> + 'c;

/// What is done with each batch by itself before the consumer gets it.
type Prepare<'p, B> = dyn Fn(RecordBatch) -> Result<B> + Sync + 'p;

/// Turns a panic into an error, so that one defect does not leave others waiting.
pub(super) fn guarded<T>(stage: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Err(Error::Panicked { stage, message })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic inside the lock is caught by `guarded`; the state is then only read to stop.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What workers and consumer share while one partition is driven.
struct Window<B> {
    /// Sequence number of the next morsel to be begun.
    begun: u64,
    /// Batches that the consumer has taken.
    taken: u64,
    /// Finished batches by sequence number.
    ready: BTreeMap<u64, Result<B>>,
    /// No further morsel will be begun.
    ended: bool,
}

fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

/// Runs a scan on the calling thread.
pub(super) fn pull_here<B, T>(
    scan: &mut (dyn Scan + '_),
    stop: &AtomicBool,
    prepare: &Prepare<'_, B>,
    body: &mut Body<'_, B, T>,
) -> Result<T> {
    body(&mut || {
        check(stop)?;
        match guarded("scan", || scan.next())? {
            Some(morsel) => guarded("map", || prepare(morsel()?)).map(Some),
            None => Ok(None),
        }
    })
}

/// Starts `count` workers; fewer where the system starts no more, as they share the work.
///
/// # Errors
/// Not one could be started.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    count: usize,
    work: &'scope (impl Fn() + Sync),
) -> Result<()> {
    for started in 0..count {
        if let Err(cause) = std::thread::Builder::new().spawn_scoped(scope, work) {
            return if started > 0 { Ok(()) } else { Err(Error::System(thread_error(cause))) };
        }
    }
    Ok(())
}

/// Ends the workers when the consumer leaves, on whatever path.
struct Leave<'a>(&'a dyn Fn());

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<'a> Executor<'a> {
    /// Drives all partitions, in order, to their end.
    pub(super) fn drive<B: Send>(
        &self,
        stream: Stream<'a>,
        prepare: &Prepare<'_, B>,
        consume: &mut dyn FnMut(B) -> Result<()>,
    ) -> Result<()> {
        self.pull(stream, prepare, &mut |input| {
            while let Some(batch) = input()? {
                guarded("sink", || consume(batch))?;
            }
            Ok(())
        })
    }

    /// Lets `body` pull the batches of all partitions, in order.
    pub(super) fn pull<B: Send, T>(
        &self,
        mut stream: Stream<'a>,
        prepare: &Prepare<'_, B>,
        body: &mut Body<'_, B, T>,
    ) -> Result<T> {
        let mut body = |input: &mut Next<'_, B>| {
            let mut begun = false;
            body(&mut || {
                // The consumer asks for the next batch when it has done its work on the last.
                if std::mem::replace(&mut begun, true) {
                    (self.tick)();
                }
                check(self.stop)?;
                input()
            })
        };
        let result = match stream.len() {
            0 => body(&mut || Ok(None)),
            1 => self.pull_one(&mut *stream.remove(0), prepare, &mut body),
            _ => self.pull_many(stream, prepare, &mut body),
        }?;
        check(self.stop)?;
        Ok(result)
    }

    fn pull_one<B: Send, T>(
        &self,
        scan: &mut (dyn Scan + '_),
        prepare: &Prepare<'_, B>,
        body: &mut Body<'_, B, T>,
    ) -> Result<T> {
        if self.threads == 1 {
            return pull_here(scan, self.stop, prepare, body);
        }
        let ahead = 2 * self.threads as u64 + 2;
        let feed = Mutex::new(scan);
        let window = Mutex::new(Window { begun: 0, taken: 0, ready: BTreeMap::new(), ended: false });
        let changed = Condvar::new();

        // The next morsel with its number; none at the end or after an error.
        let take = || -> Option<(u64, Result<Morsel>)> {
            let mut scan = lock(&feed);
            let mut state = lock(&window);
            while !state.ended && state.begun >= state.taken + ahead {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.ended {
                return None;
            }
            drop(state);
            // Only the holder of `feed` begins morsels, so `begun` cannot move meanwhile.
            let next = guarded("scan", || scan.next());
            let mut state = lock(&window);
            let next = next.transpose();
            if !matches!(next, Some(Ok(_))) {
                state.ended = true;
            }
            let number = state.begun;
            if next.is_some() {
                state.begun += 1;
            }
            drop(state);
            changed.notify_all();
            next.map(|morsel| (number, morsel))
        };
        let leave = || {
            lock(&window).ended = true;
            changed.notify_all();
        };

        let work = || {
            while let Some((number, morsel)) = take() {
                let batch = morsel.and_then(|morsel| guarded("map", || prepare(morsel()?)));
                lock(&window).ready.insert(number, batch);
                changed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            let _leave = Leave(&leave);
            start(scope, self.threads, &work)?;
            body(&mut || {
                let mut state = lock(&window);
                loop {
                    let number = state.taken;
                    if let Some(batch) = state.ready.remove(&number) {
                        state.taken += 1;
                        drop(state);
                        changed.notify_all();
                        return batch.map(Some);
                    }
                    if state.ended && state.taken == state.begun {
                        return Ok(None);
                    }
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            })
        })
    }

    fn pull_many<B, T>(
        &self,
        stream: Stream<'a>,
        prepare: &Prepare<'_, B>,
        body: &mut Body<'_, B, T>,
    ) -> Result<T> {
        if self.threads == 1 {
            return pull_here(&mut Chain(stream.into()), self.stop, prepare, body);
        }
        let count = stream.len();
        let (budget, spill, stop) = (&self.budget, &self.spill, self.stop);
        let scans: Vec<Mutex<Option<Box<dyn Scan + 'a>>>> =
            stream.into_iter().map(|scan| Mutex::new(Some(scan))).collect();
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let done: Mutex<Partitions> = Mutex::default();
        let changed = Condvar::new();
        let leave = || failed.store(true, Ordering::Relaxed);
        let work = || {
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(scan) = scans.get(index).and_then(|slot| lock(slot).take()) else { break };
                // The push is guarded too: a partition that ends without a word would leave the consumer waiting.
                let result = guarded("partition", || {
                    let mut scan = scan;
                    let mut spool = Spool::with(budget.clone(), spill.clone());
                    pull_here(&mut *scan, stop, &Ok, &mut |input| {
                        while let Some(batch) = input()? {
                            if failed.load(Ordering::Relaxed) {
                                return Ok(Partition::Abandoned);
                            }
                            spool.push(batch)?;
                        }
                        Ok(Partition::Whole)
                    })
                    .map(|end| (end, spool))
                });
                let mut done = lock(&done);
                match result {
                    Ok((Partition::Whole, spool)) => drop(done.whole.insert(index, spool)),
                    Ok((Partition::Abandoned, _)) => {}
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        done.failure.get_or_insert(error);
                    }
                }
                drop(done);
                changed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            let _leave = Leave(&leave);
            start(scope, self.threads.min(count), &work)?;
            let mut index = 0;
            let mut current: Option<SpoolReader> = None;
            body(&mut || {
                loop {
                    if let Some(reader) = &mut current
                        && let Some(batch) = reader.next_batch()?
                    {
                        return prepare(batch).map(Some);
                    }
                    current = None;
                    if index == count {
                        return Ok(None);
                    }
                    // The first failure ends the run: partitions below it may have been abandoned because of it.
                    let mut state = lock(&done);
                    let mut spool = loop {
                        if let Some(error) = state.failure.take() {
                            index = count;
                            return Err(error);
                        }
                        if let Some(spool) = state.whole.remove(&index) {
                            break spool;
                        }
                        state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    };
                    drop(state);
                    current = Some(spool.reader()?);
                    index += 1;
                }
            })
        })
    }
}

/// How a worker left a partition.
enum Partition {
    /// All its batches are in the spool.
    Whole,
    /// Another partition failed, or the consumer has left.
    Abandoned,
}

/// What the workers have made of several partitions.
#[derive(Default)]
struct Partitions {
    /// Spools of finished partitions by their number.
    whole: BTreeMap<usize, Spool>,
    /// The first error of any partition.
    failure: Option<Error>,
}

/// Scans one after the other.
struct Chain<'a>(VecDeque<Box<dyn Scan + 'a>>);

impl Scan for Chain<'_> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        while let Some(scan) = self.0.front_mut() {
            if let Some(morsel) = scan.next()? {
                return Ok(Some(morsel));
            }
            self.0.pop_front();
        }
        Ok(None)
    }
}
