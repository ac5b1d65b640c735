//! Relatives of Llama whose feed-forward blocks are experts: `MixtralForCausalLM`, `Qwen2MoeForCausalLM`, `Qwen3MoeForCausalLM` and
//! `OlmoeForCausalLM`.
//!
//! | here | `MixtralForCausalLM`, in `block_sparse_moe` | the others, in `mlp` |
//! |---|---|---|
//! | `mlp.router` | `gate` | `gate` |
//! | `mlp.experts.gate_up`, rows of expert e: its gate, its up | `experts.e.w1`, `experts.e.w3` | `experts.e.gate_proj`, `experts.e.up_proj` |
//! | `mlp.experts.down`, rows of expert e | `experts.e.w2` | `experts.e.down_proj` |
//!
//! | `mlp.shared.gate_up`, `down`, `gate` | – | `shared_expert.{gate,up,down}_proj`, `shared_expert_gate` (Qwen2) |
//!
//! Files have a tensor for each matrix of each expert. A tensor that holds a layer's experts is refused: some programs write them
//! `[experts, outputs, inputs]`, others `[experts, inputs, outputs]`, under one name.

use super::fields::Fields;
use super::layout::{Part, in_layers};
use crate::error::Result;
use bessemer_arch::{
    ExpertCount, ExpertLayers, Experts, ExpertsConfig, LayerRule, Model, ParamId, ParamRole, QkNormSpan,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Most layers of a model whose layers are listed.
const MOST_LAYERS: u64 = 10_000;

/// A class with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Mixtral,
    /// A gated block beside the experts.
    Qwen2,
    /// Normalised queries and keys.
    Qwen3,
    /// The same, all heads together.
    Olmoe,
}

impl Family {
    /// The one that expresses a model with experts.
    pub(super) fn of(m: &Model) -> Option<Family> {
        m.experts.map(|_| match (m.qk_norm, m.shared_expert) {
            (true, _) if m.qk_norm_span == QkNormSpan::Width => Family::Olmoe,
            (true, _) => Family::Qwen3,
            (false, Some(_)) => Family::Qwen2,
            (false, None) => Family::Mixtral,
        })
    }

    /// The one of that `model_type`.
    pub(super) fn named(model_type: &str) -> Option<Family> {
        [Family::Mixtral, Family::Qwen2, Family::Qwen3, Family::Olmoe]
            .into_iter()
            .find(|family| family.model_type() == model_type)
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Family::Mixtral => "MixtralForCausalLM",
            Family::Qwen2 => "Qwen2MoeForCausalLM",
            Family::Qwen3 => "Qwen3MoeForCausalLM",
            Family::Olmoe => "OlmoeForCausalLM",
        }
    }

    pub(super) fn model_type(self) -> &'static str {
        match self {
            Family::Mixtral => "mixtral",
            Family::Qwen2 => "qwen2_moe",
            Family::Qwen3 => "qwen3_moe",
            Family::Olmoe => "olmoe",
        }
    }

    /// The keys of config.json about experts, in place of those of Llama.
    pub(super) fn config(self, m: &Model, balance: Option<f64>) -> Map<String, Value> {
        let Some(Experts { count, choices, width, renormalise, .. }) = m.experts else { return Map::new() };
        let value = match self {
            Family::Mixtral => json!({ "num_local_experts": count, "intermediate_size": width }),
            Family::Olmoe => json!({
                "num_experts": count,
                "intermediate_size": width,
                "norm_topk_prob": renormalise,
                "clip_qkv": null,
            }),
            Family::Qwen2 | Family::Qwen3 => json!({
                "num_experts": count,
                "moe_intermediate_size": width,
                "norm_topk_prob": renormalise,
                "decoder_sparse_step": if m.expert_layers == ExpertLayers::Rule(LayerRule::Alternate) { 2 } else { 1 },
                "mlp_only_layers": match &m.expert_layers {
                    ExpertLayers::Rule(_) => Vec::new(),
                    ExpertLayers::Numbers(_) => (0..m.layers).filter(|layer| !m.has_experts(*layer)).collect(),
                },
            }),
        };
        let mut map = value.as_object().cloned().unwrap_or_default();
        if self == Family::Qwen2 {
            let width = m.shared_expert.map(|shared| shared.width);
            map.insert("shared_expert_intermediate_size".into(), json!(width));
            map.insert("qkv_bias".into(), json!(m.qkv_bias));
        }
        map.insert("num_experts_per_tok".into(), json!(choices));
        map.insert("output_router_logits".into(), json!(false));
        if let Some(balance) = balance {
            let layers = m.expert_layers_in(0..m.layers) as f64;
            map.insert("router_aux_loss_coef".into(), json!(balance * layers / choices as f64));
        }
        map
    }

    /// Layers that have experts.
    fn read_layers(self, f: &Fields) -> Result<ExpertLayers> {
        if matches!(self, Family::Mixtral | Family::Olmoe) {
            return Ok(ExpertLayers::default());
        }
        let step = f.uint("decoder_sparse_step")?.unwrap_or(1).max(1);
        let dense: BTreeSet<u64> = f.uints("mlp_only_layers")?.into_iter().collect();
        let layers = f.required("num_hidden_layers")?;
        if step == 1 && dense.is_empty() {
            return Ok(ExpertLayers::default());
        }
        if layers > MOST_LAYERS {
            return Err(f.refuse(format!(
                "num_hidden_layers: wanted at most {MOST_LAYERS} layers of two kinds, found {layers}"
            )));
        }
        let has = |layer: usize| (layer as u64 + 1).is_multiple_of(step) && !dense.contains(&(layer as u64));
        Ok(ExpertLayers::of(layers as usize, has))
    }

    /// The experts that a config.json means.
    pub(super) fn read_config(self, f: &Fields) -> Result<ExpertsConfig> {
        // One number has had two names in either class.
        let (count, other) = match self {
            Family::Mixtral => ("num_local_experts", "num_experts"),
            Family::Qwen2 | Family::Qwen3 | Family::Olmoe => ("num_experts", "num_local_experts"),
        };
        let count = match f.uint(count)? {
            None if f.has(other) => f.required(other)?,
            _ => f.required(count)?,
        };
        let choices = f.required("num_experts_per_tok")?;
        let (width, renormalise) = match self {
            Family::Mixtral => (f.required("intermediate_size")?, true),
            Family::Olmoe => {
                f.only("clip_qkv", &Value::Null)?;
                (f.required("intermediate_size")?, f.bool("norm_topk_prob")?.unwrap_or(false))
            }
            Family::Qwen2 | Family::Qwen3 => {
                (f.required("moe_intermediate_size")?, f.bool("norm_topk_prob")?.unwrap_or(false))
            }
        };
        let shared = match self {
            Family::Qwen2 => f.required("shared_expert_intermediate_size")?,
            _ => 0,
        };
        let layers = self.read_layers(f)?;
        let of_them = layers.count(&(0..f.required("num_hidden_layers")? as usize)).max(1) as f64;
        let coefficient = f.float("router_aux_loss_coef")?.unwrap_or(0.001);
        Ok(ExpertsConfig {
            layers: Some(layers),
            count: Some(ExpertCount::One(count)),
            choices: Some(choices),
            width: Some(width),
            renormalise: Some(renormalise),
            shared: Some(shared),
            shared_gate: Some(shared > 0),
            // There the loss is k times that of here, and a mean over layers instead of a sum.
            balance: Some(coefficient * choices as f64 / of_them),
            z_loss: Some(0.0),
            ..ExpertsConfig::default()
        })
    }
}

/// Why no class with experts can express a model that has them.
pub(super) fn obstacles(m: &Model, experts: &Experts) -> Vec<String> {
    let mut list = Vec::new();
    let mut need = |ok: bool, text: &str| {
        if !ok {
            list.push(text.into());
        }
    };
    for key in experts.gate.unusual() {
        need(false, &format!("experts.{key} (classes with experts have the gate top_k)"));
    }
    need(
        m.expert_counts.is_empty(),
        "experts.count that differs by layer (classes with experts have one number)",
    );
    let mixed = m.shared_expert.is_some_and(|shared| shared.mixed);
    need(!mixed, "experts.residual = true (blocks beside experts are added)");
    match Family::of(m) {
        Some(Family::Mixtral) => {
            need(
                experts.renormalise,
                "experts.renormalise = false with neither qk_norm nor a shared block (Mixtral divides by the sum)",
            );
            need(
                m.expert_layers.is_all(),
                "experts.layers other than all with neither qk_norm nor a shared block (Mixtral has them in all)",
            );
            need(!m.qkv_bias, "qkv_bias without a shared block (Mixtral has none, Qwen2-MoE has one)");
        }
        Some(Family::Qwen2) => {
            need(m.window.is_none(), "a window with a shared block (Qwen2-MoE has none)");
            let gated = m.shared_expert.is_none_or(|shared| shared.gate || shared.mixed);
            need(gated, "a shared block without experts.shared_gate (that of Qwen2-MoE has one)");
        }
        Some(Family::Qwen3) => {
            need(m.shared_expert.is_none(), "a shared block with qk_norm (Qwen3-MoE has no such block)");
            need(!m.qkv_bias, "qkv_bias with qk_norm (Qwen3-MoE has no biases)");
        }
        Some(Family::Olmoe) => {
            need(m.shared_expert.is_none(), "a shared block with qk_norm (OLMoE has no such block)");
            need(
                m.expert_layers.is_all(),
                "experts.layers other than all with qk_norm_span = width (OLMoE has them in all)",
            );
            need(!m.qkv_bias, "qkv_bias with qk_norm (OLMoE has no biases)");
            need(
                m.heads * m.head_dim == m.width,
                "heads x head_dim other than width with qk_norm_span = width (OLMoE normalises so many columns)",
            );
        }
        None => {}
    }
    list
}

/// The tensors that hold a parameter of experts.
pub(super) fn parts(m: &Model, id: ParamId) -> Vec<Part> {
    let (Some(family), Some(experts)) = (Family::of(m), m.experts) else { return Vec::new() };
    let (block, [gate, up, down]) = match family {
        Family::Mixtral => ("block_sparse_moe", ["w1", "w3", "w2"]),
        Family::Qwen2 | Family::Qwen3 | Family::Olmoe => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
    };
    let of_all = |matrices: &[(&str, usize)]| {
        let of = |expert| {
            let part = move |(matrix, rows): &(&str, usize)| {
                in_layers(id, &format!("{block}.experts.{expert}.{matrix}"), *rows)
            };
            matrices.iter().map(part).collect::<Vec<_>>()
        };
        (0..experts.count).flat_map(of).collect()
    };
    match id.role() {
        ParamRole::RouterWeight => vec![in_layers(id, &format!("{block}.gate"), experts.count)],
        ParamRole::ExpertsGateUpWeight => of_all(&[(gate, experts.width), (up, experts.width)]),
        ParamRole::ExpertsDownWeight => of_all(&[(down, m.width)]),
        ParamRole::SharedGateUpWeight => {
            let rows = m.shared_expert.map_or(0, |shared| shared.width);
            [gate, up].map(|matrix| in_layers(id, &format!("{block}.shared_expert.{matrix}"), rows)).into()
        }
        ParamRole::SharedDownWeight => {
            vec![in_layers(id, &format!("{block}.shared_expert.{down}"), m.width)]
        }
        ParamRole::SharedGateWeight => vec![in_layers(id, &format!("{block}.shared_expert_gate"), 1)],
        _ => Vec::new(),
    }
}

/// What is wrong with a tensor that holds all experts of a layer, by its name and shape.
pub(super) fn stack(m: &Model, name: &str, shape: &[usize]) -> Option<String> {
    let experts = m.experts?;
    let (d, f) = (m.width, experts.width);
    let (outputs, inputs) = match name.rsplit_once(".experts.")?.1.trim_end_matches(".weight") {
        "gate_up_proj" => (2 * f, d),
        "down_proj" => (d, f),
        "gate_proj" | "up_proj" | "w1" | "w3" => (f, d),
        "w2" => (d, f),
        _ => return None,
    };
    let (as_here, transposed) = ([experts.count, outputs, inputs], [experts.count, inputs, outputs]);
    let found = match (shape == as_here, shape == transposed) {
        (true, true) => {
            "experts of a layer in one tensor, whose inputs and outputs the shape does not tell apart"
        }
        (true, false) => "experts of a layer in one tensor, [experts, outputs, inputs]",
        (false, true) => "experts of a layer in one tensor, transposed: [experts, inputs, outputs]",
        (false, false) => "experts of a layer in one tensor",
    };
    Some(format!(
        "wanted a tensor for each matrix of each expert, found {found} (shape {shape:?}); load the model with transformers and call \
         save_pretrained(directory), which writes them apart, then import that directory"
    ))
}
