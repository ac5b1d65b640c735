//! trace.json: when passes, messages and collectives of some steps ran, on every rank.
//!
//! ```text
//! every rank    instructions and collectives of a traced step (bessemer_parallel::Notes), evaluations, saves
//!                   │ gathered when the step is over
//! first rank        └─► one process a rank, one lane for passes, one for messages, one for each axis of collectives
//! ```
//! The recipe alone determines which steps those are, so all ranks agree. Clocks are compared once at the beginning of a
//! session. The results of a run do not depend on any of this.

use super::clocks::Clocks;
use crate::TrainError;
use bessemer_collectives::CollectiveKind;
use bessemer_durable::ConfinedDir;
use bessemer_parallel::{Notes, Worker};
use bessemer_recipe::TraceConfig;
use bessemer_runlog::{LaneSpan, PROGRAM_NOTE, RunLogError, TRACE_FILE, Trace, TraceLanes, TraceNote};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Instant;

/// Steps (or windows) of a session that warm up.
const WARM: u64 = 2;
/// Events that are kept until the next step that is traced.
const MOST_EVENTS: usize = 10_000;
/// Longest program that the trace contains: larger ones are too large to draw.
const MOST_TEXT: usize = 4 << 20;
/// Lanes of a rank that come first; those of groups follow.
const PASSES: &str = "passes";
const MESSAGES: &str = "messages";

/// Something that took time on a rank, between two readings of its clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Event {
    lane: String,
    name: String,
    /// Nanoseconds of this rank's clock.
    start: u64,
    end: u64,
    /// Steps done when it ended; of passes, the step that they are part of.
    step: u64,
    /// Bytes of collectives, and whether they ran concurrently with the computation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bytes: Option<(u64, bool)>,
}

/// The trace of a session.
#[derive(Debug)]
pub(super) struct Tracing {
    config: TraceConfig,
    /// Directory of the file; on the first rank, which writes.
    directory: Option<ConfinedDir>,
    file: Option<File>,
    /// Known once training begins.
    clocks: Option<Clocks>,
    /// Steps or windows of this session so far.
    turns: u64,
    /// Begin of the current step or window, if it is traced.
    begun: Option<Instant>,
    /// Text of the program that it runs, on the first rank.
    program: String,
    events: Vec<Event>,
    /// Intervals in the file.
    intervals: u64,
    full: bool,
}

impl Tracing {
    /// A trace without events; the first rank writes it into `directory`.
    pub(super) fn new(config: &TraceConfig, directory: Option<ConfinedDir>) -> Tracing {
        Tracing {
            config: config.clone(),
            directory,
            file: None,
            clocks: None,
            turns: 0,
            begun: None,
            program: String::new(),
            events: Vec::new(),
            intervals: 0,
            full: !config.is_on(),
        }
    }

    /// Compares the clocks of the ranks, once.
    pub(super) fn begin(&mut self, worker: &mut Worker) -> Result<(), TrainError> {
        if !self.full && self.clocks.is_none() {
            self.clocks = Some(Clocks::compare(worker)?);
        }
        Ok(())
    }

    /// A step (or `steps` of them in one program) begins after `done` steps.
    pub(super) fn turn(&mut self, worker: &mut Worker, done: u64, steps: u64) {
        let turn = self.turns;
        self.turns += 1;
        let every = self.config.every_steps;
        let planned = every > 0 && (done + steps) / every > done / every;
        let first = turn.checked_sub(WARM).is_some_and(|t| t < self.config.steps);
        if self.full || turn < WARM || !(first || planned) {
            return;
        }
        worker.keep_notes(true);
        self.begun = Some(Instant::now());
    }

    /// Whether the step at hand is traced.
    pub(super) fn traces(&self) -> bool {
        self.begun.is_some()
    }

    /// The step at hand has its program.
    pub(super) fn runs(&mut self, worker: &Worker) {
        if self.begun.is_some() && self.directory.is_some() {
            self.program = worker.program_at_hand().to_text();
        }
    }

    /// The step is over, `done` with it; `kept`: and was not gone back from. True if there is something to gather.
    pub(super) fn end_turn(&mut self, worker: &mut Worker, done: u64, kept: bool) -> bool {
        let (Some(begun), Some(clocks)) = (self.begun.take(), &self.clocks) else { return false };
        let end = Instant::now();
        let here = std::thread::current().id();
        let Notes { orders, calls } = worker.take_notes();
        worker.keep_notes(false);
        if !kept {
            return false;
        }
        let event = |lane: &str, name: String, (start, end): (Instant, Instant), bytes| {
            let (lane, start, end) = (lane.to_owned(), clocks.nanos(start), clocks.nanos(end));
            Event { lane, name, start, end, step: done, bytes }
        };
        self.events.push(event(PASSES, format!("training step {done}"), (begun, end), None));
        self.events.extend(orders.into_iter().map(|order| {
            let lane =
                if order.name.starts_with("R ") || order.name.starts_with("S ") { MESSAGES } else { PASSES };
            event(lane, order.name, (order.start, order.end), None)
        }));
        // Messages of the pipeline are orders already.
        let calls =
            calls.into_iter().filter(|c| !matches!(c.kind, CollectiveKind::Send | CollectiveKind::Receive));
        self.events.extend(calls.map(|c| {
            let name = format!("{} {}", c.kind.name(), c.name);
            let bytes = Some((c.bytes, c.thread != here));
            event(&format!("collectives, {}", c.group), name, (c.start, c.end), bytes)
        }));
        true
    }

    /// Something between steps, from `begun` until now.
    pub(super) fn event(&mut self, name: &str, begun: Instant, done: u64) {
        let Some(clocks) = self.clocks.as_ref().filter(|_| !self.full && self.events.len() < MOST_EVENTS)
        else {
            return;
        };
        let (lane, name, bytes) = (PASSES.to_owned(), name.to_owned(), None);
        let (start, end) = (clocks.nanos(begun), clocks.nanos(Instant::now()));
        self.events.push(Event { lane, name, start, end, step: done, bytes });
    }

    /// Gathers the events of all ranks on the first one, which writes them; `step`: a traced step is among them. Nothing is
    /// written before the first step. All ranks call this. Returns a remark if the file cannot be written, which ends no run.
    pub(super) fn gather(&mut self, worker: &mut Worker, step: bool) -> Result<Option<String>, TrainError> {
        if self.full || self.clocks.is_none() || !(step || self.intervals > 0) {
            return Ok(None);
        }
        let events = std::mem::take(&mut self.events);
        let state = |e: serde_json::Error| TrainError::State {
            place: TRACE_FILE.into(),
            problem: format!("cannot collect the traces of the ranks: {e}"),
        };
        let counts = worker.gather_numbers("intervals of the trace", &[events.len() as u64])?;
        let more: u64 = counts.iter().sum();
        if self.intervals + more > self.config.max_intervals {
            self.full = true;
            return Ok(None);
        }
        self.intervals += more;
        let mine = serde_json::to_vec(&events).map_err(state)?;
        let all = worker.gather_bytes("trace", &mine)?;
        let Some(directory) = self.directory.clone() else { return Ok(None) };
        let ranks: Vec<Vec<Event>> =
            all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>().map_err(state)?;
        match self.write(&directory, worker, &ranks) {
            Ok(()) => Ok(None),
            Err(e) => {
                // The other ranks continue to record; nothing is written.
                (self.directory, self.file) = (None, None);
                Ok(Some(format!("tracing has stopped: {e}")))
            }
        }
    }

    fn write(
        &mut self,
        directory: &ConfinedDir,
        worker: &Worker,
        ranks: &[Vec<Event>],
    ) -> Result<(), RunLogError> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => File::create(directory, worker)?,
        };
        let program = file.program(&self.program)?;
        for (rank, events) in ranks.iter().enumerate() {
            let clocks = self.clocks.as_ref();
            let micros = |nanos: u64| clocks.map_or(0.0, |c| c.common_micros(rank, nanos));
            file.events(worker, (rank, events), program, &micros)?;
        }
        file.lanes.flush()?;
        self.file = Some(file);
        Ok(())
    }

    /// Closes the file. One that is cut is read as well, so nothing is lost if that fails.
    pub(super) fn close(self) {
        if let Some(file) = self.file {
            let _ = file.lanes.finish();
        }
    }
}

/// The file, and its contents besides events.
#[derive(Debug)]
struct File {
    lanes: TraceLanes,
    programs: Vec<String>,
}

impl File {
    fn create(directory: &ConfinedDir, worker: &Worker) -> Result<File, RunLogError> {
        let mut lanes = TraceLanes::over(Trace::replace(directory)?, &[PASSES, MESSAGES]);
        let plan = worker.plan();
        for rank in 0..plan.ranks() {
            let at = plan.coord(rank);
            let mut axes = vec![
                (plan.replicate(), "replica", at.replicate),
                (plan.shard(), "shard", at.shard),
                (plan.pipeline(), "pipeline", at.pipeline),
            ];
            let place = plan.mesh.coord(rank);
            axes.extend(plan.layer_axes().map(|axis| (plan.mesh.degree(axis), axis.name(), place.at(axis))));
            let several = axes.iter().filter(|(size, ..)| *size > 1);
            let places: Vec<String> = several.map(|(_, name, place)| format!("{name} {place}")).collect();
            let name = match places.is_empty() {
                true => format!("rank {rank}"),
                false => format!("rank {rank} ({})", places.join(", ")),
            };
            lanes.name(rank as u64, &name)?;
        }
        Ok(File { lanes, programs: Vec::new() })
    }

    /// The number of a program, which the trace then holds.
    fn program(&mut self, text: &str) -> Result<Option<usize>, RunLogError> {
        if text.is_empty() || text.len() > MOST_TEXT {
            return Ok(None);
        }
        if let Some(number) = self.programs.iter().position(|p| p == text) {
            return Ok(Some(number));
        }
        let number = self.programs.len();
        let args = json!({ "program": number, "text": text }).as_object().cloned().unwrap_or_default();
        self.lanes.note(0, &TraceNote { name: PROGRAM_NOTE.into(), args })?;
        self.programs.push(text.to_owned());
        Ok(Some(number))
    }

    fn events(
        &mut self,
        worker: &Worker,
        (rank, events): (usize, &[Event]),
        program: Option<usize>,
        micros: &dyn Fn(u64) -> f64,
    ) -> Result<(), RunLogError> {
        let (plan, at) = (worker.plan(), worker.plan().coord(rank));
        let along = plan.ranks() != plan.pipeline();
        let mut events: Vec<&Event> = events.iter().collect();
        events.sort_by_key(|e| (e.start, std::cmp::Reverse(e.end)));
        for event in events {
            let nested = event.lane == PASSES;
            let mut args = json!({ "step": event.step });
            if event.name.starts_with("training step") {
                args["program"] = program.into();
            }
            if along {
                args["pipeline"] = at.pipeline.into();
                args["line"] = (plan.data_index(at) * plan.tensor() + at.tensor).into();
            }
            if let Some((bytes, beside)) = event.bytes {
                args["bytes"] = bytes.into();
                args["beside"] = beside.into();
            }
            self.lanes.span(LaneSpan {
                rank: rank as u64,
                lane: &event.lane,
                nested,
                category: match event.bytes {
                    Some(_) => "collective",
                    None if nested => "compute",
                    None => "message",
                },
                name: &event.name,
                start_us: micros(event.start),
                end_us: micros(event.end),
                args: args.as_object().cloned().unwrap_or_default(),
            })?;
        }
        Ok(())
    }
}
