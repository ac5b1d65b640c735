//! `bessemer network`: networks of devices described, counted and simulated. (The feature `cluster` of this program is something
//! else: the executor of corpora on a Ballista cluster.)

mod failures;
mod picture;
mod place;
mod study;
mod switch;
mod table;

use crate::cli::{NetworkCommand, NetworkCompareArgs, NetworkShowArgs};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_cluster::{ClusterError, Description, EXAMPLES};
use bessemer_report::plot::standalone;
use bessemer_units::did_you_mean;
use serde_json::Value;
use std::path::Path;
use study::Study;

impl From<ClusterError> for Failure {
    fn from(e: ClusterError) -> Failure {
        match e {
            ClusterError::CutOff { .. } => Failure::new(e),
            _ => Failure::usage(e),
        }
    }
}

pub(crate) fn run(command: &NetworkCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        NetworkCommand::Show(args) => show(args, as_json, console),
        NetworkCommand::Compare(args) => compare(args, as_json),
        NetworkCommand::Place(args) => place::run(args, as_json),
        NetworkCommand::Failures(args) => failures::run(args, as_json),
        NetworkCommand::Switch(args) => switch::run(args, as_json, console),
    }
}

fn show(args: &NetworkShowArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let study = Study::new(describe(&args.network)?, &args.job)?;
    if let Some(path) = &args.svg {
        let text = standalone(&picture::chart(&study).svg());
        bessemer_durable::write(path, text.as_bytes())
            .map_err(|e| Failure::new(format!("--svg {}: {e}", path.display())))?;
        console.say(&format!("wrote {}", path.display()));
    }
    match as_json {
        true => print(&serde_json::to_string(&study.json())?)?,
        false => print(table::one(&study).trim_end())?,
    }
    Ok(())
}

fn compare(args: &NetworkCompareArgs, as_json: bool) -> Result<(), Failure> {
    let mut studies = Vec::new();
    for name in &args.networks {
        studies.push(Study::new(describe(name)?, &args.job)?);
    }
    match as_json {
        true => {
            let all: Vec<Value> = studies.iter().map(Study::json).collect();
            print(&serde_json::to_string(&all)?)?;
        }
        false => print(table::several(&studies, crate::console::width()).trim_end())?,
    }
    Ok(())
}

/// Reads a description from a file or finds the example of that name.
fn describe(name: &str) -> Result<Description, Failure> {
    if let Some((name, text)) = EXAMPLES.iter().find(|e| e.0 == name) {
        return Ok(Description::parse(name, text)?);
    }
    let text = read(name).map_err(|problem| {
        let known: Vec<&str> = EXAMPLES.iter().map(|e| e.0).collect();
        Failure::usage(format!(
            "network {name}{}: wanted a TOML file or one of {}, found no such example, and as a file: {problem}",
            did_you_mean(name, known.iter().copied()),
            known.join(", ")
        ))
    })?;
    Ok(Description::parse(name, &text)?)
}

/// Text of a description.
fn read(path: &str) -> std::io::Result<String> {
    const MOST_BYTES: u64 = 1 << 20;
    bessemer_durable::read_small_input(Path::new(path), MOST_BYTES)
}
