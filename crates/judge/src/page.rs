//! The page of the judges.
//!
//! ```text
//! GET  /                     the page
//! POST /api/next             {judge}: {question, points, done, task: {id, prompt, left, right} or null}
//! POST /api/judgement        {judge, task, choice, seconds}: the next one, as above
//! ```
//! `choice`: "left", "right", "equal", or a point of the scale. Names of systems never leave the program, nor does whether a task came before.
//! A judgement counts only for the task that the judge has before them: one sent twice is refused with status 409.

use crate::JudgeError;
use crate::assign::Task;
use crate::store::{Judgement, Store};
use crate::study::Question;
use bessemer_http::{Bytes, Handler, Method, Request, Responder, Response, StatusCode, header, response};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const PAGE: &str = include_str!("page.html");
/// Most characters of a cause that an answer repeats.
const LONGEST_CAUSE: usize = 300;
/// Longest time at one task that is believed, seconds: a judge may leave a page open for a night.
const LONGEST_LOOK: f64 = 86_400.0;

/// Answers the requests of judges.
#[derive(Debug)]
pub struct Page {
    store: Mutex<Store>,
}

/// A judgement as a judge sends it; without a task, a request for one.
#[derive(Deserialize)]
struct Sent {
    judge: String,
    task: Option<String>,
    choice: Option<Choice>,
    seconds: Option<f64>,
}

enum Choice {
    Point(f64),
    Side(String),
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Choice, D::Error> {
        struct PointOrSide;

        impl Visitor<'_> for PointOrSide {
            type Value = Choice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("left, right, equal or a point of the scale")
            }

            fn visit_u64<E>(self, point: u64) -> Result<Choice, E> {
                Ok(Choice::Point(point as f64))
            }

            fn visit_i64<E>(self, point: i64) -> Result<Choice, E> {
                Ok(Choice::Point(point as f64))
            }

            fn visit_f64<E>(self, point: f64) -> Result<Choice, E> {
                Ok(Choice::Point(point))
            }

            fn visit_str<E>(self, side: &str) -> Result<Choice, E> {
                Ok(Choice::Side(side.to_owned()))
            }
        }

        // Not an untagged enum, which builds a tree of whatever is sent before it looks.
        deserializer.deserialize_any(PointOrSide)
    }
}

impl Page {
    /// A page over a study.
    pub fn new(store: Store) -> Page {
        Page { store: Mutex::new(store) }
    }

    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/") => bessemer_http::page(PAGE),
            (&Method::POST, path @ ("/api/next" | "/api/judgement")) => {
                match (path, serde_json::from_slice::<Sent>(request.body())) {
                    ("/api/next", Ok(sent)) => answered(next(&self.store(), &sent.judge)),
                    (_, Ok(Sent { judge, task: Some(task), choice: Some(choice), seconds })) => {
                        self.judge(judge, &task, &choice, seconds)
                    }
                    (_, Ok(_)) => refused(StatusCode::BAD_REQUEST, "wanted {judge, task, choice}"),
                    (_, Err(e)) => {
                        let cause: String = e.to_string().chars().take(LONGEST_CAUSE).collect();
                        refused(StatusCode::BAD_REQUEST, &format!("wanted {{judge, task, choice}}: {cause}"))
                    }
                }
            }
            (_, "/" | "/api/next" | "/api/judgement") => {
                refused(StatusCode::METHOD_NOT_ALLOWED, "wanted another method")
            }
            _ => refused(StatusCode::NOT_FOUND, "wanted /"),
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, judge: String, named: &str, sent: &Choice, seconds: Option<f64>) -> Response<Bytes> {
        let mut store = self.store();
        let (task, done) = match store.next(&judge) {
            Ok(found) => found,
            Err(e) => return failed(&e),
        };
        let Some(task) = task.filter(|_| named == done.to_string()) else {
            return refused(StatusCode::CONFLICT, "already judged; next task");
        };
        let choice = match choice(&store.study().question, sent, task) {
            Ok(choice) => choice,
            Err(wanted) => return refused(StatusCode::BAD_REQUEST, &wanted),
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let seconds = seconds.filter(|s| (0.0..=LONGEST_LOOK).contains(s));
        let judgement = Judgement { judge, task, choice, seconds, at };
        answered(store.add(std::slice::from_ref(&judgement)).and_then(|()| next(&store, &judgement.judge)))
    }
}

impl Handler for Page {
    fn handle(&self, request: Request<Bytes>, responder: Responder) {
        let mut answer = self.answer(&request);
        answer.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        // A judge who left needs no answer; the judgement is kept.
        let _ = responder.whole(answer);
    }

    fn refusal(&self, _path: &str, status: StatusCode, what: &str) -> Response<Bytes> {
        refused(status, what)
    }
}

/// The number of a choice, whichever text stood left.
fn choice(question: &Question, choice: &Choice, task: Task) -> Result<f64, String> {
    match (question, choice) {
        (Question::Scale { .. }, Choice::Point(point)) => Ok(*point),
        (Question::Scale { labels, .. }, Choice::Side(_)) => {
            Err(format!("choice: wanted a whole number from 1 to {}", labels.len()))
        }
        (Question::Pairs { .. }, Choice::Side(side)) => match (side.as_str(), task.turned) {
            ("equal", _) => Ok(0.5),
            ("left", false) | ("right", true) => Ok(1.0),
            ("right", false) | ("left", true) => Ok(0.0),
            _ => Err(format!("choice: wanted left, right or equal, found {side:?}")),
        },
        (Question::Pairs { .. }, Choice::Point(_)) => Err("choice: wanted left, right or equal".into()),
    }
}

/// The next task as the page shows it.
fn next(store: &Store, judge: &str) -> Result<Value, JudgeError> {
    let (task, done) = store.next(judge)?;
    let study = store.study();
    let points = match &study.question {
        Question::Pairs { .. } => None,
        Question::Scale { labels, .. } => Some(labels),
    };
    let task = task.map(|task| {
        let item = &study.items[task.key.item];
        let of = |place: usize| item.texts[place].text.as_str();
        let (first, second) = (of(task.key.first), task.key.second.map(of));
        let (left, right) = match second {
            Some(second) if task.turned => (second, Some(first)),
            second => (first, second),
        };
        json!({ "id": done.to_string(), "prompt": item.prompt, "left": left, "right": right })
    });
    Ok(json!({ "question": study.question.text(), "points": points, "done": done, "task": task }))
}

fn answered(value: Result<Value, JudgeError>) -> Response<Bytes> {
    match value {
        Ok(value) => response(StatusCode::OK, "application/json", value.to_string()),
        Err(e) => failed(&e),
    }
}

fn failed(error: &JudgeError) -> Response<Bytes> {
    let status = match error {
        JudgeError::Judgement(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refused(status, &error.to_string())
}

fn refused(status: StatusCode, what: &str) -> Response<Bytes> {
    response(status, "application/json", json!({ "error": what }).to_string())
}
