//! trace.json of a run: who did what when, drawn below its simulation, and nothing of it in the run's numbers.

use crate::workplace::{GPT2, LLAMA, Workplace};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

fn events(place: &Workplace) -> Vec<Value> {
    serde_json::from_slice(&fs::read(place.path("runs/t/trace.json")).unwrap()).unwrap()
}

fn spans(events: &[Value], step: u64) -> impl Iterator<Item = &Value> + Clone {
    events.iter().filter(move |e| e["ph"] == "X" && e["args"]["step"] == step)
}

fn names(events: &[Value], step: u64, rank: u64, lane: &str) -> Vec<String> {
    let is_lane = |e: &&Value| {
        e["name"] == "thread_name"
            && e["pid"] == rank
            && e["args"]["name"].as_str().unwrap().starts_with(lane)
    };
    let streams: Vec<_> = events.iter().filter(is_lane).map(|e| e["tid"].clone()).collect();
    let mut found: Vec<_> =
        spans(events, step).filter(|e| e["pid"] == rank && streams.contains(&e["tid"])).collect();
    found.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
    found.into_iter().map(|e| e["name"].as_str().unwrap().to_owned()).collect()
}

fn steps(events: &[Value]) -> Vec<u64> {
    let whole = |e: &&Value| e["pid"] == 0 && e["name"].as_str().unwrap().starts_with("training step");
    let found = events.iter().filter(|e| e["ph"] == "X").filter(whole);
    found.map(|e| e["args"]["step"].as_u64().unwrap()).collect()
}

/// Passes stand one after the other within their step, on every rank.
fn check_order(events: &[Value], step: u64, ranks: u64) {
    let at = |e: &Value| {
        let from = e["ts"].as_f64().unwrap();
        (from, from + e["dur"].as_f64().unwrap())
    };
    for rank in 0..ranks {
        let of_rank = || spans(events, step).filter(move |e| e["pid"] == rank && e["cat"] == "compute");
        let whole = of_rank().find(|e| e["name"] == format!("training step {step}")).map(at).unwrap();
        let mut passes: Vec<_> =
            of_rank().filter(|e| e["name"].as_str().unwrap().starts_with(['F', 'B'])).map(at).collect();
        passes.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(passes[0].0 >= whole.0 && passes[passes.len() - 1].1 <= whole.1, "{passes:?} {whole:?}");
        assert!(passes.windows(2).all(|p| p[0].1 <= p[1].0), "{passes:?}");
    }
}

#[test]
fn a_pipeline_writes_its_trace_and_the_report_draws_it() {
    let place = Workplace::new(GPT2);
    let layout = ["parallel.pipeline=2", "train.micro_batch=2", "eval.every_steps=4", "save.every_steps=5"];
    let words = |sets: &[&'static str]| {
        let sets: Vec<&str> = layout.iter().chain(sets).flat_map(|s| ["--set", s]).collect();
        [&["run", "recipe.toml", "--ranks", "2"][..], &sets].concat()
    };
    place.bessemer(&words(&[])).text();
    let traced = place.tensors(6);
    let events = events(&place);
    // The first two steps warm up; three are traced.
    assert_eq!(steps(&events), [3, 4, 5]);
    let passes = names(&events, 4, 0, "passes");
    assert_eq!(
        passes,
        [
            "training step 4",
            "F 0.0",
            "F 1.0",
            "B 0.0",
            "F 2.0",
            "B 1.0",
            "F 3.0",
            "B 2.0",
            "B 3.0",
            "complete",
            "norm",
            "step 0",
            "evaluation"
        ]
        .map(str::to_owned)
    );
    assert_eq!(names(&events, 4, 1, "messages")[..3], ["R 0.0", "S 0.0", "R 1.0"].map(str::to_owned));
    assert!(names(&events, 4, 0, "collectives, tied table").iter().any(|n| n.starts_with("all-reduce")));
    assert!(names(&events, 5, 0, "passes").contains(&"save".to_owned()));
    check_order(&events, 4, 2);
    // What a rank receives was sent before: the clocks are one.
    let time = |rank: u64, name: &str, end: bool| {
        let e = spans(&events, 5).find(|e| e["pid"] == rank && e["name"] == name).unwrap();
        e["ts"].as_f64().unwrap() + if end { e["dur"].as_f64().unwrap() } else { 0.0 }
    };
    assert!(time(0, "F 0.0", true) <= time(1, "F 0.0", false));
    assert!(time(1, "B 0.0", true) <= time(0, "B 0.0", false));
    let ranks: BTreeSet<_> = events.iter().map(|e| e["pid"].as_u64().unwrap()).collect();
    assert_eq!(ranks.len(), 2);
    let named = |name: &str| events.iter().any(|e| e["name"] == "process_name" && e["args"]["name"] == name);
    assert!(named("rank 1 (pipeline 1)"));

    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(page.contains("A step on the clock") && page.contains("simulated with the measured times"));
    assert!(page.contains("measured, step 5") && page.contains("1f1b: 2 ranks, 4 micro-batches"), "{page}");
    let show = ["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "4", "--trace", "runs/t"];
    let text = place.bessemer(&show).text();
    assert!(
        text.contains("measured, step 5") && text.contains("simulated with the measured times"),
        "{text}"
    );
    let other = ["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "2", "--trace", "runs/t"];
    place.bessemer(&other).failed(2, &["trace.json", "name the schedule that the run used"]);

    // Nothing of it in the numbers.
    fs::remove_dir_all(place.path("runs/t")).unwrap();
    place.bessemer(&words(&["run.trace.steps=0", "run.trace.every_steps=0"])).text();
    assert!(!place.path("runs/t/trace.json").exists());
    assert!(traced == place.tensors(6), "tracing changed bits");
    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(!page.contains("A step on the clock"));
}

#[test]
fn steps_are_traced_every_so_often_until_the_file_is_full() {
    let place = Workplace::new(GPT2);
    let often = ["run.trace.steps=1", "run.trace.every_steps=5", "train.steps=11"];
    place.train(&often);
    assert_eq!(steps(&events(&place)), [3, 5, 10]);
    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(page.contains("measured, step 10"));
    // One rank is a world of one; a session replaces the file of the one before when it traces a step.
    place.train(&[&often[..2], &["train.steps=15"]].concat());
    assert_eq!(steps(&events(&place)), [14, 15]);
    fs::remove_dir_all(place.path("runs/t")).unwrap();
    let per_step = spans(&events_of(&place, &often), 5).count();
    fs::remove_dir_all(place.path("runs/t")).unwrap();
    let most = format!("run.trace.max_intervals={}", 2 * per_step + 1);
    place.train(&[&often[..], &[&most]].concat());
    assert_eq!(steps(&events(&place)), [3, 5]);
    // A trace that cannot be drawn is told on the page.
    fs::write(place.path("runs/t/trace.json"), "{").unwrap();
    place.bessemer(&["report", "runs/t"]).text();
    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(page.contains("The trace is not drawn"));
}

fn events_of(place: &Workplace, sets: &[&str]) -> Vec<Value> {
    place.train(sets);
    events(place)
}

#[test]
fn ranks_that_share_layers_and_data_stand_below_one_program() {
    let place = Workplace::new(LLAMA);
    let sets = ["parallel.pipeline=2", "parallel.tensor=2", "parallel.data=zero1", "train.micro_batch=1"];
    let sets: Vec<&str> = sets.iter().flat_map(|s| ["--set", s]).collect();
    place.bessemer(&[&["run", "recipe.toml", "--ranks", "8"][..], &sets].concat()).text();
    let events = events(&place);
    for rank in 0..8 {
        assert!(names(&events, 5, rank, "collectives, tensor").len() > 8, "rank {rank}");
        assert!(names(&events, 5, rank, "collectives, shard").len() > 1, "rank {rank}");
    }
    check_order(&events, 5, 8);
    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(page.contains("1f1b: 2 ranks, 4 micro-batches") && page.contains(">rank 7</text>"));
    let show = ["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "4", "--trace", "runs/t"];
    assert!(place.bessemer(&show).text().contains("measured, step 5"));
}

#[test]
fn windows_and_filled_bubbles_are_drawn_with_the_program_that_they_ran() {
    let place = Workplace::new(LLAMA);
    let run = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|s| ["--set", s]).collect();
        place.bessemer(&[&["run", "recipe.toml", "--ranks", "2"][..], &sets].concat()).text();
        let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
        assert!(page.contains("A step on the clock") && !page.contains("is not drawn"), "{page}");
        fs::remove_dir_all(place.path("runs/t/checkpoints")).unwrap();
        fs::remove_file(place.path("runs/t/metrics.jsonl")).unwrap();
        page
    };
    let page = run(&[
        "parallel.pipeline=2",
        "parallel.schedule=pipedream",
        "parallel.window=2",
        "train.micro_batch=2",
        "optim.clip=0",
        "train.steps=10",
    ]);
    // Two updates of four micro-batches.
    assert!(page.contains("pipedream: 2 ranks, 8 micro-batches"), "{page}");
    let page = run(&[
        "parallel.pipeline=2",
        "parallel.fill=kfac",
        "optim.optimizer=kfac",
        "train.micro_batch=2",
        "train.steps=6",
    ]);
    assert!(page.contains("curvature") && page.contains("1f1b: 2 ranks, 4 micro-batches"), "{page}");
}

#[test]
fn a_linked_trace_is_replaced_and_not_written_through() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=4", "optim.schedule=constant"]);
    let (trace, precious) = (place.path("runs/t/trace.json"), place.path("precious"));
    fs::write(&precious, "precious").unwrap();
    let _ = fs::remove_file(&trace);
    std::os::unix::fs::symlink(&precious, &trace).unwrap();
    place.train(&["train.steps=12", "optim.schedule=constant"]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(fs::symlink_metadata(&trace).unwrap().is_file() && !steps(&events(&place)).is_empty());
}
