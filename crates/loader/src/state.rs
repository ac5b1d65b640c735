//! The position of a run in its data.

use crate::mixing::given_by;
use crate::{Grouping, LoadError};
use serde::{Deserialize, Serialize};

/// What a checkpoint keeps of the data order: how many samples were consumed, and of which data in which order.
/// Made by [`crate::Loader::state`], compared by [`LoaderState::differences`].
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderState {
    /// Version of the function from (seed, counter) to sample.
    pub order_version: u32,
    /// Samples consumed by the whole run, over all ranks: the counter of the next sample.
    pub samples: u64,
    /// Epoch of the next sample, from 0.
    pub epoch: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Whether the order is shuffled.
    pub shuffle: bool,
    /// Sequence length in tokens.
    pub seq_len: u64,
    /// Tokens of the training split.
    pub tokens: u64,
    /// Checksum of the training split's shards, 16 hexadecimal digits.
    pub data_checksum: String,
    /// Blocks and groups of the order; absent where it is uniform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouping: Option<Grouping>,
    /// How samples are documents of several lengths; absent where they are windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<String>,
    /// The mixture that samples follow; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixture: Vec<MixtureShare>,
    /// Where this order took the place of another one; absent if the run began with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OrderOrigin>,
}

/// Where in a run an order of samples began that took the place of another one, and what its components had given before.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderOrigin {
    /// Samples that the run had consumed.
    pub samples: u64,
    /// Samples that each component had given, in the order of the shards; one number without a mixture. Their orders go on behind
    /// these.
    pub given: Vec<u64>,
}

/// What of the order of samples is not as it was in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderDifference {
    /// Name of the property.
    pub what: &'static str,
    /// In the checkpoint.
    pub before: String,
    /// Now.
    pub now: String,
}

impl LoaderState {
    /// Samples that each component has given so far, with its name and its tokens; without a mixture there is one, without a name.
    ///
    /// # Errors
    /// A mixture that no loader has written.
    fn given(&self) -> Result<Vec<(&str, u64, u64)>, LoadError> {
        let origin = self.origin.clone().unwrap_or_default();
        let taken = self.samples.saturating_sub(origin.samples);
        let before = |component: usize| origin.given.get(component).copied().unwrap_or(0);
        if self.mixture.is_empty() {
            return Ok(vec![("", self.tokens, before(0).saturating_add(taken))]);
        }
        let slots: Vec<u64> = self.mixture.iter().map(|share| share.slots).collect();
        let given = given_by(&slots, taken)?;
        let component = |(d, share): (usize, &MixtureShare)| {
            let name: &str = &self.mixture[d].name;
            (name, share.tokens, before(d).saturating_add(given[d]))
        };
        Ok(self.mixture.iter().enumerate().map(component).collect())
    }

    /// The origin of the order `now`, which takes the place of this one. A component whose tokens and order stay goes on where it
    /// is: it is taken for the same if it has its name and as many tokens, or without a mixture the same shards. Any other begins
    /// at its beginning.
    ///
    /// # Errors
    /// A state with a mixture that no loader has written.
    pub fn replaced_by(&self, now: &LoaderState) -> Result<OrderOrigin, LoadError> {
        let order =
            |s: &LoaderState| (s.order_version, s.seq_len, s.seed, s.shuffle, s.grouping, s.lengths.clone());
        let same_order = order(self) == order(now);
        let before = self.given()?;
        let given = |name: &str, tokens: u64| {
            let same = before.iter().find(|b| same_order && b.0 == name && b.1 == tokens);
            let known = !name.is_empty() || self.data_checksum == now.data_checksum;
            same.filter(|_| known).map_or(0, |b| b.2)
        };
        let given = match now.mixture.as_slice() {
            [] => vec![given("", now.tokens)],
            shares => shares.iter().map(|share| given(&share.name, share.tokens)).collect(),
        };
        Ok(OrderOrigin { samples: self.samples, given })
    }

    /// What of the order `now` is not as it was here, without the position.
    pub fn differences(&self, now: &LoaderState) -> Vec<OrderDifference> {
        let lengths = |s: &LoaderState| s.lengths.clone().unwrap_or_else(|| "packed".into());
        let grouping = |s: &LoaderState| match s.grouping {
            Some(Grouping { block, group }) => {
                format!("grouped, {} windows a block, {} blocks a group", block, group)
            }
            None => "uniform".into(),
        };
        let all = [
            ("version of the sample order", self.order_version.to_string(), now.order_version.to_string()),
            ("tokens of the training split", self.tokens.to_string(), now.tokens.to_string()),
            ("checksum of the shards", self.data_checksum.clone(), now.data_checksum.clone()),
            ("sequence length", self.seq_len.to_string(), now.seq_len.to_string()),
            ("seed of the sample order", self.seed.to_string(), now.seed.to_string()),
            ("train.lengths (with its buckets and micro-batch)", lengths(self), lengths(now)),
            ("loader.order, block and group", grouping(self), grouping(now)),
            ("loader.shuffle", self.shuffle.to_string(), now.shuffle.to_string()),
            (
                "mixture (weights, temperature and, where epochs are capped, the length of the run)",
                in_words(&self.mixture),
                in_words(&now.mixture),
            ),
        ];
        let differs = all.into_iter().filter(|(_, before, now)| before != now);
        differs.map(|(what, before, now)| OrderDifference { what, before, now }).collect()
    }
}

/// A component of a mixture in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureShare {
    /// Its name.
    pub name: String,
    /// Its tokens.
    pub tokens: u64,
    /// Its places in a period of the mixture.
    pub slots: u64,
    /// Places of a period.
    pub period: u64,
}

/// A mixture as an error shows it.
pub(crate) fn in_words(mixture: &[MixtureShare]) -> String {
    let words = |share: &MixtureShare| {
        format!("{} {}/{} of {} tokens", share.name, share.slots, share.period, share.tokens)
    };
    match mixture {
        [] => "none".into(),
        shares => shares.iter().map(words).collect::<Vec<String>>().join(", "),
    }
}
