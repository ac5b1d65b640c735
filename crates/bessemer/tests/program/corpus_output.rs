//! Files of a corpus build and their display: verified, locked, free of credentials and control characters.

use crate::workplace::{Finished, GPT2, Workplace};
use serde_json::Value;
use std::fs;
use std::path::Path;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const RECIPE: i32 = 78;

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn lines(done: &Finished) -> Vec<Value> {
    done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn damaged_documents_stop_every_command_that_reads_them_and_verify_names_them() {
    let place = Workplace::new(GPT2);
    place.bessemer(&["corpus", "build", "recipe.toml"]).text();
    let intact = place.bessemer(&["corpus", "verify", "runs/t", "--json"]).json();
    assert_eq!(intact["intact"], true, "{intact}");
    let documents = place.path("runs/t/corpus/documents-train-00000.parquet");
    flip_a_bit(&documents);
    let name = "documents-train-00000.parquet";
    place.bessemer(&["corpus", "verify", "runs/t"]).failed(FAILED, &[name, "damaged"]);
    let found = place.bessemer(&["corpus", "verify", "runs/t", "--json"]);
    assert_eq!(found.code, Some(FAILED));
    let found: Value = serde_json::from_slice(&found.out).unwrap();
    let problems: Vec<&Value> =
        found["files"].as_array().unwrap().iter().filter(|file| !file["problem"].is_null()).collect();
    assert!(found["intact"] == false && problems.len() == 1 && problems[0]["name"] == name, "{found}");
    for words in [
        &["run", "recipe.toml"] as &[&str],
        &["tokenizer", "train", "recipe.toml"],
        &["corpus", "inspect", "runs/t", "--kept", "train"],
        &["corpus", "export", "runs/t"],
        &["corpus", "delete", "runs/t", "--id", "alpha/0.txt"],
    ] {
        place.bessemer(words).failed(FAILED, &[name, "is damaged"]);
    }
    assert!(!place.path("runs/t/shards/tokens.json").exists());
}

#[test]
fn documents_are_found_by_id_shown_whole_and_exported() {
    let place = Workplace::new(GPT2);
    fs::copy(place.path("text/alpha/0.txt"), place.path("text/alpha/again.txt")).unwrap();
    // By source, so that both copies are on one side of the split, in the order of their names.
    place.bessemer(&["corpus", "build", "recipe.toml", "--set", "corpus.split.by=\"source\""]).text();
    let shown = place.bessemer(&["corpus", "inspect", "runs/t", "--reason", "duplicate"]).text();
    assert!(shown.contains("alpha/again.txt") && shown.contains("same text as alpha/0.txt"), "{shown}");
    let json = lines(&place.bessemer(&["corpus", "inspect", "runs/t", "--reason", "duplicate", "--json"]));
    assert_eq!(json[0]["duplicate_of"]["id"], "alpha/0.txt", "{json:?}");
    let whole = fs::read_to_string(place.path("text/alpha/0.txt")).unwrap();
    let shown = place.bessemer(&["corpus", "inspect", "runs/t", "--id", "alpha/0.txt", "--full"]).text();
    assert!(shown.contains(whole.trim()), "{shown}");
    let none = place.bessemer(&["corpus", "inspect", "runs/t", "--id", "alpha"]);
    none.failed(FAILED, &["alpha", "no document"]);

    let exported = lines(&place.bessemer(&["corpus", "export", "runs/t"]));
    assert_eq!(exported.len(), 32);
    let of = |split| exported.iter().filter(|line| line["split"] == split).count();
    assert!(of("train") + of("validation") == 32 && of("validation") > 0);
    let same = exported.iter().find(|line| line["id"] == "alpha/0.txt").unwrap();
    assert_eq!(same["text"].as_str().unwrap().trim(), whole.trim());
    let words = ["corpus", "export", "runs/t", "--split", "train", "--source", "alpha", "--out", "a.jsonl"];
    place.bessemer(&words).text();
    let file = fs::read_to_string(place.path("a.jsonl")).unwrap();
    assert!(file.lines().all(|line| line.contains("\"source\":\"alpha\"")), "{file}");
    place.bessemer(&["corpus", "export", "runs/t", "--split", "test"]).failed(USAGE, &["--split test"]);
}

#[test]
fn a_deletion_waits_for_no_run_and_refuses_while_one_is_active() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let lock = fs::File::options().write(true).open(place.path("runs/t/.lock")).unwrap();
    lock.lock().unwrap();
    for path in ["runs/t", "runs/t/corpus"] {
        let refused = place.bessemer(&["corpus", "delete", path, "--id", "alpha/0.txt"]);
        refused.failed(FAILED, &["another process is using"]);
    }
    assert!(!place.path("runs/t/corpus.tombstones.json").exists());
    drop(lock);
    // Named by its corpus, the run's shards are made anew as well.
    let shards = place.files("runs/t/shards");
    let done = place.bessemer(&["corpus", "delete", "runs/t/corpus", "--id", "alpha/0.txt"]).text();
    assert!(done.contains("shards were rebuilt"), "{done}");
    assert!(place.files("runs/t/shards") != shards);
}

#[test]
fn control_characters_of_files_never_reach_the_terminal() {
    let place = Workplace::new(GPT2);
    let evil = "\u{1b}]0;owned\u{7} \u{1b}[2J \u{9b}31m \u{7f} \r";
    let text = fs::read_to_string(place.path("text/alpha/1.txt")).unwrap();
    fs::write(place.path("text/alpha/1.txt"), format!("{evil}{text}")).unwrap();
    fs::write(place.path("text/alpha/\u{1b}[31mred.txt"), format!("{text} more {evil}")).unwrap();
    fs::write(place.path("text/alpha/\u{1b}[31mshort.txt"), evil).unwrap();
    fs::write(
        place.path("evil.jsonl"),
        format!(
            "{}\n{{\"t\u{1b}[2J\": 1}}\n",
            serde_json::json!({"id": evil, "text": format!("{evil}{text}")})
        ),
    )
    .unwrap();
    fs::write(place.path("evil.html"), format!("<title>{evil}</title><p>{evil}{text}")).unwrap();
    place.bessemer(&["corpus", "build", "recipe.toml"]).text();
    let all = [
        &["corpus", "stats", "runs/t"] as &[&str],
        &["corpus", "inspect", "runs/t"],
        &["corpus", "inspect", "runs/t", "--kept", "train", "--limit", "99", "--full"],
        &["corpus", "inspect", "runs/t", "--kept", "train", "--limit", "99", "--json"],
        &["corpus", "inspect", "runs/t", "--id", "\u{1b}[2J"],
        &["corpus", "export", "runs/t"],
        &["corpus", "explain", "evil.jsonl", "--profile", "gopher-quality"],
        &["corpus", "explain", "evil.jsonl", "--profile", "gopher-quality", "--json"],
        &["corpus", "explain", "evil.jsonl", "--profile", "gopher-quality", "--text", "body\u{1b}[2J"],
        &["corpus", "extract", "evil.html"],
        &["corpus", "extract", "evil.html", "--json"],
        &["corpus", "score", "evil.jsonl", "--kind", "language"],
        &["corpus", "stats", "absent\u{1b}[2J"],
        &["run", "\u{1b}[2Jabsent.toml"],
    ];
    for words in all {
        let done = place.bessemer(words);
        let shown = format!("{}{}", String::from_utf8(done.out.clone()).unwrap(), done.err);
        let bad = shown.chars().find(|c| c.is_control() && *c != '\n' && *c != '\t');
        assert!(bad.is_none() && !shown.is_empty(), "{words:?}: {bad:?} in {shown:?}");
    }
    // In JSON the values are those of the documents.
    let words = ["corpus", "inspect", "runs/t", "--id", "alpha/1.txt", "--full", "--json"];
    let found = lines(&place.bessemer(&words));
    assert!(found[0]["text"].as_str().unwrap().contains("\u{1b}]0;owned\u{7}"), "{found:?}");
}

#[test]
fn credentials_reach_no_file_of_the_run_directory_and_no_message() {
    let place = Workplace::new(GPT2);
    let secrets = ["pa55-w0rd", "5ecret5igna7ure", "AKIAIOSFODNN7EXAMPLE", "t0k3n-va1ue"];
    let address = "https://me:pa55-w0rd@127.0.0.1:9/x.jsonl?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2Fa&X-Amz-Signature=5ecret5igna7ure&access_token=t0k3n-va1ue";
    // A value that is kept as it is given, whatever the program was built with.
    let exclude = format!("corpus.exclude=[\"{address}\"]");
    place.train(&[&exclude]);
    place.bessemer(&["report", "runs/t"]).text();
    let files = place.files("runs/t");
    assert!(files.len() > 10);
    for (path, bytes) in &files {
        for secret in secrets {
            let holds = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!holds, "{} holds {secret}", path.display());
        }
    }
    let recipe = fs::read_to_string(place.path("runs/t/recipe.toml")).unwrap();
    assert!(
        recipe.contains("REDACTED@127.0.0.1:9/x.jsonl") && recipe.contains("X-Amz-Signature=REDACTED"),
        "{recipe}"
    );
    // The same command goes on with what it made, redacted or not.
    place.train(&[&exclude]);

    let path = format!("corpus.path=\"{address}\"");
    let failed = place.bessemer(&["run", "recipe.toml", "--set", "corpus.source=\"jsonl\"", "--set", &path]);
    assert_ne!(failed.code, Some(0));
    for secret in secrets {
        assert!(!failed.err.contains(secret), "{}", failed.err);
    }
    assert!(failed.err.contains("127.0.0.1:9/x.jsonl"), "{}", failed.err);
}

#[test]
fn explain_without_the_field_is_one_line_that_names_the_fields() {
    let place = Workplace::new(GPT2);
    let line = "{\"id\": 1, \"body\": \"some text\", \"url\": \"http://a\"}\n";
    fs::write(place.path("a.jsonl"), line.repeat(600)).unwrap();
    let refused = place.bessemer(&["corpus", "explain", "a.jsonl", "--profile", "gopher-quality"]);
    refused.failed(USAGE, &["a.jsonl:1", "\"text\"", "id, body, url", "--text"]);
    assert!(refused.err.lines().count() == 1 && refused.out.is_empty(), "{refused:?}");
    place.bessemer(&["corpus", "explain", "a.jsonl", "--profile", "gopher-quality", "--text", "body"]).text();
    // A few documents without it are told, the others counted.
    let mixed = format!("{}{}", line.replace("body", "text"), line.repeat(600));
    fs::write(place.path("a.jsonl"), mixed).unwrap();
    let shown = place.bessemer(&["corpus", "explain", "a.jsonl", "--profile", "gopher-quality"]);
    assert_eq!(shown.code, Some(0));
    assert!(shown.err.lines().count() < 10 && shown.err.contains("600 skipped"), "{}", shown.err);
}

#[test]
fn the_stated_memory_is_kept_or_the_smallest_possible_one_is_asked_for() {
    let place = Workplace::new(GPT2);
    let small = place.bessemer(&["corpus", "build", "recipe.toml", "--memory", "64MiB"]);
    small.failed(USAGE, &["--memory", "64MiB", "at least 144MiB"]);
    let small = place.bessemer(&["corpus", "build", "recipe.toml", "--set", "corpus.memory=\"64MiB\""]);
    small.failed(RECIPE, &["corpus.memory", "64MiB", "at least 144MiB"]);
    // Texts of a vocabulary that exceeds the memory several times, none of them equal.
    let mut random = bessemer_units::splitmix::SplitMix64(5);
    for file in 0..40 {
        let lines: String = (0..1500)
            .map(|_| {
                let words: Vec<String> = (0..90).map(|_| format!("w{:x}", random.below(1 << 40))).collect();
                format!("{{\"text\": \"{}\"}}\n", words.join(" "))
            })
            .collect();
        fs::write(place.path(&format!("text/{file}.jsonl")), lines).unwrap();
    }
    let words = [
        "corpus",
        "build",
        "recipe.toml",
        "--memory",
        "144MiB",
        "--set",
        "corpus.source=\"jsonl\"",
        "--set",
        "run.threads=4",
    ];
    let mut child =
        place.command(&words).stderr(fs::File::create(place.path("err")).unwrap()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let told = fs::read_to_string(place.path("err")).unwrap();
    assert!(child.wait().unwrap().success() && told.contains("1 of 4 threads"), "{told}");
    println!("peak {} MiB of 144 MiB", peak >> 10);
    assert!(peak > 0 && peak >> 10 <= 144, "{} MiB", peak >> 10);
}

/// Shards with a mask: `stats` shows how many of their tokens are scored. Without one, it has no line about it.
#[test]
fn stats_show_the_scored_tokens_of_shards_with_a_mask() {
    use bessemer_shards::{ShardSetWriter, SplitMeta};
    let place = Workplace::new(GPT2);
    place.bessemer(&["corpus", "build", "recipe.toml"]).text();
    let write = |split: &str, scored: &[std::ops::Range<usize>]| {
        let meta = SplitMeta { split: split.into(), vocab_size: 300, tokenizer: [1; 32].into() };
        let mut writer = ShardSetWriter::create(place.path("runs/t/shards"), meta, 1 << 20).unwrap();
        writer.push_scored([1; 16], 9, &[7; 2000], scored).unwrap();
        writer.finish().unwrap();
    };
    write("train", &[0..100, 1500..2000]);
    write("validation", std::slice::from_ref(&(0..2000)));
    let shown = place.bessemer(&["corpus", "stats", "runs/t"]).text();
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("scored")).collect();
    assert_eq!(lines, ["scored      train      600 of 2.00k tokens (30.0 %)"], "{shown}");
    let json = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    assert_eq!(json["scored"], serde_json::json!([{"split": "train", "tokens": 2000, "scored": 600}]));
    write("train", std::slice::from_ref(&(0..2000)));
    let json = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    assert!(json.get("scored").is_none(), "{json}");
}
