//! tokenizer.json, the file format of Hugging Face `tokenizers`, in and out.
//!
//! Byte-level BPE is written as `BPE` with a `ByteLevel` pre-tokenizer (GPT-2) or a `Split` by the published pattern
//! followed by `ByteLevel` without its own (Llama-3, Qwen2). A character tokenizer is written as `WordLevel` with a
//! `Split` into single characters: there Hugging Face, too, answers a character outside the alphabet with an error,
//! where its `BPE` would drop it in silence.
//!
//! Read are files of these shapes, whoever wrote them. What would change the ids and is not represented (normalizers,
//! other models, prefix spaces, dropout, ...) is refused by name. What does not belong to the mapping from text to
//! ids is not applied: `truncation` and `padding` are dropped, a `post_processor` (which adds tokens around a text
//! at call time) is kept for other readers.

mod read;
mod side_files;
mod write;

/// Split into single characters, line breaks included.
const ANY_CHARACTER: &str = r"[\s\S]";
