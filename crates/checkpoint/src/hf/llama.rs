//! Llama as `LlamaForCausalLM` has it, and its relatives: `MistralForCausalLM` adds a sliding window, `Qwen2ForCausalLM`
//! biases of queries, keys and values, `Qwen3ForCausalLM` normalises queries and keys. [`super::experts`] has those with experts.
//!
//! Always RMSNorm, rotary positions in the halves layout and a gated feed-forward block. Biases of attention and of the
//! feed-forward block are two switches there and one here: a missing half is read as zeros, which compute the same.

use super::experts::{self, Family};
use super::fields::Fields;
use super::layout::{Part, foreign_choices, in_layers, written};
use crate::error::Result;
use bessemer_arch::{
    ActivationChoice, MlpKind, Model, ModelConfig, NormChoice, ParamId, ParamRole, PositionChoice,
    QkNormSpan, RopeScaling, RopeScalingKind,
};
use serde_json::{Map, Value, json};

/// (Bessemer, names of the gate's function in config.json; the first is written).
const ACTIVATIONS: [(ActivationChoice, &[&str]); 2] = [
    (ActivationChoice::Swiglu, &["silu", "swish"]),
    (ActivationChoice::Geglu, &["gelu_pytorch_tanh", "gelu_new"]),
];

/// Why the architecture cannot express a model; empty if it can.
pub(crate) fn obstacles(m: &Model) -> Vec<String> {
    let mut list = foreign_choices(m);
    let mut need = |ok: bool, text: String| {
        if !ok {
            list.push(text);
        }
    };
    need(m.norm == NormChoice::RmsNorm, format!("norm = {} (Llama has rmsnorm)", written(m.norm)));
    need(
        m.positions == PositionChoice::Rope,
        format!("positions = {} (Llama has rope)", written(m.positions)),
    );
    need(m.mlp() == MlpKind::Gated, "an activation without gate (Llama has swiglu or geglu)".into());
    need(
        !(m.qk_norm && m.window.is_some()),
        "qk_norm with a window (Qwen3 has one, Mistral the other)".into(),
    );
    need(
        m.experts.is_some() || m.qk_norm_span.is_head(),
        "qk_norm_span = width without experts (only OLMoE has it)".into(),
    );
    let relative = m.qk_norm || m.window.is_some();
    let biases = m.bias || m.qkv_bias;
    need(!(relative && biases), "biases with qk_norm or a window (Qwen3 and Mistral have none)".into());
    if let Some(experts) = &m.experts {
        list.extend(experts::obstacles(m, experts));
    }
    list
}

/// (class, model_type) that expresses the model: Mistral's without a window if that is the preferred `model_type`.
pub(super) fn class(m: &Model, preferred: Option<&str>) -> (&'static str, &'static str) {
    if let Some(family) = Family::of(m) {
        return (family.class(), family.model_type());
    }
    match (m.qk_norm, m.window, m.qkv_bias) {
        (false, None, false) if preferred == Some("mistral") && !m.bias => ("MistralForCausalLM", "mistral"),
        (true, _, _) => ("Qwen3ForCausalLM", "qwen3"),
        (false, Some(_), _) => ("MistralForCausalLM", "mistral"),
        (false, None, true) => ("Qwen2ForCausalLM", "qwen2"),
        (false, None, false) => ("LlamaForCausalLM", "llama"),
    }
}

/// The stretching of rotary angles as transformers writes it.
fn rope_parameters(m: &Model) -> Map<String, Value> {
    let mut map = Map::new();
    match m.rope_scaling {
        None => {
            map.insert("rope_type".into(), json!("default"));
        }
        Some(s) => {
            map.insert("rope_type".into(), json!(super::layout::written(s.kind)));
            map.insert("factor".into(), json!(s.factor));
            if s.kind == RopeScalingKind::Llama3 {
                map.insert("low_freq_factor".into(), json!(s.low_freq_factor));
                map.insert("high_freq_factor".into(), json!(s.high_freq_factor));
                map.insert("original_max_position_embeddings".into(), json!(s.original_context));
            }
        }
    }
    map
}

/// The keys of config.json; `balance` is the weight of the balance loss of experts, if it is known.
pub(super) fn config(m: &Model, preferred: Option<&str>, balance: Option<f64>) -> Map<String, Value> {
    let activation = ACTIVATIONS.iter().find(|a| a.0 == m.activation).map(|a| a.1[0]);
    let (class, model_type) = class(m, preferred);
    let old = m.rope_scaling.map(|_| rope_parameters(m));
    let mut new = rope_parameters(m);
    new.insert("rope_theta".into(), json!(m.rope_theta));
    let value = json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": m.vocab_size,
        "hidden_size": m.width,
        "intermediate_size": m.ffn_width,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.head_dim,
        "hidden_act": activation,
        "max_position_embeddings": m.context,
        "rms_norm_eps": m.norm_eps,
        // The old and the new place of the same number: readers know one or the other.
        "rope_theta": m.rope_theta,
        "rope_scaling": old,
        "rope_parameters": new,
        "sliding_window": m.window,
        "use_sliding_window": false,
        "attention_bias": m.bias,
        "mlp_bias": m.bias,
        "attention_dropout": m.dropout,
        "initializer_range": m.init_std,
        "tie_word_embeddings": m.tied_embeddings,
    });
    let mut map = match value {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    if let Some(family) = Family::of(m) {
        map.extend(family.config(m, balance));
    }
    map
}

/// Which biases the files do not have although the model here has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AbsentBiases {
    pub(super) attention: bool,
    pub(super) mlp: bool,
}

/// The model that a config.json means, which biases are zero, and remarks for people.
pub(super) fn read_config(f: &Fields, kind: &str) -> Result<(ModelConfig, AbsentBiases, Vec<String>)> {
    let context = f.required("max_position_embeddings")?;
    let (mistral, qwen2) = (kind == "mistral", kind == "qwen2");
    let family = Family::named(kind);
    let olmoe = family == Some(Family::Olmoe);
    let qwen3 = kind == "qwen3" || family == Some(Family::Qwen3);
    let mut window = None;
    if mistral {
        // The class's default is a window of 4096, only an explicit null turns it off.
        window = if f.has("sliding_window") { f.uint("sliding_window")? } else { Some(4096) };
    }
    if family == Some(Family::Mixtral) {
        window = f.uint("sliding_window")?;
    }
    // One as long as the context hides nothing.
    window = window.filter(|w| *w < context);
    let qwen2_moe = family == Some(Family::Qwen2);
    if qwen2 || qwen3 || qwen2_moe {
        f.only("use_sliding_window", &json!(false))?;
    }
    if qwen3 || olmoe {
        f.only("attention_bias", &json!(false))?;
    }
    f.only("partial_rotary_factor", &json!(1.0))?;
    let (theta, rope_scaling) = rope(f, context)?;
    let mixtral = family == Some(Family::Mixtral);
    let theta = theta.unwrap_or(if mixtral { 1e6 } else { 1e4 });
    let name = f.str("hidden_act")?.unwrap_or("silu");
    let activation = ACTIVATIONS.iter().find(|a| a.1.contains(&name)).map(|a| a.0);
    let activation = activation.ok_or_else(|| {
        f.refuse(format!("hidden_act: {name:?} is not supported; supported: silu, gelu_pytorch_tanh"))
    })?;
    // Qwen2's biases are part of the class, whatever these keys say.
    let switch = |key| if qwen2 || qwen2_moe { Ok(false) } else { f.bool(key).map(|b| b.unwrap_or(false)) };
    let (attention, mlp) = (switch("attention_bias")?, switch("mlp_bias")?);
    let bias = attention || mlp;
    let absent = AbsentBiases { attention: bias && !attention, mlp: bias && !mlp };
    let mut notes = Vec::new();
    if absent.attention || absent.mlp {
        notes.push("only some layers have biases in the files; the others get biases of zero".into());
    }
    let experts = family.map(|family| family.read_config(f)).transpose()?;
    let (width, heads) = (f.required("hidden_size")?, f.required("num_attention_heads")?);
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: f.required("vocab_size")?,
        layers: Some(f.required("num_hidden_layers")?),
        width: Some(width),
        heads: Some(heads),
        kv_heads: Some(f.uint("num_key_value_heads")?.unwrap_or(match kind {
            "mistral" | "mixtral" => 8,
            "qwen2" | "qwen3" => 32,
            "qwen2_moe" => 16,
            "qwen3_moe" => 4,
            _ => heads,
        })),
        head_dim: f.uint("head_dim")?.or((kind == "qwen3").then_some(128)),
        ffn_width: Some(f.required("intermediate_size")?),
        experts,
        context: Some(context),
        norm: Some(NormChoice::RmsNorm),
        norm_eps: Some(f.float("rms_norm_eps")?.unwrap_or(if mixtral || olmoe { 1e-5 } else { 1e-6 })),
        activation: Some(activation),
        positions: Some(PositionChoice::Rope),
        rope_theta: Some(theta),
        rope_scaling,
        window,
        qk_norm: Some(qwen3 || olmoe),
        qk_norm_span: olmoe.then_some(QkNormSpan::Width),
        bias: Some(bias),
        qkv_bias: match qwen2_moe {
            true => Some(f.bool("qkv_bias")?.unwrap_or(true)),
            false => qwen2.then_some(true),
        },
        tied_embeddings: Some(f.bool("tie_word_embeddings")?.unwrap_or(false)),
        dropout: f.float("attention_dropout")?.unwrap_or(0.0),
        init_std: f.float("initializer_range")?.unwrap_or(0.02),
        ..ModelConfig::default()
    };
    Ok((config, absent, notes))
}

/// Base of the rotary angles, if it is written, and how they are stretched, from the old keys or the new one; a stretching that is not
/// known here is refused.
fn rope(f: &Fields, context: u64) -> Result<(Option<f64>, Option<RopeScaling>)> {
    let mut theta = f.float("rope_theta")?;
    let mut found: Option<RopeScaling> = None;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(value) = f.get(key) else { continue };
        let Value::Object(map) = value else {
            return Err(f.refuse(format!("{key}: wanted an object or null, found {value}")));
        };
        let unknown = |inner: &str, v: &Value| {
            f.refuse(format!(
                "{key}.{inner}: {v} is a scaling of rotary positions that Bessemer does not have; without it the results would differ, so nothing was imported"
            ))
        };
        let named = [("rope_type", map.get("rope_type")), ("type", map.get("type"))];
        let mut scaling: Option<RopeScaling> = None;
        for (inner, v) in named.into_iter().filter_map(|(inner, v)| v.map(|v| (inner, v))) {
            let original_context = context;
            let llama3 =
                RopeScaling { kind: RopeScalingKind::Llama3, original_context, ..RopeScaling::default() };
            scaling = match v.as_str() {
                Some("default") => None,
                None if v.is_null() => None,
                Some("linear") => Some(RopeScaling::default()),
                Some("llama3") => Some(llama3),
                _ => return Err(unknown(inner, v)),
            };
        }
        for (inner, v) in map {
            let number = v.as_f64();
            match (inner.as_str(), number, &mut scaling) {
                ("rope_type" | "type", ..) => {}
                _ if v.is_null() => {}
                ("rope_theta", Some(n), _) => {
                    if key == "rope_parameters" && theta.is_some() && theta != Some(n) {
                        return Err(f.refuse("rope_theta and rope_parameters.rope_theta differ".into()));
                    }
                    theta = Some(n);
                }
                ("partial_rotary_factor", Some(1.0), _) => {}
                ("factor", Some(n), Some(s)) => s.factor = n,
                ("low_freq_factor", Some(n), Some(s)) => s.low_freq_factor = n,
                ("high_freq_factor", Some(n), Some(s)) => s.high_freq_factor = n,
                ("original_max_position_embeddings", Some(n), Some(s)) if n >= 1.0 && n.fract() == 0.0 => {
                    s.original_context = n as u64;
                }
                _ => return Err(unknown(inner, v)),
            }
        }
        if found.is_some() && scaling.is_some() && found != scaling {
            return Err(f.refuse("rope_scaling and rope_parameters differ".into()));
        }
        found = scaling.or(found);
    }
    Ok((theta, found))
}

/// The tensors that hold a parameter.
pub(super) fn parts(m: &Model, id: ParamId) -> Vec<Part> {
    use ParamRole as R;
    let (queries, keys) = (m.heads * m.head_dim, m.kv_heads * m.head_dim);
    let list: &[(&str, usize)] = match id.role() {
        R::TokenTable => &[("embed_tokens", m.vocab_size)],
        R::HeadWeight => &[("lm_head", m.vocab_size)],
        R::FinalNormWeight => &[("norm", m.width)],
        R::AttentionNormWeight | R::AttentionNormBias => &[("input_layernorm", m.width)],
        R::MlpNormWeight | R::MlpNormBias => &[("post_attention_layernorm", m.width)],
        R::QkvWeight | R::QkvBias => {
            &[("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]
        }
        R::QueryNormWeight => &[("self_attn.q_norm", queries / m.qk_norm_stretches(m.heads))],
        R::KeyNormWeight => &[("self_attn.k_norm", keys / m.qk_norm_stretches(m.kv_heads))],
        R::AttentionOutWeight | R::AttentionOutBias => &[("self_attn.o_proj", m.width)],
        R::GateUpWeight | R::GateUpBias => &[("mlp.gate_proj", m.ffn_width), ("mlp.up_proj", m.ffn_width)],
        R::DownWeight | R::DownBias => &[("mlp.down_proj", m.width)],
        // Those of experts; a model with others is refused before.
        _ => return experts::parts(m, id),
    };
    list.iter().map(|(theirs, rows)| in_layers(id, theirs, *rows)).collect()
}
