//! The position of a run in its data.

use serde::{Deserialize, Serialize};

/// What a checkpoint keeps of the data order: how many samples were consumed, and of which data in which order.
/// Made by [`crate::Loader::state`], taken back by [`crate::Loader::resume`].
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
    /// How samples are documents of several lengths; absent where they are windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<String>,
    /// The mixture that samples follow; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixture: Vec<MixtureShare>,
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
