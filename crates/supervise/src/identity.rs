//! ProcessIdentity of a rank, and the state of its process if that runs on this host.

use std::path::Path;

/// ProcessIdentity of a rank's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Version of the program.
    pub version: String,
    /// Name of the host.
    pub host: String,
    /// Number of the process.
    pub pid: u32,
    /// Start time in the kernel's ticks: process numbers are used again.
    started: u64,
    /// Kernel and process namespace: processes of the same one can look at each other.
    space: String,
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// The process is on another host, in another namespace, or not on Linux.
    Unknown,
    /// The process runs.
    Runs,
    /// The process is stopped: by SIGSTOP, a terminal's Ctrl-Z, a debugger.
    Stopped,
    /// The process has ended.
    Gone,
}

impl std::fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {}, pid {}", self.host, self.pid)
    }
}

/// State letter and start time in /proc/PID/stat; the name before them, in brackets, may hold anything.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = bessemer_durable::read_system(format!("/proc/{pid}/stat"));
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

impl ProcessIdentity {
    /// ProcessIdentity of this process.
    pub fn own(host: String) -> ProcessIdentity {
        let boot = bessemer_durable::read_system("/proc/sys/kernel/random/boot_id");
        let space =
            Path::new("/proc/self/ns/pid").read_link().map(|p| p.display().to_string()).unwrap_or_default();
        let pid = std::process::id();
        ProcessIdentity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host,
            pid,
            started: stat(pid).map_or(0, |(_, started)| started),
            space: format!("{} {space}", boot.trim()),
        }
    }

    /// Five lines: version, host, pid, start, kernel and namespace.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ProcessIdentity { version, host, pid, started, space } = self;
        format!("{version}\n{host}\n{pid}\n{started}\n{space}").into_bytes()
    }

    /// Reads the lines of [`ProcessIdentity::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<ProcessIdentity> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n').map(str::to_owned);
        let (version, host) = (lines.next()?, lines.next()?);
        let (pid, started) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?);
        Some(ProcessIdentity { version, host, pid, started, space: lines.next()? })
    }

    /// State of that process, as seen by this one.
    pub fn state(&self, own: &ProcessIdentity) -> ProcessState {
        if self.started == 0 || own.started == 0 || self.space != own.space {
            return ProcessState::Unknown;
        }
        match stat(self.pid) {
            Some((_, started)) if started != self.started => ProcessState::Gone,
            None | Some(('Z' | 'X' | 'x', _)) => ProcessState::Gone,
            Some(('T' | 't', _)) => ProcessState::Stopped,
            Some(_) => ProcessState::Runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_come_back_and_processes_are_seen() {
        let own = ProcessIdentity::own("here".into());
        assert_eq!(ProcessIdentity::from_bytes(&own.to_bytes()), Some(own.clone()));
        assert_eq!(ProcessIdentity::from_bytes(b"1\n2\n3"), None);
        if stat(own.pid).is_none() {
            return; // no /proc: everything is Unknown
        }
        assert_eq!(own.state(&own), ProcessState::Runs);
        let mut other = own.clone();
        other.started += 1;
        assert_eq!(other.state(&own), ProcessState::Gone, "the number belongs to another process now");
        other.space = "elsewhere".into();
        assert_eq!(other.state(&own), ProcessState::Unknown);
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("sleep is there");
        let theirs =
            ProcessIdentity { pid: child.id(), started: stat(child.id()).expect("it runs").1, ..own.clone() };
        assert_eq!(theirs.state(&own), ProcessState::Runs);
        child.kill().expect("a child can be killed");
        for _ in 0..200 {
            if theirs.state(&own) == ProcessState::Gone {
                break; // a zombie, as nobody has waited for it
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(theirs.state(&own), ProcessState::Gone);
        child.wait().expect("it was killed");
    }
}
