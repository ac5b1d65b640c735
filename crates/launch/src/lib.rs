//! Processes of a job: they meet before training, report a failure once, and write heartbeats for a supervisor.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod failure;
mod heartbeats;
mod meeting;
mod reported;
mod waiting;

pub use failure::ProcessFailure;
pub use heartbeats::{HeartbeatHost, Heartbeats, LAUNCH_VARIABLE, RankObserver, claim};
pub use meeting::{Decision, Meeting};
pub use reported::report_once;
pub use waiting::{RankEnds, report_table_once};
