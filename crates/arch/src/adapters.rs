//! Low-rank adapters of linear maps (Hu et al. 2021, LoRA): `y = x W^T + s (x A^T) B^T`, A `[r, inputs]`, B `[outputs, r]`, W frozen.
//!
//! s is alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, rsLoRA). A starts uniform within ±1/sqrt(inputs), B at zero, so that a model
//! with new adapters computes what it did without. Queries, keys and values, and gate and up, are one matrix here and several in other
//! programs: an adapter belongs to a block of the outputs of a matrix.

use crate::config::ArchError;
use crate::model::{MlpKind, Model};
use crate::roles::ParamRole;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Largest rank: more is a mistake.
const MOST_RANK: u64 = 1 << 16;

/// A linear map of a layer, or a block of its outputs, that may have an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdapterTarget {
    /// Queries, keys and values together, as GPT-2's `c_attn`.
    Qkv,
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// The output of attention.
    Out,
    /// The gate of a gated feed-forward block.
    Gate,
    /// The first matrix of a feed-forward block besides the gate.
    Up,
    /// Its last matrix.
    Down,
}

impl AdapterTarget {
    /// Every target, in the order of the forward pass.
    pub const ALL: [AdapterTarget; 8] = [
        AdapterTarget::Qkv,
        AdapterTarget::Query,
        AdapterTarget::Key,
        AdapterTarget::Value,
        AdapterTarget::Out,
        AdapterTarget::Gate,
        AdapterTarget::Up,
        AdapterTarget::Down,
    ];

    /// The name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            AdapterTarget::Qkv => "qkv",
            AdapterTarget::Query => "query",
            AdapterTarget::Key => "key",
            AdapterTarget::Value => "value",
            AdapterTarget::Out => "out",
            AdapterTarget::Gate => "gate",
            AdapterTarget::Up => "up",
            AdapterTarget::Down => "down",
        }
    }

    /// Roles of A and B.
    pub fn roles(self) -> [ParamRole; 2] {
        use ParamRole as R;
        match self {
            AdapterTarget::Qkv => [R::QkvLoraA, R::QkvLoraB],
            AdapterTarget::Query => [R::QueryLoraA, R::QueryLoraB],
            AdapterTarget::Key => [R::KeyLoraA, R::KeyLoraB],
            AdapterTarget::Value => [R::ValueLoraA, R::ValueLoraB],
            AdapterTarget::Out => [R::OutLoraA, R::OutLoraB],
            AdapterTarget::Gate => [R::GateLoraA, R::GateLoraB],
            AdapterTarget::Up => [R::UpLoraA, R::UpLoraB],
            AdapterTarget::Down => [R::DownLoraA, R::DownLoraB],
        }
    }

    /// The matrix whose map it adapts.
    pub fn adapts(self, model: &Model) -> ParamRole {
        match self {
            AdapterTarget::Qkv | AdapterTarget::Query | AdapterTarget::Key | AdapterTarget::Value => {
                ParamRole::QkvWeight
            }
            AdapterTarget::Out => ParamRole::AttentionOutWeight,
            AdapterTarget::Gate => ParamRole::GateUpWeight,
            AdapterTarget::Up if model.mlp() == MlpKind::Plain => ParamRole::UpWeight,
            AdapterTarget::Up => ParamRole::GateUpWeight,
            AdapterTarget::Down => ParamRole::DownWeight,
        }
    }

    /// Name of that map in its layer, such as "attention.qkv".
    pub fn map(self, model: &Model) -> &'static str {
        let name = self.adapts(model).row().name;
        name.strip_suffix(".weight").unwrap_or(name)
    }

    /// Name in its layer, with which the names of its matrices begin: "attention.query".
    pub fn part(self) -> &'static str {
        let name = self.roles()[0].row().name;
        name.strip_suffix(".lora_a").unwrap_or(name)
    }

    /// Outputs of that map that it adapts.
    pub fn outputs(self, model: &Model) -> Range<usize> {
        let (queries, keys) = (model.attention_width(), model.kv_heads * model.head_dim);
        let (f, second) = (model.ffn_width, self.adapts(model) == ParamRole::GateUpWeight);
        match self {
            AdapterTarget::Qkv => 0..queries + 2 * keys,
            AdapterTarget::Query => 0..queries,
            AdapterTarget::Key => queries..queries + keys,
            AdapterTarget::Value => queries + keys..queries + 2 * keys,
            AdapterTarget::Out | AdapterTarget::Down => 0..model.width,
            AdapterTarget::Gate => 0..f,
            AdapterTarget::Up => {
                if second {
                    f..2 * f
                } else {
                    0..f
                }
            }
        }
    }

    /// Inputs of that map.
    pub fn inputs(self, model: &Model) -> usize {
        match self {
            AdapterTarget::Out => model.attention_width(),
            AdapterTarget::Down => model.ffn_width,
            _ => model.width,
        }
    }
}

/// `[model.adapters]`: low-rank matrices beside linear maps, which are trained while all else is frozen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adapters {
    /// Columns of B and rows of A.
    pub rank: u64,
    /// An adapter adds `alpha` / `rank` times its product.
    pub alpha: f64,
    /// Divide `alpha` by the square root of the rank instead (rsLoRA), so that large ranks learn as fast.
    pub rank_stabilised: bool,
    /// Maps that have an adapter: "query", "key", "value" (or all three together as one map, "qkv", as GPT-2 has it), "out", "gate", "up" and
    /// "down".
    pub targets: Vec<AdapterTarget>,
}

impl Default for Adapters {
    fn default() -> Adapters {
        let targets = vec![AdapterTarget::Query, AdapterTarget::Value];
        Adapters { rank: 8, alpha: 16.0, rank_stabilised: false, targets }
    }
}

impl Adapters {
    /// [`Adapters::rank`] as a width.
    pub fn width(&self) -> usize {
        self.rank as usize
    }

    /// Factor on what an adapter adds.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }
}

impl Model {
    /// Rank of the adapters of a target; `None` if it has none.
    pub(crate) fn adapter_rank(&self, target: AdapterTarget) -> Option<usize> {
        let adapters = self.adapters.as_ref().filter(|of| of.targets.contains(&target))?;
        Some(adapters.rank as usize)
    }

    /// Parameters of adapters.
    pub fn adapter_parameters(&self) -> usize {
        self.sum_params(|spec| if spec.id.role().is_adapter() { spec.len() } else { 0 })
    }

    /// Refuses adapters that the model cannot have.
    pub(crate) fn check_adapters(&self) -> Result<(), ArchError> {
        let Some(adapters) = &self.adapters else { return Ok(()) };
        let wrong = |key: &'static str, problem: String| Err(ArchError { key, problem });
        let targets = "adapters.targets";
        if adapters.targets.is_empty() {
            return wrong(
                targets,
                "wanted at least one map, such as [\"query\", \"value\"], found none".into(),
            );
        }
        if !(adapters.alpha.is_finite() && adapters.alpha > 0.0) {
            return wrong("adapters.alpha", format!("wanted a number above 0, found {}", adapters.alpha));
        }
        for (at, target) in adapters.targets.iter().enumerate() {
            let name = target.name();
            if adapters.targets[..at].contains(target) {
                return wrong(targets, format!("\"{name}\" is named twice"));
            }
            let separate = [AdapterTarget::Query, AdapterTarget::Key, AdapterTarget::Value];
            if let Some(other) = adapters.targets.iter().find(|other| separate.contains(other))
                && *target == AdapterTarget::Qkv
            {
                return wrong(
                    targets,
                    format!(
                        "\"qkv\" adapts queries, keys and values together, and \"{}\" one of them; take one or the other",
                        other.name()
                    ),
                );
            }
            if *target == AdapterTarget::Gate && self.mlp() == MlpKind::Plain {
                return wrong(
                    targets,
                    format!(
                        "\"{name}\" is a map of gated feed-forward blocks, found activation {:?}; take \"up\" and \"down\"",
                        self.activation
                    ),
                );
            }
            let [a, _] = target.roles();
            if !a.occurs_in(self) {
                return wrong(
                    targets,
                    format!(
                        "\"{name}\" is a map of dense feed-forward blocks, and every layer has experts; take maps of attention"
                    ),
                );
            }
            let most = target.inputs(self).min(target.outputs(self).len()) as u64;
            if !(1..=most.min(MOST_RANK)).contains(&adapters.rank) {
                return wrong(
                    "adapters.rank",
                    format!("wanted 1 to {most}, the smaller side of \"{name}\", found {}", adapters.rank),
                );
            }
        }
        Ok(())
    }
}
