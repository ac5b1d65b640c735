//! `bessemer metric`.

#![allow(clippy::print_stdout, reason = "says what was left out")]

use crate::workplace::{GPT2, Workplace};
use std::fs;

#[test]
fn texts_are_scored_against_references() {
    let place = Workplace::new(GPT2);
    let write = |name: &str, text: &str| fs::write(place.path(name), text).unwrap();
    write("system", "The dog bit the man.\nIt wasn't surprising.\nThe man had just bitten him.\n");
    write("a", "The dog bit the man.\nIt was not unexpected.\nThe man bit him first.\n");
    write("b", "The dog had bit the man.\nNo one was surprised.\nThe man had bitten the dog.\n");
    let done =
        place.bessemer(&["metric", "bleu", "system", "a", "b", "--each", "--against", "a", "--json"]).json();
    assert!((done["score"].as_f64().unwrap() - 48.530_827).abs() < 1e-6, "{done}");
    assert_eq!(done["signature"], "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0");
    assert_eq!(done["each"].as_array().unwrap().len(), 3);
    assert!((done["against"]["score"].as_f64().unwrap() - 100.0).abs() < 1e-9, "{done}");
    let text = place.bessemer(&["metric", "ter", "system", "a", "--against", "b"]).text();
    for part in ["TER = ", "smaller is better", "tok:tercom", "paired bootstrap"] {
        assert!(text.contains(part), "{text}");
    }
    for name in ["chrf", "rouge1", "rouge2", "rougel", "rougelsum", "meteor", "exact-match", "f1"] {
        let same = place.bessemer(&["metric", name, "a", "a", "--json"]).json();
        let score = same["score"].as_f64().unwrap();
        // METEOR takes a little off even for the same text.
        assert!(
            score > if name == "meteor" { 99.0 } else { 99.999 } && score < 100.0 + 1e-9,
            "{name}: {score}"
        );
    }
    // Lines within a text.
    write("s.jsonl", "\"one two\\nthree\"\n{\"text\": \"four\"}\n");
    write("r.jsonl", "{\"text\": \"three\\none two\"}\n\"four\"\n");
    let of = |name: &str| {
        place.bessemer(&["metric", name, "s.jsonl", "r.jsonl", "--json"]).json()["score"].as_f64().unwrap()
    };
    assert!((of("rougelsum") - 100.0).abs() < 1e-9 && of("rougel") < 90.0);

    write("short", "one line\n");
    place
        .bessemer(&["metric", "bleu", "system", "a", "short"])
        .failed(2, &["short: wanted 3 texts", "found 1"]);
    write("bad.jsonl", "\"x\"\n{\"txt\": \"y\"}\n");
    place.bessemer(&["metric", "f1", "bad.jsonl", "a"]).failed(1, &["bad.jsonl: line 2", "key text"]);
    write("empty", "");
    place.bessemer(&["metric", "f1", "empty", "empty"]).failed(2, &["empty: wanted a text or more"]);
    place.bessemer(&["metric", "f1", "missing", "a"]).failed(1, &["missing"]);
    place.bessemer(&["metric", "blue", "a", "a"]).failed(2, &["blue", "bleu"]);
}

#[test]
fn programs_are_run_in_confinement() {
    let place = Workplace::new(GPT2);
    let problem = r#"{"task_id": "test/0", "prompt": "def return1():\n", "entry_point": "return1", "test": "def check(candidate):\n    assert candidate() == 1\n"}"#;
    fs::write(place.path("problems.jsonl"), format!("{problem}\n")).unwrap();
    // Those of HumanEval's example: three that fail, three that pass.
    let completions = [
        r"    import subprocess\n    subprocess.check_output('rm -rf tempfile')",
        r"    import time\n    time.sleep(10)\n    return 1",
        r"    return input('enter a number')",
        r"    return 1",
        r"  return 1",
        r"\treturn 1",
    ];
    let samples: String = completions
        .iter()
        .map(|text| format!("{{\"task_id\": \"test/0\", \"completion\": \"{text}\"}}\n"))
        .collect();
    fs::write(place.path("samples.jsonl"), samples).unwrap();
    let words =
        ["metric", "pass-at-k", "samples.jsonl", "problems.jsonl", "--k", "1,7", "--seconds", "5", "--json"];
    let done = place.bessemer(&words);
    if done.err.contains("cannot be run in confinement") || !std::path::Path::new("/usr/bin/python3").exists()
    {
        println!("left out: {}", done.err);
        return;
    }
    let done = done.json();
    assert!((done["scores"]["pass@1"].as_f64().unwrap() - 0.5).abs() < 1e-12, "{done}");
    assert!(done["scores"]["pass@7"].is_null(), "{done}");
    let results: Vec<&str> =
        done["results"].as_array().unwrap().iter().map(|r| r["result"].as_str().unwrap()).collect();
    assert_eq!(results[1], "timed out");
    assert_eq!(results[3..], ["passed"; 3]);
    assert!(results[2].contains("EOF"), "{results:?}");
    let text = place
        .bessemer(&[
            "metric",
            "pass-at-k",
            "samples.jsonl",
            "problems.jsonl",
            "--k",
            "1,7",
            "--each",
            "--seconds",
            "2",
        ])
        .text();
    assert!(text.contains("pass@1 = 50.0000") && text.contains("pass@7: needs 7 samples"), "{text}");

    fs::write(place.path("other.jsonl"), "{\"task_id\": \"test/9\", \"completion\": \"x\"}\n").unwrap();
    place
        .bessemer(&["metric", "pass-at-k", "other.jsonl", "problems.jsonl"])
        .failed(2, &["line 1", "test/9"]);
    place.bessemer(&["metric", "pass-at-k", "samples.jsonl", "samples.jsonl"]).failed(2, &["key prompt"]);
    let absent =
        ["metric", "pass-at-k", "samples.jsonl", "problems.jsonl", "--python", "/usr/bin/no-such-python"];
    place.bessemer(&absent).failed(1, &["no-such-python"]);
}
