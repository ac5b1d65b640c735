//! GGUF, the file of llama.cpp: metadata, tokenizer and tensors in one, version 3, little-endian.
//!
//! ```text
//! "GGUF" · u32 version · u64 tensors · u64 keys
//! each key:    string name · u32 type · value          string: u64 bytes, then UTF-8; array: u32 type · u64 length · values
//! each tensor: string name · u32 dims · u64 sizes, innermost first · u32 type · u64 offset into the data
//! padding to 32 bytes · the data of each tensor, padded to 32 bytes
//! ```
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Names of keys and tensors, and what each architecture
//! computes, are those of llama.cpp.
//!
//! Five architectures are written: `gpt2`, `llama` (with experts if they divide by the sum: Mixtral), `qwen2` (biases of queries, keys and values
//! only), `qwen3` (normalised queries and keys) and `qwen3moe` (the same with experts). Differences bridged: queries, keys and values and the two halves of a gated block are tensors of their own except
//! in `gpt2`; gates, ups and downs of all experts of a layer are a tensor each; `llama` turns neighbouring rows of a head, so the rows of its queries and keys change places
//! (`Order::RotaryPairs`); Llama 3's stretched angles are a tensor of divisors.

mod export;
mod layout;
mod metadata;
mod weights;

pub use export::{GgufExport, GgufReport, export_gguf};
pub use metadata::GgufTokenizer;
pub use weights::GgufWeights;

/// First bytes of every file.
const MAGIC: [u8; 4] = *b"GGUF";

/// Version that is written.
const VERSION: u32 = 3;

/// Tensors begin at multiples of this, the default of the format.
const ALIGNMENT: u64 = 32;
