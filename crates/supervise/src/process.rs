//! Starting a launcher, and ending every process that descends from it.
//!
//! The launcher gets a process group of its own, so that a terminal's Ctrl-C reaches the supervisor alone. The supervisor makes itself
//! the reaper of its descendants: a process that loses its parent becomes the supervisor's child, so that none escapes by a double fork or a
//! session of its own. The launcher in turn gets SIGTERM when the supervisor dies; see [`bind_to_parent`].

use rustix::process::{
    Pid, Signal, WaitOptions, getppid, kill_process, set_child_subreaper, set_parent_process_death_signal,
    waitpid,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at processes that were killed.
const POLL: Duration = Duration::from_millis(2);

/// Makes the calling process the reaper of all its descendants.
///
/// # Errors
/// The system's.
pub fn become_reaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Has the calling process get SIGTERM when the thread that started it dies, also after it runs another program. `parent`:
/// number of the process that started it.
///
/// # Errors
/// The system's; the parent is gone already.
pub fn bind_to_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    match getppid().map(|pid| pid.as_raw_nonzero().get() as u32) {
        Some(now) if now == parent => Ok(()),
        _ => Err(io::Error::other("the supervisor has ended")),
    }
}

/// Starts a command in a process group of its own, without standard input.
///
/// # Errors
/// The system's.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::null()).process_group(0).spawn()
}

/// Sends a signal to a process; one that is gone needs none.
///
/// # Errors
/// The system's.
pub fn signal(process: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = pid(process) else { return Ok(()) };
    match kill_process(pid, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

/// Signals that a supervisor sends.
pub use rustix::process::Signal as ProcessSignal;

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process).ok()?)
}

/// A process as /proc shows it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    parent: u32,
    ended: bool,
}

/// All processes of this host with their parents.
fn processes() -> BTreeMap<u32, Entry> {
    let mut all = BTreeMap::new();
    for entry in bessemer_durable::list(Path::new("/proc")).unwrap_or_default() {
        let name = entry.file_name().and_then(|name| name.to_str());
        let Some(number) = name.and_then(|name| name.parse().ok()) else { continue };
        // Empty if the process ends while it is looked at.
        let stat = bessemer_durable::read_system(entry.join("stat"));
        // The name, in brackets, may hold anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ended = matches!(fields.next(), Some("Z" | "X" | "x"));
        if let Some(parent) = fields.next().and_then(|parent| parent.parse().ok()) {
            all.insert(number, Entry { parent, ended });
        }
    }
    all
}

/// Descendants of a process, those that have ended too.
fn descendants(all: &BTreeMap<u32, Entry>, of: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    all.iter().for_each(|(number, entry)| children.entry(entry.parent).or_default().push(*number));
    let (mut found, mut open) = (BTreeSet::new(), vec![of]);
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// Sends SIGKILL to every descendant of the calling process and reaps those that are its children, until none lives. `child`: a
/// child that is not reaped, because somebody else waits for it.
///
/// # Errors
/// Processes that do not end within `limit`, with their numbers: they wait in the kernel for a disk or a network.
pub fn kill_descendants(child: Option<u32>, limit: Duration) -> Result<(), Vec<u32>> {
    let own = std::process::id();
    let until = Instant::now() + limit;
    loop {
        let all = processes();
        let mut living = Vec::new();
        for process in descendants(&all, own) {
            let entry = all[&process];
            if !entry.ended {
                living.push(process);
                // A process that is gone by now needs no signal.
                let _ = signal(process, Signal::KILL);
            }
            if entry.parent == own && Some(process) != child {
                let _ = waitpid(pid(process), WaitOptions::NOHANG);
            }
        }
        if living.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(living);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_whatever_their_order() {
        let entry = |parent| Entry { parent, ended: false };
        let all = BTreeMap::from([
            (1, entry(0)),
            (9, entry(1)),
            (5, entry(9)),
            (7, entry(5)),
            (6, entry(2)),
            (2, entry(1)),
        ]);
        assert_eq!(descendants(&all, 9), BTreeSet::from([5, 7]));
        assert_eq!(descendants(&all, 1).len(), 5);
        assert!(processes().contains_key(&std::process::id()));
    }
}
