//! `--json` of the corpus commands: every one prints valid JSON and nothing else, with the fields that the table of
//! docs/commands.md names, all of them and no others; and compressed files give what plain ones give.

use crate::workplace::{GPT2, Workplace};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

/// Output of a command.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// One object.
    Object,
    /// One array of objects.
    Array,
    /// One object a line.
    Lines,
}
use Form::{Array, Lines, Object};

/// The row of the page, the words, what comes out, and fields that must be there.
type Case = (&'static str, &'static [&'static str], Form, &'static [&'static str]);

const SCORE: &[&str] = &["score"];

const CASES: &[Case] = &[
    (
        "corpus stats",
        &["stats", "runs/t"],
        Object,
        &["read", "kept", "dropped_by_reason", "splits", "sources"],
    ),
    ("corpus inspect", &["inspect", "runs/t", "--kept", "train"], Lines, &["id", "source", "split", "head"]),
    ("corpus export", &["export", "runs/t", "--out", "all.jsonl"], Object, &["out", "documents"]),
    ("corpus verify", &["verify", "runs/t"], Object, &["intact", "files", "foreign"]),
    ("corpus card", &["card", "runs/t", "--out", "card.html"], Object, &["card", "bytes"]),
    ("corpus profiles", &["profiles"], Array, &["name", "about", "source", "words"]),
    (
        "corpus profiles NAME",
        &["profiles", "fineweb2-fra_Latn"],
        Object,
        &["name", "about", "source", "words", "step"],
    ),
    (
        "corpus explain",
        &["explain", "docs.jsonl", "--profile", "fineweb", "--keep", "id != null"],
        Lines,
        &["document", "verdict", "reason", "profiles"],
    ),
    ("corpus extract", &["extract", "p.html"], Lines, &["file", "charset", "title", "verdict", "text"]),
    (
        "corpus train-classifier",
        &[
            "train-classifier",
            "--positive",
            "docs.jsonl",
            "--negative",
            "other.txt",
            "--out",
            "q.bin",
            "--dim",
            "8",
        ],
        Object,
        &["positives", "negatives", "precision", "recall", "f1", "accuracy", "auc"],
    ),
    (
        "corpus train-lm",
        &["train-lm", "docs.jsonl", "--order", "3", "--out", "lm.bin"],
        Object,
        &["orders", "bytes"],
    ),
    (
        "corpus train-dsir",
        &["train-dsir", "--target", "docs.jsonl", "--source", "other.txt", "--out", "t.dsir"],
        Object,
        &["target", "source"],
    ),
    ("corpus score", &["score", "docs.jsonl", "--kind", "language"], Lines, &["score", "score_score"]),
    ("corpus score", &["score", "docs.jsonl", "--kind", "fasttext", "--model", "q.bin"], Lines, SCORE),
    ("corpus score", &["score", "docs.jsonl", "--kind", "perplexity", "--model", "lm.bin"], Lines, SCORE),
    (
        "corpus score",
        &["score", "docs.jsonl", "--kind", "log-probability", "--model", "lm.bin"],
        Lines,
        SCORE,
    ),
    ("corpus score", &["score", "docs.jsonl", "--kind", "importance", "--model", "t.dsir"], Lines, SCORE),
    ("corpus score", &["score", "docs.jsonl", "--kind", "unigram", "--model", "counts.csv"], Lines, SCORE),
    ("corpus score", &["score", "docs.jsonl", "--kind", "domain"], Lines, SCORE),
    ("corpus score", &["score", "docs.jsonl", "--kind", "date"], Lines, &["score", "score_source"]),
    (
        "corpus delete",
        &["delete", "runs/t", "--id", "none"],
        Object,
        &["listed", "deleted", "unknown", "tokens"],
    ),
    (
        "corpus media inspect",
        &["media", "inspect", "pairs/a.png"],
        Object,
        &["kind", "bytes", "width", "height", "phash"],
    ),
    (
        "corpus media build",
        &[
            "media",
            "build",
            "pairs",
            "--out",
            "media",
            "--tokenizer",
            "runs/t",
            "--image-size",
            "32",
            "--patch",
            "16",
        ],
        Object,
        &["counts", "samples", "tokens", "shards"],
    ),
];

/// A folder with documents of every kind, and no run.
fn with_documents() -> Workplace {
    let place = Workplace::new(GPT2);
    let words =
        ["converter", "blew", "iron", "steel", "slag", "rolled", "forged", "minutes", "twenty", "air"];
    let sentence = |n: usize| {
        let words: Vec<&str> = (0..12).map(|i| words[(n * 7 + i * i + n * i) % words.len()]).collect();
        format!("The {} {n}.", words.join(" "))
    };
    let documents: String = (0..60)
        .map(|n| {
            let url = format!("https://en.wikipedia.org/wiki/{n}");
            format!("{}\n", serde_json::json!({"id": n.to_string(), "text": sentence(n), "url": url, "date": "2021-05-17"}))
        })
        .collect();
    fs::write(place.path("docs.jsonl"), &documents).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(documents.as_bytes()).unwrap();
    fs::write(place.path("docs.jsonl.gz"), gz.finish().unwrap()).unwrap();
    fs::write(place.path("docs.jsonl.zst"), zstd::encode_all(documents.as_bytes(), 1).unwrap()).unwrap();
    let other: String =
        (0..60).map(|n| format!("buy cheap watches now {n} best price of all {}\n", n * n)).collect();
    fs::write(place.path("other.txt"), &other).unwrap();
    fs::write(place.path("other.txt.zst"), zstd::encode_all(other.as_bytes(), 1).unwrap()).unwrap();
    fs::write(place.path("counts.csv"), "the,100\nsteel,3\n").unwrap();
    fs::write(place.path("p.html"), format!("<title>Steel</title><p>{}</p>", sentence(1).repeat(9))).unwrap();
    fs::create_dir(place.path("pairs")).unwrap();
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/../media/tests/golden/rgb8.png");
    fs::copy(picture, place.path("pairs/a.png")).unwrap();
    fs::write(place.path("pairs/a.txt"), "a picture").unwrap();
    place
}

/// Fields that the page names for a command, between backquotes in the second cell of its row.
fn documented(command: &str) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/commands.md");
    let start = format!("| `{command}` |");
    let row = page.lines().find_map(|line| line.strip_prefix(&start));
    let row = row.unwrap_or_else(|| panic!("docs/commands.md has no row {start}"));
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn objects(out: &[u8], form: Form) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let parse =
        |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")) };
    match form {
        Object => vec![parse(text)],
        Array => parse(text).as_array().cloned().unwrap(),
        Lines => text.lines().map(parse).collect(),
    }
}

#[test]
fn every_corpus_command_prints_the_json_that_the_page_promises() {
    let place = with_documents();
    place.train(&[]);
    for (row, words, form, needed) in CASES {
        let words = [&["corpus"], *words, &["--json"]].concat();
        let done = place.bessemer(&words);
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.err);
        let found = objects(&done.out, *form);
        let documented = documented(row);
        assert!(!found.is_empty(), "{words:?} prints nothing");
        for object in found {
            let keys: BTreeSet<String> = object.as_object().unwrap().keys().cloned().collect();
            let unknown: Vec<_> = keys.difference(&documented).collect();
            assert!(unknown.is_empty(), "{words:?}: docs/commands.md lacks {unknown:?} for {row}");
            for field in *needed {
                assert!(keys.contains(*field), "{words:?} lacks {field}: {object}");
            }
        }
    }
}

#[test]
fn compressed_documents_are_read_by_every_command_that_reads_documents() {
    let place = with_documents();
    let run = |words: &[&str]| place.bessemer(&[&["corpus"], words, &["--json"]].concat()).text();
    let score = |file: &str| run(&["score", file, "--kind", "language"]);
    assert_eq!(score("docs.jsonl").lines().count(), 60);
    for file in ["docs.jsonl.gz", "docs.jsonl.zst"] {
        assert_eq!(score(file), score("docs.jsonl"), "{file}");
    }
    assert_eq!(score("other.txt.zst"), score("other.txt"));
    let train = |positive: &str, negative: &str, out: &str| {
        run(&[
            "train-classifier",
            "--positive",
            positive,
            "--negative",
            negative,
            "--out",
            out,
            "--dim",
            "8",
        ]);
        run(&["train-lm", positive, "--order", "3", "--out", &format!("{out}.lm")]);
        run(&["train-dsir", "--target", positive, "--source", negative, "--out", &format!("{out}.dsir")]);
        ["", ".lm", ".dsir"].map(|ending| fs::read(place.path(&format!("{out}{ending}"))).unwrap())
    };
    assert!(train("docs.jsonl", "other.txt", "a.bin") == train("docs.jsonl.gz", "other.txt.zst", "b.bin"));
    fs::write(place.path("cut.jsonl.gz"), &fs::read(place.path("docs.jsonl.gz")).unwrap()[..200]).unwrap();
    place.bessemer(&["corpus", "score", "cut.jsonl.gz", "--kind", "language"]).failed(1, &["cut.jsonl.gz"]);
    fs::write(place.path("no.jsonl.zst"), "plain").unwrap();
    place.bessemer(&["corpus", "score", "no.jsonl.zst", "--kind", "language"]).failed(1, &["no.jsonl.zst"]);
}

/// A model over SentencePiece pieces, trained and asked with the same pieces; without them the numbers are others.
#[test]
fn language_models_over_pieces_are_made_and_asked() {
    let place = Workplace::new("");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../score/tests/data/");
    let (text, pieces) = (format!("{data}kenlm/small.txt"), format!("{data}sentencepiece/small.model"));
    let train =
        ["corpus", "train-lm", &text, "--order", "3", "--out", "p.arpa", "--normalize", "--pieces", &pieces];
    assert_eq!(place.bessemer(&train).code, Some(0));
    assert!(fs::read_to_string(place.path("p.arpa")).unwrap().contains("\u{2581}"));
    fs::write(place.path("one.txt"), "the cat likes a river\n").unwrap();
    let ask = |more: &[&str]| {
        let words = ["corpus", "score", "one.txt", "--kind", "perplexity", "--model", "p.arpa", "--json"];
        place.bessemer(&[&words, more].concat()).json()["score"].as_f64().unwrap()
    };
    let (with, without) = (ask(&["--pieces", &pieces]), ask(&[]));
    assert!(with < 10.0 && without > 3.0 * with, "{with} {without}");
    let wrong = ["corpus", "score", "one.txt", "--kind", "date", "--pieces", &pieces];
    place.bessemer(&wrong).failed(1, &["pieces"]);
}

/// Programs read `--json` line by line.
#[test]
fn json_is_one_compact_value_a_line() {
    let place = Workplace::new(GPT2);
    let trained = place.bessemer(&["run", "recipe.toml", "--json"]).text();
    let commands = [
        &["eval", "runs/t"][..],
        &["generate", "runs/t", "--prompt", "the", "--max-tokens", "2", "-n", "2"],
        &["checkpoint", "inspect", "runs/t"],
        &["checkpoint", "ls", "runs/t"],
        &["corpus", "stats", "runs/t"],
        &["corpus", "profiles"],
        &["config", "show", "recipe.toml"],
        &["config", "show", "recipe.toml", "--origin"],
        &["config", "schema"],
        &["program", "show", "recipe.toml"],
        &["plan", "recipe.toml", "--devices", "2", "--machine", "h100-80gb"],
        &["report", "runs/t"],
        &["compare", "runs/t", "runs/t"],
        &["runs"],
        &["tokenizer", "inspect", "runs/t/tokenizer.json"],
    ];
    let of = |words: &&[&str]| (words.join(" "), place.bessemer(&[words, &["--json"][..]].concat()).text());
    for (words, out) in commands.iter().map(of).chain([("run".to_owned(), trained)]) {
        assert!(!out.is_empty(), "{words}");
        for line in out.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{words}: {e}: {line}"));
            assert!(value.is_object() || value.is_array(), "{words}: {line}");
        }
    }
    // A verb that is not run here: nothing but files is written over several lines.
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands"))];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let pretty =
                text.lines().filter(|line| line.contains("to_string_pretty") && !line.contains("write("));
            assert_eq!(pretty.count(), 0, "{}: --json is compact", path.display());
        }
    }
}
