//! Events of a run, for whoever watches it.

use bessemer_runlog::Record;

/// Watches a run. Only the `bessemer` program prints.
pub trait Observer {
    /// A record was made (it is in metrics.jsonl already).
    fn record(&mut self, record: &Record);

    /// Something worth a line for people.
    fn message(&mut self, text: &str);

    /// `done` of `total` within a longer piece of work; `total` 0 if unknown.
    fn progress(&mut self, what: &str, done: u64, total: u64);

    /// Resident memory of the process, if the watcher can tell.
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
