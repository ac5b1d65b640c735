//! Gates of experts: how tokens, or experts, choose, and what limits and balances their choices.
//!
//! | `gate` | score | choices | weights | capacity | losses |
//! |---|---|---|---|---|---|
//! | `top_k` | softmax | 2 | renormalised | none | balance .01, z .001 |
//! | `switch` (Fedus et al. 2021) | softmax, jitter .01 | 1 | raw | 1.25, by position | balance .01, z .001 |
//! | `gshard` (Lepikhin et al. 2020) | softmax | 2, the second at random | renormalised | 1, first choices first | balance .01, z .001 |
//! | `deepseek` (arXiv 2412.19437) | sigmoid, biases | 2 | renormalised, times 2.5 | none | balance .0001 |
//! | `expert_choice` (Zhou et al. 2022) | softmax | 2 in the mean | raw | 1, by score | z .001 |
//!
//! A key that is written replaces what the gate gives.

use crate::config::{ArchError, limits, positive, ranged};
use crate::experts::{Experts, ExpertsConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gates by name, each a set of usual values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateChoice {
    /// The k experts with the largest probabilities; no choice is dropped.
    #[default]
    TopK,
    /// One expert, with a capacity, and noise on the router's input in training (Switch).
    Switch,
    /// Two experts, with a capacity; the second is used at random, the more probably the larger its weight (GShard).
    Gshard,
    /// Sigmoid scores; biases that are moved once a step balance the choices (DeepSeek-V3).
    Deepseek,
    /// Each expert takes the tokens with the largest scores of a sequence: a token's choices depend on later tokens.
    ExpertChoice,
}

/// How a router's logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreChoice {
    /// Probabilities of a token.
    #[default]
    Softmax,
    /// A score of its own for each expert.
    Sigmoid,
}

/// Which side chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChosenBy {
    /// Each token takes the k best experts.
    #[default]
    Tokens,
    /// Each expert takes the best tokens of a group, as many as its capacity.
    Experts,
}

/// Which choices of an expert are dropped beyond its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DropChoice {
    /// The last in the order of tokens.
    #[default]
    Position,
    /// The last in the order of choices first, of tokens then (GShard).
    Choice,
    /// Those with the smallest scores.
    Score,
}

/// `experts.capacity`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CapacityChoice {
    /// No limit.
    None(NoCapacity),
    /// Rows of an expert as a multiple of its share of the choices of a group.
    Factor(f64),
}

/// "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoCapacity {
    /// No limit.
    None,
}

/// Tokens of one balance loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BalanceOver {
    /// Those of so many sequences of a micro-batch.
    Sequences(u64),
    /// Those of a rule.
    Rule(BalanceRule),
}

/// Tokens of one balance loss by rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BalanceRule {
    /// Those of one sequence.
    Sequence,
    /// All tokens of a step, by the loads of the step before.
    Batch,
}

impl Default for BalanceOver {
    fn default() -> Self {
        BalanceOver::Sequences(1)
    }
}

impl BalanceOver {
    /// Sequences; none of a whole batch.
    pub fn sequences(self) -> Option<usize> {
        match self {
            BalanceOver::Sequences(sequences) => Some(sequences as usize),
            BalanceOver::Rule(BalanceRule::Sequence) => Some(1),
            BalanceOver::Rule(BalanceRule::Batch) => None,
        }
    }
}

/// Choices that a balance loss counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BalanceCounts {
    /// Those that are made.
    #[default]
    Routing,
    /// The k best by scores alone, without biases and groups (DeepSeek-V3, equation 18).
    Scores,
}

/// A limit on the choices that an expert takes of a group of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// The factor in millionths: decimals as they are written.
    pub millionths: u64,
    /// Sequences of a group, all of one micro-batch.
    pub sequences: usize,
    /// Rule by which choices are dropped.
    pub drop: DropChoice,
    /// Second choices are sent at random, with twice their weight as probability.
    pub random_second: bool,
}

impl Capacity {
    /// `ceil(factor k S / E)`, at least 1: the choices that an expert takes of a group of S tokens of k choices among E experts.
    pub fn rows(&self, choices: usize, tokens: usize, experts: usize) -> usize {
        let all = u128::from(self.millionths) * choices as u128 * tokens as u128;
        let rows = all.div_ceil(1_000_000 * experts.max(1) as u128).max(1);
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    fn factor(&self) -> f64 {
        self.millionths as f64 / 1e6
    }
}

/// Choices and weights of a router, and what training does with them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gate {
    /// Scores.
    pub score: ScoreChoice,
    /// Side that chooses.
    pub chosen_by: ChosenBy,
    /// Choices follow scores and biases, which are state of the model and no trained parameters.
    pub bias: bool,
    /// Groups of experts among which a token chooses first, if there are several.
    pub groups: Option<GroupChoice>,
    /// Factor on the weights, if it is not 1.
    pub scale: Option<f64>,
    /// Limit on the choices of an expert, in training, and where experts choose.
    pub capacity: Option<Capacity>,
    /// Limit on the tokens that leave their node, in training.
    pub nodes: Option<Nodes>,
    /// Largest relative noise on the router's input in training.
    pub jitter: f64,
    /// Tokens of one balance loss.
    pub balance_over: BalanceOver,
    /// Choices that it counts.
    pub balance_counts: BalanceCounts,
}

/// Groups of experts, and how many of them a token may use (DeepSeek-V3: those with the largest sums of their two best).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChoice {
    /// Equal groups.
    pub count: usize,
    /// Groups that a token may use.
    pub kept: usize,
}

/// FasterMoE's topology-aware gate: nodes have equal consecutive parts of the experts and take turns at the sequences of a batch, and few
/// tokens of a sequence choose an expert of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// Nodes.
    pub count: usize,
    /// Consecutive sequences of a batch that a node has in its turn: those of a micro-batch of its ranks.
    pub sequences: usize,
    /// Part of the tokens of a sequence that may leave their node, in millionths.
    pub leaving_millionths: u64,
}

impl Nodes {
    /// Part of the tokens that FasterMoE lets leave.
    pub const LEAVING_MILLIONTHS: u64 = 140_000;

    /// Tokens of a sequence of so many that may leave their node.
    pub fn leaving(&self, tokens: usize) -> usize {
        let leaving = u128::from(self.leaving_millionths) * tokens as u128 / 1_000_000;
        usize::try_from(leaving).unwrap_or(usize::MAX)
    }
}

impl Gate {
    /// Whether a decoder can choose for a token before it has the later ones.
    pub fn is_causal(&self) -> bool {
        self.chosen_by == ChosenBy::Tokens
    }

    /// Keys of `[model.experts]` whose values change what a trained model computes and that formats of other programs lack.
    pub fn unusual(&self) -> Vec<&'static str> {
        let keys = [
            ("score = sigmoid", self.score == ScoreChoice::Sigmoid),
            ("bias = true", self.bias),
            ("groups", self.groups.is_some()),
            ("scale", self.scale.is_some()),
            ("chosen_by = experts", !self.is_causal()),
        ];
        keys.into_iter().filter(|(_, unusual)| *unusual).map(|(key, _)| key).collect()
    }

    /// Keys of groups of sequences with their sizes, each of which divides the sequences of a micro-batch.
    pub fn sequences(&self) -> [(&'static str, usize); 2] {
        let balance = self.balance_over.sequences().unwrap_or(1);
        let capacity = self.capacity.map_or(1, |capacity| capacity.sequences);
        [("capacity_sequences", capacity), ("balance_over", balance)]
    }

    /// Refuses what cannot be, of `experts` that choose by this gate.
    pub(crate) fn check(&self, experts: &Experts) -> Result<(), ArchError> {
        let wrong = |key, problem: String| Err(ArchError { key, problem });
        let Experts { count, choices, .. } = *experts;
        if let Some(GroupChoice { count: groups, kept }) = self.groups {
            if groups > 64 || groups == 0 || !count.is_multiple_of(groups) {
                return wrong(
                    "experts.groups",
                    format!("wanted at most 64 groups that divide the {count} experts, found {groups}"),
                );
            }
            if kept == 0 || kept > groups || choices > kept * (count / groups) {
                return wrong(
                    "experts.groups_kept",
                    format!(
                        "wanted 1 to {groups} groups with the {choices} experts of a token or more, found {kept} of {} experts each",
                        count / groups
                    ),
                );
            }
        }
        ranged("experts.scale", self.scale.unwrap_or(1.0), 1e-3, 1e3)?;
        ranged("experts.jitter", self.jitter, 0.0, 0.5)?;
        if let Some(capacity) = &self.capacity {
            if capacity.millionths == 0 || capacity.millionths > 1_000_000_000 {
                return wrong(
                    "experts.capacity",
                    format!(
                        "wanted 0.000001 to 1000 times the mean load, or \"none\", found {}",
                        capacity.factor()
                    ),
                );
            }
            positive("experts.capacity_sequences", Some(capacity.sequences as u64), 1, 1 << 20)?;
            if capacity.random_second && choices < 2 {
                return wrong(
                    "experts.random_second",
                    format!(
                        "true with experts.choices = {choices}: there is no second choice; set it to false"
                    ),
                );
            }
        }
        if let Some(Nodes { count: nodes, leaving_millionths, .. }) = self.nodes {
            let of_node = count.checked_div(nodes).unwrap_or(0);
            if of_node < choices || of_node * nodes != count {
                return wrong(
                    "experts.nodes",
                    format!(
                        "wanted a divisor of the {count} experts, so that each node has the {choices} of a token or more, found {nodes}"
                    ),
                );
            }
            if leaving_millionths > 1_000_000 {
                return wrong(
                    "experts.leaving",
                    format!("wanted a part of the tokens, 0 to 1, found {}", leaving_millionths as f64 / 1e6),
                );
            }
            let plain = self.score == ScoreChoice::Softmax && self.is_causal() && !self.bias;
            if choices != 2 || !plain || self.groups.is_some() {
                return wrong(
                    "experts.nodes",
                    "wanted choices = 2, score = \"softmax\" and chosen_by = \"tokens\", without bias and groups: a token that leaves \
                     its node has one expert there and one elsewhere; gate = \"top_k\" gives that"
                        .into(),
                );
            }
        }
        if self.chosen_by == ChosenBy::Experts {
            let bound = self
                .capacity
                .filter(|of| of.drop == DropChoice::Score && !of.random_second && of.sequences == 1);
            if bound.is_none() || self.bias || self.groups.is_some() {
                return wrong(
                    "experts.chosen_by",
                    "\"experts\" take the best tokens of one sequence: wanted a capacity with drop = \"score\", \
                     capacity_sequences = 1 and random_second = false, without bias and groups; gate = \"expert_choice\" gives that"
                        .into(),
                );
            }
        }
        match self.balance_over.sequences() {
            Some(sequences) => positive("experts.balance_over", Some(sequences as u64), 1, 1 << 20).map(drop),
            None => Ok(()),
        }
    }

    /// The table's keys that give this gate.
    pub(crate) fn write(&self, config: &mut ExpertsConfig) {
        config.score = Some(self.score);
        config.chosen_by = Some(self.chosen_by);
        config.bias = Some(self.bias);
        config.groups = Some(self.groups.map_or(1, |groups| groups.count as u64));
        config.groups_kept = self.groups.map(|groups| groups.kept as u64);
        config.scale = Some(self.scale.unwrap_or(1.0));
        config.jitter = Some(self.jitter);
        config.balance_over = Some(self.balance_over);
        config.balance_counts = Some(self.balance_counts);
        config.nodes = Some(self.nodes.map_or(1, |nodes| nodes.count as u64));
        config.node_sequences = self.nodes.map(|nodes| nodes.sequences as u64);
        config.leaving = self.nodes.map(|nodes| nodes.leaving_millionths as f64 / 1e6);
        config.capacity = Some(CapacityChoice::None(NoCapacity::None));
        if let Some(capacity) = self.capacity {
            config.capacity = Some(CapacityChoice::Factor(capacity.factor()));
            config.capacity_sequences = Some(capacity.sequences as u64);
            config.drop = Some(capacity.drop);
            config.random_second = Some(capacity.random_second);
        }
    }
}

/// Values that a gate gives to keys that are left out.
pub(crate) struct Usual {
    pub(crate) choices: usize,
    pub(crate) renormalise: bool,
    pub(crate) balance: f64,
    pub(crate) z_loss: f64,
    pub(crate) bias_rate: f64,
    pub(crate) gate: Gate,
}

impl GateChoice {
    pub(crate) fn usual(self) -> Usual {
        let gate = Gate::default();
        let top_k =
            Usual { choices: 2, renormalise: true, balance: 0.01, z_loss: 0.001, bias_rate: 0.001, gate };
        let capacity = |millionths, drop, random_second| {
            Some(Capacity { millionths, sequences: 1, drop, random_second })
        };
        match self {
            GateChoice::TopK => top_k,
            GateChoice::Switch => {
                let gate =
                    Gate { capacity: capacity(1_250_000, DropChoice::Position, false), jitter: 0.01, ..gate };
                Usual { choices: 1, renormalise: false, gate, ..top_k }
            }
            GateChoice::Gshard => Usual {
                gate: Gate { capacity: capacity(1_000_000, DropChoice::Choice, true), ..gate },
                ..top_k
            },
            GateChoice::Deepseek => {
                let counts = BalanceCounts::Scores;
                let score = ScoreChoice::Sigmoid;
                let gate = Gate { score, bias: true, scale: Some(2.5), balance_counts: counts, ..gate };
                Usual { balance: 0.0001, z_loss: 0.0, gate, ..top_k }
            }
            GateChoice::ExpertChoice => {
                let capacity = capacity(1_000_000, DropChoice::Score, false);
                let gate = Gate { chosen_by: ChosenBy::Experts, capacity, ..gate };
                Usual { renormalise: false, balance: 0.0, gate, ..top_k }
            }
        }
    }
}

/// A factor in millionths, if it is a decimal of at most six places.
fn millionths(factor: f64) -> Option<u64> {
    let found = (factor * 1e6).round();
    ((0.0..=1e9).contains(&found) && found / 1e6 == factor).then_some(found as u64)
}

impl ExpertsConfig {
    /// The gate that this table means. Keys left out are those of `base`, or of the named gate.
    pub(crate) fn resolve_gate(&self, base: Gate) -> Result<Gate, ArchError> {
        let wrong = |key, problem: String| Err(ArchError { key, problem });
        let base = self.gate.map_or(base, |gate| gate.usual().gate);
        let groups = match self.groups {
            None => base.groups,
            Some(1) => None,
            Some(_) => {
                let count = positive("experts.groups", self.groups, 1, 64)?;
                let kept = base.groups.map_or(count, |groups| groups.kept.min(count));
                Some(GroupChoice { count, kept })
            }
        };
        let groups = match (groups, self.groups_kept) {
            (Some(of), kept) => {
                Some(GroupChoice { kept: positive("experts.groups_kept", kept, of.kept, 64)?, ..of })
            }
            (None, Some(kept)) if kept != 1 => {
                return wrong(
                    "experts.groups_kept",
                    format!("{kept} without groups of experts; set experts.groups, or take this out"),
                );
            }
            (None, _) => None,
        };
        let capacity = match self.capacity {
            None => base.capacity,
            Some(CapacityChoice::None(_)) => None,
            Some(CapacityChoice::Factor(factor)) => {
                let usual = Capacity {
                    millionths: 0,
                    sequences: 1,
                    drop: DropChoice::default(),
                    random_second: false,
                };
                let Some(millionths) = millionths(factor) else {
                    return wrong(
                        "experts.capacity",
                        format!(
                            "wanted 0.000001 to 1000 with at most six decimal places, or \"none\", found {factor}"
                        ),
                    );
                };
                Some(Capacity { millionths, ..base.capacity.unwrap_or(usual) })
            }
        };
        let nodes = match self.nodes.unwrap_or(base.nodes.map_or(1, |of| of.count as u64)) {
            1 => None,
            nodes => {
                let count = positive("experts.nodes", Some(nodes), 1, limits::EXPERTS)?;
                let usual = Nodes { count, sequences: 1, leaving_millionths: Nodes::LEAVING_MILLIONTHS };
                Some(Nodes { count, ..base.nodes.unwrap_or(usual) })
            }
        };
        let needs = [
            ("experts.node_sequences", self.node_sequences.is_some()),
            ("experts.leaving", self.leaving.is_some()),
        ];
        if let (None, Some((key, _))) = (nodes, needs.into_iter().find(|(_, written)| *written)) {
            return wrong(key, "there are no nodes; set experts.nodes, such as 2, or take this out".into());
        }
        let nodes = match (nodes, self.leaving.map(|part| (part, millionths(part)))) {
            (_, Some((part, None))) => {
                return wrong(
                    "experts.leaving",
                    format!("wanted 0 to 1 with at most six decimal places, found {part}"),
                );
            }
            (of, Some((_, Some(leaving_millionths)))) => of.map(|of| Nodes { leaving_millionths, ..of }),
            (of, None) => of,
        };
        let nodes = match nodes {
            None => None,
            Some(of) => {
                let written = self.node_sequences;
                let sequences = positive("experts.node_sequences", written, of.sequences, 1 << 20)?;
                Some(Nodes { sequences, ..of })
            }
        };
        let needs = [
            ("experts.capacity_sequences", self.capacity_sequences.is_some()),
            ("experts.drop", self.drop.is_some()),
            ("experts.random_second", self.random_second == Some(true)),
        ];
        if let (None, Some((key, _))) = (capacity, needs.into_iter().find(|(_, written)| *written)) {
            return wrong(
                key,
                "there is no capacity; set experts.capacity, such as 1.25, or take this out".into(),
            );
        }
        let capacity = match capacity {
            None => None,
            Some(of) => Some(Capacity {
                sequences: positive(
                    "experts.capacity_sequences",
                    self.capacity_sequences,
                    of.sequences,
                    1 << 20,
                )?,
                drop: self.drop.unwrap_or(of.drop),
                random_second: self.random_second.unwrap_or(of.random_second),
                ..of
            }),
        };
        Ok(Gate {
            score: self.score.unwrap_or(base.score),
            chosen_by: self.chosen_by.unwrap_or(base.chosen_by),
            bias: self.bias.unwrap_or(base.bias),
            groups,
            nodes,
            scale: self.scale.or(base.scale).filter(|scale| *scale != 1.0),
            capacity,
            jitter: self.jitter.unwrap_or(base.jitter),
            balance_over: self.balance_over.unwrap_or(base.balance_over),
            balance_counts: self.balance_counts.unwrap_or(base.balance_counts),
        })
    }

    /// Numbers of training beside the gate: weights of the balance loss and of the z-loss, and the rate of the biases.
    pub(crate) fn training(&self, gate: &Gate) -> Result<ExpertTraining, ArchError> {
        let usual = self.gate.unwrap_or_default().usual();
        let has_z_loss = gate.score == ScoreChoice::Softmax;
        if let (false, Some(weight)) = (has_z_loss, self.z_loss.filter(|weight| *weight > 0.0)) {
            return Err(ArchError {
                key: "experts.z_loss",
                problem: format!(
                    "{weight} with score = \"sigmoid\": scores have no sum that it could bound; set it to 0"
                ),
            });
        }
        if let (false, Some(rate)) = (gate.bias, self.bias_rate) {
            return Err(ArchError {
                key: "experts.bias_rate",
                problem: format!("{rate} without biases; set experts.bias = true, or take this out"),
            });
        }
        Ok(ExpertTraining {
            balance: ranged("experts.balance", self.balance.unwrap_or(usual.balance), 0.0, 1.0)?,
            z_loss: match has_z_loss {
                true => ranged("experts.z_loss", self.z_loss.unwrap_or(usual.z_loss), 0.0, 1.0)?,
                false => 0.0,
            },
            bias_rate: match gate.bias {
                true => ranged("experts.bias_rate", self.bias_rate.unwrap_or(usual.bias_rate), 0.0, 1.0)?,
                false => 0.0,
            },
        })
    }
}

/// Numbers that training with experts reads and a model does not have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ExpertTraining {
    /// Weight of the balance loss.
    pub balance: f64,
    /// Weight of the router's z-loss.
    pub z_loss: f64,
    /// Step of the biases: each is moved by this much against the deviation of its expert's load from the mean.
    pub bias_rate: f64,
}
