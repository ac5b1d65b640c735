//! Spans of samples that no step trains on.
//!
//! The order of data is a function of seed, mixture and sample counter, so that leaving data out is a jump of the counter: a step whose
//! batch would reach into a span begins after it. A run that went back to an older checkpoint and jumps from there is then, step for step,
//! the run that has left the span out from its beginning. The jump is part of the state in checkpoints
//! ([`SpikeState::passed_over`](crate::SpikeState::passed_over)).
//!
//! Spans come from the recipe (`train.skip_samples`) and from the file [`FILE`] of the run directory, which contains the spans that the
//! user or a supervisor adds for the next launch.

use crate::{TrainError, TrainState};
use bessemer_durable::{AsDir, ConfinedDir};
use bessemer_parallel::Worker;
use bessemer_recipe::Recipe;
use serde::{Deserialize, Serialize};
use std::io;

/// File of a run directory with spans that were added to those of the recipe.
const FILE: &str = "skipped-samples.json";
/// Version of the file.
const VERSION: u32 = 1;
/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

/// Spans of the sample counter that no step trains on: ascending, none empty, none reaching another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedSamples(Vec<[u64; 2]>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SkippedFile {
    version: u32,
    /// First sample of a span, and the sample after its last.
    spans: Vec<[u64; 2]>,
}

impl SkippedSamples {
    /// Spans in any order; adjacent or overlapping ones become one.
    pub fn new(spans: impl IntoIterator<Item = [u64; 2]>) -> SkippedSamples {
        let mut spans: Vec<[u64; 2]> = spans.into_iter().filter(|[first, end]| first < end).collect();
        spans.sort_unstable();
        let mut apart: Vec<[u64; 2]> = Vec::with_capacity(spans.len());
        for [first, end] in spans {
            match apart.last_mut() {
                Some(last) if first <= last[1] => last[1] = last[1].max(end),
                _ => apart.push([first, end]),
            }
        }
        SkippedSamples(apart)
    }

    /// The spans.
    pub fn spans(&self) -> &[[u64; 2]] {
        &self.0
    }

    /// Reads the spans that were added to a run directory; none where there is no such file.
    ///
    /// # Errors
    /// A file that cannot be read, or that is of another version.
    pub fn read(run: impl AsDir) -> io::Result<SkippedSamples> {
        let run = run.as_dir()?;
        let path = run.path().join(FILE);
        let wrong = |problem: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", path.display()))
        };
        let file = match run.open_file(FILE) {
            Ok(file) => file,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(SkippedSamples::default()),
            Err(cause) => return Err(wrong(cause.to_string())),
        };
        let text =
            io::read_to_string(io::Read::take(file, MOST_BYTES + 1)).map_err(|e| wrong(e.to_string()))?;
        if text.len() as u64 > MOST_BYTES {
            return Err(wrong(format!("is larger than {MOST_BYTES} bytes")));
        }
        let found: SkippedFile = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if found.version != VERSION {
            return Err(wrong(format!("is of version {}; wanted {VERSION}", found.version)));
        }
        Ok(SkippedSamples::new(found.spans))
    }

    /// Adds a span to those of a run directory, for the next launch.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn add(run: impl AsDir, span: [u64; 2]) -> io::Result<()> {
        let run = run.as_dir()?;
        let all = SkippedSamples::new(SkippedSamples::read(&run)?.0.into_iter().chain([span]));
        let text = serde_json::to_string(&SkippedFile { version: VERSION, spans: all.0 })?;
        run.write(FILE, text.as_bytes())
    }

    /// First sample of a step of `batch` samples that would begin with sample `at`.
    pub fn first_of_step(&self, at: u64, batch: u64) -> u64 {
        let behind = |at: u64, [first, end]: &[u64; 2]| match *first < at.saturating_add(batch) && at < *end {
            true => *end,
            false => at,
        };
        self.0.iter().fold(at, behind)
    }

    /// Steps of `batch` samples from sample `at` on that reach no span, at most `most`; at least one where `at` is
    /// [the first of a step](SkippedSamples::first_of_step).
    pub fn steps_before_next(&self, at: u64, batch: u64, most: u64) -> u64 {
        let next = self.0.iter().map(|[first, _]| *first).find(|first| *first >= at);
        next.map_or(most, |first| most.min((first - at) / batch.max(1)))
    }

    /// The sample counter after `steps` further steps of a run.
    pub fn after_steps(&self, state: &TrainState, steps: u64) -> u64 {
        let batch = state.identity.sequences_per_step;
        (0..steps).fold(state.loader.samples, |at, _| self.first_of_step(at, batch).saturating_add(batch))
    }
}

/// Message: the spans that were added to the run directory.
const ADDED: &str = "samples that are skipped";

/// The spans of the recipe and those that the first rank finds in the run directory, on all ranks.
///
/// # Errors
/// A file that cannot be read, an error of another rank.
pub(crate) fn skipped_samples(
    worker: &mut Worker,
    recipe: &Recipe,
    run: &ConfinedDir,
) -> Result<SkippedSamples, TrainError> {
    let found = match worker.rank() {
        0 => SkippedSamples::read(run).map_err(|cause| cause.to_string()),
        _ => Ok(SkippedSamples::default()),
    };
    let found: Result<Vec<[u64; 2]>, String> = found.map(|skipped| skipped.0);
    let unreadable = |cause: serde_json::Error| TrainError::Recipe(format!("{ADDED}: {cause}"));
    let text = serde_json::to_string(&found).map_err(unreadable)?;
    let all = worker.gather_bytes(ADDED, text.as_bytes())?;
    let first: Result<Vec<[u64; 2]>, String> = serde_json::from_slice(&all[0]).map_err(unreadable)?;
    let added = first.map_err(TrainError::Recipe)?;
    Ok(SkippedSamples::new(recipe.train.skip_samples.iter().copied().chain(added)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn steps_that_would_reach_a_span_begin_behind_it() {
        let skipped = SkippedSamples::new([[40, 48], [16, 24], [24, 30], [50, 50]]);
        assert_eq!(skipped.spans(), [[16, 30], [40, 48]]);
        let first = |at| skipped.first_of_step(at, 8);
        assert_eq!([0, 8].map(first), [0, 8]);
        // One reaches into the span, the step from its end on reaches into the next one.
        assert_eq!([9, 16, 29].map(first), [30; 3]);
        assert_eq!([32, 33, 40, 48].map(first), [32, 48, 48, 48]);
        assert_eq!(
            [(0, 9), (8, 9), (32, 9), (48, 9)].map(|(at, most)| skipped.steps_before_next(at, 8, most)),
            [2, 1, 1, 9]
        );
    }

    #[test]
    fn spans_are_kept_in_the_run_directory() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(SkippedSamples::read(run.path()).unwrap(), SkippedSamples::default());
        SkippedSamples::add(run.path(), [8, 16]).unwrap();
        SkippedSamples::add(run.path(), [4, 12]).unwrap();
        assert_eq!(SkippedSamples::read(run.path()).unwrap().spans(), [[4, 16]]);
        for (text, said) in [("{", "EOF"), ("{\"version\":2,\"spans\":[]}", "version 2; wanted 1")] {
            std::fs::write(run.path().join(FILE), text).unwrap();
            let error = SkippedSamples::read(run.path()).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(FILE), "{error}");
        }
    }
}
