//! `bessemer serve`: the texts of `generate`, its line of JSON, an end with code 0; what cannot be is refused before a model is
//! loaded.

use crate::workplace::{LLAMA, Workplace};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// The answer to a request.
pub(crate) fn post(address: &str, path: &str, body: &Value) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_served_model_makes_the_texts_of_generate_and_leaves_when_asked() {
    let place = Workplace::new(LLAMA);
    place.train(&["model.init_std=0.3"]);
    let template = json!({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"});
    fs::write(place.path("runs/t/tokenizer_config.json"), template.to_string()).unwrap();
    let words = ["serve", "runs/t", "--listen", "127.0.0.1:0", "--slots", "3", "--json", "--name", "little"];
    let mut server = place.command(&words).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let start: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&start["model"], &start["slots"], &start["context"]),
        (&json!("little"), &json!(3), &json!(32))
    );
    // Keys and values of 2 layers, 3 slots, 32 positions, 2 heads of 8, and activations.
    assert!(start["cache_bytes"].as_u64().unwrap() > 2 * 2 * 3 * 32 * 16 * 4);
    let address = start["address"].as_str().unwrap();
    for (prompt, temperature) in [("the ", "0"), ("rivers 東京", "1")] {
        let words = ["generate", "runs/t", "--json", "--max-tokens", "12", "--top-p", "1", "--seed", "5"];
        let wanted = place
            .bessemer(&[&words[..], &["--temperature", temperature, "--prompt", prompt]].concat())
            .json();
        let body = json!({
            "model": "little", "prompt": prompt, "max_tokens": 12, "seed": 5, "temperature": temperature.parse::<f64>().unwrap(),
        });
        assert_eq!(post(address, "/v1/completions", &body)["choices"][0]["text"], wanted["text"]);
    }
    let hello = json!({"messages": [{"role": "user", "content": "the "}], "max_tokens": 5, "temperature": 0});
    assert!(post(address, "/v1/chat/completions", &hello)["choices"][0]["message"]["content"].is_string());
    let taken = place.bessemer(&["serve", "runs/t", "--listen", address]);
    taken.failed(FAILED, &["cannot listen on", address]);
    // A client that never sends the rest of its body does not hold the server up.
    let mut slow = TcpStream::connect(address).unwrap();
    write!(slow, "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{").unwrap();
    let asked = Instant::now();
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {}", server.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn what_cannot_be_served_is_refused() {
    let place = Workplace::new(LLAMA);
    place
        .bessemer(&["serve", "nothere", "--listen", "127.0.0.1:0"])
        .failed(FAILED, &["no run directory nothere"]);
    place
        .bessemer(&["serve", "runs/t", "--slots", "0"])
        .failed(USAGE, &["wanted a whole number from 1 to 1024"]);
    place.bessemer(&["serve", "runs/t", "--listen", "nowhere"]).failed(FAILED, &["cannot listen on nowhere"]);
    for (flag, value, part) in [
        ("--allow-origin", "app.example", "wanted an origin"),
        ("--allow-origin", "https://app.example/x", "wanted an origin"),
        ("--allow-host", "http://x", "wanted a host name"),
    ] {
        place.bessemer(&["serve", "runs/t", flag, value]).failed(USAGE, &[part]);
    }
    fs::write(place.path("key"), "two words\n").unwrap();
    let spaced = ["serve", "runs/t", "--listen", "127.0.0.1:0", "--api-key-file", "key"];
    place.bessemer(&spaced).failed(FAILED, &["--api-key-file key", "without blanks"]);
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    place.bessemer(&["serve", "nothere", "--listen", &address]).failed(FAILED, &["cannot listen on"]);
    place.train(&[]);
    let long = ["serve", "runs/t", "--listen", "127.0.0.1:0", "--context", "33"];
    place.bessemer(&long).failed(USAGE, &["--context 33: wanted 1 to the model's context of 32"]);
    fs::write(place.path("runs/t/tokenizer_config.json"), "{\"chat_template\": \"{% for\"}").unwrap();
    let broken = ["serve", "runs/t", "--listen", "127.0.0.1:0"];
    place.bessemer(&broken).failed(FAILED, &["tokenizer_config.json", "chat template", "cannot parse"]);
}
