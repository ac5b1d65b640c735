//! How a conversation becomes a prompt: by the template of the model's `tokenizer_config.json`, or a plain one.
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
use bessemer_eval::generate::prompt_tokens;
use bessemer_jinja::{BoundedTemplate, WhiteSpace, environment};
use bessemer_tokenizer::Tokenizer;
use minijinja::ErrorKind;
use minijinja::value::{Serde, Value as Jinja};
use serde_json::{Map, Value, json};

/// Where the answer of a model without a template ends.
const PLAIN_STOP: &str = "\nUser:";

/// A template of conversations.
#[derive(Debug, Default)]
pub struct ChatTemplate {
    template: Option<BoundedTemplate>,
    tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// The plain template.
    pub fn plain() -> ChatTemplate {
        ChatTemplate::default()
    }

    /// The template of a `tokenizer_config.json`, or the plain one if it has none. Of several templates the one that is named
    /// "default" is taken.
    ///
    /// # Errors
    /// A sentence: no JSON object, or a template that cannot be read.
    pub fn of_tokenizer_config(text: &str) -> Result<ChatTemplate, String> {
        let config: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let named = |list: &Vec<Value>| {
            let default = list.iter().find(|t| t["name"] == "default").or(list.first());
            default.and_then(|t| t["template"].as_str()).map(str::to_owned)
        };
        let template = match config.get("chat_template") {
            Some(Value::String(template)) => Some(template.clone()),
            Some(Value::Array(list)) => named(list),
            _ => None,
        };
        let Some(template) = template else { return Ok(ChatTemplate::plain()) };
        let mut environment = environment(WhiteSpace { trim_statements: true, keep_last_line_break: false });
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        let template = BoundedTemplate::new(environment, &template)
            .map_err(|e| format!("cannot parse chat_template: {e}"))?;
        let token = |name: &str| {
            let token = config.get(name)?;
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name.to_owned(), json!(text)))
        };
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"].into_iter().filter_map(token);
        Ok(ChatTemplate { template: Some(template), tokens: tokens.collect() })
    }

    /// Tokens of the prompt for the `messages` of a request, and strings that end the answer.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[&Message],
    ) -> Result<(Vec<u32>, Vec<String>), ApiError> {
        let wrong = |e: String| ApiError::field("messages", e);
        let Some(template) = &self.template else {
            let turn = |m: &&Message| format!("{}: {}\n\n", titled(&m.role), m.content);
            let text: String = messages.iter().map(turn).chain(["Assistant:".into()]).collect();
            let ids = prompt_tokens(tokenizer, &text).map_err(|e| wrong(e.to_string()))?;
            return Ok((ids, vec![PLAIN_STOP.into()]));
        };
        let list: Vec<Value> =
            messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let mut context = self.tokens.clone();
        context.insert("messages".into(), json!(list));
        context.insert("add_generation_prompt".into(), json!(true));
        let text = template
            .render(Jinja::from(Serde(&context)))
            .map_err(|e| wrong(format!("the chat template of the model rejects the messages: {e}")))?;
        let ids = tokenizer.encode_with_special(text.as_bytes()).map_err(|e| wrong(e.to_string()))?;
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
