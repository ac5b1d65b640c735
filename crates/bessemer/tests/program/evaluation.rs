//! `bessemer eval` on texts and tasks, of trained and of imported models.

use crate::workplace::{LLAMA, Workplace};
use serde_json::{Value, json};
use std::fs;

#[test]
fn texts_and_tasks_are_answered_alike_by_a_trained_and_an_imported_model() {
    let place = Workplace::new(LLAMA);
    // Longer inputs than other tests have: sentences of the families are some 40 tokens.
    place.train(&["train.steps=2", "model.context=128", "train.seq_len=128"]);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "hf"]).text();
    place.bessemer(&["checkpoint", "import", "hf", "--out", "runs/imported"]).text();

    // Two documents as lines, or one text: the same tokens but for where they begin.
    let text = "the quick brown fox jumps over lazy dogs while rain falls on green hills and rivers run toward distant seas";
    fs::write(place.path("one.txt"), text).unwrap();
    fs::write(place.path("two.jsonl"), format!("{}\n{}\n", json!({"body": text}), json!({"body": text})))
        .unwrap();
    let one = place.bessemer(&["eval", "runs/imported", "--text", "one.txt", "--json"]).json();
    let trained = place.bessemer(&["eval", "runs/t", "--text", "one.txt", "--json"]).json();
    let two = place
        .bessemer(&["eval", "runs/imported", "--text", "two.jsonl", "--text-key", "body", "--json"])
        .json();
    assert_eq!((one["nats"].as_f64(), one["documents"].as_u64()), (trained["nats"].as_f64(), Some(1)));
    assert_eq!(two["nats"].as_f64().unwrap(), 2.0 * one["nats"].as_f64().unwrap());
    assert_eq!((one["bytes"].as_u64(), one["words"].as_u64()), (Some(text.len() as u64), Some(20)));
    let bits = one["nats"].as_f64().unwrap() / std::f64::consts::LN_2 / text.len() as f64;
    assert!((one["bits_per_byte"].as_f64().unwrap() - bits).abs() < 1e-12);
    let more = ["eval", "runs/t", "--text", "one.txt", "--context", "30", "--batch-tokens", "1"];
    assert!(place.bessemer(&more).text().contains("at least 30 of history"));

    // A task file that scores, one that writes, and a group of both.
    fs::create_dir(place.path("tasks")).unwrap();
    let rows: String = (0..12)
        .map(|i| {
            format!(
                "{}\n",
                json!({"q": format!("rain falls on {i}"), "a": "hills", "b": "seas", "label": i % 2})
            )
        })
        .collect();
    fs::write(place.path("tasks/rows.jsonl"), rows).unwrap();
    let data = "dataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\nfewshot_split: test\ndoc_to_text: \"{{q}}\"\n";
    fs::write(
        place.path("tasks/pick.yaml"),
        format!("task: pick\noutput_type: multiple_choice\n{data}doc_to_choice: \"{{{{[a, b]}}}}\"\ndoc_to_target: label\nmetric_list: [{{metric: acc}}, {{metric: exact_match}}]\n"),
    )
    .unwrap();
    fs::write(
        place.path("tasks/write.yaml"),
        format!("task: write\noutput_type: generate_until\n{data}doc_to_target: a\ngeneration_kwargs: {{until: [\"\\n\"], max_gen_toks: 4}}\n"),
    )
    .unwrap();
    fs::write(
        place.path("tasks/both.yaml"),
        "group: both\ntask: [pick, write]\naggregate_metric_list: [{metric: exact_match}]\n",
    )
    .unwrap();
    let eval = |run: &str, batch: &str| {
        let words = [
            "eval",
            run,
            "--tasks",
            "both,grammar",
            "--task-dir",
            "tasks",
            "--limit",
            "9",
            "--fewshot",
            "1",
            "--json",
            "--bootstrap",
            "100",
        ];
        place
            .bessemer(&[&words[..], &["--batch-tokens", batch, "--samples", "samples.jsonl"]].concat())
            .json()
    };
    let all = eval("runs/t", "4096");
    let names: Vec<&str> =
        all["tasks"].as_array().unwrap().iter().map(|task| task["task"].as_str().unwrap()).collect();
    assert_eq!(names, ["pick", "write", "grammar"]);
    assert_eq!(
        (&all["groups"][0]["group"], &all["groups"][0]["tasks"]),
        (&json!("both"), &json!(["pick", "write"]))
    );
    let samples = fs::read_to_string(place.path("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(samples.len(), 27);
    assert!(samples[0]["requests"][0]["answer"]["log_likelihood"].as_f64().unwrap() < 0.0);
    // The batch changes nothing, and an imported model answers as the one that it was made from; the step alone differs.
    assert_eq!(eval("runs/t", "1"), all);
    assert_eq!(fs::read_to_string(place.path("samples.jsonl")).unwrap().lines().count(), 27);
    let scores = |all: &Value| -> Vec<Value> {
        all["tasks"].as_array().unwrap().iter().map(|task| task["scores"].clone()).collect()
    };
    assert_eq!(scores(&eval("runs/imported", "64")), scores(&all));
    let table = place.bessemer(&["eval", "runs/t", "--tasks", "logic", "--limit", "5"]).text();
    assert!(
        table.contains("acc ↑") && table.contains("task:logic|version:1|fewshot:0|seed:1234|n:5|prompts:"),
        "{table}"
    );

    let wrong = |words: &[&str], code: i32, parts: &[&str]| {
        place.bessemer(&[&["eval", "runs/imported"], words].concat()).failed(code, parts)
    };
    wrong(&[], 1, &["has no shards", "--text FILE"]);
    wrong(&["--tasks", "nothing"], 2, &["there is no task nothing", "grammar"]);
    wrong(&["--tasks", "logic", "--window", "999"], 2, &["--window 999", "context of 128 tokens"]);
    wrong(&["--text", "none.txt"], 1, &["none.txt"]);
    wrong(&["--text", "two.jsonl"], 1, &["line 1", "under the key text"]);
    wrong(&["--tasks", "blimp:two.jsonl"], 1, &["two.jsonl", "sentence_good", "body"]);
    // Read, and refused for its columns.
    let documents = "blimp:runs/t/corpus/documents-train-00000.parquet";
    wrong(&["--tasks", documents], 1, &[".parquet", "sentence_good", "licence"]);
    wrong(&["--tasks", "logic", "--text", "one.txt"], 2, &["cannot be used with"]);
}

#[test]
fn a_model_that_is_trained_on_the_facts_knows_them_at_the_levels_of_kola() {
    let place = Workplace::new(LLAMA);
    // A task of one's own joins those of the program.
    fs::create_dir(place.path("tasks")).unwrap();
    let own = "task: own\nlevel: KA\noutput_type: multiple_choice\ntest_split: test\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: 0\n\
               dataset_kwargs: {data_files: {test: own.jsonl}}\n";
    fs::write(place.path("tasks/own.yaml"), own).unwrap();
    fs::write(place.path("tasks/own.jsonl"), "{\"q\": \"one\", \"c\": [\"two\", \"six\"]}\n").unwrap();
    fs::write(place.path("tasks/other.yaml"), own.replace("task: own\nlevel: KA", "task: other")).unwrap();

    place.train(&["train.steps=1", "model.context=64", "train.seq_len=64"]);
    let eval = |more: &[&str]| {
        let words = ["eval", "runs/t", "--tasks", "kola-small", "--task-dir", "tasks", "--bootstrap", "100"];
        place.bessemer(&[&words, more].concat())
    };
    let before =
        eval(&["--facts", "facts.jsonl", "--kola", "scores.jsonl", "--kola-name", "before", "--json"]).json();
    let set = [
        "corpus.source=jsonl",
        "corpus.path=facts.jsonl",
        "corpus.split.by=document",
        "corpus.split.validation_fraction=0.02",
        "tokenizer.vocab_size=512",
        "model.layers=1",
        "model.width=64",
        "model.context=64",
        "train.seq_len=64",
        "train.batch_tokens=1024",
        "train.steps=300",
        "optim.lr=5e-3",
        "eval.samples.prompts=[]",
    ];
    fs::remove_dir_all(place.path("runs/t")).unwrap();
    place.train(&set);
    let after = eval(&["--kola", "scores.jsonl", "--kola-name", "after", "--json"]).json();

    let level = |all: &Value, name: &str| {
        let levels = all["levels"].as_array().unwrap();
        let found = levels.iter().find(|level| level["level"] == name).unwrap();
        (found["value"].as_f64().unwrap(), found["tasks"].as_array().unwrap().len())
    };
    let names = ["KM", "KU", "KA", "KC"];
    assert_eq!(names.map(|name| level(&after, name).1), [2, 2, 3, 2], "the task of one's own is one of KA");
    // 144 questions of four choices: chance is 0.25 with a deviation of 0.036.
    let memory = (level(&before, "KM").0, level(&after, "KM").0);
    assert!(memory.0 < 0.4 && memory.1 > 0.6, "{memory:?}");
    let creating = (level(&before, "KC").0, level(&after, "KC").0);
    // A model that writes the same text with and without knowledge has 1/3 for it, however wrong.
    assert!(creating.0 < 0.34 && creating.1 > 0.5, "{creating:?}");
    let accuracy = |all: &Value, name: &str| {
        let task = all["tasks"].as_array().unwrap().iter().find(|task| task["task"] == name).unwrap().clone();
        task["scores"][0]["value"].as_f64().unwrap()
    };
    // What six documents state is known better than what one does.
    assert!(accuracy(&after, "kola-frequent") > accuracy(&after, "kola-rare") + 0.1, "{after}");

    // Of two models with different scores one is a deviation above their mean and one below, without siblings.
    let standardised = &after["kola"];
    let of_task = |name: &str| {
        let tasks = standardised["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["task"] == name).unwrap()["z"].clone()
    };
    let (z, other) =
        (of_task("kola-concepts")["after"].as_f64().unwrap(), of_task("kola-concepts")["before"].as_f64());
    assert!((z.abs() - 1.0).abs() < 1e-12 && other == Some(-z), "{standardised}");
    assert!(standardised["overall"]["after"].as_f64() > standardised["overall"]["before"].as_f64());
    let table = fs::read_to_string(place.path("scores.jsonl")).unwrap();
    assert_eq!(table.lines().count(), 9, "{table}");
    let again = place.bessemer(&["metric", "kola", "scores.jsonl", "--json"]).json();
    assert_eq!(&again, standardised, "the table is that of metric kola");
    let text = eval(&["--limit", "2"]).text();
    assert!(
        text.contains("level     mean  tasks") && text.contains("kola-two-hops, kola-same-town, own"),
        "{text}"
    );

    let wrong = |words: &[&str], code: i32, parts: &[&str]| {
        place.bessemer(&[&["eval", "runs/t", "--tasks"], words].concat()).failed(code, parts);
    };
    wrong(&["kola-small", "--kola", "scores.csv"], 2, &["scores.csv", ".jsonl"]);
    wrong(&["kola-rare", "--kola", "scores.jsonl"], 1, &["wanted the tasks of the table", "found kola-rare"]);
    wrong(&["logic", "--kola", "new.jsonl", "--limit", "1"], 1, &["wanted a task with a level"]);
    wrong(&["kola-smal"], 2, &["did you mean \"kola-small\""]);
}

#[test]
fn perturbed_questions_are_asked_beside_the_original_ones() {
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=2", "model.context=128", "train.seq_len=128"]);
    // Of 6 questions the even ones have something to contract.
    let rows: String = (0..6)
        .map(|i| {
            let q = if i % 2 == 0 { format!("rain: it is {i}") } else { format!("rain falls on {i}") };
            format!("{}\n", json!({"q": q, "a": "hills", "b": "it is", "label": i % 2}))
        })
        .collect();
    fs::write(place.path("rows.jsonl"), rows).unwrap();
    fs::write(
        place.path("pick.yaml"),
        "task: pick\noutput_type: multiple_choice\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n\
         doc_to_text: \"{{q}}, is it?\"\ndoc_to_choice: \"{{[a, b]}}\"\ndoc_to_target: label\nmetric_list: [{metric: acc}, {metric: brier_score}]\n",
    )
    .unwrap();
    let ask = |words: &[&str]| {
        let fixed = ["eval", "runs/t", "--tasks", "pick.yaml,grammar", "--limit", "6"];
        place.bessemer(&[&fixed, words].concat())
    };
    let plain = ask(&["--json"]).json();
    assert!(plain.get("robustness").is_none());
    let all = ask(&["--perturb", "contraction,lowercase", "--samples", "s.jsonl", "--json"]).json();
    assert_eq!(all["tasks"], plain["tasks"], "the original scores stay");
    let pick = &all["robustness"][0];
    assert_eq!((&pick["task"], &pick["fields"]), (&json!("pick"), &json!(["q"])));
    assert_eq!(pick["perturbations"][0]["changed"], 3);
    assert_eq!(
        (&pick["perturbations"][0]["aspect"], &pick["perturbations"][0]["origin"]),
        (&json!("robustness"), &json!("HELM"))
    );
    assert_eq!(pick["perturbations"][1]["changed"], 0, "there are no upper case letters");
    let signature = pick["perturbations"][0]["signature"].as_str().unwrap();
    assert!(signature.contains("perturb:contraction|perturb_seed:0|fields:q"), "{signature}");
    let scores = pick["scores"].as_array().unwrap();
    let rows: Vec<(&str, &str, u64)> = scores
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap();
            (text("metric"), text("perturbation"), row["compared"].as_u64().unwrap())
        })
        .collect();
    let wanted = [
        ("acc", "contraction", 3),
        ("acc", "lowercase", 0),
        ("acc", "worst case", 6),
        ("brier_score", "contraction", 3),
        ("brier_score", "lowercase", 0),
        ("brier_score", "worst case", 6),
    ];
    assert_eq!(rows, wanted);
    let number = |row: usize, key: &str| scores[row][key].as_f64().unwrap();
    // Unchanged documents keep their score, so nothing was lost by lower case; a worst case is never better than the original.
    let original = all["tasks"][0]["scores"].as_array().unwrap();
    for (metric, of) in [(0, 0), (1, 3)] {
        let value = original[metric]["value"].as_f64().unwrap();
        assert!((number(of + 1, "value") - value).abs() < 1e-12 && scores[of + 1]["drop"].is_null());
        assert!((number(of + 2, "before") - value).abs() < 1e-12 && number(of + 2, "drop") >= 0.0);
        let drop = if metric == 0 { 1.0 } else { -1.0 } * (number(of, "before") - number(of, "after"));
        assert!((number(of, "drop") - drop).abs() < 1e-12);
    }
    // Half of the documents changed: the whole moves by half of the drop.
    assert!(
        (number(3, "value") - original[1]["value"].as_f64().unwrap() - number(3, "drop") / 2.0).abs() < 1e-12
    );
    assert!(all["robustness"][1]["skipped"].as_str().unwrap().contains("only the question"));
    let samples = fs::read_to_string(place.path("s.jsonl")).unwrap();
    let perturbed = samples.lines().filter(|line| line.contains("\"perturbation\":\"contraction\""));
    assert_eq!(
        perturbed.filter(|line| line.contains("rain: it's ") && line.contains("\" it is\"")).count(),
        3
    );

    let text = ask(&["--perturb", "typos:0.5", "--perturb-fields", "q,sentence_good"]).text();
    for part in [
        "typos:0.5",
        "95 % interval",
        "pick: perturbed columns q; seed 0",
        "grammar: perturbed columns sentence_good",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("worst case"), "one perturbation is its own worst case");
    ask(&["--perturb", "typo"]).failed(2, &["there is no perturbation typo", "butter_fingers"]);
    ask(&["--perturb", "typos:7"]).failed(2, &["typos:7", "0 to 1"]);
    ask(&["--perturb", "typos", "--perturb-fields", "none"]).failed(1, &["--perturb", "none", "q, a, b"]);
    ask(&["--perturb-fields", "q"]).failed(2, &["--perturb"]);
}
