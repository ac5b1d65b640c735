//! Values of a file's keys, and the keys of the tokenizer.

/// A value under a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    I32s(Vec<i32>),
}

/// Numbers of the types that values have.
mod value_type {
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

/// Appends a string.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Value {
    /// Appends the number of the type and the value.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let mut word = |n: u32| out.extend(n.to_le_bytes());
        match self {
            Value::U32(n) => {
                word(value_type::U32);
                word(*n);
            }
            Value::F32(x) => {
                word(value_type::F32);
                word(x.to_bits());
            }
            Value::Bool(yes) => {
                word(value_type::BOOL);
                out.push(u8::from(*yes));
            }
            Value::String(text) => {
                word(value_type::STRING);
                put_string(out, text);
            }
            Value::Strings(list) => {
                word(value_type::ARRAY);
                word(value_type::STRING);
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|text| put_string(out, text));
            }
            Value::I32s(list) => {
                word(value_type::ARRAY);
                word(value_type::I32);
                out.extend((list.len() as u64).to_le_bytes());
                out.extend(list.iter().flat_map(|n| n.to_le_bytes()));
            }
        }
    }
}

/// A byte-level BPE tokenizer as llama.cpp's model `gpt2` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTokenizer {
    /// llama.cpp's name of the pattern that cuts text (`tokenizer.ggml.pre`).
    pub pre: String,
    /// Spelling of each id.
    pub tokens: Vec<String>,
    /// Type of each id: 1 text, 3 control, 4 added, 5 none.
    pub types: Vec<i32>,
    /// Two spellings with a space between them, in the order of their ranks.
    pub merges: Vec<String>,
    /// Token at the end of a text; prompts begin with it too.
    pub end_of_text: u32,
}

impl GgufTokenizer {
    /// Its keys.
    pub(super) fn keys(self) -> Vec<(String, Value)> {
        let keys = [
            ("model", Value::String("gpt2".into())),
            ("pre", Value::String(self.pre)),
            ("tokens", Value::Strings(self.tokens)),
            ("token_type", Value::I32s(self.types)),
            ("merges", Value::Strings(self.merges)),
            ("bos_token_id", Value::U32(self.end_of_text)),
            ("eos_token_id", Value::U32(self.end_of_text)),
            // Every document of the training stands behind an end of text.
            ("add_bos_token", Value::Bool(true)),
            ("add_eos_token", Value::Bool(false)),
        ];
        keys.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
    }
}
