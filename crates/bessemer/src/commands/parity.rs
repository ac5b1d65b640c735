//! `bessemer parity`: trains the same small models under a matrix of layouts and holds each against one rank.

use crate::cli::ParityArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::signals;
use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::ActivationConfig;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_tensor::Backend;
use bessemer_train::parity::{Bounds, Comparison, Layout, ParityJob, Style, in_process, matrix};
use bessemer_train::{Observer, TrainError};
use serde_json::json;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Sequences of a step: as many as the largest layout has data-parallel ranks and micro-batches.
const SEQUENCES: usize = 32;
/// Tokens of a sequence.
const SEQ: usize = 16;

/// One layout's result.
struct Row {
    style: Style,
    layout: Layout,
    result: Result<Comparison, String>,
}

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    let backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
    Ok(Box::new(backend))
}

fn styles(names: &[String]) -> Result<Vec<Style>, Failure> {
    let find = |name: &String| {
        let known = Style::ALL.into_iter().find(|s| s.name() == name);
        known.ok_or_else(|| Failure::usage(format!("--models {name}: expected gpt2 or llama")))
    };
    names.iter().map(find).collect()
}

fn optimizer(name: &str) -> Result<OptimizerChoice, Failure> {
    match name {
        "adamw" => Ok(OptimizerChoice::AdamW),
        "sgd" => Ok(OptimizerChoice::Sgd),
        "lion" => Ok(OptimizerChoice::Lion),
        _ => Err(Failure::usage(format!("--optimizer {name}: expected adamw, sgd or lion"))),
    }
}

pub(crate) fn run(args: &ParityArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let styles = styles(&args.models)?;
    let optim = OptimConfig { optimizer: optimizer(&args.optimizer)?, lr: 1e-3, ..OptimConfig::default() };
    let layouts: Vec<Layout> = matrix(args.ranks as usize)
        .into_iter()
        .filter(|l| args.only.as_ref().is_none_or(|text| l.name.contains(text.as_str())))
        .filter(|l| (l.ranks / l.parallel.tensor as usize) * l.accumulation <= SEQUENCES)
        .collect();
    if layouts.is_empty() {
        let of = args.only.as_deref().unwrap_or("");
        return Err(Failure::usage(format!("no layout of at most {} ranks holds {of:?}", args.ranks)));
    }
    let stop = signals::stop_flag()?;
    let (bounds, settings) = (Bounds::default(), ThreadSettings::default());
    let total = (styles.len() * layouts.len()) as u64;
    let begun = Instant::now();
    let mut rows: Vec<Row> = Vec::new();
    for style in styles {
        let model = style.model(SEQ).map_err(Failure::new)?;
        let job = ParityJob {
            model,
            optim: optim.clone(),
            activations: ActivationConfig::default(),
            sequences: SEQUENCES,
            seq: SEQ,
            steps: args.steps,
            seed: args.seed,
        };
        let reference = in_process(&job, &Layout::single(), &settings, &backend)?;
        for layout in &layouts {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::new(format!("stopped after {} of {total} layouts", rows.len())));
            }
            console.progress("layouts", rows.len() as u64, total);
            let found = in_process(&job, layout, &settings, &backend).map_err(|e| e.to_string());
            let result = found.map(|found| Comparison::new(&found, &reference, &bounds));
            rows.push(Row { style, layout: layout.clone(), result });
        }
    }
    let failed = rows.iter().filter(|r| !matches!(&r.result, Ok(c) if c.problem.is_none())).count();
    if as_json {
        print(&as_values(&rows, args))?;
    } else {
        print(&table(&rows, args, begun.elapsed().as_secs_f64()))?;
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{failed} of {} layouts are not equal to one rank", rows.len())))
}

fn table(rows: &[Row], args: &ParityArgs, seconds: f64) -> String {
    let mut text = format!(
        "{:<6} {:<44} {:>10} {:>10} {:>10}  worst gradient\n",
        "model", "layout", "loss 1", "loss any", "gradient"
    );
    for row in rows {
        let (style, name) = (row.style.name(), &row.layout.name);
        let line = match &row.result {
            Ok(c) => format!(
                "{style:<6} {name:<44} {:>10.1e} {:>10.1e} {:>10.1e}  {}{}",
                c.first_loss,
                c.any_loss.0,
                c.gradient.0,
                c.gradient.1,
                c.problem.as_ref().map(|p| format!("\n       FAILED: {p}")).unwrap_or_default()
            ),
            Err(e) => format!("{style:<6} {name:<44} FAILED: {e}"),
        };
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(
        text,
        "{} layouts, {} steps each, in {seconds:.0} s; relative differences from one rank",
        rows.len(),
        args.steps
    );
    text
}

fn as_values(rows: &[Row], args: &ParityArgs) -> String {
    let row = |row: &Row| {
        let (parallel, ranks) = (&row.layout.parallel, row.layout.ranks);
        let mut value = json!({
            "model": row.style.name(),
            "layout": row.layout.name,
            "ranks": ranks,
            "parallel": parallel,
            "accumulation": row.layout.accumulation,
        });
        let more = match &row.result {
            Ok(c) => json!({
                "first_loss": c.first_loss,
                "any_loss": c.any_loss.0,
                "any_loss_step": c.any_loss.1,
                "gradient": c.gradient.0,
                "worst_gradient": c.gradient.1,
                "diverging": c.diverging,
                "problem": c.problem,
            }),
            Err(e) => json!({ "problem": e }),
        };
        if let (Some(value), Some(more)) = (value.as_object_mut(), more.as_object()) {
            value.extend(more.clone());
        }
        value
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!("{:#}", json!({ "steps": args.steps, "seed": args.seed, "layouts": rows }))
}
