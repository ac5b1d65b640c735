//! The report of a run.

use crate::corpus_file::CorpusFile;
use crate::facts::Facts;
use crate::page::page;
use crate::section::loads::ExpertLoads;
use crate::section::timeline::StepTimeline;
use crate::section::{curves, data, environment, headline, plan, samples, tasks, timeline};
use bessemer_durable::AsDir;
use bessemer_runlog::Record;
use serde_json::Value;
use std::io;

/// Everything that a report is made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportInput {
    /// The records of `metrics.jsonl`, in file order.
    pub records: Vec<Record>,
    /// `corpus.json`, if there is one: licences, edits and remarks are read from it.
    pub corpus: Option<Value>,
    /// The resolved recipe as text.
    pub recipe: String,
    /// Choices of experts, if the model has any.
    pub loads: ExpertLoads,
    /// A step on the clock, if the run traced one.
    pub timeline: Option<StepTimeline>,
}

/// The report as one HTML page. Whatever is missing is left out; nothing is an error.
pub fn render(input: &ReportInput) -> String {
    let facts = Facts::new(&input.records);
    let name = facts.runs.last().map(|r| r.name.as_str()).filter(|n| !n.is_empty()).unwrap_or("run");
    let corpus = input.corpus.as_ref().map(CorpusFile::new).unwrap_or_default();
    let body = [
        headline::header(&facts, name),
        headline::results(&facts),
        environment::warnings(&facts),
        curves::loss(&facts, &input.loads),
        tasks::tasks(&facts),
        samples::samples(&facts),
        curves::speed(&facts),
        plan::plan(&facts),
        timeline::timeline(input.timeline.as_ref()),
        data::data(&facts, &corpus),
        environment::again(&facts, &input.recipe),
    ];
    page(&format!("{name} · Bessemer"), &body.concat())
}

/// Writes the report as the file `name` of a directory, atomically: a reader sees the old page or the new one, never a part.
///
/// # Errors
/// The system's, with the path in the message.
pub fn write(dir: impl AsDir, name: &str, input: &ReportInput) -> io::Result<()> {
    dir.as_dir()?.write(name, render(input).as_bytes())
}
