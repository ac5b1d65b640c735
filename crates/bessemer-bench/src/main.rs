//! `bessemer-bench`: speed of this machine, measured between two probes of the arithmetic peak.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cases;
mod cli;
mod experts;
mod job;
mod ladder;
mod layouts;
mod op;
mod operands;
mod ranks;
mod save;
mod scaling;
mod step;
mod timing;
mod trace;
mod updates;

use bessemer::{Console, Failure, print};
use bessemer_kernels_cpu::{Rung, peak};
use bessemer_measure::machine;
use bessemer_units::stats::upper_median;
use cli::{BenchCommand, Cli};
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    match bessemer::parse::<Cli>() {
        Ok(cli) => {
            bessemer::work(cli.output.verbosity(), |console| run(&cli.command, cli.output.json, console))
        }
        Err(code) => code,
    }
}

fn run(command: &BenchCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        BenchCommand::Step(args) => step::run(args, as_json, console),
        BenchCommand::Ranks(args) => ranks::run(args, as_json, console),
        BenchCommand::Layouts(args) => layouts::run(args, as_json, console),
        BenchCommand::Scaling(args) => scaling::run(args, as_json, console),
        BenchCommand::Save(args) => save::run(args, as_json, console),
        BenchCommand::Op(args) => op::run(args, as_json, console),
        BenchCommand::Ladder(args) => ladder::run(args, as_json, console),
        BenchCommand::Experts(args) => experts::run(args, as_json, console),
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
    let (median, best) = (upper_median(&mut trials), trials.last().copied().unwrap_or(f64::NAN));
    Ok(print(&match as_json {
        true => json!({ "threads": threads, "gflops": median, "gflops_best": best }).to_string(),
        false => format!("{median:.1} GFLOP/s (median), {best:.1} at best, {threads} threads"),
    })?)
}
