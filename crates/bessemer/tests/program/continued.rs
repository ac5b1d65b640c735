//! Continued training: a model of Hugging Face's layout made better on other text, a run that goes on under a changed recipe, and what a checkpoint
//! of a large layout takes.

use crate::workplace::{GPT2, LLAMA, Workplace};
use serde_json::Value;
use std::fs;

/// A recipe that trains the model of `runs/base` on other text.
fn tuning(place: &Workplace, base: &str, more: &str) {
    fs::create_dir_all(place.path("own")).unwrap();
    for number in 0..6 {
        let text = "a ship sails over the quiet sea and comes home at night \n".repeat(20 + number);
        fs::write(place.path(&format!("own/{number}.txt")), text).unwrap();
    }
    let text = format!(
        "base = \"{base}\"\n[run]\nname = \"tuned\"\nthreads = 1\npin_threads = false\n[corpus]\nsource = \"folder\"\npath = \"own\"\n\
         [train]\nbatch_tokens = 256\nseq_len = 32\nsteps = 20\n[optim]\nlr = 2e-3\nwarmup_steps = 2\n[eval.samples]\nprompts = []\n{more}"
    );
    fs::write(place.path("tune.toml"), text).unwrap();
}

fn losses(place: &Workplace, run: &str) -> Vec<f64> {
    let log = fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap();
    let steps = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    steps.filter(|r| r["kind"] == "step").map(|r| r["loss"].as_f64().unwrap()).collect()
}

/// The way that docs/training.md shows: import, 20 steps on own text, export.
#[test]
fn an_imported_model_is_fine_tuned_and_exported() {
    let place = Workplace::new(LLAMA);
    place.train(&["optim.lr=3e-3", "train.steps=12", "model.tied_embeddings=true"]);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "downloaded"]).text();
    tuning(&place, "runs/base/recipe.toml", "");
    place.bessemer(&["run", "tune.toml"]).failed(78, &["runs/base/recipe.toml"]);
    let imported = place.bessemer(&["checkpoint", "import", "downloaded", "--out", "runs/base"]);
    assert!(imported.err.contains("runs/base/recipe.toml can be the base of a recipe"), "{}", imported.err);
    let done = place.bessemer(&["run", "tune.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for part in
        ["tokens of runs/base/tokenizer.json", "parameters of runs/base/checkpoints/step-00000000, step 0"]
    {
        assert!(done.err.contains(part), "wanted {part:?} in:\n{}", done.err);
    }
    let tuned = losses(&place, "runs/tuned");
    assert_eq!(tuned.len(), 20);
    assert!(tuned[19] < tuned[0] - 0.3, "{tuned:?}");
    // The parameters that were drawn begin worse.
    let drawn = ["--set", "run.name=drawn", "--set", "train.init.from=\"\"", "--set", "train.steps=2"];
    assert_eq!(place.bessemer(&[&["run", "tune.toml"], &drawn[..]].concat()).code, Some(0));
    assert!(
        tuned[0] + 0.05 < losses(&place, "runs/drawn")[0],
        "{tuned:?} {:?}",
        losses(&place, "runs/drawn")
    );
    let report = fs::read_to_string(place.path("runs/tuned/report.html")).unwrap();
    assert!(report.contains("begun with") && report.contains("optimizer fresh"));
    place.bessemer(&["checkpoint", "export", "runs/tuned", "--out", "tuned-hf"]).text();
    let config = |dir: &str| fs::read(place.path(dir).join("config.json")).unwrap();
    assert_eq!(config("downloaded"), config("tuned-hf"));
    let files = ["tokenizer.json"].map(|name| fs::read(place.path("tuned-hf").join(name)).unwrap());
    assert_eq!(files[0], fs::read(place.path("downloaded/tokenizer.json")).unwrap());
    // What changed, by tensor; the files of another layout hold the same.
    let changed = place.bessemer(&["checkpoint", "diff", "runs/base", "runs/tuned", "--json"]);
    assert_eq!(changed.code, Some(1));
    let changed: Value = serde_json::from_slice(&changed.out).unwrap();
    assert!(changed["tensors"].as_array().unwrap().len() > 10, "{changed}");
    assert!(changed["only_b"].as_array().unwrap().iter().any(|name| name == "m.embed.tokens"));
    place
        .bessemer(&["checkpoint", "reshard", "runs/tuned", "other", "--ranks", "2", "--layout", "data=zero1"])
        .text();
    assert_eq!(place.bessemer(&["checkpoint", "diff", "runs/tuned", "other"]).code, Some(0));

    // Gone on with, although the model that it began with is no more; and taken further with its optimizer.
    fs::remove_dir_all(place.path("runs/base/checkpoints")).unwrap();
    let more = ["run", "tune.toml", "--set", "train.steps=22"];
    assert_eq!(place.bessemer(&more).code, Some(0));
    assert_eq!(losses(&place, "runs/tuned").len(), 22);
    let kept = [
        "--set",
        "run.name=further",
        "--set",
        "train.init.from=runs/tuned",
        "--set",
        "train.init.optimizer=keep",
        "--set",
        "train.steps=3",
    ];
    let further = place.bessemer(&[&["run", "tune.toml"], &kept[..]].concat());
    assert_eq!(further.code, Some(0), "{}", further.err);
    assert!(further.err.contains("optimizer kept") && losses(&place, "runs/further")[0] < tuned[0] - 0.2);
}

#[test]
fn what_a_run_cannot_begin_with_is_refused_before_anything_is_made() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=2"]);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "downloaded"]).text();
    let refused = |sets: &[&str], code: i32, parts: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let words: Vec<&str> =
            ["run", "recipe.toml", "--set", "run.name=new"].into_iter().chain(sets).collect();
        place.bessemer(&words).failed(code, parts);
    };
    refused(
        &["train.init.from=downloaded"],
        1,
        &["train.init.from", "Hugging Face", "bessemer checkpoint import"],
    );
    refused(&["train.init.from=runs/none"], 1, &["train.init.from", "runs/none"]);
    assert!(!place.path("runs/new").exists());
    let from = "train.init.from=runs/t";
    refused(
        &[from, "tokenizer.vocab_size=280"],
        1,
        &["train.init.from", "tokenizer fingerprint", "tokenizer.file"],
    );
    let file = "tokenizer.file=runs/t/tokenizer.json";
    refused(&[from, file, "model.width=64"], 1, &["train.init.from", "model is", "base"]);
    refused(&[from, "tokenizer.file=runs/none.json"], 1, &["tokenizer.file", "runs/none.json"]);
    refused(&["train.init.optimizer=keep"], 78, &["train.init.from", "keep"]);
    assert!(!place.path("runs/new/checkpoints").exists());
}

#[test]
fn a_run_goes_on_with_another_batch_and_its_report_shows_where() {
    let place = Workplace::new(GPT2);
    place.train(&["save.every_steps=2"]);
    let done = place.bessemer(&[
        "run",
        "recipe.toml",
        "--set",
        "train.batch_tokens=512",
        "--set",
        "train.steps=9",
        "--set",
        "run.seed=8",
    ]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for part in [
        "recipe changed after step 6",
        "train.batch_tokens 256 -> 512",
        "a step has 16 sequences",
        "starts over",
    ] {
        assert!(done.err.contains(part), "wanted {part:?} in:\n{}", done.err);
    }
    let tokens: Vec<u64> = place.records("step").iter().map(|r| r["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072]);
    assert_eq!(place.records("change").len(), 1);
    let report = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(report.contains(">recipe changed</text>") && report.contains("changed after step 6"));
    assert!(place.bessemer(&["checkpoint", "verify", "runs/t"]).text().contains("intact"));
    let told = place.bessemer(&["checkpoint", "diff", "runs/t/checkpoints/step-00000006", "runs/t"]);
    assert!(String::from_utf8(told.out).unwrap().contains("state.batch_origin"));
}

/// Each byte is written by one rank, about as many by each, and every rank reads its part alone.
#[test]
fn the_bytes_of_a_checkpoint_are_planned_without_a_run() {
    let place = Workplace::new(LLAMA);
    let plan = |sets: &[&str], ranks: &str| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let words: Vec<&str> = ["checkpoint", "plan", "recipe.toml", "--ranks", ranks, "--json"]
            .into_iter()
            .chain(sets)
            .collect();
        let found = place.bessemer(&words).json();
        let of = |key: &str| -> Vec<u64> {
            found["of_ranks"].as_array().unwrap().iter().map(|rank| rank[key].as_u64().unwrap()).collect()
        };
        (found["bytes"].as_u64().unwrap(), of("written"), of("read"))
    };
    let large = ["train.batch_tokens=4096", "train.micro_batch=1", "model.layers=8"];
    let (total, one, read) = plan(&large, "1");
    assert_eq!((one, read), (vec![total], vec![total]));
    let (same, written, read) = plan(&[&large[..], &["parallel.data=zero1"]].concat(), "64");
    assert_eq!((same, written.len()), (total, 64));
    assert_eq!(written.iter().sum::<u64>(), total);
    // Of a small model: lists of elements that the same ranks have differ by one element.
    assert!(written.iter().all(|bytes| *bytes <= total / 64 * 3 / 2), "{written:?}");
    // Parameters whole, a 64th of the moments.
    assert!(read.iter().all(|bytes| *bytes < total / 3 + total / 64 + 4096), "{read:?}");
    let stages = ["parallel.pipeline=4", "parallel.tensor=2", "parallel.data=zero3"];
    let (_, written, read) = plan(&[&large[..], &stages].concat(), "64");
    assert_eq!(written.iter().sum::<u64>(), total);
    assert!(read.iter().sum::<u64>() < total * 5 / 4, "{read:?}");
    let text = place.bessemer(&["checkpoint", "plan", "recipe.toml", "--ranks", "4"]).text();
    assert!(text.contains("on 4 ranks") && text.contains("writes") && text.contains("most / mean"), "{text}");
    let words = ["checkpoint", "plan", "recipe.toml", "--ranks", "3", "--set", "parallel.tensor=2"];
    assert!(place.bessemer(&words).code.is_some_and(|code| code > 0));
}
