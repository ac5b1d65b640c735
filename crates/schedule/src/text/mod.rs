//! Schedules as text that people read and write. README.md of this crate specifies the format.

mod read;
mod token;
mod write;

pub use read::parse;

/// First word of a schedule file; the version of the format follows.
const MAGIC: &str = "bessemer-schedule";

/// The version that is written, and the only one that is read.
const VERSION: &str = "1";
