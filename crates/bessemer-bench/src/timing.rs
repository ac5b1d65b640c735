//! How long an operator takes on a machine that others use too.

use crate::cases::Work;
use bessemer::Failure;
use bessemer_kernels_cpu::peak::Probe;
use bessemer_kernels_cpu::{CpuBackend, Rung, peak};
use bessemer_units::stats::upper_median;
use std::time::Instant;

/// Times of one operator, or one step of an optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Timing {
    /// Seconds of a launch, the median of those that count.
    pub(crate) median: f64,
    /// Seconds of the fastest one.
    pub(crate) best: f64,
    /// Launches that count.
    pub(crate) kept: usize,
    /// Launches.
    pub(crate) tried: usize,
}

/// Launches between probes: those count whose probes ran at full speed, so that other programs cost the bench patience
/// and not its figures.
pub(crate) struct Stopwatch {
    probe: Probe,
    /// Rate of an undisturbed probe.
    clean: f64,
}

/// A probe this far under the best one was disturbed.
const DISTURBED: f64 = 0.96;
/// Seconds of launches for a figure.
const ENOUGH: f64 = 0.4;
/// Seconds after which what there is must do.
const PATIENCE: f64 = 5.0;

impl Stopwatch {
    pub(crate) fn new(threads: usize) -> Result<Stopwatch, Failure> {
        let rung = Rung::detect();
        // Cores are taken to scale: with all of them busy elsewhere, a measurement of all would set too low a bar.
        let alone = peak::flops_per_s(rung, 1)? * threads as f64;
        let clean = peak::flops_per_s(rung, threads)?.max(0.98 * alone);
        Ok(Stopwatch { probe: Probe::new(rung, threads)?, clean })
    }

    /// Floating-point operations a second of f32 multiply-adds, undisturbed.
    pub(crate) fn peak(&self) -> f64 {
        self.clean
    }

    /// Does `work` for some time. If every launch was disturbed, all of them count, and `kept` is 0.
    pub(crate) fn time(&mut self, backend: &mut CpuBackend, work: &mut Work) -> Result<Timing, Failure> {
        // The first launch touches memory. A very slow one is the measurement.
        let first = work.seconds(backend)?;
        let (mut kept, mut all) = (Vec::new(), Vec::new());
        if first > PATIENCE {
            all.push(first);
        }
        let start = Instant::now();
        let mut before = self.probe.trial();
        while all.is_empty() || start.elapsed().as_secs_f64() < PATIENCE {
            let enough = kept.len() >= 5 && start.elapsed().as_secs_f64() > ENOUGH;
            if enough || kept.len() >= 200 || first > PATIENCE {
                break;
            }
            let took = work.seconds(backend)?;
            let after = self.probe.trial();
            self.clean = self.clean.max(after);
            if before.min(after) > DISTURBED * self.clean {
                kept.push(took);
            }
            all.push(took);
            before = after;
        }
        let (kept_count, tried) = (kept.len(), all.len());
        let counting = if kept.is_empty() { &mut all } else { &mut kept };
        let median = upper_median(counting);
        Ok(Timing { median, best: counting[0], kept: kept_count, tried })
    }
}
