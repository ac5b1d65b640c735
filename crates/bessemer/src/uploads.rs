//! Uploads of checkpoints while training goes on, by a child process: `bessemer checkpoint upload RUN`.
//!
//! A process of its own, so that neither its threads nor its memory are the training's, and a save never waits for it. It is started
//! when a checkpoint was saved and none is at work, and finds out by itself what is to be done; whatever ends it, the next one goes
//! on. A failure is a warning in the run's records, and is tried again: at the next save, or after a pause that grows.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::failure::code;

/// Pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How often the end of the child is looked for when nothing else is left to do.
const TICK: Duration = Duration::from_millis(20);

/// The uploads of one run.
pub(crate) struct Uploads {
    run: PathBuf,
    child: Option<Child>,
    /// Something was saved that no child has seen.
    due: bool,
    /// The next child takes over the address from an earlier uploader.
    takes_over: bool,
    failures: u32,
    again_at: Option<Instant>,
    /// The last failure that was recorded, without numbers.
    reported: String,
    remarks: Vec<String>,
}

impl Uploads {
    /// For the run in a directory whose recipe names the address.
    pub(crate) fn new(run: &Path, takes_over: bool) -> Uploads {
        Uploads {
            run: run.into(),
            child: None,
            due: false,
            takes_over,
            failures: 0,
            again_at: None,
            reported: String::new(),
            remarks: Vec::new(),
        }
    }

    /// A checkpoint is there.
    pub(crate) fn saved(&mut self) {
        self.due = true;
        self.again_at = None;
        self.turn();
    }

    /// Looks after the child, and returns what is to be recorded since the last call.
    pub(crate) fn poll(&mut self) -> Vec<String> {
        if self.child.is_some() || self.due {
            self.turn();
        }
        std::mem::take(&mut self.remarks)
    }

    /// Whether a child is at work or to be started.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.turn();
        self.child.is_some() || self.due
    }

    /// Waits until what was saved is uploaded; what fails is tried once more and then reported. Calls `waits` again and again.
    pub(crate) fn finish(&mut self, waits: &mut dyn FnMut()) {
        let most = self.failures + 2;
        self.again_at = None;
        while self.is_busy() && self.failures < most {
            std::thread::sleep(TICK);
            waits();
            if self.failures + 1 == most {
                self.again_at = None;
            }
        }
    }

    fn turn(&mut self) {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) => {
                    let mut text = String::new();
                    if let Some(mut stderr) = child.stderr.take() {
                        // What was read until an error is the message all the same.
                        let _ = stderr.read_to_string(&mut text);
                    }
                    self.child = None;
                    self.ended(status.code(), &text);
                }
                Err(e) => {
                    self.child = None;
                    self.failed(&e.to_string());
                }
            }
        }
        if self.due && self.again_at.is_none_or(|at| Instant::now() >= at) {
            self.start();
        }
    }

    fn start(&mut self) {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(e) => return self.failed(&e.to_string()),
        };
        let mut command = Command::new(program);
        command.args(["--quiet", "checkpoint", "upload"]).arg(&self.run);
        if self.takes_over {
            command.arg("--take-over");
        }
        // In a group of its own: a Ctrl-C that asks the training to stop is not for it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        match command.spawn() {
            Ok(child) => {
                self.child = Some(child);
                self.due = false;
            }
            Err(e) => self.failed(&e.to_string()),
        }
    }

    fn ended(&mut self, status: Option<i32>, text: &str) {
        if status == Some(0) {
            if self.failures > 0 {
                self.remarks.push("checkpoints are uploaded again".into());
            }
            (self.failures, self.takes_over) = (0, false);
            self.reported.clear();
        } else if status == Some(i32::from(code::CONTINUE)) {
            // An upload that an earlier session of this run began is still at work.
            self.due = true;
            self.again_at = Some(Instant::now() + FIRST_PAUSE);
        } else {
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it was killed");
            self.failed(last.trim().trim_start_matches("error: "));
        }
    }

    fn failed(&mut self, why: &str) {
        self.due = true;
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.again_at = Some(Instant::now() + pause);
        self.failures += 1;
        // An answer of a store may say how long it took.
        let words = why.split_whitespace().filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
        let kind = words.collect::<Vec<_>>().join(" ");
        if self.reported != kind {
            self.reported = kind;
            self.remarks.push(format!(
                "a checkpoint could not be uploaded: {why}; training continues, and the upload is tried again"
            ));
        }
    }
}
