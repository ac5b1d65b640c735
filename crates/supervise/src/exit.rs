//! How a launch ended, and what that says about the next one.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Exit codes that mean something to a supervisor.
pub mod code {
    /// The run is done.
    pub const DONE: i32 = 0;
    /// The command line is wrong.
    pub const USAGE: i32 = 2;
    /// A defect of the program.
    pub const BUG: i32 = 70;
    /// Stopped as asked, the same command goes on. (`EX_TEMPFAIL` of sysexits.h)
    pub const AGAIN: i32 = 75;
    /// The same command goes on, but not on this host: its hardware is suspected.
    pub const OTHER_HOST: i32 = 76;
    /// The same command continues with its ranks on other hosts, to find out which host is wrong.
    pub const RERUN: i32 = 77;
    /// The recipe is wrong or does not fit into memory. (`EX_CONFIG` of sysexits.h)
    pub const CONFIG: i32 = 78;
    /// Shells: the program is there and cannot be executed.
    pub const NOT_EXECUTABLE: i32 = 126;
    /// Shells: there is no such program.
    pub const NOT_FOUND: i32 = 127;
    /// Shells and launchers add the number of the signal that ended a process.
    pub const SIGNALLED: i32 = 128;
}

/// End of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// An exit code.
    Code(i32),
    /// The number of the signal that ended it.
    Signal(i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(0)),
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.class(), self) {
            (ExitClass::Killed(signal), _) => write!(f, "ended by {}", signal_name(signal)),
            (_, Exit::Code(code)) => write!(f, "exit code {code}{}", meaning(*code)),
            (_, Exit::Signal(signal)) => write!(f, "ended by {}", signal_name(*signal)),
        }
    }
}

fn meaning(number: i32) -> &'static str {
    match number {
        code::DONE => " (done)",
        1 => " (failed)",
        code::USAGE => " (the command line is wrong)",
        code::BUG => " (internal error)",
        code::AGAIN => " (stopped; the same command continues)",
        code::OTHER_HOST => " (the host may be faulty)",
        code::RERUN => " (results must be confirmed on other hosts)",
        code::CONFIG => " (the recipe is wrong or does not fit into memory)",
        code::NOT_EXECUTABLE => " (cannot be executed)",
        code::NOT_FOUND => " (no such program)",
        _ => "",
    }
}

/// Name of a signal, as `kill -l` prints it.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        _ => return format!("signal {signal}"),
    };
    name.into()
}

/// What the end of a launch says about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitClass {
    /// End of a run that is done.
    Done,
    /// Another try would end the same way: command line, recipe, no such program.
    Hopeless,
    /// End of a run that the same command continues.
    Again,
    /// End of a run that the same command continues on another host.
    OtherHost,
    /// End of a run that the same command continues with its ranks on other hosts.
    Rerun,
    /// A defect of the program; it may depend on the moment.
    Bug,
    /// A signal ended it: out of memory, a crash, an operator.
    Killed(i32),
    /// Failed for a reason outside of command line and recipe: a disk, a file, another process.
    Failed,
}

impl Exit {
    /// Class of this end. Launchers report a signal of a rank as 128 plus its number.
    pub fn class(self) -> ExitClass {
        match self {
            Exit::Signal(signal) => ExitClass::Killed(signal),
            Exit::Code(code::DONE) => ExitClass::Done,
            Exit::Code(code::USAGE | code::CONFIG | code::NOT_EXECUTABLE | code::NOT_FOUND) => {
                ExitClass::Hopeless
            }
            Exit::Code(code::AGAIN) => ExitClass::Again,
            Exit::Code(code::OTHER_HOST) => ExitClass::OtherHost,
            Exit::Code(code::RERUN) => ExitClass::Rerun,
            Exit::Code(code::BUG) => ExitClass::Bug,
            Exit::Code(n) if (code::SIGNALLED + 1..code::SIGNALLED + 65).contains(&n) => {
                ExitClass::Killed(n - code::SIGNALLED)
            }
            Exit::Code(_) => ExitClass::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_signal_has_its_class() {
        let hopeless = [2, 78, 126, 127];
        for number in 0..256 {
            let wanted = match number {
                0 => ExitClass::Done,
                n if hopeless.contains(&n) => ExitClass::Hopeless,
                70 => ExitClass::Bug,
                75 => ExitClass::Again,
                76 => ExitClass::OtherHost,
                77 => ExitClass::Rerun,
                n if (129..=192).contains(&n) => ExitClass::Killed(n - 128),
                _ => ExitClass::Failed,
            };
            assert_eq!(Exit::Code(number).class(), wanted, "{number}");
        }
        assert_eq!(Exit::Signal(9).class(), ExitClass::Killed(9));
        assert_eq!(Exit::Code(137).to_string(), Exit::Signal(9).to_string());
        assert_eq!(
            Exit::Code(78).to_string(),
            "exit code 78 (the recipe is wrong or does not fit into memory)"
        );
    }
}
