//! `bessemer compare`: several runs side by side; `bessemer runs`: the runs of a directory.

use crate::cli::CompareArgs;
use crate::console::{Console, print, width};
use crate::failure::Failure;
use crate::run_dir::{LOCK, RECIPE, RunDir, similar};
use bessemer_recipe::{Loaded, Recipe};
use bessemer_report::{
    ComparedRun, Comparison, EvalFigures, RecipeDifference, RecordedRecipe, RunFigures, fixed, grouped,
    terminal,
};
use bessemer_runlog::{FILE, Log};
use bessemer_units::{Tokens, counted, cut};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Keys that name a run without describing it.
const NAMES: [&str; 2] = ["run.name", "run.dir"];
/// How deep below the given directory run directories are looked for.
const DEPTH: usize = 3;
/// Most runs that an error names.
const SHOWN: usize = 8;

/// Compares runs: text or JSON on standard output, and a page where one is asked for.
pub(crate) fn compare(args: &CompareArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let (logs, unreadable): (Vec<_>, Vec<_>) =
        args.runs.iter().map(bessemer_runlog::read).partition(Result::is_ok);
    let unreadable: Vec<String> =
        unreadable.into_iter().filter_map(|read| Some(cut(&read.err()?.to_string()).into_owned())).collect();
    if !unreadable.is_empty() {
        let few = unreadable.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
        let more = unreadable.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let near = args.runs.iter().filter(|run| !run.is_dir()).find_map(|run| similar(run));
        let hint = match near {
            Some(near) => format!("did you mean {}?", near.display()),
            None => format!("name run directories with a {FILE}, such as runs/quickstart"),
        };
        return Err(Failure::new(format!(
            "{} of {} cannot be read: {few}{more}; {hint}",
            unreadable.len(),
            counted(args.runs.len(), "run")
        )));
    }
    let logs: Vec<Log> = logs.into_iter().flatten().collect();
    let mut notes = Vec::new();
    let labels = labels(&args.runs, &logs);
    let recipes: Vec<Option<Loaded<Recipe>>> = args
        .runs
        .iter()
        .zip(&labels)
        .map(|(run, label)| {
            let dir = RunDir::new(run);
            let unknown = |e: Failure| match dir.has(RECIPE) {
                true => format!("The recipe of {label} is unknown: {}", cut(&e.message)),
                false => {
                    let path = dir.root().join(RECIPE);
                    format!("The recipe of {label} is unknown: {} was never recorded", path.display())
                }
            };
            dir.load_recipe().map_err(|e| notes.push(unknown(e))).ok()
        })
        .collect();
    for (log, label) in logs.iter().zip(&labels).filter(|(log, _)| !log.damaged.is_empty()) {
        let lines = counted(log.damaged.len(), "line");
        notes.push(format!("{lines} of the log of {label} are damaged and left out"));
    }
    let differences = differences(&recipes);
    let runs = labels.iter().zip(logs).zip(&recipes).map(|((label, log), recipe)| ComparedRun {
        label: label.clone(),
        records: log.records,
        recipe: if recipe.is_some() { RecordedRecipe::Known } else { RecordedRecipe::Unknown },
    });
    let comparison = Comparison::new(runs.collect(), differences, notes);
    if let Some(out) = &args.out {
        comparison.write(out).map_err(|e| Failure::new(format!("--out {}: {e}", out.display())))?;
    }
    match as_json {
        true => print(&serde_json::to_string(&value(&comparison, &labels, args))?)?,
        false => print(&comparison.text(width()))?,
    }
    match &args.out {
        Some(out) => console.say(&format!("wrote {}", out.display())),
        None => console.say("for the curves: --out compare.html"),
    }
    Ok(())
}

/// A name for each run: its own where it is the only one of that name, otherwise its path.
fn labels(paths: &[PathBuf], logs: &[Log]) -> Vec<String> {
    let name = |(path, log): (&PathBuf, &Log)| {
        let name = RunFigures::new(&log.records).name;
        let last = path.file_name().map(|n| n.to_string_lossy().into_owned());
        if name.is_empty() { last.unwrap_or_else(|| path.display().to_string()) } else { name }
    };
    let names: Vec<String> = paths.iter().zip(logs).map(name).collect();
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
    let figures = comparison.figures().iter().zip(comparison.runs());
    let run = |((path, label), (figures, run)): ((&PathBuf, &String), (&RunFigures, &ComparedRun))| json!({ "run": path.display().to_string(), "label": label, "figures": figures, "recipe_is_known": run.recipe == RecordedRecipe::Known });
    let runs: Vec<Value> = args.runs.iter().zip(labels).zip(figures).map(run).collect();
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

    /// Reason why it cannot be read, or the error that ended it.
    fn error(&self) -> Option<&String> {
        match &self.figures {
            Err(unreadable) => Some(unreadable),
            Ok(figures) => figures.error.as_ref(),
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
                "error": r.error(),
            })
        };
        print(&serde_json::to_string(&runs.iter().map(one).collect::<Vec<Value>>())?)?;
    } else if runs.is_empty() {
        console.say(&format!("no runs in {}", directory.display()));
    } else {
        let head = ["run", "status", "steps", "parameters", "best loss", "bits/byte", "started", "host"];
        let rows: Vec<Vec<String>> = runs.iter().map(Found::row).collect();
        let mut text = terminal::listing(&head.map(String::from), &rows);
        for (run, error) in runs.iter().filter_map(|r| Some((r, r.figures.as_ref().ok()?.error.as_ref()?))) {
            text += &format!("{} failed: {}\n", run.path.display(), cut(error));
        }
        print(&text)?;
    }
    let unreadable: Vec<&String> = runs.iter().filter_map(|r| r.figures.as_ref().err()).collect();
    let Some(first) = unreadable.first() else { return Ok(()) };
    Err(Failure::new(format!(
        "{} of {} cannot be read: {first}",
        unreadable.len(),
        counted(runs.len(), "run")
    )))
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
