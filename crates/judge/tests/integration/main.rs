//! A study from its texts to its results: the file, the page over a socket, sheets.
#![allow(clippy::unwrap_used)]

mod journal;
#[cfg(feature = "migrate")]
mod migrate;
mod models;

use bessemer_http::{Handler, Limits, Server};
use bessemer_judge::{Item, Page, Question, Results, Store, Study, exchange};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tempfile::TempDir;

fn items(count: usize) -> Vec<Item> {
    let line = |i: usize| {
        json!({ "prompt": format!("Name a number. <b>{i}</b>"), "texts": {
            "secret-good": format!("The number is {i}."), "secret-bad": format!("numba {i} \u{0} ,\"quoted\"\nsecond line"),
        } })
        .to_string()
    };
    Study::read_items("items.jsonl", &(0..count).map(line).collect::<Vec<_>>().join("\n")).unwrap()
}

fn pairs(count: usize) -> Study {
    let question = Question::Pairs { text: "Which answer is better?".into() };
    Study { question, judgements: 2, seed: 3, items: items(count) }
}

/// A server on a free port, stopped at the end.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    fn start(store: Store) -> Served {
        Served::answering(Arc::new(Page::new(store)))
    }

    fn answering(handler: Arc<dyn Handler>) -> Served {
        let server = Server::bind("127.0.0.1:0", Limits::default()).unwrap();
        let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || server.serve(handler, &told).unwrap());
        Served { address, stop, thread: Some(thread) }
    }

    /// Status and body.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut client = TcpStream::connect(self.address).unwrap();
        let text = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    fn json(&self, head: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.ask(head, &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn judges_on_the_page_prefer_the_good_one_without_seeing_its_name() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("study.jsonl");
    let served = Served::start(Store::create(&path, pairs(12)).unwrap());
    let (status, page) = served.ask("GET /", "");
    assert!(status == 200 && page.ends_with("</html>\n"));
    for judge in ["Ann", "Bob", "Cem"] {
        let (status, mut shown) = served.json("POST /api/next", &json!({ "judge": judge }));
        assert_eq!(status, 200);
        while !shown["task"].is_null() {
            assert!(!shown.to_string().contains("secret"), "{shown}");
            let left = shown["task"]["left"].as_str().unwrap();
            let choice = if left.starts_with("The number") { "left" } else { "right" };
            let sent =
                json!({ "judge": judge, "task": shown["task"]["id"], "choice": choice, "seconds": 2.5 });
            let (status, next) = served.json("POST /api/judgement", &sent);
            assert_eq!(status, 200, "{next}");
            // The same again is refused and changes nothing.
            let (status, refused) = served.json("POST /api/judgement", &sent);
            assert_eq!(status, 409, "{refused}");
            shown = next;
        }
    }
    drop(served);
    let store = Store::open(&path).unwrap();
    let judgements = store.judgements().unwrap();
    let results = Results::of(store.study(), &judgements, None, 10, 1);
    assert_eq!((results.tasks, results.wanted, results.judgements), (12, 24, 24));
    assert_eq!((results.ratings[0].system.as_str(), results.ratings[0].won), ("secret-good", 1.0));
    assert_eq!(results.agreement, Some(1.0));
    assert_eq!(results.judges.len(), 2, "nothing was left for the third");
    assert!(results.judges.iter().all(|judge| judge.constancy == Some(1.0) && judge.seconds == Some(2.5)));
    let turned = judgements.iter().filter(|one| one.task.turned).count();
    assert!(turned > 0 && turned < judgements.len());
}

#[test]
fn what_a_client_sends_wrong_is_refused_with_words() {
    let place = TempDir::new().unwrap();
    let served = Served::start(Store::create(&place.path().join("s.jsonl"), pairs(2)).unwrap());
    let first = json!({ "judge": "Ann", "task": "0", "choice": "left" });
    for (head, body, status, part) in [
        ("POST /api/next", json!({ "judge": "" }), 400, "name of a judge"),
        ("POST /api/next", json!({ "judge": "a\nb" }), 400, "name of a judge"),
        ("POST /api/judgement", json!({ "judge": "Ann" }), 400, "wanted {judge"),
        (
            "POST /api/judgement",
            json!({ "judge": "Ann", "task": "0", "choice": "up" }),
            400,
            "left, right or equal",
        ),
        (
            "POST /api/judgement",
            json!({ "judge": "Ann", "task": "0", "choice": 3 }),
            400,
            "left, right or equal",
        ),
        ("POST /api/judgement", json!({ "judge": "Ann", "task": "7", "choice": "left" }), 409, "next task"),
        ("DELETE /api/judgement", first.clone(), 405, "method"),
        ("GET /study.jsonl", json!({}), 404, "wanted /"),
    ] {
        let (found, answer) = served.json(head, &body);
        assert!(
            found == status && answer["error"].as_str().unwrap().contains(part),
            "{head}: {found} {answer}"
        );
    }
    // A form of another page in the same browser.
    let mut client = TcpStream::connect(served.address).unwrap();
    let body = first.to_string();
    write!(client, "POST /api/judgement HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
    assert_eq!(served.json("POST /api/judgement", &first).0, 200);
}

#[test]
fn sheets_go_out_blinded_and_come_back() {
    let place = TempDir::new().unwrap();
    let mut store = Store::create(&place.path().join("s.jsonl"), pairs(12)).unwrap();
    let mut sheet = Vec::new();
    assert_eq!(exchange::write_sheet(&store, "Ann", 10, &mut sheet).unwrap(), 10);
    let text = String::from_utf8(sheet).unwrap();
    assert!(!text.contains("secret") && text.contains("\"\"quoted\"\""), "{text}");
    // Filled in: the good one, wherever it stands; the last row left open.
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let mut filled = csv::Writer::from_writer(Vec::new());
    filled.write_record(rows.headers().unwrap()).unwrap();
    for (number, row) in rows.records().enumerate() {
        let row = row.unwrap();
        let choice = if number == 9 {
            ""
        } else if row[2].starts_with("The number") {
            "left"
        } else {
            "Right"
        };
        filled.write_record([&row[0], &row[1], &row[2], &row[3], choice]).unwrap();
    }
    let filled = filled.into_inner().unwrap();
    assert_eq!(exchange::read_sheet(&mut store, "Ann", 5, &filled[..]).unwrap(), (9, 1));
    let results = Results::of(store.study(), &store.judgements().unwrap(), None, 0, 1);
    assert_eq!(
        (results.judgements, results.ratings[0].system.as_str(), results.ratings[0].won),
        (9, "secret-good", 1.0)
    );
    let again = exchange::read_sheet(&mut store, "Ann", 5, &filled[..]).unwrap_err().to_string();
    assert!(again.contains("already judged this"), "{again}");
    for (sheet, part) in [
        ("task,choice\n99:0:1,left\n", "row 2 of the sheet: there is no task \"99:0:1\""),
        ("task,choice\n0:0:0,left\n", "there is no task"),
        ("task,choice\n0:0:1,up\n", "found \"up\""),
        ("a,b\n", "wanted the columns task"),
    ] {
        let error = exchange::read_sheet(&mut store, "Bob", 5, sheet.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(store.judgements().unwrap().len(), 9, "nothing of a sheet with a fault is taken");
}

#[test]
fn no_cell_of_a_sheet_begins_as_a_formula_and_its_texts_come_back() {
    let texts = ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\tx", "'=1", "\r\nx"];
    let line = |text: &&str| json!({ "prompt": text, "texts": { "a": text, "b": "plain" } }).to_string();
    let items = Study::read_items("i", &texts.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let place = TempDir::new().unwrap();
    let question = Question::Pairs { text: "Which?".into() };
    let study = Study { question, judgements: 1, seed: 1, items };
    let mut store = Store::create(&place.path().join("s.jsonl"), study).unwrap();
    let mut sheet = Vec::new();
    assert_eq!(exchange::write_sheet(&store, "Ann", 99, &mut sheet).unwrap(), texts.len());
    let mut filled = csv::Writer::from_writer(Vec::new());
    filled.write_record(["task", "choice"]).unwrap();
    let mut seen = Vec::new();
    for row in csv::Reader::from_reader(&sheet[..]).records() {
        let row = row.unwrap();
        assert!(row.iter().all(|cell| !cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n'])), "{row:?}");
        seen.push(row[1].strip_prefix('\'').unwrap().to_owned());
        filled.write_record([&row[0], "left"]).unwrap();
    }
    seen.sort_unstable();
    let mut wanted = texts.map(str::to_owned);
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    let filled = filled.into_inner().unwrap();
    assert_eq!(exchange::read_sheet(&mut store, "Ann", 5, &filled[..]).unwrap(), (texts.len(), 0));
}

#[test]
fn a_file_is_made_once_and_one_of_something_else_is_refused() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let study = pairs(2);
    Store::create(&path, study.clone()).unwrap();
    assert_eq!(*Store::open(&path).unwrap().study(), study, "what was written is read");
    let there = Store::create(&path, study).unwrap_err().to_string();
    assert!(there.contains("exists"), "{there}");
    let of = |name: &str, bytes: &[u8]| {
        std::fs::write(place.path().join(name), bytes).unwrap();
        Store::open(&place.path().join(name)).unwrap_err().to_string()
    };
    assert!(
        of("text", b"no study at all, but a text that is longer than the head of one would be, by far")
            .contains("found a file that begins with \"no study at all")
    );
    assert!(of("empty", b"").contains("an empty file"));
    let database = [&b"SQLite format 3\0"[..], &[0; 84]].concat();
    assert!(of("database", &database).contains("another program"));
    let missing = Store::open(&place.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("/missing"), "{missing}");
}
