//! Measured peak rates of this machine: multiply-adds and memory bandwidth.
//!
//! The peak is that of independent chains of f32 fused multiply-adds in registers, with the widest vectors of an instruction set. It
//! is the denominator of "% of peak" and of model FLOPs utilisation.
#![allow(unsafe_code)] // processor intrinsics

use crate::arena::Block;
use crate::pool::Pool;
use crate::simd::{Kernel, Simd, dispatch};
use crate::{CpuError, Rung};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Measured limits of the machine, for a number of threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Threads that worked.
    pub threads: usize,
    /// Floating-point operations a second, a multiply-add counting two.
    pub flops_per_s: f64,
    /// Bytes read from main memory a second.
    pub read_bytes_per_s: f64,
    /// Bytes read plus bytes written a second, one stream of each.
    pub copy_bytes_per_s: f64,
}

struct Chains(u64);

impl Kernel for Chains {
    type Out = f64;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        // SAFETY: by contract.
        unsafe {
            match S::CHAINS {
                12 => chains::<S, 12>(self.0),
                16 => chains::<S, 16>(self.0),
                n => unreachable!("{n} chains"),
            }
        }
    }
}

/// Runs so many rounds of N chains; returns their operations.
///
/// # Safety
/// Same requirements as [`Simd`].
#[inline(always)]
unsafe fn chains<S: Simd, const N: usize>(turns: u64) -> f64 {
    // SAFETY: register arithmetic only.
    unsafe {
        let (x, y) = (S::splat(black_box(0.999_999)), S::splat(black_box(1e-7)));
        let mut acc = [S::splat(black_box(1.0)); N];
        for _ in 0..turns {
            for a in &mut acc {
                *a = S::fma(*a, x, y);
            }
        }
        let mut total = 0.0;
        for a in acc {
            total += S::sum(a);
        }
        black_box(total);
        turns as f64 * (2 * N * S::LANES) as f64
    }
}

/// Best rate of `rounds` timed calls of `work`, which returns the number of operations or bytes.
fn best(rounds: u32, mut work: impl FnMut() -> f64) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..rounds {
        let start = Instant::now();
        let done = work();
        best = best.max(done / start.elapsed().as_secs_f64());
    }
    best
}

/// A short measurement of multiply-adds that can be repeated: before and after a timed piece of work, it shows whether the
/// machine was disturbed during it.
pub struct Probe {
    pool: Pool,
    rung: Rung,
    turns: u64,
}

impl Probe {
    /// A probe of `threads` threads (at least one) on `rung`, of about 2 ms for each trial.
    pub fn new(rung: Rung, threads: usize) -> Result<Probe, CpuError> {
        if !rung.available() {
            return Err(CpuError::Rung { wanted: rung, best: Rung::detect() });
        }
        let mut probe = Probe { pool: Pool::new(threads.max(1), false)?, rung, turns: 20_000 };
        // The fastest of a few trials sets the length: a disturbed one would make it too short.
        let rate = best(5, || probe.chains());
        probe.turns = (0.002 * rate / probe.chains() * probe.turns as f64).max(1.0) as u64;
        Ok(probe)
    }

    fn chains(&self) -> f64 {
        // SAFETY: the instruction set is available.
        unsafe { dispatch(self.rung, Chains(self.turns)) }
    }

    /// Floating-point operations a second in one trial.
    pub fn trial(&self) -> f64 {
        best(1, || {
            let flops = AtomicU64::new(0);
            self.pool.run(self.pool.threads(), &|_, _| {
                flops.fetch_add(self.chains() as u64, Ordering::Relaxed);
            });
            flops.into_inner() as f64
        })
    }
}

/// Floating-point operations a second of `threads` threads on `rung`: the sum of the best rate of each thread while all of
/// them worked, in about 0.2 s of trials of a quarter of a millisecond. Neighbours disturb cores one by one and in
/// bursts, so moments at which all cores are undisturbed for long may never come.
pub fn flops_per_s(rung: Rung, threads: usize) -> Result<f64, CpuError> {
    let mut probe = Probe::new(rung, threads)?;
    probe.turns = (probe.turns / 8).max(1);
    let threads = probe.pool.threads();
    // Rates as bits: those of positive numbers are ordered as the numbers are.
    let fastest: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let (deadline, mut trials) = (Instant::now() + Duration::from_millis(200), 0);
    let arrived = AtomicUsize::new(0);
    while trials == 0 || Instant::now() < deadline {
        trials += 1;
        probe.pool.run(threads, &|_, worker| {
            // There are as many tiles as threads, and no thread continues before all are here: so each takes one.
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < trials * threads {
                std::thread::yield_now();
            }
            let rate = best(1, || probe.chains());
            fastest[worker].fetch_max(rate.to_bits(), Ordering::Relaxed);
        });
    }
    let sum: f64 = fastest.iter().map(|f| f64::from_bits(f.load(Ordering::Relaxed))).sum();
    // Threads that share a core are each alone on it for a while.
    let cores = std::thread::available_parallelism().map_or(threads, usize::from);
    Ok(sum * cores.min(threads) as f64 / threads as f64)
}

/// Threads of a group of the pool, and groups that are counted together, at most: the cost of [`handoff_seconds`] grows with
/// their number up to here and with the logarithm from here on.
pub const FAN_IN: usize = crate::pool::FAN_IN;

/// Seconds that it takes to hand a job without work to `threads` threads that are awake and to have all of them back: the
/// best of the batches of a tenth of a second. Every thread takes one tile and stays until all have one: the caller would
/// finish all tiles before others have started.
pub fn handoff_seconds(threads: usize) -> Result<f64, CpuError> {
    const JOBS: usize = 20;
    const LENGTH: Duration = Duration::from_millis(100);
    /// Spins after which a waiting thread yields its core.
    const SPINS: usize = 2_000;
    let pool = Pool::new(threads.max(1), false)?;
    let threads = pool.threads();
    let came = AtomicUsize::new(0);
    let batch = || {
        for _ in 0..JOBS {
            came.store(0, Ordering::Relaxed);
            pool.run(threads, &|_, _| {
                came.fetch_add(1, Ordering::AcqRel);
                let mut turns = 0;
                while came.load(Ordering::Acquire) < threads {
                    turns += 1;
                    if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
            });
        }
        JOBS as f64
    };
    let (begun, mut rate) = (Instant::now(), 0.0f64);
    while rate == 0.0 || begun.elapsed() < LENGTH {
        rate = rate.max(best(1, batch));
    }
    Ok(1.0 / rate)
}

/// Floats of each stream of the bandwidth test for one thread: well past any cache when all threads work.
const STREAM: usize = 16 << 20;

struct Sum(*const f32, usize);

impl Kernel for Sum {
    type Out = f32;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: `measure` gives parts of a mapped block whose length is a multiple of the step.
        unsafe {
            let mut acc = [S::splat(0.0); 8];
            let mut i = 0;
            while i < self.1 {
                for (j, a) in acc.iter_mut().enumerate() {
                    *a = S::add(*a, S::load(self.0.add(i + j * S::LANES)));
                }
                i += 8 * S::LANES;
            }
            acc.into_iter().map(|a| S::sum(a)).sum()
        }
    }
}

/// Measures peak and bandwidth in about half a second. Takes 128 MiB of memory for each thread while it works.
pub fn measure(threads: usize) -> Result<Peak, CpuError> {
    let rung = Rung::detect();
    let flops = flops_per_s(rung, threads)?;
    let pool = Pool::new(threads.max(1), false)?;
    let threads = pool.threads();
    let map = || {
        Block::new(4 * STREAM * threads).map_err(|e| {
            CpuError::Config(format!("no memory for the bandwidth test of {threads} threads: {e}"))
        })
    };
    let (from, to) = (map()?, map()?);
    let parts = 16 * threads;
    let part = STREAM * threads / parts;
    let at = |b: &Block, tile: usize| b.ptr().cast::<f32>().wrapping_add(tile * part);
    // First touch: pages are mapped outside the timed part.
    pool.run(parts, &|tile, _| {
        // SAFETY: part `tile` of both blocks.
        unsafe {
            std::ptr::write_bytes(at(&from, tile), 1, part);
            std::ptr::write_bytes(at(&to, tile), 1, part);
        }
    });
    let bytes = (4 * STREAM * threads) as f64;
    let read = best(4, || {
        pool.run(parts, &|tile, _| {
            // SAFETY: part `tile` of the block.
            black_box(unsafe { dispatch(rung, Sum(at(&from, tile), part)) });
        });
        bytes
    });
    let copy = best(4, || {
        pool.run(parts, &|tile, _| {
            // SAFETY: parts `tile` of two different blocks.
            unsafe { std::ptr::copy_nonoverlapping(at(&from, tile), at(&to, tile), part) };
        });
        2.0 * bytes
    });
    Ok(Peak { threads, flops_per_s: flops, read_bytes_per_s: read, copy_bytes_per_s: copy })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Includes more threads than there are cores, whose jobs need time slices of the scheduler.
    #[test]
    fn a_handoff_takes_longer_than_a_call_and_ends() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let [call, two, crowded] = [1, 2, cores + 1].map(|threads| handoff_seconds(threads).unwrap());
        assert!(0.0 < call && call < two && two.max(crowded) < 1.0, "{call}, {two}, {crowded}");
    }

    #[test]
    fn faster_rungs_have_higher_peaks_and_bandwidth_is_plausible() {
        let best = Rung::detect();
        let peak = flops_per_s(best, 1).unwrap();
        assert!(peak > 1e9, "{peak}");
        // NEON and what compilers make of plain code for it are the same.
        if best > Rung::Neon {
            assert!(peak > flops_per_s(Rung::Portable, 1).unwrap(), "wider vectors are not faster?");
        }
        // More threads than cores do no more than the cores can.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = flops_per_s(best, cores + 1).unwrap();
        assert!(crowded < 1.5 * peak * cores as f64, "{crowded} of {cores} cores, {peak} of one");
        let m = measure(1).unwrap();
        assert!(m.read_bytes_per_s > 1e8 && m.copy_bytes_per_s > 1e8 && m.flops_per_s > 1e9, "{m:?}");
    }
}
