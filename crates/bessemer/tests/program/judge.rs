//! `bessemer judge`: a study made, judged on the page and on a sheet, and its results.

use crate::workplace::{GPT2, Workplace};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

fn texts() -> String {
    (0..6)
        .map(|i| format!("{{\"prompt\":\"count to {i}\",\"texts\":{{\"ours\":\"well {i}\",\"theirs\":\"badly {i}\"}}}}\n"))
        .collect()
}

#[test]
fn a_study_is_made_judged_and_told() {
    let place = Workplace::new(GPT2);
    fs::write(place.path("texts.jsonl"), texts()).unwrap();
    let made = place.bessemer(&["judge", "create", "s.jsonl", "--texts", "texts.jsonl", "--json"]).json();
    assert_eq!((made["tasks"].as_u64(), made["wanted"].as_u64()), (Some(6), Some(12)));
    place
        .bessemer(&["judge", "create", "s.jsonl", "--texts", "texts.jsonl"])
        .failed(1, &["s.jsonl", "exists"]);

    // One judge on the page: a judgement is kept although the server is killed right after it.
    let mut server =
        place.command(&["judge", "serve", "s.jsonl", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let ask = |head: &str, body: &str| {
        let mut client = TcpStream::connect(&address).unwrap();
        write!(client, "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let shown = ask("POST /api/next", "{\"judge\":\"Ann\"}");
    assert!(shown.contains("\"left\"") && !shown.contains("ours"), "{shown}");
    let taken = ask("POST /api/judgement", "{\"judge\":\"Ann\",\"task\":\"0\",\"choice\":\"equal\"}");
    assert!(taken.contains("\"done\":1"), "{taken}");
    server.kill().unwrap();
    server.wait().unwrap();

    // A line that a power cut has cut is left out, with a warning, and the next judgements take its place.
    let whole = fs::read(place.path("s.jsonl")).unwrap();
    fs::write(place.path("s.jsonl"), [&whole[..], b"{\"kind\":\"judg"].concat()).unwrap();

    // Another on a sheet.
    let made = place.bessemer(&["judge", "sheet", "s.jsonl", "--judge", "Bob", "-o", "sheet.csv"]);
    assert!(made.err.contains("warning: s.jsonl: line 9 was cut by a crash"), "{}", made.err);
    let sheet = fs::read_to_string(place.path("sheet.csv")).unwrap();
    let filled: String = sheet
        .lines()
        .map(|line| match line.strip_suffix(',') {
            Some(row) => format!(
                "{row},{}\n",
                if row.contains(",well") && row.find("well") < row.find("badly") { "left" } else { "right" }
            ),
            None => format!("{line}\n"),
        })
        .collect();
    fs::write(place.path("filled.csv"), filled).unwrap();
    // A sheet is never overwritten.
    let again = place.bessemer(&["judge", "sheet", "s.jsonl", "--judge", "Bob", "-o", "filled.csv"]);
    again.failed(1, &["--out filled.csv: the file exists", "judge read s.jsonl filled.csv"]);
    place.bessemer(&["judge", "read", "s.jsonl", "filled.csv", "--judge", "Bob"]).text();
    let results = place.bessemer(&["judge", "results", "s.jsonl", "--samples", "20", "--json"]).json();
    assert_eq!(results["judgements"], 7);
    let best = &results["ratings"][0];
    assert_eq!((best["system"].as_str(), best["won"].as_f64()), (Some("ours"), Some(6.5 / 7.0)));
    let text = place.bessemer(&["judge", "results", "s.jsonl"]).text();
    assert!(
        text.contains("7 of 12 judgements on 6 tasks by 2 judges") && text.contains("Krippendorff"),
        "{text}"
    );

    place
        .bessemer(&["judge", "results", "s.jsonl", "--human", "them"])
        .failed(2, &["no system \"them\"", "ours, theirs"]);
    place
        .bessemer(&["judge", "results", "texts.jsonl"])
        .failed(1, &["texts.jsonl", "wanted a study of judgements"]);
    place
        .bessemer(&["judge", "serve", "s.jsonl", "--listen", "x"])
        .failed(1, &["--listen", "cannot listen on x"]);
    place
        .bessemer(&["judge", "create", "t.jsonl", "--texts", "texts.jsonl", "--scale", "bad"])
        .failed(1, &["2 to 100 points"]);
    assert!(!place.path("t.jsonl").exists());
}

#[test]
fn a_model_judges_in_the_program_and_behind_an_address_alike() {
    let place = Workplace::new(GPT2);
    place.train(&["model.init_std=0.3", "model.context=64"]);
    let texts: String = (0..4)
        .map(|i| {
            format!(
                "{{\"prompt\":\"the fox {i}\",\"texts\":{{\"ours\":\"jumps over dogs\",\"theirs\":\"rain {i}\"}}}}\n"
            )
        })
        .collect();
    fs::write(place.path("texts.jsonl"), texts).unwrap();
    place.bessemer(&["judge", "create", "s.jsonl", "--texts", "texts.jsonl"]).text();
    let ask = |more: &[&str]| place.bessemer(&[&["judge", "model", "s.jsonl", "--json"], more].concat());
    let inside = ask(&["runs/t", "--judge", "inside"]).json();
    assert_eq!((inside["answered"].as_u64(), inside["refused"].as_u64()), (Some(8), Some(0)), "{inside}");
    assert_eq!(ask(&["runs/t", "--judge", "inside"]).json()["answered"], 0, "nothing is asked twice");
    ask(&["runs/t", "--judge", "inside", "--method", "generate"]).failed(1, &["another name"]);
    let words = ["runs/t", "--judge", "writes", "--method", "generate", "--template", "pair-brief"];
    assert_eq!(ask(&words).json()["answered"], 8);
    ask(&["runs/t", "--judge", "long", "--template", "pair"]).failed(1, &["exceed the model's context"]);

    let mut server = place
        .command(&["serve", "runs/t", "--listen", "127.0.0.1:0", "--json", "--name", "little"])
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let start: serde_json::Value = serde_json::from_str(&line).unwrap();
    let base = format!("http://{}/v1", start["address"].as_str().unwrap());
    let outside = ask(&["--at", &base, "--judge", "outside"]);
    let written =
        ask(&["--at", &base, "--judge", "also writes", "--method", "generate", "--template", "pair-brief"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(
        (outside.json()["answered"].as_u64(), written.json()["answered"].as_u64()),
        (Some(8), Some(8))
    );
    let nobody = ask(&["--at", &base, "--model", "m", "--judge", "nobody"]);
    nobody.failed(1, &[&base]);

    let store = bessemer_judge::Store::open(&place.path("s.jsonl")).unwrap();
    let of = |judge: &str| -> Vec<bessemer_judge::Verdict> {
        store.verdicts().unwrap().into_iter().filter(|one| one.judge == judge).collect()
    };
    for (one, other) in of("inside").iter().zip(of("outside")) {
        assert_eq!((one.key, one.turned, one.choice), (other.key, other.turned, other.choice));
        for (a, b) in one.scores.as_ref().unwrap().iter().zip(other.scores.as_ref().unwrap()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
    for (one, other) in of("writes").iter().zip(of("also writes")) {
        assert_eq!((one.key, one.turned, &one.answer), (other.key, other.turned, &other.answer));
    }
    let results = place.bessemer(&["judge", "results", "s.jsonl", "--samples", "10", "--json"]).json();
    assert_eq!((results["judgements"].as_u64(), results["models"].as_array().unwrap().len()), (Some(0), 4));
    let text = place.bessemer(&["judge", "results", "s.jsonl", "--samples", "10"]).text();
    assert!(
        text.contains("inside: 4 tasks judged by runs/t, step 6 (template pair-brief, likelihood)"),
        "{text}"
    );
    assert!(text.contains("both orders agree"), "{text}");

    ask(&[]).failed(2, &["--at"]);
    ask(&["runs/t", "--at", &base]).failed(2, &["cannot be used with"]);
    ask(&["--at", &base, "--chat"]).failed(2, &["use --method generate"]);
    ask(&["--at", "https://x/v1", "--model", "m"]).failed(1, &["run a TLS proxy"]);
    ask(&["runs/t", "--template", "scale"]).failed(1, &["wanted kind = \"pairs\""]);
    ask(&["runs/t", "--template", "none"]).failed(1, &["pair, pair-brief, scale, scale-brief"]);
}

#[test]
fn huse_takes_its_probabilities_from_a_run() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let long = "the quick brown fox ".repeat(20);
    let texts = format!(
        "{{\"prompt\":\"the\",\"texts\":{{\"human\":\"quick brown fox\",\"t\":\"rain falls\"}}}}\n\
         {{\"texts\":{{\"human\":\"green hills\",\"t\":\"{}\"}}}}\n",
        "lazy dogs"
    );
    fs::write(place.path("texts.jsonl"), &texts).unwrap();
    let words = ["judge", "create", "s.jsonl", "--texts", "texts.jsonl", "--scale", "poor,good"];
    let with = ["--probabilities-of", "runs/t", "--between", " "];
    place.bessemer(&[&words[..], &with].concat()).text();
    let store = bessemer_judge::Store::open(&place.path("s.jsonl")).unwrap();
    // The mean over tokens of a text by itself is what `eval --text` says of it.
    fs::write(place.path("hills.txt"), "green hills").unwrap();
    let loss =
        place.bessemer(&["eval", "runs/t", "--text", "hills.txt", "--json"]).json()["loss"].as_f64().unwrap();
    let found = store.study().items[1].texts[0].log_probability.unwrap();
    assert!((found + loss).abs() < 1e-5, "{found} {loss}");
    assert!(
        store.study().items.iter().flat_map(|item| &item.texts).all(|text| text.log_probability.is_some())
    );
    fs::write(place.path("texts.jsonl"), texts.replace("lazy dogs", &long)).unwrap();
    let words = ["judge", "create", "l.jsonl", "--texts", "texts.jsonl", "--scale", "poor,good"];
    place
        .bessemer(&[&words[..], &with].concat())
        .failed(1, &["item 2, text of t", "exceed the model's context of 32"]);
    place
        .bessemer(&["judge", "create", "l.jsonl", "--texts", "texts.jsonl", "--probabilities-of", "runs/t"])
        .failed(2, &["--scale"]);
}

#[test]
fn power_is_told_for_comparisons_and_for_groups() {
    let place = Workplace::new(GPT2);
    let power = |more: &[&str]| place.bessemer(&[&["judge", "power"], more].concat());
    let told = power(&["--win", "0.6", "--judgements", "199", "--json"]).json();
    assert_eq!(told["judgements"], 210);
    assert!((told["had"]["power"].as_f64().unwrap() - 0.803_714_599).abs() < 1e-8, "{told}");
    let text = power(&["--win", "0.7", "--ties", "0.2", "--per-task", "2", "--correlation", "0.5"]).text();
    assert!(
        text.contains("96 judgements on 48 tasks") && text.contains("about 77 of them have a winner"),
        "{text}"
    );
    // R: power.prop.test(p1 = .50, p2 = .75, power = .90): n = 76.7.
    let told = power(&["--win", "0.75", "--against", "0.5", "--power", "0.9", "--json"]).json();
    assert_eq!(told["judgements"], 77);
    power(&["--win", "0.5"]).failed(2, &["the difference from 0.5 is too small"]);
    power(&["--win", "0.5", "--against", "0.5"]).failed(2, &["two shares that differ"]);
    power(&["--win", "2"]).failed(2, &["from 0 to 1"]);
}
