//! A run's measured timeline, from its trace.

use super::picture::measured_cells;
use crate::failure::Failure;
use bessemer_durable::ConfinedDir;
use bessemer_report::plot::{Cell, Lane};
use bessemer_runlog::{PROGRAM_NOTE, TRACE_FILE, TraceContents, TraceSpan, read_trace, read_trace_in};
use bessemer_schedule::Program;
use bessemer_sim::{Kind, Sample, Samples, parse_name};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Most ranks that are drawn.
const MOST_LANES: usize = 32;
/// Most collectives of a step that are drawn.
const MOST_CALLS: usize = 5_000;
/// Colour of collectives, and how light.
pub(crate) const CALL: (usize, usize) = (5, 1);

/// One step of a run as it was measured, in milliseconds from its first start.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Step, if the trace says.
    pub(crate) step: Option<u64>,
    /// Last end minus first start.
    pub(crate) makespan: f64,
    /// A lane for each rank.
    pub(crate) lanes: Vec<Lane>,
    /// Lanes of the same ranks with their collectives; empty where there are none, or too many to be drawn.
    pub(crate) calls: Vec<Lane>,
    /// Ranks of the trace that are not drawn.
    pub(crate) left_out: usize,
    /// Times of all steps of the trace; but of its first, which may warm up, only where it is the only one or the trace is
    /// one that `train` wrote.
    pub(crate) samples: Samples,
}

/// An interval whose name is an instruction's.
struct Interval {
    span: TraceSpan,
    kind: Kind,
    micro: usize,
    chunk: usize,
    /// The program's rank: the trace's, unless several ranks do the same for other data or share layers.
    rank: usize,
}

impl Interval {
    fn new(span: TraceSpan) -> Option<Interval> {
        let (kind, micro, chunk) = parse_name(&span.name)?;
        let rank = number(&span, "pipeline").unwrap_or(span.rank);
        Some(Interval { span, kind, micro, chunk, rank: usize::try_from(rank).unwrap_or(usize::MAX) })
    }

    fn step(&self) -> Option<u64> {
        number(&self.span, "step")
    }
}

fn number(span: &TraceSpan, key: &str) -> Option<u64> {
    span.args.get(key)?.as_u64()
}

/// A trace, its passes apart from the rest.
struct Recorded {
    file: PathBuf,
    intervals: Vec<Interval>,
    calls: Vec<TraceSpan>,
    /// Schedule files, by number.
    programs: BTreeMap<u64, String>,
    /// Schedule that a step ran.
    program_of: BTreeMap<u64, u64>,
}

impl Recorded {
    fn read(path: &Path) -> Result<Recorded, Failure> {
        match path.is_dir() {
            true => Recorded::of_run(&ConfinedDir::open_named(path)?),
            false => Recorded::of(path.to_owned(), read_trace(path)?),
        }
    }

    fn of_run(run: &ConfinedDir) -> Result<Recorded, Failure> {
        Recorded::of(run.path().join(TRACE_FILE), read_trace_in(run)?)
    }

    fn of(file: PathBuf, contents: TraceContents) -> Result<Recorded, Failure> {
        let TraceContents { spans, notes } = contents;
        let found = spans.len();
        let program = |args: &serde_json::Map<String, serde_json::Value>| {
            Some((args.get("program")?.as_u64()?, args.get("text")?.as_str()?.to_owned()))
        };
        let programs =
            notes.iter().filter(|n| n.name == PROGRAM_NOTE).filter_map(|n| program(&n.args)).collect();
        let program_of =
            spans.iter().filter_map(|s| Some((number(s, "step")?, number(s, "program")?))).collect();
        let (calls, rest): (Vec<_>, Vec<_>) = spans.into_iter().partition(|s| s.category == "collective");
        let intervals: Vec<Interval> = rest.into_iter().filter_map(Interval::new).collect();
        if intervals.is_empty() {
            return Err(Failure::new(format!(
                "{}: none of its {found} intervals is named like an instruction (F 3.0: forward of micro-batch 3 \
                 through chunk 0); wanted the trace of a run",
                file.display()
            )));
        }
        Ok(Recorded { file, intervals, calls, programs, program_of })
    }

    /// One step and the times of all, under a program that all of them fit.
    fn measured(self, program: &Program, step: Option<u64>) -> Result<Measured, Failure> {
        if let Some(i) = self.intervals.iter().find(|i| !fits(program, i)) {
            return Err(Failure::usage(format!(
                "{}: {:?} of rank {} is not in this schedule of {} ranks and {} micro-batches; name the schedule that \
                 the run used",
                self.file.display(),
                i.span.name,
                i.span.rank,
                program.ranks(),
                program.micro_batches()
            )));
        }
        let all = &self.intervals;
        let first = all.iter().filter_map(Interval::step).min();
        let warm = !self.program_of.is_empty() || all.iter().all(|i| i.step() == first);
        let mut samples = Samples::default();
        for i in all.iter().filter(|i| warm || i.step() != first) {
            let time = i.span.duration_us / 1e3;
            samples.add(&Sample { rank: i.rank, chunk: i.chunk, kind: i.kind, time });
        }
        let shown: Vec<&Interval> = all.iter().filter(|i| i.step() == step).collect();
        let start = shown.iter().map(|i| i.span.start_us).fold(f64::INFINITY, f64::min);
        let end = shown.iter().map(|i| i.span.start_us + i.span.duration_us).fold(start, f64::max);
        let along = shown.iter().any(|i| number(&i.span, "pipeline").is_some());
        let mut ranks: Vec<u64> = match along {
            true => shown.iter().map(|i| i.span.rank).collect::<BTreeSet<_>>().into_iter().collect(),
            false => (0..program.ranks() as u64).collect(),
        };
        let left_out = if along { ranks.len().saturating_sub(MOST_LANES) } else { 0 };
        ranks.truncate(ranks.len() - left_out);
        let at = |span: &TraceSpan| {
            let from = (span.start_us - start) / 1e3;
            (from, from + span.duration_us / 1e3)
        };
        let lane = |rank: &u64| Lane {
            label: format!("rank {rank}"),
            cells: shown
                .iter()
                .filter(|i| i.span.rank == *rank)
                .flat_map(|i| {
                    let other = i.span.name.split_once('&').and_then(|(_, b)| parse_name(b)).map(|b| b.1);
                    measured_cells(i.kind, (i.micro, i.chunk), other, at(&i.span), &i.span.name)
                })
                .collect(),
            note: String::new(),
        };
        let within = |s: &&TraceSpan| {
            number(s, "step") == step && s.start_us + s.duration_us > start && s.start_us < end
        };
        let calls: Vec<&TraceSpan> = self.calls.iter().filter(within).collect();
        let talk = |rank: &u64| Lane {
            label: String::new(),
            cells: calls
                .iter()
                .filter(|s| s.rank == *rank)
                .map(|s| call(s, at(s), (end - start) / 1e3))
                .collect(),
            note: String::new(),
        };
        let drawn = !calls.is_empty() && calls.len() <= MOST_CALLS;
        Ok(Measured {
            step,
            makespan: (end - start) / 1e3,
            lanes: ranks.iter().map(lane).collect(),
            calls: if drawn { ranks.iter().map(talk).collect() } else { Vec::new() },
            left_out,
            samples,
        })
    }
}

/// A collective's piece, cut to the step.
fn call(span: &TraceSpan, (from, to): (f64, f64), end: f64) -> Cell {
    let (from, to) = (from.clamp(0.0, end), to.clamp(0.0, end));
    let tip = format!("{}: {} ms", span.name, super::picture::tidy(span.duration_us / 1e3));
    Cell { start: from, end: to, color: CALL.0, tone: CALL.1, tip, ..Cell::default() }
}

/// Reads a trace; `wanted` is the step to show.
pub(crate) fn read(path: &Path, program: &Program, wanted: Option<u64>) -> Result<Measured, Failure> {
    let recorded = Recorded::read(path)?;
    let step = chosen(&recorded.intervals, wanted)?;
    recorded.measured(program, step)
}

/// The last step that a run traced, and the program that it ran: the trace holds it.
pub(crate) fn of_run(run: &ConfinedDir) -> Result<(Program, Measured), Failure> {
    let mut recorded = Recorded::of_run(run)?;
    let none = || Failure::new(format!("{}: it holds no step with its program", recorded.file.display()));
    let (step, number) = recorded.program_of.iter().next_back().map(|(s, p)| (*s, *p)).ok_or_else(none)?;
    let text = recorded.programs.get(&number).ok_or_else(none)?;
    let program = bessemer_schedule::parse(text)
        .map_err(|e| Failure::new(format!("{}: its program {number}: {e}", recorded.file.display())))?;
    // Windows of an asynchronous schedule differ in length, and so do steps that fill bubbles.
    let same = |i: &Interval| i.step().is_some_and(|s| recorded.program_of.get(&s) == Some(&number));
    recorded.intervals.retain(same);
    let measured = recorded.measured(&program, Some(step))?;
    Ok((program, measured))
}

/// Whether the program has such an instruction's rank, chunk and micro-batch.
fn fits(program: &Program, interval: &Interval) -> bool {
    let counted = !matches!(interval.kind, Kind::Reduce | Kind::Step | Kind::Gather | Kind::Fill(_));
    interval.rank < program.ranks()
        && interval.chunk < program.chunks(interval.rank)
        && (!counted || interval.micro < program.micro_batches())
}

/// The step to show: the wanted one, or the last that has as many intervals as any.
fn chosen(all: &[Interval], wanted: Option<u64>) -> Result<Option<u64>, Failure> {
    let mut counts: BTreeMap<Option<u64>, usize> = BTreeMap::new();
    for interval in all {
        *counts.entry(interval.step()).or_default() += 1;
    }
    if let Some(step) = wanted {
        if counts.contains_key(&Some(step)) {
            return Ok(Some(step));
        }
        let steps: BTreeSet<u64> = counts.into_keys().flatten().collect();
        let there = match (steps.first(), steps.last()) {
            (Some(a), Some(b)) => format!("steps {a} to {b}"),
            _ => "no steps by number".into(),
        };
        return Err(Failure::usage(format!("--step {step}: the trace has {there}")));
    }
    let most = counts.values().copied().max().unwrap_or(0);
    Ok(counts.into_iter().rfind(|(_, n)| *n == most).and_then(|(step, _)| step))
}
