//! Architectures known by name. Sizes are those of the published configurations.

use crate::choices::{
    ActivationChoice, DsInitForm, InitChoice, NormChoice, Placement, PositionChoice, QkNormSpan,
};
use crate::experts::{ExpertLayers, Experts, LayerRule, SharedExpert};
use crate::gates::GateChoice;
use crate::model::Model;

/// All names that [`named`] knows.
pub const NAMED: &[&str] = &[
    "gpt2",
    "gpt2-124m",
    "gpt2-355m",
    "gpt2-774m",
    "gpt2-1.5b",
    "llama",
    "llama-1b",
    "llama-3b",
    "llama-8b",
    "llama2-7b",
    "llama2-70b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "mixtral",
    "pr-moe",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "olmoe-1b-7b",
];

fn gpt2(layers: usize, width: usize, heads: usize, context: usize) -> Model {
    Model {
        vocab_size: 50257,
        layers,
        width,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        ffn_width: 4 * width,
        experts: None,
        expert_layers: ExpertLayers::default(),
        expert_counts: Vec::new(),
        shared_expert: None,
        adapters: None,
        context,
        norm: NormChoice::LayerNorm,
        placement: Placement::Pre,
        norm_eps: 1e-5,
        activation: ActivationChoice::GeluTanh,
        positions: PositionChoice::Learned,
        rope_theta: 10_000.0,
        rope_scaling: None,
        window: None,
        document_end: None,
        qk_norm: false,
        qk_norm_span: QkNormSpan::Head,
        embedding_scale: 1.0,
        bias: true,
        qkv_bias: false,
        tied_embeddings: true,
        dropout: 0.0,
        init_std: 0.02,
        init: InitChoice::Gpt2,
        init_distribution: None,
        init_gain: 1.0,
        ds_init: DsInitForm::Paper,
        mup_base_width: None,
        mup_base_head_dim: None,
    }
}

fn llama(
    vocab_size: usize,
    width: usize,
    layers: usize,
    ffn_width: usize,
    heads: usize,
    kv_heads: usize,
) -> Model {
    Model {
        vocab_size,
        layers,
        width,
        heads,
        kv_heads,
        head_dim: width / heads,
        ffn_width,
        experts: None,
        expert_layers: ExpertLayers::default(),
        expert_counts: Vec::new(),
        shared_expert: None,
        adapters: None,
        context: 8192,
        norm: NormChoice::RmsNorm,
        placement: Placement::Pre,
        norm_eps: 1e-5,
        activation: ActivationChoice::Swiglu,
        positions: PositionChoice::Rope,
        rope_theta: 500_000.0,
        rope_scaling: None,
        window: None,
        document_end: None,
        qk_norm: false,
        qk_norm_span: QkNormSpan::Head,
        embedding_scale: 1.0,
        bias: false,
        qkv_bias: false,
        tied_embeddings: false,
        dropout: 0.0,
        init_std: 0.02,
        init: InitChoice::Gpt2,
        init_distribution: None,
        init_gain: 1.0,
        ds_init: DsInitForm::Paper,
        mup_base_width: None,
        mup_base_head_dim: None,
    }
}

/// Experts whose weights are renormalised.
fn experts(count: usize, choices: usize, width: usize) -> Option<Experts> {
    Some(Experts::top_k([count, choices, width], true))
}

/// The model of that name, with its published vocabulary.
pub fn named(name: &str) -> Option<Model> {
    Some(match name {
        "gpt2" => gpt2(4, 256, 4, 256),
        "gpt2-124m" => gpt2(12, 768, 12, 1024),
        "gpt2-355m" => gpt2(24, 1024, 16, 1024),
        "gpt2-774m" => gpt2(36, 1280, 20, 1024),
        "gpt2-1.5b" => gpt2(48, 1600, 25, 1024),
        "llama" => Model {
            context: 256,
            tied_embeddings: true,
            rope_theta: 10_000.0,
            ..llama(32000, 256, 4, 704, 4, 2)
        },
        "llama-1b" => Model { tied_embeddings: true, ..llama(128_256, 2048, 16, 8192, 32, 8) },
        "llama-3b" => Model { tied_embeddings: true, head_dim: 128, ..llama(128_256, 3072, 28, 8192, 24, 8) },
        "llama-8b" => llama(128_256, 4096, 32, 14336, 32, 8),
        "llama2-7b" => Model { context: 4096, rope_theta: 10_000.0, ..llama(32000, 4096, 32, 11008, 32, 32) },
        "llama2-70b" => Model { context: 4096, rope_theta: 10_000.0, ..llama(32000, 8192, 80, 28672, 64, 8) },
        "mistral-7b" => {
            Model { rope_theta: 10_000.0, window: Some(4096), ..llama(32000, 4096, 32, 14336, 32, 8) }
        }
        "qwen2.5-0.5b" => Model {
            context: 32_768,
            norm_eps: 1e-6,
            rope_theta: 1_000_000.0,
            qkv_bias: true,
            tied_embeddings: true,
            ..llama(151_936, 896, 24, 4864, 14, 2)
        },
        "qwen3-0.6b" => Model {
            head_dim: 128,
            context: 40_960,
            norm_eps: 1e-6,
            rope_theta: 1_000_000.0,
            qk_norm: true,
            tied_embeddings: true,
            ..llama(151_936, 1024, 28, 3072, 16, 8)
        },
        "mixtral" => Model {
            context: 256,
            tied_embeddings: true,
            rope_theta: 10_000.0,
            experts: experts(8, 2, 352),
            ..llama(32000, 256, 4, 352, 4, 2)
        },
        // As DeepSpeed-MoE (Rajbhandari et al. 2022): experts in every other layer, twice as many in the last, one for a token, beside a
        // block of their size that computes every token.
        "pr-moe" => Model {
            context: 256,
            tied_embeddings: true,
            rope_theta: 10_000.0,
            experts: Some(Experts::by_gate(GateChoice::Switch, 8, 352)),
            expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
            expert_counts: vec![4, 8],
            shared_expert: Some(SharedExpert { width: 352, gate: false, mixed: true }),
            ..llama(32000, 256, 4, 704, 4, 2)
        },
        "mixtral-8x7b" => Model {
            context: 32_768,
            rope_theta: 1_000_000.0,
            experts: experts(8, 2, 14336),
            ..llama(32000, 4096, 32, 14336, 32, 8)
        },
        "qwen1.5-moe-a2.7b" => Model {
            norm_eps: 1e-6,
            rope_theta: 1_000_000.0,
            qkv_bias: true,
            experts: Some(Experts::top_k([60, 4, 1408], false)),
            shared_expert: Some(SharedExpert { width: 5632, gate: true, mixed: false }),
            ..llama(151_936, 2048, 24, 5632, 16, 16)
        },
        "qwen3-30b-a3b" => Model {
            head_dim: 128,
            context: 40_960,
            norm_eps: 1e-6,
            rope_theta: 1_000_000.0,
            qk_norm: true,
            experts: experts(128, 8, 768),
            ..llama(151_936, 2048, 48, 6144, 32, 4)
        },
        "olmoe-1b-7b" => Model {
            context: 4096,
            rope_theta: 10_000.0,
            qk_norm: true,
            qk_norm_span: QkNormSpan::Width,
            experts: Some(Experts::top_k([64, 8, 1024], false)),
            ..llama(50_304, 2048, 16, 1024, 16, 16)
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exact parameter counts as published with the models.
    #[test]
    fn parameter_counts_of_public_models() {
        let counts = [
            ("gpt2-124m", 124_439_808u64),
            ("gpt2-774m", 774_030_080),
            ("llama2-7b", 6_738_415_616),
            ("llama2-70b", 68_976_648_192),
            ("llama-8b", 8_030_261_248),
            ("llama-1b", 1_235_814_400),
            ("mistral-7b", 7_241_732_096),
            ("gpt2-355m", 354_823_168),
            ("gpt2-1.5b", 1_557_611_200),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
        ];
        for (name, count) in counts {
            assert_eq!(named(name).unwrap().parameters() as u64, count, "{name}");
        }
        // nanoGPT's character model for CPUs: 65 symbols, 64 positions, no biases.
        let nano = Model { vocab_size: 65, context: 64, bias: false, ..gpt2(4, 128, 4, 64) };
        assert_eq!(nano.parameters(), 804_096);
    }

    #[test]
    fn every_listed_name_resolves() {
        for name in NAMED {
            assert!(named(name).is_some(), "{name}");
        }
    }
}
