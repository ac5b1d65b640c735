//! `bessemer-bench experts`: a layer of experts, forward and backward, over a dense gated MLP of the same FLOPs, in pairs.
//!
//! The dense MLP has as many rows as all experts together and the width of one expert. A round runs it, the layer and PyTorch's
//! forms in turn, so that a machine that slows down slows all of them; a figure is the median over rounds of a quotient within a
//! round. Routes are those of a random router on random tokens: about as many rows for each expert.

mod layer;
mod torch;

use crate::cli::{Activations, BenchExpertsArgs};
use bessemer::{Console, Failure, print};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_measure::{engine, machine};
use bessemer_units::Storage;
use bessemer_units::stats::upper_median;
use layer::Layer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use torch::Torch;

/// Forms of PyTorch: the dense MLP, transformers' block as a loop and as a grouped product, batched products with a capacity of 1.25.
const FORMS: [&str; 4] = ["dense", "loop", "grouped", "capacity"];

/// A pass that takes longer is run twice in a round instead of four times.
const LONG_MS: f64 = 200.0;

/// A layer of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Shape {
    experts: usize,
    choices: usize,
    /// Rows of an expert, on average.
    rows: usize,
    width: usize,
    hidden: usize,
}

impl Shape {
    fn tokens(&self) -> usize {
        (self.experts * self.rows).div_ceil(self.choices)
    }
}

/// Figures of a line, medians over rounds.
struct Line {
    dense_ms: f64,
    /// Time of the layer over that of the dense MLP.
    ours: f64,
    /// Share of the time of the layer.
    routing: f64,
    /// Time of each form of PyTorch over that of our dense MLP.
    torch: Vec<Option<f64>>,
    rounds: usize,
}

pub(crate) fn run(args: &BenchExpertsArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let threads = machine::threads(args.threads as u64);
    let config = CpuConfig { threads, matmul: args.matmul.into(), ..CpuConfig::default() };
    let rung = Rung::detect();
    let engine = match &args.engine {
        None => Engine::fastest(rung, config.matmul),
        Some(name) => engine(name)?,
    };
    let shapes = shapes(args)?;
    let mut torch = args.python.as_deref().map(|python| Torch::start(python, threads)).transpose()?;
    if !as_json {
        print(&format!("{rung} kernels, products by {engine}, {threads} threads"))?;
        print(
            "| type | experts, choices | rows | dense MLP, ms | layer / dense | routing | torch dense | loop | grouped | capacity | rounds |\n\
             |---|---|---|---|---|---|---|---|---|---|---|",
        )?;
    }
    let mut lines = Vec::new();
    for dtype in &args.dtype {
        let name = match dtype {
            Activations::F32 => "f32",
            Activations::Bf16 => "bf16",
        };
        for shape in &shapes {
            let mut backend = CpuBackend::with_engine(config.clone(), rung, engine)?;
            let line = line(args, (&mut backend, torch.as_mut()), shape, (*dtype, name), console)?;
            if as_json {
                lines.push(json(shape, name, &line));
            } else {
                print(&text(shape, name, &line))?;
            }
        }
    }
    if as_json {
        let all = json!({ "kernels": rung.to_string(), "engine": engine.name(), "threads": threads, "lines": lines });
        print(&serde_json::to_string(&all)?)?;
    }
    Ok(())
}

fn shapes(args: &BenchExpertsArgs) -> Result<Vec<Shape>, Failure> {
    let numbers = |text: &String| -> Option<(usize, usize)> {
        let (experts, choices) = text.split_once('x')?;
        let (experts, choices): (usize, usize) = (experts.parse().ok()?, choices.parse().ok()?);
        ((1..=4096).contains(&experts) && (2..=experts.max(2)).contains(&choices))
            .then_some((experts, choices))
    };
    let mut found = Vec::new();
    for text in &args.experts {
        let Some((experts, choices)) = numbers(text) else {
            return Err(Failure::usage(format!(
                "--experts {text}: wanted experts x choices, from 2 choices to as many as experts, such as 8x2"
            )));
        };
        let &BenchExpertsArgs { width, hidden, .. } = args;
        found.extend(args.rows.iter().map(|rows| Shape {
            experts,
            choices,
            rows: (*rows).max(1),
            width,
            hidden,
        }));
    }
    if [args.width, args.hidden, args.rounds].contains(&0) {
        return Err(Failure::usage("--width, --hidden and --rounds: wanted at least 1"));
    }
    Ok(found)
}

fn line(
    args: &BenchExpertsArgs,
    (backend, mut torch): (&mut CpuBackend, Option<&mut Torch>),
    shape: &Shape,
    (activations, name): (Activations, &str),
    console: &mut Console,
) -> Result<Line, Failure> {
    let dtype = Storage::from(activations).dtype();
    let rows = shape.tokens() * shape.choices;
    let dense = Layer::dense(backend, (rows, shape.width, shape.hidden), dtype)?;
    let experts = Layer::experts(backend, shape, dtype)?;
    if let Some(torch) = &mut torch {
        torch.make(shape, name)?;
        // The first pass touches memory.
        FORMS.iter().try_for_each(|form| torch.seconds(form).map(drop))?;
    }
    let mut operators = BTreeMap::<String, Vec<f64>>::new();
    let (mut dense_ms, mut ours, mut routing) = (Vec::new(), Vec::new(), Vec::new());
    let mut theirs = vec![Vec::new(); FORMS.len()];
    let begun = Instant::now();
    while dense_ms.is_empty()
        || (dense_ms.len() < args.rounds && begun.elapsed().as_secs_f64() < args.seconds)
    {
        if torch.is_some() {
            // Its threads spin for a while.
            std::thread::sleep(Duration::from_millis(20));
        }
        // The first run warms caches and wakes threads.
        let (mut alone, mut all, mut share) = (Vec::new(), Vec::new(), Vec::new());
        let turns = if dense_ms.last().is_some_and(|ms| *ms > LONG_MS) { 2 } else { 4 };
        for turn in 0..turns {
            let mut keep = |name: String, took: f64| {
                if turn > 0 {
                    operators.entry(name).or_default().push(1e3 * took);
                }
            };
            let dense = dense.run(backend, &mut |op, took| keep(format!("dense {}", op.name()), took))?.all;
            let layer = experts.run(backend, &mut |op, took| keep(op.name().into(), took))?;
            if turn > 0 {
                alone.push(dense);
                all.push(layer.all / dense);
                share.push(layer.routing / layer.all);
            }
        }
        let dense = upper_median(&mut alone);
        dense_ms.push(1e3 * dense);
        ours.push(upper_median(&mut all));
        routing.push(upper_median(&mut share));
        for (form, theirs) in FORMS.iter().zip(&mut theirs) {
            if let Some(torch) = &mut torch
                && let Some(seconds) = torch.seconds(form)?
            {
                theirs.push(seconds / dense);
            }
        }
    }
    for (name, ms) in &mut operators {
        let median = upper_median(ms);
        console.say(&format!("{name}: {median:.3} ms, {:.3} at best", ms[0]));
    }
    let rounds = dense_ms.len();
    let median = |mut list: Vec<f64>| (!list.is_empty()).then(|| upper_median(&mut list));
    Ok(Line {
        dense_ms: upper_median(&mut dense_ms),
        ours: upper_median(&mut ours),
        routing: upper_median(&mut routing),
        torch: theirs.into_iter().map(median).collect(),
        rounds,
    })
}

fn text(shape: &Shape, dtype: &str, line: &Line) -> String {
    let theirs = line.torch.iter().map(|ratio| ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")));
    let theirs = theirs.collect::<Vec<_>>().join(" | ");
    format!(
        "| {dtype} | {}, {} | {} | {:.2} | {:.2} | {:.1} % | {theirs} | {} |",
        shape.experts,
        shape.choices,
        shape.rows,
        line.dense_ms,
        line.ours,
        100.0 * line.routing,
        line.rounds
    )
}

fn json(shape: &Shape, dtype: &str, line: &Line) -> Value {
    json!({
        "dtype": dtype,
        "experts": shape.experts,
        "choices": shape.choices,
        "rows": shape.rows,
        "width": shape.width,
        "hidden": shape.hidden,
        "dense_ms": line.dense_ms,
        "layer_over_dense": line.ours,
        "routing_share": line.routing,
        "torch_over_dense": FORMS.iter().copied().zip(line.torch.iter().copied()).collect::<BTreeMap<_, _>>(),
        "rounds": line.rounds,
    })
}
