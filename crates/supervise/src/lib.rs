//! Supervision of a run from outside of its processes.
//!
//! A supervisor starts a launcher (`mpirun`, `srun`, the program itself), watches the processes of the run by their heartbeats,
//! and starts the launcher again after a crash, a hang or a lost host. The decisions are values without files, clocks and
//! processes: time is an argument.
//!
//! - [`Exit`] and [`ExitClass`]: how a launch ended and what follows from it.
//! - [`Supervision`]: the state machine of restarts, with its backoff and its guard against crash loops.
//! - [`Watchdog`]: which heartbeats mean a hang, and which rank causes it; [`SlowRanks`]: which rank keeps the others waiting.
//! - [`Hosts`]: hosts and spares, and the ranks that remain.
//!
//! Around them stands what touches the system: [`Heartbeat`] files, [`launch_epoch`] and its fencing, [`process`] (starting, the
//! tree of descendants, its end), [`ServiceManager`] (systemd) and [`HealthServer`] (HTTP). `README.md` beside this crate
//! specifies the files.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod exit;
mod health;
mod heartbeat;
mod hosts;
mod identity;
pub mod launch_epoch;
mod notify;
pub mod process;
mod slow_ranks;
mod supervision;
mod watchdog;

pub use exit::{Exit, ExitClass, code};
pub use health::{HealthServer, HealthStatus};
pub use heartbeat::{
    HEARTBEAT_VERSION, Heartbeat, RankBeat, RankPhase, WaitingCall, read_heartbeats, write_heartbeat,
};
pub use hosts::{HostChange, Hosts, HostsError, fill_templates, parse_hosts};
pub use identity::{ProcessIdentity, ProcessState};
pub use notify::ServiceManager;
pub use slow_ranks::{SlowRank, SlowRanks};
pub use supervision::{Finish, Input, KillReason, Order, Policy, State, Supervision};
pub use watchdog::{Alarm, Watchdog, WatchdogSettings};
