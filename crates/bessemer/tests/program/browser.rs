//! The pages of `serve` and `judge` in a browser, through chromedriver, where that is installed (Debian: chromium-driver).
//!
//! The driver's protocol is JSON over HTTP (W3C WebDriver); a client of six commands needs no crate. With `BESSEMER_SCREENSHOTS=DIR`
//! pictures of the pages are left there; those of the docs are made so.

use crate::workplace::{LLAMA, Workplace};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A child that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A browser with one window.
struct Browser {
    port: u16,
    session: String,
    driver: Killed,
}

impl Browser {
    /// Starts the browser; none, with a word, where there is no driver.
    #[allow(clippy::print_stderr, reason = "a test that is left out says so")]
    fn start() -> Option<Browser> {
        let started =
            Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let Ok(mut driver) = started else {
            eprintln!("left out: no chromedriver is installed (Debian: apt-get install chromium-driver)");
            return None;
        };
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let driver = Killed(driver);
        // It names the port that it was asked for, 0, before the one that it has.
        let port = |line: String| {
            let (_, port) = line.rsplit_once("on port ")?;
            port.trim_end_matches('.').parse().ok().filter(|port| *port > 0)
        };
        let mut said = lines.map_while(Result::ok).filter_map(port);
        let port = said.next().expect("the driver says where it listens");
        // The rest of its words must not fill the pipe.
        std::thread::spawn(move || said.for_each(drop));
        let mut browser = Browser { port, session: String::new(), driver };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1100,720",
        ];
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": arguments } } } });
        let session = browser.command("POST", "/session", &wanted);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        Some(browser)
    }

    /// The value that the driver answers with.
    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut driver = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        driver.set_read_timeout(Some(LONG)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        write!(
            driver,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        // The driver keeps the connection, whatever it is asked: the length says where its answer ends.
        let mut driver = BufReader::new(driver);
        let mut length = 0;
        loop {
            let mut line = String::new();
            driver.read_line(&mut line).unwrap();
            match line.trim_end().to_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut answer = vec![0; length];
        driver.read_exact(&mut answer).unwrap();
        let value: Value = serde_json::from_slice(&answer).unwrap();
        assert!(value["value"]["error"].is_null(), "{method} {path}: {value}");
        value["value"].clone()
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.command(method, &format!("/session/{}{path}", self.session), body)
    }

    fn open(&self, address: &str) {
        self.ask("POST", "/url", &json!({ "url": address }));
    }

    /// The path of the element that a CSS selector finds.
    fn element(&self, selector: &str) -> String {
        let found = self.ask("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        format!("/element/{}", found.as_object().unwrap().values().next().unwrap().as_str().unwrap())
    }

    fn click(&self, selector: &str) {
        self.ask("POST", &(self.element(selector) + "/click"), &json!({}));
    }

    /// Types into an element, as from a keyboard.
    fn type_into(&self, selector: &str, text: &str) {
        self.ask("POST", &(self.element(selector) + "/value"), &json!({ "text": text }));
    }

    fn script(&self, body: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Visible text of an element.
    fn text(&self, selector: &str) -> String {
        self.script(&format!("return document.querySelector({selector:?}).innerText"))
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn wait_for(&self, what: &str, mut done: impl FnMut(&Browser) -> bool) {
        let until = Instant::now() + LONG;
        while !done(self) {
            assert!(Instant::now() < until, "{what}; the page says: {}", self.text("body"));
            sleep(Duration::from_millis(20));
        }
    }

    /// Leaves a picture of the window, if one was asked for.
    fn picture(&self, name: &str) {
        let Ok(folder) = std::env::var("BESSEMER_SCREENSHOTS") else { return };
        let picture = self.ask("GET", "/screenshot", &json!({}));
        fs::write(format!("{folder}/{name}.png"), base64(picture.as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask("DELETE", "", &json!({}));
        }
        let _ = self.driver.0.kill();
    }
}

/// The bytes of a text in base 64.
fn base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |c: u8| digits.iter().position(|d| *d == c).map(|v| v as u32);
    let values: Vec<u32> = text.bytes().filter_map(value).collect();
    let bytes = values.chunks(4).flat_map(|four| {
        let whole = four.iter().enumerate().fold(0, |sum, (i, v)| sum | v << (18 - 6 * i));
        whole.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}

/// A server of the program and the first line that it printed.
fn served(place: &Workplace, words: &[&str]) -> (Killed, String) {
    let mut server = place.command(words).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(server), line.trim().to_owned())
}

#[test]
fn judges_compare_texts_with_mouse_and_keys() {
    let Some(browser) = Browser::start() else { return };
    let place = Workplace::new(LLAMA);
    let texts: String = (0..4)
        .map(|i| {
            let good = format!("There are {i} apples left, because three of the {} were eaten.", i + 3);
            let bad = format!("apples apples <img src=x onerror=\"document.title='broken'\"> {i}");
            json!({ "prompt": format!("Three of {} apples are eaten. How many are left?", i + 3), "texts": { "large": good, "small": bad } }).to_string() + "\n"
        })
        .collect();
    fs::write(place.path("texts.jsonl"), texts).unwrap();
    place.bessemer(&["judge", "create", "s.jsonl", "--texts", "texts.jsonl", "--judgements", "1"]).text();
    let (_server, address) = served(&place, &["judge", "serve", "s.jsonl", "--listen", "127.0.0.1:0"]);
    browser.open(&address);
    browser.type_into("#name", "Ann O'Neil");
    browser.click("#enter button");
    for number in 0..4 {
        browser.wait_for("the next task", |page| page.text("#progress") == format!("{number} judged"));
        let left_is_good = browser.text("#left").starts_with("There are");
        assert_ne!(left_is_good, browser.text("#right").starts_with("There are"));
        if number == 0 {
            browser.picture("judge");
        }
        match number % 2 {
            0 => browser.click(if left_is_good {
                "#choices button:first-child"
            } else {
                "#choices button:last-child"
            }),
            _ => browser.type_into("body", if left_is_good { "1" } else { "3" }),
        }
    }
    browser.wait_for("the end", |page| page.text("#done").starts_with("There is nothing left"));
    assert_eq!(browser.script("return document.title"), "Judgements · Bessemer", "texts are shown, not run");
    let results = place.bessemer(&["judge", "results", "s.jsonl", "--samples", "0", "--json"]).json();
    assert_eq!(
        (&results["ratings"][0]["system"], &results["ratings"][0]["won"]),
        (&json!("large"), &json!(1.0))
    );
    assert_eq!(results["judges"][0]["judge"], "Ann O'Neil");
}

#[test]
fn a_model_answers_on_the_chat_page() {
    let Some(browser) = Browser::start() else { return };
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=40"]);
    let (_server, line) = served(&place, &["serve", "runs/t", "--listen", "127.0.0.1:0", "--json"]);
    let start: Value = serde_json::from_str(&line).unwrap();
    browser.open(&format!("http://{}/", start["address"].as_str().unwrap()));
    browser.wait_for("the name of the model", |page| !page.text("#model").is_empty());
    browser.script("document.getElementById('tokens').value = 6");
    browser.type_into("#text", "the \u{e007}");
    // The button comes back once the answer is whole.
    browser.wait_for("an answer", |page| {
        page.script("return document.querySelectorAll('.turn').length === 2 && !document.getElementById('send').disabled") == true
    });
    assert_eq!(
        browser.script("return document.querySelectorAll('.error').length"),
        0,
        "{}",
        browser.text("#log")
    );
    assert!(
        browser.text(".turn.user").contains("the")
            && browser.text(".turn.assistant").len() > "assistant".len()
    );
    browser.picture("chat");
    // The oldest turn makes room for the next one, with a note.
    let answered = |page: &Browser, turns: usize| {
        page.script(&format!("return document.querySelectorAll('.turn').length === {turns} && !document.getElementById('send').disabled")) == true
    };
    browser.type_into("#text", "the quick\u{e007}");
    browser.wait_for("an answer without the oldest turn", |page| answered(page, 4));
    assert!(browser.text(".note").contains("longer than the model's context"), "{}", browser.text("#log"));
    // A turn that does not fit alone is taken back: its text returns to the field, and the page tells why.
    let long = "the quick brown fox ".repeat(20);
    browser.type_into("#text", &(long.clone() + "\u{e007}"));
    browser.wait_for("an error in words", |page| {
        page.script("return document.querySelectorAll('.note.error').length") == 1
    });
    assert!(browser.text(".note.error").contains("context"), "{}", browser.text(".note.error"));
    assert_eq!(browser.script("return document.getElementById('text').value"), long.trim());
    assert!(answered(&browser, 4), "{}", browser.text("#log"));
    // The conversation goes on without it.
    browser.script("document.getElementById('text').value = ''");
    browser.type_into("#text", "fox\u{e007}");
    browser.wait_for("an answer after the error", |page| answered(page, 6));
    assert_eq!(browser.script("return document.querySelectorAll('.error').length"), 0);
}
