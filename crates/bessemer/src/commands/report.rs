//! `bessemer report`: the page of a run.

use crate::commands::saved_model::exists;
use crate::console::Console;
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_report::ReportInput;
use std::fs;
use std::path::Path;

pub(crate) fn run(path: &Path, console: &mut Console) -> Result<(), Failure> {
    let dir = RunDir::new(path);
    exists(dir.root())?;
    if !dir.root().join(bessemer_runlog::FILE).exists() {
        return Err(Failure::new(format!(
            "{} holds no {}; a report needs a run that has begun: bessemer run RECIPE",
            path.display(),
            bessemer_runlog::FILE
        )));
    }
    let log = write(&dir)?;
    console.say(&format!("wrote {}", dir.report().display()));
    crate::console::print(&bessemer_report::terminal::summary(&log))?;
    Ok(())
}

/// Writes report.html from what the run directory holds; returns the records of the run.
pub(crate) fn write(dir: &RunDir) -> Result<Vec<bessemer_runlog::Record>, Failure> {
    let log = bessemer_runlog::read(dir.root())?;
    let corpus = fs::read_to_string(dir.corpus().join(bessemer_corpus::SUMMARY_FILE))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    // A run that was imported has no recipe; the report then leaves the section out.
    let recipe = fs::read_to_string(dir.recipe()).unwrap_or_default();
    let input = ReportInput { records: log.records, corpus, recipe };
    bessemer_report::write(&dir.report(), &input)?;
    Ok(input.records)
}
