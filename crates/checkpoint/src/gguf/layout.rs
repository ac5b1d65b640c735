//! What llama.cpp calls the architectures, keys and tensors of a model.

use super::metadata::Value;
use crate::hf::layout::{Mapped, Order, Part, absent_biases, is_exported, kind, written};
use crate::hf::{gpt2, llama};
use bessemer_arch::{
    ActivationChoice, Experts, Model, ParamId, ParamRole, RopeScaling, RopeScalingKind, Unit,
};
use bessemer_tensor::op;

/// An architecture of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Gpt2,
    Llama,
    /// Biases of queries, keys and values only.
    Qwen2,
    /// Normalised queries and keys.
    Qwen3,
    /// The same with experts.
    Qwen3Moe,
}

/// Name of the tensor of divisors by which Llama 3 stretches angles.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";

impl Architecture {
    /// The one that computes what `model` computes, or what stands in the way.
    pub(super) fn of(model: &Model) -> Result<Architecture, String> {
        let mut gpt2 = gpt2::obstacles(model);
        if model.activation != ActivationChoice::GeluTanh {
            gpt2.push(format!("activation = {} (gpt2 has gelu-tanh)", written(model.activation)));
        }
        if gpt2.is_empty() {
            return Ok(Architecture::Gpt2);
        }
        let mut llama = llama::obstacles(model);
        if model.activation != ActivationChoice::Swiglu {
            llama.push(format!("activation = {} (llama has swiglu)", written(model.activation)));
        }
        if let Some(window) = model.window.filter(|w| *w < model.context) {
            llama.push(format!("window = {window} (llama sees the whole context of {})", model.context));
        }
        if model.qk_norm && !model.qk_norm_span.is_head() {
            llama.push("qk_norm_span = width (qwen3 and qwen3moe normalise each head)".into());
        }
        if let Some(experts) = &model.experts {
            let mut need = |ok: bool, text: &str| {
                if !ok {
                    llama.push(text.into());
                }
            };
            for key in experts.gate.unusual() {
                need(false, &format!("experts.{key} (llama and qwen3moe have the gate top_k)"));
            }
            need(
                model.expert_counts.is_empty(),
                "experts.count that differs by layer (llama and qwen3moe have one number)",
            );
            need(experts.renormalise, "experts.renormalise = false (llama and qwen3moe divide by the sum)");
            need(
                model.expert_layers.is_all(),
                "experts.layers other than all (llama and qwen3moe have them in all)",
            );
            need(model.shared_expert.is_none(), "a shared block (llama and qwen3moe have none)");
        }
        let stretched = divisor_scaling(model).is_some();
        if model.qk_norm && stretched {
            llama.push("rope_scaling of kind llama3 with qk_norm (qwen3 has none)".into());
        }
        if !llama.is_empty() {
            return Err(format!(
                "cannot express this model as gpt2 or llama of llama.cpp; differences from gpt2: {}; from \
                 llama: {}",
                gpt2.join(", "),
                llama.join(", ")
            ));
        }
        if model.qk_norm && model.experts.is_some() {
            return Ok(Architecture::Qwen3Moe);
        }
        Ok(match (model.qk_norm, model.qkv_bias && !model.bias && !stretched) {
            (true, _) => Architecture::Qwen3,
            (false, true) => Architecture::Qwen2,
            (false, false) => Architecture::Llama,
        })
    }

    /// Value of `general.architecture`, and prefix of its keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Architecture::Gpt2 => "gpt2",
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen3Moe => "qwen3moe",
        }
    }

    /// The parameters of `model` and the tensors that hold them; a bias that only this architecture has is a parameter of its own.
    pub(super) fn map(self, model: &Model) -> Vec<Mapped> {
        let map = |model: &Model| -> Vec<Mapped> {
            let of = |id| self.parts(model, id);
            model
                .params()
                .into_iter()
                .filter(|p| is_exported(p.id.role()))
                .map(|p| Mapped { parts: of(p.id), name: p.name, shape: p.shape })
                .collect()
        };
        let mut all = map(model);
        if self == Architecture::Gpt2 {
            all.extend(absent_biases(model, map));
        }
        all
    }

    /// The tensors that hold a parameter.
    fn parts(self, m: &Model, id: ParamId) -> Vec<Part> {
        use ParamRole as R;
        let (queries, keys) = (m.heads * m.head_dim, m.kv_heads * m.head_dim);
        let experts = m.experts.unwrap_or(Experts::top_k([0, 0, 1], true));
        // The others turn rows that are half a head apart, as here.
        let turned = if self == Architecture::Llama { Order::RotaryPairs(m.head_dim) } else { Order::Same };
        let list: &[(&str, usize, Order)] = match id.role() {
            R::TokenTable => &[("token_embd", m.vocab_size, Order::Same)],
            R::PositionTable => &[("position_embd", m.context, Order::Same)],
            R::HeadWeight => &[("output", m.vocab_size, Order::Same)],
            R::FinalNormWeight | R::FinalNormBias => &[("output_norm", m.width, Order::Same)],
            R::AttentionNormWeight | R::AttentionNormBias => &[("attn_norm", m.width, Order::Same)],
            R::MlpNormWeight | R::MlpNormBias => &[("ffn_norm", m.width, Order::Same)],
            R::QkvWeight | R::QkvBias if self == Architecture::Gpt2 => {
                &[("attn_qkv", m.qkv_width(), Order::Same)]
            }
            R::QkvWeight | R::QkvBias => {
                &[("attn_q", queries, turned), ("attn_k", keys, turned), ("attn_v", keys, Order::Same)]
            }
            R::QueryNormWeight => &[("attn_q_norm", m.head_dim, Order::Same)],
            R::KeyNormWeight => &[("attn_k_norm", m.head_dim, Order::Same)],
            R::AttentionOutWeight | R::AttentionOutBias => &[("attn_output", m.width, Order::Same)],
            R::GateUpWeight | R::GateUpBias => {
                &[("ffn_gate", m.ffn_width, Order::Same), ("ffn_up", m.ffn_width, Order::Same)]
            }
            R::RouterWeight => &[("ffn_gate_inp", experts.count, Order::Same)],
            R::ExpertsGateUpWeight => &[
                (
                    "ffn_gate_exps",
                    experts.count * experts.width,
                    Order::Blocks { of: 2, number: 0, rows: experts.width },
                ),
                (
                    "ffn_up_exps",
                    experts.count * experts.width,
                    Order::Blocks { of: 2, number: 1, rows: experts.width },
                ),
            ],
            R::ExpertsDownWeight => &[(
                "ffn_down_exps",
                experts.count * m.width,
                Order::Blocks { of: 1, number: 0, rows: m.width },
            )],
            R::UpWeight | R::UpBias => &[("ffn_up", m.ffn_width, Order::Same)],
            R::DownWeight | R::DownBias => &[("ffn_down", m.width, Order::Same)],
            // Refused before (`foreign_choices`).
            _ => &[],
        };
        let kind = kind(id);
        let name = |theirs: &str| match id.unit() {
            Unit::Layer(layer) => format!("blk.{layer}.{theirs}.{kind}"),
            Unit::Embedding | Unit::Head => format!("{theirs}.{kind}"),
        };
        list.iter().map(|&(theirs, rows, order)| Part { name: name(theirs), rows, skip: 0, order }).collect()
    }

    /// The keys that say how the model computes.
    pub(super) fn keys(self, m: &Model) -> Vec<(String, Value)> {
        let sizes = [
            ("context_length", m.context),
            ("embedding_length", m.width),
            ("block_count", m.layers),
            // The experts of a llama are as wide as this.
            (
                "feed_forward_length",
                m.experts.filter(|_| self == Architecture::Llama).map_or(m.ffn_width, |e| e.width),
            ),
            ("attention.head_count", m.heads),
            ("attention.head_count_kv", m.kv_heads),
            ("attention.key_length", m.head_dim),
            ("attention.value_length", m.head_dim),
            ("vocab_size", m.vocab_size),
        ];
        let mut keys: Vec<(String, Value)> =
            sizes.iter().map(|(key, size)| ((*key).into(), Value::U32(*size as u32))).collect();
        let mut add = |key: &str, value| keys.push((key.into(), value));
        if let Some(Experts { count, choices, width, .. }) = m.experts {
            add("expert_count", Value::U32(count as u32));
            add("expert_used_count", Value::U32(choices as u32));
            if self == Architecture::Qwen3Moe {
                add("expert_feed_forward_length", Value::U32(width as u32));
            }
        }
        if self == Architecture::Gpt2 {
            add("attention.layer_norm_epsilon", Value::F32(m.norm_eps as f32));
        } else {
            add("attention.layer_norm_rms_epsilon", Value::F32(m.norm_eps as f32));
            add("rope.dimension_count", Value::U32(m.head_dim as u32));
            add("rope.freq_base", Value::F32(m.rope_theta as f32));
            if let Some(s) = m.rope_scaling.filter(|s| s.kind == RopeScalingKind::Linear) {
                add("rope.scaling.type", Value::String("linear".into()));
                add("rope.scaling.factor", Value::F32(s.factor as f32));
            }
        }
        for key in &mut keys {
            key.0 = format!("{}.{}", self.name(), key.0);
        }
        keys
    }
}

/// Llama 3's stretching of angles, if the model has it.
fn divisor_scaling(m: &Model) -> Option<RopeScaling> {
    m.rope_scaling.filter(|s| s.kind == RopeScalingKind::Llama3)
}

/// What [`ROPE_DIVISORS`] holds: for each pair of a head the number that divides its frequency.
pub(super) fn rope_divisors(m: &Model) -> Option<Vec<f32>> {
    let s = divisor_scaling(m)?;
    let scaling = op::RopeScaling::Llama3 {
        factor: s.factor as f32,
        low_freq_factor: s.low_freq_factor as f32,
        high_freq_factor: s.high_freq_factor as f32,
        original_positions: s.original_context as usize,
    };
    let frequency = |pair: usize| m.rope_theta.powf(-2.0 * pair as f64 / m.head_dim as f64);
    Some((0..m.head_dim / 2).map(|pair| (frequency(pair) / scaling.scaled(frequency(pair))) as f32).collect())
}
