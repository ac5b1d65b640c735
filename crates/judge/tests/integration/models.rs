//! Judges that are models, over a real socket.

use crate::{Served, pairs};
use bessemer_http::{Bytes, Request, Responder, StatusCode, response};
use bessemer_judge::model::{Endpoint, JudgeTemplate, Method, OpenAi, ask, model_facts};
use bessemer_judge::{Judgement, ModelJudge, Results, Store, Study, Task, TaskKey};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// A server that prefers the good text, and the first one if it is set to be biased; words are its tokens.
pub(crate) struct Model {
    biased: bool,
    requests: AtomicUsize,
}

impl Model {
    pub(crate) fn start(biased: bool) -> (Served, Arc<Model>) {
        let model = Arc::new(Model { biased, requests: AtomicUsize::new(0) });
        let own = Arc::clone(&model);
        let handler = move |request: Request<Bytes>, responder: Responder| {
            let (status, body) = own.answer(&request);
            let _ = responder.whole(response(status, "application/json", body.to_string()));
        };
        (Served::answering(Arc::new(handler)), model)
    }

    fn answer(&self, request: &Request<Bytes>) -> (StatusCode, Value) {
        if request.uri().path() == "/v1/models" {
            return (StatusCode::OK, json!({ "data": [{ "id": "fake" }] }));
        }
        if request.headers().get("authorization").is_none_or(|key| key != "Bearer secret") {
            return (StatusCode::UNAUTHORIZED, json!({ "error": { "message": "wanted a key" } }));
        }
        // The first request comes too early.
        if self.requests.fetch_add(1, Ordering::SeqCst) == 0 {
            return (StatusCode::SERVICE_UNAVAILABLE, json!({}));
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!((body["model"].as_str(), body["temperature"].as_f64()), (Some("fake"), Some(0.0)));
        let prompt = match request.uri().path() {
            "/v1/chat/completions" => &body["messages"][0]["content"],
            _ => &body["prompt"],
        };
        let prompt = prompt.as_str().unwrap();
        if prompt.contains("<b>7</b>") {
            return (StatusCode::BAD_REQUEST, json!({ "error": { "message": "too many tokens" } }));
        }
        let good_is_first = prompt.find("The number is") < prompt.find("numba");
        let (first, second) = match (self.biased, good_is_first) {
            (true, _) => (-0.1, -2.3),
            (false, true) => (-0.25, -1.5),
            (false, false) => (-1.5, -0.25),
        };
        let choice = match (request.uri().path(), body["echo"] == true) {
            ("/v1/completions", true) => json!({ "logprobs": words(prompt, first, second) }),
            ("/v1/completions", false) => json!({ "text": if first > second { " A" } else { " B" } }),
            _ if prompt.contains("<b>3</b>") => json!({ "message": { "content": "I cannot decide" } }),
            _ => {
                let verdict = if first > second { "[[A]]" } else { "[[B]]" };
                json!({ "message": { "content": format!("Not [[C]], but {verdict}") } })
            }
        };
        (StatusCode::OK, json!({ "choices": [choice] }))
    }
}

/// Words with the blanks before them, and one more that was generated.
fn words(prompt: &str, first: f64, second: f64) -> Value {
    let starts: Vec<usize> =
        prompt.chars().enumerate().filter(|(at, c)| *at == 0 || *c == ' ').map(|(at, _)| at).collect();
    let mut values = vec![json!(-3.0); starts.len()];
    values[0] = Value::Null;
    *values.last_mut().unwrap() = json!(if prompt.ends_with(" A") { first } else { second });
    values.push(json!(-7.0));
    let offsets: Vec<usize> = starts.into_iter().chain([prompt.chars().count()]).collect();
    json!({ "text_offset": offsets, "token_logprobs": values })
}

pub(crate) fn endpoint(served: &Served, chat: bool) -> Endpoint {
    let base = format!("http://{}/v1/", served.address);
    let model = OpenAi::first_model(&base, None).unwrap();
    Endpoint { base, model, chat, key: Some("secret".into()), parallel: 3 }
}

pub(crate) fn asked(
    store: &mut Store,
    name: &str,
    (template, method): (&str, Method),
    endpoint: Endpoint,
) -> (usize, usize, usize) {
    let template = JudgeTemplate::shipped(template).unwrap();
    let mut model = OpenAi::new(endpoint).unwrap();
    let mut told = Vec::new();
    let mut progress = |done, all| told.push((done, all));
    let asked =
        ask(store, (name, "fake"), (&template, method), &mut model, None, &|| 5, &mut progress).unwrap();
    assert!(told.last().is_none_or(|(done, all)| done == all));
    (asked.answered, asked.unparsed, asked.refused)
}

#[test]
fn a_model_over_http_judges_both_orders_by_likelihood_and_by_text() {
    let place = TempDir::new().unwrap();
    let mut store = Store::create(&place.path().join("s.jsonl"), pairs(12)).unwrap();
    let (served, model) = Model::start(false);
    // Item 7 is refused in both orders.
    let by_likelihood = ("pair-brief", Method::Likelihood);
    assert_eq!(asked(&mut store, "ll", by_likelihood, endpoint(&served, false)), (22, 0, 2));
    // What was refused is asked again alone; nothing else is.
    let before = model.requests.load(Ordering::SeqCst);
    let error = {
        let template = JudgeTemplate::shipped("pair-brief").unwrap();
        let mut remote = OpenAi::new(endpoint(&served, false)).unwrap();
        let how = (&template, Method::Likelihood);
        ask(&mut store, ("ll", "fake"), how, &mut remote, None, &|| 5, &mut |_, _| ()).unwrap_err()
    };
    assert!(
        error.to_string().contains("refused the first 2 prompts: status 400 Bad Request: too many tokens")
    );
    assert_eq!(model.requests.load(Ordering::SeqCst) - before, 4);
    // Item 3 has no verdict in a chat.
    assert_eq!(asked(&mut store, "chat", ("pair", Method::Generate), endpoint(&served, true)), (22, 2, 2));

    // People agree with the good text, but for item 0.
    let judgements: Vec<Judgement> = (0..12)
        .map(|item| Judgement {
            judge: "Ann".into(),
            task: Task { key: TaskKey { item, first: 0, second: Some(1) }, turned: false, repeated: false },
            choice: if item == 0 { 1.0 } else { 0.0 },
            seconds: None,
            at: 0,
        })
        .collect();
    store.add(&judgements).unwrap();
    assert_eq!(store.judgements().unwrap().len(), 12, "verdicts of models are no judgements of people");
    let results = Results::of(store.study(), &store.judgements().unwrap(), None, 0, 1);
    assert_eq!(results.judges.len(), 1);
    let facts = |store: &Store| {
        let (judges, verdicts) = (store.model_judges().unwrap(), store.verdicts().unwrap());
        model_facts(store.study(), &judges, &verdicts, &store.judgements().unwrap(), 0, 1)
    };
    let all = facts(&store);
    let [chat, ll] = &all[..] else { panic!("two judges: {all:?}") };
    assert_eq!((chat.tasks, chat.unparsed, ll.tasks, ll.unparsed), (10, 2, 11, 0));
    assert_eq!((ll.consistent, ll.always_first, ll.always_second), (Some(1.0), Some(0.0), Some(0.0)));
    let best = &ll.ratings[0];
    assert_eq!((best.system.as_str(), best.won), ("secret-good", 1.0));
    let agreement = ll.agreement.as_ref().unwrap();
    assert_eq!((agreement.tasks, agreement.same, agreement.leaning), (11, 10.0 / 11.0, Some(10.0 / 11.0)));
    let scores = store.verdicts().unwrap();
    assert_eq!(scores.iter().find(|one| !one.turned).unwrap().scores, Some(vec![-1.5, -0.25]));

    // A judge who looks at the place alone: all ties.
    let (served, _) = Model::start(true);
    asked(&mut store, "biased", ("pair-brief", Method::Generate), endpoint(&served, false));
    let biased = &facts(&store)[0];
    assert_eq!(
        (biased.judge.as_str(), biased.always_first, biased.consistent),
        ("biased", Some(1.0), Some(0.0))
    );
    assert_eq!((biased.ratings[0].won, biased.longer), (0.5, None));
    // The study is read again as it was written.
    drop(store);
    assert_eq!(Store::open(&place.path().join("s.jsonl")).unwrap().verdicts().unwrap().len(), 22 + 22 + 22);
}

#[test]
fn a_judge_keeps_its_model_and_template_and_a_server_its_word() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let mut store = Store::create(&path, pairs(2)).unwrap();
    let (served, _) = Model::start(false);
    asked(&mut store, "m", ("pair-brief", Method::Likelihood), endpoint(&served, false));
    let known = store.model_judges().unwrap().remove(0);
    store.add_model_judge(&known).unwrap();
    for (other, part) in [
        (ModelJudge { model: "x".into(), ..known.clone() }, "the model fake"),
        (ModelJudge { method: "generate".into(), ..known.clone() }, "the method likelihood"),
        (ModelJudge { template: String::new(), ..known.clone() }, "another template"),
        (ModelJudge { name: "a\nb".into(), ..known }, "name of a judge"),
    ] {
        let error = store.add_model_judge(&other).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // Without its key the server says why, and nothing is kept.
    let no_key = Endpoint { key: None, ..endpoint(&served, false) };
    let template = JudgeTemplate::shipped("pair").unwrap();
    let mut model = OpenAi::new(no_key).unwrap();
    let how = (&template, Method::Likelihood);
    let error = ask(&mut store, ("n", "fake"), how, &mut model, None, &|| 5, &mut |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("401 Unauthorized: wanted a key"), "{error}");
    assert_eq!((store.verdicts().unwrap().len(), store.model_judges().unwrap().len()), (4, 1));
}

#[test]
fn dialogues_come_back() {
    let place = TempDir::new().unwrap();
    let line = r#"{"prompt":["a?","b?"],"reference":["r","s"],"texts":{"x":["1","2"],"y":["3","4"]}}"#;
    let study = Study { items: Study::read_items("t", line).unwrap(), ..pairs(1) };
    let path = place.path().join("new.jsonl");
    Store::create(&path, study.clone()).unwrap();
    assert_eq!(*Store::open(&path).unwrap().study(), study);
}
