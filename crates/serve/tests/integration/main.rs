//! The scheduler against texts that are generated alone; the server over its socket.
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test with a backtrace

mod client;
mod fake;
mod scheduler;
mod server;
mod soak;
mod tiny;
