//! Failures of a process, as the processes of a job compare them.

use bessemer_supervise::code;

/// Code of a failure outside of the command line and the recipe.
pub(crate) const FAILED: u8 = 1;

/// The failure of a process: its exit code, and a message for people.
#[derive(Debug)]
pub struct ProcessFailure {
    /// Exit code.
    pub code: u8,
    /// Message; empty where another process reports it.
    pub message: String,
}

impl ProcessFailure {
    /// Whether the command line or the recipe is wrong: other processes find the same.
    pub(crate) fn is_mistake(&self) -> bool {
        [code::CONFIG, code::USAGE].contains(&i32::from(self.code))
    }
}
