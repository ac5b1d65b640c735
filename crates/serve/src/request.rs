//! Requests of OpenAI's interface, read and checked.

use crate::answer::Form;
use crate::body::{Body, MOST_TEXTS, PromptBody};
use crate::chat::ChatTemplate;
use crate::conversation::{FittedPrompt, Room, fit};
use crate::error::ApiError;
use crate::scheduler::SequenceRequest;
use bessemer_eval::generate::{ContextLimit, GenerateConfig, prompt_tokens};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_tokenizer::Tokenizer;
use std::sync::Arc;

/// Most texts of each prompt.
const MOST_SAMPLES: u64 = 128;
/// Most candidates beside each token in `logprobs`.
const MOST_LOGPROBS: u64 = 20;
/// Tokens of a completion, unless the request says otherwise; OpenAI's number.
const MAX_TOKENS: u64 = 16;

/// Properties of the model that requests are checked against.
#[derive(Debug)]
pub struct Model {
    /// Name in answers.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Positions of a sequence.
    pub context: usize,
    /// How a conversation becomes a prompt.
    pub chat: ChatTemplate,
    /// Seconds since 1970-01-01 UTC at which the model was ready.
    pub created: u64,
    /// Name of its base, of which it is an adapter.
    pub parent: Option<String>,
}

/// A request for texts.
#[derive(Debug)]
pub struct TextRequest {
    /// Number of the model that makes them.
    pub model: usize,
    /// Texts to make, prompt by prompt, `n` of each.
    pub sequences: Vec<SequenceRequest>,
    /// Texts of the prompts, if they are part of the answer.
    pub echo: Option<Vec<String>>,
    /// Texts of each prompt.
    pub n: usize,
    /// Whether the answer comes in pieces.
    pub stream: bool,
    /// Whether the last piece says how many tokens there were.
    pub usage: bool,
    /// Oldest messages of the conversation that were left out because it is longer than the context.
    pub dropped: usize,
}

impl TextRequest {
    fn of(mut self, model: usize) -> TextRequest {
        self.model = model;
        self.sequences.iter_mut().for_each(|one| one.model = model);
        self
    }
}

/// Reads a request of `/v1/completions`, for the model that it names or else the first; `number` is its number, the seed if it has none.
///
/// # Errors
/// The first field that is invalid.
pub fn completion(models: &[Model], body: &[u8], number: u64) -> Result<TextRequest, ApiError> {
    let body = Body::read(Form::Completion, body)?;
    let (at, model) = named(models, &body)?;
    model.completion(body, number).map(|request| request.of(at))
}

/// Reads a request of `/v1/chat/completions`, like [`completion`].
///
/// # Errors
/// The first field that is invalid.
pub fn conversation(models: &[Model], body: &[u8], number: u64) -> Result<TextRequest, ApiError> {
    let body = Body::read(Form::Chat, body)?;
    let (at, model) = named(models, &body)?;
    model.conversation(body, number).map(|request| request.of(at))
}

/// The model that a body names, or else the first.
fn named<'a>(models: &'a [Model], body: &Body) -> Result<(usize, &'a Model), ApiError> {
    let is_named = |(_, model): &(usize, &Model)| body.model.as_ref().is_none_or(|name| *name == model.name);
    let name = body.model.as_deref().unwrap_or_default();
    models.iter().enumerate().find(is_named).ok_or_else(|| ApiError::no_model(name, models))
}

impl Model {
    fn completion(&self, mut body: Body, number: u64) -> Result<TextRequest, ApiError> {
        let n = samples(&body)?;
        if let Some(best) = body.best_of.filter(|best| *best != n as u64) {
            return Err(ApiError::field("best_of", format!("wanted n = {n} or nothing, found {best}")));
        }
        let scores = within("logprobs", body.logprobs, 0, MOST_LOGPROBS)?.map(|k| k as usize);
        let echo = body.echo == Some(true);
        let prompts = body.prompt.take().map_or_else(|| vec![PromptBody::Text(String::new())], |all| all.0);
        let prompts = prompts.into_iter().map(|one| self.prompt(one)).collect::<Result<Vec<_>, _>>()?;
        let texts = echo.then(|| prompts.iter().map(|p| p.text(&self.tokenizer)).collect());
        let max_tokens = body.max_tokens.unwrap_or(MAX_TOKENS);
        let settings = Settings {
            generate: self.generate(&mut body, max_tokens, number)?,
            bias: self.bias(&body)?,
            scores,
            score_prompt: echo && scores.is_some(),
        };
        let sequences = self.sequences("prompt", prompts, n, &settings)?;
        let (stream, usage) = (body.stream == Some(true), body.include_usage);
        Ok(TextRequest { model: 0, sequences, echo: texts, n, stream, usage, dropped: 0 })
    }

    fn conversation(&self, mut body: Body, number: u64) -> Result<TextRequest, ApiError> {
        let n = samples(&body)?;
        let max_tokens = body.max_completion_tokens.or(body.max_tokens).unwrap_or(self.context as u64);
        let top = within("top_logprobs", body.top_logprobs, 0, MOST_LOGPROBS)?;
        let scores = match (body.with_logprobs == Some(true), top) {
            (true, top) => Some(top.unwrap_or(0) as usize),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::field("top_logprobs", "wanted logprobs = true beside it"));
            }
        };
        let may_drop = match body.truncation.as_deref() {
            None | Some("auto") => true,
            Some("disabled") => false,
            Some(_) => return Err(ApiError::field("truncation", "wanted \"auto\" or \"disabled\"")),
        };
        let messages = body.messages.take().filter(|messages| !messages.is_empty()).ok_or_else(|| {
            ApiError::field("messages", "wanted at least one message {\"role\", \"content\"}, found none")
        })?;
        let room = Room { context: self.context, max_tokens, may_drop };
        let FittedPrompt { ids, stops, dropped } = fit(&self.chat, &self.tokenizer, &messages, &room)?;
        body.stop.extend(stops);
        let generate = self.generate(&mut body, max_tokens, number)?;
        let settings = Settings { generate, bias: self.bias(&body)?, scores, score_prompt: false };
        let sequences =
            self.sequences("messages", vec![Prompt { ids, prefix: 0, text: None }], n, &settings)?;
        let (stream, usage) = (body.stream == Some(true), body.include_usage);
        Ok(TextRequest { model: 0, sequences, echo: None, n, stream, usage, dropped })
    }

    fn prompt(&self, prompt: PromptBody) -> Result<Prompt, ApiError> {
        match prompt {
            PromptBody::Text(text) => {
                let ids = prompt_tokens(&self.tokenizer, &text)
                    .map_err(|e| ApiError::field("prompt", e.to_string()))?;
                // A document begins behind the end of the one before it; an empty prompt has a beginning all the same.
                let prefix = match text.is_empty() {
                    true => ids.len(),
                    false => usize::from(self.tokenizer.end_of_text().is_some()),
                };
                Ok(Prompt { ids, prefix, text: Some(text) })
            }
            PromptBody::Ids(ids) if ids.is_empty() => Err(ApiError::field(
                "prompt",
                "a list of token ids is empty; begin with the end-of-text token",
            )),
            PromptBody::Ids(ids) => {
                self.known("prompt", &ids)?;
                Ok(Prompt { ids, prefix: 0, text: None })
            }
        }
    }

    /// Checks that the tokenizer has all tokens of a field.
    fn known(&self, field: &str, ids: &[u32]) -> Result<(), ApiError> {
        let known = self.tokenizer.vocab_size();
        match ids.iter().find(|id| **id as usize >= known) {
            Some(id) => Err(ApiError::field(field, format!("wanted token ids below {known}, found {id}"))),
            None => Ok(()),
        }
    }

    /// `logit_bias`: token ids to numbers from -100 to 100.
    fn bias(&self, body: &Body) -> Result<Arc<[(u32, f32)]>, ApiError> {
        let known = self.tokenizer.vocab_size();
        let entry = |&(id, bias): &(u32, f64)| {
            let wanted = format!("token ids below {known} with numbers from -100 to 100");
            match (id as usize) < known && (-100.0..=100.0).contains(&bias) {
                true => Ok((id, bias as f32)),
                false => Err(ApiError::field("logit_bias", format!("wanted {wanted}, found {id}: {bias}"))),
            }
        };
        body.logit_bias.iter().map(entry).collect()
    }

    /// Settings of the choice of tokens; OpenAI's defaults.
    fn generate(&self, body: &mut Body, max_tokens: u64, number: u64) -> Result<GenerateConfig, ApiError> {
        self.known("stop_token_ids", &body.stop_token_ids)?;
        let top_k = match body.top_k {
            None | Some(-1) => 0,
            Some(k) => {
                let wanted =
                    || ApiError::field("top_k", format!("wanted -1 or a whole number from 0, found {k}"));
                u64::try_from(k).map_err(|_| wanted())?
            }
        };
        let config = GenerateConfig {
            max_tokens,
            context_limit: ContextLimit::Stop,
            min_tokens: body.min_tokens.unwrap_or(0),
            stop: std::mem::take(&mut body.stop).into_iter().filter(|stop| !stop.is_empty()).collect(),
            stop_token_ids: std::mem::take(&mut body.stop_token_ids),
            ignore_eos: body.ignore_eos == Some(true),
            sampling: SamplingConfig {
                temperature: body.temperature.unwrap_or(1.0),
                top_k,
                top_p: body.top_p.unwrap_or(1.0),
                min_p: body.min_p.unwrap_or(0.0),
                repetition_penalty: body.repetition_penalty.unwrap_or(1.0),
                frequency_penalty: body.frequency_penalty.unwrap_or(0.0),
                presence_penalty: body.presence_penalty.unwrap_or(0.0),
                seed: within("seed", body.seed, 0, i64::MAX as u64)?.unwrap_or(number),
            },
        };
        config.check().map_err(|e| {
            let name = e.split([' ', ':']).next().unwrap_or_default();
            ApiError {
                param: Some(name.trim_start_matches("sampling.").into()),
                ..ApiError::request(e.clone())
            }
        })?;
        Ok(config)
    }

    fn sequences(
        &self,
        param: &str,
        prompts: Vec<Prompt>,
        n: usize,
        settings: &Settings,
    ) -> Result<Vec<SequenceRequest>, ApiError> {
        if prompts.len() * n > MOST_TEXTS {
            let found = format!("{} prompts, {n} texts of each", prompts.len());
            return Err(ApiError::field(param, format!("wanted at most {MOST_TEXTS} texts, found {found}")));
        }
        if let Some(long) = prompts.iter().find(|p| p.ids.len() > self.context) {
            return Err(ApiError::too_long(param, long.ids.len(), self.context));
        }
        let generate = Arc::new(settings.generate.clone());
        let sequences = prompts.into_iter().flat_map(|prompt| {
            let (ids, generate) = (Arc::<[u32]>::from(prompt.ids), Arc::clone(&generate));
            (0..n).map(move |sample| SequenceRequest {
                model: 0,
                prompt: Arc::clone(&ids),
                prefix: prompt.prefix,
                generate: Arc::clone(&generate),
                sample: sample as u64,
                score_prompt: settings.score_prompt,
                scores: settings.scores,
                bias: Arc::clone(&settings.bias),
            })
        });
        Ok(sequences.collect())
    }
}

/// Settings of all sequences of a request.
struct Settings {
    generate: GenerateConfig,
    bias: Arc<[(u32, f32)]>,
    scores: Option<usize>,
    score_prompt: bool,
}

/// Tokens to continue.
struct Prompt {
    ids: Vec<u32>,
    prefix: usize,
    /// As the client gave it.
    text: Option<String>,
}

impl Prompt {
    fn text(&self, tokenizer: &Tokenizer) -> String {
        let bytes = || self.ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap_or_default()).copied();
        let decoded = || String::from_utf8_lossy(&bytes().collect::<Vec<u8>>()).into_owned();
        self.text.clone().unwrap_or_else(decoded)
    }
}

/// A whole number within its bounds.
fn within(field: &str, value: Option<u64>, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
    match value {
        Some(found) if !(least..=most).contains(&found) => Err(ApiError::field(
            field,
            format!("wanted a whole number from {least} to {most}, found {found}"),
        )),
        value => Ok(value),
    }
}

/// `n`: texts of each prompt.
fn samples(body: &Body) -> Result<usize, ApiError> {
    Ok(within("n", body.n, 1, MOST_SAMPLES)?.unwrap_or(1) as usize)
}
