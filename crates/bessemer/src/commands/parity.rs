//! `bessemer parity`: trains the same small models under a matrix of layouts and holds each against one rank; asynchronous
//! schedules against one process that reads weights as old.

use crate::cli::ParityArgs;
use crate::commands::ranks::Job;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::signals;
use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parity::{
    Case, Comparison, Layout, ParityJob, References, RoutedComparison, Style, asynchronous, contexts, grids,
    in_int8, in_process, matrix, mixtures, pairwise, pipelines, placed, routed, trajectory,
};
use bessemer_runtime::ActivationConfig;
use bessemer_tensor::Backend;
use bessemer_train::{Observer, TrainError};
use bessemer_units::did_you_mean;
use serde_json::json;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Sequences of a step: as many as the largest layout has data-parallel ranks and micro-batches.
const SEQUENCES: usize = 32;
/// Tokens of a sequence.
const SEQ: usize = 16;

/// A model and a layout to be held against one rank.
struct Entry {
    /// The model in words.
    model: String,
    job: ParityJob,
    layout: Layout,
}

/// One layout's result.
struct Row {
    model: String,
    layout: Layout,
    result: Result<Comparison, String>,
    /// Largest staleness of the weights of an asynchronous schedule, in updates.
    staleness: Option<usize>,
    /// Whether threads of one process give the same bits; for ranks that are processes.
    same_bits: Option<bool>,
    /// Choices of experts beside those of one rank; for mixtures on threads.
    routed: Option<RoutedComparison>,
}

impl Row {
    fn problem(&self) -> Option<&str> {
        match &self.result {
            Err(problem) => Some(problem),
            Ok(c) => c.problem.as_deref().or((self.same_bits == Some(false)).then_some(
                "differs in bits from the \
                                                                                   run with threads",
            )),
        }
    }
}

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    let backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
    Ok(Box::new(backend))
}

fn styles(names: &[String]) -> Result<Vec<Style>, Failure> {
    let find = |name: &String| {
        let known = Style::ALL.into_iter().find(|s| s.name() == name);
        known.ok_or_else(|| {
            let near = did_you_mean(name, Style::ALL.into_iter().map(|s| s.name()));
            Failure::usage(format!("--models {name}{near}: expected gpt2 or llama"))
        })
    };
    names.iter().map(find).collect()
}

fn optimizer(name: &str) -> Result<OptimizerChoice, Failure> {
    match name {
        "adamw" => Ok(OptimizerChoice::AdamW),
        "sgd" => Ok(OptimizerChoice::Sgd),
        "lion" => Ok(OptimizerChoice::Lion),
        "adafactor" => Ok(OptimizerChoice::Adafactor),
        "muon" => Ok(OptimizerChoice::Muon),
        "kfac" => Ok(OptimizerChoice::Kfac),
        _ => Err(Failure::usage(format!(
            "--optimizer {name}{}: expected adamw, sgd, lion, adafactor, muon or kfac",
            did_you_mean(name, ["adamw", "sgd", "lion", "adafactor", "muon", "kfac"])
        ))),
    }
}

/// Runs the layouts with ranks as threads of this process, or as one of the processes that a launcher started: those run the layouts
/// of as many ranks as there are processes, and the first one compares them with threads too.
pub(crate) fn run(args: &ParityArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut processes = Job::start(None, args.waiting)?;
    let result = run_in(&mut processes, args, as_json, console);
    processes.end(result)
}

fn run_in(
    processes: &mut Job,
    args: &ParityArgs,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let alone = processes.ranks == 1;
    let most = if alone { args.ranks as usize } else { processes.ranks };
    let mut entries = if args.pairwise { pairs(args, most)? } else { product(args, most)? };
    entries.retain(|e| {
        (alone || e.layout.ranks == most)
            && args.only.as_ref().is_none_or(|text| e.layout.name.contains(text.as_str()))
    });
    if entries.is_empty() {
        let of = args.only.as_deref().unwrap_or("");
        return Err(Failure::usage(format!("no layout of at most {most} ranks has {of:?} in its name")));
    }
    let stop = signals::stop_flag()?;
    let settings = ThreadSettings { patience: args.waiting.timeout(), ..ThreadSettings::default() };
    let total = entries.len() as u64;
    let begun = Instant::now();
    let mut rows: Vec<Row> = Vec::new();
    let mut references = References::new(&settings, &backend);
    for Entry { model, job, layout } in entries {
        // The first process holds against it what all of them did.
        let reference = if processes.is_first() { Some(references.of(&job, &layout)?) } else { None };
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(format!("stopped after {} of {total} layouts", rows.len())));
        }
        console.progress("layouts", rows.len() as u64, total);
        let across = match processes.group("world")? {
            Some(world) => Some(trajectory(&mut *backend()?, &job, &layout, world)?),
            None => None,
        };
        let Some(reference) = reference else { continue };
        if let (Some(routes), None) = (&reference.routes, &across) {
            let one_rank = (&reference.trajectory, routes, &reference.bounds);
            let routed = routed(&job, &layout, &settings, &backend, one_rank).map_err(|e| e.to_string());
            let (result, routed) = (routed.clone().map(|routed| routed.comparison), routed.ok());
            rows.push(Row { model, layout, result, staleness: None, same_bits: None, routed });
            continue;
        }
        let threads = in_process(&job, &layout, &settings, &backend).map_err(|e| e.to_string());
        let same_bits = across.as_ref().map(|across| threads.as_ref().is_ok_and(|t| t == across));
        let found = across.map_or(threads, Ok);
        let result = found.map(|f| Comparison::new(&f, &reference.trajectory, &reference.bounds));
        let staleness = reference.staleness;
        rows.push(Row { model, layout, result, staleness, same_bits, routed: None });
    }
    if !processes.is_first() {
        return Ok(());
    }
    let failed = rows.iter().filter(|r| r.problem().is_some()).count();
    if as_json {
        print(&as_values(&rows, args))?;
    } else {
        print(&table(&rows, args, begun.elapsed().as_secs_f64()))?;
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{failed} of {} layouts differ from their reference", rows.len())))
}

/// Every layout of at most `ranks` ranks on a model of each family.
fn product(args: &ParityArgs, ranks: usize) -> Result<Vec<Entry>, Failure> {
    let optim = OptimConfig { optimizer: optimizer(&args.optimizer)?, lr: 1e-3, ..OptimConfig::default() };
    let mut entries = Vec::new();
    for style in styles(&args.models)? {
        let layouts = matrix(ranks).into_iter().chain(pipelines(ranks)).chain(asynchronous(ranks));
        let layouts = layouts.chain(contexts(ranks, SEQUENCES)).chain(grids(ranks, SEQUENCES));
        let layouts = layouts.chain(in_int8(ranks, SEQUENCES)).chain(placed(ranks));
        let layouts = layouts.chain(mixtures(ranks, SEQUENCES)).filter(|l| l.goes_with_style(style));
        for layout in layouts.filter(|l| l.goes_with(optim.optimizer)) {
            if layout.data_ranks() * layout.accumulation > SEQUENCES {
                continue;
            }
            let job = ParityJob {
                model: layout.model(style, SEQ).map_err(Failure::new)?,
                optim: layout.optim(&optim),
                activations: ActivationConfig { in_gradients: true, ..ActivationConfig::default() },
                sequences: SEQUENCES,
                seq: SEQ,
                steps: args.steps,
                seed: args.seed,
            };
            entries.push(Entry { model: style.name().to_owned(), job, layout });
        }
    }
    Ok(entries)
}

/// The covering set of models and layouts of at most `ranks` ranks.
fn pairs(args: &ParityArgs, ranks: usize) -> Result<Vec<Entry>, Failure> {
    let entry = |case: Case| {
        let job = case.job(args.steps, args.seed).map_err(Failure::new)?;
        Ok(Entry { model: case.model_name(), job, layout: case.layout })
    };
    pairwise(ranks).into_iter().map(entry).collect()
}

fn table(rows: &[Row], args: &ParityArgs, seconds: f64) -> String {
    let width = |text: &dyn Fn(&Row) -> usize, least: usize| rows.iter().map(text).fold(least, usize::max);
    let (first, second) = (width(&|r| r.model.len(), 6), width(&|r| r.layout.name.len(), 44));
    let mut text = format!(
        "{:<first$} {:<second$} {:>10} {:>10} {:>10}  worst gradient\n",
        "model", "layout", "loss 1", "loss any", "gradient"
    );
    for row in rows {
        let (model, name) = (&row.model, &row.layout.name);
        let line = match &row.result {
            Ok(c) => format!(
                "{model:<first$} {name:<second$} {:>10.1e} {:>10.1e} {}{}{}",
                c.first_loss,
                c.any_loss.0,
                match (&c.gradient, row.staleness) {
                    (Some((apart, of)), _) => format!("{apart:>10.1e}  {of}"),
                    (None, age) => format!("{:>10}  weights up to {} updates old", "-", age.unwrap_or(0)),
                },
                row.routed.as_ref().map(other_choices).unwrap_or_default(),
                row.problem().map(|p| format!("\n       FAILED: {p}")).unwrap_or_default()
            ),
            Err(e) => format!("{model:<first$} {name:<second$} FAILED: {e}"),
        };
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(
        text,
        "{} layouts, {} steps each, in {seconds:.0} s; relative differences from one rank",
        rows.len(),
        args.steps
    );
    let stale = rows.iter().filter(|r| r.staleness.is_some()).count();
    if stale > 0 {
        let _ = write!(
            text,
            "; of {stale} asynchronous ones from one process that reads weights as old (without tensor parallelism bit by \
             bit, the last parameters too; gradients of a step are never there at one time, so none are compared)"
        );
    }
    if rows.iter().any(|r| r.same_bits == Some(true)) {
        let same = rows.iter().filter(|r| r.same_bits == Some(true)).count();
        let _ = write!(text, "; {same} with the same bits as threads of one process");
    }
    text
}

/// Choices of a layout that one rank has not made, if there are some.
fn other_choices(routed: &RoutedComparison) -> String {
    let Some(first) = routed.routes.first else { return String::new() };
    format!(
        "\n       choices of one rank replayed: {} of {} tokens choose otherwise by themselves, first in step {}, layer with experts {}, token {}, \
         by a margin of {:.1e}; losses before it {:.1e} apart",
        routed.routes.differing(),
        routed.choices,
        first.step,
        first.layer,
        first.token,
        first.margin,
        routed.before
    )
}

fn as_values(rows: &[Row], args: &ParityArgs) -> String {
    let row = |row: &Row| {
        let (parallel, ranks) = (&row.layout.parallel, row.layout.ranks);
        let mut value = json!({
            "model": row.model,
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
                "gradient": c.gradient.as_ref().map(|g| g.0),
                "worst_gradient": c.gradient.as_ref().map(|g| &g.1),
                "staleness": row.staleness,
                "diverging": c.diverging,
                "problem": row.problem(),
                "same_bits_as_threads": row.same_bits,
            }),
            Err(e) => json!({ "problem": e }),
        };
        if let Some(RoutedComparison { routes, choices, before, .. }) = &row.routed {
            let first = routes.first.map(|first| {
                json!({ "step": first.step, "layer": first.layer, "token": first.token, "margin": first.margin })
            });
            value["routes"] = json!({
                "choices": choices, "differing": routes.differing(), "first": first, "loss_before": before,
            });
        }
        if let (Some(value), Some(more)) = (value.as_object_mut(), more.as_object()) {
            value.extend(more.clone());
        }
        value
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    json!({ "steps": args.steps, "seed": args.seed, "layouts": rows }).to_string()
}
