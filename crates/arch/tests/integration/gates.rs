//! Gates of experts: what their names mean, capacities, and keys that are refused.

use bessemer_arch::{
    BalanceCounts, BalanceOver, BalanceRule, Capacity, CapacityChoice, ChosenBy, DropChoice, ExpertCount,
    Experts, ExpertsConfig, Gate, GateChoice, ModelConfig, Nodes, ParamRole, ScoreChoice,
};

fn config(experts: ExpertsConfig) -> ModelConfig {
    let experts = Some(experts);
    ModelConfig { architecture: "llama".into(), vocab_size: 100, experts, ..Default::default() }
}

fn named(gate: GateChoice) -> ExpertsConfig {
    ExpertsConfig { gate: Some(gate), ..Default::default() }
}

fn resolved(table: &ExpertsConfig) -> Experts {
    config(table.clone()).resolve(None).unwrap().experts.unwrap()
}

/// Keys that a gate's name gives, and the losses of its training.
#[test]
fn gates_have_the_values_of_their_papers() {
    let of =
        |millionths, drop, random_second| Some(Capacity { millionths, sequences: 1, drop, random_second });
    let plain = Gate::default();
    let switch = Gate { capacity: of(1_250_000, DropChoice::Position, false), jitter: 0.01, ..plain };
    let gshard = Gate { capacity: of(1_000_000, DropChoice::Choice, true), ..plain };
    let deepseek = Gate {
        score: ScoreChoice::Sigmoid,
        bias: true,
        scale: Some(2.5),
        balance_counts: BalanceCounts::Scores,
        ..plain
    };
    let choosing =
        Gate { chosen_by: ChosenBy::Experts, capacity: of(1_000_000, DropChoice::Score, false), ..plain };
    for (name, gate, choices, renormalise, losses) in [
        (GateChoice::TopK, plain, 2, true, [0.01, 0.001, 0.0]),
        (GateChoice::Switch, switch, 1, false, [0.01, 0.001, 0.0]),
        (GateChoice::Gshard, gshard, 2, true, [0.01, 0.001, 0.0]),
        (GateChoice::Deepseek, deepseek, 2, true, [0.0001, 0.0, 0.001]),
        (GateChoice::ExpertChoice, choosing, 2, false, [0.0, 0.001, 0.0]),
    ] {
        let table = named(name);
        let found = resolved(&table);
        assert_eq!(found.gate, gate, "{name:?}");
        assert_eq!((found.choices, found.renormalise), (choices, renormalise), "{name:?}");
        let training = config(table).expert_training();
        assert_eq!([training.balance, training.z_loss, training.bias_rate], losses, "{name:?}");
    }
}

/// A written key replaces the gate's; a model's own table resolves to the model.
#[test]
fn written_keys_replace_those_of_a_gate_and_models_keep_theirs() {
    let table = ExpertsConfig {
        capacity: Some(CapacityChoice::Factor(0.75)),
        drop: Some(DropChoice::Score),
        capacity_sequences: Some(4),
        random_second: Some(false),
        groups: Some(4),
        groups_kept: Some(2),
        balance_over: Some(BalanceOver::Rule(BalanceRule::Batch)),
        shared: Some(64),
        residual: Some(true),
        ..named(GateChoice::Gshard)
    };
    let model = config(table).resolve(None).unwrap();
    let gate = model.experts.unwrap().gate;
    let capacity =
        Capacity { millionths: 750_000, sequences: 4, drop: DropChoice::Score, random_second: false };
    assert_eq!(gate.capacity, Some(capacity));
    assert_eq!(gate.groups.map(|groups| (groups.count, groups.kept)), Some((4, 2)));
    let roles = |model: &bessemer_arch::Model| -> Vec<ParamRole> {
        model.params().iter().filter(|p| p.name.starts_with("layers.0.mlp")).map(|p| p.id.role()).collect()
    };
    assert!(
        roles(&model).contains(&ParamRole::RouterLoads) && roles(&model).contains(&ParamRole::MixtureWeight)
    );
    assert!(!roles(&model).contains(&ParamRole::RouterCorrection));
    for gate in [GateChoice::TopK, GateChoice::Switch, GateChoice::Deepseek, GateChoice::ExpertChoice] {
        let model = config(named(gate)).resolve(None).unwrap();
        assert_eq!(ModelConfig::of(&model).resolve(None).unwrap(), model, "{gate:?}");
        let biased = roles(&model).contains(&ParamRole::RouterCorrection);
        assert_eq!(biased, gate == GateChoice::Deepseek, "{gate:?}");
    }
    assert_eq!(ModelConfig::of(&model).resolve(None).unwrap(), model);
    let table =
        ExpertsConfig { nodes: Some(4), node_sequences: Some(2), leaving: Some(0.25), ..Default::default() };
    let model = config(table).resolve(None).unwrap();
    let nodes = model.experts.unwrap().gate.nodes.unwrap();
    assert_eq!(nodes, Nodes { count: 4, sequences: 2, leaving_millionths: 250_000 });
    assert_eq!([nodes.leaving(3), nodes.leaving(12), nodes.leaving(usize::MAX)], [0, 3, usize::MAX / 4]);
    assert_eq!(ModelConfig::of(&model).resolve(None).unwrap(), model);
}

/// `ceil(factor k S / E)` of the decimals that are written: in floating point 1.1 x 10 rounds up to 12.
#[test]
fn capacities_are_exact() {
    let rows = |factor, choices, tokens, count| {
        let table = ExpertsConfig {
            capacity: Some(CapacityChoice::Factor(factor)),
            count: Some(ExpertCount::One(count)),
            choices: Some(choices),
            renormalise: Some(false),
            ..Default::default()
        };
        let experts = resolved(&table);
        experts.gate.capacity.unwrap().rows(experts.choices, tokens, experts.count)
    };
    assert_eq!(rows(1.1, 1, 80, 8), 11);
    assert_eq!(rows(1.25, 1, 64, 8), 10);
    assert_eq!(rows(1.0, 2, 7, 8), 2);
    assert_eq!(rows(0.000_001, 1, 8, 8), 1);
    assert_eq!(rows(1000.0, 2, usize::MAX, 8), usize::MAX);
}

#[test]
fn gates_that_cannot_be_are_refused_by_key() {
    let plain = ExpertsConfig::default;
    let factor = |factor| Some(CapacityChoice::Factor(factor));
    for (table, wanted) in [
        (ExpertsConfig { capacity: factor(0.0), ..plain() }, "capacity: wanted 0.000001 to 1000 times"),
        (
            ExpertsConfig { capacity: factor(1e-7), ..plain() },
            "capacity: wanted 0.000001 to 1000 with at most six",
        ),
        (ExpertsConfig { capacity: factor(f64::NAN), ..plain() }, "capacity: wanted 0.000001 to 1000"),
        (ExpertsConfig { drop: Some(DropChoice::Score), ..plain() }, "drop: there is no capacity"),
        (ExpertsConfig { random_second: Some(true), ..plain() }, "random_second: there is no capacity"),
        (
            ExpertsConfig { random_second: Some(true), ..named(GateChoice::Switch) },
            "random_second: true with experts.choices = 1",
        ),
        (
            ExpertsConfig { groups: Some(3), ..plain() },
            "groups: wanted at most 64 groups that divide the 8 experts",
        ),
        (
            ExpertsConfig { groups: Some(8), groups_kept: Some(1), ..plain() },
            "groups_kept: wanted 1 to 8 groups",
        ),
        (ExpertsConfig { groups_kept: Some(2), ..plain() }, "groups_kept: 2 without groups"),
        (ExpertsConfig { bias_rate: Some(0.1), ..plain() }, "bias_rate: 0.1 without biases"),
        (
            ExpertsConfig { z_loss: Some(0.1), ..named(GateChoice::Deepseek) },
            "z_loss: 0.1 with score = \"sigmoid\"",
        ),
        (
            ExpertsConfig { chosen_by: Some(ChosenBy::Experts), ..plain() },
            "chosen_by: \"experts\" take the best tokens",
        ),
        (
            ExpertsConfig { bias: Some(true), ..named(GateChoice::ExpertChoice) },
            "chosen_by: \"experts\" take the best tokens",
        ),
        (ExpertsConfig { residual: Some(true), ..plain() }, "residual: true without a shared block"),
        (ExpertsConfig { leaving: Some(0.5), ..plain() }, "leaving: there are no nodes"),
        (ExpertsConfig { node_sequences: Some(2), ..plain() }, "node_sequences: there are no nodes"),
        (ExpertsConfig { nodes: Some(3), ..plain() }, "nodes: wanted a divisor of the 8 experts"),
        (ExpertsConfig { nodes: Some(8), ..plain() }, "nodes: wanted a divisor of the 8 experts"),
        (ExpertsConfig { nodes: Some(2), leaving: Some(1.5), ..plain() }, "leaving: wanted a part"),
        (ExpertsConfig { nodes: Some(2), leaving: Some(1e-7), ..plain() }, "leaving: wanted 0 to 1"),
        (ExpertsConfig { nodes: Some(2), choices: Some(4), ..plain() }, "nodes: wanted choices = 2"),
        (
            ExpertsConfig { nodes: Some(2), ..named(GateChoice::Deepseek) },
            "nodes: wanted choices = 2, score = \"softmax\"",
        ),
        (
            ExpertsConfig { residual: Some(true), shared: Some(8), shared_gate: Some(true), ..plain() },
            "residual: true beside shared_gate = true",
        ),
    ] {
        let e = config(table).resolve(None).unwrap_err().to_string();
        assert!(e.starts_with(&format!("model.experts.{wanted}")), "wanted {wanted}: {e}");
    }
}
