//! Templates that come with the program. Their texts are ours, written from the public documentation that each file cites.

/// A template of this program.
#[derive(Debug, Clone, Copy)]
pub struct ShippedTemplate {
    /// Its name.
    pub name: &'static str,
    /// Jinja.
    pub source: &'static str,
    /// Special tokens that the tokenizer must have.
    pub tokens: &'static [&'static str],
    /// Token of the beginning, if the template prints one.
    pub bos: Option<&'static str>,
    /// Token of the end.
    pub eos: &'static str,
}

/// The templates, by name.
pub const SHIPPED: [ShippedTemplate; 7] = [
    ShippedTemplate {
        name: "chatml",
        source: include_str!("templates/chatml.jinja"),
        tokens: &["<|im_start|>", "<|im_end|>"],
        bos: None,
        eos: "<|im_end|>",
    },
    ShippedTemplate {
        name: "gemma",
        source: include_str!("templates/gemma.jinja"),
        tokens: &["<bos>", "<start_of_turn>", "<end_of_turn>"],
        bos: Some("<bos>"),
        eos: "<end_of_turn>",
    },
    ShippedTemplate {
        name: "llama-2",
        source: include_str!("templates/llama-2.jinja"),
        tokens: &["<s>", "</s>"],
        bos: Some("<s>"),
        eos: "</s>",
    },
    ShippedTemplate {
        name: "llama-3",
        source: include_str!("templates/llama-3.jinja"),
        tokens: &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        bos: Some("<|begin_of_text|>"),
        eos: "<|eot_id|>",
    },
    ShippedTemplate {
        name: "mistral",
        source: include_str!("templates/mistral.jinja"),
        tokens: &["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
        bos: Some("<s>"),
        eos: "</s>",
    },
    ShippedTemplate {
        name: "phi",
        source: include_str!("templates/phi.jinja"),
        tokens: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        bos: None,
        eos: "<|end|>",
    },
    ShippedTemplate {
        name: "qwen",
        source: include_str!("templates/qwen.jinja"),
        tokens: &["<|im_start|>", "<|im_end|>"],
        bos: None,
        eos: "<|im_end|>",
    },
];

/// The template of a name.
pub(crate) fn find(name: &str) -> Option<ShippedTemplate> {
    SHIPPED.into_iter().find(|one| one.name == name)
}
