//! `bessemer compare`: several runs side by side; `bessemer runs`: the runs of a directory.

use crate::cli::CompareArgs;
use crate::console::{Console, print, width};
use crate::failure::Failure;
use crate::run_dir::{LOCK, RECIPE, RunDir};
use bessemer_recipe::{Loaded, Recipe};
use bessemer_report::{
    ComparedRun, Comparison, EvalFigures, RecipeDifference, RunFigures, fixed, grouped, terminal,
};
use bessemer_runlog::{FILE, Record};
use bessemer_units::Tokens;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Keys that name a run and say nothing about it.
const NAMES: [&str; 2] = ["run.name", "run.dir"];
/// How deep below the given directory run directories are looked for.
const DEPTH: usize = 3;

/// Compares runs: text or JSON on standard output, and a page where one is asked for.
pub(crate) fn compare(args: &CompareArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let records: Vec<Result<Vec<Record>, String>> = args
        .runs
        .iter()
        .map(|run| bessemer_runlog::read(run).map(|log| log.records).map_err(|e| e.to_string()))
        .collect();
    if let Some(errors) = records.iter().map(|r| r.as_ref().err().cloned()).collect::<Option<Vec<String>>>() {
        return Err(Failure::new(format!("none of the runs can be read: {}", errors.join("; "))));
    }
    let mut notes = Vec::new();
    let labels = labels(&args.runs, &records);
    let recipes: Vec<Option<Loaded<Recipe>>> = args
        .runs
        .iter()
        .zip(&labels)
        .map(|(run, label)| {
            let dir = RunDir::new(run);
            let wanted = dir.has(RECIPE);
            let left_out = |e: Failure| format!("The recipe of {label} is left out: {}", e.message);
            dir.load_recipe().map_err(|e| notes.extend(wanted.then(|| left_out(e)))).ok()
        })
        .collect();
    let differences = differences(&recipes);
    let runs =
        labels.iter().zip(records).map(|(label, records)| ComparedRun { label: label.clone(), records });
    let comparison = Comparison::new(runs.collect(), differences, notes);
    if let Some(out) = &args.out {
        comparison.write(out).map_err(|e| Failure::new(format!("--out {}: {e}", out.display())))?;
    }
    match as_json {
        true => print(&serde_json::to_string_pretty(&value(&comparison, &labels, args))?)?,
        false => print(&comparison.text(width()))?,
    }
    match &args.out {
        Some(out) => console.say(&format!("wrote {}", out.display())),
        None => console.say("for the curves: --out compare.html"),
    }
    Ok(())
}

/// A name for each run: its own where it is the only one of that name, otherwise its path.
fn labels(paths: &[PathBuf], records: &[Result<Vec<Record>, String>]) -> Vec<String> {
    let name = |(path, records): (&PathBuf, &Result<Vec<Record>, String>)| {
        let name = records.as_ref().map(|r| RunFigures::new(r).name).unwrap_or_default();
        let last = path.file_name().map(|n| n.to_string_lossy().into_owned());
        if name.is_empty() { last.unwrap_or_else(|| path.display().to_string()) } else { name }
    };
    let names: Vec<String> = paths.iter().zip(records).map(name).collect();
    let unique = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    if unique { names } else { paths.iter().map(|p| p.display().to_string()).collect() }
}

/// The keys that `config diff` finds between the first recipe and any other, with the value in every run.
fn differences(recipes: &[Option<Loaded<Recipe>>]) -> Vec<RecipeDifference> {
    let mut loaded = recipes.iter().flatten();
    let Some(first) = loaded.next() else { return Vec::new() };
    let differing: BTreeSet<String> = loaded.flat_map(|r| first.diff(r)).map(|d| d.key).collect();
    let values: Vec<Option<BTreeMap<String, String>>> = recipes
        .iter()
        .map(|r| Some(r.as_ref()?.settings().into_iter().map(|s| (s.key, s.value)).collect()))
        .collect();
    let difference = |key: String| RecipeDifference {
        values: values.iter().map(|v| v.as_ref()?.get(&key).cloned()).collect(),
        key,
    };
    differing.into_iter().filter(|key| !NAMES.contains(&key.as_str())).map(difference).collect()
}

fn value(comparison: &Comparison, labels: &[String], args: &CompareArgs) -> Value {
    let run = |((path, label), figures): ((&PathBuf, &String), &Option<RunFigures>)| json!({ "run": path.display().to_string(), "label": label, "figures": figures });
    let runs: Vec<Value> = args.runs.iter().zip(labels).zip(comparison.figures()).map(run).collect();
    json!({
        "runs": runs,
        "differences": comparison.differences(),
        "notes": comparison.notes(),
        "verdict": comparison.verdict(),
        "page": args.out.as_ref().map(|p| p.display().to_string()),
    })
}

/// A run directory that was found.
struct Found {
    path: PathBuf,
    figures: Result<RunFigures, String>,
    running: bool,
}

impl Found {
    fn new(path: PathBuf, locks: &BTreeSet<u64>) -> Found {
        let figures =
            bessemer_runlog::read(&path).map(|log| RunFigures::new(&log.records)).map_err(|e| e.to_string());
        let lock = path.join(LOCK).symlink_metadata();
        let running = lock.is_ok_and(|lock| locks.contains(&lock.ino()));
        Found { path, figures, running }
    }

    fn status(&self) -> &str {
        match &self.figures {
            _ if self.running => "running",
            Err(_) => "cannot be read",
            Ok(f) => &f.status,
        }
    }

    fn row(&self) -> Vec<String> {
        let none = RunFigures::default();
        let f = self.figures.as_ref().unwrap_or(&none);
        let or_dash = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or_else(|| "–".into());
        let best = |of: fn(&EvalFigures) -> f64| or_dash(f.best_eval.as_ref().map(|e| fixed(of(e))));
        let planned = f.steps_planned.map_or(String::new(), |p| format!("/{}", grouped(p)));
        vec![
            self.path.display().to_string(),
            self.status().to_string(),
            format!("{}{planned}", grouped(f.steps)),
            or_dash(f.parameters.map(|p| Tokens(p).to_string())),
            best(|e| e.loss),
            best(|e| e.bits_per_byte),
            or_dash(Some(f.started_at.clone())),
            or_dash(Some(f.host.clone())),
        ]
    }
}

/// Lists the runs below a directory, the oldest first.
pub(crate) fn list(directory: &Path, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if !directory.is_dir() {
        return Err(Failure::new(format!(
            "{}: wanted a directory that holds run directories (run.dir of the recipes, \"runs\" unless stated)",
            directory.display()
        )));
    }
    let mut paths = Vec::new();
    find(directory, DEPTH, &mut paths)?;
    let locks = locks();
    let mut runs: Vec<Found> = paths.into_iter().map(|path| Found::new(path, &locks)).collect();
    runs.sort_by_cached_key(|r| {
        (r.figures.as_ref().map(|f| f.started_at.clone()).unwrap_or_default(), r.path.clone())
    });
    if as_json {
        let one = |r: &Found| {
            json!({
                "run": r.path.display().to_string(),
                "status": r.status(),
                "running": r.running,
                "figures": r.figures.as_ref().ok(),
                "error": r.figures.as_ref().err(),
            })
        };
        return Ok(print(&serde_json::to_string_pretty(&runs.iter().map(one).collect::<Vec<Value>>())?)?);
    }
    if runs.is_empty() {
        console.say(&format!("no runs in {}", directory.display()));
        return Ok(());
    }
    let head = ["run", "status", "steps", "parameters", "best loss", "bits/byte", "started", "host"];
    let rows: Vec<Vec<String>> = runs.iter().map(Found::row).collect();
    Ok(print(&terminal::listing(&head.map(String::from), &rows))?)
}

/// Collects run directories: those that hold a log. Links are followed to a run, but not to look for runs through them.
fn find(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if directory.join(FILE).exists() {
        found.push(directory.to_owned());
        return Ok(());
    }
    if depth == 0 || directory.is_symlink() {
        return Ok(());
    }
    for path in bessemer_durable::list(directory)? {
        if path.is_dir() {
            // A directory that may not be read is none of the user's runs.
            let _ = find(&path, depth - 1, found);
        }
    }
    Ok(())
}

/// Inodes of the files of this machine on which a process holds an exclusive lock. Asking for the lock instead would keep a
/// starting process from it.
fn locks() -> BTreeSet<u64> {
    let text = bessemer_durable::read_system("/proc/locks");
    let inode = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.iter().position(|w| *w == "WRITE")? + 2;
        words.get(place)?.rsplit(':').next()?.parse().ok()
    };
    text.lines().filter(|l| l.contains("FLOCK")).filter_map(inode).collect()
}
