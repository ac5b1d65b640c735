//! How a conversation becomes a prompt: by the model's template ([`bessemer_chat`]), or a plain one.
//!
//! The plain one, for models that have none (as one that was only pre-trained):
//!
//! ```text
//! System: <text>
//!
//! User: <text>
//!
//! Assistant:
//! ```
//!
//! after the end-of-text token, and the answer ends before `\nUser:`.

use crate::body::Message;
use crate::error::ApiError;
use bessemer_chat::ChatEncoder;
use bessemer_eval::generate::prompt_tokens;
use bessemer_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

/// Where the answer of a model without a template ends.
const PLAIN_STOP: &str = "\nUser:";

/// A template of conversations.
#[derive(Debug, Default)]
pub struct ChatTemplate {
    encoder: Option<ChatEncoder>,
}

impl ChatTemplate {
    /// The plain template.
    pub fn plain() -> ChatTemplate {
        ChatTemplate::default()
    }

    /// The template of a model with its tokenizer.
    ///
    /// # Errors
    /// A sentence: special tokens that the tokenizer lacks.
    pub fn new(
        template: bessemer_chat::ChatTemplate,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<ChatTemplate, String> {
        let encoder = ChatEncoder::new(template, Arc::clone(tokenizer)).map_err(|e| e.to_string())?;
        Ok(ChatTemplate { encoder: Some(encoder) })
    }

    /// The template of a `tokenizer_config.json`, or the plain one if it has none.
    ///
    /// # Errors
    /// A sentence: no JSON object, or a template that cannot be read.
    pub fn of_tokenizer_config(text: &str, tokenizer: &Arc<Tokenizer>) -> Result<ChatTemplate, String> {
        let template = bessemer_chat::ChatTemplate::of_model("of the model", Some(text), None);
        match template.map_err(|e| e.to_string())? {
            Some(template) => ChatTemplate::new(template, tokenizer),
            None => Ok(ChatTemplate::plain()),
        }
    }

    /// Tokens of the prompt for the `messages` of a request, and strings that end the answer.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[&Message],
    ) -> Result<(Vec<u32>, Vec<String>), ApiError> {
        let wrong = |e: String| ApiError::field("messages", e);
        let Some(encoder) = &self.encoder else {
            let turn = |m: &&Message| format!("{}: {}\n\n", titled(&m.role), m.content);
            let text: String = messages.iter().map(turn).chain(["Assistant:".into()]).collect();
            let ids = prompt_tokens(tokenizer, &text).map_err(|e| wrong(e.to_string()))?;
            return Ok((ids, vec![PLAIN_STOP.into()]));
        };
        let list: Vec<Value> =
            messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let ids = encoder.prompt(&list, &[]).map_err(|e| wrong(e.to_string()))?;
        match ids.is_empty() {
            true => {
                Err(wrong("the chat template of the model gives an empty prompt for the messages".into()))
            }
            false => Ok((ids, Vec::new())),
        }
    }
}

fn titled(role: &str) -> String {
    let mut letters = role.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
