//! `bessemer plan --method alpa`: plans that run and have the loss of one rank, and what cannot be planned.

use crate::workplace::{LLAMA, Workplace};
use serde_json::Value;
use std::fs;

const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// Devices on which computation is slow and communication quick, so that everything is worth sharing.
const MACHINE: &str = "name = 'slow'\nmatrix_flops = 1e9\nmemory_bandwidth = 1e9\nmemory = MEMORY\nmultiprocessors = 1\n\
                       node = 8\nnetwork_bandwidth = 1e9\nsources = ['made up for a test']\n[all_reduce]\n\
                       bus_bandwidth = 1e9\nbase_microseconds = 0.1\nhop_microseconds = 0.1\n";

/// A place with a recipe and a machine of so many bytes.
fn place(model: &str, memory: &str) -> Workplace {
    let place = Workplace::new(model);
    fs::write(place.path("slow.toml"), MACHINE.replace("MEMORY", memory)).unwrap();
    place
}

fn plans(place: &Workplace, words: &[&str]) -> Value {
    let all = ["plan", "recipe.toml", "--method", "alpa", "--json"];
    let slow: &[&str] = if words.contains(&"--machine") { &[] } else { &["--machine", "slow.toml"] };
    place.bessemer(&[&all[..], slow, words].concat()).json()
}

/// Loss of the last step.
fn loss(place: &Workplace) -> f64 {
    place.records("step").last().unwrap()["loss"].as_f64().unwrap()
}

fn keys(plan: &Value) -> Vec<&str> {
    plan["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect()
}

#[test]
fn found_plans_run_and_have_the_loss_of_one_rank() {
    let alone = Workplace::new(LLAMA);
    alone.train(&[]);
    let wanted = loss(&alone);
    let place = place(LLAMA, "1e9");
    let answer = plans(&place, &["--devices", "4", "--top", "100"]);
    let all = answer["plans"].as_array().unwrap();
    let seconds: Vec<f64> = all.iter().map(|plan| plan["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.len() > 30 && seconds.windows(2).all(|pair| pair[0] <= pair[1]), "{}", seconds.len());
    let bound = answer["bound"].as_f64().unwrap();
    assert!(bound <= seconds[0] && answer["gap"].as_f64().unwrap() < 1e-9, "{answer}");
    assert!(answer["any_layout"]["seconds"].as_f64().unwrap() <= seconds[0] * (1.0 + 1e-9), "{answer}");
    let unequal = &answer["unequal_stages"];
    let [found, equal, saving] =
        ["seconds", "equal_seconds", "saving"].map(|key| unequal[key].as_f64().unwrap());
    assert!(found <= equal * (1.0 + 1e-12) && (0.0..0.5).contains(&saving), "{unequal}");
    let devices = |stage: &Value| stage["tensor"].as_u64().unwrap() * stage["data"].as_u64().unwrap();
    assert_eq!(unequal["stages"].as_array().unwrap().iter().map(devices).sum::<u64>(), 4);
    let layout = |plan: &Value, key: &str| plan["layout"][key].clone();
    let annotates = |plan: &Value| keys(plan).iter().any(|key| key.contains("annotate"));
    // Where messages take longer than computing, ranks rather compute everything.
    let quick = ["--devices", "4", "--top", "100", "--machine", "a100-80gb"];
    let quick = plans(&place, &quick);
    let annotated = quick["plans"].as_array().unwrap().iter().find(|plan| annotates(plan)).unwrap();
    assert_eq!(layout(annotated, "tensor"), 2);
    let kinds: [&dyn Fn(&Value) -> bool; 4] = [
        &|plan| layout(plan, "tensor") == 2 && layout(plan, "sequence") == true,
        &|plan| layout(plan, "pipeline") == 2 && layout(plan, "tensor") == 2,
        &|plan| layout(plan, "stages")[0] != layout(plan, "stages")[1] && layout(plan, "pipeline") == 2,
        &|plan| layout(plan, "zero") == "zero3" && layout(plan, "data") == 4,
    ];
    let either = || all.iter().chain(quick["plans"].as_array().unwrap());
    let find = |kind: &dyn Fn(&Value) -> bool| either().find(|plan| kind(plan)).expect("such a plan");
    for plan in kinds.into_iter().map(find).chain([annotated]) {
        let place = Workplace::new(LLAMA);
        let mut words = vec!["run", "recipe.toml", "--ranks", "4"];
        words.extend(keys(plan).into_iter().flat_map(|key| ["--set", key]));
        let finished = place.bessemer(&words);
        assert_eq!(finished.code, Some(0), "{}", finished.err);
        let found = loss(&place);
        assert!((found / wanted - 1.0).abs() < 1e-4, "{found} {wanted}: {:?}", keys(plan));
    }
}

/// With less memory what is planned takes less, or is refused with what binds.
#[test]
fn memory_binds() {
    let roomy = plans(&place(LLAMA, "1e9"), &["--devices", "4"]);
    let held = |answer: &Value| answer["plans"][0]["memory"].as_f64().unwrap();
    let limit = 0.6 * held(&roomy);
    let tight = plans(&place(LLAMA, &format!("{limit:e}")), &["--devices", "4"]);
    assert!(held(&tight) <= limit, "{tight}");
    let seconds = |answer: &Value| answer["plans"][0]["seconds"].as_f64().unwrap();
    assert!(seconds(&tight) > seconds(&roomy));
    let none = place(LLAMA, "1e4");
    let words = ["plan", "recipe.toml", "--method", "alpa", "--machine", "slow.toml", "--devices", "4"];
    none.bessemer(&words).failed(FAILED, &["no mesh fits (", "9.77 KiB of a slow"]);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let place = place(LLAMA, "1e9");
    let words = ["plan", "recipe.toml", "--method", "alpa", "--machine", "slow.toml"];
    let plan = |more: &[&str]| place.bessemer(&[&words[..], more].concat());
    plan(&["--devices", "7"]).failed(USAGE, &["no mesh of 7 devices divides the 8 sequences of a step"]);
    let annotated = ["--devices", "4", "--set", "parallel.annotate.\"*.mlp.*\"=replicate"];
    plan(&annotated)
        .failed(USAGE, &["parallel.annotate: --method alpa finds the layouts of parameters itself"]);
    // Two sequences are not enough for four data-parallel ranks.
    let text =
        plan(&["--devices", "4", "--set", "train.batch_tokens=64", "--set", "train.micro_batch=2"]).text();
    for part in
        ["objective ", "(gap 0.00 %)", "layouts over the ", "layers 0-1", "keys: --set parallel.tensor="]
    {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}
