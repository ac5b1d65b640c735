//! The `[tokenizer]` part of a recipe.

use crate::error::{Result, TokenizerError};
use crate::pretokenize::Pretokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kinds of tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerKind {
    /// Byte-level byte-pair encoding: every byte string can be encoded, and decodes to itself.
    #[default]
    ByteBpe,
    /// One token a character of the training text; other characters are an error.
    Char,
}

impl TokenizerKind {
    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            TokenizerKind::ByteBpe => "byte-bpe",
            TokenizerKind::Char => "char",
        }
    }
}

/// How to train a tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// A tokenizer.json to take instead of training one, e.g. that of the model that a run begins with (train.init.from); a relative path is
    /// taken from the current directory. The other keys are then not used.
    pub file: String,
    /// "byte-bpe" (byte-pair encoding over bytes) or "char" (one token a character).
    pub kind: TokenizerKind,
    /// Number of token ids, special tokens included. For "byte-bpe" the 256 bytes are part of it, and training stops
    /// earlier when no pair reaches `min_frequency`. For "char" it is the most that the alphabet may need.
    pub vocab_size: u64,
    /// Pattern that cuts text into the pieces within which pairs merge: "gpt2", "llama3" or "qwen2". Not used by "char".
    pub pretokenizer: Pretokenizer,
    /// A pair is merged only if it occurs at least this often. Not used by "char".
    pub min_frequency: u64,
    /// Tokens with a meaning of their own, which get the first ids in this order and are never produced from plain
    /// text. Default: ["<|endoftext|>"] for "byte-bpe", none for "char".
    pub special_tokens: Option<Vec<String>>,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        TokenizerConfig {
            file: String::new(),
            kind: TokenizerKind::ByteBpe,
            vocab_size: 4096,
            pretokenizer: Pretokenizer::Gpt2,
            min_frequency: 2,
            special_tokens: None,
        }
    }
}

/// Largest vocabulary: 2^24 ids.
pub(crate) const MAX_VOCAB_SIZE: u64 = 1 << 24;

impl TokenizerConfig {
    /// The special tokens, with the default of the kind where none are given.
    pub fn special_tokens(&self) -> Vec<String> {
        match (&self.special_tokens, self.kind) {
            (Some(tokens), _) => tokens.clone(),
            (None, TokenizerKind::ByteBpe) => vec!["<|endoftext|>".to_owned()],
            (None, TokenizerKind::Char) => Vec::new(),
        }
    }

    /// Checks every value; the error names key, value and allowed range.
    pub fn check(&self) -> Result<()> {
        if !self.file.is_empty() {
            return Ok(());
        }
        let specials = self.special_tokens();
        let least = specials.len() as u64 + if self.kind == TokenizerKind::ByteBpe { 256 } else { 1 };
        if !(least..=MAX_VOCAB_SIZE).contains(&self.vocab_size) {
            return Err(TokenizerError::Config(format!(
                "vocab_size = {} is out of range: kind = \"{}\" with {} special tokens needs {least} to {MAX_VOCAB_SIZE}",
                self.vocab_size,
                self.kind.name(),
                specials.len()
            )));
        }
        if self.min_frequency < 1 || self.min_frequency > i64::MAX as u64 {
            return Err(TokenizerError::Config(format!(
                "min_frequency = {} is out of range: 1 to {}",
                self.min_frequency,
                i64::MAX
            )));
        }
        for (i, token) in specials.iter().enumerate() {
            if token.chars().nth(1).is_none() {
                return Err(TokenizerError::Config(format!(
                    "special_tokens[{i}] = {token:?} must have at least two characters, to be \
                     distinguishable from ordinary text"
                )));
            }
            if specials[..i].contains(token) {
                return Err(TokenizerError::Config(format!(
                    "special_tokens[{i}] = {token:?} is listed twice"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let check = |edit: fn(&mut TokenizerConfig)| {
            let mut config = TokenizerConfig::default();
            edit(&mut config);
            config.check().map_err(|e| e.to_string())
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(check(|c| c.vocab_size = 257), Ok(()));
        assert!(check(|c| c.vocab_size = 256).unwrap_err().contains("vocab_size = 256"));
        assert!(check(|c| c.vocab_size = u64::MAX).unwrap_err().contains("257 to 16777216"));
        assert!(check(|c| c.min_frequency = 0).unwrap_err().contains("min_frequency = 0"));
        assert!(
            check(|c| c.special_tokens = Some(vec!["x".into()])).unwrap_err().contains("special_tokens[0]")
        );
        let twice = |c: &mut TokenizerConfig| c.special_tokens = Some(vec!["<a>".into(), "<a>".into()]);
        assert!(check(twice).unwrap_err().contains("listed twice"));
    }

    #[test]
    fn names_in_files_are_the_names_of_the_methods() {
        for pretokenizer in Pretokenizer::ALL {
            assert_eq!(serde_json::to_value(pretokenizer).unwrap(), pretokenizer.name());
        }
        for kind in [TokenizerKind::ByteBpe, TokenizerKind::Char] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
