//! `bessemer report`: the page of a run.

use crate::commands::run::warn_of_damage;
use crate::commands::saved_model::exists;
use crate::commands::schedule::{measured, picture, show};
use crate::console::Console;
use crate::failure::Failure;
use crate::run_dir::{CORPUS, RECIPE, REPORT, RunDir};
use bessemer_report::plot::{Key, Lane};
use bessemer_report::{ExpertLoads, ReportInput, StepTimeline, signed_percent};
use bessemer_runlog::{Loads, Record};
use bessemer_sim::{Summary, simulate};
use serde_json::json;
use std::path::Path;

pub(crate) fn run(path: &Path, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let dir = RunDir::new(path);
    exists(dir.root())?;
    if !dir.root().join(bessemer_runlog::FILE).exists() {
        return Err(Failure::new(format!(
            "{} holds no {}; a report needs a run that has begun: bessemer run RECIPE",
            path.display(),
            bessemer_runlog::FILE
        )));
    }
    let log = write(&dir, console)?;
    console.say(&format!("wrote {}", dir.report().display()));
    crate::console::print(&match as_json {
        true => summary_json(&dir, &log)?,
        false => bessemer_report::terminal::summary(&log),
    })?;
    Ok(())
}

/// State of a run as JSON: the last record of each kind.
pub(crate) fn summary_json(dir: &RunDir, records: &[Record]) -> Result<String, Failure> {
    let mut summary =
        json!({ "run": dir.root().display().to_string(), "report": dir.report().display().to_string() });
    for record in records {
        let (kind, value) = match record {
            // Not the whole record: it lists every source.
            Record::Corpus(r) => {
                let splits = (&r.split_documents, &r.split_bytes);
                let value = json!({ "source": r.source, "fallback": r.fallback, "documents_kept": r.documents_kept,
                    "bytes_kept": r.bytes_kept, "split_documents": splits.0, "split_bytes": splits.1 });
                ("corpus", value)
            }
            Record::Model(r) => ("model", serde_json::to_value(r)?),
            Record::Step(r) => ("step", serde_json::to_value(r)?),
            Record::Eval(r) => ("eval", serde_json::to_value(r)?),
            Record::Baseline(r) => ("baseline", serde_json::to_value(r)?),
            Record::EarlyStop(r) => ("early_stop", serde_json::to_value(r)?),
            Record::End(r) => ("end", serde_json::to_value(r)?),
            _ => continue,
        };
        summary[kind] = value;
    }
    Ok(serde_json::to_string(&summary)?)
}

/// Writes report.html from what the run directory holds; returns the records of the run.
pub(crate) fn write(dir: &RunDir, console: &mut Console) -> Result<Vec<Record>, Failure> {
    let log = bessemer_runlog::read(dir.handle()?)?;
    warn_of_damage(&dir.root().join(bessemer_runlog::FILE), &log.damaged, console);
    let corpus = dir
        .text(Path::new(CORPUS).join(bessemer_corpus::SUMMARY_FILE))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    // A run that was imported has no recipe; the report then leaves the section out.
    let recipe = dir.text(RECIPE).unwrap_or_default();
    let timeline = timeline(dir);
    let loads = loads(dir);
    let input = ReportInput { records: log.records, corpus, recipe, loads, timeline };
    bessemer_report::write(dir.handle()?, REPORT, &input)?;
    Ok(input.records)
}

/// Choices of experts in the run; nothing of a file that cannot be read, which is no reason to have no report.
fn loads(dir: &RunDir) -> ExpertLoads {
    let read = || -> Result<ExpertLoads, Failure> {
        let Some(mut loads) = Loads::open(dir.handle()?)? else { return Ok(ExpertLoads::default()) };
        let spans = loads.spans(ExpertLoads::SPANS)?;
        Ok(ExpertLoads { experts: loads.experts().to_vec(), spans })
    };
    read().unwrap_or_else(|e| {
        crate::console::warn(&format!("loads of experts are not drawn: {}", e.message));
        ExpertLoads::default()
    })
}

/// Share of a micro-batch's activations that stays between the parts of a split backward pass.
const PENDING: f64 = 0.5;

/// The last step that the run traced below its simulation with the measured times; nothing if it traced none. A trace that
/// cannot be drawn is no reason to have no report.
fn timeline(dir: &RunDir) -> Option<StepTimeline> {
    dir.has(bessemer_runlog::TRACE_FILE).then(|| {
        drawn(dir).unwrap_or_else(|e| StepTimeline {
            picture: None,
            notes: vec![format!("The trace is not drawn: {}", e.message)],
        })
    })
}

fn drawn(dir: &RunDir) -> Result<StepTimeline, Failure> {
    let (program, measured) = measured::of_run(dir.handle()?)?;
    let costs = measured.samples.costs(&program).map_err(Failure::new)?;
    let simulated = simulate(&program, &costs).map_err(Failure::new)?;
    let summary = Summary::new(&program, &costs, &simulated, PENDING);
    let mut lanes = show::picture(&program, &simulated, &summary, Some(&measured));
    let talk = measured.calls.iter().any(|lane| !lane.cells.is_empty());
    if let Some(panel) = lanes.panels.last_mut().filter(|_| talk) {
        let pairs = std::mem::take(&mut panel.lanes).into_iter().zip(measured.calls);
        panel.lanes = pairs.flat_map(|(passes, calls)| [passes, calls]).collect::<Vec<Lane>>();
        let (color, tone) = measured::CALL;
        lanes.keys.push(Key { color, tone, letter: String::new(), name: "collective".into() });
    }
    let mut notes = vec![format!(
        "Measured {} ms, simulated with the median time of each pass {} ms: {}. What is longer in the measured one is \
         messages, waiting for the norm of the gradient, the machine, or the engine. Everything is in {}, for Perfetto.",
        picture::tidy(measured.makespan),
        picture::tidy(summary.makespan),
        signed_percent(summary.makespan / measured.makespan - 1.0),
        bessemer_runlog::TRACE_FILE
    )];
    if measured.left_out > 0 {
        notes.push(format!("{} further ranks are not drawn.", measured.left_out));
    }
    if lanes.pieces() > show::MOST_CELLS {
        notes.push("The step has too many passes to be drawn.".into());
        return Ok(StepTimeline { picture: None, notes });
    }
    Ok(StepTimeline { picture: Some(lanes), notes })
}
