//! A trace by lanes: spans are distinguished by rank and lane, and become streams in which nothing overlaps what it should not.

use crate::{RunLogError, Span, Trace, TraceNote};
use serde_json::{Map, Value};
use std::path::Path;

/// Streams that a lane may take, so that viewers show them one below the other.
const STREAMS: u64 = 16;

/// Something that took time, in a lane of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneSpan<'a> {
    /// Rank that did it.
    pub rank: u64,
    /// Lane of the rank, such as "passes".
    pub lane: &'a str,
    /// Whether spans of this lane stand within each other; those of other lanes go to another stream where they overlap.
    pub nested: bool,
    /// Category.
    pub category: &'a str,
    /// Kind of work.
    pub name: &'a str,
    /// Beginning in microseconds.
    pub start_us: f64,
    /// End in microseconds.
    pub end_us: f64,
    /// Details.
    pub args: Map<String, Value>,
}

/// A [`Trace`] that is written by lanes. Spans of a rank come in the order in which they begin.
#[derive(Debug)]
pub struct TraceLanes {
    trace: Trace,
    /// By number; a lane's streams begin at that times [`STREAMS`].
    lanes: Vec<String>,
    /// Streams that have a name: rank, stream, and until when it is taken.
    streams: Vec<(u64, u64, f64)>,
}

impl TraceLanes {
    /// Starts a trace at `path`, replacing one that is there. Lanes are shown in the order of `lanes`, others after them.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn create(path: impl AsRef<Path>, lanes: &[&str]) -> Result<TraceLanes, RunLogError> {
        Ok(TraceLanes::over(Trace::create(path)?, lanes))
    }

    /// As [`TraceLanes::create`], of a trace that was started.
    pub fn over(trace: Trace, lanes: &[&str]) -> TraceLanes {
        let lanes = lanes.iter().map(|l| (*l).to_owned()).collect();
        TraceLanes { trace, lanes, streams: Vec::new() }
    }

    /// Names a rank.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn name(&mut self, rank: u64, name: &str) -> Result<(), RunLogError> {
        self.trace.name(rank, None, name)
    }

    /// As [`Trace::note`].
    ///
    /// # Errors
    /// As there.
    pub fn note(&mut self, rank: u64, note: &TraceNote) -> Result<(), RunLogError> {
        self.trace.note(rank, note)
    }

    /// Adds a span.
    ///
    /// # Errors
    /// As [`Trace::span`].
    pub fn span(&mut self, span: LaneSpan<'_>) -> Result<(), RunLogError> {
        let lane = match self.lanes.iter().position(|l| l == span.lane) {
            Some(lane) => lane,
            None => {
                self.lanes.push(span.lane.to_owned());
                self.lanes.len() - 1
            }
        };
        let first = lane as u64 * STREAMS;
        let at = |streams: &[(u64, u64, f64)], stream: u64| {
            streams.iter().position(|s| (s.0, s.1) == (span.rank, stream))
        };
        let free =
            |stream: &u64| at(&self.streams, *stream).is_none_or(|i| self.streams[i].2 <= span.start_us);
        let stream = match span.nested {
            true => first,
            false => (first..first + STREAMS - 1).find(free).unwrap_or(first + STREAMS - 1),
        };
        match at(&self.streams, stream) {
            Some(i) => self.streams[i].2 = self.streams[i].2.max(span.end_us),
            None => {
                let name = match stream - first {
                    0 => span.lane.to_owned(),
                    more => format!("{} ({})", span.lane, more + 1),
                };
                self.trace.name(span.rank, Some(stream), &name)?;
                self.streams.push((span.rank, stream, span.end_us));
            }
        }
        self.trace.span(&Span {
            name: span.name,
            category: span.category,
            rank: span.rank,
            stream,
            start_us: span.start_us,
            duration_us: (span.end_us - span.start_us).max(0.0),
            args: span.args,
        })
    }

    /// As [`Trace::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> Result<(), RunLogError> {
        self.trace.flush()
    }

    /// As [`Trace::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(self) -> Result<(), RunLogError> {
        self.trace.finish()
    }
}
