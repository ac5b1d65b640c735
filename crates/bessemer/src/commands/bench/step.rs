//! `bessemer bench step`: a whole training step on random tokens.

use super::job::Job;
use super::text::{RandomText, SEED};
use super::timed::{Ledger, Spent, Timed};
use super::{engine, median};
use crate::cli::BenchStepArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_checkpoint::hf::{HfExport, export_hf};
use bessemer_checkpoint::{TensorSpec, TensorsFrom};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, peak};
use bessemer_model::Decoder;
use bessemer_parallel::MemoryPlan;
use bessemer_tensor::Backend;
use bessemer_train::{Runner, give_second_memory};
use bessemer_units::{Bytes, DType};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many steps are measured.
pub(in crate::commands) struct Steps<'a> {
    /// Before the timed ones.
    pub(in crate::commands) warmup: u64,
    pub(in crate::commands) timed: u64,
    /// Where the initial weights and the tokens are written.
    pub(in crate::commands) dump: Option<&'a Path>,
}

/// Times of the timed steps.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) step: Vec<f64>,
    forward: Vec<f64>,
    loss: Vec<f64>,
    backward: Vec<f64>,
    optimizer: Vec<f64>,
    pub(super) operators: BTreeMap<(&'static str, String), Spent>,
}

impl Times {
    /// Takes a step that began at `begun` and ended at `ended`.
    fn add(&mut self, begun: Instant, ended: Instant, ledger: Ledger) {
        let updating = ledger.norm.unwrap_or(ended);
        let mut note = |list: fn(&mut Times) -> &mut Vec<f64>, time: Duration| {
            list(self).push(time.as_secs_f64());
        };
        note(|t| &mut t.step, ended - begun);
        note(|t| &mut t.optimizer, ended - updating);
        if let Some((from, to)) = ledger.loss {
            note(|t| &mut t.forward, from - begun);
            note(|t| &mut t.loss, to - from);
            note(|t| &mut t.backward, updating - to);
        }
        for (key, spent) in ledger.shapes {
            let sum = self.operators.entry(key).or_default();
            sum.launches += spent.launches;
            sum.time += spent.time;
            sum.flops += spent.flops;
            sum.bytes += spent.bytes;
        }
    }
}

pub(super) fn run(args: &BenchStepArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.steps == 0 {
        return Err(Failure::usage("--steps 0: wanted at least 1"));
    }
    let job = Job::new(args)?;
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
    let (losses, mut times) = measure(&job, &steps, &mut backend, console)?;
    let after = peak::flops_per_s(rung, threads)?;

    let tokens = job.tokens() as f64;
    let seconds = median(&mut times.step);
    let resident = machine::peak_resident_bytes();
    let rate = job.flops() / seconds;
    if as_json {
        let mut result = job.facts();
        let ms = |list: &mut Vec<f64>| (!list.is_empty()).then(|| 1e3 * median(list));
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
    let ms = |list: &mut Vec<f64>| 1e3 * median(list);
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

/// Runs the steps: losses of all, times of those after the warm-up.
pub(super) fn measure(
    job: &Job,
    steps: &Steps<'_>,
    backend: &mut Timed,
    console: &mut Console,
) -> Result<(Vec<f64>, Times), Failure> {
    let mut runner = Runner::alone(backend, &job.model, job.shape, job.activations.clone(), &job.optim)?;
    give_second_memory(&mut runner.worker, &job.offload_dir, Path::new("."))?;
    runner.worker.init(backend, SEED)?;
    let mut text = RandomText::new(job, job.tokens(), job.shape, 0);
    if let Some(dir) = steps.dump {
        dump(job, dir, runner.worker.decoder(), backend, text.stream())?;
        console.say(&format!("initial weights and tokens: {}", dir.display()));
    }
    let (mut losses, mut times) = (Vec::new(), Times::default());
    backend.take();
    for step in 0..steps.warmup + steps.timed {
        text.step = step;
        let begun = Instant::now();
        let loss = runner.step(backend, &mut text, step + 1, job.optim.lr)?.loss.mean();
        let ended = Instant::now();
        let ledger = backend.take();
        let rate = job.tokens() as f64 / (ended - begun).as_secs_f64();
        console.say(&format!("step {step}: loss {loss:.4}, {rate:.0} tokens/s"));
        losses.push(loss);
        if step >= steps.warmup {
            times.add(begun, ended, ledger);
        }
    }
    Ok((losses, times))
}

/// Files of the dump beside config.json and model.safetensors: the batch, T + 1 ids a sequence without the overlap, and
/// what was run on it.
const TOKENS: &str = "tokens.u32";
const JOB: &str = "job.json";

/// Writes weights, ids (raw little-endian u32: inputs, then the target of the last one) and the job.
fn dump(
    job: &Job,
    dir: &Path,
    decoder: &Decoder,
    backend: &mut dyn Backend,
    stream: &[u32],
) -> Result<(), Failure> {
    let specs = decoder.params().iter().map(|p| TensorSpec {
        name: p.spec.name.clone(),
        shape: p.spec.shape.clone(),
        dtype: DType::F32,
    });
    let mut tensors = TensorsFrom::new(specs.collect(), |i, values: &mut [f32]| {
        Ok(backend.read_f32(decoder.params()[i].value, values)?)
    });
    let ids: Vec<u8> = stream.iter().flat_map(|t| t.to_le_bytes()).collect();
    export_hf(
        dir,
        HfExport {
            model: &job.model,
            model_type: None,
            tensors: &mut tensors,
            dtype: DType::F32,
            vocab_size: None,
            bos_token_id: None,
            eos_token_id: None,
            extra_files: vec![(TOKENS.into(), ids), (JOB.into(), serde_json::to_vec_pretty(&job.facts())?)],
            max_file_bytes: u64::MAX,
            overwrite: true,
            progress: &mut |_, _| {},
        },
    )?;
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
