//! The side that waits.

use crate::keep::NOT_CONFINED;
use crate::{Confined, SandboxError};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ended with this code (128 and more: by a signal), and this is the end of what it printed.
    Ended {
        /// Exit code.
        code: i32,
        /// The last bytes of standard output and standard error.
        output: String,
    },
    /// The time was over.
    TimedOut,
}

/// How long a keeper may take to end its command.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of output that are kept.
const KEPT: usize = 4096;

/// Runs a command in confinement. `keeper` starts this program again such that it calls [`crate::keep`] with the same `confined`, and ends with its code, or with 125 and the error on
/// standard error.
///
/// # Errors
/// A keeper that cannot be started or cannot confine itself.
pub fn run(mut keeper: Command, confined: &Confined) -> Result<Outcome, SandboxError> {
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = keeper
        .spawn()
        .map_err(|cause| SandboxError::Start { what: format!("{:?}", keeper.get_program()), cause })?;
    let (sender, ends) = channel();
    let most = confined.limits.file_bytes;
    let collected = collect(0, child.stdout.take(), most, sender.clone())
        .and_then(|()| collect(1, child.stderr.take(), most, sender));
    if let Err(cause) = collected {
        stop(&mut child);
        let what = "a thread that reads the command's output (see ulimit -u)".into();
        return Err(SandboxError::Start { what, cause });
    }
    // Both ends of output come when the last process of the namespace is gone, or when there was too much of it.
    let mut parts = [String::new(), String::new()];
    for _ in 0..2 {
        let left = Duration::from_secs_f64(confined.limits.seconds).saturating_sub(start.elapsed());
        match ends.recv_timeout(left) {
            Ok((pipe, Some(part))) => parts[pipe] = part,
            Ok((_, None)) => {
                stop(&mut child);
                return Ok(Outcome::Ended { code: 128 + 25, output: "more output than allowed".into() });
            }
            Err(RecvTimeoutError::Timeout) => {
                stop(&mut child);
                return Ok(Outcome::TimedOut);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let output = parts.concat();
    // Its output may be closed long before its end.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed().as_secs_f64() < confined.limits.seconds => {
                std::thread::sleep(Duration::from_millis(2))
            }
            Ok(None) => {
                stop(&mut child);
                return Ok(Outcome::TimedOut);
            }
            Err(cause) => return Err(SandboxError::Start { what: "the keeper".into(), cause }),
        }
    };
    match status.code() {
        Some(code) if code == i32::from(NOT_CONFINED) => Err(SandboxError::Start {
            what: "the keeper".into(),
            cause: std::io::Error::other(output.trim().to_string()),
        }),
        code => Ok(Outcome::Ended { code: code.unwrap_or(128 + 9), output }),
    }
}

/// Ends the command: a keeper whose standard input ends kills it.
fn stop(child: &mut Child) {
    drop(child.stdin.take());
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a pipe to its end on a thread and sends the last bytes; `None` once there were more than `most`.
fn collect(
    number: usize,
    pipe: Option<impl Read + Send + 'static>,
    most: u64,
    sender: Sender<(usize, Option<String>)>,
) -> std::io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let work = move || {
        let (mut tail, mut read, mut buffer) = (Vec::new(), 0u64, [0; 8192]);
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    read += n as u64;
                    if read > most {
                        let _ = sender.send((number, None));
                        return;
                    }
                    tail.extend_from_slice(&buffer[..n]);
                    if tail.len() > 2 * KEPT {
                        tail.drain(..tail.len() - KEPT);
                    }
                }
            }
        }
        let kept = &tail[tail.len().saturating_sub(KEPT)..];
        let _ = sender.send((number, Some(String::from_utf8_lossy(kept).into_owned())));
    };
    std::thread::Builder::new().spawn(work).map(drop)
}
