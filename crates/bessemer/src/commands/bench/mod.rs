//! `bessemer bench`: speed, measured between two probes of the arithmetic peak.

mod cases;
pub(in crate::commands) mod job;
mod ladder;
pub(in crate::commands) mod layouts;
mod op;
mod operands;
mod ranks;
mod save;
pub(in crate::commands) mod scaling;
pub(in crate::commands) mod step;
mod text;
mod timed;
mod timing;
mod trace;
mod updates;

use crate::cli::BenchCommand;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_kernels_cpu::{Engine, Rung, peak};
use serde_json::json;
use std::time::Instant;

pub(crate) fn run(command: &BenchCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        BenchCommand::Step(args) => step::run(args, as_json, console),
        BenchCommand::Ranks(args) => ranks::run(args, as_json, console),
        BenchCommand::Layouts(args) => layouts::run(args, as_json, console),
        BenchCommand::Scaling(args) => scaling::run(args, as_json, console),
        BenchCommand::Save(args) => save::run(args, as_json, console),
        BenchCommand::Op(args) => op::run(args, as_json, console),
        BenchCommand::Ladder(args) => ladder::run(args, as_json, console),
        BenchCommand::Peak { threads, seconds } => show_peak(*threads, *seconds, as_json),
    }
}

/// The median trial tells whether other programs took the cores; the best one is the peak.
fn show_peak(threads: usize, seconds: f64, as_json: bool) -> Result<(), Failure> {
    if !(seconds > 0.0 && seconds <= 60.0) {
        return Err(Failure::usage(format!("--seconds {seconds}: wanted more than 0 and at most 60")));
    }
    let threads = machine::threads(threads as u64);
    let probe = peak::Probe::new(Rung::detect(), threads)?;
    let (begun, mut trials) = (Instant::now(), Vec::new());
    while trials.is_empty() || begun.elapsed().as_secs_f64() < seconds {
        trials.push(probe.trial() / 1e9);
    }
    let (median, best) = (median(&mut trials), trials.last().copied().unwrap_or(f64::NAN));
    Ok(print(&match as_json {
        true => json!({ "threads": threads, "gflops": median, "gflops_best": best }).to_string(),
        false => format!("{median:.1} GFLOP/s (median), {best:.1} at best, {threads} threads"),
    })?)
}

/// The engine of this name.
fn engine(name: &str) -> Result<Engine, Failure> {
    let known: Vec<&str> = Engine::ALL.iter().map(|e| e.name()).collect();
    (Engine::ALL.into_iter().find(|e| e.name() == name))
        .ok_or_else(|| Failure::usage(format!("--engine {name}: wanted one of {}", known.join(", "))))
}

/// The middle value (the upper one of two), NaN of none. Leaves `values` sorted.
pub(in crate::commands) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
