//! A Chrome trace: where time went, by rank and stream.
//!
//! The file is a JSON array of events, as the Trace Event Format describes it ("JSON Array Format"; complete events
//! `ph: "X"`, metadata events `ph: "M"`). Times are microseconds, `pid` is the rank and `tid` the stream. In this
//! format the closing bracket may be missing, so the file is written as the run goes and a killed run leaves a
//! trace that Perfetto and chrome://tracing still open.

use crate::RunLogError;
use bessemer_durable::{AsDir, ConfinedDir, create_output};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Name of the trace in a run folder.
pub const TRACE_FILE: &str = "trace.json";
/// Name of a [`TraceNote`] that holds a schedule file: `program` its number, `text` what stands in it. A span "training step
/// N" of rank 0 says in its `program` which one the step ran.
pub const PROGRAM_NOTE: &str = "program";

/// Something that took time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Span<'a> {
    /// Kind of work, for example "forward".
    pub name: &'a str,
    /// Category that viewers can filter by, for example "compute".
    #[serde(rename = "cat")]
    pub category: &'a str,
    /// Rank that did it.
    #[serde(rename = "pid")]
    pub rank: u64,
    /// Stream or thread of the rank.
    #[serde(rename = "tid")]
    pub stream: u64,
    /// Beginning, in microseconds since a moment that all spans of the file share.
    #[serde(rename = "ts")]
    pub start_us: f64,
    /// Duration in microseconds.
    #[serde(rename = "dur")]
    pub duration_us: f64,
    /// Details that viewers show (step, bytes, …).
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
}

/// A [`Span`] that was read back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TraceSpan {
    /// Kind of work.
    pub name: String,
    /// Category.
    #[serde(rename = "cat", default)]
    pub category: String,
    /// Rank that did it.
    #[serde(rename = "pid")]
    pub rank: u64,
    /// Stream or thread of the rank.
    #[serde(rename = "tid", default)]
    pub stream: u64,
    /// Beginning, in microseconds.
    #[serde(rename = "ts")]
    pub start_us: f64,
    /// Duration in microseconds.
    #[serde(rename = "dur")]
    pub duration_us: f64,
    /// Details.
    #[serde(default)]
    pub args: Map<String, Value>,
}

/// Something that a trace says beside its spans, such as the program that a step ran ([`Trace::note`]).
#[derive(Debug, Clone, PartialEq)]
pub struct TraceNote {
    /// Subject.
    pub name: String,
    /// Text.
    pub args: Map<String, Value>,
}

/// Contents of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceContents {
    /// The spans in their order.
    pub spans: Vec<TraceSpan>,
    /// Metadata in its order, names of ranks and streams included.
    pub notes: Vec<TraceNote>,
}

/// Reads the spans of a trace in their order, and its metadata; other events are passed over. Of a trace that was cut (a run
/// that is still going on, or was killed) what is whole is read.
///
/// # Errors
/// [`RunLogError::Io`]; [`RunLogError::Trace`] if the file is no JSON array of events, or a span lacks its name, rank or
/// times.
pub fn read_trace(path: impl AsRef<Path>) -> Result<TraceContents, RunLogError> {
    let path = path.as_ref();
    let text = bessemer_durable::read_to_string(path).map_err(|e| RunLogError::io(path, "read", e))?;
    contents_of(path, &text)
}

/// [`read_trace`] of the trace of a run directory.
///
/// # Errors
/// Errors of [`read_trace`].
pub fn read_trace_in(dir: &ConfinedDir) -> Result<TraceContents, RunLogError> {
    let path = dir.path().join(TRACE_FILE);
    let text = dir.read_to_string(TRACE_FILE).map_err(|e| RunLogError::io(&path, "read", e))?;
    contents_of(&path, &text)
}

fn contents_of(path: &Path, text: &str) -> Result<TraceContents, RunLogError> {
    let wrong = |what: String| RunLogError::Trace { path: path.to_owned(), what };
    let whole = text.trim_end().trim_end_matches(',');
    let events: Vec<Map<String, Value>> = match serde_json::from_str(whole) {
        Ok(events) => events,
        Err(first) if whole.starts_with('[') && !whole.ends_with(']') => {
            // Events stand one a line; the last line may be a part of one.
            let closed =
                |text: &str| serde_json::from_str(&format!("{}]", text.trim_end().trim_end_matches(',')));
            let before = whole.rfind('\n').map_or("[", |at| &whole[..at]);
            closed(whole).or_else(|_| closed(before)).map_err(|_| wrong(first.to_string()))?
        }
        Err(e) => return Err(wrong(e.to_string())),
    };
    let mut contents = TraceContents::default();
    for mut event in events {
        match event.get("ph").and_then(Value::as_str) {
            Some("X") => {
                let span: TraceSpan = serde_json::from_value(Value::Object(event))
                    .map_err(|e| wrong(format!("a span: {e}")))?;
                if span.duration_us < 0.0 {
                    return Err(wrong(format!("the span {:?} takes {} us", span.name, span.duration_us)));
                }
                contents.spans.push(span);
            }
            Some("M") => {
                let name = event.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                let args = match event.remove("args") {
                    Some(Value::Object(args)) => args,
                    _ => Map::new(),
                };
                contents.notes.push(TraceNote { name, args });
            }
            _ => {}
        }
    }
    Ok(contents)
}

/// A trace file, open for writing. Events are buffered; see [`Trace::flush`].
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
    events: u64,
}

impl Trace {
    /// Starts a trace at `path`, which a user named: a link or a device there is written through.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Trace, RunLogError> {
        let path = path.as_ref();
        let file = create_output(path).map_err(|e| RunLogError::io(path, "create", e))?;
        Trace::start(path, file)
    }

    /// Starts the trace of a run directory: any entry of its name, a link too, is replaced and not written through.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn replace(dir: impl AsDir) -> Result<Trace, RunLogError> {
        let dir = crate::reading::opened(&dir)?;
        let path = dir.path().join(TRACE_FILE);
        let file = dir.create_replacing(TRACE_FILE).map_err(|e| RunLogError::io(&path, "create", e))?;
        Trace::start(&path, file)
    }

    fn start(path: &Path, file: File) -> Result<Trace, RunLogError> {
        let path = path.to_owned();
        let mut trace = Trace { path, file: BufWriter::new(file), events: 0 };
        trace.write(b"[")?;
        Ok(trace)
    }

    /// Adds a span.
    ///
    /// # Errors
    /// [`RunLogError::Io`]; [`RunLogError::Record`] if a time is not finite.
    pub fn span(&mut self, span: &Span<'_>) -> Result<(), RunLogError> {
        if !span.start_us.is_finite() || !span.duration_us.is_finite() {
            let what = format!("times are {} and {} us", span.start_us, span.duration_us);
            return Err(RunLogError::Record { path: self.path.clone(), kind: span.name.into(), what });
        }
        #[derive(Serialize)]
        struct Complete<'a> {
            ph: &'static str,
            #[serde(flatten)]
            span: &'a Span<'a>,
        }
        self.event(&Complete { ph: "X", span })
    }

    /// Names a rank, and one of its streams if given.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn name(&mut self, rank: u64, stream: Option<u64>, name: &str) -> Result<(), RunLogError> {
        let what = if stream.is_some() { "thread_name" } else { "process_name" };
        self.event(&serde_json::json!({
            "ph": "M", "name": what, "pid": rank, "tid": stream.unwrap_or(0), "args": { "name": name },
        }))
    }

    /// Adds something beside the spans. Viewers pass over what they do not know.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn note(&mut self, rank: u64, note: &TraceNote) -> Result<(), RunLogError> {
        let event = serde_json::json!({ "ph": "M", "name": note.name, "pid": rank, "args": note.args });
        self.event(&event)
    }

    /// Hands everything so far to the operating system.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn flush(&mut self) -> Result<(), RunLogError> {
        self.file.flush().map_err(|e| RunLogError::io(&self.path, "write", e))
    }

    /// Closes the array and makes the file durable.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn finish(mut self) -> Result<(), RunLogError> {
        self.write(b"\n]\n")?;
        self.flush()?;
        self.file.get_ref().sync_all().map_err(|e| RunLogError::io(&self.path, "fsync", e))
    }

    fn event(&mut self, event: &impl Serialize) -> Result<(), RunLogError> {
        let line = serde_json::to_vec(event).map_err(|e| RunLogError::Record {
            path: self.path.clone(),
            kind: "trace event".into(),
            what: e.to_string(),
        })?;
        self.write(if self.events == 0 { b"\n" } else { b",\n" })?;
        self.write(&line)?;
        self.events += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RunLogError> {
        self.file.write_all(bytes).map_err(|e| RunLogError::io(&self.path, "write", e))
    }
}
