//! The small files that `transformers` expects beside tokenizer.json.

use crate::error::{Result, TokenizerError};
use crate::files::write_whole;
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::path::Path;

impl Tokenizer {
    /// The files that `transformers.AutoTokenizer` loads as a `PreTrainedTokenizerFast` with the same ids, by name:
    /// tokenizer.json, tokenizer_config.json, special_tokens_map.json. The end-of-text token is declared as both
    /// `bos_token` and `eos_token` (as GPT-2 does); declaring adds nothing to encoded text.
    pub fn hf_files(&self) -> Vec<(String, Vec<u8>)> {
        let end = self.end_of_text();
        let mut named = Map::new();
        let mut others = Vec::new();
        for token in self.special_tokens().iter().filter(|token| token.special) {
            if Some(token.id) == end {
                named.insert("bos_token".to_owned(), json!(token.content));
                named.insert("eos_token".to_owned(), json!(token.content));
            } else {
                others.push(json!(token.content));
            }
        }
        let mut config = Map::new();
        let begins = if self.post_processor().is_null() { self.text_beginning() } else { None };
        if begins.is_some() {
            config.insert("add_bos_token".to_owned(), json!(true));
        }
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        config.extend(named.clone());
        if !others.is_empty() {
            named.insert("additional_special_tokens".to_owned(), Value::Array(others.clone()));
            config.insert("additional_special_tokens".to_owned(), Value::Array(others));
        }
        let pretty = |value: Map<String, Value>| {
            serde_json::to_vec_pretty(&value).expect("strings and booleans are JSON")
        };
        vec![
            (
                "tokenizer.json".to_owned(),
                self.to_json_with(begins.as_ref().unwrap_or(self.post_processor())).into_bytes(),
            ),
            ("tokenizer_config.json".to_owned(), pretty(config)),
            ("special_tokens_map.json".to_owned(), pretty(named)),
        ]
    }

    /// The post-processor of exports, which puts the end-of-text token before a text, as every document of the training follows one. It is
    /// no part of the tokenizer: what is made here adds the token itself.
    pub(super) fn text_beginning(&self) -> Option<Value> {
        let end = self.end_of_text()?;
        let content = &self.special_tokens().iter().find(|token| token.id == end)?.content;
        let token = json!({"SpecialToken": {"id": content, "type_id": 0}});
        let text = |name: &str, type_id: u8| json!({"Sequence": {"id": name, "type_id": type_id}});
        let mut special = Map::new();
        special.insert(content.clone(), json!({"id": content, "ids": [end], "tokens": [content]}));
        Some(json!({
            "type": "TemplateProcessing",
            "single": [token, text("A", 0)],
            "pair": [token, text("A", 0), text("B", 1)],
            "special_tokens": special,
        }))
    }

    /// Writes [`Tokenizer::hf_files`] into `dir`, which is created if absent.
    ///
    /// # Errors
    /// [`TokenizerError::Io`].
    pub fn write_hf_side_files(&self, dir: &Path) -> Result<()> {
        bessemer_durable::create_dir_all(dir).map_err(|source| TokenizerError::Io {
            action: "create",
            path: dir.to_owned(),
            source,
        })?;
        self.hf_files().into_iter().try_for_each(|(name, bytes)| write_whole(&dir.join(name), &bytes))
    }
}
