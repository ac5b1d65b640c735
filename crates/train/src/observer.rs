//! Events of a run, for its observer.

use bessemer_runlog::Record;

/// Work of a rank at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A step.
    Training,
    /// A validation, or the generation of samples.
    Evaluating,
    /// A save.
    Saving,
}

/// Watches a run. Only the `bessemer` program prints.
pub trait Observer {
    /// A record was made (it is in metrics.jsonl already).
    fn record(&mut self, record: &Record);

    /// Something worth a line for people.
    fn message(&mut self, text: &str);

    /// `done` of `total` within a longer piece of work; `total` 0 if unknown.
    fn progress(&mut self, what: &str, done: u64, total: u64);

    /// Remarks that the observer adds to the run's records, requested after every step: outcomes of work concurrent with the training.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Called on every rank when it begins some work, after so many steps. It is called in every step and must cost nothing.
    fn begins(&mut self, _activity: Activity, _step: u64) {}

    /// Resident memory of the process, if the observer can measure it.
    fn resident_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// Watches nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Observer for Silent {
    fn record(&mut self, _record: &Record) {}
    fn message(&mut self, _text: &str) {}
    fn progress(&mut self, _what: &str, _done: u64, _total: u64) {}
}
