//! OPT as `OPTForCausalLM` has it (Zhang et al. 2022): read only. In Bessemer's words it is a GPT-2 with ReLU, and is
//! written as such.
//!
//! LayerNorm before each block, biases everywhere, one normalisation at the end. Learned positions stand two rows down in
//! their table: position p is row p + 2. The first two rows are never read with whole sequences, and are left out.

use super::fields::Fields;
use super::layout::{Part, in_layers};
use crate::error::Result;
use bessemer_arch::{ActivationChoice, Model, ModelConfig, NormChoice, ParamId, ParamRole, PositionChoice};
use serde_json::json;

/// Rows of the position table before that of position 0.
const OFFSET: usize = 2;

/// (Bessemer, name in config.json).
const ACTIVATIONS: [(ActivationChoice, &str); 4] = [
    (ActivationChoice::Relu, "relu"),
    (ActivationChoice::ReluSquared, "relu2"),
    (ActivationChoice::GeluErf, "gelu"),
    (ActivationChoice::GeluTanh, "gelu_new"),
];

/// The model that a config.json means, and remarks for people.
pub(super) fn read_config(f: &Fields) -> Result<(ModelConfig, Vec<String>)> {
    // OPT-350M normalises after the sums and projects its embedding.
    f.only("do_layer_norm_before", &json!(true))?;
    f.only("_remove_final_layer_norm", &json!(false))?;
    f.only("enable_bias", &json!(true))?;
    f.only("layer_norm_elementwise_affine", &json!(true))?;
    let width = f.required("hidden_size")?;
    f.only("word_embed_proj_dim", &json!(width))?;
    let name = f.str("activation_function")?.unwrap_or("relu");
    let activation = ACTIVATIONS.iter().find(|a| a.1 == name).map(|a| a.0);
    let activation = activation.ok_or_else(|| {
        f.refuse(format!(
            "activation_function: {name:?} is not supported; supported: relu, relu2, gelu, gelu_new"
        ))
    })?;
    let mut notes = Vec::new();
    let dropout = f.float("dropout")?.unwrap_or(0.1);
    let attention = f.float("attention_dropout")?.unwrap_or(0.0);
    if attention != dropout {
        notes.push(format!(
            "dropout and attention_dropout differ ({dropout} and {attention}); model.dropout = {dropout} is used for both"
        ));
    }
    if f.float("layerdrop")?.unwrap_or(0.0) != 0.0 {
        notes.push("layerdrop is left out: training on here keeps all layers".into());
    }
    let heads = f.required("num_attention_heads")?;
    let config = ModelConfig {
        architecture: "gpt2".into(),
        vocab_size: f.required("vocab_size")?,
        layers: Some(f.required("num_hidden_layers")?),
        width: Some(width),
        heads: Some(heads),
        kv_heads: Some(heads),
        ffn_width: Some(f.required("ffn_dim")?),
        context: Some(f.required("max_position_embeddings")?),
        norm: Some(NormChoice::LayerNorm),
        norm_eps: Some(1e-5),
        activation: Some(activation),
        positions: Some(PositionChoice::Learned),
        bias: Some(true),
        tied_embeddings: Some(f.bool("tie_word_embeddings")?.unwrap_or(true)),
        dropout,
        init_std: f.float("init_std")?.unwrap_or(0.02),
        ..ModelConfig::default()
    };
    Ok((config, notes))
}

/// The tensors that hold a parameter.
pub(super) fn parts(m: &Model, id: ParamId) -> Vec<Part> {
    use ParamRole as R;
    let list: &[(&str, usize)] = match id.role() {
        R::TokenTable => &[("embed_tokens", m.vocab_size)],
        R::PositionTable => &[("embed_positions", m.context)],
        R::HeadWeight => &[("lm_head", m.vocab_size)],
        R::FinalNormWeight | R::FinalNormBias => &[("final_layer_norm", m.width)],
        R::AttentionNormWeight | R::AttentionNormBias => &[("self_attn_layer_norm", m.width)],
        R::MlpNormWeight | R::MlpNormBias => &[("final_layer_norm", m.width)],
        R::QkvWeight | R::QkvBias => {
            &[("self_attn.q_proj", m.width), ("self_attn.k_proj", m.width), ("self_attn.v_proj", m.width)]
        }
        R::AttentionOutWeight | R::AttentionOutBias => &[("self_attn.out_proj", m.width)],
        R::UpWeight | R::UpBias => &[("fc1", m.ffn_width)],
        R::DownWeight | R::DownBias => &[("fc2", m.width)],
        // A model with others is refused before.
        _ => &[],
    };
    let skip = if id.role() == R::PositionTable { OFFSET } else { 0 };
    list.iter().map(|(theirs, rows)| Part { skip, ..in_layers(id, theirs, *rows) }).collect()
}
