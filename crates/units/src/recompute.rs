//! Activation recomputation: which values of each layer the backward pass computes again instead of having them stored.

use crate::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};

/// What the backward pass of a layer computes again instead of having it stored (activation recomputation; Korthikanti et
/// al. 2022, "Reducing Activation Recomputation in Large Transformer Models"). In f32 storage the numbers are the same
/// bits either way.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Nothing: all inputs of products are stored.
    None,
    /// What is large and cheap: normalised rows from the residual stream, activations and gated products from the
    /// pre-activations. No product is computed twice.
    #[default]
    Selective,
    /// What `selective` computes again, and the attention core (Megatron-LM's `--recompute-modules core_attn`): its
    /// result and log-sum-exps from the stored queries, keys and values.
    Attention,
    /// Everything in the layer except the attention core, whose result and log-sum-exps are stored beside the residual
    /// stream that enters the layer (DistFlashAttn: Li et al. 2023, section 3.3). The attention runs forward once.
    AttentionOutput,
    /// Everything in the layer (Megatron-LM's `--recompute-granularity full`): only the residual stream that enters it is
    /// stored.
    Full,
    /// By length of a micro-batch: as few layers as a budget of activation memory demands recompute everything, the others
    /// nothing ([`RecomputePlan::activation_memory`]; Liao et al. 2022, "Mimose"). Where no budget is known, as `full`.
    InputAware,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Attention => "attention",
            Recompute::AttentionOutput => "attention-output",
            Recompute::Full => "full",
            Recompute::InputAware => "input-aware",
        })
    }
}

/// Policy of one layer: a named one, or a list of values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RecomputePolicy {
    /// A named policy.
    Named(Recompute),
    /// Values of the layer as `bessemer program show` names them ("mlp.pre"), or the beginnings of such names ("mlp").
    Values(Vec<String>),
}

impl Default for RecomputePolicy {
    fn default() -> Self {
        RecomputePolicy::Named(Recompute::default())
    }
}

impl From<Recompute> for RecomputePolicy {
    fn from(policy: Recompute) -> Self {
        RecomputePolicy::Named(policy)
    }
}

impl fmt::Display for RecomputePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecomputePolicy::Named(policy) => policy.fmt(f),
            RecomputePolicy::Values(names) => write!(f, "[{}]", names.join(", ")),
        }
    }
}

/// Policies of all layers of a model.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct RecomputePlan {
    /// Policy of every layer that `layers` does not name.
    pub default: RecomputePolicy,
    /// Policies of some layers.
    pub layers: RecomputeLayers,
    /// Micro-batches in flight on a stage that keep everything instead, at most.
    pub stored_micro_batches: usize,
    /// Bytes of activations on a rank, for layers that are [`Recompute::InputAware`].
    pub activation_memory: Option<Bytes>,
}

impl From<Recompute> for RecomputePlan {
    fn from(policy: Recompute) -> Self {
        RecomputePlan { default: policy.into(), ..RecomputePlan::default() }
    }
}

impl RecomputePlan {
    /// The plan in which these layers of the model recompute everything and all others nothing.
    pub fn full_in(layers: &[usize]) -> RecomputePlan {
        let of_layer = |layer: &usize| LayerRecompute {
            from: Counted::Model,
            layers: *layer..=*layer,
            policy: Recompute::Full.into(),
        };
        let layers = RecomputeLayers(layers.iter().map(of_layer).collect());
        RecomputePlan { default: Recompute::None.into(), layers, ..RecomputePlan::default() }
    }

    /// The budget, if layers are recomputed by the length of a micro-batch.
    pub fn budget(&self) -> Option<Bytes> {
        self.activation_memory.filter(|_| self.default == Recompute::InputAware.into())
    }

    /// Policy of a layer, which stands in a pipeline stage that holds the layers `stage`.
    pub fn of(&self, layer: usize, stage: &Range<usize>) -> &RecomputePolicy {
        self.entry(layer, stage).map_or(&self.default, |at| &self.layers.0[at].policy)
    }

    /// Number of the entry that names a layer. A number in the model goes before a number in the stage.
    fn entry(&self, layer: usize, stage: &Range<usize>) -> Option<usize> {
        let named = |counted: Counted, number: usize| {
            self.layers.0.iter().position(|named| named.from == counted && named.layers.contains(&number))
        };
        named(Counted::Model, layer).or_else(|| named(Counted::Stage, layer.saturating_sub(stage.start)))
    }

    /// The policies of a model with these layers in its stages, each with the number of layers that have it.
    pub fn counts(&self, stages: &[Range<usize>]) -> Vec<(&RecomputePolicy, usize)> {
        let policies = std::iter::once(&self.default).chain(self.layers.0.iter().map(|named| &named.policy));
        let mut counts: Vec<(&RecomputePolicy, usize)> = policies.map(|policy| (policy, 0)).collect();
        for (stage, layer) in stages.iter().flat_map(|stage| stage.clone().map(move |layer| (stage, layer))) {
            counts[self.entry(layer, stage).map_or(0, |at| at + 1)].1 += 1;
        }
        counts.retain(|count| count.1 > 0);
        counts
    }
}

impl fmt::Display for RecomputePlan {
    /// "selective", or "selective, layers 0-5 full, layers 0-1 of each stage none".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.default.fmt(f)?;
        if let Some(budget) = self.budget() {
            write!(f, " in {budget}")?;
        }
        self.layers.0.iter().try_for_each(|named| {
            let of = if named.from == Counted::Stage { " of each stage" } else { "" };
            write!(f, ", layers {}{of} {}", named.numbers(), named.policy)
        })?;
        match self.stored_micro_batches {
            0 => Ok(()),
            stored => write!(f, ", {stored} micro-batches in flight none"),
        }
    }
}

/// Place where the numbers of layers begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Counted {
    /// With the model's first layer.
    Model,
    /// With the first layer of each pipeline stage.
    Stage,
}

/// Policy of some consecutive layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LayerRecompute {
    from: Counted,
    /// Numbers of the layers, from 0.
    layers: RangeInclusive<usize>,
    policy: RecomputePolicy,
}

impl LayerRecompute {
    /// "3", or "0-5".
    fn numbers(&self) -> String {
        let (first, last) = (self.layers.start(), self.layers.end());
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    }

    /// "3", "0-5" or "stage 0-5".
    fn key(&self) -> String {
        let stage = if self.from == Counted::Stage { STAGE } else { "" };
        format!("{stage}{}", self.numbers())
    }
}

/// Begins the key of layers that are counted within each stage.
const STAGE: &str = "stage ";

/// Policies of layers by their numbers from 0: "3", "0-5" (both included) or several of these, "0-5,8". "stage 0-5" counts from
/// the first layer of each pipeline stage; a layer that has a number of its own follows that. No number has two policies.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, RecomputePolicy>", into = "BTreeMap<String, RecomputePolicy>")]
#[schemars(with = "BTreeMap<String, RecomputePolicy>")]
pub struct RecomputeLayers(Vec<LayerRecompute>);

impl RecomputeLayers {
    /// The largest number that is named.
    pub fn last(&self) -> Option<usize> {
        self.0.iter().map(|named| *named.layers.end()).max()
    }

    /// Whether some layers are counted within each stage.
    pub fn count_stages(&self) -> bool {
        self.0.iter().any(|named| named.from == Counted::Stage)
    }
}

impl TryFrom<BTreeMap<String, RecomputePolicy>> for RecomputeLayers {
    type Error = String;

    fn try_from(by_layers: BTreeMap<String, RecomputePolicy>) -> Result<Self, String> {
        let mut all: Vec<LayerRecompute> = Vec::new();
        for (key, policy) in by_layers {
            for (from, layers) in ranges(&key)? {
                let named = LayerRecompute { from, layers, policy: policy.clone() };
                let common = |other: &&LayerRecompute| {
                    named.from == other.from
                        && named.layers.start() <= other.layers.end()
                        && other.layers.start() <= named.layers.end()
                };
                if let Some(other) = all.iter().find(common) {
                    let (other, named) = (other.key(), named.key());
                    return Err(format!(
                        "layers \"{other}\" and \"{named}\" have a layer in common: expected one policy for each layer"
                    ));
                }
                all.push(named);
            }
        }
        Ok(RecomputeLayers(all))
    }
}

impl From<RecomputeLayers> for BTreeMap<String, RecomputePolicy> {
    fn from(layers: RecomputeLayers) -> Self {
        layers.0.into_iter().map(|named| (named.key(), named.policy)).collect()
    }
}

/// The layers of a key: "0-5,8" or "stage 0-5".
fn ranges(key: &str) -> Result<Vec<(Counted, RangeInclusive<usize>)>, String> {
    let wrong = || {
        format!(
            "\"{key}\": expected layers such as \"3\", \"0-5\", \"0-5,8\" or \"stage 0-5\", counted from 0"
        )
    };
    let range = |text: &str| {
        let (from, text) = match text.trim_start().strip_prefix(STAGE) {
            Some(text) => (Counted::Stage, text),
            None => (Counted::Model, text),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some((from, first..=last))
    };
    key.split(',').map(|text| range(text).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(entries: &[(&str, Recompute)]) -> Result<RecomputePlan, String> {
        let by_layers: BTreeMap<_, _> =
            entries.iter().map(|(key, policy)| ((*key).to_owned(), (*policy).into())).collect();
        let layers = by_layers.try_into()?;
        Ok(RecomputePlan { default: Recompute::None.into(), layers, ..RecomputePlan::default() })
    }

    #[test]
    fn layers_have_their_own_policy_or_the_default() {
        let plan = plan(&[("0-2, 7", Recompute::Full), ("3", Recompute::Attention)]).unwrap();
        let of = |layer| plan.of(layer, &(0..9)).to_string();
        let wanted = "full full full attention none none none full none";
        assert_eq!((0..9).map(of).collect::<Vec<_>>().join(" "), wanted);
        assert_eq!(plan.layers.last(), Some(7));
        assert_eq!(plan.to_string(), "none, layers 0-2 full, layers 7 full, layers 3 attention");
        assert_eq!(counts(&plan, std::slice::from_ref(&(0..9))), "4 none, 3 full, 1 full, 1 attention");
        assert_eq!(counts(&plan, &[0..1, 1..2]), "2 full");
    }

    fn counts(plan: &RecomputePlan, stages: &[Range<usize>]) -> String {
        let counts = plan.counts(stages);
        counts.iter().map(|c| format!("{} {}", c.1, c.0)).collect::<Vec<_>>().join(", ")
    }

    /// Megatron-LM's `--recompute-method block --recompute-num-layers 2` with one layer of its own.
    #[test]
    fn layers_may_be_counted_in_each_stage() {
        let plan = plan(&[("stage 0-1", Recompute::Full), ("4", Recompute::Attention)]).unwrap();
        let stages = [0..4, 4..8, 8..9];
        let all = stages.iter().flat_map(|stage| stage.clone().map(|l| plan.of(l, stage).to_string()));
        let wanted = "full full none none attention full none none full";
        assert_eq!(all.collect::<Vec<_>>().join(" "), wanted);
        assert_eq!(counts(&plan, &stages), "4 none, 1 attention, 4 full");
        assert_eq!(plan.to_string(), "none, layers 4 attention, layers 0-1 of each stage full");
        assert!(plan.layers.count_stages());
        let again: RecomputeLayers = BTreeMap::from(plan.layers.clone()).try_into().unwrap();
        assert_eq!(again, plan.layers);
    }

    #[test]
    fn keys_that_are_no_layers_or_overlap_are_refused() {
        for key in
            ["", "a", "stage", "stage 3-1", "stages 1", "5-3", "-1", "1-", "1,,2", "99999999999999999999999"]
        {
            let e = plan(&[(key, Recompute::Full)]).unwrap_err();
            assert!(e.contains(&format!("\"{key}\": expected layers")), "{e}");
        }
        let e = plan(&[("0-5", Recompute::Full), ("9,4-7", Recompute::None)]).unwrap_err();
        assert!(e.contains("\"0-5\" and \"4-7\" have a layer in common"), "{e}");
    }
}
