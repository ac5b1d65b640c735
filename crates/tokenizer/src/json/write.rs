//! Writing tokenizer.json, in the field order and layout of Hugging Face.

use super::ANY_CHARACTER;
use crate::byte_alphabet::spell;
use crate::error::Result;
use crate::files::{write_whole, write_whole_in};
use crate::pretokenize::Pretokenizer;
use crate::tokenizer::{Model, Tokenizer};
use bessemer_durable::ConfinedDir;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::path::Path;

#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Value>,
    normalizer: (),
    pre_tokenizer: Value,
    post_processor: &'a Value,
    decoder: Value,
    model: ModelOut<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ModelOut<'a> {
    Bpe {
        r#type: &'static str,
        dropout: (),
        unk_token: (),
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        vocab: Vocabulary<'a>,
        merges: Merges<'a>,
    },
    WordLevel {
        r#type: &'static str,
        vocab: Vocabulary<'a>,
        unk_token: &'static str,
    },
}

/// `{"token": id, ...}` in id order.
struct Vocabulary<'a>(&'a Tokenizer);

impl Vocabulary<'_> {
    fn spelled(&self, id: u32) -> Option<String> {
        let bytes = self.0.token_bytes(id)?;
        let added = self.0.special_tokens();
        match (added.binary_search_by_key(&id, |token| token.id), self.0.model()) {
            (Ok(at), _) => Some(added[at].content.clone()).filter(|_| added[at].in_vocabulary),
            (Err(_), Model::ByteBpe { .. }) => Some(spell(bytes)),
            (Err(_), Model::Char(_)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        }
    }
}

impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for id in 0..self.0.vocab_size() as u32 {
            if let Some(token) = self.spelled(id) {
                map.serialize_entry(&token, &id)?;
            }
        }
        map.end()
    }
}

/// `[["a", "b"], ...]` in rank order.
struct Merges<'a>(&'a Tokenizer, &'a [((u32, u32), u32)]);

impl Serialize for Merges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.1.len()))?;
        let spelled = |id| spell(self.0.token_bytes(id).unwrap_or_default());
        for &((left, right), _) in self.1 {
            seq.serialize_element(&[spelled(left), spelled(right)])?;
        }
        seq.end()
    }
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

impl Tokenizer {
    /// The tokenizer as a tokenizer.json. The same tokenizer always gives the same text.
    pub fn to_json(&self) -> String {
        self.to_json_with(self.post_processor())
    }

    /// The tokenizer as a tokenizer.json with this post-processor.
    pub(super) fn to_json_with(&self, post_processor: &Value) -> String {
        let (pre_tokenizer, decoder, model) = match self.model() {
            Model::ByteBpe { pretokenizer, bpe } => {
                let cut = match pretokenizer {
                    Pretokenizer::Gpt2 => byte_level(false, true),
                    Pretokenizer::Llama3 | Pretokenizer::Qwen2 => json!({
                        "type": "Sequence",
                        "pretokenizers": [split(pretokenizer.pattern()), byte_level(false, false)],
                    }),
                };
                let model = ModelOut::Bpe {
                    r#type: "BPE",
                    dropout: (),
                    unk_token: (),
                    continuing_subword_prefix: (),
                    end_of_word_suffix: (),
                    fuse_unk: false,
                    byte_fallback: false,
                    ignore_merges: bpe.ignores_merges(),
                    vocab: Vocabulary(self),
                    merges: Merges(self, bpe.merges()),
                };
                (cut, byte_level(true, true), model)
            }
            Model::Char(_) => {
                let vocab = Vocabulary(self);
                let model = ModelOut::WordLevel { r#type: "WordLevel", vocab, unk_token: UNKNOWN };
                (split(ANY_CHARACTER), json!({"type": "Fuse"}), model)
            }
        };
        let added_tokens = self.special_tokens().iter().map(|token| {
            json!({
                "id": token.id,
                "content": token.content,
                "single_word": token.single_word,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": token.normalized,
                "special": token.special,
            })
        });
        let file = File {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens: added_tokens.collect(),
            normalizer: (),
            pre_tokenizer,
            post_processor,
            decoder,
            model,
        };
        serde_json::to_string_pretty(&file).expect("strings, numbers and maps with string keys are JSON")
    }

    /// Writes tokenizer.json to `path`: completely or not at all, also when the power fails.
    ///
    /// # Errors
    /// [`crate::TokenizerError::Io`].
    pub fn save(&self, path: &Path) -> Result<()> {
        write_whole(path, self.to_json().as_bytes())
    }

    /// Writes tokenizer.json as the file `name` of `dir`, as [`Tokenizer::save`] does.
    ///
    /// # Errors
    /// [`crate::TokenizerError::Io`].
    pub fn save_in(&self, dir: &ConfinedDir, name: &str) -> Result<()> {
        write_whole_in(dir, name, self.to_json().as_bytes())
    }
}

/// `WordLevel` must name an unknown token. This one is in no vocabulary (it is longer than a character), and so
/// Hugging Face reports an unknown character as an error.
const UNKNOWN: &str = "<unk>";
