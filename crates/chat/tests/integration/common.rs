//! Tokenizers with the special tokens of templates, and chats in short.

use bessemer_chat::{Answers, Chat, ChatEncoder, ChatTemplate, Message, Role, SHIPPED, TokenNames};
use bessemer_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

const QWEN2: &str = include_str!("../../../tokenizer/tests/data/hf_qwen2.json");
const GPT2: &str = include_str!("../../../tokenizer/tests/data/hf_gpt2.json");
const LLAMA3: &str = include_str!("../../../tokenizer/tests/data/hf_llama3.json");

/// The tokenizer.json of a template: the vocabulary of a family, and the special tokens of the template after it.
pub(crate) fn tokenizer_json(template: &str) -> Value {
    let base = match template {
        "llama-3" => LLAMA3,
        "gemma" | "phi" | "llama-2" => GPT2,
        _ => QWEN2,
    };
    let mut file: Value = serde_json::from_str(base).unwrap();
    let mut names: Vec<String> = match SHIPPED.iter().find(|one| one.name == template) {
        Some(known) => known.tokens.iter().map(|name| (*name).to_owned()).collect(),
        None => vec!["<|im_start|>".into(), "<|im_end|>".into()],
    };
    if template == "llama-3" {
        names.extend((0..8).map(|i| format!("<|reserved_special_token_{i}|>")));
    }
    let first = file["model"]["vocab"].as_object().unwrap().len();
    for (i, name) in names.iter().enumerate() {
        file["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": first + i, "content": name, "single_word": false, "lstrip": false,
            "rstrip": template == "phi", "normalized": false, "special": true,
        }));
    }
    if template == "qwen" {
        for (i, name) in ["<tool_call>", "</tool_call>"].iter().enumerate() {
            file["added_tokens"].as_array_mut().unwrap().push(json!({
                "id": first + names.len() + i, "content": name, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false,
            }));
        }
    }
    file
}

pub(crate) fn tokenizer(template: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_json(&tokenizer_json(template).to_string()).unwrap())
}

pub(crate) fn shipped(name: &str) -> ChatEncoder {
    ChatEncoder::new(ChatTemplate::shipped(name).unwrap(), tokenizer(name)).unwrap()
}

/// An encoder of a template with ChatML's special tokens.
pub(crate) fn of_source(source: &str) -> ChatEncoder {
    let names = TokenNames { bos: Some("<|endoftext|>".into()), ..TokenNames::default() };
    ChatEncoder::new(ChatTemplate::new("test", source, names).unwrap(), tokenizer("chatml")).unwrap()
}

/// Messages by the first letter of their roles.
pub(crate) fn chat(turns: &[(&str, &str)]) -> Chat {
    let role = |letter: &str| match letter {
        "s" => Role::System,
        "u" => Role::User,
        "a" => Role::Assistant,
        _ => Role::Tool,
    };
    let messages = turns.iter().map(|(letter, text)| Message::new(role(letter), *text)).collect();
    Chat { messages, tools: Vec::new() }
}

/// The text of a chat with the scored tokens between « and ».
pub(crate) fn marked(encoder: &ChatEncoder, chat: &Chat, answers: Answers) -> String {
    let tokens = encoder.encode(chat, answers).unwrap_or_else(|e| panic!("{e}"));
    let mut text = Vec::new();
    for at in 0..=tokens.ids.len() {
        if tokens.scored.iter().any(|range| range.end == at) {
            text.extend("»".bytes());
        }
        if tokens.scored.iter().any(|range| range.start == at) {
            text.extend("«".bytes());
        }
        if let Some(id) = tokens.ids.get(at) {
            text.extend(encoder.tokenizer().decode(&[*id]).unwrap());
        }
    }
    String::from_utf8(text).unwrap()
}
