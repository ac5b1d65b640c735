//! Ctrl-C and termination: the first asks the run to save and leave, a second one ends the process at once. SIGUSR1 asks as
//! well, however often it comes: launchers pass it on to all processes of a job and leave them the time that they need.

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that turns true at the first SIGINT, SIGTERM or SIGUSR1.
///
/// # Errors
/// If the system refuses to install a handler.
pub(crate) fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the shutdown is armed by the flag that the handler after it sets.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    signal_hook::flag::register(SIGUSR1, Arc::clone(&flag))?;
    Ok(flag)
}
