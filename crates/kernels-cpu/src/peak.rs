//! What this machine can do at most: multiply-adds and memory bandwidth, measured, never assumed.
//!
//! The peak is that of independent chains of f32 fused multiply-adds in registers, with the widest vectors of a rung. It
//! is the denominator of "% of peak" and of model FLOPs utilisation.
#![allow(unsafe_code)] // processor intrinsics

use crate::arena::Block;
use crate::pool::Pool;
use crate::simd::{Kernel, Simd, dispatch};
use crate::{CpuError, Rung};
use std::hint::black_box;
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

/// Sixteen chains of multiply-adds: enough to hide the latency of four or five cycles on two pipes.
struct Chains(u64);

impl Kernel for Chains {
    type Out = f64;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        const CHAINS: usize = 12;
        // SAFETY: register arithmetic only.
        unsafe {
            let (x, y) = (S::splat(black_box(0.999_999)), S::splat(black_box(1e-7)));
            let mut acc = [S::splat(black_box(1.0)); CHAINS];
            for _ in 0..self.0 {
                for a in &mut acc {
                    *a = S::fma(*a, x, y);
                }
            }
            let mut total = 0.0;
            for a in acc {
                total += S::sum(a);
            }
            black_box(total);
            self.0 as f64 * (2 * CHAINS * S::LANES) as f64
        }
    }
}

/// Best rate of `rounds` timed calls of `work`, which returns what it did.
fn best(rounds: u32, mut work: impl FnMut() -> f64) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..rounds {
        let start = Instant::now();
        let done = work();
        best = best.max(done / start.elapsed().as_secs_f64());
    }
    best
}

/// Floating-point operations a second of `threads` threads on `rung`, the best of about 0.1 s of short trials, so that a
/// neighbour's burst does not lower the figure.
pub fn flops_per_s(rung: Rung, threads: usize) -> Result<f64, CpuError> {
    if !rung.available() {
        return Err(CpuError::Rung { wanted: rung, best: Rung::detect() });
    }
    let pool = Pool::new(threads.max(1), false)?;
    // SAFETY: the rung is available.
    let chains = move |turns: u64| unsafe { dispatch(rung, Chains(turns)) };
    // One call takes about 2 ms.
    let start = Instant::now();
    chains(100_000);
    let turns = (100_000.0 * 0.002 / start.elapsed().as_secs_f64().max(1e-6)) as u64;
    let together = pool.threads() as f64;
    let deadline = Instant::now() + Duration::from_millis(100);
    let mut fastest = 0.0f64;
    while Instant::now() < deadline {
        let each = turns as f64 * chains(1);
        fastest = fastest.max(best(5, || {
            pool.run(pool.threads(), &|_, _| {
                chains(turns);
            });
            each * together
        }));
    }
    Ok(fastest)
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

/// Measures peak and bandwidth in about a quarter of a second. Takes 128 MiB of memory for each thread while it works.
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
    // First touch: pages come into being outside the timed part.
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

    #[test]
    fn faster_rungs_have_higher_peaks_and_bandwidth_is_plausible() {
        let best = Rung::detect();
        let peak = flops_per_s(best, 1).unwrap();
        assert!(peak > 1e9, "{peak}");
        if best > Rung::Portable {
            assert!(peak > flops_per_s(Rung::Portable, 1).unwrap(), "wider vectors are not faster?");
        }
        let m = measure(1).unwrap();
        assert!(m.read_bytes_per_s > 1e8 && m.copy_bytes_per_s > 1e8 && m.flops_per_s > 1e9, "{m:?}");
    }
}
