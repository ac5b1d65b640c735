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

/// The example of the reference values of KoLA: tasks [10, 20, 30] and [50, 50, 80]; Krippendorff's alpha of three coders with gaps; a pyramid of tiers 1, 2,
/// 3 and 4 units (Nenkova and Passonneau 2004).
#[test]
fn tables_and_annotations_are_scored_without_texts() {
    let place = Workplace::new(GPT2);
    let write = |name: &str, text: &str| fs::write(place.path(name), text).unwrap();
    let close = |found: &serde_json::Value, wanted: f64| {
        assert!((found.as_f64().unwrap() - wanted).abs() < 1e-4, "{found} {wanted}");
    };
    write("kola.csv", "task,level,a,b,c\n1-1,KM,10,20,30\n2-1,KU,50,50,80\n");
    let done = place.bessemer(&["metric", "kola", "kola.csv", "--json"]).json();
    for (model, z, score) in
        [("a", [-1.224_745, -0.707_107], [0.0, 19.6152]), ("c", [1.224_745, 1.414_214], [92.8203, 100.0])]
    {
        for task in 0..2 {
            close(&done["tasks"][task]["z"][model], z[task]);
            close(&done["tasks"][task]["score"][model], score[task]);
        }
        close(&done["overall"][model], (z[0] + z[1]) / 2.0);
    }
    let text = place.bessemer(&["metric", "kola", "kola.csv"]).text();
    assert!(text.contains("92.8203") && text.contains("overall z"), "{text}");
    // Siblings share mean and deviation.
    write("siblings.csv", "task,level,siblings,a,b\n4-1,KC,x,1,2\n4-2,KC,x,3,4\n");
    let done = place.bessemer(&["metric", "kola", "siblings.csv", "--json"]).json();
    close(&done["tasks"][1]["z"]["a"], 0.5 / 1.25f64.sqrt());
    write("bad.csv", "task,level,a\n1-1,KM,\n");
    place.bessemer(&["metric", "kola", "bad.csv"]).failed(1, &["bad.csv: row 1", "column a", "null"]);
    place.bessemer(&["metric", "kola", "kola.csv", "bad.csv"]).failed(2, &["wanted one file of scores"]);

    write("ratings.csv", "item,ann,ben,cleo\n1,Y,N,N\n2,Y,N,\n3,,,N\n");
    let done = place.bessemer(&["metric", "agreement", "ratings.csv", "--json"]).json();
    close(&done["krippendorff_alpha"]["nominal"], -1.0 / 3.0);
    assert!(done["krippendorff_alpha"]["interval"].is_null() && done["fleiss_kappa"].is_null());
    assert_eq!((&done["ratings"], done["cohen_kappa"].as_array().unwrap().len()), (&6.into(), 3));
    close(&done["observed_agreement"], 0.25);
    write("numbers.csv", "item,ann,ben\n1,1,1\n2,3,3\n3,5,4\n");
    let text = place.bessemer(&["metric", "agreement", "numbers.csv"]).text();
    for part in ["Krippendorff's alpha, interval", "Fleiss' kappa", "Cohen's kappa, ann and ben"] {
        assert!(text.lines().any(|line| line.starts_with(part) && !line.contains('–')), "{text}");
    }
    write("one.csv", "item,ann\n1,Y\n");
    place.bessemer(&["metric", "agreement", "one.csv"]).failed(1, &["one.csv: row 1", "two annotators"]);

    // One unit of weight 4, two of 3, three of 2, four of 1: six units in a reference on average.
    let units = |from: usize| -> Vec<String> {
        let mut units = vec!["a".to_owned()];
        units.extend((0..2).filter(|_| from < 3).map(|i| format!("b{i}")));
        units.extend((0..3).filter(|_| from < 2).map(|i| format!("c{i}")));
        units.extend((0..4).filter(|_| from < 1).map(|i| format!("d{i}")));
        units
    };
    let topic = serde_json::json!({
        "topic": "t", "references": [units(0), units(1), units(2), units(3)],
        "peers": {"p": ["a", "c0", "d0", "d1"], "q": ["a", "b0", "b1", "x", "y"]},
    });
    write("pyramid.jsonl", &format!("{topic}\n"));
    let done = place.bessemer(&["metric", "pyramid", "pyramid.jsonl", "--json"]).json();
    // Of four units the best sum is 4 + 3 + 3 + 2 = 12; of (10 + 6 + 3 + 1) / 4 = 5 units 14.
    let score = &done["scores"][0]["score"];
    close(&score["sum"], 8.0);
    close(&score["quality"], 8.0 / 12.0);
    close(&score["coverage"], 8.0 / 14.0);
    close(&done["mean"]["q"]["quality"], 10.0 / 14.0);
    assert!(place.bessemer(&["metric", "pyramid", "pyramid.jsonl"]).text().contains("0.6667"));
    write("bad.jsonl", "{\"references\": [[1]]}\n");
    place.bessemer(&["metric", "pyramid", "bad.jsonl"]).failed(1, &["bad.jsonl: line 1", "references"]);
    place.bessemer(&["metric", "bleu", "ratings.csv"]).failed(2, &["wanted a file of references"]);
}
