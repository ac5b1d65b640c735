//! Record of a run's launches: which copies belong to the run, and which belong to steps that it has gone back from.
//!
//! ```text
//! launch 1   1 2 3 4 5 6 7       killed
//! launch 2           4 5 6 7 8   began after step 3 (its base): copies of launch 1 are of this run up to step 3 only
//! ```
//! A host that was cut off keeps copies of steps that the others have taken back. They are as intact as any other copy. This record
//! distinguishes them: it is in the run directory, where all hosts see it.

use super::{RUN_FILE, TrainError};
use crate::state::CHECKPOINTS;
use bessemer_durable::ConfinedDir;
use bessemer_memory_checkpoint::{CopyOffer, OverflowPlan, stable_hash};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Contents of [`RUN_FILE`].
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct RunRecord {
    /// Random.
    id: String,
    launches: u64,
    #[serde(default)]
    bases: Vec<Base>,
    /// Locations of the overflow.
    #[serde(default)]
    overflow: Option<SavedOverflow>,
}

/// Parts of ranks' states that are stored elsewhere, for a layout: copies are found again only where the next launch partitions states alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedOverflow {
    /// Hash of the layout.
    pub(super) layout: u64,
    pub(super) plan: OverflowPlan,
}

/// The step after which a launch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Base {
    launch: u64,
    step: u64,
}

/// A launch of a run, or its continuation after it has gone back to an older step.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Launch {
    /// Number of the run.
    pub(super) run: [u64; 2],
    pub(super) number: u64,
    /// The bases that bound which copies are the run's: launches and steps ascend.
    bases: Vec<Base>,
    /// True if the launch has a base of its own.
    begun: bool,
    pub(super) overflow: Option<SavedOverflow>,
}

impl Launch {
    /// The next launch of the run whose directory this is; recorded there.
    pub(super) fn next(run: &ConfinedDir) -> Result<Launch, std::io::Error> {
        run.create_dir(CHECKPOINTS)?;
        let mut record = match read(run) {
            Some(record) => record,
            None => RunRecord {
                id: bessemer_durable::read_to_string(Path::new("/proc/sys/kernel/random/uuid"))?,
                ..RunRecord::default()
            },
        };
        record.launches += 1;
        write(run, &record)?;
        let run = number(run.path(), &record)?;
        let RunRecord { launches: number, bases, overflow, .. } = record;
        Ok(Launch { run: [run as u64, (run >> 64) as u64], number, bases, begun: false, overflow })
    }

    /// Number of the run.
    pub(super) fn run(&self) -> u128 {
        u128::from(self.run[0]) | u128::from(self.run[1]) << 64
    }

    /// Records that the run resumes after `step`: as this launch, or, if it has made steps already, as another one.
    pub(super) fn begin_after(&mut self, step: u64) {
        self.number += u64::from(std::mem::replace(&mut self.begun, true));
        self.bases.retain(|base| base.step < step);
        self.bases.push(Base { launch: self.number, step });
    }

    /// Notes [`Launch::begin_after`] in the run directory.
    pub(super) fn note(&self, run: &ConfinedDir) -> Result<(), std::io::Error> {
        let record = read(run).unwrap_or_default();
        let launches = record.launches.max(self.number);
        write(run, &RunRecord { launches, bases: self.bases.clone(), ..record })
    }

    /// Records the locations of the overflowing parts.
    pub(super) fn note_overflow(&self, run: &ConfinedDir) -> Result<(), std::io::Error> {
        let record = read(run).unwrap_or_default();
        write(run, &RunRecord { overflow: self.overflow.clone(), ..record })
    }

    /// Whether a copy is of the run's own past: no later launch has begun before its step.
    pub(super) fn has(&self, offer: &CopyOffer) -> bool {
        let later = self.bases.iter().filter(|base| base.launch > offer.launch);
        later.map(|base| base.step).min().is_none_or(|least| offer.step <= least)
    }
}

/// Number of a run. A copied run directory is another run.
fn number(run: &Path, record: &RunRecord) -> Result<u128, std::io::Error> {
    let place = run.canonicalize()?;
    Ok(stable_hash(&[place.as_os_str().as_bytes(), record.id.as_bytes()]))
}

/// Number of the run that has this directory; `None` if it keeps no copies in memory.
pub(super) fn number_of(directory: &Path) -> Result<Option<u128>, std::io::Error> {
    let run = ConfinedDir::open_named(directory)?;
    match run.read(Path::new(CHECKPOINTS).join(RUN_FILE)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(_) => read(&run).map(|record| number(directory, &record)).transpose(),
    }
}

fn read(run: &ConfinedDir) -> Option<RunRecord> {
    serde_json::from_slice(&run.read(Path::new(CHECKPOINTS).join(RUN_FILE)).ok()?).ok()
}

fn write(run: &ConfinedDir, record: &RunRecord) -> Result<(), std::io::Error> {
    run.write(Path::new(CHECKPOINTS).join(RUN_FILE), &serde_json::to_vec(record)?)
}

/// Number of this host: its name, and a value that distinguishes it from others of that name.
pub(in crate::trainer) fn host() -> u64 {
    let read = |path: &str| bessemer_durable::read_to_string(Path::new(path)).unwrap_or_default();
    let (name, boot) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"));
    stable_hash(&[name.as_bytes(), boot.as_bytes()]) as u64
}

/// Converts the error of a run's record into one of the session.
pub(super) fn unnoted(e: std::io::Error) -> TrainError {
    TrainError::State { place: RUN_FILE.into(), problem: format!("cannot be written: {e}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_past_that_was_left_are_not_the_runs() {
        let place = tempfile::tempdir().unwrap();
        let directory = ConfinedDir::open(place.path()).unwrap();
        let launch = |base: Option<u64>| {
            let mut launch = Launch::next(&directory).unwrap();
            if let Some(base) = base {
                launch.begin_after(base);
                launch.note(&directory).unwrap();
            }
            launch
        };
        let offer = |launch, step| CopyOffer { by: 0, of: 0, step, launch };
        let (first, second) = (launch(Some(0)), launch(Some(11)));
        assert_eq!((first.number, second.number, first.run()), (1, 2, second.run()));
        // Killed before it has begun.
        assert!(launch(None).has(&offer(1, 11)) && !launch(None).has(&offer(1, 12)));
        assert!(launch(None).has(&offer(2, 12)));
        // Continues the steps of launch 2. The copy of launch 1 of step 12 is excluded.
        let mut sixth = launch(Some(13));
        assert_eq!(sixth.number, 6);
        assert!(sixth.has(&offer(2, 13)) && !sixth.has(&offer(2, 14)) && !sixth.has(&offer(1, 12)));
        // Within a launch the run goes back: its own later copies are no longer its own, also for the next launch.
        sixth.begin_after(8);
        sixth.note(&directory).unwrap();
        for launch in [sixth, launch(None)] {
            assert!(launch.has(&offer(6, 8)) && !launch.has(&offer(6, 9)) && launch.has(&offer(7, 9)));
            assert!(!launch.has(&offer(2, 9)) && launch.has(&offer(1, 8)));
        }
        assert_eq!(launch(None).number, 9);
        // Another directory with the same record is another run.
        let other = tempfile::tempdir().unwrap();
        let other = ConfinedDir::open(other.path()).unwrap();
        other.create_dir(CHECKPOINTS).unwrap();
        write(&other, &read(&directory).unwrap()).unwrap();
        assert_ne!(Launch::next(&other).unwrap().run(), launch(None).run());
    }
}
