//! `bessemer-bench step`: a whole training step on random tokens.

use crate::cli::BenchStepArgs;
use crate::job;
use bessemer::{Console, Failure, print};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, peak};
use bessemer_measure::{Spent, Steps, Timed, Times, engine, machine, measure_steps};
use bessemer_parallel::MemoryPlan;
use bessemer_units::Bytes;
use bessemer_units::stats::upper_median;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn run(args: &BenchStepArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.steps == 0 {
        return Err(Failure::usage("--steps 0: wanted at least 1"));
    }
    let job = job::of_args(args)?;
    let threads = machine::threads(args.threads as u64);
    // The bandwidth test takes memory of its own, which the peak resident size of this process would show.
    let rung = bessemer_kernels_cpu::Rung::detect();
    let before = peak::flops_per_s(rung, threads)?;
    let config = CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() };
    let mut cpu = match &args.engine {
        Some(name) => CpuBackend::with_engine(config, rung, engine(name)?)?,
        None => CpuBackend::new(config)?,
    };
    MemoryPlan::alone(&job.model, job.shape, job.activations.clone(), &job.optim, Some(&mut cpu))?
        .fits(1, machine::available_memory())?;
    let engine = cpu.engine();
    let steps = Steps { warmup: args.warmup, timed: args.steps, dump: args.dump.as_deref() };
    let mut backend = Timed::new(Box::new(cpu), args.profile);
    let (losses, mut times) = measure_steps(&job, &steps, &mut backend, &mut |line| console.say(line))?;
    let after = peak::flops_per_s(rung, threads)?;

    let tokens = job.tokens() as f64;
    let seconds = upper_median(&mut times.step);
    let resident = machine::peak_resident_bytes();
    let rate = job.flops() / seconds;
    if as_json {
        let mut result = job.facts();
        let ms = |list: &mut Vec<f64>| (!list.is_empty()).then(|| 1e3 * upper_median(list));
        let more = json!({
            "threads": threads,
            "kernels": rung.to_string(),
            "engine": engine.name(),
            "warmup_steps": args.warmup,
            "timed_steps": args.steps,
            "tokens_per_s": tokens / seconds,
            "tokens_per_s_best": tokens / times.step[0],
            "gflops": rate / 1e9,
            "peak_gflops": [before / 1e9, after / 1e9],
            "peak_rss_bytes": resident,
            "losses": losses,
            "ms": {
                "step": 1e3 * seconds,
                "forward": ms(&mut times.forward),
                "loss": ms(&mut times.loss),
                "backward": ms(&mut times.backward),
                "optimizer": ms(&mut times.optimizer),
            },
            "operators": args.profile.then(|| operators_json(&times)),
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut result, more) {
            all.extend(more);
        }
        return Ok(print(&serde_json::to_string(&result)?)?);
    }
    let peak = (before + after) / 2.0;
    print(&format!(
        "{}\n{:.0} tokens/s (median of {} after {}; best {:.0}), {:.0} GFLOP/s = {:.0} % of the f32 peak {:.0} GFLOP/s, peak \
         memory {}, products by {engine}",
        job.model.summary(),
        tokens / seconds,
        args.steps,
        args.warmup,
        tokens / times.step[0],
        rate / 1e9,
        100.0 * rate / peak,
        peak / 1e9,
        Bytes(resident.unwrap_or_default())
    ))?;
    let ms = |list: &mut Vec<f64>| 1e3 * upper_median(list);
    print(&format!(
        "{:.1} ms a step: forward {:.1}, loss and its gradient {:.1}, backward {:.1}, optimizer {:.1}",
        1e3 * seconds,
        ms(&mut times.forward),
        ms(&mut times.loss),
        ms(&mut times.backward),
        ms(&mut times.optimizer)
    ))?;
    if args.profile {
        print(&operators_text(&times))?;
    }
    Ok(())
}

/// Operators by the time that they took.
fn slowest_first<K>(list: impl IntoIterator<Item = (K, Spent)>) -> Vec<(K, Spent)> {
    let mut list: Vec<_> = list.into_iter().collect();
    list.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
    list
}

/// Sums over the shapes of an operator.
fn by_kind(times: &Times) -> Vec<(&'static str, Spent)> {
    let mut kinds: BTreeMap<&'static str, Spent> = BTreeMap::new();
    for ((name, _), spent) in &times.operators {
        let sum = kinds.entry(name).or_default();
        sum.launches += spent.launches;
        sum.time += spent.time;
        sum.flops += spent.flops;
        sum.bytes += spent.bytes;
    }
    slowest_first(kinds)
}

fn operators_json(times: &Times) -> Value {
    let steps = times.step.len() as f64;
    let row = |name: &str, shapes: Option<&str>, s: &Spent| {
        let seconds = s.time.as_secs_f64();
        json!({
            "op": name,
            "shapes": shapes,
            "launches": s.launches as f64 / steps,
            "ms": 1e3 * seconds / steps,
            "gflops": s.flops / seconds / 1e9,
            "gb_per_s": s.bytes / seconds / 1e9,
        })
    };
    let kinds: Vec<_> = by_kind(times).iter().map(|(name, s)| row(name, None, s)).collect();
    let each = slowest_first(times.operators.iter().map(|(k, s)| (k, *s)));
    let shapes: Vec<_> = each.iter().map(|((name, shapes), s)| row(name, Some(shapes), s)).collect();
    json!({ "by_kind": kinds, "by_shape": shapes })
}

/// Rows of the longer table.
const SHAPES_SHOWN: usize = 20;

fn operators_text(times: &Times) -> String {
    let steps = times.step.len() as f64;
    let total = times.step.iter().sum::<f64>();
    let row = |name: &str, s: &Spent| {
        let seconds = s.time.as_secs_f64();
        format!(
            "{name:<66} {:>8.1} {:>9.2} {:>5.1} {:>9.1} {:>7.1}\n",
            s.launches as f64 / steps,
            1e3 * seconds / steps,
            100.0 * seconds / total,
            s.flops / seconds / 1e9,
            s.bytes / seconds / 1e9
        )
    };
    let head = |what: &str| {
        format!("\n{what:<66} {:>8} {:>9} {:>5} {:>9} {:>7}\n", "launches", "ms/step", "%", "GFLOP/s", "GB/s")
    };
    let mut text = head("operator");
    let kinds = by_kind(times);
    for (name, spent) in &kinds {
        text += &row(name, spent);
    }
    let counted: f64 = kinds.iter().map(|k| k.1.time.as_secs_f64()).sum();
    let outside = Spent { time: Duration::from_secs_f64((total - counted).max(0.0)), ..Spent::default() };
    text += &row("outside operators", &outside);
    text += &head("operator and shape of its first two operands");
    let each = slowest_first(times.operators.iter().map(|(k, s)| (k, *s)));
    for ((name, shapes), spent) in each.iter().take(SHAPES_SHOWN) {
        text += &row(&format!("{name} {shapes}"), spent);
    }
    text
}
