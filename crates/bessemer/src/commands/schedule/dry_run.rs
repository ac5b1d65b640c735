//! `bessemer schedule energy --apply`: one step of a plan's clocks on a device, without the work.

use crate::failure::Failure;
use crate::signals::stop_flag;
use bessemer_clocks_nvml::{Clocks, Device, NvmlError, open};
use bessemer_sim::energy::{ClockControl, ClockError, Plan, Profile, Recorder};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most changes: enough for a mean, and soon over.
const MOST_CHANGES: u32 = 200;

/// Result of a dry run.
pub(super) struct DryRun {
    device: Device,
    rank: usize,
    changes: u32,
    spent: Duration,
}

/// The clock of one device, whichever rank asks, and how long it takes to set.
struct Timed {
    clocks: Clocks,
    changes: u32,
    spent: Duration,
}

impl ClockControl for Timed {
    fn set(&mut self, rank: usize, mhz: f64) -> Result<(), ClockError> {
        let start = Instant::now();
        self.clocks.set(0, mhz).map_err(|e| ClockError { rank, ..e })?;
        self.spent += start.elapsed();
        self.changes += 1;
        Ok(())
    }

    fn release(&mut self, rank: usize) -> Result<(), ClockError> {
        self.clocks.release(0).map_err(|e| ClockError { rank, ..e })
    }
}

/// Sets the clocks of the rank that changes them most, and gives the device its own back, also where it fails or is stopped.
pub(super) fn run(plan: &Plan, profile: &Profile, device: u32) -> Result<DryRun, Failure> {
    let clocks = open(&[device]).map_err(|e| match e {
        NvmlError::NoDevice { .. } => Failure::usage(format!("--apply {device}: {e}")),
        _ => Failure::new(format!("--apply {device}: {e}")),
    })?;
    let rank = busiest(plan, profile)?;
    // An interrupt must not leave the clock locked.
    let stop = stop_flag()?;
    let mut control = Timed { clocks, changes: 0, spent: Duration::ZERO };
    for index in 0..plan.program.lists[rank].len() {
        if control.changes >= MOST_CHANGES || stop.load(Ordering::Relaxed) {
            break;
        }
        plan.apply(profile, rank, index, &mut control).map_err(Failure::new)?;
    }
    let Timed { clocks, changes, spent } = control;
    let device = clocks.devices()[0].clone();
    clocks
        .close()
        .map_err(|e| Failure::new(format!("{e}; nvidia-smi --reset-gpu-clocks resets the clock")))?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new("stopped on request; the clock is reset"));
    }
    Ok(DryRun { device, rank, changes, spent })
}

/// The rank with most changes, the first of them.
fn busiest(plan: &Plan, profile: &Profile) -> Result<usize, Failure> {
    let mut best = (0, 0);
    for rank in 0..plan.program.ranks() {
        let mut recorder = Recorder::default();
        for index in 0..plan.program.lists[rank].len() {
            plan.apply(profile, rank, index, &mut recorder).map_err(Failure::new)?;
        }
        if recorder.settings.len() > best.1 {
            best = (rank, recorder.settings.len());
        }
    }
    Ok(best.0)
}

impl DryRun {
    fn milliseconds(&self) -> f64 {
        1e3 * self.spent.as_secs_f64() / f64::from(self.changes.max(1))
    }

    pub(super) fn text(&self) -> String {
        let (clocks, d) = (&self.device.clocks, &self.device);
        format!(
            "device {} ({}) has {} clocks from {} to {} MHz\n\
             dry run of rank {}: {} changes of the clock, {:.2} ms each; the clock is given back\n",
            d.index,
            d.name,
            clocks.len(),
            clocks[clocks.len() - 1],
            clocks[0],
            self.rank,
            self.changes,
            self.milliseconds()
        )
    }

    pub(super) fn as_value(&self) -> Value {
        json!({
            "device": self.device.index,
            "name": self.device.name,
            "clocks": self.device.clocks,
            "rank": self.rank,
            "changes": self.changes,
            "milliseconds": self.milliseconds(),
        })
    }
}
