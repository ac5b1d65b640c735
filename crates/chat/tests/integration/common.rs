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

/// Numbers of a linear congruential generator.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    /// A text of words, white space, roles, code of templates and, if wanted, special tokens.
    fn text(&mut self, specials: &[&str]) -> String {
        const PIECES: [&str; 40] = [
            " ",
            " ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "a",
            "the",
            " answer",
            " is",
            "42",
            " 1234567",
            "é",
            "日本",
            "\u{1f600}",
            "e\u{301}",
            ".",
            ",",
            "!?",
            "'s",
            "don't",
            "<",
            ">",
            "|",
            "[",
            "]",
            "user",
            "assistant\n",
            "system",
            "{{ messages }}",
            "{% generation %}",
            "{% endgeneration %}",
            "{# x #}",
            "<think>",
            "</think>",
            "<tool_call>",
            "\\u003c",
            "\u{e000}",
            "\u{f0000}",
        ];
        let mut text = String::new();
        for _ in 0..1 + self.below(12) {
            match specials.is_empty() || self.below(5) > 0 {
                true => text.push_str(PIECES[self.below(PIECES.len())]),
                false => {
                    let token = specials[self.below(specials.len())];
                    // Also in part.
                    let (begin, end) =
                        (self.below(4).saturating_sub(2), token.len() - self.below(4).saturating_sub(2));
                    text.push_str(&token[begin..end]);
                }
            }
        }
        if text.trim().is_empty() {
            text.push('x');
        }
        text
    }

    /// A chat as a row.
    pub(crate) fn chat(&mut self, specials: &[&str], with_tools: bool) -> Value {
        let mut messages = Vec::new();
        if self.below(2) == 0 {
            messages.push(json!({"role": "system", "content": self.text(specials)}));
        }
        let tools = with_tools && self.below(4) == 0;
        for _ in 0..1 + self.below(4) {
            messages.push(json!({"role": "user", "content": self.text(specials)}));
            if tools && self.below(2) == 0 {
                let call = json!({"type": "function", "function": {"name": "f", "arguments": {"x": self.text(specials), "n": self.below(9)}}});
                let calls = vec![call; 1 + self.below(2)];
                let content = if self.below(2) == 0 { String::new() } else { self.text(specials) };
                let results = calls.len();
                messages.push(json!({"role": "assistant", "content": content, "tool_calls": calls}));
                for _ in 0..results {
                    messages.push(json!({"role": "tool", "content": self.text(specials)}));
                }
            }
            messages.push(json!({"role": "assistant", "content": self.text(specials)}));
        }
        match tools {
            true => {
                let parameters = json!({"type": "object", "properties": {"x": {"type": "string", "description": self.text(specials)}}});
                json!({"messages": messages, "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]})
            }
            false => json!({ "messages": messages }),
        }
    }
}
