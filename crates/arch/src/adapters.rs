//! Low-rank adapters of linear maps (Hu et al. 2021, LoRA): `y = x W^T + s (x A^T) B^T`, A `[r, inputs]`, B `[outputs, r]`, W frozen.
//!
//! DoRA (Liu et al. 2024) gives the rows of `W + s B A` trained norms ("magnitudes"), which start as those of W.
//!
//! s is alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, rsLoRA). A starts uniform within ±1/sqrt(inputs), B at zero, so that a model
//! with new adapters computes what it did without. Queries, keys and values, and gate and up, are one matrix here and several in other
//! programs: an adapter belongs to a block of the outputs of a matrix.

use crate::config::ArchError;
use crate::model::{MlpKind, Model};
use crate::roles::ParamRole;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

    /// Role of the magnitudes of the rows that it adapts.
    pub fn magnitude(self) -> ParamRole {
        use ParamRole as R;
        match self {
            AdapterTarget::Qkv => R::QkvMagnitude,
            AdapterTarget::Query => R::QueryMagnitude,
            AdapterTarget::Key => R::KeyMagnitude,
            AdapterTarget::Value => R::ValueMagnitude,
            AdapterTarget::Out => R::OutMagnitude,
            AdapterTarget::Gate => R::GateMagnitude,
            AdapterTarget::Up => R::UpMagnitude,
            AdapterTarget::Down => R::DownMagnitude,
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
    /// Train the norms of the rows of adapted matrices too (DoRA): `W + s B A` has its rows divided by their norms and multiplied by
    /// trained magnitudes, which start as the norms of the rows of W.
    pub magnitude: bool,
    /// Probability with which an element of the input of an adapter is dropped in training.
    pub dropout: f64,
    /// Maps that have an adapter: "query", "key", "value" (or all three together as one map, "qkv", as GPT-2 has it), "out", "gate", "up" and
    /// "down".
    pub targets: Vec<AdapterTarget>,
    /// Ranks of some targets in place of `rank`.
    pub ranks: BTreeMap<AdapterTarget, u64>,
    /// Values of some targets in place of `alpha`.
    pub alphas: BTreeMap<AdapterTarget, f64>,
}

impl Default for Adapters {
    fn default() -> Adapters {
        let targets = vec![AdapterTarget::Query, AdapterTarget::Value];
        Adapters {
            rank: 8,
            alpha: 16.0,
            rank_stabilised: false,
            magnitude: false,
            dropout: 0.0,
            targets,
            ranks: BTreeMap::new(),
            alphas: BTreeMap::new(),
        }
    }
}

impl Adapters {
    /// Columns of B and rows of A of a target.
    pub fn rank_of(&self, target: AdapterTarget) -> usize {
        self.ranks.get(&target).copied().unwrap_or(self.rank) as usize
    }

    /// Factor on what an adapter of a target adds.
    pub fn scale_of(&self, target: AdapterTarget) -> f64 {
        let rank = self.rank_of(target) as f64;
        let alpha = self.alphas.get(&target).copied().unwrap_or(self.alpha);
        alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }
}

impl Model {
    /// The adapters, if a target has one.
    pub(crate) fn adapters_of(&self, target: AdapterTarget) -> Option<&Adapters> {
        self.adapters.as_ref().filter(|of| of.targets.contains(&target))
    }

    /// Returns true for the weight and the bias of a map whose rows have trained magnitudes.
    pub fn sets_norms_of(&self, role: ParamRole) -> bool {
        let Some(adapters) = self.adapters.as_ref().filter(|adapters| adapters.magnitude) else {
            return false;
        };
        let of_map = |target: &AdapterTarget| {
            let of = role.row().name.strip_prefix(target.map(self));
            matches!(of, Some(".weight" | ".bias"))
        };
        adapters.targets.iter().any(of_map)
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
        if !(0.0..=0.99).contains(&adapters.dropout) {
            return wrong("adapters.dropout", format!("wanted 0 to 0.99, found {}", adapters.dropout));
        }
        if adapters.magnitude && adapters.dropout > 0.0 {
            return wrong(
                "adapters.dropout",
                "adapters with magnitude have none: W, too, would have to read the dropped input; take 0, or magnitude = false".into(),
            );
        }
        let (ranks, alphas) = ("adapters.ranks", "adapters.alphas");
        let of_ranks = adapters.ranks.keys().map(|target| (ranks, target));
        let named = of_ranks.chain(adapters.alphas.keys().map(|target| (alphas, target)));
        for (key, target) in named {
            if !adapters.targets.contains(target) {
                let name = target.name();
                return wrong(
                    key,
                    format!("\"{name}\" is not among adapters.targets: add it there, or take it out"),
                );
            }
        }
        if let Some((target, alpha)) = adapters.alphas.iter().find(|(_, of)| !(of.is_finite() && **of > 0.0))
        {
            let name = target.name();
            return wrong(alphas, format!("wanted a number above 0 for \"{name}\", found {alpha}"));
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
            let (key, rank) = match adapters.ranks.get(target) {
                Some(rank) => (ranks, *rank),
                None => ("adapters.rank", adapters.rank),
            };
            if !(1..=most.min(MOST_RANK)).contains(&rank) {
                return wrong(
                    key,
                    format!("wanted 1 to {most}, the smaller side of \"{name}\", found {rank}"),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;
    use AdapterTarget::{Down, Query, Up, Value};

    fn error(of: Adapters) -> String {
        let model = Model { adapters: Some(of), ..named("llama").unwrap() };
        model.check().map_or_else(|e| e.to_string(), |()| "fine".into())
    }

    #[test]
    fn combinations_without_a_meaning_are_refused_by_key() {
        let all = Adapters { targets: vec![Query, Value, Down], ..Adapters::default() };
        let magnitudes = Adapters { magnitude: true, ..all.clone() };
        let ranks = |target, rank| Adapters { ranks: [(target, rank)].into(), ..all.clone() };
        let alphas = |target, alpha| Adapters { alphas: [(target, alpha)].into(), ..all.clone() };
        for (of, words) in [
            (Adapters { dropout: 1.0, ..all.clone() }, "model.adapters.dropout: wanted 0 to 0.99, found 1"),
            (Adapters { dropout: f64::NAN, ..all.clone() }, "model.adapters.dropout"),
            (Adapters { dropout: 0.1, ..magnitudes.clone() }, "adapters with magnitude have none"),
            (ranks(Up, 4), "model.adapters.ranks: \"up\" is not among adapters.targets"),
            (ranks(Down, 0), "model.adapters.ranks: wanted 1 to"),
            (ranks(Value, 1 << 20), "the smaller side of \"value\", found 1048576"),
            (alphas(Up, 4.0), "model.adapters.alphas: \"up\" is not among"),
            (alphas(Down, -1.0), "model.adapters.alphas: wanted a number above 0 for \"down\", found -1"),
        ] {
            let e = error(of);
            assert!(e.contains(words), "{e}");
        }
        let of = Adapters { ranks: [(Down, 2)].into(), alphas: [(Down, 3.0)].into(), ..magnitudes };
        assert_eq!((of.rank_of(Down), of.rank_of(Query)), (2, 8));
        assert_eq!((of.scale_of(Down), of.scale_of(Query)), (1.5, 2.0));
        assert_eq!(error(of), "fine");
    }

    #[test]
    fn a_map_with_magnitudes_has_one_for_each_output() {
        let adapters = Adapters {
            targets: vec![Query, Down],
            magnitude: true,
            ranks: [(Down, 3)].into(),
            ..Adapters::default()
        };
        let model = Model { adapters: Some(adapters), ..named("llama").unwrap() };
        let shape =
            |name: &str| model.params().into_iter().find(|spec| spec.name == name).map(|spec| spec.shape);
        let outputs = |target: AdapterTarget| Some(vec![target.outputs(&model).len()]);
        assert_eq!(shape("layers.1.attention.query.magnitude"), outputs(Query));
        assert_eq!(shape("layers.1.mlp.down.magnitude"), outputs(Down));
        assert_eq!(shape("layers.1.mlp.down.lora_a"), Some(vec![3, model.ffn_width]));
        assert_eq!(shape("layers.1.attention.value.magnitude"), None);
        let norms = |role: ParamRole| model.sets_norms_of(role);
        assert!(norms(ParamRole::QkvWeight) && norms(ParamRole::QkvBias) && norms(ParamRole::DownWeight));
        assert!(!norms(ParamRole::GateUpWeight) && !norms(ParamRole::DownLoraA));
        let listed: usize = model.params().iter().map(crate::ParamSpec::len).sum();
        assert_eq!(model.parameters(), listed);
    }
}
