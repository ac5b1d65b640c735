//! Answers of OpenAI's interface: whole, and in pieces (server-sent events).

use crate::request::Model;
use crate::score::TokenScore;
use bessemer_eval::generate::Finish;
use bessemer_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// One of the two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// Properties that all pieces of an answer share.
pub(crate) struct Answer<'a> {
    pub(crate) model: &'a Model,
    pub(crate) form: Form,
    pub(crate) number: u64,
    /// Whether scores are part of the answer.
    pub(crate) scores: bool,
    /// Oldest messages of the conversation that were left out.
    pub(crate) dropped: usize,
}

/// News of one choice: in a whole answer all of it, in a piece what is new.
#[derive(Debug, Default, Clone)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) scores: Vec<TokenScore>,
    pub(crate) finish: Option<Finish>,
    /// Characters of the scored tokens of earlier pieces.
    pub(crate) before: usize,
}

/// Tokens of an answer.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Those of them that were not computed.
    pub(crate) cached: usize,
    pub(crate) chosen: usize,
}

impl Usage {
    pub(crate) fn json(self) -> Value {
        let Usage { prompt, cached, chosen } = self;
        json!({
            "prompt_tokens": prompt, "completion_tokens": chosen, "total_tokens": prompt + chosen,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText | Finish::StopString | Finish::StopToken | Finish::Stopped => "stop",
        Finish::MaxTokens | Finish::Context => "length",
    }
}

/// A token as text. One that is no whole text is written as its bytes, as OpenAI does, so that two of them differ.
fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, b| format!("{text}\\x{b:02x}")),
    }
}

/// Characters that begin in a token.
fn characters(tokenizer: &Tokenizer, id: u32) -> usize {
    tokenizer.token_bytes(id).unwrap_or_default().iter().filter(|b| **b & 0xc0 != 0x80).count()
}

impl Answer<'_> {
    /// Removes the text and scores that a piece has sent.
    pub(crate) fn clear_sent(&self, choice: &mut Choice) {
        let scored = choice.scores.drain(..).map(|score| characters(&self.model.tokenizer, score.id));
        choice.before += scored.sum::<usize>();
        choice.text.clear();
    }

    fn envelope(&self, piece: bool) -> Map<String, Value> {
        let (prefix, object) = match (self.form, piece) {
            (Form::Completion, _) => ("cmpl", "text_completion"),
            (Form::Chat, false) => ("chatcmpl", "chat.completion"),
            (Form::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
        };
        let (created, model) = (self.model.created, &self.model.name);
        let id = format!("{prefix}-{created}-{}", self.number);
        let fields = [
            ("id", json!(id)),
            ("object", json!(object)),
            ("created", json!(created)),
            ("model", json!(model)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Adds the note on messages that were left out.
    fn add_truncation(&self, answer: &mut Map<String, Value>) {
        if self.dropped > 0 {
            let (dropped, context) = (self.dropped, self.model.context);
            let left_out = match dropped {
                1 => "its oldest message was left out".to_owned(),
                dropped => format!("its {dropped} oldest messages were left out"),
            };
            let message = format!(
                "the conversation is longer than the model's context of {context} tokens: {left_out}"
            );
            answer.insert("truncation".into(), json!({"dropped_messages": dropped, "message": message}));
        }
    }

    /// The whole answer.
    pub(crate) fn whole(&self, choices: &[Choice], usage: Usage) -> String {
        let mut answer = self.envelope(false);
        self.add_truncation(&mut answer);
        let choice = |c: &Choice| match self.form {
            Form::Completion => self.choice(c, "text", json!(c.text)),
            Form::Chat => self.choice(c, "message", json!({"role": "assistant", "content": c.text})),
        };
        answer.insert("choices".into(), choices.iter().map(choice).collect());
        answer.insert("usage".into(), usage.json());
        Value::Object(answer).to_string()
    }

    /// A piece, as an event.
    pub(crate) fn piece(&self, choice: &Choice) -> String {
        let mut answer = self.envelope(true);
        let choice = match self.form {
            Form::Completion => self.choice(choice, "text", json!(choice.text)),
            Form::Chat => self.choice(choice, "delta", json!({"content": choice.text})),
        };
        answer.insert("choices".into(), json!([choice]));
        event(&Value::Object(answer))
    }

    /// The first piece of a choice of a conversation: who speaks.
    pub(crate) fn role(&self, index: usize) -> String {
        let mut answer = self.envelope(true);
        self.add_truncation(&mut answer);
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        answer.insert("choices".into(), json!([choice]));
        event(&Value::Object(answer))
    }

    /// The last piece, if it is asked for: how many tokens there were.
    pub(crate) fn usage_piece(&self, usage: Usage) -> String {
        let mut answer = self.envelope(true);
        answer.insert("choices".into(), json!([]));
        answer.insert("usage".into(), usage.json());
        event(&Value::Object(answer))
    }

    fn choice(&self, choice: &Choice, name: &str, content: Value) -> Value {
        let scores = match (self.scores, self.form) {
            (false, _) => Value::Null,
            (true, Form::Completion) => self.completion_scores(choice),
            (true, Form::Chat) => self.chat_scores(choice),
        };
        json!({
            "index": choice.index,
            name: content,
            "logprobs": scores,
            "finish_reason": choice.finish.map(reason),
        })
    }

    /// `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`: lists with an entry for each token.
    fn completion_scores(&self, choice: &Choice) -> Value {
        let tokenizer = &self.model.tokenizer;
        let mut at = choice.before;
        let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for score in &choice.scores {
            tokens.push(token_text(tokenizer, score.id));
            logprobs.push(json!(score.logprob));
            let top = score.top.iter().map(|(id, p)| (token_text(tokenizer, *id), json!(p)));
            let mut top: Map<String, Value> = top.collect();
            if let (Some(logprob), false) = (score.logprob, score.top.is_empty()) {
                // As OpenAI: the chosen token stands beside the most probable ones.
                top.entry(token_text(tokenizer, score.id)).or_insert(json!(logprob));
            }
            tops.push(if top.is_empty() { Value::Null } else { Value::Object(top) });
            offsets.push(at);
            at += characters(tokenizer, score.id);
        }
        json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }

    fn chat_scores(&self, choice: &Choice) -> Value {
        let tokenizer = &self.model.tokenizer;
        let one = |id: u32, logprob: Option<f64>| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            json!({"token": token_text(tokenizer, id), "logprob": logprob, "bytes": bytes})
        };
        let entry = |score: &TokenScore| {
            let mut entry = one(score.id, score.logprob);
            entry["top_logprobs"] = score.top.iter().map(|(id, p)| one(*id, Some(*p))).collect();
            entry
        };
        json!({"content": choice.scores.iter().map(entry).collect::<Vec<Value>>()})
    }
}

/// A server-sent event.
pub(crate) fn event(value: &Value) -> String {
    // JSON has no line break of its own.
    format!("data: {value}\n\n")
}

/// The event after the last.
pub(crate) const DONE: &str = "data: [DONE]\n\n";
