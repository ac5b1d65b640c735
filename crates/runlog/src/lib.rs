//! What happened in a run: typed records in `metrics.jsonl`, TensorBoard events, a Chrome trace.
//!
//! - [`Record`] is everything that a run tells: what it is, its stages, steps, evaluations, saves, samples,
//!   warnings and its end. [`RunLog`] appends them to `metrics.jsonl`, one JSON object a line; [`read`] gives them
//!   back. `README.md` beside this crate specifies the file.
//! - [`LoadLog`] appends how often every expert was chosen to `experts.loads`, [`Loads`] reads it.
//! - [`TensorBoard`] writes the scalars and texts of the same records as an event file that TensorBoard opens.
//! - [`Prometheus`] writes the latest values as a text file that node-exporter's textfile collector reads.
//! - [`study::Study`] is the result of a study of several small runs, one JSON file; [`coord_check::CoordCheck`] that of
//!   muP's coordinate check.
//! - [`Trace`] writes where time went, as a `trace.json` that Perfetto and chrome://tracing open, [`TraceLanes`] by lanes; [`read_trace`] reads it back.
//!
//! This crate reads no clock: seconds and wall times are arguments.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod coord_check;
mod crc32c;
mod error;
mod lanes;
mod loads;
mod log;
mod number;
mod plan;
mod prometheus;
mod protobuf;
mod reading;
mod record;
mod records;
pub mod study;
mod tensorboard;
mod time;
mod trace;

pub use error::RunLogError;
pub use lanes::{LaneSpan, TraceLanes};
pub use loads::{LOADS_FILE, LOADS_VERSION, LoadLog, LoadSpan, Loads, StepLoads, set_loads_aside};
pub use log::{DAMAGED_FILE, FILE, LogSync, RunLog};
pub use plan::{CostItem, Measured, OtherLayout, Plan, StepCosts};
pub use prometheus::Prometheus;
pub use reading::{DamagedLine, Log, TornLine, read, read_tail};
pub use record::{Other, Record, VERSION};
pub use records::{
    Baseline, Change, ChangedKey, Corpus, CorpusSource, Dropped, EarlyStop, End, EndReason, Eval,
    EvalComponent, Fault, FaultVerdict, MixtureShare, Model, Resume, Run, RunId, Sample, Save, SaveInterval,
    Shards, Stage, Step, Task, Tokenizer, Training, Warning,
};
pub use tensorboard::{HyperParameter, TensorBoard, masked_crc32c};
pub use time::rfc3339;
pub use trace::{
    PROGRAM_NOTE, Span, TRACE_FILE, Trace, TraceContents, TraceNote, TraceSpan, read_trace, read_trace_in,
};
