//! `bessemer-bench ranks`: what several ranks of one process cost against one rank with all threads, in pairs.
//!
//! Both do the same step: as many tokens in as many micro-batches, of which each rank takes its share. A block of steps of
//! one rank and a block of the ranks take turns, so that a machine that slows down slows both.

use crate::cli::BenchRanksArgs;
use crate::job;
use crate::trace;
use bessemer::{Console, Failure, print};
use bessemer_collectives::{CallSpan, Communicator};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_measure::{Job, RandomText, SEED, machine};
use bessemer_parallel::{MemoryPlan, Notes, ParallelConfig, ParallelError, Plan, Stage};
use bessemer_runtime::Shape;
use bessemer_train::{Passes, Runner, TrainError, give_second_memory, on_threads, recorded_threads};
use bessemer_units::stats::upper_median;
use bessemer_units::{ParamDType, ParamStorage, ReduceDType};
use serde_json::json;
use std::path::Path;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Block as one rank saw it.
#[derive(Debug, Default)]
struct Block {
    seconds: Vec<f64>,
    losses: Vec<f64>,
    /// When its computation of gradients ran, by step.
    computing: Vec<(Instant, Instant)>,
    /// When its passes and collectives ran, by step.
    notes: Vec<Notes>,
    /// The thread that computes.
    thread: Option<ThreadId>,
}

/// A block's geometry.
#[derive(Clone, Copy)]
struct Turn<'a> {
    job: &'a Job,
    plan: &'a Plan,
    threads: usize,
    /// How long a rank waits in a collective.
    timeout: Duration,
    micro_batches: usize,
    steps: u64,
    types: ParamStorage,
}

pub(crate) fn run(args: &BenchRanksArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let job = job::of_args(&args.step)?;
    let (ranks, threads) = (args.ranks as usize, machine::threads(args.step.threads as u64));
    let stage = stage(&args.data)?;
    let types = types(&args.weights, &args.gradients)?;
    let config = ParallelConfig {
        stage,
        tensor: args.tensor.into(),
        sequence: args.sequence,
        reduce_dtype: reduce_dtype(&args.reduce_dtype)?,
        overlap: !args.blocking,
        ..ParallelConfig::default()
    };
    let many = Plan::new(&config, ranks, &job.model, job.optim.optimizer).map_err(Failure::usage)?;
    let data = many.data_ranks();
    if !job.shape.sequences.is_multiple_of(data) {
        return Err(Failure::usage(format!(
            "--batch {} does not divide over the {data} ranks that see different data",
            job.shape.sequences
        )));
    }
    let one = Plan::single();
    let turn = |plan| Turn {
        job: &job,
        plan,
        threads,
        timeout: args.waiting.timeout(),
        micro_batches: args.micro_batches as usize,
        steps: args.step.warmup + args.step.steps,
        types,
    };
    [&one, &many].into_iter().try_for_each(|plan| require_memory(&turn(plan)))?;
    let (mut alone, mut together, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = Vec::new();
    for round in 0..args.rounds {
        let skip = args.step.warmup as usize;
        let mut a = block(&turn(&one))?;
        let mut b = block(&turn(&many))?;
        check_losses(&a[0].losses, &b, (types, many.reduce_dtype))?;
        let (a, b_seconds) =
            (upper_median(&mut a[0].seconds[skip..]), upper_median(&mut b[0].seconds[skip..]));
        console.say(&format!("round {}: {a:.3} s alone, {b_seconds:.3} s together", round + 1));
        alone.push(a);
        together.push(b_seconds);
        ratios.push(b_seconds / a);
        last = b;
    }
    if let Some(path) = &args.trace {
        let notes: Vec<&Notes> = last.iter().filter_map(|block| block.notes.last()).collect();
        trace::write(path, &notes)?;
        console.say(&format!("trace of the last step: {}", path.display()));
    }
    let tokens = (job.tokens() * args.micro_batches as usize) as f64;
    let (a, b, ratio) = (upper_median(&mut alone), upper_median(&mut together), upper_median(&mut ratios));
    let hidden = hidden(&last);
    Ok(print(&match as_json {
        true => serde_json::to_string(&json!({
            "model": job.model.summary(),
            "layout": many.summary(),
            "types": types.to_string(),
            "threads": threads,
            "micro_batches": args.micro_batches,
            "tokens": tokens,
            "seconds_alone": a,
            "seconds_together": b,
            "ratio": ratio,
            "ratios": ratios,
            "collective_seconds": hidden.0,
            "collective_seconds_while_computing": hidden.1,
        }))?,
        false => format!(
            "{}\n{}: {b:.3} s a step ({:.0} tokens/s), one rank with {threads} threads {a:.3} s ({:.0}); median ratio \
             {ratio:.3} of {} pairs\ncollectives {:.3} s a step and rank, {:.0} % of it beside the computation of gradients",
            job.model.summary(),
            many.summary(),
            tokens / b,
            tokens / a,
            args.rounds,
            hidden.0,
            100.0 * hidden.1 / hidden.0.max(f64::MIN_POSITIVE)
        ),
    })?)
}

fn stage(name: &str) -> Result<Stage, Failure> {
    match name {
        "ddp" => Ok(Stage::Ddp),
        "zero1" => Ok(Stage::Zero1),
        "zero2" => Ok(Stage::Zero2),
        "zero3" => Ok(Stage::Zero3),
        _ => Err(Failure::usage(format!("--data {name}: expected ddp, zero1, zero2 or zero3"))),
    }
}

fn reduce_dtype(name: &str) -> Result<ReduceDType, Failure> {
    match name {
        "stored" => Ok(ReduceDType::Stored),
        "int8" => Ok(ReduceDType::Int8),
        _ => Err(Failure::usage(format!("--reduce-dtype {name}: expected stored or int8"))),
    }
}

fn types(weights: &str, gradients: &str) -> Result<ParamStorage, Failure> {
    let named = |option: &str, name: &str| match name {
        "f32" => Ok(ParamDType::F32),
        "bf16" => Ok(ParamDType::Bf16),
        "f16" => Ok(ParamDType::F16),
        _ => Err(Failure::usage(format!("--{option} {name}: expected f32, bf16 or f16"))),
    };
    let (weights, gradients) = (named("weights", weights)?, named("gradients", gradients)?);
    if gradients != ParamDType::F32 && gradients != weights {
        return Err(Failure::usage(format!(
            "--gradients {gradients:?} with --weights {weights:?}: expected f32, or the type of the weights"
        )));
    }
    Ok(ParamStorage { weights, gradients })
}

/// The same step must have been measured.
fn check_losses(
    alone: &[f64],
    ranks: &[Block],
    (types, reduce_dtype): (ParamStorage, ReduceDType),
) -> Result<(), Failure> {
    // Short weights amplify what sums in another order leave, and gradients in 8 bits are rounded: bessemer parity has the bounds.
    let short = types.has_masters() || reduce_dtype == ReduceDType::Int8;
    let bound = if short { 2e-2 } else { 1e-4 };
    let apart = |(a, b): (&f64, &f64)| ((a - b) / a).abs() > bound;
    match alone.iter().zip(&ranks[0].losses).position(apart) {
        None => Ok(()),
        Some(step) => Err(Failure::new(format!(
            "step {}: loss {} of one rank and {} of several are not the same",
            step + 1,
            alone[step],
            ranks[0].losses[step]
        ))),
    }
}

/// Runs one block, every rank on a thread and a backend of its own.
fn block(turn: &Turn<'_>) -> Result<Vec<Block>, Failure> {
    let (_, worlds) = recorded_threads(turn.plan.ranks(), turn.timeout);
    Ok(on_threads(worlds, |world| steps(turn, world))?)
}

/// A rank's part of the step that is measured.
fn shape(turn: &Turn<'_>) -> Shape {
    Shape { sequences: turn.job.shape.sequences / turn.plan.data_ranks(), ..turn.job.shape }
}

/// Calls `with` with what the ranks are made for.
fn described<T>(
    turn: &Turn<'_>,
    with: impl FnOnce(&bessemer_parallel::Job<'_>) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let (job, plan) = (turn.job, turn.plan);
    with(&bessemer_parallel::Job {
        model: &job.model,
        shape: shape(turn),
        activations: job.activations.clone(),
        types: turn.types,
        optim: &job.optim,
        losses: &[],
        plan,
        program: &plan.program(turn.micro_batches, 1, None)?,
    })
}

/// Refuses ranks that do not fit into the memory of this process together.
fn require_memory(turn: &Turn<'_>) -> Result<(), Failure> {
    let plan = described(turn, |job| Ok(MemoryPlan::of_rank(job, None, None)?))?;
    Ok(plan.fits(turn.plan.ranks(), machine::available_memory())?)
}

fn steps(turn: &Turn<'_>, world: Box<dyn Communicator>) -> Result<Block, TrainError> {
    let (job, plan) = (turn.job, turn.plan);
    let threads = (turn.threads / plan.ranks()).max(1);
    let config = CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() };
    let mut backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
    let mut runner = described(turn, |job| Runner::new(&mut backend, job, world))?;
    give_second_memory(&mut runner.worker, &job.offload_dir, Path::new("."))?;
    runner.worker.init(&mut backend, SEED)?;
    runner.worker.keep_notes(true);
    let shape = shape(turn);
    let first = plan.data_index(runner.worker.coord()) * turn.micro_batches * shape.sequences;
    let mut text = RandomText::new(job, job.tokens() * turn.micro_batches, shape, first);
    let mut block = Block { thread: Some(std::thread::current().id()), ..Block::default() };
    for step in 0..turn.steps {
        text.step = step;
        runner.worker.world().barrier("step").map_err(ParallelError::from)?;
        let begun = Instant::now();
        let Passes { loss, grad_norm } = runner.passes(&mut backend, &mut text)?;
        block.computing.push((begun, Instant::now()));
        runner.update(&mut backend, step + 1, job.optim.lr, grad_norm)?;
        runner.worker.world().barrier("step").map_err(ParallelError::from)?;
        block.seconds.push(begun.elapsed().as_secs_f64());
        block.losses.push(loss.mean());
        block.notes.push(runner.worker.take_notes());
    }
    Ok(block)
}

/// Seconds of collectives a step of rank 0, and how many of them run beside its computation of gradients, on a thread of
/// their own. Where ranks wait for each other before and after a step is not counted.
fn hidden(ranks: &[Block]) -> (f64, f64) {
    let Some(rank) = ranks.first() else { return (0.0, 0.0) };
    let (mut all, mut within) = (Duration::ZERO, Duration::ZERO);
    let counts = |call: &&CallSpan| call.group != "world";
    for (notes, (start, end)) in rank.notes.iter().zip(&rank.computing) {
        for call in notes.calls.iter().filter(counts) {
            all += call.end - call.start;
            if Some(call.thread) != rank.thread {
                let (from, to) = (call.start.max(*start), call.end.min(*end));
                within += to.saturating_duration_since(from);
            }
        }
    }
    let steps = rank.computing.len().max(1) as f64;
    (all.as_secs_f64() / steps, within.as_secs_f64() / steps)
}
