//! Drives a stream to its end on the worker threads and hands its batches, in order, to the caller.
//!
//! One partition: workers take morsels in turn under a lock and run them in parallel; finished batches wait in
//! an ordered window, and no morsel further than the window ahead of the consumer is begun. Several partitions:
//! each worker runs a whole partition into a spool, and the spools are emptied in partition order.

use super::Executor;
use super::spool::Spool;
use crate::error::{Error, Result};
use crate::source::{Morsel, Scan};
use arrow_array::RecordBatch;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Consumer of batches, on the calling thread.
pub(super) type Consume<'c> = dyn FnMut(RecordBatch) -> Result<()> + 'c;

/// Turns a panic into an error, so that one defect does not leave others waiting.
fn guarded<T>(stage: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
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
struct Window {
    /// Sequence number of the next morsel to be begun.
    begun: u64,
    /// Batches that the consumer has taken.
    taken: u64,
    /// Finished batches by sequence number.
    ready: BTreeMap<u64, Result<RecordBatch>>,
    /// No further morsel will be begun.
    ended: bool,
}

fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

/// Runs a scan on the calling thread.
fn drive_here(scan: &mut dyn Scan, stop: &AtomicBool, consume: &mut Consume<'_>) -> Result<()> {
    while let Some(morsel) = guarded("scan", || scan.next())? {
        check(stop)?;
        consume(guarded("map", morsel)?)?;
    }
    check(stop)
}

impl Executor<'_> {
    /// Drives all partitions, in order.
    pub(super) fn drive(&self, mut stream: Vec<Box<dyn Scan>>, consume: &mut Consume<'_>) -> Result<()> {
        let mut consume = |batch| {
            consume(batch)?;
            (self.tick)();
            Ok(())
        };
        match stream.len() {
            0 => Ok(()),
            1 => self.drive_one(&mut *stream.remove(0), &mut consume),
            _ => self.drive_many(stream, &mut consume),
        }
    }

    fn drive_one(&self, scan: &mut dyn Scan, consume: &mut Consume<'_>) -> Result<()> {
        if self.threads == 1 {
            return drive_here(scan, self.stop, consume);
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

        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    while let Some((number, morsel)) = take() {
                        let batch = morsel.and_then(|morsel| guarded("map", morsel));
                        lock(&window).ready.insert(number, batch);
                        changed.notify_all();
                    }
                });
            }
            let mut result = Ok(());
            loop {
                let mut state = lock(&window);
                let batch = loop {
                    let number = state.taken;
                    if let Some(batch) = state.ready.remove(&number) {
                        break Some(batch);
                    }
                    if state.ended && state.taken == state.begun {
                        break None;
                    }
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                };
                let Some(batch) = batch else { break };
                state.taken += 1;
                drop(state);
                changed.notify_all();
                result = batch
                    .and_then(|batch| guarded("sink", || consume(batch)))
                    .and_then(|()| check(self.stop));
                if result.is_err() {
                    lock(&window).ended = true;
                    changed.notify_all();
                    break;
                }
            }
            result
        })?;
        check(self.stop)
    }

    fn drive_many(&self, stream: Vec<Box<dyn Scan>>, consume: &mut Consume<'_>) -> Result<()> {
        if self.threads == 1 {
            for mut scan in stream {
                drive_here(&mut *scan, self.stop, consume)?;
            }
            return Ok(());
        }
        let count = stream.len();
        let (budget, spill, stop) = (&self.budget, &self.spill, self.stop);
        let scans: Vec<Mutex<Option<Box<dyn Scan>>>> =
            stream.into_iter().map(|scan| Mutex::new(Some(scan))).collect();
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let done: Mutex<BTreeMap<usize, Result<Spool>>> = Mutex::new(BTreeMap::new());
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(count) {
                scope.spawn(|| {
                    while !failed.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(scan) = scans.get(index).and_then(|slot| lock(slot).take()) else { break };
                        let mut scan = scan;
                        let mut spool = Spool::with(budget.clone(), spill.clone());
                        let result = drive_here(&mut *scan, stop, &mut |batch| {
                            if failed.load(Ordering::Relaxed) {
                                Err(Error::Stopped)
                            } else {
                                spool.push(batch)
                            }
                        });
                        if result.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        lock(&done).insert(index, result.map(|()| spool));
                        changed.notify_all();
                    }
                });
            }
            for index in 0..count {
                let mut state = lock(&done);
                // Partitions are begun in order: an earlier failure has returned already, and a later one leaves
                // this partition to its worker, so the wait ends.
                let spool = loop {
                    if let Some(spool) = state.remove(&index) {
                        break spool?;
                    }
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                };
                drop(state);
                let result = drive_here(&mut *spool.scan()?, stop, consume);
                if result.is_err() {
                    failed.store(true, Ordering::Relaxed);
                    return result;
                }
            }
            Ok(())
        })
    }
}
