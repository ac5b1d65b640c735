//! Requests of OpenAI's interface, read and checked.

use crate::chat::ChatTemplate;
use crate::error::ApiError;
use crate::fields::{Fields, shown};
use crate::scheduler::SequenceRequest;
use bessemer_eval::generate::{ContextLimit, GenerateConfig, prompt_tokens};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Most sequences of one request: prompts times `n`.
const MOST_SEQUENCES: usize = 1024;
/// Most candidates beside each token in `logprobs`.
const MOST_LOGPROBS: u64 = 20;
/// Most entries of `logit_bias`.
const MOST_BIASES: usize = 1024;
/// Tokens of a completion, unless the request says otherwise; OpenAI's number.
const MAX_TOKENS: u64 = 16;

/// Properties of the model that requests are checked against.
#[derive(Debug)]
pub struct Model {
    /// Name in answers.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: std::sync::Arc<Tokenizer>,
    /// Positions of a sequence.
    pub context: usize,
    /// How a conversation becomes a prompt.
    pub chat: ChatTemplate,
    /// Seconds since 1970-01-01 UTC at which the model was ready.
    pub created: u64,
}

/// A request for texts.
#[derive(Debug)]
pub struct TextRequest {
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
}

/// The object in a body.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(ApiError::request(format!("wanted a JSON object, found {}", shown(&other)))),
        Err(e) => Err(ApiError::request(format!("the body is no JSON: {e}"))),
    }
}

impl Model {
    /// Reads a request of `/v1/completions`; `number` is its number, the seed if it has none.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn completion(&self, body: &[u8], number: u64) -> Result<TextRequest, ApiError> {
        let object = object(body)?;
        let fields = Fields(&object);
        self.check_name(&fields)?;
        fields.refuse(&[
            ("suffix", json!("")),
            ("presence_penalty", json!(0)),
            ("frequency_penalty", json!(0)),
        ])?;
        let (n, stream) = (fields.integer("n", 1, 128)?.unwrap_or(1) as usize, fields.flag("stream")?);
        if let Some(best) = fields.integer("best_of", 1, 128)?.filter(|best| *best != n as u64) {
            return Err(ApiError::field("best_of", format!("wanted n = {n} or nothing, found {best}")));
        }
        let max_tokens = fields.integer("max_tokens", 0, 1 << 32)?.unwrap_or(MAX_TOKENS);
        let scores = fields.integer("logprobs", 0, MOST_LOGPROBS)?.map(|k| k as usize);
        let echo = fields.flag("echo")?;
        let prompts = self.prompts(&fields)?;
        let texts = echo.then(|| prompts.iter().map(|p| p.text(&self.tokenizer)).collect());
        let settings = Settings {
            generate: generate(&fields, max_tokens, number)?,
            bias: self.bias(&fields)?,
            scores,
            score_prompt: echo && scores.is_some(),
        };
        let sequences = self.sequences("prompt", &prompts, n, &settings)?;
        Ok(TextRequest { sequences, echo: texts, n, stream, usage: include_usage(&fields)? })
    }

    /// Reads a request of `/v1/chat/completions`.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn conversation(&self, body: &[u8], number: u64) -> Result<TextRequest, ApiError> {
        let object = object(body)?;
        let fields = Fields(&object);
        self.check_name(&fields)?;
        fields.refuse(&[
            ("tools", json!([])),
            ("functions", json!([])),
            ("response_format", json!({"type": "text"})),
            ("audio", Value::Null),
            ("presence_penalty", json!(0)),
            ("frequency_penalty", json!(0)),
        ])?;
        let (n, stream) = (fields.integer("n", 1, 128)?.unwrap_or(1) as usize, fields.flag("stream")?);
        let most = fields.integer("max_completion_tokens", 0, 1 << 32)?;
        let max_tokens = most.or(fields.integer("max_tokens", 0, 1 << 32)?).unwrap_or(self.context as u64);
        let top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)?;
        let scores = match (fields.flag("logprobs")?, top) {
            (true, top) => Some(top.unwrap_or(0) as usize),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::field("top_logprobs", "wanted logprobs = true beside it"));
            }
        };
        let (prompt, stops) = self.chat.prompt(&self.tokenizer, &fields)?;
        let mut generate = generate(&fields, max_tokens, number)?;
        generate.stop.extend(stops);
        let settings = Settings { generate, bias: self.bias(&fields)?, scores, score_prompt: false };
        let prompts = [Prompt { ids: prompt, prefix: 0, text: None }];
        let sequences = self.sequences("messages", &prompts, n, &settings)?;
        Ok(TextRequest { sequences, echo: None, n, stream, usage: include_usage(&fields)? })
    }

    fn check_name(&self, fields: &Fields<'_>) -> Result<(), ApiError> {
        match fields.text("model")? {
            Some(name) if name != self.name => Err(ApiError {
                code: Some("model_not_found"),
                param: Some("model".into()),
                ..ApiError::not_found(format!("there is no model {name:?}; this server has {:?}", self.name))
            }),
            _ => Ok(()),
        }
    }

    /// A string, a list of strings, a list of token ids or a list of such lists.
    fn prompts(&self, fields: &Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
        let wanted = "a string, a list of strings, a list of token ids or a list of lists of token ids";
        let wrong =
            |found: &Value| ApiError::field("prompt", format!("wanted {wanted}, found {}", shown(found)));
        let text = |text: &str| -> Result<Prompt, ApiError> {
            let encoded = self.tokenizer.encode(text.as_bytes());
            let ids = encoded.map_err(|e| ApiError::field("prompt", e.to_string()))?;
            // A document begins behind the end of the one before it; an empty prompt has a beginning all the same.
            let all =
                prompt_tokens(&self.tokenizer, text).map_err(|e| ApiError::field("prompt", e.to_string()))?;
            Ok(Prompt { prefix: all.len() - ids.len(), ids: all, text: Some(text.into()) })
        };
        let ids = |list: &[Value]| -> Result<Prompt, ApiError> {
            let known = self.tokenizer.vocab_size();
            let id = |v: &Value| {
                let id = v.as_u64().filter(|id| (*id as usize) < known).map(|id| id as u32);
                let wanted = format!("token ids below {known}");
                id.ok_or_else(|| ApiError::field("prompt", format!("wanted {wanted}, found {}", shown(v))))
            };
            let ids = list.iter().map(id).collect::<Result<Vec<u32>, ApiError>>()?;
            match ids.is_empty() {
                true => Err(ApiError::field(
                    "prompt",
                    "a list of token ids is empty; begin with the end-of-text token",
                )),
                false => Ok(Prompt { ids, prefix: 0, text: None }),
            }
        };
        match fields.get("prompt") {
            None => Ok(vec![text("")?]),
            Some(Value::String(s)) => Ok(vec![text(s)?]),
            Some(Value::Array(list)) if list.iter().all(Value::is_number) && !list.is_empty() => {
                Ok(vec![ids(list)?])
            }
            Some(found @ Value::Array(list)) if !list.is_empty() => list
                .iter()
                .map(|item| match item {
                    Value::String(s) => text(s),
                    Value::Array(list) => ids(list),
                    _ => Err(wrong(found)),
                })
                .collect(),
            Some(found) => Err(wrong(found)),
        }
    }

    /// `logit_bias`: token ids, as strings, to numbers from -100 to 100.
    fn bias(&self, fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
        let Some(object) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
        let known = self.tokenizer.vocab_size();
        let wrong = |found: String| {
            let wanted =
                format!("at most {MOST_BIASES} token ids below {known}, with numbers from -100 to 100");
            ApiError::field("logit_bias", format!("wanted {wanted}, found {found}"))
        };
        if object.0.len() > MOST_BIASES {
            return Err(wrong(format!("{} of them", object.0.len())));
        }
        let entry = |(id, bias): (&String, &Value)| {
            let number = bias.as_f64().filter(|b| (-100.0..=100.0).contains(b));
            match (id.parse::<u32>(), number) {
                (Ok(id), Some(bias)) if (id as usize) < known => Ok((id, bias as f32)),
                _ => Err(wrong(format!("{id:?}: {}", shown(bias)))),
            }
        };
        object.0.iter().map(entry).collect()
    }

    fn sequences(
        &self,
        param: &str,
        prompts: &[Prompt],
        n: usize,
        settings: &Settings,
    ) -> Result<Vec<SequenceRequest>, ApiError> {
        if prompts.len() * n > MOST_SEQUENCES {
            let found = format!("{} prompts, {n} texts of each", prompts.len());
            return Err(ApiError::field(
                param,
                format!("wanted at most {MOST_SEQUENCES} texts, found {found}"),
            ));
        }
        if let Some(long) = prompts.iter().find(|p| p.ids.len() > self.context) {
            return Err(ApiError::too_long(param, long.ids.len(), self.context));
        }
        let sequence = |prompt: &Prompt, sample: usize| SequenceRequest {
            prompt: prompt.ids.clone(),
            prefix: prompt.prefix,
            generate: settings.generate.clone(),
            sample: sample as u64,
            score_prompt: settings.score_prompt,
            scores: settings.scores,
            bias: settings.bias.clone(),
        };
        Ok(prompts.iter().flat_map(|p| (0..n).map(move |sample| sequence(p, sample))).collect())
    }
}

/// Settings of all sequences of a request.
struct Settings {
    generate: GenerateConfig,
    bias: Vec<(u32, f32)>,
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

fn include_usage(fields: &Fields<'_>) -> Result<bool, ApiError> {
    fields.object("stream_options")?.map_or(Ok(false), |options| options.flag("include_usage"))
}

/// Settings of the choice of tokens; OpenAI's defaults.
fn generate(fields: &Fields<'_>, max_tokens: u64, number: u64) -> Result<GenerateConfig, ApiError> {
    let config = GenerateConfig {
        max_tokens,
        context_limit: ContextLimit::Stop,
        stop: fields.texts("stop")?.into_iter().filter(|stop| !stop.is_empty()).collect(),
        sampling: SamplingConfig {
            temperature: fields.number("temperature", 1.0)?,
            top_k: fields.integer("top_k", 0, u64::MAX)?.unwrap_or(0),
            top_p: fields.number("top_p", 1.0)?,
            repetition_penalty: fields.number("repetition_penalty", 1.0)?,
            seed: fields.integer("seed", 0, i64::MAX as u64)?.unwrap_or(number),
        },
    };
    config.check().map_err(|e| {
        let name = e.split([' ', ':']).next().unwrap_or_default();
        ApiError { param: Some(name.trim_start_matches("sampling.").into()), ..ApiError::request(e.clone()) }
    })?;
    Ok(config)
}
