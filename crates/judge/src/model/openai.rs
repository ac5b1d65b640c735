//! A model behind an interface that OpenAI's clients speak: `/completions` and `/chat/completions`.

use super::{JudgingModel, Reply};
use crate::JudgeError;
use bessemer_http::{Bytes, Client, ClientLimits, Request, StatusCode, header};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Waits before a request that was answered with "later" is sent again.
const WAITS: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];
/// Bytes of an answer that a message quotes.
const QUOTED: usize = 300;

/// Address and settings of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the interface, as clients of OpenAI name it: `http://127.0.0.1:8080/v1`.
    pub base: String,
    /// Name of the model.
    pub model: String,
    /// Whether generated verdicts are asked for as the answer to a message, for models that follow instructions.
    pub chat: bool,
    /// Sent as `Authorization: Bearer`, if the server wants one.
    pub key: Option<String>,
    /// Requests in flight at a time.
    pub parallel: usize,
}

/// A model that answers over HTTP.
#[derive(Debug)]
pub struct OpenAi {
    endpoint: Endpoint,
    client: Client,
}

impl OpenAi {
    /// A model at an address.
    ///
    /// # Errors
    /// No event queue to be had from the system.
    pub fn new(endpoint: Endpoint) -> Result<OpenAi, JudgeError> {
        let base = endpoint.base.trim_end_matches('/').to_owned();
        let endpoint = Endpoint { base, parallel: endpoint.parallel.max(1), ..endpoint };
        Ok(OpenAi { client: Client::new(ClientLimits::default())?, endpoint })
    }

    /// Name of the first model that the server lists.
    ///
    /// # Errors
    /// [`JudgeError::Model`]: nobody answers, or not with a list of models.
    pub fn first_model(base: &str, key: Option<&str>) -> Result<String, JudgeError> {
        let url = format!("{}/models", base.trim_end_matches('/'));
        let client = Client::new(ClientLimits::default())?;
        let request = request(Request::get(&url), key, Bytes::new()).map_err(|e| failed(&url, &e))?;
        let answer = client.send(request).map_err(|e| JudgeError::Model(e.to_string()))?;
        let value: Option<Value> = serde_json::from_slice(answer.body()).ok();
        let name = value.as_ref().and_then(|value| value["data"][0]["id"].as_str());
        name.filter(|_| answer.status() == StatusCode::OK).map(str::to_owned).ok_or_else(|| {
            failed(
                &url,
                &format!("wanted a list of models, found {}", quoted(answer.status(), answer.body())),
            )
        })
    }

    /// The values that `of` makes of all inputs, in their order, several at a time.
    fn each<I: Sync, T: Send>(
        &self,
        inputs: &[I],
        of: impl Fn(&I) -> Result<Reply<T>, JudgeError> + Sync,
    ) -> Result<Vec<Reply<T>>, JudgeError> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(input) = inputs.get(number) else { return };
                let value = of(input);
                if value.is_err() {
                    next.store(inputs.len(), Ordering::Relaxed);
                }
                if let Ok(mut done) = done.lock() {
                    done.push((number, value));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.endpoint.parallel.min(inputs.len()) {
                // Without another thread the work is done by those that are there.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        done.sort_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, value)| value).collect()
    }

    /// The answer to a request. The inner error is the server's reason not to answer this one.
    fn post(&self, path: &str, body: &Value) -> Result<Reply<Value>, JudgeError> {
        let url = format!("{}/{path}", self.endpoint.base);
        let body = Bytes::from(body.to_string());
        let mut waits = WAITS.iter();
        loop {
            let request = request(Request::post(&url), self.endpoint.key.as_deref(), body.clone())
                .map_err(|e| failed(&url, &e))?;
            let answer = self.client.send(request).map_err(|e| JudgeError::Model(e.to_string()))?;
            let status = answer.status();
            match status {
                StatusCode::OK => {
                    return serde_json::from_slice(answer.body())
                        .map(Ok)
                        .map_err(|e| failed(&url, &format!("wanted JSON: {e}")));
                }
                StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY => return Ok(Err(quoted(status, answer.body()))),
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => match waits.next() {
                    Some(wait) => thread::sleep(*wait),
                    None => return Err(failed(&url, &quoted(status, answer.body()))),
                },
                _ => return Err(failed(&url, &quoted(status, answer.body()))),
            }
        }
    }

    fn text(&self, prompt: &str, max_tokens: u64, stop: &[String]) -> Result<Reply<String>, JudgeError> {
        let (path, mut body, place) = match self.endpoint.chat {
            true => (
                "chat/completions",
                json!({"messages": [{"role": "user", "content": prompt}]}),
                "/choices/0/message/content",
            ),
            false => ("completions", json!({"prompt": prompt}), "/choices/0/text"),
        };
        body["model"] = json!(self.endpoint.model);
        body["temperature"] = json!(0);
        body["max_tokens"] = json!(max_tokens);
        if !stop.is_empty() {
            body["stop"] = json!(stop);
        }
        let answer = match self.post(path, &body)? {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        match answer.pointer(place).and_then(Value::as_str) {
            Some(text) => Ok(Ok(text.to_owned())),
            None => Err(failed(&self.endpoint.base, &format!("wanted a text at {place} of the answer"))),
        }
    }

    /// The log-likelihood of a continuation: the prompt and the continuation are sent as one prompt and come back with the logarithm of the probability of each
    /// token.
    fn log_likelihood(&self, prompt: &str, continuation: &str) -> Result<Reply<f64>, JudgeError> {
        let kept = prompt.trim_end();
        let whole = [prompt, continuation].concat();
        let body = json!({
            "model": self.endpoint.model, "prompt": whole, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true,
        });
        let answer = match self.post("completions", &body)? {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        let scores = &answer["choices"][0]["logprobs"];
        let range = (kept.chars().count() as u64, whole.chars().count() as u64);
        sum(scores, range).map(Ok).map_err(|what| failed(&self.endpoint.base, &what))
    }
}

/// Sum of the logarithms of the tokens that begin in a range of characters, the first of which must begin with it.
fn sum(scores: &Value, (from, to): (u64, u64)) -> Result<f64, String> {
    let (Some(offsets), Some(values)) =
        (scores["text_offset"].as_array(), scores["token_logprobs"].as_array())
    else {
        return Err("wanted the probabilities of the prompt's tokens (echo with logprobs), which this server does not \
                    give; ask it to generate verdicts"
            .into());
    };
    let mut tokens = offsets
        .iter()
        .zip(values)
        .filter_map(|(at, value)| Some((at.as_u64().filter(|at| (from..to).contains(at))?, value)))
        .peekable();
    if tokens.peek().is_none_or(|(at, _)| *at != from) {
        return Err(
            "wanted a token that begins where the continuation does, found none; begin continuations with a \
                    blank, or end the prompt with a line feed"
                .into(),
        );
    }
    tokens.map(|(_, value)| value.as_f64().ok_or_else(|| "wanted a number for each token".to_owned())).sum()
}

impl JudgingModel for OpenAi {
    fn write(
        &mut self,
        prompts: &[String],
        max_tokens: u64,
        stop: &[String],
    ) -> Result<Vec<Reply<String>>, JudgeError> {
        self.each(prompts, |prompt| self.text(prompt, max_tokens, stop))
    }

    fn log_likelihoods(
        &mut self,
        prompts: &[String],
        continuations: &[String],
    ) -> Result<Vec<Reply<Vec<f64>>>, JudgeError> {
        let pairs: Vec<(&String, &String)> =
            prompts.iter().flat_map(|prompt| continuations.iter().map(move |one| (prompt, one))).collect();
        let values = self.each(&pairs, |(prompt, continuation)| self.log_likelihood(prompt, continuation))?;
        Ok(values.chunks(continuations.len().max(1)).map(|of| of.iter().cloned().collect()).collect())
    }
}

fn request(
    head: bessemer_http::request::Builder,
    key: Option<&str>,
    body: Bytes,
) -> Result<Request<Bytes>, String> {
    let mut head = head.header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = key {
        head = head.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    head.body(body).map_err(|e| e.to_string())
}

fn failed(url: &str, what: &str) -> JudgeError {
    JudgeError::Model(format!("{url}: {what}"))
}

/// A status and the beginning of its body, in which the message of an OpenAI error is looked for.
fn quoted(status: StatusCode, body: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let message = value.as_ref().and_then(|value| value["error"]["message"].as_str().map(str::to_owned));
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let short: String = text.trim().chars().take(QUOTED).collect();
    format!("status {status}: {short}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets in the form of OpenAI's API, for "Once upon" and " a time", with a generated token behind.
    #[test]
    fn the_tokens_of_the_continuation_are_summed_and_nothing_else() {
        let scores = json!({
            "text_offset": [0, 4, 9, 11, 16], "token_logprobs": [null, -1.5, -0.25, -0.5, -9.0],
        });
        assert_eq!(sum(&scores, (9, 16)), Ok(-0.75));
        assert_eq!(sum(&scores, (11, 16)), Ok(-0.5));
        assert!(sum(&scores, (10, 16)).unwrap_err().contains("begins where the continuation does"));
        assert!(sum(&scores, (0, 16)).unwrap_err().contains("a number for each token"));
        assert!(sum(&Value::Null, (0, 16)).unwrap_err().contains("echo with logprobs"));
    }
}
