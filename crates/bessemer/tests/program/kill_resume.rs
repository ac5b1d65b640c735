//! A run that is killed or interrupted and started again ends with the same bits as one that never stopped.

use crate::workplace::{LLAMA, Workplace};
use bessemer_units::splitmix::SplitMix64;
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

/// Files that must be equal bit for bit.
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
pub(crate) fn logged_step(place: &Workplace) -> u64 {
    let log = fs::read(place.path("runs/t/metrics.jsonl")).unwrap_or_default();
    let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned();
    let steps = tail.lines().rev().filter_map(|line| {
        let record: Value = serde_json::from_str(line).ok()?;
        record["step"].as_u64()
    });
    steps.max().unwrap_or(0)
}

/// Whether a save of this process is in progress, or was when it died.
fn is_saving(place: &Workplace, process: u32) -> bool {
    let entries = fs::read_dir(place.path("runs/t/checkpoints")).into_iter().flatten().flatten();
    let partial = format!(".partial-{process}");
    entries.into_iter().any(|e| e.file_name().to_string_lossy().ends_with(&partial))
}

/// Waits until something is true of a running program.
#[track_caller]
pub(crate) fn wait(place: &Workplace, child: &mut Child, until: impl Fn() -> bool) {
    let begun = Instant::now();
    while !until() {
        let ended = child.try_wait().unwrap();
        let said = || fs::read_to_string(place.path("stderr.txt")).unwrap_or_default();
        assert!(ended.is_none(), "ended too early: {ended:?}\n{}", said());
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for too long\n{}", said());
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_killed_at_random_moments_ends_with_the_bits_of_one_that_never_stopped() {
    let wanted = straight();
    let place = Workplace::new(LLAMA);
    let mut random = SplitMix64(2026);
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

/// Copies in shared memory after every step, and no checkpoint on disk before the end: a kill at any moment loses one step at most.
#[test]
fn a_run_killed_at_random_moments_goes_on_from_memory() {
    let wanted = straight();
    let place = Workplace::new(LLAMA);
    let memory = place.path("memory");
    fs::create_dir(&memory).unwrap();
    let directory = format!("save.memory.directory={}", memory.display());
    let mut recipe: Vec<&str> = RECIPE.iter().copied().filter(|set| !set.starts_with("save.")).collect();
    recipe.extend(["save.every_seconds=0", "save.memory.keep=own", &directory]);
    let mut random = SplitMix64(2027);
    for kill in 1..=6 {
        let before = logged_step(&place);
        let mut child = place.start(&recipe);
        let target = (kill * 28 + random.below(12)).max(before + 1);
        wait(&place, &mut child, || logged_step(&place) >= target);
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().code(), None, "it ended before the kill");
        let reached = logged_step(&place);
        // What the next session says is among the records of the last one.
        let mut child = place.start(&recipe);
        let resumed = || place.records("resume").last().map(|r| r["step"].as_u64().unwrap());
        wait(&place, &mut child, || resumed().is_some_and(|step| step + 1 >= reached));
        child.kill().unwrap();
        child.wait().unwrap();
        let last = place.records("resume").pop().unwrap();
        assert!(last["path"].as_str().unwrap().starts_with("own memory"), "{last}");
    }
    place.train(&recipe);
    assert_same(&result(&place), wanted);
    assert_eq!(fs::read_dir(&memory).unwrap().count(), 0, "the run has ended");
}

/// A mixture instead of one source: the texts of alpha, and the others with a slice of their own for those of delta.
fn mixed() -> Workplace {
    let place = Workplace::new(LLAMA);
    let text = fs::read_to_string(place.path("recipe.toml")).unwrap();
    let one = "source = \"folder\"\npath = \"text\"\n";
    assert!(text.contains(one), "{text}");
    let several = "[[corpus.sources]]\nname = \"greek\"\nsource = \"folder\"\npath = \"text\"\nexclude = [\"alpha\"]\n\
                   weight = 0.1\ntag.kind = \"others\"\n\
                   [[corpus.sources.slices]]\nname = \"delta\"\nwhere = 'starts_with(path, \"delta\") && tag.kind == \"others\"'\n\
                   weight = 0.1\nepochs = 0.5\n\
                   [[corpus.sources]]\nname = \"alpha\"\nsource = \"folder\"\npath = \"text/alpha\"\nweight = 0.8\n";
    fs::write(place.path("recipe.toml"), text.replace(one, "") + several).unwrap();
    place
}

#[test]
fn a_run_on_a_mixture_goes_on_with_the_same_bits_and_shows_what_it_takes() {
    const RECIPE: [&str; 4] =
        ["train.steps=100", "save.every_steps=7", "eval.every_steps=20", "eval.ngram.enabled=false"];
    let (straight, place) = (mixed(), mixed());
    straight.train(&RECIPE);
    let mut child = place.start(&RECIPE);
    wait(&place, &mut child, || logged_step(&place) >= 25);
    child.kill().unwrap();
    child.wait().unwrap();
    place.train(&RECIPE);
    let losses = |place: &Workplace| -> Vec<(u64, String)> {
        let mut last = std::collections::BTreeMap::new();
        for record in place.records("step") {
            last.insert(record["step"].as_u64().unwrap(), record["loss"].to_string());
        }
        last.into_iter().collect()
    };
    assert_eq!(losses(&place), losses(&straight));
    assert_eq!(losses(&place).len(), 100);
    assert!(place.tensors(100) == straight.tensors(100));

    // Losses by component in the log and of a checkpoint, shares and passes in the statistics.
    let names = ["greek", "greek.delta", "alpha"];
    let eval = place.records("eval").pop().unwrap();
    let found: Vec<&str> =
        eval["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert!(!found.is_empty() && found.iter().all(|name| names.contains(name)), "{found:?}");
    let eval = place.bessemer(&["eval", "runs/t", "--json"]).json();
    assert_eq!(eval["components"].as_object().unwrap().len(), found.len());
    let stats = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    let mixture = stats["mixture"].as_array().unwrap();
    assert_eq!(mixture.iter().map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    // 800 samples: half of the slice is read and no more, the others share the rest as 1 to 8.
    let samples = |i: usize| mixture[i]["samples"].as_u64().unwrap();
    assert_eq!(samples(0) + samples(1) + samples(2), 800);
    let half = mixture[1]["samples_per_epoch"].as_u64().unwrap() / 2;
    assert!(samples(1) == half || samples(1) == half + 1, "{mixture:?}");
    assert!((8 * samples(0)).abs_diff(samples(2)) <= 8, "{mixture:?}");
    let text = place.bessemer(&["corpus", "stats", "runs/t"]).text();
    assert!(text.contains("weight") && text.contains("greek.delta"), "{text}");
    assert!(text.contains("Muennighoff"), "alpha is read more than four times: {text}");
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
            second.failed(1, &["another process is using the run directory runs/t"]);
        }
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(75), "after SIG{name}");
        let said = fs::read_to_string(place.path("stderr.txt")).unwrap();
        let step = logged_step(&place);
        assert!(
            said.contains(&format!("stopped after step {step} of 200; run the same command to continue")),
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
