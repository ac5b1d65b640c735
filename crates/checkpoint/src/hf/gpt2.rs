//! GPT-2 as `GPT2LMHeadModel` has it.
//!
//! Always LayerNorm, learned positions, multi-head attention, a plain feed-forward block and biases everywhere. A model
//! without biases is written with biases of zero, which compute the same.

use super::fields::Fields;
use super::layout::{Order, Part, foreign_choices, kind, written};
use crate::error::Result;
use bessemer_arch::{
    ActivationChoice, MlpKind, Model, ModelConfig, NormChoice, ParamClass, ParamId, ParamRole,
    PositionChoice, Unit,
};
use serde_json::{Map, Value, json};

/// (Bessemer, names in config.json; the first is written).
const ACTIVATIONS: [(ActivationChoice, &[&str]); 4] = [
    (ActivationChoice::GeluTanh, &["gelu_new", "gelu_pytorch_tanh"]),
    (ActivationChoice::GeluErf, &["gelu"]),
    (ActivationChoice::Relu, &["relu"]),
    (ActivationChoice::ReluSquared, &["relu2"]),
];

/// Why the architecture cannot express a model; empty if it can.
pub(crate) fn obstacles(m: &Model) -> Vec<String> {
    let mut list = foreign_choices(m);
    let mut need = |ok: bool, text: String| {
        if !ok {
            list.push(text);
        }
    };
    need(m.norm == NormChoice::LayerNorm, format!("norm = {} (GPT-2 has layernorm)", written(m.norm)));
    need(
        m.positions == PositionChoice::Learned,
        format!("positions = {} (GPT-2 has learned positions)", written(m.positions)),
    );
    need(!m.qk_norm, "qk_norm (GPT-2 has none)".into());
    need(m.experts.is_none(), "experts (GPT-2 has none)".into());
    need(m.window.is_none(), "a window (GPT-2 has none)".into());
    need(m.mlp() == MlpKind::Plain, "a gated activation (GPT-2 has gelu or relu)".into());
    need(
        m.kv_heads == m.heads,
        format!("kv_heads = {} of {} heads (GPT-2 has as many)", m.kv_heads, m.heads),
    );
    need(
        m.heads * m.head_dim == m.width,
        format!("head_dim = {} (GPT-2 has width / heads = {} / {})", m.head_dim, m.width, m.heads),
    );
    list
}

/// The keys of config.json.
pub(super) fn config(m: &Model) -> Map<String, Value> {
    let activation = ACTIVATIONS.iter().find(|a| a.0 == m.activation).map(|a| a.1[0]);
    let value = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": m.vocab_size,
        "n_positions": m.context,
        "n_ctx": m.context,
        "n_embd": m.width,
        "n_layer": m.layers,
        "n_head": m.heads,
        "n_inner": m.ffn_width,
        "activation_function": activation,
        "resid_pdrop": m.dropout,
        "embd_pdrop": m.dropout,
        "attn_pdrop": m.dropout,
        "layer_norm_epsilon": m.norm_eps,
        "initializer_range": m.init_std,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "tie_word_embeddings": m.tied_embeddings,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The model that a config.json means, and remarks for people.
pub(super) fn read_config(f: &Fields) -> Result<(ModelConfig, Vec<String>)> {
    f.only("scale_attn_weights", &json!(true))?;
    f.only("scale_attn_by_inverse_layer_idx", &json!(false))?;
    f.only("add_cross_attention", &json!(false))?;
    let width = f.required("n_embd")?;
    let name = f.str("activation_function")?.unwrap_or("gelu_new");
    let activation = ACTIVATIONS.iter().find(|a| a.1.contains(&name)).map(|a| a.0);
    let activation = activation.ok_or_else(|| {
        f.refuse(format!(
            "activation_function: {name:?} is not supported; supported: gelu_new, gelu_pytorch_tanh, gelu, \
             relu, relu2"
        ))
    })?;
    let mut notes = Vec::new();
    let drops =
        [f.float("resid_pdrop")?, f.float("embd_pdrop")?, f.float("attn_pdrop")?].map(|d| d.unwrap_or(0.1));
    if drops.iter().any(|d| *d != drops[0]) {
        notes.push(format!(
            "resid_pdrop, embd_pdrop and attn_pdrop differ ({drops:?}); model.dropout = {} is used for all",
            drops[0]
        ));
    }
    let heads = f.required("n_head")?;
    let config = ModelConfig {
        architecture: "gpt2".into(),
        vocab_size: f.required("vocab_size")?,
        layers: Some(f.required("n_layer")?),
        width: Some(width),
        heads: Some(heads),
        kv_heads: Some(heads),
        head_dim: None,
        ffn_width: Some(f.uint("n_inner")?.unwrap_or(width.saturating_mul(4))),
        context: Some(f.required("n_positions")?),
        norm: Some(NormChoice::LayerNorm),
        norm_eps: Some(f.float("layer_norm_epsilon")?.unwrap_or(1e-5)),
        activation: Some(activation),
        positions: Some(PositionChoice::Learned),
        bias: Some(true),
        tied_embeddings: Some(f.bool("tie_word_embeddings")?.unwrap_or(true)),
        dropout: drops[0],
        init_std: f.float("initializer_range")?.unwrap_or(0.02),
        ..ModelConfig::default()
    };
    Ok((config, notes))
}

/// The tensors that hold a parameter.
pub(super) fn parts(m: &Model, id: ParamId) -> Vec<Part> {
    use ParamRole as R;
    let (theirs, rows) = match id.role() {
        R::TokenTable => ("wte", m.vocab_size),
        R::PositionTable => ("wpe", m.context),
        R::HeadWeight => ("lm_head", m.vocab_size),
        R::FinalNormWeight | R::FinalNormBias => ("ln_f", m.width),
        R::AttentionNormWeight | R::AttentionNormBias => ("ln_1", m.width),
        R::MlpNormWeight | R::MlpNormBias => ("ln_2", m.width),
        R::QkvWeight | R::QkvBias => ("attn.c_attn", m.qkv_width()),
        R::AttentionOutWeight | R::AttentionOutBias => ("attn.c_proj", m.width),
        R::UpWeight | R::UpBias => ("mlp.c_fc", m.ffn_width),
        R::DownWeight | R::DownBias => ("mlp.c_proj", m.width),
        // A model with others is refused before.
        _ => return Vec::new(),
    };
    let order = if id.role().class() == ParamClass::Matrix { Order::Transposed } else { Order::Same };
    let kind = kind(id);
    let name = match id.unit() {
        Unit::Layer(layer) => format!("h.{layer}.{theirs}.{kind}"),
        Unit::Embedding | Unit::Head => format!("{theirs}.{kind}"),
    };
    vec![Part { name, rows, skip: 0, order }]
}
