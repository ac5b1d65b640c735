//! The layout of Hugging Face: config.json, safetensors (one file or several with an index), generation_config.json.
//!
//! [`export_hf`] writes a directory that `transformers` loads; [`HfImport`] reads one. Two architectures are spoken:
//! GPT-2 (`GPT2LMHeadModel`) and Llama (`LlamaForCausalLM`, and its relatives Mistral, Qwen2, Qwen3, Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE). OPT is read, and written
//! as the GPT-2 with ReLU that it is. What one side cannot express is refused by name, never dropped.
//!
//! Differences bridged, both ways, by one table: GPT-2's `Conv1D` weights are stored `[inputs, outputs]`
//! and are transposed; queries, keys and values (`attention.qkv`), gate and up (`mlp.gate_up`) are fused here and
//! separate in Llama files; a tied output projection is absent.

mod experts;
mod export;
mod fields;
pub(crate) mod gpt2;
mod import;
pub(crate) mod layout;
pub(crate) mod llama;
mod opt;
mod peft;
mod written;

pub use export::{HfExport, HfExportReport, export_hf, export_hf_on};
pub use import::{HfImport, import_hf};
pub use peft::{PeftExport, PeftReport, export_peft};
pub use written::EXPORT_MANIFEST;
