//! A run's measured timeline, from its trace.

use super::picture::measured_cells;
use crate::failure::Failure;
use bessemer_report::plot::Lane;
use bessemer_runlog::{TRACE_FILE, TraceSpan, read_trace};
use bessemer_schedule::Program;
use bessemer_sim::{Kind, Sample, Samples, parse_name};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One step of a run as it was measured, in milliseconds from its first start.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Which step, if the trace says.
    pub(crate) step: Option<u64>,
    /// Last end minus first start.
    pub(crate) makespan: f64,
    /// A lane for each rank.
    pub(crate) lanes: Vec<Lane>,
    /// Times of all steps of the trace but its first, which warms up.
    pub(crate) samples: Samples,
}

/// An interval whose name is an instruction's.
struct Interval {
    span: TraceSpan,
    kind: Kind,
    micro: usize,
    chunk: usize,
}

impl Interval {
    fn step(&self) -> Option<u64> {
        self.span.args.get("step")?.as_u64()
    }
}

/// Reads a trace; `wanted` is the step to show.
pub(crate) fn read(path: &Path, program: &Program, wanted: Option<u64>) -> Result<Measured, Failure> {
    let file = if path.is_dir() { path.join(TRACE_FILE) } else { path.to_owned() };
    let spans = read_trace(&file)?;
    let found = spans.len();
    let interval = |span: TraceSpan| {
        let (kind, micro, chunk) = parse_name(&span.name)?;
        Some(Interval { span, kind, micro, chunk })
    };
    let all: Vec<Interval> = spans.into_iter().filter_map(interval).collect();
    if all.is_empty() {
        return Err(Failure::new(format!(
            "{}: none of its {found} intervals is named like an instruction (F 3.0: forward of micro-batch 3 through \
             chunk 0); wanted the trace of a run with pipeline ranks",
            file.display()
        )));
    }
    if let Some(i) = all.iter().find(|i| !fits(program, i)) {
        return Err(Failure::usage(format!(
            "{}: {:?} of rank {} is not in this schedule of {} ranks and {} micro-batches; name the schedule that the \
             run used",
            file.display(),
            i.span.name,
            i.span.rank,
            program.ranks(),
            program.micro_batches()
        )));
    }
    let step = chosen(&all, wanted)?;
    let first = all.iter().filter_map(Interval::step).min();
    let several = all.iter().any(|i| i.step() != first);
    let mut samples = Samples::default();
    for i in all.iter().filter(|i| !several || i.step() != first) {
        let (rank, time) = (i.span.rank as usize, i.span.duration_us / 1e3);
        samples.add(&Sample { rank, chunk: i.chunk, kind: i.kind, time });
    }
    let shown: Vec<&Interval> = all.iter().filter(|i| i.step() == step).collect();
    let start = shown.iter().map(|i| i.span.start_us).fold(f64::INFINITY, f64::min);
    let end = shown.iter().map(|i| i.span.start_us + i.span.duration_us).fold(start, f64::max);
    let lane = |rank: usize| Lane {
        label: format!("rank {rank}"),
        cells: shown
            .iter()
            .filter(|i| i.span.rank == rank as u64)
            .flat_map(|i| {
                let from = (i.span.start_us - start) / 1e3;
                let span = (from, from + i.span.duration_us / 1e3);
                let other = i.span.name.split_once('&').and_then(|(_, b)| parse_name(b)).map(|b| b.1);
                measured_cells(i.kind, (i.micro, i.chunk), other, span, &i.span.name)
            })
            .collect(),
        note: String::new(),
    };
    let lanes = (0..program.ranks()).map(lane).collect();
    Ok(Measured { step, makespan: (end - start) / 1e3, lanes, samples })
}

/// Whether the program has such an instruction's rank, chunk and micro-batch.
fn fits(program: &Program, interval: &Interval) -> bool {
    let rank = usize::try_from(interval.span.rank).unwrap_or(usize::MAX);
    let counted = !matches!(interval.kind, Kind::Reduce | Kind::Step | Kind::Gather | Kind::Fill(_));
    rank < program.ranks()
        && interval.chunk < program.chunks(rank)
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
