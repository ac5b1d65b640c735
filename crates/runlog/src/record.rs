//! One line of the log: the kinds, and how an object with a `kind` becomes a record.

use crate::plan::{Measured, Plan};
use crate::records::*;
use serde::Serialize;
use serde_json::{Map, Value};

/// Version of `metrics.jsonl`. It grows only when an older reader could not understand the file.
pub const VERSION: u64 = 1;
/// Value of the `format` key of the first line.
pub(crate) const FORMAT: &str = "bessemer-runlog";
/// Longest line that is written or read. A record is small; this bounds what a damaged file can cost.
pub(crate) const LONGEST_LINE: usize = 16 << 20;

/// A record of a kind that this program does not know: kept as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Other {
    /// The whole object, `kind` included.
    pub object: Map<String, Value>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// One record of the log.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Record {
            $($(#[$doc])* $kind($kind),)*
            /// A kind that this program does not know.
            Other(Other),
        }

        $(impl From<$kind> for Record {
            fn from(record: $kind) -> Record {
                Record::$kind(record)
            }
        })*

        impl Record {
            /// The `kind` of the record.
            pub fn kind(&self) -> &str {
                match self {
                    $(Record::$kind(_) => $name,)*
                    Record::Other(other) => other.object.get("kind").and_then(Value::as_str).unwrap_or(""),
                }
            }

            /// Appends the record as one line of JSON without line feed.
            pub(crate) fn write_line(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
                match self {
                    $(Record::$kind(record) => serde_json::to_writer(out, &Tagged { kind: $name, record }),)*
                    Record::Other(other) => serde_json::to_writer(out, other),
                }
            }

            /// The record that an object with a `kind` is. Fields that are not known are passed over.
            pub(crate) fn from_object(object: Map<String, Value>) -> Result<Record, String> {
                let kind = match object.get("kind") {
                    Some(Value::String(kind)) => kind.as_str(),
                    Some(other) => return Err(format!("wanted a string as \"kind\", found {other}")),
                    None => return Err("wanted the key \"kind\"".into()),
                };
                match kind {
                    $($name => serde_json::from_value(Value::Object(object))
                        .map(Record::$kind)
                        .map_err(|e| format!(concat!("a record of kind ", $name, ": {}"), e)),)*
                    _ => Ok(Record::Other(Other { object })),
                }
            }
        }
    };
}

kinds! {
    /// The run that the log belongs to.
    RunId = "run_id",
    /// A process began to work on the run.
    Run = "run",
    /// The model that is trained.
    Model = "model",
    /// Plan of the training.
    Training = "training",
    /// A stage of the run ended.
    Stage = "stage",
    /// Counts of the documents of the corpus.
    Corpus = "corpus",
    /// The tokenizer.
    Tokenizer = "tokenizer",
    /// A split was tokenised.
    Shards = "shards",
    /// The layout of the run was planned.
    Plan = "plan",
    /// The first steps of a planned run were measured.
    Measured = "measured",
    /// A training step ended.
    Step = "step",
    /// The model was evaluated.
    Eval = "eval",
    /// A checkpoint became durable.
    Save = "save",
    /// The run chose how often it saves.
    SaveInterval = "save_interval",
    /// The run went on from a checkpoint.
    Resume = "resume",
    /// The run went on under a changed recipe.
    Change = "change",
    /// Text that the model wrote.
    Sample = "sample",
    /// The model has answered a task.
    Task = "task",
    /// Another model, for comparison.
    Baseline = "baseline",
    /// Something that a person should know.
    Warning = "warning",
    /// A check found numbers that a sound machine may not have made.
    Fault = "fault",
    /// The run ends before its last step.
    EarlyStop = "early_stop",
    /// A process stopped working on the run.
    End = "end",
}

impl Record {
    /// Steps finished when the record was made, for the kinds that have a `step`.
    pub fn step(&self) -> Option<u64> {
        match self {
            Record::Step(r) => Some(r.step),
            Record::Measured(r) => Some(r.step),
            Record::Eval(r) => Some(r.step),
            Record::Save(r) => Some(r.step),
            Record::SaveInterval(r) => Some(r.step),
            Record::Resume(r) => Some(r.step),
            Record::Change(r) => Some(r.step),
            Record::Sample(r) => Some(r.step),
            Record::Task(r) => Some(r.step),
            Record::EarlyStop(r) => Some(r.step),
            Record::End(r) => Some(r.step),
            Record::Warning(r) => r.step,
            Record::Other(r) => r.object.get("step").and_then(Value::as_u64),
            Record::RunId(_)
            | Record::Run(_)
            | Record::Model(_)
            | Record::Training(_)
            | Record::Plan(_)
            | Record::Stage(_)
            | Record::Corpus(_)
            | Record::Tokenizer(_)
            | Record::Shards(_)
            | Record::Fault(_)
            | Record::Baseline(_) => None,
        }
    }
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    kind: &'static str,
    #[serde(flatten)]
    record: &'a T,
}
