//! The thread pool: workers that live as long as the backend, and tiles that whoever is free takes next.
//!
//! States. The gate is one word: epoch (upper half), an OPEN bit, and the number of workers inside. The caller writes
//! the job, then opens the gate under a new epoch; a worker enters by adding one to an open gate of an epoch it has not
//! served; the caller takes tiles too, then closes the gate and waits until nobody is inside. Only then may the job be
//! forgotten. A worker that finds no open gate spins briefly, then parks. After opening, the caller unparks parked workers
//! one by one, and everybody who enters helps: those awake double in the time of one waking, and nobody waits for one who
//! was woken and lost its core. Nothing here allocates after the start.
//!
//! What must never happen: a worker that reads the job while the gate is closed and it is not inside; a caller that
//! returns or unwinds while somebody is inside.
#![allow(unsafe_code)] // the job is borrowed from the caller's stack

use crate::CpuError;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Bit of the gate that lets workers in.
const OPEN: u64 = 1 << 31;
/// Bits of the gate that count the workers inside.
const INSIDE: u64 = OPEN - 1;
/// Turns that a worker looks at a closed gate before it parks: some tens of microseconds, longer than the pause
/// between the operators of a step and short enough to leave a shared machine alone.
const SPINS: u32 = 2_000;

type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A cache line of its own, so that the counters do not disturb each other.
#[repr(align(128))]
struct Line<T>(T);

/// A worker as others see it.
#[derive(Default)]
struct Worker {
    parked: AtomicBool,
    /// Set before `parked` ever is.
    thread: OnceLock<Thread>,
}

struct Shared {
    gate: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    tiles: AtomicUsize,
    /// The next worker to be woken, less one.
    sleeper: AtomicUsize,
    job: UnsafeCell<Option<&'static Work<'static>>>,
    workers: Vec<Line<Worker>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the caller only while the gate is closed and nobody is inside, and read by workers only
// inside; the gate's atomic operations order the two. Everything else is Sync by itself.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// Takes tiles until there are none; a panic ends the job for everybody and is kept for the caller.
    fn take_tiles(&self, work: &Work<'_>, worker: usize) {
        let tiles = self.tiles.load(Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let tile = self.next.0.fetch_add(1, Ordering::Relaxed);
                if tile >= tiles {
                    break;
                }
                work(tile, worker);
            }
        }));
        if let Err(payload) = outcome {
            self.next.0.store(tiles, Ordering::Relaxed);
            let mut slot = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert(payload);
        }
    }

    /// Unparks workers, together with everybody else who does, until each that the job has a tile for was looked at.
    fn wake(&self) {
        let last = self.workers.len().min(self.tiles.load(Ordering::Relaxed).saturating_sub(1));
        while self.sleeper.load(Ordering::Relaxed) < last {
            let sleeper = self.sleeper.fetch_add(1, Ordering::Relaxed);
            let Some(Line(sleeper)) = self.workers[..last].get(sleeper) else { break };
            if sleeper.parked.load(Ordering::SeqCst)
                && let Some(thread) = sleeper.thread.get()
            {
                thread.unpark();
            }
        }
    }

    fn serve(&self, worker: usize) {
        let me = &self.workers[worker - 1].0;
        me.thread.get_or_init(std::thread::current);
        let mut served = 0u64;
        let mut spins = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let gate = self.gate.0.load(Ordering::SeqCst);
            if gate & OPEN == 0 || gate >> 32 == served {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                me.parked.store(true, Ordering::SeqCst);
                // Look again after saying so: who wakes sees the gate open first and reads `parked` second.
                let gate = self.gate.0.load(Ordering::SeqCst);
                if (gate & OPEN == 0 || gate >> 32 == served) && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                me.parked.store(false, Ordering::SeqCst);
                spins = 0;
                continue;
            }
            if self.gate.0.compare_exchange(gate, gate + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                continue;
            }
            served = gate >> 32;
            self.wake();
            // SAFETY: inside the gate, so the caller keeps the job alive and does not write it.
            if let Some(work) = unsafe { *self.job.get() } {
                self.take_tiles(work, worker);
            }
            self.gate.0.fetch_sub(1, Ordering::SeqCst);
            spins = 0;
        }
    }
}

/// A fixed set of threads; the thread that calls [`Pool::run`] is worker 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

impl Pool {
    /// Starts `threads - 1` workers. `pin` binds worker i to the i-th core that the process may use; the calling thread
    /// is left where it is.
    pub(crate) fn new(threads: usize, pin: bool) -> Result<Pool, CpuError> {
        let shared = Arc::new(Shared {
            gate: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            tiles: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            sleeper: AtomicUsize::new(0),
            workers: (1..threads).map(|_| Line(Worker::default())).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, handles: Vec::new(), busy: AtomicBool::new(false) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = std::thread::Builder::new()
                .name(format!("kernels-{worker}"))
                .spawn(move || {
                    if pin {
                        pin_to(worker);
                    }
                    shared.serve(worker);
                })
                // Workers that were started stop when `pool` is dropped.
                .map_err(|source| CpuError::Spawn { worker, threads, source })?;
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `work(tile, worker)` once for every tile below `tiles`, on any worker below [`Pool::threads`], and returns
    /// when all are done. A panic in a tile ends the job and goes on in the caller.
    ///
    /// # Panics
    /// If called from inside a tile.
    pub(crate) fn run(&self, tiles: usize, work: &Work<'_>) {
        if tiles <= 1 || self.handles.is_empty() {
            (0..tiles).for_each(|tile| work(tile, 0));
            return;
        }
        assert!(!self.busy.swap(true, Ordering::Acquire), "a tile must not start a job of its own");
        let s = &*self.shared;
        // SAFETY: the reference is forgotten below, before this function returns; nothing in between can unwind,
        // because `take_tiles` catches panics.
        let eternal = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        // SAFETY: the gate is closed and nobody is inside: the last job ended that way.
        unsafe { *s.job.get() = Some(eternal) };
        s.tiles.store(tiles, Ordering::Relaxed);
        s.next.0.store(0, Ordering::Relaxed);
        s.sleeper.store(0, Ordering::Relaxed);
        let epoch = (s.gate.0.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        s.gate.0.store(epoch << 32 | OPEN, Ordering::SeqCst);
        s.wake();
        s.take_tiles(work, 0);
        s.gate.0.fetch_and(!OPEN, Ordering::SeqCst);
        let mut turns = 0u32;
        while s.gate.0.load(Ordering::SeqCst) & INSIDE != 0 {
            turns += 1;
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        // SAFETY: closed and empty again.
        unsafe { *s.job.get() = None };
        self.busy.store(false, Ordering::Release);
        let payload = s.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.handles.iter().for_each(|handle| handle.thread().unpark());
        for handle in self.handles.drain(..) {
            // Workers catch panics of tiles, so a join can only fail by a defect of the pool; a destructor stays quiet.
            let _ = handle.join();
        }
    }
}

/// Binds the calling thread to the `index`-th core it may use (counted around). Failure only costs speed.
fn pin_to(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| allowed.is_set(c)).collect();
    if cores.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    let _ = sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    #[test]
    fn every_tile_is_done_once_whatever_the_threads() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads, threads == 2).unwrap();
            for tiles in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicU32> = (0..tiles).map(|_| AtomicU32::new(0)).collect();
                pool.run(tiles, &|tile, worker| {
                    assert!(worker < threads);
                    counts[tile].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tiles} tiles"
                );
            }
        }
    }

    #[test]
    fn many_short_jobs_and_pauses_lose_nothing() {
        let pool = Pool::new(3, false).unwrap();
        let sum = AtomicUsize::new(0);
        for round in 0..5_000 {
            pool.run(5, &|tile, _| {
                sum.fetch_add(tile, Ordering::Relaxed);
            });
            if round % 1000 == 0 {
                // Long enough for the workers to park.
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        assert_eq!(sum.load(Ordering::Relaxed), 5_000 * 10);
    }

    /// A job that cannot end before every worker has come: none may stay asleep.
    #[test]
    fn all_who_sleep_are_woken() {
        let pool = Pool::new(9, false).unwrap();
        for round in 1..=20 {
            // Until all have parked, which takes some tens of microseconds of each.
            let deadline = Instant::now() + Duration::from_secs(20);
            while !pool.shared.workers.iter().all(|w| w.0.parked.load(Ordering::SeqCst)) {
                assert!(Instant::now() < deadline, "round {round}: a worker without work does not park");
                std::thread::sleep(Duration::from_micros(100));
            }
            let came = AtomicUsize::new(0);
            pool.run(9, &|_, _| {
                came.fetch_add(1, Ordering::SeqCst);
                let deadline = Instant::now() + Duration::from_secs(20);
                while came.load(Ordering::SeqCst) < 9 {
                    assert!(Instant::now() < deadline, "round {round}: only {came:?} of 9 came");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_in_a_tile_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2, false).unwrap();
        for bad in [0, 3, 63] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|tile, _| assert_ne!(tile, bad, "tile {bad} is broken"));
            }));
            let payload = outcome.unwrap_err();
            let text = payload.downcast_ref::<String>().unwrap();
            assert!(text.contains("is broken"), "{text}");
            let done = AtomicUsize::new(0);
            pool.run(10, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 10);
        }
    }
}
