//! `bessemer metric pass-at-k`: programs that a model wrote, run in confinement against the tests of their problems.

use super::bias::interval;
use super::lines_of_json;
use crate::cli::MetricArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_durable::ConfinedDir;
use bessemer_metrics::answers::pass_at_k;
use bessemer_metrics::proportion::wilson;
use bessemer_sandbox::{Confined, Limits, Outcome, WorkingDirectory, run as run_confined};
use bessemer_train::Observer;
use bessemer_units::counted;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A problem in the format of HumanEval (Chen et al. 2021).
struct Problem {
    prompt: String,
    test: String,
    entry_point: String,
}

/// A completion of a problem, and what became of it.
struct Sample {
    task: String,
    completion: String,
    result: Option<Result<Outcome, String>>,
}

impl Sample {
    fn passed(&self) -> bool {
        matches!(self.result, Some(Ok(Outcome::Ended { code: 0, .. })))
    }

    fn verdict(&self) -> String {
        match &self.result {
            Some(Ok(Outcome::Ended { code: 0, .. })) => "passed".into(),
            Some(Ok(Outcome::Ended { code, output })) => {
                let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
                format!("failed with code {code}: {last}")
            }
            Some(Ok(Outcome::TimedOut)) => "timed out".into(),
            Some(Err(cause)) => cause.clone(),
            None => "not run".into(),
        }
    }
}

pub(super) fn run(args: &MetricArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let [problems] = args.references.as_slice() else {
        return Err(Failure::usage(
            "wanted one file of problems after that of samples, found none or several",
        ));
    };
    let problems = read_problems(problems)?;
    let mut samples = read_samples(&args.texts, &problems)?;
    run_all(args, &problems, &mut samples, console)?;
    let mut tasks: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for sample in &samples {
        let (all, right) = tasks.entry(&sample.task).or_default();
        *all += 1;
        *right += u64::from(sample.passed());
    }
    let scores: Vec<(u64, Option<f64>)> = args
        .k
        .iter()
        .map(|k| {
            let each: Option<Vec<f64>> =
                tasks.values().map(|(all, right)| pass_at_k(*all, *right, *k)).collect();
            (*k, each.filter(|e| !e.is_empty()).map(|e| e.iter().sum::<f64>() / e.len() as f64))
        })
        .collect();
    // A problem is one trial: the samples of one depend on each other.
    let band = |score: Option<f64>| wilson(score?, tasks.len() as f64);
    let without = problems.len() - tasks.len();
    if as_json {
        let results: Vec<Value> = samples
            .iter()
            .map(|s| json!({ "task_id": s.task, "completion": s.completion, "passed": s.passed(), "result": s.verdict() }))
            .collect();
        let intervals: serde_json::Map<String, Value> =
            scores.iter().map(|(k, score)| (format!("pass@{k}"), json!(band(*score)))).collect();
        let scores: serde_json::Map<String, Value> =
            scores.iter().map(|(k, score)| (format!("pass@{k}"), json!(score))).collect();
        let all = json!({ "scores": scores, "intervals": intervals, "problems": tasks.len(), "problems_without_samples": without, "results": results });
        return Ok(print(&serde_json::to_string(&all)?)?);
    }
    let mut text = String::new();
    if args.each {
        for sample in &samples {
            let _ = writeln!(text, "{}: {}", sample.task, sample.verdict());
        }
    }
    for (k, score) in scores {
        let _ = match score {
            Some(score) => {
                let percent = band(Some(score)).map(|band| band.map(|bound| 100.0 * bound));
                let problems = counted(tasks.len(), "problem");
                writeln!(text, "pass@{k} = {:.4}{} over {problems}", 100.0 * score, interval(percent))
            }
            None => writeln!(text, "pass@{k}: needs {} or more of each problem", counted(k, "sample")),
        };
    }
    if without > 0 {
        let _ = writeln!(text, "left out: {} without samples", counted(without, "problem"));
    }
    Ok(print(&text)?)
}

/// Runs every sample, as many at a time as there are cores.
fn run_all(
    args: &MetricArgs,
    problems: &BTreeMap<String, Problem>,
    samples: &mut [Sample],
    console: &mut Console,
) -> Result<(), Failure> {
    let program = env::current_exe().map_err(|cause| {
        Failure::new(format!(
            "cannot find the path of this \
                                                                           program: {cause}"
        ))
    })?;
    let limits = Limits { seconds: args.seconds, memory: args.memory_mib << 20, ..Limits::default() };
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Mutex<Option<Result<Outcome, String>>>> =
        samples.iter().map(|_| Mutex::new(None)).collect();
    let refused: Mutex<Option<String>> = Mutex::new(None);
    let stopped = || refused.lock().map_or(true, |reason| reason.is_some());
    std::thread::scope(|scope| {
        for _ in 0..machine::threads(0).min(samples.len().max(1)) {
            scope.spawn(|| {
                while !stopped() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(sample) = samples.get(at) else { break };
                    match run_one(args, &program, &limits, &problems[&sample.task], &sample.completion) {
                        Ok(outcome) => {
                            if let Ok(mut slot) = results[at].lock() {
                                *slot = Some(Ok(outcome));
                            }
                        }
                        Err(cause) => {
                            if let Ok(mut reason) = refused.lock() {
                                *reason = Some(cause);
                            }
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while done.load(Ordering::Relaxed) < samples.len() && !stopped() {
            console.progress("running", done.load(Ordering::Relaxed) as u64, samples.len() as u64);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    if let Ok(Some(cause)) = refused.into_inner() {
        return Err(Failure::new(format!(
            "cannot run programs in a sandbox on this host, and does not run them without one: {cause}"
        )));
    }
    for (sample, result) in samples.iter_mut().zip(results) {
        sample.result = result.into_inner().ok().flatten();
    }
    Ok(())
}

fn run_one(
    args: &MetricArgs,
    program: &Path,
    limits: &Limits,
    problem: &Problem,
    completion: &str,
) -> Result<Outcome, String> {
    let directory = WorkingDirectory::new(&env::temp_dir()).map_err(|cause| {
        format!(
            "cannot create a temporary \
                                                                         directory: {cause}"
        )
    })?;
    let text = format!("{}{completion}\n{}\ncheck({})\n", problem.prompt, problem.test, problem.entry_point);
    ConfinedDir::open(directory.path())
        .and_then(|dir| dir.create_new("program.py")?.write_all(text.as_bytes()))
        .map_err(|cause| format!("cannot write the file of the program: {cause}"))?;
    let confined = Confined {
        command: [args.python.as_str(), "-I", "-B", "program.py"].map(str::to_string).to_vec(),
        directory: directory.path().to_owned(),
        read_only: args.readable.clone(),
        limits: limits.clone(),
    };
    let mut keeper = Command::new(program);
    keeper.arg("confined").args(confined.to_arguments());
    run_confined(keeper, &confined).map_err(|cause| cause.to_string())
}

/// A text of an object.
fn field(path: &Path, number: usize, value: &Value, key: &str) -> Result<String, Failure> {
    value.get(key).and_then(Value::as_str).map(str::to_string).ok_or_else(|| {
        Failure::usage(format!(
            "{}: line {number}: wanted a text with the key {key}, found none",
            path.display()
        ))
    })
}

fn read_problems(path: &Path) -> Result<BTreeMap<String, Problem>, Failure> {
    let mut all = BTreeMap::new();
    for (i, value) in lines_of_json(path)?.iter().enumerate() {
        let of = |key| field(path, i + 1, value, key);
        let problem = Problem { prompt: of("prompt")?, test: of("test")?, entry_point: of("entry_point")? };
        let task = of("task_id")?;
        if all.insert(task.clone(), problem).is_some() {
            return Err(Failure::usage(format!(
                "{}: line {}: the task {task} occurs twice",
                path.display(),
                i + 1
            )));
        }
    }
    Ok(all)
}

fn read_samples(path: &Path, problems: &BTreeMap<String, Problem>) -> Result<Vec<Sample>, Failure> {
    let mut all = Vec::new();
    for (i, value) in lines_of_json(path)?.iter().enumerate() {
        let (task, completion) =
            (field(path, i + 1, value, "task_id")?, field(path, i + 1, value, "completion")?);
        if !problems.contains_key(&task) {
            return Err(Failure::usage(format!(
                "{}: line {}: no problem has the name {task}",
                path.display(),
                i + 1
            )));
        }
        all.push(Sample { task, completion, result: None });
    }
    Ok(all)
}
