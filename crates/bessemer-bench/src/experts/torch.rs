//! PyTorch's layers in a process of their own, which runs one at a time on request.

use super::Shape;
use bessemer::Failure;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("torch_experts.py");
/// Keeps glibc from giving every large tensor back to the system.
const MALLOC: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "8589934592"), ("MALLOC_TRIM_THRESHOLD_", "17179869184")];

pub(super) struct Torch {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Torch {
    pub(super) fn start(python: &Path, threads: usize) -> Result<Torch, Failure> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT, &threads.to_string()]).envs(MALLOC);
        let failed = |e| Failure::usage(format!("--python {}: {e}", python.display()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (requests, answers) = pipes.expect("both are pipes");
        Ok(Torch { process, requests, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, request: &Value) -> Result<Value, Failure> {
        writeln!(self.requests, "{request}")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(Failure::usage(
                "--python: the process of PyTorch ended; wanted one with torch and transformers",
            ));
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Makes the layers of a shape, and runs each of them once.
    pub(super) fn make(&mut self, shape: &Shape, dtype: &str) -> Result<(), Failure> {
        self.ask(&json!({
            "experts": shape.experts,
            "choices": shape.choices,
            "tokens": shape.tokens(),
            "width": shape.width,
            "hidden": shape.hidden,
            "dtype": dtype,
        }))?;
        Ok(())
    }

    /// Seconds of a pass forward and backward; `None` if PyTorch does not have this form.
    pub(super) fn seconds(&mut self, form: &str) -> Result<Option<f64>, Failure> {
        Ok(self.ask(&json!({ "form": form }))?.as_f64())
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // A process that has ended already is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
