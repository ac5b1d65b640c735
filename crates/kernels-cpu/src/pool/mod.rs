//! The thread pool: workers that live as long as the backend, and tiles that any free worker takes next.
//!
//! Workers are in groups of at most [`FAN_IN`], each on one memory node if they are bound to cores (the caller is not). A job's tiles
//! are partitioned among the groups in order, by their workers; a group that has finished its own takes from the next ones. So operators
//! over the same rows touch them on the same node, where the pages were touched first, unless a group is late.
//!
//! States. The caller writes the job, opens the [`Gate`] under a new epoch and notifies groups; a worker whose group was notified
//! of an epoch that it has not served enters; the caller takes tiles too, then closes the gate and waits until no thread is inside.
//! Only then may the job be dropped. The first thread of a group inside notifies the next groups, together with the caller: those
//! notified double in the time of one notification, and no thread waits for one that lost its core. In a group, those inside wake the
//! workers that sleep in the same way. A worker without a job spins briefly, then parks. Nothing here allocates after the start.
//! Before it leaves, every worker reads the counters of all groups once: that is the part of a job that grows with their number.
//!
//! Invariants: no worker reads the job while it is not inside; the caller does not return or unwind while a worker
//! is inside.
#![allow(unsafe_code)] // the job is borrowed from the caller's stack

mod gate;
mod layout;

use crate::CpuError;
pub(crate) use gate::FAN_IN;
use gate::Gate;
use layout::Layout;
pub use layout::cpu_list;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Iterations in which a worker polls its group before it parks: some tens of microseconds, longer than the pause
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

struct Group {
    workers: Range<usize>,
    /// Epoch of the last job that the group was notified of.
    notified: Line<AtomicU32>,
    /// Epoch of a job, upper half, and the next tile of this group's share of it: the first worker of an epoch writes it. An
    /// epoch comes again after 2^32 jobs; until then every group has had a share in one.
    next: Line<AtomicU64>,
    /// The next worker to be woken.
    sleeper: Line<AtomicUsize>,
}

impl Group {
    fn new(workers: Range<usize>) -> Group {
        let next = Line(AtomicU64::new(0));
        Group {
            workers,
            notified: Line(AtomicU32::new(0)),
            next,
            sleeper: Line(AtomicUsize::new(usize::MAX)),
        }
    }

    /// The tiles of a job that the group takes first: of few tiles one for each worker from the first on.
    fn share(&self, tiles: usize, threads: usize) -> Range<usize> {
        let first =
            |worker: usize| if tiles < threads { worker.min(tiles) } else { tiles * worker / threads };
        first(self.workers.start)..first(self.workers.end)
    }

    /// Takes the next tile of the share; called by the job's caller or by a worker inside.
    fn take(&self, epoch: u32, share: &Range<usize>) -> Option<usize> {
        if share.is_empty() {
            return None;
        }
        let mut next = self.next.0.load(Ordering::Relaxed);
        while (next >> 32) as u32 != epoch {
            let second = u64::from(epoch) << 32 | (share.start as u64 + 1);
            match self.next.0.compare_exchange(next, second, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(share.start),
                Err(now) => next = now,
            }
        }
        if next as u32 as usize >= share.end {
            return None;
        }
        // Still of this epoch: the next one begins when no thread is inside.
        let tile = self.next.0.fetch_add(1, Ordering::Relaxed) as u32 as usize;
        (tile < share.end).then_some(tile)
    }
}

/// Number of tiles of the job, and whether it continues.
struct Size {
    tiles: AtomicUsize,
    /// True if a tile has panicked.
    broken: AtomicBool,
}

struct Shared {
    gate: Gate,
    groups: Vec<Group>,
    workers: Vec<Line<Worker>>,
    size: Line<Size>,
    /// The next group to be notified.
    next_group: Line<AtomicUsize>,
    job: UnsafeCell<Option<&'static Work<'static>>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the caller only while the gate is closed and no thread is inside, and read by workers only
// inside; the gate's atomic operations order the two. Everything else is Sync by itself.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// Threads, the caller included.
    fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Takes tiles until there are none, those of `group` first; a panic ends the job for everybody and is kept for the caller.
    fn take_tiles(&self, work: &Work<'_>, epoch: u32, group: usize, worker: usize) {
        let tiles = self.size.0.tiles.load(Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let (own, others) = (&self.groups[group..], &self.groups[..group]);
            for group in own.iter().chain(others) {
                let share = group.share(tiles, self.threads());
                while !self.size.0.broken.load(Ordering::Relaxed)
                    && let Some(tile) = group.take(epoch, &share)
                {
                    work(tile, worker);
                }
            }
        }));
        if let Err(payload) = outcome {
            self.size.0.broken.store(true, Ordering::Relaxed);
            let mut slot = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert(payload);
        }
    }

    /// Notifies groups of the job, concurrently with the other threads that do, until each group that has a tile was notified. Called by
    /// the job's caller, or by a thread inside.
    fn notify(&self, epoch: u32) {
        let tiles = self.size.0.tiles.load(Ordering::Relaxed);
        let last = self.groups.partition_point(|group| group.workers.start < tiles);
        while self.next_group.0.load(Ordering::Relaxed) < last {
            let next = self.next_group.0.fetch_add(1, Ordering::Relaxed);
            let Some(group) = self.groups[..last].get(next) else { break };
            group.sleeper.0.store(group.workers.start, Ordering::Relaxed);
            group.notified.0.store(epoch, Ordering::SeqCst);
            self.wake(group);
        }
    }

    /// Unparks workers of a group that was notified, together with everybody else who does, until each that the job has a tile for
    /// was looked at.
    fn wake(&self, group: &Group) {
        let last = group.workers.end.min(self.size.0.tiles.load(Ordering::Relaxed));
        while group.sleeper.0.load(Ordering::Relaxed) < last {
            let sleeper = group.sleeper.0.fetch_add(1, Ordering::Relaxed);
            let Some(Line(sleeper)) = self.workers[..last].get(sleeper) else { break };
            if sleeper.parked.load(Ordering::SeqCst)
                && let Some(thread) = sleeper.thread.get()
            {
                thread.unpark();
            }
        }
    }

    fn serve(&self, worker: usize) {
        let me = &self.workers[worker].0;
        me.thread.get_or_init(std::thread::current);
        let index = self.groups.partition_point(|group| group.workers.end <= worker);
        let group = &self.groups[index];
        let mut served = 0;
        let mut spins = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let notified = group.notified.0.load(Ordering::SeqCst);
            if notified == served {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                me.parked.store(true, Ordering::SeqCst);
                // Look again after saying so: who wakes notifies the group first and reads `parked` second.
                if group.notified.0.load(Ordering::SeqCst) == served && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                me.parked.store(false, Ordering::SeqCst);
                spins = 0;
                continue;
            }
            spins = 0;
            // If the gate is closed, that job is over.
            served = notified;
            let Some(first) = self.gate.enter(index) else { continue };
            // The next job may have begun since the group was notified of one.
            served = self.gate.epoch();
            if first {
                self.notify(served);
            }
            self.wake(group);
            // SAFETY: inside the gate, so the caller keeps the job alive and does not write it.
            if let Some(work) = unsafe { *self.job.get() } {
                self.take_tiles(work, served, index, worker);
            }
            self.gate.leave(index);
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
    /// Starts `threads - 1` workers. `pin` binds each to a core that the process may use, those of a memory node one after
    /// the other; the calling thread is left where it is.
    pub(crate) fn new(threads: usize, pin: bool) -> Result<Pool, CpuError> {
        Pool::with_layout(if pin { Layout::bound(threads) } else { Layout::free(threads) })
    }

    fn with_layout(layout: Layout) -> Result<Pool, CpuError> {
        let Layout { groups, cores } = layout;
        let threads = groups.last().map_or(1, |group| group.end);
        let shared = Arc::new(Shared {
            gate: Gate::new(groups.len()),
            groups: groups.into_iter().map(Group::new).collect(),
            workers: (0..threads).map(|_| Line(Worker::default())).collect(),
            size: Line(Size { tiles: AtomicUsize::new(0), broken: AtomicBool::new(false) }),
            next_group: Line(AtomicUsize::new(usize::MAX)),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, handles: Vec::new(), busy: AtomicBool::new(false) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let core = cores.get(worker).copied();
            let handle = std::thread::Builder::new()
                .name(format!("kernels-{worker}"))
                .spawn(move || {
                    if let Some(core) = core {
                        layout::bind_to(core);
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
    /// when all are done. A panic in a tile ends the job and resumes in the caller.
    ///
    /// # Panics
    /// If called from inside a tile, or of 2^31 tiles and more.
    pub(crate) fn run(&self, tiles: usize, work: &Work<'_>) {
        if tiles <= 1 || self.handles.is_empty() {
            (0..tiles).for_each(|tile| work(tile, 0));
            return;
        }
        assert!(tiles < 1 << 31, "{tiles} tiles");
        assert!(!self.busy.swap(true, Ordering::Acquire), "a tile must not start a job of its own");
        let s = &*self.shared;
        // SAFETY: the reference is forgotten below, before this function returns; nothing in between can unwind,
        // because `take_tiles` catches panics.
        let eternal = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        // SAFETY: the gate is closed and no thread is inside: the last job ended that way.
        unsafe { *s.job.get() = Some(eternal) };
        s.size.0.tiles.store(tiles, Ordering::Relaxed);
        s.size.0.broken.store(false, Ordering::Relaxed);
        s.next_group.0.store(0, Ordering::Relaxed);
        let epoch = s.gate.open();
        s.notify(epoch);
        s.take_tiles(work, epoch, 0, 0);
        s.gate.close();
        let mut turns = 0u32;
        while !s.gate.is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    /// A group for each worker, so that the tree of counters has three levels.
    fn alone(threads: usize) -> Layout {
        Layout { groups: (0..threads).map(|worker| worker..worker + 1).collect(), cores: Vec::new() }
    }

    #[test]
    fn every_tile_is_done_once_whatever_the_threads() {
        let some = Layout { groups: vec![0..2, 2..3, 3..7], cores: Vec::new() };
        let layouts = [1, 3, 5, 20].map(Layout::free).into_iter().chain([Layout::bound(2), some, alone(10)]);
        for layout in layouts {
            let pool = Pool::with_layout(layout).unwrap();
            let threads = pool.threads();
            for tiles in [0, 1, 2, 7, 21, 1000] {
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
        for (layout, rounds) in [(Layout::free(3), 5_000), (alone(3), 5_000), (alone(10), 1_000)] {
            let pool = Pool::with_layout(layout).unwrap();
            let sum = AtomicUsize::new(0);
            for round in 0..rounds {
                // Fewer tiles than workers, and more.
                let tiles = 2 + round % 10;
                pool.run(tiles, &|tile, _| {
                    sum.fetch_add(tile, Ordering::Relaxed);
                });
                if round % 500 == 0 {
                    // Long enough for the workers to park.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
            let wanted: usize = (0..rounds).map(|round| (2 + round % 10) * (1 + round % 10) / 2).sum();
            assert_eq!(sum.load(Ordering::Relaxed), wanted);
        }
    }

    /// Shares follow each other and cover a job; equal parts of jobs of different sizes go to the same group.
    #[test]
    fn groups_share_a_job_by_their_workers_in_order() {
        let groups = [0..2, 2..3, 3..8].map(Group::new);
        let shares = |tiles| groups.iter().map(|g| g.share(tiles, 8)).collect::<Vec<_>>();
        assert_eq!(shares(80), [0..20, 20..30, 30..80]);
        assert_eq!(shares(800), [0..200, 200..300, 300..800]);
        assert_eq!(shares(11), [0..2, 2..4, 4..11]);
        // A tile for each of the first workers.
        assert_eq!(shares(3), [0..2, 2..3, 3..3]);
    }

    /// A tile is taken by the group that has it in its share as long as that group is not late: here no thread can take other
    /// tiles before all groups have entered.
    #[test]
    fn groups_take_their_own_tiles_first() {
        let pool = Pool::with_layout(alone(4)).unwrap();
        for round in 0..50 {
            let came = AtomicUsize::new(0);
            let taken: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(usize::MAX)).collect();
            let deadline = Instant::now() + Duration::from_secs(20);
            pool.run(8, &|tile, worker| {
                taken[tile].store(worker, Ordering::SeqCst);
                came.fetch_add(1, Ordering::SeqCst);
                while came.load(Ordering::SeqCst) < 4 {
                    assert!(Instant::now() < deadline, "round {round}: only {came:?} came");
                    std::thread::yield_now();
                }
            });
            let first: Vec<usize> = (0..4).map(|g| taken[2 * g].load(Ordering::SeqCst)).collect();
            assert_eq!(first, [0, 1, 2, 3], "round {round}");
        }
    }

    /// A job that cannot end before every worker has entered: none may stay asleep.
    #[test]
    fn all_who_sleep_are_woken() {
        for (round, layout) in
            (1..=20).map(|round| (round, if round % 2 == 0 { alone(9) } else { Layout::free(9) }))
        {
            let pool = Pool::with_layout(layout).unwrap();
            // Until all have parked, which takes some tens of microseconds of each.
            let deadline = Instant::now() + Duration::from_secs(20);
            while !pool.shared.workers[1..].iter().all(|w| w.0.parked.load(Ordering::SeqCst)) {
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
        for (bad, layout) in [(0, Layout::free(2)), (3, alone(3)), (63, Layout::free(2)), (63, alone(3))] {
            let pool = Pool::with_layout(layout).unwrap();
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
