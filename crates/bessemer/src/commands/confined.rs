//! The hidden verb that `metric pass-at-k` starts: runs an untrusted command in confinement.

use crate::failure::code;
use bessemer_sandbox::{Confined, NOT_CONFINED, keep};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let Some(confined) = Confined::from_arguments(arguments) else {
        let _ = writeln!(io::stderr(), "this command is internal to the program");
        return ExitCode::from(code::USAGE);
    };
    match keep(&confined) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Read by the one that waits, as the reason.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(NOT_CONFINED)
        }
    }
}
