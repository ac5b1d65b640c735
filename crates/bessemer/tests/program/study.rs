//! A study: the same numbers however it is cut up, and a page.

use crate::workplace::{GPT2, Workplace};
use std::fs;

const SMALL: [&str; 18] = [
    "study",
    "init",
    "--text",
    "text.txt",
    "--layers",
    "2",
    "--width",
    "16",
    "--heads",
    "2",
    "--context",
    "16",
    "--batch",
    "3",
    "--steps",
    "5",
    "--seeds",
    "2",
];

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(more.iter().copied()).collect()
}

fn place() -> Workplace {
    let place = Workplace::new(GPT2);
    let text: String = (0..40).map(|i| format!("line {i} of a text that has some rhythm to it\n")).collect();
    fs::write(place.path("text.txt"), text).unwrap();
    place
}

#[test]
fn a_study_has_the_same_bytes_with_other_threads_and_when_it_was_cut_up() {
    let place = place();
    let all = place.bessemer(&words(&["--threads", "1", "--out", "whole", "--json"])).json();
    let whole = fs::read(place.path("whole/study.json")).unwrap();
    let page = fs::read_to_string(place.path("whole/report.html")).unwrap();
    assert!(page.contains("</html>") && page.contains("T-Fixup"));
    let methods = all["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 7);
    for m in methods {
        for run in m["runs"].as_array().unwrap() {
            assert_eq!(run["losses"].as_array().unwrap().len(), 5, "{m}");
            let length = |key: &str| run["start"][key].as_array().unwrap().len();
            assert_eq!((length("activation_std"), length("stream_gradient")), (3, 2));
            let factors = if m["name"] == "t-fixup" { 0 } else { 2 };
            assert_eq!((length("parameter_gradient"), length("norm_factor")), (2, factors));
        }
        // What has just been normalised has a deviation of one.
        let leaving = m["runs"][0]["start"]["activation_std"][2].as_f64().unwrap();
        let is_normalised = !["pre-ln", "t-fixup"].contains(&m["name"].as_str().unwrap());
        assert_eq!((leaving - 1.0).abs() < 0.01, is_normalised, "{}: {leaving}", m["name"]);
    }

    // First two methods with one seed, then everything, on two threads.
    let part = ["--threads", "2", "--out", "parts"];
    let few = ["--methods", "post-ln,post-ln-gpt2"];
    place.bessemer(&words(&[&part[..], &few[..]].concat())).text();
    let again = place.bessemer(&words(&part));
    assert!(again.err.contains("holds 4 finished runs"), "{}", again.err);
    assert!(fs::read(place.path("parts/study.json")).unwrap() == whole);
    let third = place.bessemer(&words(&part));
    assert!(third.err.contains("holds 14 finished runs") && !third.err.contains("seed 1"), "{}", third.err);
    assert!(fs::read_to_string(place.path("parts/report.html")).unwrap() == page);
}

#[test]
fn what_cannot_be_studied_is_refused_before_anything_is_made() {
    let place = place();
    let refused = |more: &[&str], code: i32, parts: &[&str]| {
        place.bessemer(&words(more)).failed(code, parts);
        assert!(!place.path("runs").exists(), "{more:?} left something");
    };
    refused(&["--methods", "pre-norm"], 2, &["pre-norm", "known: post-ln"]);
    refused(&["--lr", "-1"], 2, &["-1"]);
    let sized = |key: &str, value: &str, code: i32, parts: &[&str]| {
        let mut words = SMALL.to_vec();
        let at = words.iter().position(|w| *w == key).unwrap();
        words[at + 1] = value;
        place.bessemer(&words).failed(code, parts);
        assert!(!place.path("runs").exists(), "{key} {value} left something");
    };
    sized("--heads", "5", 2, &["heads", "width 16"]);
    sized("--steps", "0", 2, &["--steps", "wanted 1"]);
    sized("--text", "absent.txt", 1, &["absent.txt", "No such file"]);
    fs::write(place.path("short.txt"), "abc").unwrap();
    sized("--text", "short.txt", 78, &["short.txt", "longer text"]);

    place.bessemer(&words(&["--methods", "pre-ln"])).text();
    let mut other = SMALL.to_vec();
    other[9] = "4";
    place.bessemer(&other).failed(2, &["other settings", "--out"]);
}

#[test]
fn a_rate_that_no_network_bears_is_a_verdict_and_no_error() {
    let place = place();
    let found = place.bessemer(&words(&["--methods", "pre-ln", "--lr", "100", "--json"])).json();
    assert_eq!(found["methods"][0]["runs"][0]["verdict"], "diverged");
}

const CHECK: [&str; 18] = [
    "study",
    "coord-check",
    "--text",
    "text.txt",
    "--widths",
    "16,32,64",
    "--head-dim",
    "8",
    "--layers",
    "1",
    "--context",
    "16",
    "--batch",
    "2",
    "--steps",
    "2",
    "--seeds",
    "2",
];

#[test]
fn a_coordinate_check_has_both_parametrisations_and_the_same_bytes_with_other_threads() {
    let place = place();
    let with = |more: &[&'static str]| [&CHECK[..], more].concat();
    let found = place.bessemer(&with(&["--threads", "1", "--out", "one", "--json"])).json();
    let page = fs::read_to_string(place.path("one/report.html")).unwrap();
    assert!(page.contains("</html>") && page.matches("<svg").count() == 12 && !page.contains("<script"));
    let both = found["parametrisations"].as_array().unwrap();
    assert_eq!((both[0]["name"].as_str(), both[1]["name"].as_str()), (Some("mup"), Some("standard")));
    for p in both {
        let runs = p["runs"].as_array().unwrap();
        assert_eq!((runs.len(), p["findings"].as_array().unwrap().len()), (6, 6));
        for c in runs.iter().flat_map(|r| r["coordinates"].as_array().unwrap()) {
            let (size, change) = (c["size"].as_array().unwrap(), c["change"].as_array().unwrap());
            assert_eq!((size.len(), change.len(), change[0].as_f64()), (3, 3, Some(0.0)));
            assert!(size.iter().chain(&change[1..]).all(|v| v.as_f64().unwrap() > 0.0), "{c}");
        }
    }
    // At the base width, the smallest, both are one.
    assert_eq!(both[0]["runs"][0], both[1]["runs"][0]);
    assert_ne!(both[0]["runs"][2], both[1]["runs"][2]);

    let text = place.bessemer(&with(&["--threads", "2", "--out", "two"])).text();
    assert!(
        text.contains("residual stream") && text.contains("mup: ") && text.contains("standard: "),
        "{text}"
    );
    for file in ["coord-check.json", "report.html"] {
        assert!(
            fs::read(place.path(&format!("one/{file}"))).unwrap()
                == fs::read(place.path(&format!("two/{file}"))).unwrap()
        );
    }
}

#[test]
fn what_cannot_be_checked_is_refused_before_anything_is_made() {
    let place = place();
    for (key, value, parts) in [
        ("--widths", "16", ["--widths", "two or more"]),
        ("--widths", "16,20", ["--widths", "found 20"]),
        ("--steps", "0", ["--steps", "wanted 1"]),
        ("--head-dim", "0", ["--head-dim", "wanted 1"]),
        ("--text", "absent.txt", ["absent.txt", "No such file"]),
    ] {
        let mut words = CHECK.to_vec();
        let at = words.iter().position(|w| *w == key).unwrap();
        words[at + 1] = value;
        let code = if key == "--text" { 1 } else { 2 };
        place.bessemer(&words).failed(code, &parts);
        assert!(!place.path("runs").exists(), "{key} {value} left something");
    }
}

const TRIALS: [&str; 10] = [
    "study",
    "scaling",
    "recipe.toml",
    "--sizes",
    "16x1,32x1,32x2",
    "--tokens-per-parameter",
    "0.05,0.1,0.2",
    "--samples",
    "5",
    "--out=s",
];

#[test]
fn a_scaling_study_trains_fits_predicts_and_goes_on() {
    let place = Workplace::new(GPT2);
    let predict = [&TRIALS[..], &["--predict", "48x2", "--predict-tokens-per-parameter", "0.3"]].concat();
    let first = place.bessemer(&TRIALS);
    assert!(first.text().contains("fitted to 9 runs"), "{first:?}");
    assert!(first.err.contains("9 of 9: 32x2-0.2: "), "{}", first.err);
    let again = place.bessemer(&[&predict[..], &["--json"]].concat());
    assert_eq!(again.err.matches("up to date\n").count(), 9 + 3, "runs and stages: {}", again.err);
    let value = again.json();
    let prediction = &value["prediction"];
    let of = |key: &str| prediction[key].as_f64().unwrap();
    assert_eq!(prediction["run"], "48x2-0.3");
    assert!((of("error_percent") - 100.0 * (of("predicted") / of("loss") - 1.0)).abs() < 1e-9);
    // What stands in the file is what the verb for finished runs says of them, the larger one left out.
    let runs: Vec<String> = fs::read_dir(place.path("s/runs"))
        .unwrap()
        .map(|entry| format!("s/runs/{}", entry.unwrap().file_name().display()))
        .collect();
    let mut words = vec!["scaling", "fit", "--hold-out", "1", "--samples", "5", "--json"];
    words.extend(runs.iter().map(String::as_str));
    let mut fitted = place.bessemer(&words).json();
    fitted["prediction"] = prediction.clone();
    assert_eq!(fitted, value);
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&fs::read(place.path("s/scaling.json")).unwrap())
            .unwrap(),
        value
    );
    assert!(fs::read_to_string(place.path("s/report.html")).unwrap().contains("48x2-0.3"));
    // A trial is a run like any other, and its shards take no further room.
    place.bessemer(&["eval", "s/runs/16x1-0.05"]).text();
    let shard = |of: &str| {
        let folder = place.path(of).join("shards/train");
        let file = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(file).unwrap())
    };
    assert_eq!(shard("s/data"), shard("s/runs/16x1-0.05"));

    place
        .bessemer(&[&TRIALS[..], &["--set", "optim.lr=1e-4"]].concat())
        .failed(2, &["another recipe", "--out"]);
    place
        .bessemer(&[&TRIALS[..], &["--predict", "16x1", "--predict-tokens-per-parameter", "0.1"]].concat())
        .failed(2, &["more compute than all"]);
    let sizes =
        |sizes: &str| place.bessemer(&["study", "scaling", "recipe.toml", "--out=s", "--sizes", sizes]);
    sizes("16x1,32x1").failed(2, &["3 or more", "found 2"]);
    sizes("16x1,32x1,40x1").failed(2, &["40x1", "multiple of 16"]);
    sizes("16,32,64").failed(2, &["WIDTHxLAYERS"]);
    // The data have changed behind the runs.
    fs::write(
        place.path("text/alpha/0.txt"),
        "another text, which is long enough to be kept by the rules\n".repeat(40),
    )
    .unwrap();
    place.bessemer(&TRIALS).failed(2, &["another corpus", "--out"]);
}

#[test]
fn a_sweep_of_learning_rates_names_the_best_and_what_diverged() {
    let place = Workplace::new(&format!("{GPT2}init = \"mup\"\nmup_base_width = 16\n"));
    let words = [
        "study",
        "lr",
        "recipe.toml",
        "--sizes",
        "16x1,32x1",
        "--batches",
        "256,512",
        "--lrs",
        "1e-3,1e-2,3e-2,1e2",
        "--tokens",
        "3072",
        "--set",
        "optim.clip=0",
        "--set",
        "optim.weight_decay=0",
        "--out=l",
        "--json",
    ];
    let value = place.bessemer(&words).json();
    let sweeps = value["sweeps"].as_array().unwrap();
    assert_eq!(sweeps.len(), 4);
    for sweep in sweeps {
        let runs = sweep["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 4);
        let loss = |i: usize| runs[i]["loss"].as_f64();
        assert!(loss(1).unwrap() < loss(0).unwrap(), "12 steps learn more with the larger rate: {sweep}");
    }
    assert_eq!(value["mup"], true);
    // Twice the tokens a step, half the steps.
    let steps = |name: &str| {
        let log = fs::read_to_string(place.path(&format!("l/runs/{name}/metrics.jsonl"))).unwrap();
        log.lines().filter(|line| line.contains("\"kind\":\"step\"")).count()
    };
    assert_eq!((steps("16x1-b256-lr1e-3"), steps("16x1-b512-lr1e-3")), (12, 6));
    let page = fs::read_to_string(place.path("l/report.html")).unwrap();
    assert!(page.contains("32x1, 512 tokens a step"));
    place.bessemer(&["study", "lr", "recipe.toml", "--out=l2", "--lrs", "0"]).failed(2, &["--lrs"]);
}
