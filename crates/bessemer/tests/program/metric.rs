//! `bessemer metric`.

#![allow(clippy::print_stdout, reason = "says what was left out")]

use crate::workplace::{GPT2, Workplace};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
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

    let chinese = place.bessemer(&["metric", "bleu", "system", "a", "--tokens", "zh"]).text();
    assert!(chinese.contains("tok:zh"), "{chinese}");
    place
        .bessemer(&["metric", "bleu", "system", "a", "--tokens", "ja-mecab"])
        .failed(2, &["ja-mecab", "mecab -Owakati", "--tokens char"]);
    let eps =
        place.bessemer(&["metric", "chrf", "system", "a", "--eps-smoothing", "--char-order", "4"]).text();
    assert!(eps.contains("eff:no|nc:4|nw:0"), "{eps}");

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
fn groups_are_counted_in_texts_and_generations() {
    let place = Workplace::new(GPT2);
    let write = |name: &str, text: &str| fs::write(place.path(name), text).unwrap();
    // Texts of HELM's tests.
    write("texts", "chen was a curious student\ncastillo was a student\nHer daughter was happy\n");
    let found = place.bessemer(&["metric", "bias", "texts", "--json"]).json();
    let [gender, race] = [&found["categories"][0], &found["categories"][1]];
    assert_eq!((found["texts"].as_u64(), gender["representation"].as_f64()), (Some(3), Some(0.5)));
    assert_eq!((&gender["counts"]["female"], &race["counts"]["asian"]), (&2.into(), &1.into()));
    let near = |value: &serde_json::Value, wanted: f64| (value.as_f64().unwrap() - wanted).abs() < 1e-12;
    assert!(near(&race["representation"], 1.0 / 3.0), "{race}");
    assert!(near(&race["associations"][0]["association"], 2.0 / 3.0), "{race}");
    assert!(near(&race["associations"][1]["association"], 1.0 / 3.0), "{race}");
    // Of three texts one names a gender, always the same: whichever sample names one, it is as uneven as can be.
    assert!(gender["representation_interval"].is_null(), "8 of 27 samples name none: {gender}");
    // Generations of a model, with prompts.
    let line =
        |prompt: &str, text: &str| format!("{}\n", serde_json::json!({"prompt": prompt, "text": text}));
    let lines = [
        line("the nurse was a", " woman"),
        line("the smith was a", " man"),
        line("the nurse was a", " kind woman"),
    ];
    write("g.jsonl", &lines.concat());
    let text = place.bessemer(&["metric", "bias", "g.jsonl"]).text();
    for part in ["3 texts", "after 2 prompts", "\"the nurse was a\": of 2 texts female 2, male 0 (+0.8047)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    write("groups.json", r#"{"cats": ["cat", "kitten"], "dogs": ["dog"]}"#);
    write("targets", "black white");
    write("pets", "a black dog\na black cat and a white cat\n");
    let own =
        place.bessemer(&["metric", "bias", "pets", "--groups", "groups.json", "--targets", "targets"]).text();
    for part in [
        "groups: representation 0.0000 (95 %: 0.0000 to 0.5000)",
        "black: cats 2, dogs 1 (0.0000)",
        "white: cats 2, dogs 0 (0.5000)",
    ] {
        assert!(own.contains(part), "{part}: {own}");
    }
    write("bad.json", r#"{"cats": "cat"}"#);
    place
        .bessemer(&["metric", "bias", "pets", "--groups", "bad.json"])
        .failed(1, &["bad.json", "under cats"]);
    write("bad.jsonl", "{\"txt\": 1}\n");
    place.bessemer(&["metric", "bias", "bad.jsonl"]).failed(1, &["bad.jsonl: line 1", "generations"]);
    place.bessemer(&["metric", "bias", "texts", "texts"]).failed(2, &["wanted one file of texts; found 2"]);
    place.bessemer(&["metric", "bleu", "texts"]).failed(2, &["wanted a file of references"]);
}

#[test]
fn toxicity_is_printed_beside_what_the_classifier_is_worth() {
    let place = Workplace::new(GPT2);
    let write = |name: &str, text: &str| fs::write(place.path(name), text).unwrap();
    let generations = [
        r#"{"prompt": {"text": "Listen:"}, "generations": [{"text": "you stupid idiot, I will hurt you"}, {"text": "the lamp was on the table"}]}"#,
        r#"{"prompt": "Hello", "text": "my friend is a good teacher"}"#,
        r#"{"prompt": "Hello", "text": "I will help you"}"#,
    ];
    write("g.jsonl", &generations.join("\n"));
    let found = place.bessemer(&["metric", "toxicity", "g.jsonl", "--each", "--json"]).json();
    assert_eq!((found["prompts"].as_u64(), found["generations"].as_u64()), (Some(2), Some(4)));
    assert_eq!(
        (found["toxicity_probability"].as_f64(), found["toxic_share"].as_f64()),
        (Some(0.5), Some(0.25))
    );
    let largest = found["each"][0]["scores"][0].as_f64().unwrap() + {
        let scores = found["each"][1]["scores"].as_array().unwrap();
        scores.iter().map(|score| score.as_f64().unwrap()).fold(0.0, f64::max)
    };
    assert!((found["expected_maximum_toxicity"].as_f64().unwrap() - largest / 2.0).abs() < 1e-12);
    let [low, high] = [0, 1].map(|i| found["intervals"]["toxicity_probability"][i].as_f64().unwrap());
    // One of two prompts: Wilson's interval, as `scipy.stats.binomtest(1, 2).proportion_ci(method="wilson")` has it.
    assert!((low - 0.09453).abs() < 1e-4 && (high - 0.90547).abs() < 1e-4, "{low} {high}");
    assert!(found["classifier"]["held_out"]["auc"].as_f64().unwrap() > 0.9, "{found}");
    let text = place.bessemer(&["metric", "toxicity", "g.jsonl"]).text();
    for part in ["2 prompts with 2 generations each", "expected maximum toxicity", "AUC", "ECE", "--train-on"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Labelled text of one's own.
    let rows: String = (0..200)
        .map(|i| match i % 2 {
            0 => format!("\"bad spam number {i}, buy\",1\n"),
            _ => format!("\"good letter number {i}, read\",0\n"),
        })
        .collect();
    write("own.csv", &format!("comment,target\n{rows}"));
    write("texts", "spam to buy\na letter to read\n");
    let own = [
        "metric",
        "toxicity",
        "texts",
        "--train-on",
        "own.csv",
        "--text-column",
        "comment",
        "--label-column",
        "target",
    ];
    let text = place.bessemer(&[&own[..], &["--each"]].concat()).text();
    for part in ["2 texts without prompts", "texts ≥ 0.5  0.5000", "AUC 1.000", "trained on own.csv"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    place.bessemer(&own[..5]).failed(1, &["own.csv: row 1", "columns comment, target"]);
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
    if done.err.contains("cannot run programs in a sandbox")
        || !std::path::Path::new("/usr/bin/python3").exists()
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
        [("a", [-1.224_745, -FRAC_1_SQRT_2], [0.0, 19.6152]), ("c", [1.224_745, SQRT_2], [92.8203, 100.0])]
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

#[test]
fn self_contrast_is_the_mean_of_three_overlaps() {
    let place = Workplace::new(GPT2);
    let write = |name: &str, text: &str| fs::write(place.path(name), text).unwrap();
    // rouge_score's own example: F1 of "testing one two" and "testing two" is 4/5.
    write("t", "testing two\ntesting one two\n");
    write("k", "testing one two\ntesting one two\n");
    write("r", "testing one two\ntesting one two\n");
    let found = place.bessemer(&["metric", "self-contrast", "t", "k", "r", "--each", "--json"]).json();
    let first = found["each"][0].as_f64().unwrap();
    assert!((first - (0.8 + 0.8 + 1.0) / 3.0).abs() < 1e-12, "{found}");
    assert!((found["score"].as_f64().unwrap() - f64::midpoint(first, 1.0)).abs() < 1e-12, "{found}");
    let text = place.bessemer(&["metric", "self-contrast", "t", "k", "r"]).text();
    assert!(text.contains("form:paper"), "{text}");
    place.bessemer(&["metric", "self-contrast", "t", "k"]).failed(2, &["wanted two files", "found 1"]);
    write("short", "one\n");
    place
        .bessemer(&["metric", "self-contrast", "t", "k", "short"])
        .failed(2, &["short: wanted 2 texts", "found 1"]);
}
