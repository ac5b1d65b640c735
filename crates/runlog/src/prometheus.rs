//! The latest values of a run as a Prometheus text file.
//!
//! The file is made for the textfile collector of node-exporter, which reads every `*.prom` file of a directory at each
//! scrape (Prometheus text exposition format 0.0.4; timestamps are not allowed there). Every value has the label `run`.

use crate::{EndReason, Eval, Record, Step};
use bessemer_durable::ConfinedDir;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the values of a run into a text file every so many steps, and at every evaluation and at the end.
#[derive(Debug)]
pub struct Prometheus {
    path: PathBuf,
    /// The directory that holds it, where the file is in a run directory, and its name there.
    confined: Option<(ConfinedDir, PathBuf)>,
    run: String,
    every_steps: u64,
    step: Option<Step>,
    /// The latest evaluation of each split.
    evals: BTreeMap<String, Eval>,
    warnings: u64,
    saved_step: Option<u64>,
    end: Option<EndReason>,
}

impl Prometheus {
    /// Prepares to write `path` for the run of this name every `every_steps` steps (at least 1). Nothing is written yet.
    pub fn new(path: impl Into<PathBuf>, run: &str, every_steps: u64) -> Prometheus {
        Prometheus {
            path: path.into(),
            confined: None,
            run: run.to_owned(),
            every_steps: every_steps.max(1),
            step: None,
            evals: BTreeMap::new(),
            warnings: 0,
            saved_step: None,
            end: None,
        }
    }

    /// [`Prometheus::new`] for the file `below` of a run directory.
    pub fn new_in(dir: &ConfinedDir, below: impl Into<PathBuf>, run: &str, every_steps: u64) -> Prometheus {
        let below = below.into();
        let file = Prometheus::new(dir.path().join(&below), run, every_steps);
        Prometheus { confined: Some((dir.clone(), below)), ..file }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes note of a record made at `unix_s` (seconds since 1970-01-01 UTC), and writes the file if it is time.
    ///
    /// # Errors
    /// The system's, with the path in the message. The file is the old one or the new one, never a part.
    pub fn record(&mut self, unix_s: f64, record: &Record) -> io::Result<()> {
        let due = match record {
            Record::Step(step) => {
                let first = self.step.is_none();
                self.step = Some(step.clone());
                first || step.step.is_multiple_of(self.every_steps)
            }
            Record::Eval(eval) => {
                self.evals.insert(eval.split.clone(), eval.clone());
                true
            }
            Record::Warning(_) | Record::Fault(_) => {
                self.warnings += 1;
                false
            }
            Record::Save(save) => {
                self.saved_step = Some(save.step);
                false
            }
            Record::End(end) => {
                self.end = Some(end.reason);
                true
            }
            _ => false,
        };
        if !due {
            return Ok(());
        }
        let text = self.text(unix_s);
        match &self.confined {
            Some((dir, below)) => dir.write(below, text.as_bytes()),
            None => bessemer_durable::write(&self.path, text.as_bytes()),
        }
    }

    /// The file's content.
    fn text(&self, unix_s: f64) -> String {
        let mut out = Exposition { text: String::new(), run: escaped(&self.run) };
        out.gauge(
            "updated_timestamp_seconds",
            "Time of this file's values, seconds since 1970-01-01 UTC.",
            unix_s,
        );
        let running = if self.end.is_none() { 1.0 } else { 0.0 };
        out.gauge("running", "1 while a process works on the run, 0 after its end.", running);
        if let Some(reason) = self.end {
            let failed = if reason == EndReason::Failed { 1.0 } else { 0.0 };
            out.gauge("failed", "1 if the last process on the run ended with an error.", failed);
        }
        out.gauge("warnings", "Warnings and faults of this process.", self.warnings as f64);
        if let Some(s) = &self.step {
            out.gauge("step", "Training steps finished.", s.step as f64);
            out.gauge("tokens", "Tokens trained on since the beginning of the run.", s.tokens as f64);
            out.gauge("train_loss", "Mean loss of the last step, nats a token.", s.loss);
            out.gauge("learning_rate", "Learning rate of the last step.", s.lr);
            out.gauge("gradient_norm", "Norm of the last step's gradient before clipping.", s.grad_norm);
            out.gauge("tokens_per_second", "Tokens a second of the last step.", s.tokens_per_s);
            out.gauge("step_seconds", "Time of the last step.", s.seconds);
            let optional = [
                ("mfu_ratio", "Model FLOPs utilisation of the last step, 0 to 1.", s.mfu),
                ("memory_bytes", "Memory of the process.", s.memory_bytes.map(|b| b as f64)),
                ("loss_scale", "Factor on the loss in the last step.", s.loss_scale),
                ("data_wait_seconds", "Time that the last step waited for data.", s.data_seconds),
                (
                    "data_bytes",
                    "Bytes read from the training split during the last step.",
                    s.data_bytes.map(|b| b as f64),
                ),
                (
                    "data_hit_ratio",
                    "Share of the bytes of the last step's batches that was in the cache of blocks, 0 to 1.",
                    s.data_hit_share,
                ),
                ("remaining_seconds", "Expected time until the last step.", s.eta_s),
            ];
            for (name, help, value) in optional {
                if let Some(value) = value {
                    out.gauge(name, help, value);
                }
            }
        }
        if let Some(step) = self.saved_step {
            out.gauge("saved_step", "Step of the last checkpoint of this process.", step as f64);
        }
        let evals = |of: fn(&Eval) -> f64| self.evals.values().map(move |e| (e.split.as_str(), of(e)));
        out.by_split("eval_loss", "Mean loss of the last evaluation, nats a token.", evals(|e| e.loss));
        out.by_split(
            "eval_bits_per_byte",
            "Bits per byte of the last evaluation.",
            evals(|e| e.bits_per_byte),
        );
        out.by_split(
            "eval_step",
            "Training steps finished at the last evaluation.",
            evals(|e| e.step as f64),
        );
        out.text
    }
}

/// Text exposition under construction.
struct Exposition {
    text: String,
    /// Name of the run, escaped for a label.
    run: String,
}

impl Exposition {
    fn head(&mut self, name: &str, help: &str) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "# HELP bessemer_{name} {help}\n# TYPE bessemer_{name} gauge");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help);
        let _ = writeln!(self.text, "bessemer_{name}{{run=\"{}\"}} {}", self.run, shown(value));
    }

    fn by_split<'a>(&mut self, name: &str, help: &str, values: impl Iterator<Item = (&'a str, f64)>) {
        for (i, (split, value)) in values.enumerate() {
            if i == 0 {
                self.head(name, help);
            }
            let (run, split) = (&self.run, escaped(split));
            let _ =
                writeln!(self.text, "bessemer_{name}{{run=\"{run}\",split=\"{split}\"}} {}", shown(value));
        }
    }
}

/// Formats a sample value for the Prometheus text format, including `NaN` and `+Inf`.
fn shown(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".into(),
        v if v.is_infinite() => if v > 0.0 { "+Inf" } else { "-Inf" }.into(),
        v => v.to_string(),
    }
}

/// A label's value between its quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
