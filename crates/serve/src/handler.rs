//! Paths of the server.

use crate::answer::{Answer, Choice, DONE, Form, Usage, event};
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::request::{self, Model, TextRequest};
use crate::scheduler::Event;
use crate::service::{News, Service, Ticket};
use bessemer_http::{
    Bytes, Gone, Handler, Method, Request, Responder, Response, StatusCode, StreamedBody, header,
    request::Parts, response,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Time between two looks at whether the client is still there.
const LOOK: Duration = Duration::from_millis(50);
/// The chat page: nothing outside of it is loaded.
const PAGE: &str = include_str!("page.html");

/// Answers requests with a [`Service`].
#[derive(Debug)]
pub struct ServeHandler(pub Arc<Service>);

impl Handler for ServeHandler {
    fn handle(&self, request: Request<Bytes>, responder: Responder) {
        let arrived = Instant::now();
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let Some(form) = form_of(path) else {
            // A client that has left needs no answer.
            let _ = responder.whole(self.page(&head.method, path));
            return;
        };
        let outcome = match head.method {
            Method::POST => self.texts(form, body, responder, arrived),
            _ => refuse(responder, &method_not_allowed("POST")),
        };
        self.0.metrics.request(outcome);
    }

    fn refuse_head(&self, head: &Parts) -> Option<Response<Bytes>> {
        let (key, path) = (self.0.key.as_ref()?, head.uri.path());
        if !path.starts_with("/v1/") || key.is_in(head.headers.get(header::AUTHORIZATION)) {
            return None;
        }
        if form_of(path).is_some() {
            self.0.metrics.request(Outcome::Refused);
        }
        Some(ApiError::no_key().response())
    }

    fn refusal(&self, path: &str, status: StatusCode, what: &str) -> Response<Bytes> {
        let error = ApiError { status, ..ApiError::request(what) };
        if form_of(path).is_some() {
            self.0.metrics.request(outcome_of(status));
        }
        match path.starts_with("/v1/") {
            true => error.response(),
            false => response(status, "text/plain; charset=utf-8", format!("{what}\n")),
        }
    }
}

/// The interface at a path, if there is one.
fn form_of(path: &str) -> Option<Form> {
    match path {
        "/v1/completions" => Some(Form::Completion),
        "/v1/chat/completions" => Some(Form::Chat),
        _ => None,
    }
}

/// Bytes of a part of a path, `%41` for `A`.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<2>().and_then(|two| std::str::from_utf8(two).ok());
        let escaped = digits.filter(|_| *first == b'%').and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    bytes
}

/// The outcome of a request that is answered with an error.
fn outcome_of(status: StatusCode) -> Outcome {
    match status.as_u16() {
        429 => Outcome::Busy,
        500.. => Outcome::Failed,
        _ => Outcome::Refused,
    }
}

fn refuse(responder: Responder, error: &ApiError) -> Outcome {
    let outcome = outcome_of(error.status);
    match responder.whole(error.response()) {
        Ok(()) => outcome,
        Err(Gone) => Outcome::Abandoned,
    }
}

fn method_not_allowed(wanted: &str) -> ApiError {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    ApiError { status, ..ApiError::request(format!("wanted the method {wanted}")) }
}

/// A text while its news come in.
#[derive(Default)]
struct Progress {
    choice: Choice,
    chosen: usize,
    /// Tokens of the prompt that were there already.
    cached: usize,
    last: Option<Instant>,
}

/// An answer while its texts come in.
struct Texts<'a> {
    answer: Answer<'a>,
    progress: Vec<Progress>,
    prompt_tokens: usize,
    /// Texts of each prompt, and tokens that were put before it.
    n: usize,
    prefix: usize,
    ended: usize,
    first_token: bool,
    arrived: Instant,
}

impl Texts<'_> {
    /// Takes news in; says of which text there is something to show, or that the model failed.
    fn take(&mut self, news: News, service: &Service) -> Result<usize, String> {
        let News { sequence, event, at } = news;
        let progress = &mut self.progress[sequence];
        match event {
            Event::Prompt(scores) => progress.choice.scores.extend(scores),
            Event::Cached(tokens) => progress.cached += tokens,
            Event::Token { text, score, .. } => {
                progress.choice.text.push_str(&text);
                progress.choice.scores.extend(score);
                progress.chosen += 1;
                match progress.last.replace(at) {
                    Some(last) => service.metrics.further_token((at - last).as_secs_f64()),
                    None if !self.first_token => {
                        self.first_token = true;
                        service.metrics.first_token((at - self.arrived).as_secs_f64());
                    }
                    None => {}
                }
            }
            Event::End { finish, text } => {
                progress.choice.text.push_str(&text);
                progress.choice.finish = Some(finish);
                self.ended += 1;
            }
            Event::Failed(why) => return Err(why),
        }
        Ok(sequence)
    }

    fn done(&self) -> bool {
        self.ended == self.progress.len()
    }

    fn usage(&self) -> Usage {
        // A prompt of several texts counts once, as the first of them had it.
        let of_prompts = self.progress.iter().step_by(self.n);
        Usage {
            prompt: self.prompt_tokens,
            cached: of_prompts.map(|p| p.cached.saturating_sub(self.prefix)).sum(),
            chosen: self.progress.iter().map(|p| p.chosen).sum(),
        }
    }
}

/// Why a text is not made.
enum Interrupted {
    Left,
    Failed(String),
}

/// The next news, while the client is there.
fn next(ticket: &Ticket, left: &dyn Fn() -> bool) -> Result<News, Interrupted> {
    loop {
        match ticket.news.recv_timeout(LOOK) {
            Ok(news) => return Ok(news),
            Err(RecvTimeoutError::Timeout) if left() => return Err(Interrupted::Left),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Interrupted::Failed("the model's thread has ended".into()));
            }
        }
    }
}

impl ServeHandler {
    fn page(&self, method: &Method, path: &str) -> Response<Bytes> {
        let service = &self.0;
        let shown = |model: &Model| {
            json!({
                "id": model.name, "object": "model", "created": model.created, "owned_by": "bessemer",
                "context_length": model.context, "max_model_len": model.context, "parent": model.parent,
            })
        };
        let answer = match path {
            "/" => bessemer_http::page(PAGE),
            "/healthz" | "/health" => response(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
            "/metrics" => {
                let text = service.metrics.text(service.load());
                response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/v1/models" | "/v1/models/" => {
                let models: Vec<Value> = service.models.iter().map(shown).collect();
                let list = json!({"object": "list", "data": models});
                response(StatusCode::OK, "application/json", list.to_string())
            }
            path => match path.strip_prefix("/v1/models/").map(percent_decoded) {
                Some(name) => match service.models.iter().find(|model| model.name.as_bytes() == name) {
                    Some(model) => response(StatusCode::OK, "application/json", shown(model).to_string()),
                    None => ApiError::no_model(&String::from_utf8_lossy(&name), &service.models).response(),
                },
                None => {
                    let path: String = path.chars().take(200).collect();
                    let message = format!(
                        "there is no {path}; wanted /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics or /"
                    );
                    return ApiError::not_found(message).response();
                }
            },
        };
        match *method {
            Method::GET | Method::HEAD => answer,
            _ => method_not_allowed("GET").response(),
        }
    }

    fn texts(&self, form: Form, body: Bytes, responder: Responder, arrived: Instant) -> Outcome {
        let service = &self.0;
        let number = service.next_number();
        let read = match form {
            Form::Completion => request::completion(&service.models, &body, number),
            Form::Chat => request::conversation(&service.models, &body, number),
        };
        // Its bytes are free for other requests while the answer is made.
        drop(body);
        let mut request = match read {
            Ok(request) => request,
            Err(e) => return refuse(responder, &e),
        };
        let scores = request.sequences.first().is_some_and(|s| s.scores.is_some());
        let of_prompts = request.sequences.iter().step_by(request.n);
        let prompt_tokens = of_prompts.map(|s| s.prompt.len() - s.prefix).sum();
        let progress = |index: usize| {
            let text = request.echo.as_ref().map_or("", |texts| &texts[index / request.n]).to_owned();
            Progress { choice: Choice { index, text, ..Choice::default() }, ..Progress::default() }
        };
        let mut texts = Texts {
            answer: Answer {
                model: &service.models[request.model],
                form,
                number,
                scores,
                dropped: request.dropped,
            },
            progress: (0..request.sequences.len()).map(progress).collect(),
            prompt_tokens,
            n: request.n,
            prefix: request.sequences.first().map_or(0, |s| s.prefix),
            ended: 0,
            first_token: false,
            arrived,
        };
        let ticket = match service.submit(&mut request) {
            Ok(ticket) => ticket,
            Err(e) => return refuse(responder, &e),
        };
        match request.stream {
            true => self.stream(&request, &ticket, &mut texts, responder),
            false => self.whole(&ticket, &mut texts, responder),
        }
    }

    fn whole(&self, ticket: &Ticket, texts: &mut Texts<'_>, responder: Responder) -> Outcome {
        while !texts.done() {
            let news = next(ticket, &|| responder.client_gone());
            match news.and_then(|news| texts.take(news, &self.0).map_err(Interrupted::Failed)) {
                Ok(_) => {}
                Err(Interrupted::Left) => return Outcome::Abandoned,
                Err(Interrupted::Failed(why)) => return refuse(responder, &ApiError::failed(why)),
            }
        }
        let choices: Vec<Choice> = texts.progress.iter_mut().map(|p| std::mem::take(&mut p.choice)).collect();
        let body = texts.answer.whole(&choices, texts.usage());
        match responder.whole(response(StatusCode::OK, "application/json", body)) {
            Ok(()) => Outcome::Answered,
            Err(Gone) => Outcome::Abandoned,
        }
    }

    fn stream(
        &self,
        request: &TextRequest,
        ticket: &Ticket,
        texts: &mut Texts<'_>,
        responder: Responder,
    ) -> Outcome {
        let head = Response::builder()
            .header(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")
            .header(header::CACHE_CONTROL, "no-store")
            .body(());
        let Ok(head) = head else { return refuse(responder, &ApiError::failed("the answer has no head")) };
        let Ok(body) = responder.stream(head) else { return Outcome::Abandoned };
        match self.pieces(request, ticket, texts, &body) {
            Ok(outcome) => match body.finish() {
                Ok(()) => outcome,
                Err(Gone) => Outcome::Abandoned,
            },
            Err(Gone) => Outcome::Abandoned,
        }
    }

    fn pieces(
        &self,
        request: &TextRequest,
        ticket: &Ticket,
        texts: &mut Texts<'_>,
        body: &StreamedBody,
    ) -> Result<Outcome, Gone> {
        if texts.answer.form == Form::Chat {
            (0..texts.progress.len()).try_for_each(|index| body.send(texts.answer.role(index)))?;
        }
        while !texts.done() {
            let news = next(ticket, &|| body.client_gone());
            match news.and_then(|news| texts.take(news, &self.0).map_err(Interrupted::Failed)) {
                Ok(sequence) => {
                    let choice = &mut texts.progress[sequence].choice;
                    if choice.text.is_empty() && choice.scores.is_empty() && choice.finish.is_none() {
                        continue;
                    }
                    body.send(texts.answer.piece(choice))?;
                    texts.answer.clear_sent(choice);
                }
                Err(Interrupted::Left) => return Err(Gone),
                Err(Interrupted::Failed(why)) => {
                    // The head is out: the error is an event.
                    body.send(event(&ApiError::failed(why).json()))?;
                    return Ok(Outcome::Failed);
                }
            }
        }
        if request.usage {
            body.send(texts.answer.usage_piece(texts.usage()))?;
        }
        body.send(DONE)?;
        Ok(Outcome::Answered)
    }
}
