//! `bessemer corpus review`: junk that is planted in a corpus is found by 200 verdicts on the page, and dropped by the limits that follow.

use crate::workplace::{GPT2, Workplace};
use bessemer_units::splitmix::SplitMix64;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

const WORDS: &str = "the quick brown fox jumps over lazy dogs while rain falls on green hills and rivers run toward distant \
                     seas under pale stars where old sailors tell long stories about storms that broke their masts before \
                     morning came with calm water";

/// Kinds of documents, by the first part of their names: of good ones most are kept and some too short for `min_bytes`; spam, noise and
/// stubs are junk, of which the filters drop stubs alone.
const KINDS: [(&str, usize); 5] = [("good", 1200), ("poem", 60), ("spam", 40), ("noise", 30), ("stub", 60)];

fn document(kind: &str, random: &mut SplitMix64) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let sentences = |random: &mut SplitMix64, count: usize, length: usize| {
        let mut text = String::new();
        for sentence in 0..count {
            for word in 0..length + random.index(6) {
                text += if word > 0 { " " } else { "" };
                text += words[random.index(words.len())];
            }
            text += if sentence % 3 == 2 { ".\n" } else { ". " };
        }
        text
    };
    match kind {
        "good" => {
            let count = 8 + random.index(30);
            sentences(random, count, 8)
        }
        "poem" => sentences(random, 3, 9),
        "spam" => {
            let count = 20 + random.index(40);
            (0..count).map(|_| format!("cheap watches best price {} ", random.index(9))).collect()
        }
        "noise" => (0..80 + random.index(80))
            .map(|_| {
                (0..12).map(|_| b"bcdfghklmnpqrstvwxz"[random.index(19)] as char).collect::<String>() + " "
            })
            .collect(),
        "stub" => format!("click here {}", random.index(1_000_000)),
        other => panic!("{other}"),
    }
}

/// Verdict of the simulated reviewer: a point of the scale.
fn verdict(text: &str) -> u64 {
    let vowels = text.chars().filter(|c| "aeiou".contains(*c)).count();
    match () {
        () if text.contains("watches") => 2,
        () if vowels * 20 < text.len() => 5,
        () if text.starts_with("click here") => 7,
        () => 1,
    }
}

fn ask(address: &str, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let mut client = TcpStream::connect(address).unwrap();
    write!(client, "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// Documents of a kind among those that a run keeps.
fn kept(place: &Workplace, run: &str) -> impl Fn(&str) -> usize + use<> {
    let lines = place.bessemer(&["corpus", "export", run]).text();
    let texts: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: Vec<String> = texts.iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect();
    move |kind: &str| {
        let is_kind = |text: &&String| match kind {
            "spam" => verdict(text) == 2,
            "noise" => verdict(text) == 5,
            "stub" => verdict(text) == 7,
            "poem" => verdict(text) == 1 && text.len() < 300,
            _ => verdict(text) == 1 && text.len() >= 300,
        };
        texts.iter().filter(is_kind).count()
    }
}

#[test]
fn planted_junk_is_found_by_200_verdicts_and_dropped_by_the_limits_that_follow() {
    let place = Workplace::new(GPT2);
    let mut random = SplitMix64(11);
    let mut lines = String::new();
    for (kind, count) in KINDS {
        for _ in 0..count {
            lines += &format!("{}\n", json!({ "text": document(kind, &mut random) }));
        }
    }
    fs::write(place.path("in.jsonl"), lines).unwrap();
    let recipe = fs::read_to_string(place.path("recipe.toml")).unwrap();
    let source = "source = \"jsonl\"\npath = \"in.jsonl\"\nclean.min_bytes = 300\n";
    let recipe = recipe.replace("source = \"folder\"\npath = \"text\"\n", source);
    fs::write(place.path("recipe.toml"), recipe).unwrap();
    place.bessemer(&["corpus", "build", "recipe.toml"]).text();
    let before = kept(&place, "runs/t");
    assert_eq!(["good", "poem", "spam", "noise", "stub"].map(&before), [1200, 0, 40, 30, 0]);
    place
        .bessemer(&["corpus", "review", "apply", "runs/t"])
        .failed(1, &["corpus.review.jsonl does not exist", "corpus review serve runs/t"]);

    let mut server = place
        .command(&["corpus", "review", "serve", "runs/t", "--listen", "127.0.0.1:0", "--documents", "200"])
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut shown = ask(&address, "/api/next", &json!({ "judge": "Ann" }));
    assert_eq!(shown["points"].as_array().unwrap().len(), 7, "{shown}");
    for number in 0..200 {
        assert_eq!(shown["done"], number);
        // The page tells neither the stratum nor whether the document was kept.
        assert!(!shown.to_string().contains("dropped") && !shown.to_string().contains("kept"), "{shown}");
        let choice = verdict(shown["task"]["left"].as_str().unwrap());
        let body = json!({ "judge": "Ann", "task": shown["task"]["id"], "choice": choice, "seconds": 2.0 });
        shown = ask(&address, "/api/judgement", &body);
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let journal = fs::read_to_string(place.path("runs/t/corpus.review.jsonl")).unwrap();
    let verdicts = journal.lines().filter(|line| line.starts_with("{\"kind\":\"judgements\"")).count();
    assert_eq!(verdicts, 200, "each verdict is a line");

    let apply = [
        "corpus",
        "review",
        "apply",
        "runs/t",
        "--recipe",
        "recipe.toml",
        "--out",
        "reviewed.toml",
        "--json",
    ];
    let found = place.bessemer(&apply).json();
    // A verdict in ten is a repetition. 70 of 1270 kept documents are junk, of which even sampling would find 7 in 130.
    let reviewed = found["reviewed"].as_u64().unwrap();
    assert!((175..=185).contains(&reviewed), "{found}");
    let value = |when: &str, what: &str| found[when][what]["value"].as_f64().unwrap();
    // Of 120 dropped documents 60 are junk, and of 130 junk ones 60 are dropped.
    assert!((value("before", "precision") - 0.5).abs() < 0.15, "{found}");
    assert!((value("before", "recall") - 60.0 / 130.0).abs() < 0.15, "{found}");
    let recall = &found["before"]["recall"];
    assert!(
        recall["low"].as_f64() < recall["value"].as_f64()
            && recall["high"].as_f64() > recall["value"].as_f64()
    );
    assert!(value("after", "recall") > 0.95 && value("after", "precision") > 0.95, "{found}");
    assert!(value("held_out", "recall") > value("before", "recall") + 0.3, "{found}");
    let text = place.bessemer(&["corpus", "review", "apply", "runs/t"]).text();
    for part in
        ["documents with a verdict", "dropped too-short", "recall of the filters", "corpus.clean.min_bytes"]
    {
        assert!(text.contains(part), "{text}");
    }
    place.bessemer(&apply).failed(1, &["--out", "exists"]);

    // The recipe that was written, built: planted junk is gone, good documents stay, and poems are back.
    place.bessemer(&["corpus", "build", "reviewed.toml"]).text();
    let after = kept(&place, "runs/t-reviewed");
    assert!(after("spam") + after("noise") <= 2, "{} {}\n{text}", after("spam"), after("noise"));
    assert_eq!(after("stub"), 0, "{text}");
    assert!(after("good") >= 1180 && after("poem") >= 55, "{} {}\n{text}", after("good"), after("poem"));

    // Verdicts are about one corpus.
    let file = ["--file", "runs/t/corpus.review.jsonl"];
    place
        .bessemer(&[&["corpus", "review", "apply", "runs/t-reviewed"], &file[..]].concat())
        .failed(1, &["wanted a review of the corpus in runs/t-reviewed/corpus", "built again since"]);
}

#[test]
fn a_build_whose_evaluation_is_below_a_bound_fails_and_names_the_bound() {
    let place = Workplace::new(GPT2);
    let bounded = |bound: &str| {
        let bound = format!("corpus.evaluate.require=[{bound:?}]");
        let evaluate =
            ["corpus.evaluate.sample=1", "corpus.evaluate.profiles=[\"ziya2\", \"gopher-quality\"]"];
        let sets: Vec<&str> =
            evaluate.into_iter().chain([bound.as_str()]).flat_map(|set| ["--set", set]).collect();
        place.bessemer(&[&["corpus", "build", "recipe.toml"], &sets[..]].concat())
    };
    let found = "found ziya2.words.p50 = 15";
    bounded("ziya2.words.p50 >= 1000 && kept.share > 0.1").failed(
        1,
        &[
            "corpus.evaluate.require",
            "wanted ziya2.words.p50 >= 1000 && kept.share > 0.1",
            found,
            "kept.share = 1.0",
        ],
    );
    assert!(!place.path("runs/t/corpus").exists(), "nothing is visible as finished");
    bounded("gopher.passed >= 0.9").failed(78, &["corpus.evaluate.require", "gopher.passed"]);
    bounded("ziya2.passed == 1 && `gopher-quality.passed` > 0.9").text();
    assert!(place.path("runs/t/corpus/corpus.json").exists());
}
