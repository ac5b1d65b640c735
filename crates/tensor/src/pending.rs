//! Reads that go on beside what a device computes.

use crate::TensorError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Values that are on their way to the host ([`crate::Backend::begin_read`]).
#[derive(Debug)]
pub struct PendingRead(Arc<ReadProgress>);

/// Values that have arrived.
#[derive(Debug)]
pub struct ReadValues {
    /// The memory that was given, with the values.
    pub values: Vec<f32>,
    /// Whether all values that were read are finite.
    pub finite: bool,
    /// For how long operators and writes waited that would have changed the values.
    pub held_up: Duration,
}

/// Progress of a read, between the thread that reads and those that wait for it.
#[derive(Debug, Default)]
pub struct ReadProgress {
    state: Mutex<ReadState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct ReadState {
    over: bool,
    /// Values, and whether they are finite; none if the thread ended before its time.
    found: Option<(Vec<f32>, bool)>,
    held_up: Duration,
}

impl ReadProgress {
    fn locked(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until_over(&self) -> MutexGuard<'_, ReadState> {
        let mut state = self.locked();
        while !state.over {
            state = self.over.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Whether nobody reads any more.
    pub fn is_over(&self) -> bool {
        self.locked().over
    }

    /// Waits before what is read is changed.
    pub fn hold_up(&self) {
        let begun = Instant::now();
        self.until_over().held_up += begun.elapsed();
    }

    /// Ends the read with its values and whether they are finite; `None`: it failed. What ends it first counts.
    pub fn end(&self, found: Option<(Vec<f32>, bool)>) {
        let mut state = self.locked();
        if !std::mem::replace(&mut state.over, true) {
            state.found = found;
        }
        self.over.notify_all();
    }
}

impl PendingRead {
    /// A read whose values come from the one who has its progress.
    pub fn new(progress: Arc<ReadProgress>) -> PendingRead {
        PendingRead(progress)
    }

    /// A read that is over.
    pub fn over(values: Vec<f32>, finite: bool) -> PendingRead {
        let progress = ReadProgress::default();
        progress.end(Some((values, finite)));
        PendingRead(Arc::new(progress))
    }

    /// Whether [`PendingRead::wait`] would return at once.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// A reading thread that ended before its time.
    pub fn wait(self) -> Result<ReadValues, TensorError> {
        let mut state = self.0.until_over();
        let lost = || TensorError::Device {
            during: "begin_read",
            problem: "the thread that reads has panicked".into(),
        };
        let (values, finite) = state.found.take().ok_or_else(lost)?;
        Ok(ReadValues { values, finite, held_up: state.held_up })
    }
}

/// Whether no value is infinite or not a number.
pub fn all_finite(values: &[f32]) -> bool {
    // Without a branch for every value.
    values.chunks(4096).all(|part| part.iter().fold(true, |finite, v| finite & v.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_that_is_not_finite_is_found() {
        let mut values = vec![1.0f32; 10_000];
        assert!(all_finite(&values));
        for (at, value) in [(0, f32::NAN), (4096, f32::INFINITY), (9_999, f32::NEG_INFINITY)] {
            let before = std::mem::replace(&mut values[at], value);
            assert!(!all_finite(&values));
            values[at] = before;
        }
    }

    #[test]
    fn a_read_waits_for_its_values_or_for_the_news_that_there_are_none() {
        for found in [Some((vec![1.0], true)), None] {
            let progress = Arc::new(ReadProgress::default());
            let pending = PendingRead::new(Arc::clone(&progress));
            assert!(!pending.is_over());
            let reader = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                progress.end(found);
                progress.end(Some((vec![2.0], true)));
            });
            match pending.wait() {
                Ok(read) => assert_eq!((read.values, read.finite), (vec![1.0], true)),
                Err(e) => assert!(e.to_string().contains("panicked"), "{e}"),
            }
            reader.join().unwrap();
        }
    }
}
