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
    let made = place.bessemer(&["judge", "create", "s.db", "--texts", "texts.jsonl", "--json"]).json();
    assert_eq!((made["tasks"].as_u64(), made["wanted"].as_u64()), (Some(6), Some(12)));
    place.bessemer(&["judge", "create", "s.db", "--texts", "texts.jsonl"]).failed(1, &["s.db", "exists"]);

    // One judge on the page: a judgement is kept although the server is killed right after it.
    let mut server = place.command(&["judge", "serve", "s.db", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let ask = |head: &str, body: &str| {
        let mut client = TcpStream::connect(&address).unwrap();
        write!(client, "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
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

    // Another on a sheet.
    place.bessemer(&["judge", "sheet", "s.db", "--judge", "Bob", "-o", "sheet.csv"]).text();
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
    place.bessemer(&["judge", "read", "s.db", "filled.csv", "--judge", "Bob"]).text();
    let results = place.bessemer(&["judge", "results", "s.db", "--samples", "20", "--json"]).json();
    assert_eq!(results["judgements"], 7);
    let best = &results["ratings"][0];
    assert_eq!((best["system"].as_str(), best["won"].as_f64()), (Some("ours"), Some(6.5 / 7.0)));
    let text = place.bessemer(&["judge", "results", "s.db"]).text();
    assert!(
        text.contains("7 of 12 judgements on 6 tasks by 2 judges") && text.contains("Krippendorff"),
        "{text}"
    );

    place
        .bessemer(&["judge", "results", "s.db", "--human", "them"])
        .failed(2, &["no system \"them\"", "ours, theirs"]);
    place.bessemer(&["judge", "results", "texts.jsonl"]).failed(1, &["texts.jsonl", "no database"]);
    place
        .bessemer(&["judge", "serve", "s.db", "--listen", "x"])
        .failed(1, &["--listen", "cannot listen on x"]);
    place
        .bessemer(&["judge", "create", "t.db", "--texts", "texts.jsonl", "--scale", "bad"])
        .failed(1, &["2 to 100 points"]);
    assert!(!place.path("t.db").exists());
}
