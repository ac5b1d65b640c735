//! Outcome of each launch: lines of `launches.jsonl`, and the report of a supervisor that gives up.

use crate::failure::Failure;
use bessemer_durable::ConfinedDir;
use bessemer_runlog::rfc3339;
use bessemer_supervise::Exit;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

/// A launch that has ended.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Number of the launch.
    pub(super) epoch: u64,
    /// Seconds since 1970.
    pub(super) started: f64,
    /// How long it took.
    pub(super) seconds: f64,
    /// How the launcher ended.
    pub(super) exit: Exit,
    /// Newest step done.
    pub(super) step: Option<u64>,
    /// Newest step saved.
    pub(super) saved: Option<u64>,
    /// Alarms of the watchdog, or the error that the run recorded.
    pub(super) why: Vec<String>,
    /// Wrong numbers that the run has found.
    pub(super) faults: Vec<String>,
    /// Ranks that kept others waiting.
    pub(super) slow: Vec<String>,
    /// Hosts and ranks.
    pub(super) hosts: Option<(Vec<String>, usize)>,
}

impl Launch {
    /// The launch in a sentence.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "launch {} {}",
            self.epoch,
            match self.exit {
                Exit::Code(0) => "is done".to_owned(),
                exit if exit.to_string().starts_with("ended") => format!("was {exit}"),
                exit => format!("left with {exit}"),
            }
        );
        let step = |step: Option<u64>, none: &str| {
            step.map_or_else(|| none.to_owned(), |step| format!("step {step}"))
        };
        let _ = write!(
            text,
            " after {:.1} s at {}; saved: {}",
            self.seconds,
            step(self.step, "no step"),
            step(self.saved, "nothing")
        );
        for why in self.faults.iter().chain(&self.why) {
            let _ = write!(text, "\n    {why}");
        }
        text
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "epoch": self.epoch, "started_at": rfc3339(self.started), "seconds": self.seconds, "end": self.exit.to_string(),
            "step": self.step, "saved": self.saved, "why": self.why, "faults": self.faults,
            "slow": self.slow,
        });
        match self.exit {
            Exit::Code(code) => value["code"] = code.into(),
            Exit::Signal(signal) => value["signal"] = signal.into(),
        }
        if let Some((hosts, ranks)) = &self.hosts {
            value["hosts"] = hosts.clone().into();
            value["ranks"] = (*ranks).into();
        }
        value
    }
}

/// The launches of a supervisor.
#[derive(Debug)]
pub(super) struct Launches {
    file: File,
    list: Vec<Launch>,
}

impl Launches {
    /// Opens the file in the supervisor's folder of a run for appending.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(folder: &ConfinedDir) -> Result<Launches, Failure> {
        Ok(Launches { file: folder.append("launches.jsonl")?, list: Vec::new() })
    }

    /// Notes the end of a launch.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn add(&mut self, launch: Launch) -> Result<(), Failure> {
        let line = format!("{}\n", launch.json());
        self.list.push(launch);
        Ok(self.file.write_all(line.as_bytes())?)
    }

    /// The last launches, one a line.
    pub(super) fn report(&self, most: usize) -> String {
        let old = self.list.len().saturating_sub(most);
        self.list[old..].iter().map(|launch| format!("\n  {}", launch.text())).collect()
    }

    /// All launches, as JSON.
    ///
    /// # Errors
    /// A value that JSON cannot hold; there is none.
    pub(super) fn json(&self) -> Result<String, Failure> {
        let all: Vec<Value> = self.list.iter().map(Launch::json).collect();
        Ok(serde_json::to_string(&json!({ "launches": all }))?)
    }
}
