//! Seeing what happened: records say when, where and from which sources; `compare` and `runs`; the text file for Prometheus
//! and TensorBoard's texts.

use crate::workplace::{GPT2, Workplace};
use std::fs;

#[test]
fn runs_are_recorded_listed_and_compared() {
    let place = Workplace::new(GPT2);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir(place.path(".git")).unwrap();
    fs::write(place.path(".git/HEAD"), format!("{commit}\n")).unwrap();
    place.train(&["run.prometheus.every_steps=2", "eval.every_steps=3"]);
    place.train(&["run.name=other", "optim.lr=2e-3", "tokenizer.vocab_size=280"]);

    // The record of the beginning and of the end.
    let start = &place.records("run")[0];
    let here = fs::canonicalize(place.path("")).unwrap();
    assert_eq!(start["cwd"].as_str(), here.to_str());
    assert_eq!(start["commit"], commit);
    assert!(start["host"].as_str().is_some_and(|h| !h.is_empty()), "{start}");
    let ended = place.records("end")[0]["ended_at"].clone();
    for time in [&start["started_at"], &ended] {
        let time = time.as_str().unwrap();
        assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    let page = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(page.contains(commit) && page.contains(start["started_at"].as_str().unwrap()));
    assert!(page.contains("training steps: "), "the time of the stages has training");

    // What others read.
    let prometheus = fs::read_to_string(place.path("runs/t/metrics.prom")).unwrap();
    for line in
        ["bessemer_step{run=\"t\"} 6", "bessemer_running{run=\"t\"} 0", "bessemer_failed{run=\"t\"} 0"]
    {
        assert!(prometheus.lines().any(|l| l == line), "{line}\n{prometheus}");
    }
    assert!(
        prometheus.contains("bessemer_eval_bits_per_byte{run=\"t\",split=\"validation\"} "),
        "{prometheus}"
    );
    assert!(!place.path("runs/other/metrics.prom").exists());
    let names =
        |dir: &str| fs::read_dir(place.path(dir)).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let events = names("runs/t").into_iter().find(|p| p.to_string_lossy().contains("tfevents")).unwrap();
    let events = String::from_utf8_lossy(&fs::read(events).unwrap()).into_owned();
    for part in ["hparams", "optim.lr", "_hparams_/session_end_info", "samples/the", "```toml", "seed = 7"] {
        assert!(events.contains(part), "{part}");
    }

    // The comparison; a run that is damaged or unknown is an error.
    let log = fs::read_to_string(place.path("runs/other/metrics.jsonl")).unwrap();
    fs::create_dir(place.path("runs/damaged")).unwrap();
    fs::write(place.path("runs/damaged/metrics.jsonl"), "not a log\nat all\n").unwrap();
    let refused = place.bessemer(&["compare", "runs/t", "runs/damaged", "nothere"]);
    refused.failed(1, &["2 of 3 runs cannot be read", "runs/damaged/metrics.jsonl", "nothere"]);
    assert!(refused.out.is_empty());
    let words = ["compare", "runs/t", "runs/other", "--out", "compare.html"];
    let done = place.bessemer(&words);
    let text = done.text();
    for part in ["final bits per byte", "optim.lr", "0.002", "different tokenizers", "Fewest bits"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("run.name") && done.err.contains("wrote compare.html"), "{text}{}", done.err);
    let page = fs::read_to_string(place.path("compare.html")).unwrap();
    assert!(page.contains("Validation loss over steps") && page.contains("optim.lr"));
    fs::create_dir(place.path("runs/bare")).unwrap();
    fs::copy(place.path("runs/t/metrics.jsonl"), place.path("runs/bare/metrics.jsonl")).unwrap();
    let value = place.bessemer(&["compare", "runs/t", "runs/other", "runs/bare", "--json"]).json();
    assert_eq!(value["runs"][0]["figures"]["steps"], 6);
    assert_eq!(value["runs"][1]["label"], "runs/other");
    assert_eq!(
        value["runs"].as_array().unwrap().iter().map(|r| &r["recipe_is_known"]).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert!(value["page"].is_null());
    assert!(value["notes"].to_string().contains("runs/bare/recipe.toml was never recorded"), "{value}");
    let bare = place.bessemer(&["compare", "runs/t", "runs/bare"]).text();
    assert!(bare.contains("cannot be compared") && !bare.contains("do not differ"), "{bare}");
    fs::remove_dir_all(place.path("runs/bare")).unwrap();
    let lr = value["differences"].as_array().unwrap().iter().find(|d| d["key"] == "optim.lr").unwrap();
    assert_eq!(lr["values"][1], "0.002");
    assert!(lr["values"][2].is_null());

    // A run that was cut off while it wrote: what is there is compared, and it is not called finished.
    let half = log.split_inclusive('\n').filter(|l| !l.contains("\"kind\":\"end\"")).collect::<String>();
    fs::write(place.path("runs/other/metrics.jsonl"), &half[..half.len() - 9]).unwrap();
    let text = place.bessemer(&["compare", "runs/t", "runs/other"]).text();
    assert!(text.contains("no end recorded"), "{text}");

    // The list.
    let broken = "{\"kind\":\"end\",\"step\":6,\"tokens\":1536,\"reason\":\"failed\",\"message\":\"no more disk\",\"seconds\":1.0}\n";
    let log = fs::read_to_string(place.path("runs/t/metrics.jsonl")).unwrap();
    fs::create_dir(place.path("runs/broken")).unwrap();
    fs::write(place.path("runs/broken/metrics.jsonl"), log.clone() + broken).unwrap();
    let listed = place.bessemer(&["runs"]);
    listed.failed(1, &["1 of 4 runs cannot be read: runs/damaged/metrics.jsonl"]);
    let text = String::from_utf8(listed.out).unwrap();
    assert!(text.contains("runs/broken failed: no more disk"), "{text}");
    let line = |run: &str| {
        text.lines().find(|l| l.trim_start().starts_with(run)).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(line("runs/t ").contains("finished") && line("runs/t ").contains("6/6"), "{text}");
    assert!(
        line("runs/other ").contains("no end recorded") && line("runs/damaged ").contains("cannot be read")
    );
    let lock = fs::File::open(place.path("runs/other/.lock")).unwrap();
    lock.lock().unwrap();
    let list = place.bessemer(&["runs", "--json"]);
    list.failed(1, &["runs/damaged"]);
    let list: serde_json::Value = serde_json::from_slice(&list.out).unwrap();
    let other = list.as_array().unwrap().iter().find(|r| r["run"] == "runs/other").unwrap();
    assert_eq!((&other["status"], &other["running"]), (&"running".into(), &true.into()));

    // What cannot be compared or listed.
    place.bessemer(&["compare", "runs/t"]).failed(2, &["2 values required"]);
    place
        .bessemer(&["compare", "runs/damaged", "nothere"])
        .failed(1, &["2 of 2 runs cannot be read", "nothere"]);
    let missing = place.bessemer(&["compare", "runs/none", "nothere"]);
    assert_eq!(
        (missing.err.matches("runs/none").count(), missing.err.matches("nothere").count()),
        (1, 1),
        "{missing:?}"
    );
    let out = ["compare", "runs/t", "runs/other", "--out", "none/x.html"];
    place.bessemer(&out).failed(1, &["--out none/x.html"]);
    place.bessemer(&["runs", "nothere"]).failed(1, &["nothere", "run.dir"]);
}

#[test]
fn a_file_for_prometheus_that_cannot_be_written_is_a_warning_and_no_end() {
    let place = Workplace::new(GPT2);
    place.train(&["run.prometheus.every_steps=1", "run.prometheus.path=none/t.prom"]);
    assert_eq!(place.records("step").len(), 6);
    let warnings = place.records("warning");
    let of_file: Vec<_> = warnings.iter().filter(|w| w["topic"] == "prometheus").collect();
    assert_eq!(of_file.len(), 1, "{warnings:?}");
    assert!(
        of_file[0]["message"].as_str().unwrap().contains("cannot create runs/t/none/t.prom"),
        "{warnings:?}"
    );
    assert_eq!(place.records("end")[0]["reason"], "finished");
}
