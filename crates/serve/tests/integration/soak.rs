//! Ten thousand requests of several clients, many of which misbehave: `cargo test -p bessemer-serve --release soak -- --ignored
//! --nocapture`.

use crate::client::{get, post, receive, send};
use crate::tiny::Running;
use bessemer_serve::chat::ChatTemplate;
use bessemer_tensor::rng::RngKey;
use serde_json::{Value, json};
use std::io::Read;
use std::time::{Duration, Instant};

/// Requests, unless BESSEMER_SOAK_REQUESTS says otherwise.
const REQUESTS: u64 = 10_000;
const CLIENTS: u64 = 6;
/// Different well-behaved requests.
const KINDS: u64 = 97;

/// A request by its kind.
fn body(kind: u64) -> Value {
    let words = RngKey::new(5, 0, "kinds").block(kind);
    let len = 1 + words[0] % 100;
    let ids: Vec<u32> = (0..len).map(|i| (words[1].wrapping_mul(i * i + 3) >> 7) % 257).collect();
    let mut body = json!({
        "prompt": ids, "max_tokens": words[2] % 48, "temperature": f64::from(words[3] % 3) / 2.0, "seed": kind,
        "n": 1 + kind % 2,
    });
    if kind.is_multiple_of(5) {
        (body["logprobs"], body["echo"]) = (json!(2), json!(true));
    }
    body
}

/// What is compared of an answer: all but its number.
fn essence(answer: &Value) -> Value {
    json!([answer["choices"], answer["usage"]])
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// One request of a client. Returns whether it was answered.
fn one(server: &Running, number: u64, wanted: &[Value]) -> bool {
    let kind = number % KINDS;
    let body_of = body(kind);
    match number % 10 {
        // Leaves at once, or in the midst of an answer.
        0 => {
            let mut streamed = body_of;
            streamed["stream"] = json!(true);
            let mut stream = send(server.address, "POST", "/v1/completions", &streamed.to_string());
            if number.is_multiple_of(20) {
                let mut some = [0; 200];
                let _ = stream.read(&mut some);
            }
            false
        }
        1 => {
            let long = post(
                server.address,
                "/v1/completions",
                &json!({"prompt": vec![1; 161 + number as usize % 999]}),
            );
            assert_eq!(long.status, 400);
            false
        }
        // Reads slowly.
        2 => {
            let mut streamed = body_of;
            streamed["stream"] = json!(true);
            let mut stream = send(server.address, "POST", "/v1/completions", &streamed.to_string());
            let mut all = Vec::new();
            let mut piece = [0; 512];
            loop {
                let n = stream.read(&mut piece).unwrap();
                if n == 0 {
                    break;
                }
                all.extend_from_slice(&piece[..n]);
                std::thread::sleep(Duration::from_millis(number % 3));
            }
            let text = String::from_utf8_lossy(&all).into_owned();
            assert!(text.starts_with("HTTP/1.1 429") || text.contains("data: [DONE]"), "{text}");
            text.contains("data: [DONE]")
        }
        _ => {
            let reply = receive(send(server.address, "POST", "/v1/completions", &body_of.to_string()));
            if reply.status == 429 {
                return false;
            }
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert_eq!(essence(&reply.json()), wanted[kind as usize], "request {number}: not its own answer");
            true
        }
    }
}

#[test]
#[ignore = "minutes; the command is in docs/serve.md"]
fn ten_thousand_requests_leave_nothing_behind() {
    let server = Running::start(4, 64, ChatTemplate::plain());
    // Each alone.
    let wanted: Vec<Value> = (0..KINDS)
        .map(|kind| essence(&post(server.address, "/v1/completions", &body(kind)).json()))
        .collect();
    let (begun, mut memory) = (Instant::now(), Vec::new());
    let mut answered = 0;
    let rounds = 10;
    let named = std::env::var("BESSEMER_SOAK_REQUESTS").ok().and_then(|n| n.parse().ok());
    let requests: u64 = named.unwrap_or(REQUESTS);
    for round in 0..rounds {
        let (server, wanted) = (&server, &wanted);
        answered += std::thread::scope(|scope| {
            let client = |client: u64| {
                let numbers = (round * requests / rounds..(round + 1) * requests / rounds)
                    .filter(move |n| RngKey::new(1, 0, "clients").block(*n)[0] as u64 % CLIENTS == client);
                scope.spawn(move || numbers.filter(|n| one(server, *n, wanted)).count())
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            clients.into_iter().map(|c| c.join().unwrap()).sum::<usize>()
        });
        memory.push(resident_bytes());
    }
    let idle = Instant::now();
    while server.service.load().active + server.service.load().waiting > 0 {
        assert!(idle.elapsed() < Duration::from_secs(10), "{:?}", server.service.load());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
    println!(
        "{answered} answered in {:.1} s; resident MiB {:.1?}",
        begun.elapsed().as_secs_f64(),
        memory.iter().map(mib).collect::<Vec<_>>()
    );
    println!("{}", get(server.address, "/metrics").body);
    assert!(answered as u64 > requests * 6 / 10, "{answered}");
    let (first, last) = (memory[1], memory[memory.len() - 1]);
    assert!(last < first + (4 << 20), "memory grows: {memory:?}");
}
