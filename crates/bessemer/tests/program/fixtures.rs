//! Files that older versions of the program wrote still open: `fixtures/` with its README.

use crate::workplace::{GPT2, Workplace};
use serde_json::Value;
use std::fs;
use std::path::Path;

#[test]
fn files_of_older_versions_open_verify_evaluate_and_train_on() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let versions = fs::read_dir(&fixtures).unwrap().map(|entry| entry.unwrap().path());
    let versions: Vec<_> = versions.filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty());
    for version in versions {
        let place = Workplace::new(GPT2);
        copy(&version, &place.path("."));
        let expected: Value =
            serde_json::from_slice(&fs::read(place.path("expected.json")).unwrap()).unwrap();
        for run in ["gpt2", "llama"].into_iter().filter(|run| expected.get(run).is_some()) {
            opens(&place, run, &expected[run]);
        }
        migrate(&place);
        if place.path("study.jsonl").exists() {
            let results =
                place.bessemer(&["judge", "results", "study.jsonl", "--samples", "20", "--json"]).json();
            assert_eq!(results["judgements"], expected["judgements"], "{}", version.display());
            assert_eq!(results["models"][0]["tasks"], expected["model_tasks"], "{}", version.display());
        }
    }
}

/// A study of 0.1.0 is a SQLite database, which a program with the feature `migrate` writes anew.
fn migrate(place: &Workplace) {
    if place.path("study.db").exists() {
        let remedy = "bessemer judge migrate study.db NEW.jsonl";
        place.bessemer(&["judge", "results", "study.db"]).failed(1, &["found version 1", remedy]);
        if cfg!(feature = "migrate") {
            place.bessemer(&["judge", "migrate", "study.db", "study.jsonl"]).text();
            assert!(place.path("study.jsonl").exists());
        }
    }
}

fn opens(place: &Workplace, run: &str, expected: &Value) {
    let dir = format!("runs/{run}");
    place.bessemer(&["corpus", "verify", &dir]).text();
    let kept = place.bessemer(&["corpus", "inspect", &dir, "--kept", "train", "--json"]).text();
    let deleted = fs::read_to_string(place.path(&format!("{dir}/corpus.tombstones.json")));
    assert_eq!(deleted.is_ok(), expected["deleted"] == true, "{run}");
    if let Ok(deleted) = deleted {
        let deleted: Value = serde_json::from_str(&deleted).unwrap();
        let id = deleted["documents"][0]["id"].as_str().unwrap_or_else(|| panic!("{deleted}"));
        assert!(!kept.contains(&format!("\"{id}\"")), "{kept}");
    }
    place.bessemer(&["checkpoint", "verify", &dir]).text();
    let loss = |place: &Workplace| {
        place.bessemer(&["eval", &dir, "--json"]).json()["report"]["loss"].as_f64().unwrap()
    };
    let (found, wanted) = (loss(place), expected["loss"].as_f64().unwrap());
    // Another instruction set sums in another order; stored activations of `llama` have 8 bits of mantissa.
    let tolerance = if run == "llama" { 4e-3 } else { 1e-5 };
    assert!((found - wanted).abs() < tolerance * wanted, "{run}: loss {found}, wanted {wanted}");
    let written =
        place.bessemer(&["generate", &dir, "--prompt", "the ", "--max-tokens", "5", "--json"]).json();
    assert!(!written["tokens"].as_array().unwrap().is_empty());

    let recipe = format!("{run}.toml");
    let ranks = if run == "llama" { "2" } else { "1" };
    let train = ["train", &recipe, "--ranks", ranks, "--set", "train.steps=6"];
    let done = place.bessemer(&train);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let log = fs::read_to_string(place.path(&format!("{dir}/metrics.jsonl"))).unwrap();
    let steps = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps: Vec<_> = steps.filter(|r| r["kind"] == "step").filter_map(|r| r["step"].as_u64()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6], "{run}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
