//! `bessemer bench pipeline`: how long the passes of a step take on ranks of this process, beside what the simulator makes
//! of the same program, twice: with the median time of each kind of pass on each rank and chunk, and with the time that each
//! pass took in the step. What the first one misses and the second has is that passes of one kind differ; what both miss is
//! messages, the machine or the engine.
//!
//! All are from the first start of a pass to the last end of one, over all ranks: the bubble is in it, the update is not.
//! Medians are over the steps after the warm-up.

use super::job::Job;
use super::median;
use super::text::{RandomText, SEED};
use super::trace;
use crate::cli::BenchPipelineArgs;
use crate::commands::ranks::recorded_threads;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_collectives::Communicator;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_parallel::{MemoryPlan, Notes, OrderSpan, ParallelConfig, ParallelError, Plan};
use bessemer_schedule::{Instruction, Pass, Program};
use bessemer_sim::{Kind, Sample, Samples, parse_name, simulate, simulate_each};
use bessemer_train::{Runner, TrainError, on_threads};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Those with a flush.
const SCHEDULES: [&str; 10] =
    ["gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev", "zb-auto"];
/// All of [`SCHEDULES`].
const ALL: &str = "all";

/// One schedule to run.
struct Case<'a> {
    job: &'a Job,
    plan: Plan,
    program: Program,
    threads: usize,
    steps: u64,
    /// How long a rank waits for a message.
    timeout: Duration,
}

/// One schedule's seconds, medians over the steps.
struct Row {
    name: String,
    measured: f64,
    /// With the median time of each kind of pass.
    simulated: f64,
    /// With each pass's own time.
    each: f64,
    /// Shortest and longest step.
    range: (f64, f64),
    /// Seconds that the busiest rank computes.
    work: f64,
}

pub(super) fn run(args: &BenchPipelineArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let job = Job::new(&args.step)?;
    let threads = machine::threads(args.step.threads as u64);
    let asked = args.schedule.iter().map(String::as_str);
    let all = args.schedule.is_empty() || args.schedule.iter().any(|s| s == ALL);
    let names: Vec<&str> = if all { SCHEDULES.to_vec() } else { asked.collect() };
    let mut rows = Vec::new();
    let mut last = Vec::new();
    for name in names {
        let config =
            ParallelConfig { pipeline: args.ranks, schedule: name.into(), ..ParallelConfig::default() };
        let plan = Plan::new(&config, args.ranks as usize, &job.model, job.optim.optimizer);
        let plan = plan.map_err(Failure::usage)?;
        if plan.pipe.asynchronous() {
            return Err(Failure::usage(format!("--schedule {name}: wanted one with a flush")));
        }
        let program = plan.program(args.micro_batches as usize, 1, None).map_err(Failure::usage)?;
        let steps = args.step.warmup + args.step.steps;
        let case = Case { job: &job, plan, program, threads, steps, timeout: args.waiting.timeout() };
        let ranks = measure(&case)?;
        rows.push(compare(&case, name, &ranks, args.step.warmup as usize)?);
        let row = &rows[rows.len() - 1];
        console.say(&format!("{name}: {:.3} s measured, {:.3} s simulated", row.measured, row.simulated));
        last = ranks;
    }
    if let Some(path) = &args.trace {
        let notes: Vec<&Notes> = last.iter().filter_map(|steps| steps.last()).collect();
        trace::write(path, &notes)?;
        console.say(&format!("trace of the last step: {}", path.display()));
    }
    Ok(print(&match as_json {
        true => serde_json::to_string_pretty(&json!({
            "model": job.model.summary(),
            "ranks": args.ranks,
            "threads": threads,
            "micro_batches": args.micro_batches,
            "schedules": rows.iter().map(Row::value).collect::<Vec<Value>>(),
        }))?,
        false => table(&rows),
    })?)
}

impl Row {
    fn value(&self) -> Value {
        json!({
            "schedule": self.name,
            "measured_seconds": self.measured,
            "simulated_seconds": self.simulated,
            "simulated_over_measured": self.simulated / self.measured,
            "simulated_each_seconds": self.each,
            "simulated_each_over_measured": self.each / self.measured,
            "measured_range_seconds": [self.range.0, self.range.1],
            "busiest_rank_seconds": self.work,
        })
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<12} {:>10} {:>10} {:>8} {:>10} {:>8} {:>10}  steps from .. to\n",
        "schedule", "measured", "simulated", "ratio", "each", "ratio", "work"
    );
    for row in rows {
        let (measured, simulated, each, work) = (row.measured, row.simulated, row.each, row.work);
        text += &format!(
            "{:<12} {measured:>8.3} s {simulated:>8.3} s {:>8.3} {each:>8.3} s {:>8.3} {work:>8.3} s  {:.3} .. {:.3} s\n",
            row.name,
            simulated / measured,
            each / measured,
            row.range.0,
            row.range.1
        );
    }
    text + "from the first start of a pass to the last end of one; simulated with the median time of each kind of pass, and \
            with each pass's own (each)"
}

/// By rank and step: what ran when.
fn measure(case: &Case<'_>) -> Result<Vec<Vec<Notes>>, Failure> {
    let described = bessemer_parallel::Job {
        model: &case.job.model,
        shape: case.job.shape,
        activations: case.job.activations,
        types: bessemer_units::ParamStorage::default(),
        optim: &case.job.optim,
        z_loss: 0.0,
        plan: &case.plan,
        program: &case.program,
    };
    MemoryPlan::of_rank(&described, None)?.fits(case.plan.ranks(), machine::available_memory())?;
    let (_, worlds) = recorded_threads(case.plan.ranks(), case.timeout);
    Ok(on_threads(worlds, |world| steps(case, &described, world))?)
}

fn steps(
    case: &Case<'_>,
    described: &bessemer_parallel::Job<'_>,
    world: Box<dyn Communicator>,
) -> Result<Vec<Notes>, TrainError> {
    let job = case.job;
    let threads = (case.threads / case.plan.ranks()).max(1);
    let config = CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() };
    let mut backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
    let mut runner = Runner::new(&mut backend, described, world)?;
    runner.worker.init(&mut backend, SEED)?;
    runner.worker.keep_notes(true);
    let mut text = RandomText::new(job, job.tokens() * case.program.micro_batches(), job.shape, 0);
    let mut found = Vec::new();
    for step in 0..case.steps {
        text.step = step;
        runner.worker.world().barrier("step").map_err(ParallelError::from)?;
        runner.step(&mut backend, &mut text, step + 1, job.optim.lr)?;
        found.push(runner.worker.take_notes());
    }
    Ok(found)
}

/// A pass: what, micro-batch, chunk.
type PassKey = (Kind, usize, usize);

/// A pass, its start and end.
fn pass(span: &OrderSpan) -> Option<(PassKey, Instant, Instant)> {
    let key = parse_name(&span.name)?;
    let passes = [Kind::Forward, Kind::Backward, Kind::BackwardInput, Kind::BackwardWeight];
    passes.contains(&key.0).then_some((key, span.start, span.end))
}

/// The time of each instruction as it was measured in a step, on one rank.
fn times(list: &[Instruction], found: &BTreeMap<PassKey, f64>) -> Vec<Option<f64>> {
    let of = |kind: Kind, pass: &Pass| found.get(&(kind, pass.micro, pass.chunk)).copied();
    let time = |instruction: &Instruction| match instruction {
        Instruction::Forward(p) => of(Kind::Forward, p),
        Instruction::Backward(p) => of(Kind::Backward, p),
        Instruction::BackwardInput(p) => of(Kind::BackwardInput, p),
        Instruction::BackwardWeight(p) => of(Kind::BackwardWeight, p),
        // Two passes, one after the other.
        Instruction::Together { forward, backward } => {
            Some(of(Kind::Forward, forward)? + of(Kind::Backward, backward)?)
        }
        _ => None,
    };
    list.iter().map(time).collect()
}

fn compare(case: &Case<'_>, name: &str, ranks: &[Vec<Notes>], warmup: usize) -> Result<Row, Failure> {
    let mut samples = Samples::default();
    let mut seconds = Vec::new();
    let mut work = vec![Vec::new(); ranks.len()];
    let mut own: Vec<Vec<Vec<Option<f64>>>> = Vec::new();
    for step in warmup..case.steps as usize {
        let mut extent: Option<(Instant, Instant)> = None;
        let mut times_of_step = Vec::new();
        for (rank, steps) in ranks.iter().enumerate() {
            let mut found = BTreeMap::new();
            for (key, start, end) in steps[step].orders.iter().filter_map(pass) {
                let time = (end - start).as_secs_f64();
                samples.add(&Sample { rank, chunk: key.2, kind: key.0, time });
                found.insert(key, time);
                extent = Some(extent.map_or((start, end), |(a, b)| (a.min(start), b.max(end))));
            }
            work[rank].push(found.values().sum());
            times_of_step.push(times(&case.program.lists[rank], &found));
        }
        own.push(times_of_step);
        seconds.extend(extent.map(|(start, end)| (end - start).as_secs_f64()));
    }
    let costs = samples.costs(&case.program).map_err(Failure::new)?;
    let timeline = simulate(&case.program, &costs).map_err(Failure::new)?;
    let mut each = Vec::with_capacity(own.len());
    for times in &own {
        let timeline = simulate_each(&case.program, &costs, times).map_err(Failure::new)?;
        each.push(timeline.makespan(&case.program));
    }
    let measured = median(&mut seconds);
    Ok(Row {
        name: name.to_owned(),
        measured,
        simulated: timeline.makespan(&case.program),
        each: median(&mut each),
        // Sorted by the median.
        range: (seconds.first().copied().unwrap_or(measured), seconds.last().copied().unwrap_or(measured)),
        work: work.iter_mut().map(|w| median(w)).fold(0.0, f64::max),
    })
}
