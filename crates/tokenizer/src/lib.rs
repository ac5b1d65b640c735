//! Tokenizers: byte-level BPE and characters, trained from text, stored as Hugging Face tokenizer.json.
//!
//! | step | file | cost |
//! |---|---|---|
//! | cut text into pieces | [`Pretokenizer`] | one pass |
//! | count distinct pieces | `word_counts` | one table look-up a piece, parallel |
//! | learn merges | `learn_merges` | a small multiple of the distinct text |
//! | encode a piece | `bpe`, remembered in [`Scratch`] | one table look-up a known piece, else in proportion to its length |
//! | read and write | `json` | linear |
//!
//! What holds: every byte string decodes to itself after byte-level encoding; the result of training does not depend
//! on threads or batches; the file on disk gives the same ids in Hugging Face `tokenizers` and `transformers`; plain
//! encoding never gives a special token.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod added_tokens;
mod backtracking;
mod batch;
mod bpe;
mod byte_alphabet;
mod char_model;
mod config;
mod error;
mod files;
mod gguf;
mod json;
mod learn_merges;
mod pair_table;
mod prefetch;
mod pretokenize;
mod scratch;
mod tokenizer;
mod trainer;
mod trie;
mod word_counts;
mod word_key;

pub use added_tokens::AddedToken;
pub use config::{TokenizerConfig, TokenizerKind};
pub use error::{Result, TokenizerError};
pub use gguf::GgufVocabulary;
pub use pretokenize::Pretokenizer;
pub use scratch::Scratch;
pub use tokenizer::{PlacedTokens, Tokenizer};
pub use trainer::{Trainer, TrainingProgress};
