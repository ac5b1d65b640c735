//! `bessemer bench pipeline`: how long the passes of a step take on ranks of this process, beside what the simulator makes
//! of the same program with the times that were measured for each pass.
//!
//! Both are from the first start of a pass to the last end of one, over all ranks: the bubble is in it, the update is not.

use super::job::Job;
use super::median;
use super::ranks::{SEED, Stretch, write};
use crate::cli::BenchPipelineArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_collectives::{Span, ThreadCommunicator, ThreadSettings};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_parallel::{ParallelConfig, ParallelError, Plan, Worker};
use bessemer_runlog::Trace;
use bessemer_schedule::Program;
use bessemer_sim::{Kind, Sample, Samples, parse_name, simulate};
use bessemer_tensor::rng::RngKey;
use bessemer_train::TrainError;
use serde_json::{Value, json};
use std::time::Instant;

const SCHEDULES: [&str; 9] =
    ["gpipe", "1f1b", "interleaved", "chimera", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev"];

/// One schedule to run.
struct Case<'a> {
    job: &'a Job,
    plan: Plan,
    program: Program,
    threads: usize,
    steps: u64,
}

/// One schedule's seconds.
struct Row {
    name: String,
    measured: f64,
    simulated: f64,
    /// Seconds that the busiest rank computes.
    work: f64,
}

pub(super) fn run(args: &BenchPipelineArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let job = Job::new(&args.step)?;
    let threads = machine::threads(args.step.threads as u64);
    let asked = args.schedule.iter().map(String::as_str);
    let names: Vec<&str> = if args.schedule.is_empty() { SCHEDULES.to_vec() } else { asked.collect() };
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
        let case = Case { job: &job, plan, program, threads, steps };
        let ranks = measure(&case)?;
        rows.push(compare(&case, name, &ranks, args.step.warmup as usize)?);
        let row = &rows[rows.len() - 1];
        console.say(&format!("{name}: {:.3} s measured, {:.3} s simulated", row.measured, row.simulated));
        last = ranks;
    }
    if let Some(path) = &args.trace {
        trace(path, &last)?;
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
            "busiest_rank_seconds": self.work,
        })
    }
}

fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:<12} {:>10} {:>10} {:>8} {:>10}\n", "schedule", "measured", "simulated", "ratio", "work");
    for row in rows {
        let (measured, simulated, work) = (row.measured, row.simulated, row.work);
        let ratio = simulated / measured;
        text +=
            &format!("{:<12} {measured:>8.3} s {simulated:>8.3} s {ratio:>8.3} {work:>8.3} s\n", row.name);
    }
    text + "from the first start of a pass to the last end of one; simulated with the median time of each pass"
}

/// By rank and step: what ran when.
fn measure(case: &Case<'_>) -> Result<Vec<Vec<Vec<Span>>>, Failure> {
    let worlds = ThreadCommunicator::world("world", case.plan.ranks(), &ThreadSettings::default());
    let results: Vec<Result<_, TrainError>> = std::thread::scope(|scope| {
        let rank = |world| scope.spawn(move || steps(case, world));
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        let panicked = || Err(TrainError::Recipe("a rank panicked".into()));
        ranks.into_iter().map(|r| r.join().unwrap_or_else(|_| panicked())).collect()
    });
    Ok(results.into_iter().collect::<Result<_, _>>()?)
}

fn steps(case: &Case<'_>, world: ThreadCommunicator) -> Result<Vec<Vec<Span>>, TrainError> {
    let (job, plan, program) = (case.job, &case.plan, &case.program);
    let threads = (case.threads / plan.ranks()).max(1);
    let config = CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() };
    let mut backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
    let described = bessemer_parallel::Job {
        model: &job.model,
        shape: job.shape,
        activations: job.activations,
        types: bessemer_units::ParamStorage::default(),
        optim: &job.optim,
        z_loss: 0.0,
        plan,
        program,
    };
    let mut worker = Worker::new(&mut backend, &described, Box::new(world))?;
    worker.init(&mut backend, SEED)?;
    worker.keep_intervals();
    let key = RngKey::new(SEED, 0, "bench.tokens");
    let vocab = job.model.vocab_size as u32;
    let all = job.tokens() * program.micro_batches();
    let stream: Vec<u32> = (0..=all as u64).map(|i| key.block(i)[0] % vocab).collect();
    let mut found = Vec::new();
    for step in 0..case.steps {
        worker.world().barrier("step").map_err(ParallelError::from)?;
        let mut feed = Stretch { stream: &stream, first: 0, shape: job.shape, step };
        worker.gradients(&mut backend, &mut feed)?;
        let norm = worker.grad_norm(&mut backend)?;
        worker.apply(&mut backend, step + 1, job.optim.lr, norm)?;
        let mut intervals = Vec::new();
        worker.take_intervals(&mut intervals);
        found.push(intervals);
    }
    Ok(found)
}

/// A pass, its chunk, start and end.
fn pass(span: &Span) -> Option<(Kind, usize, Instant, Instant)> {
    let (kind, _, chunk) = parse_name(&span.name)?;
    let passes = [Kind::Forward, Kind::Backward, Kind::BackwardInput, Kind::BackwardWeight];
    passes.contains(&kind).then_some((kind, chunk, span.start, span.end))
}

fn compare(case: &Case<'_>, name: &str, ranks: &[Vec<Vec<Span>>], warmup: usize) -> Result<Row, Failure> {
    let mut samples = Samples::default();
    let mut seconds = Vec::new();
    let mut work = vec![Vec::new(); ranks.len()];
    for step in warmup..case.steps as usize {
        let mut extent: Option<(Instant, Instant)> = None;
        for (rank, steps) in ranks.iter().enumerate() {
            let mut busy = 0.0;
            for (kind, chunk, start, end) in steps[step].iter().filter_map(pass) {
                let time = (end - start).as_secs_f64();
                samples.add(&Sample { rank, chunk, kind, time });
                busy += time;
                extent = Some(extent.map_or((start, end), |(a, b)| (a.min(start), b.max(end))));
            }
            work[rank].push(busy);
        }
        seconds.extend(extent.map(|(start, end)| (end - start).as_secs_f64()));
    }
    let costs = samples.costs(&case.program).map_err(Failure::new)?;
    let timeline = simulate(&case.program, &costs).map_err(Failure::new)?;
    Ok(Row {
        name: name.to_owned(),
        measured: median(&mut seconds),
        simulated: timeline.makespan(&case.program),
        work: work.iter_mut().map(|w| median(w)).fold(0.0, f64::max),
    })
}

/// Writes a Chrome trace of the last step: passes on stream 0 of each rank, messages on stream 1.
fn trace(path: &std::path::Path, ranks: &[Vec<Vec<Span>>]) -> Result<(), Failure> {
    let last = || ranks.iter().enumerate().filter_map(|(r, steps)| Some((r as u64, steps.last()?)));
    let Some(origin) = last().flat_map(|(_, spans)| spans).map(|s| s.start).min() else { return Ok(()) };
    let mut trace = Trace::create(path).map_err(Failure::new)?;
    let micros = |at: Instant| at.saturating_duration_since(origin).as_secs_f64() * 1e6;
    for (rank, spans) in last() {
        trace.name(rank, None, &format!("rank {rank}")).map_err(Failure::new)?;
        trace.name(rank, Some(0), "passes").map_err(Failure::new)?;
        trace.name(rank, Some(1), "messages").map_err(Failure::new)?;
        for span in spans {
            let stream = u64::from(parse_name(&span.name).is_none());
            write(&mut trace, rank, stream, &span.name, micros(span.start), micros(span.end))?;
        }
    }
    trace.finish().map_err(Failure::new)
}
