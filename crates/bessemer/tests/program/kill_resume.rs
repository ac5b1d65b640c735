//! A run that is killed or interrupted and started again ends with the same bits as one that never stopped.

use crate::workplace::{LLAMA, Random, Workplace};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const STEPS: u64 = 200;
/// Saves so often that a kill lands in one easily; dropout, so that its random numbers have to agree as well.
const RECIPE: [&str; 5] = [
    "train.steps=200",
    "model.dropout=0.1",
    "save.every_steps=3",
    "eval.every_steps=40",
    "eval.ngram.enabled=false",
];

/// What must be the same bit for bit.
#[derive(Debug, PartialEq)]
struct Result {
    /// Parameters and moments after the last step.
    tensors: Vec<u8>,
    /// (step, tokens, loss, learning rate, norm of the gradient) of every step.
    steps: Vec<Vec<Value>>,
    /// (step, loss) of every evaluation.
    evaluations: Vec<Vec<Value>>,
}

fn result(place: &Workplace) -> Result {
    let fields = |kind: &str, keys: &[&str]| -> Vec<Vec<Value>> {
        place.records(kind).iter().map(|r| keys.iter().map(|k| r[*k].clone()).collect()).collect()
    };
    Result {
        tensors: place.tensors(STEPS),
        steps: fields("step", &["step", "tokens", "loss", "lr", "grad_norm"]),
        evaluations: fields("eval", &["step", "loss", "bits_per_byte", "tokens_scored"]),
    }
}

/// The result of a run that nothing disturbs.
fn straight() -> &'static Result {
    static RESULT: OnceLock<Result> = OnceLock::new();
    RESULT.get_or_init(|| {
        let place = Workplace::new(LLAMA);
        place.train(&RECIPE);
        let result = result(&place);
        let steps: Vec<u64> = result.steps.iter().map(|s| s[0].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
        let loss = |i: usize| result.steps[i][2].as_f64().unwrap();
        assert!(loss(199) < loss(0) - 1.0, "nothing was learned: {} to {}", loss(0), loss(199));
        result
    })
}

/// Compares piece by piece, so that a failure does not print megabytes.
#[track_caller]
fn assert_same(found: &Result, wanted: &Result) {
    for (found, wanted) in found.steps.iter().zip(&wanted.steps) {
        assert_eq!(found, wanted);
    }
    assert_eq!(found.steps.len(), wanted.steps.len());
    assert_eq!(found.evaluations, wanted.evaluations);
    assert!(found.tensors == wanted.tensors, "the tensors of the last checkpoint differ");
}

/// The last step in the log so far, while the program may be writing it.
fn logged_step(place: &Workplace) -> u64 {
    let log = fs::read(place.path("runs/t/metrics.jsonl")).unwrap_or_default();
    let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned();
    let steps = tail.lines().rev().filter_map(|line| {
        let record: Value = serde_json::from_str(line).ok()?;
        record["step"].as_u64()
    });
    steps.max().unwrap_or(0)
}

/// Whether a save of this process is under way, or was when it died.
fn is_saving(place: &Workplace, process: u32) -> bool {
    let entries = fs::read_dir(place.path("runs/t/checkpoints")).into_iter().flatten().flatten();
    let partial = format!(".partial-{process}");
    entries.into_iter().any(|e| e.file_name().to_string_lossy().ends_with(&partial))
}

/// Waits until something is true of a running program.
#[track_caller]
fn wait(place: &Workplace, child: &mut Child, until: impl Fn() -> bool) {
    let begun = Instant::now();
    while !until() {
        let ended = child.try_wait().unwrap();
        let said = || fs::read_to_string(place.path("stderr.txt")).unwrap_or_default();
        assert!(ended.is_none(), "ended too early: {ended:?}\n{}", said());
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for too long\n{}", said());
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_killed_at_random_moments_ends_with_the_bits_of_one_that_never_stopped() {
    let wanted = straight();
    let place = Workplace::new(LLAMA);
    let mut random = Random(2026);
    let (mut in_a_save, mut before_training, mut killed_at) = (0, 0, Vec::new());
    for kill in 1..=15 {
        let before = logged_step(&place);
        let mut child = place.start(&RECIPE);
        // Progress is what a checkpoint kept, so a target beyond the log is a step of this session.
        let target = (kill * 12 + random.below(8)).max(before + 1);
        match kill % 5 {
            // Anywhere in the stages, the planning, the loading of a checkpoint or the first steps.
            1 => {
                std::thread::sleep(Duration::from_millis(random.below(400)));
                assert_eq!(child.try_wait().unwrap(), None);
            }
            2 | 3 => {
                let process = child.id();
                wait(&place, &mut child, || logged_step(&place) >= target && is_saving(&place, process));
            }
            _ => {
                wait(&place, &mut child, || logged_step(&place) >= target);
                std::thread::sleep(Duration::from_micros(random.below(10_000)));
            }
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().code(), None, "it ended before the kill");
        in_a_save += u32::from(is_saving(&place, child.id()));
        before_training += u32::from(logged_step(&place) <= before);
        killed_at.push(logged_step(&place));
    }
    println!("killed at steps {killed_at:?}; {in_a_save} in a save, {before_training} before training");
    assert!(in_a_save >= 1, "no kill landed in a save");
    place.train(&RECIPE);
    assert_same(&result(&place), wanted);
    let left: Vec<_> =
        place.files("runs/t").into_keys().filter(|p| p.to_string_lossy().contains(".partial-")).collect();
    assert!(left.is_empty(), "left over: {left:?}");
}

#[test]
fn an_interrupted_run_saves_says_how_to_go_on_and_ends_with_the_same_bits() {
    let wanted = straight();
    let place = Workplace::new(LLAMA);
    // Saved by the signal alone: the recipe of these sessions asks for no other save before the end.
    let seldom = |o: &&str| !o.starts_with("save.");
    let recipe: Vec<&str> = RECIPE.into_iter().filter(seldom).collect();
    for (name, target) in [("INT", 20), ("TERM", 90)] {
        let mut child = place.start(&recipe);
        wait(&place, &mut child, || logged_step(&place) >= target);
        if name == "INT" {
            let second = place.bessemer(&["run", "recipe.toml", "--set", "train.steps=200"]);
            second.failed(1, &["another process is at work on runs/t"]);
        }
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(75), "after SIG{name}");
        let said = fs::read_to_string(place.path("stderr.txt")).unwrap();
        let step = logged_step(&place);
        assert!(
            said.contains(&format!("stopped after step {step} of 200; run the same command to go on")),
            "{said}"
        );
        assert!(!said.contains("error"), "{said}");
        assert!(!place.tensors(step).is_empty());
    }
    place.train(&recipe);
    assert_eq!(place.records("resume").len(), 2);
    assert_same(&result(&place), wanted);
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let place = Workplace::new(LLAMA);
    let mut recipe = RECIPE.to_vec();
    recipe.push("run.threads=2");
    place.train(&recipe);
    assert_same(&result(&place), straight());
}
