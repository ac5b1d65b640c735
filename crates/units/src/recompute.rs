//! Activation recomputation: which values of each layer the backward pass computes again instead of having them stored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

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
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Attention => "attention",
            Recompute::AttentionOutput => "attention-output",
            Recompute::Full => "full",
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
}

impl From<Recompute> for RecomputePlan {
    fn from(policy: Recompute) -> Self {
        RecomputePlan { default: policy.into(), layers: RecomputeLayers::default() }
    }
}

impl RecomputePlan {
    /// Policy of a layer.
    pub fn of(&self, layer: usize) -> &RecomputePolicy {
        let named = self.layers.0.iter().find(|named| named.layers.contains(&layer));
        named.map_or(&self.default, |named| &named.policy)
    }

    /// The policies of a model of so many layers, each with the number of layers that have it.
    pub fn counts(&self, layers: usize) -> Vec<(&RecomputePolicy, usize)> {
        let mut counts = vec![(&self.default, layers)];
        for named in &self.layers.0 {
            let (first, end) = (*named.layers.start(), named.layers.end().saturating_add(1).min(layers));
            let own = end.saturating_sub(first);
            counts[0].1 = counts[0].1.saturating_sub(own);
            counts.push((&named.policy, own));
        }
        counts.retain(|count| count.1 > 0);
        counts
    }
}

impl fmt::Display for RecomputePlan {
    /// "selective", or "selective, layers 0-5 full".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.default.fmt(f)?;
        self.layers.0.iter().try_for_each(|named| write!(f, ", layers {} {}", named.key(), named.policy))
    }
}

/// Policy of some consecutive layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LayerRecompute {
    /// Numbers of the layers, from 0.
    layers: RangeInclusive<usize>,
    policy: RecomputePolicy,
}

impl LayerRecompute {
    /// "3", or "0-5".
    fn key(&self) -> String {
        let (first, last) = (self.layers.start(), self.layers.end());
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    }
}

/// Policies of layers by their numbers from 0: "3", "0-5" (both included) or several of these, "0-5,8". No layer has two.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, RecomputePolicy>", into = "BTreeMap<String, RecomputePolicy>")]
#[schemars(with = "BTreeMap<String, RecomputePolicy>")]
pub struct RecomputeLayers(Vec<LayerRecompute>);

impl RecomputeLayers {
    /// The largest layer that is named.
    pub fn last(&self) -> Option<usize> {
        self.0.iter().map(|named| *named.layers.end()).max()
    }
}

impl TryFrom<BTreeMap<String, RecomputePolicy>> for RecomputeLayers {
    type Error = String;

    fn try_from(by_layers: BTreeMap<String, RecomputePolicy>) -> Result<Self, String> {
        let mut all: Vec<LayerRecompute> = Vec::new();
        for (key, policy) in by_layers {
            for layers in ranges(&key)? {
                let named = LayerRecompute { layers, policy: policy.clone() };
                let common = |other: &&LayerRecompute| {
                    named.layers.start() <= other.layers.end() && other.layers.start() <= named.layers.end()
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

/// The layers of a key: "0-5,8".
fn ranges(key: &str) -> Result<Vec<RangeInclusive<usize>>, String> {
    let wrong = || format!("\"{key}\": expected layers such as \"3\", \"0-5\" or \"0-5,8\", counted from 0");
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(first..=last)
    };
    key.split(',').map(|text| range(text).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(entries: &[(&str, Recompute)]) -> Result<RecomputePlan, String> {
        let by_layers: BTreeMap<_, _> =
            entries.iter().map(|(key, policy)| ((*key).to_owned(), (*policy).into())).collect();
        Ok(RecomputePlan { default: Recompute::None.into(), layers: by_layers.try_into()? })
    }

    #[test]
    fn layers_have_their_own_policy_or_the_default() {
        let plan = plan(&[("0-2, 7", Recompute::Full), ("3", Recompute::Attention)]).unwrap();
        let of = |layer| plan.of(layer).to_string();
        let wanted = "full full full attention none none none full none";
        assert_eq!((0..9).map(of).collect::<Vec<_>>().join(" "), wanted);
        assert_eq!(plan.layers.last(), Some(7));
        assert_eq!(plan.to_string(), "none, layers 0-2 full, layers 7 full, layers 3 attention");
        let counts =
            |layers| plan.counts(layers).iter().map(|c| format!("{} {}", c.1, c.0)).collect::<Vec<_>>();
        assert_eq!(counts(9), ["4 none", "3 full", "1 full", "1 attention"]);
        assert_eq!(counts(2), ["2 full"]);
    }

    #[test]
    fn keys_that_are_no_layers_or_overlap_are_refused() {
        for key in ["", "a", "5-3", "-1", "1-", "1,,2", "99999999999999999999999"] {
            let e = plan(&[(key, Recompute::Full)]).unwrap_err();
            assert!(e.contains(&format!("\"{key}\": expected layers")), "{e}");
        }
        let e = plan(&[("0-5", Recompute::Full), ("9,4-7", Recompute::None)]).unwrap_err();
        assert!(e.contains("\"0-5\" and \"4-7\" have a layer in common"), "{e}");
    }
}
