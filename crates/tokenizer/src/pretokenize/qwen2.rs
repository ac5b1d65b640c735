//! The Qwen2 pre-tokenizer (Qwen2 release, 2024): Llama-3's pattern with every number character on its own:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! Qwen's own files also ask for NFC normalisation in front, which changes bytes and is therefore refused by our
//! reader; llama.cpp's `qwen2` does not normalise either.

use super::llama3;

/// End of the pre-token that starts at `at < text.len()`.
#[inline(always)]
pub(super) fn end_of_piece(text: &[u8], at: usize) -> usize {
    llama3::end_of_piece::<1>(text, at)
}
