//! Mixtures of experts: which layers have which experts, and how tokens choose among them.

use crate::config::{ArchError, limits, positive};
use crate::gates::{
    BalanceCounts, BalanceOver, CapacityChoice, ChosenBy, DropChoice, Gate, GateChoice, ScoreChoice, Usual,
};
use crate::model::{MlpKind, Model};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Experts in place of the feed-forward block of a layer, each a block of its own; a router chooses some for each token
/// and weighs their results (Shazeer et al. 2017; Jiang et al. 2024, Mixtral).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// E, experts of a layer; of [`Model::experts`], the most of a layer.
    pub count: usize,
    /// k, experts of a token; where experts choose, in the mean.
    pub choices: usize,
    /// Width of an expert.
    pub width: usize,
    /// The k weights of a token are divided by their sum.
    pub renormalise: bool,
    /// Scores, choices and their limits.
    #[serde(default)]
    pub gate: Gate,
}

impl Experts {
    /// Experts whose tokens choose by softmax probabilities, without a capacity: `[count, choices, width]`.
    pub fn top_k([count, choices, width]: [usize; 3], renormalise: bool) -> Experts {
        Experts { count, choices, width, renormalise, gate: Gate::default() }
    }

    /// Experts by a gate's usual values.
    pub(crate) fn by_gate(gate: GateChoice, count: usize, width: usize) -> Experts {
        let Usual { choices, renormalise, gate, .. } = gate.usual();
        Experts { count, choices, width, renormalise, gate }
    }

    /// Experts among which the choices of a token are kept or dropped: its k, or all where experts choose.
    pub fn candidates(&self) -> usize {
        if self.gate.is_causal() { self.choices } else { self.count }
    }
}

/// A feed-forward block beside the experts of a layer, which computes every token (Dai et al. 2024, DeepSeekMoE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its width.
    pub width: usize,
    /// Its result is multiplied by the sigmoid of one number a token (Qwen2-MoE).
    pub gate: bool,
    /// The experts' result and its own are weighed by a softmax of two numbers a token (Rajbhandari et al. 2022, PR-MoE).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

/// Layers whose feed-forward block is experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ExpertLayers {
    /// A rule.
    Rule(LayerRule),
    /// Numbers of layers from 0, in ascending order.
    Numbers(Vec<usize>),
}

/// Layers of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerRule {
    /// Every layer.
    All,
    /// Every second layer: 1, 3, 5, ... (Lepikhin et al. 2020, GShard).
    Alternate,
}

impl Default for ExpertLayers {
    fn default() -> Self {
        ExpertLayers::Rule(LayerRule::All)
    }
}

impl ExpertLayers {
    /// Whether every layer has experts by rule.
    pub fn is_all(&self) -> bool {
        *self == ExpertLayers::default()
    }

    /// The layers of a model of `layers` layers for which `has` is true.
    pub fn of(layers: usize, has: impl Fn(usize) -> bool) -> ExpertLayers {
        let numbers: Vec<usize> = (0..layers).filter(|layer| has(*layer)).collect();
        let of_rule = |layer: &usize| layer % 2 == 1;
        match numbers.len() == layers {
            true => ExpertLayers::default(),
            false if numbers.iter().copied().eq((0..layers).filter(of_rule)) => {
                ExpertLayers::Rule(LayerRule::Alternate)
            }
            false => ExpertLayers::Numbers(numbers),
        }
    }

    fn has(&self, layer: usize) -> bool {
        match self {
            ExpertLayers::Rule(LayerRule::All) => true,
            ExpertLayers::Rule(LayerRule::Alternate) => layer % 2 == 1,
            ExpertLayers::Numbers(numbers) => numbers.contains(&layer),
        }
    }

    /// Number of them among `layers`.
    pub fn count(&self, layers: &Range<usize>) -> usize {
        match self {
            ExpertLayers::Rule(LayerRule::All) => layers.len(),
            ExpertLayers::Rule(LayerRule::Alternate) => layers.end / 2 - layers.start.min(layers.end) / 2,
            ExpertLayers::Numbers(numbers) => numbers.iter().filter(|layer| layers.contains(layer)).count(),
        }
    }

    /// The layer with so many of them before it.
    fn nth(&self, n: usize) -> Option<usize> {
        match self {
            ExpertLayers::Rule(LayerRule::All) => Some(n),
            ExpertLayers::Rule(LayerRule::Alternate) => Some(2 * n + 1),
            ExpertLayers::Numbers(numbers) => numbers.get(n).copied(),
        }
    }

    fn check(&self, layers: usize) -> Result<(), ArchError> {
        let ExpertLayers::Numbers(numbers) = self else { return Ok(()) };
        let ascend = numbers.windows(2).all(|two| two[0] < two[1]);
        if ascend && numbers.last().is_some_and(|last| *last < layers) {
            return Ok(());
        }
        let few: Vec<&usize> = numbers.iter().take(16).collect();
        Err(ArchError {
            key: "experts.layers",
            problem: format!(
                "wanted \"all\", \"alternate\" or numbers of layers from 0 to {} in ascending order, found {few:?}",
                layers.saturating_sub(1)
            ),
        })
    }
}

/// Experts of layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "wanted a number of experts, or a list of one for each layer that has some")]
pub enum ExpertCount {
    /// As many in every layer that has some.
    One(u64),
    /// A number for each layer that has some, from the first to the last.
    Each(Vec<u64>),
}

/// `[model.experts]`: experts in place of feed-forward blocks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertsConfig {
    /// Layers that have experts: "all", "alternate" (1, 3, 5, ...) or numbers of layers from 0. The others keep their feed-forward block.
    /// Left out: the architecture's, else "all".
    pub layers: Option<ExpertLayers>,
    /// Experts of each layer that has some: one number, or a list of one for each of them (PR-MoE's pyramid: later layers have more).
    /// Left out: the architecture's, else 8.
    pub count: Option<ExpertCount>,
    /// Experts that compute each token; where experts choose, in the mean. Left out: the gate's or the architecture's, else 2.
    pub choices: Option<u64>,
    /// Width of an expert; 0 takes `ffn_width`. Left out: the architecture's, else `ffn_width`.
    pub width: Option<u64>,
    /// Usual values of the other keys: "top_k", "switch", "gshard", "deepseek" or "expert_choice". Left out: the architecture's.
    pub gate: Option<GateChoice>,
    /// Weights of a token's choices are divided by their sum (Mixtral, Qwen3); otherwise they are the router's scores. Left out:
    /// the gate's or the architecture's, else true.
    pub renormalise: Option<bool>,
    /// Scores of the router: "softmax" or "sigmoid". Left out: the gate's.
    pub score: Option<ScoreChoice>,
    /// Side that chooses: "tokens", or "experts", of which each takes its best tokens. Left out: the gate's.
    pub chosen_by: Option<ChosenBy>,
    /// Choices follow scores and a bias of each expert, which is moved once a step against its load (DeepSeek-V3). Left out: the gate's.
    pub bias: Option<bool>,
    /// Step of the biases; 0 leaves them as they are. Left out: 0.001.
    pub bias_rate: Option<f64>,
    /// Groups of experts among which a token chooses first. Left out: the gate's, 1.
    pub groups: Option<u64>,
    /// Groups that a token may use. Left out: all.
    pub groups_kept: Option<u64>,
    /// Factor on the weights. Left out: the gate's.
    pub scale: Option<f64>,
    /// Rows of an expert in training as a multiple of its share of a group's choices, beyond which choices are dropped; or "none". Left out:
    /// the gate's.
    pub capacity: Option<CapacityChoice>,
    /// Sequences of a group; divides those of a micro-batch. Left out: 1.
    pub capacity_sequences: Option<u64>,
    /// Choices that are dropped: the last by "position", the last by "choice" and then position, or the smallest by "score". Left out: the
    /// gate's.
    pub drop: Option<DropChoice>,
    /// Second choices are used at random, with twice their weight as probability (GShard). Left out: the gate's.
    pub random_second: Option<bool>,
    /// Nodes of a topology-aware gate (FasterMoE), 1: none. They have equal consecutive parts of the experts and take turns at the
    /// sequences of a batch; in training few tokens of a sequence choose an expert of another node. With two choices by softmax. Left out:
    /// 1.
    pub nodes: Option<u64>,
    /// Consecutive sequences of a batch in a node's turn: where ranks share experts, `train.micro_batch` times those ranks of a node. Left
    /// out: 1.
    pub node_sequences: Option<u64>,
    /// Part of the tokens of a sequence that may leave their node. Left out: 0.14.
    pub leaving: Option<f64>,
    /// Largest relative noise on the router's input in training (Switch: 0.01). Left out: the gate's.
    pub jitter: Option<f64>,
    /// Width of a feed-forward block beside the experts, which computes every token; 0: none. Left out: the architecture's, else 0.
    pub shared: Option<u64>,
    /// Its result is multiplied by the sigmoid of one number a token (Qwen2-MoE). Left out: the architecture's, else false.
    pub shared_gate: Option<bool>,
    /// The experts' result and that of the block beside them are weighed by a softmax of two numbers a token (PR-MoE). Left out: the
    /// architecture's, else false.
    pub residual: Option<bool>,
    /// Weight of the balance loss of each layer, which is 1 where every expert has equally many tokens; 0 leaves it out. Left out: the gate's,
    /// 0.01 for most.
    pub balance: Option<f64>,
    /// Tokens of one balance loss: those of a "sequence", of so many sequences of a micro-batch, or of a "batch", by the loads of the step
    /// before. Left out: "sequence".
    pub balance_over: Option<BalanceOver>,
    /// Choices that the balance loss counts: those of "routing", or the best by "scores" alone. Left out: the gate's.
    pub balance_counts: Option<BalanceCounts>,
    /// Weight of the router's z-loss, the mean of lse^2, lse the log-sum-exp of a token's router logits (ST-MoE: 1e-3); 0 leaves it out. Left
    /// out: the gate's, 0.001 for most.
    pub z_loss: Option<f64>,
}

impl ExpertsConfig {
    /// The experts that this table means in a model whose feed-forward blocks are `ffn_width` wide. Keys left out are those of `base`.
    pub(crate) fn resolve(&self, base: Option<Experts>, ffn_width: usize) -> Result<Experts, ArchError> {
        let base = base.unwrap_or(Experts::top_k([8, 2, ffn_width], true));
        let base = match self.gate.map(GateChoice::usual) {
            Some(Usual { choices, renormalise, .. }) => Experts { choices, renormalise, ..base },
            None => base,
        };
        let width = self.width.map(|width| if width == 0 { ffn_width as u64 } else { width });
        let most = match &self.count {
            Some(ExpertCount::One(count)) => Some(*count),
            Some(ExpertCount::Each(counts)) => counts.iter().copied().max(),
            None => None,
        };
        let experts = Experts {
            count: positive("experts.count", most, base.count, limits::EXPERTS)?,
            choices: positive("experts.choices", self.choices, base.choices, limits::EXPERTS)?,
            width: positive("experts.width", width, base.width, limits::FFN_WIDTH)?,
            renormalise: self.renormalise.unwrap_or(base.renormalise),
            gate: self.resolve_gate(base.gate)?,
        };
        experts.check()?;
        self.training(&experts.gate)?;
        Ok(experts)
    }

    /// [`Model::expert_counts`] of a model of `layers` layers.
    /// A number that is left out is that of `base`.
    pub(crate) fn resolve_counts(
        &self,
        base: &[usize],
        of: &ExpertLayers,
        layers: usize,
    ) -> Result<Vec<usize>, ArchError> {
        let counts = match &self.count {
            Some(ExpertCount::Each(counts)) => counts,
            Some(ExpertCount::One(_)) => return Ok(Vec::new()),
            None => return Ok(base.to_vec()),
        };
        of.check(layers)?;
        let each = counts.iter().map(|count| positive("experts.count", Some(*count), 1, limits::EXPERTS));
        let counts = each.collect::<Result<Vec<usize>, ArchError>>()?;
        check_counts(&counts, of.count(&(0..layers)))?;
        let differ = counts.windows(2).any(|two| two[0] != two[1]);
        Ok(if differ { counts } else { Vec::new() })
    }

    /// The block beside the experts. Keys left out are those of `base`.
    pub(crate) fn resolve_shared(
        &self,
        base: Option<SharedExpert>,
    ) -> Result<Option<SharedExpert>, ArchError> {
        let width = self.shared.unwrap_or(base.map_or(0, |shared| shared.width as u64));
        let gate = self.shared_gate.unwrap_or(base.is_some_and(|shared| shared.gate));
        let mixed = self.residual.unwrap_or(base.is_some_and(|shared| shared.mixed));
        let written = [("experts.shared_gate", self.shared_gate), ("experts.residual", self.residual)];
        if width == 0 {
            return match written.into_iter().find(|(_, written)| *written == Some(true)) {
                Some((key, _)) => Err(ArchError {
                    key,
                    problem: "true without a shared block; set experts.shared, its width, or take this out"
                        .into(),
                }),
                None => Ok(None),
            };
        }
        let width = positive("experts.shared", Some(width), 1, limits::FFN_WIDTH)?;
        Ok(Some(SharedExpert { width, gate, mixed }))
    }

    /// The table that resolves to these experts in these layers.
    pub(crate) fn of(
        experts: &Experts,
        layers: &ExpertLayers,
        counts: &[usize],
        shared: Option<SharedExpert>,
    ) -> ExpertsConfig {
        let count = match counts.is_empty() {
            true => ExpertCount::One(experts.count as u64),
            false => ExpertCount::Each(counts.iter().map(|count| *count as u64).collect()),
        };
        let mut config = ExpertsConfig {
            layers: Some(layers.clone()),
            count: Some(count),
            choices: Some(experts.choices as u64),
            width: Some(experts.width as u64),
            renormalise: Some(experts.renormalise),
            shared: Some(shared.map_or(0, |shared| shared.width as u64)),
            shared_gate: Some(shared.is_some_and(|shared| shared.gate)),
            residual: Some(shared.is_some_and(|shared| shared.mixed)),
            ..ExpertsConfig::default()
        };
        experts.gate.write(&mut config);
        config
    }
}

/// Refuses a list of experts that is not one number for each of so many layers.
fn check_counts(counts: &[usize], layers: usize) -> Result<(), ArchError> {
    if counts.len() == layers {
        return Ok(());
    }
    Err(ArchError {
        key: "experts.count",
        problem: format!(
            "wanted one number, or one for each of the {layers} layers with experts, found {}; change the list or experts.layers",
            counts.len()
        ),
    })
}

impl Experts {
    fn check(&self) -> Result<(), ArchError> {
        let Experts { count, choices, renormalise, .. } = *self;
        let wrong = |key, problem: String| Err(ArchError { key, problem });
        if choices > count {
            return wrong(
                "experts.choices",
                format!("wanted at most the {count} experts, found {choices}; change experts.count or this"),
            );
        }
        if choices == 1 && renormalise && count > 1 && self.gate.is_causal() {
            return wrong(
                "experts.renormalise",
                "true with one choice makes every weight 1, and the router gets no gradient; set it to false or \
                 experts.choices = 2"
                    .into(),
            );
        }
        self.gate.check(self)
    }
}

impl Model {
    /// Refuses experts that the model's other choices leave undefined.
    pub(crate) fn check_experts(&self) -> Result<(), ArchError> {
        let Some(experts) = &self.experts else { return Ok(()) };
        self.expert_layers.check(self.layers)?;
        let sizes = [
            ("experts.count", experts.count, limits::EXPERTS),
            ("experts.choices", experts.choices, limits::EXPERTS),
            ("experts.width", experts.width, limits::FFN_WIDTH),
            ("experts.shared", self.shared_expert.map_or(1, |shared| shared.width), limits::FFN_WIDTH),
        ];
        for (key, value, most) in sizes {
            positive(key, Some(value as u64), 1, most)?;
        }
        experts.check()?;
        if !self.expert_counts.is_empty() {
            check_counts(&self.expert_counts, self.expert_layers_in(0..self.layers))?;
            let most = self.expert_counts.iter().max();
            if most != Some(&experts.count) || self.expert_counts.contains(&0) {
                let wanted = experts.count;
                let problem =
                    format!("wanted numbers from 1 to {wanted}, the most of a layer, found {most:?}");
                return Err(ArchError { key: "experts.count", problem });
            }
            self.layer_kinds()
                .into_iter()
                .filter_map(|layer| self.experts_of(layer))
                .try_for_each(|of| of.check())?;
        }
        if self.shared_expert.is_some_and(|shared| shared.gate && shared.mixed) {
            return Err(ArchError {
                key: "experts.residual",
                problem: "true beside shared_gate = true: one number or two weigh the block; set one of them to false"
                    .into(),
            });
        }
        if self.mlp() != MlpKind::Gated || self.bias {
            let found = if self.bias { "bias = true" } else { "an activation without a gate" };
            return Err(ArchError {
                key: "experts",
                problem: format!(
                    "wanted gated experts without biases, found {found}; set activation = \"swiglu\" and bias = false, as \
                     architecture = \"llama\" does"
                ),
            });
        }
        Ok(())
    }

    /// Whether layer `layer` has experts.
    pub fn has_experts(&self, layer: usize) -> bool {
        self.experts_of(layer).is_some()
    }

    /// The experts of layer `layer`; none where its feed-forward block is dense.
    pub fn experts_of(&self, layer: usize) -> Option<Experts> {
        let experts = self.experts.filter(|_| self.expert_layers.has(layer))?;
        if self.expert_counts.is_empty() {
            return Some(experts);
        }
        let count = self.expert_counts.get(self.expert_layers.count(&(0..layer))).copied();
        Some(Experts { count: count.unwrap_or(experts.count), ..experts })
    }

    /// Layers with experts among `layers`.
    pub fn expert_layers_in(&self, layers: Range<usize>) -> usize {
        self.experts.map_or(0, |_| self.expert_layers.count(&layers))
    }

    /// The first layer of each kind: with a dense block, with each number of experts. Layers of one kind are alike in names, shapes and
    /// roles.
    pub fn layer_kinds(&self) -> Vec<usize> {
        let mut kinds: Vec<usize> = (0..self.layers.min(1)).collect();
        let changes: Vec<usize> = match &self.expert_layers {
            ExpertLayers::Rule(_) => vec![1],
            ExpertLayers::Numbers(numbers) => {
                numbers.iter().flat_map(|n| [*n, n.saturating_add(1)]).collect()
            }
        };
        let other = |layer: &usize| *layer < self.layers && self.has_experts(*layer) != self.has_experts(0);
        kinds.extend(changes.into_iter().filter(other).min());
        let mut seen: Vec<usize> = Vec::new();
        let counts = self.experts.iter().flat_map(|_| self.expert_counts.iter().enumerate());
        for (n, count) in counts {
            if !seen.contains(count) {
                seen.push(*count);
                kinds.extend(self.expert_layers.nth(n).filter(|layer| *layer < self.layers));
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Layers of the kind of layer `layer`.
    pub fn layers_like(&self, layer: usize) -> usize {
        self.layers_like_among(layer, 0..self.layers)
    }

    /// Layers of the kind of layer `layer` among `layers`.
    pub(crate) fn layers_like_among(&self, layer: usize, layers: Range<usize>) -> usize {
        let experts = self.expert_layers_in(layers.clone());
        match self.experts_of(layer) {
            None => layers.len() - experts,
            Some(_) if self.expert_counts.is_empty() => experts,
            Some(of) => {
                let before = self.expert_layers_in(0..layers.start);
                let counts = self.expert_counts.iter().skip(before).take(experts);
                counts.filter(|count| **count == of.count).count()
            }
        }
    }

    /// Parameters of the matrices of the feed-forward block of layer `layer` that a token uses.
    pub(crate) fn active_feed_forward(&self, layer: usize) -> usize {
        match self.experts_of(layer) {
            Some(experts) => {
                let gates = |shared: &SharedExpert| usize::from(shared.gate) + 2 * usize::from(shared.mixed);
                let shared = self.shared_expert.map_or(0, |shared| 3 * shared.width + gates(&shared));
                self.width * (experts.count + shared) + experts.choices * self.expert_parameters()
            }
            None => self.width * (self.mlp_in_width() + self.ffn_width),
        }
    }

    /// Parameters of one expert of a layer, 0 without experts.
    pub fn expert_parameters(&self) -> usize {
        self.experts.map_or(0, |experts| 3 * self.width * experts.width)
    }

    /// Parameters that a token uses: all but those of the experts that it does not choose.
    pub fn active_parameters(&self) -> usize {
        let of_kind = |first: usize| {
            let idle = self.experts_of(first).map_or(0, |experts| experts.count - experts.choices);
            self.layers_like(first).saturating_mul(idle)
        };
        let idle = self.layer_kinds().into_iter().map(of_kind).fold(0, usize::saturating_add);
        self.parameters() - idle.saturating_mul(self.expert_parameters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpertTraining, ModelConfig, named};

    /// Parameters, active ones and those of an expert, as published; FLOPs a token at 4,096 tokens.
    #[test]
    fn counts_are_those_of_public_models() {
        let counts = [
            ("mixtral", 17_639_680, 11_151_616, 270_336, 117_227_520.0),
            ("pr-moe", 13_850_880, 11_147_520, 270_336, 117_202_944.0),
            ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 176_160_768, 82_933_972_992.0),
            ("qwen1.5-moe-a2.7b", 14_315_784_192, 2_689_173_504, 8_650_752, 16_682_483_712.0),
            ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 4_718_592, 27_913_617_408.0),
            ("olmoe-1b-7b", 6_919_161_856, 1_282_017_280, 6_291_456, 8_683_782_144.0),
        ];
        for (name, parameters, active, expert, flops) in counts {
            let model = named(name).unwrap();
            model.check().unwrap();
            assert_eq!(model.parameters(), parameters, "{name}");
            assert_eq!(model.active_parameters(), active, "{name}");
            assert_eq!(model.expert_parameters(), expert, "{name}");
            assert_eq!(model.train_flops_per_token(4096).0, flops, "{name}");
            assert_eq!(model.params().iter().map(crate::ParamSpec::len).sum::<usize>(), parameters, "{name}");
        }
    }

    /// A pyramid beside a residual block: parameters by hand, layer by layer, and what replaces the architecture's numbers.
    #[test]
    fn pr_moe_is_a_pyramid_with_residual_blocks() {
        let model = named("pr-moe").unwrap();
        let (width, expert) = (256, 3 * 256 * 352);
        let (attention, norms, dense) = (512 * width + width * width, 2 * width, 3 * width * 704);
        // A router, its experts, a block like an expert beside them, and the mixture's two rows.
        let layer = |experts: usize| experts * width + experts * expert + expert + 2 * width;
        let table = 32_000 * width;
        let wanted = table + width + 4 * (attention + norms) + 2 * dense + layer(4) + layer(8);
        assert_eq!(model.parameters(), wanted);
        assert_eq!(model.active_parameters(), wanted - (3 + 7) * expert);
        assert_eq!(
            (0..4).map(|at| model.experts_of(at).map(|of| of.count)).collect::<Vec<_>>(),
            [None, Some(4), None, Some(8)]
        );
        let gate = model.experts.unwrap().gate;
        assert_eq!((gate.jitter, gate.capacity.unwrap().millionths), (0.01, 1_250_000));
        assert_eq!(model.shared_expert, Some(SharedExpert { width: 352, gate: false, mixed: true }));
        let of = |experts: Option<ExpertsConfig>, layers| {
            let config = ModelConfig { architecture: "pr-moe".into(), layers, experts, ..Default::default() };
            assert_eq!(
                config.expert_training(),
                ExpertTraining { balance: 0.01, z_loss: 0.001, bias_rate: 0.0 }
            );
            config.resolve(Some(9))
        };
        let empty = of(Some(ExpertsConfig::default()), None).unwrap();
        assert_eq!(empty, Model { vocab_size: 9, ..model.clone() });
        let one = ExpertsConfig { count: Some(ExpertCount::One(6)), ..Default::default() };
        let even = of(Some(one.clone()), Some(7)).unwrap();
        assert_eq!((even.expert_counts.len(), even.experts_of(5).unwrap().count), (0, 6));
        let e = of(None, Some(7)).unwrap_err().to_string();
        assert!(
            e.starts_with("model.experts.count: wanted one number, or one for each of the 3 layers"),
            "{e}"
        );
    }

    /// A key that is written replaces one of the architecture's; the width of an expert follows that of the feed-forward block where
    /// the two are one number.
    #[test]
    fn keys_left_out_are_those_of_the_architecture() {
        let of = |architecture: &str, width, experts: Option<ExpertsConfig>| {
            let architecture = architecture.to_owned();
            let config = ModelConfig { architecture, width, experts, ..Default::default() };
            (config.resolve(Some(9)).unwrap().experts.unwrap(), config.expert_training())
        };
        let (qwen, losses) = of("qwen3-30b-a3b", None, None);
        assert_eq!(qwen, named("qwen3-30b-a3b").unwrap().experts.unwrap());
        let usual = ExpertTraining { balance: 0.01, z_loss: 0.001, bias_rate: 0.0 };
        assert_eq!(losses, usual);
        let fewer =
            ExpertsConfig { count: Some(ExpertCount::One(16)), balance: Some(0.5), ..Default::default() };
        let half = ExpertTraining { balance: 0.5, ..usual };
        assert_eq!(of("qwen3-30b-a3b", None, Some(fewer)), (Experts { count: 16, ..qwen }, half));
        assert_eq!(of("qwen3-30b-a3b", Some(1024), None).0.width, 768);
        assert_eq!(of("mixtral", Some(512), None).0.width, 1408);
        let dense = ModelConfig { architecture: "llama".into(), ..Default::default() };
        assert_eq!(dense.expert_training(), ExpertTraining::default());
    }

    /// Layers with experts have their roles, the others those of a dense block; counts and FLOPs are sums over layers, and over the
    /// spans of a pipeline.
    #[test]
    fn layers_without_experts_keep_their_feed_forward_block() {
        let alternate = ExpertLayers::Rule(LayerRule::Alternate);
        let all = Model { layers: 5, ..named("mixtral").unwrap() };
        let dense = Model { experts: None, ..all.clone() };
        for (layers, numbers) in [
            (ExpertLayers::default(), vec![0, 1, 2, 3, 4]),
            (alternate.clone(), vec![1, 3]),
            (ExpertLayers::Numbers(vec![0, 3, 4]), vec![0, 3, 4]),
            (ExpertLayers::Numbers(vec![4]), vec![4]),
        ] {
            let model = Model { expert_layers: layers.clone(), ..all.clone() };
            model.check().unwrap();
            assert_eq!(ExpertLayers::of(5, |layer| numbers.contains(&layer)), layers);
            assert_eq!(model.expert_layers_in(0..5), numbers.len());
            assert_eq!(model.expert_layers_in(1..4), numbers.iter().filter(|n| (1..4).contains(*n)).count());
            let params = model.params();
            let with = |text: &str| -> Vec<usize> {
                let found = params.iter().filter(|p| p.name.ends_with(text));
                found.map(|p| p.id.unit().layer().unwrap()).collect()
            };
            assert_eq!(with(".mlp.router.weight"), numbers);
            assert_eq!(with(".mlp.experts.down.weight"), numbers);
            let others: Vec<usize> = (0..5).filter(|layer| !numbers.contains(layer)).collect();
            assert_eq!(with(".mlp.down.weight"), others);
            assert_eq!(with(".mlp.gate_up.weight"), others);
            let kinds: Vec<usize> =
                [numbers.first(), others.first()].into_iter().flatten().copied().collect();
            let mut found = model.layer_kinds();
            found.sort_by_key(|layer| !model.has_experts(*layer));
            assert_eq!(found, kinds);
            assert_eq!(kinds.iter().map(|layer| model.layers_like(*layer)).sum::<usize>(), 5);
            assert_eq!(model.parameters(), params.iter().map(crate::ParamSpec::len).sum::<usize>());
            let between = |of: fn(&Model) -> usize| of(&dense) + (of(&all) - of(&dense)) / 5 * numbers.len();
            assert_eq!(model.parameters(), between(Model::parameters));
            assert_eq!(model.active_parameters(), between(Model::active_parameters));
            for stages in 1..=4 {
                let spans = model.split(stages).unwrap();
                let sum: f64 = spans.iter().map(|span| span.flops_per_token(&model, 100).total()).sum();
                assert_eq!(sum, model.train_flops_per_token(100).0, "{stages} stages of {layers:?}");
            }
            let config = ModelConfig::of(&model);
            assert_eq!(config.resolve(None).unwrap(), model);
        }
        let shared = SharedExpert { width: 100, gate: true, mixed: false };
        let model = Model { expert_layers: alternate.clone(), shared_expert: Some(shared), ..all.clone() };
        let sum: f64 =
            model.split(3).unwrap().iter().map(|span| span.flops_per_token(&model, 100).total()).sum();
        assert_eq!(sum, model.train_flops_per_token(100).0);
        let without = Model { shared_expert: None, ..model.clone() };
        assert_eq!(model.parameters() - without.parameters(), 2 * 256 * 301);
        assert_eq!(model.active_parameters() - without.active_parameters(), 2 * 256 * 301);
        assert_eq!(ModelConfig::of(&model).resolve(None).unwrap(), model);
        for wrong in [vec![], vec![5], vec![3, 3], vec![2, 1]] {
            let model = Model { expert_layers: ExpertLayers::Numbers(wrong), ..all.clone() };
            let e = model.check().unwrap_err().to_string();
            assert!(e.starts_with("model.experts.layers: wanted \"all\", \"alternate\" or numbers"), "{e}");
        }
        let deep = Model { layers: 1_000_000_000, expert_layers: alternate, ..all };
        assert!(deep.active_parameters() > 1_000_000_000_000);
    }

    /// A pyramid is the model of its largest layers without the experts that the others lack: counts by hand.
    #[test]
    fn layers_may_have_different_numbers_of_experts() {
        let base = Model { layers: 5, ..named("mixtral").unwrap() };
        let alternate = ExpertLayers::Rule(LayerRule::Alternate);
        let numbers = ExpertLayers::Numbers(vec![0, 1, 4]);
        let expert = 3 * 256 * 352;
        for (layers, counts, lacking, kinds, alike) in [
            (alternate, vec![4, 8], 4, vec![0, 1, 3], vec![3, 1, 1]),
            (ExpertLayers::default(), vec![2, 2, 8, 8, 8], 12, vec![0, 2], vec![2, 3]),
            (numbers, vec![8, 3, 8], 5, vec![0, 1, 2], vec![2, 1, 2]),
        ] {
            let even = Model { expert_layers: layers, ..base.clone() };
            let model = Model { expert_counts: counts.clone(), ..even.clone() };
            model.check().unwrap();
            // An expert has its matrices and a row of the router; a token has all rows of routers.
            assert_eq!(even.parameters() - model.parameters(), lacking * (expert + 256), "{counts:?}");
            assert_eq!(even.active_parameters() - model.active_parameters(), lacking * 256, "{counts:?}");
            let flops = |of: &Model| of.train_flops_per_token(100).0;
            assert_eq!(flops(&even) - flops(&model), (6 * lacking * 256) as f64, "{counts:?}");
            for stages in 1..=4 {
                let spans = model.split(stages).unwrap();
                let sum: f64 = spans.iter().map(|span| span.flops_per_token(&model, 100).total()).sum();
                assert_eq!(sum, flops(&model), "{stages} stages of {counts:?}");
            }
            assert_eq!(model.layer_kinds(), kinds);
            assert_eq!(kinds.iter().map(|layer| model.layers_like(*layer)).collect::<Vec<_>>(), alike);
            let here = (0..5).filter_map(|layer| model.experts_of(layer)).map(|of| of.count);
            assert!(here.eq(counts.iter().copied()));
            let mut left = counts.iter();
            for spec in model.params() {
                if spec.id.role() == crate::ParamRole::RouterWeight {
                    assert_eq!(spec.shape, [*left.next().unwrap(), 256]);
                }
                let rows: usize = spec.id.stacked(&model).iter().sum();
                assert!(rows == 0 || rows == spec.shape[0], "{}", spec.name);
            }
            assert_eq!(model.params().iter().map(crate::ParamSpec::len).sum::<usize>(), model.parameters());
            assert_eq!(ModelConfig::of(&model).resolve(None).unwrap(), model);
            let least = counts.iter().min().unwrap();
            assert!(model.summary().contains(&format!(", {least} to 8 experts")), "{}", model.summary());
        }
        let of = |counts: &[u64]| {
            let count = Some(ExpertCount::Each(counts.into()));
            let experts = Some(ExpertsConfig { count, ..Default::default() });
            let config = ModelConfig { architecture: "mixtral".into(), experts, ..Default::default() };
            config.resolve(Some(9)).unwrap()
        };
        // Equal numbers are one.
        let same = of(&[6; 4]);
        assert_eq!((same.experts.unwrap().count, same.expert_counts.len()), (6, 0));
        assert_eq!(
            (of(&[2, 2, 4, 4]).experts.unwrap().count, of(&[2, 2, 4, 4]).expert_counts),
            (4, vec![2, 2, 4, 4])
        );
    }

    #[test]
    fn lists_of_experts_that_cannot_be_are_refused_by_key() {
        let refused = |counts: &[u64], others: ExpertsConfig| {
            let experts = ExpertsConfig { count: Some(ExpertCount::Each(counts.into())), ..others };
            let architecture = "mixtral".into();
            let config = ModelConfig { architecture, experts: Some(experts), ..Default::default() };
            config.resolve(Some(9)).unwrap_err().to_string()
        };
        let none = ExpertsConfig::default;
        let alternate = ExpertsConfig { layers: Some(ExpertLayers::Rule(LayerRule::Alternate)), ..none() };
        for (counts, others, wanted) in [
            (
                &[4, 8][..],
                none(),
                "count: wanted one number, or one for each of the 4 layers with experts, found 2;",
            ),
            (&[], none(), "count: wanted one number, or one for each of the 4 layers with experts, found 0;"),
            (
                &[2, 4, 8],
                alternate,
                "count: wanted one number, or one for each of the 2 layers with experts, found 3;",
            ),
            (&[4, 4, 0, 8], none(), "count: wanted 1 to 16384, found 0"),
            (&[4, 4, 8, 16385], none(), "count: wanted 1 to 16384, found 16385"),
            (
                &[8, 8, 8, 2],
                ExpertsConfig { choices: Some(3), ..none() },
                "choices: wanted at most the 2 experts, found 3",
            ),
            (
                &[8, 6, 8, 8],
                ExpertsConfig { groups: Some(4), ..none() },
                "groups: wanted at most 64 groups that divide the 6 experts",
            ),
        ] {
            let e = refused(counts, others);
            assert!(e.starts_with(&format!("model.experts.{wanted}")), "wanted {wanted}: {e}");
        }
        // Of a file.
        let model = named("mixtral").unwrap();
        for counts in [vec![8, 8], vec![4, 4, 4, 4], vec![8, 8, 16, 8], vec![8, 0, 8, 8]] {
            let e = Model { expert_counts: counts, ..model.clone() }.check().unwrap_err().to_string();
            assert!(e.starts_with("model.experts.count: wanted"), "{e}");
        }
    }

    #[test]
    fn experts_that_cannot_be_are_refused_by_key() {
        let refused = |experts: ExpertsConfig, architecture: &str| {
            let config = ModelConfig {
                architecture: architecture.into(),
                vocab_size: 100,
                experts: Some(experts),
                ..Default::default()
            };
            config.resolve(None).unwrap_err().to_string()
        };
        let few = ExpertsConfig { count: Some(ExpertCount::One(2)), choices: Some(3), ..Default::default() };
        let e = refused(few, "llama");
        assert!(e.starts_with("model.experts.choices: wanted at most the 2 experts, found 3"), "{e}");
        let one = ExpertsConfig { choices: Some(1), ..Default::default() };
        assert!(refused(one, "llama").starts_with("model.experts.renormalise: true with one choice"));
        assert!(refused(ExpertsConfig::default(), "gpt2").contains("found bias = true"));
        let gate = ExpertsConfig { shared_gate: Some(true), ..Default::default() };
        assert!(refused(gate, "llama").starts_with("model.experts.shared_gate: true without a shared block"));
        let none = ExpertsConfig { count: Some(ExpertCount::One(0)), ..Default::default() };
        assert!(refused(none, "llama").contains("model.experts.count: wanted 1 to"));
    }
}
