//! What the graph of operators says about options is what the rewritten programs do.

use super::*;
use bessemer_arch::{Annotations, ModelConfig, ParamLayout};
use bessemer_model::{LineStream, Phase, StageConfig, Stream};
use bessemer_plan::op_seconds;
use bessemer_plan::sharding::{Decision, Traffic};
use bessemer_program::{Node, UnitProgram};

const SHAPE: Shape = Shape { sequences: 2, seq: 16, purpose: Purpose::Train };

fn model(architecture: &str, change: &dyn Fn(&mut ModelConfig)) -> Model {
    let mut config = ModelConfig {
        architecture: architecture.into(),
        vocab_size: 64,
        layers: Some(1),
        width: Some(32),
        heads: Some(4),
        context: Some(16),
        ..ModelConfig::default()
    };
    change(&mut config);
    config.resolve(None).unwrap()
}

/// Small models that differ in what their layers are made of.
fn models() -> Vec<(&'static str, Model)> {
    vec![
        ("gpt2", model("gpt2", &|_| {})),
        ("gpt2 with dropout", model("gpt2", &|config| config.dropout = 0.1)),
        ("gpt2, untied", model("gpt2", &|config| config.tied_embeddings = Some(false))),
        ("llama", model("llama", &|config| config.kv_heads = Some(4))),
        (
            "llama, tied",
            model("llama", &|config| {
                (config.kv_heads, config.tied_embeddings) = (Some(4), Some(true));
            }),
        ),
        (
            "llama with normalised heads",
            model("llama", &|config| {
                (config.kv_heads, config.qk_norm) = (Some(4), Some(true));
            }),
        ),
    ]
}

fn config(recompute: Recompute) -> ActivationConfig {
    ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() }
}

/// Every combination of options.
fn combinations(graph: &UnitGraph) -> Vec<Vec<usize>> {
    let longer = |all: Vec<Vec<usize>>, decision: &Decision| {
        let with = |of: &Vec<usize>| {
            (0..decision.options.len()).map(|option| [&of[..], &[option]].concat()).collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    };
    graph.decisions.iter().fold(vec![Vec::new()], longer)
}

/// Seconds and bytes of a micro-batch of a rewritten unit.
fn of_program(program: &UnitProgram, devices: Devices<'_>) -> Traffic {
    let mut all = Traffic::default();
    for node in [Phase::Forward, Phase::Backward].into_iter().flat_map(|phase| program.list(phase)) {
        match node {
            Node::Launch(launch) if !launch.first_only => {
                all.seconds += op_seconds(&launch.op, devices.machine, devices.efficiency);
            }
            Node::Collective(c) => {
                let ShardAxis { axis, spread } = devices.axes[0];
                let whole = c.src.bytes().max(c.dst.bytes()) as f64;
                all += Traffic {
                    seconds: bessemer_plan::collective_seconds(
                        c.kind,
                        whole,
                        axis,
                        spread,
                        devices.machine,
                        devices.efficiency,
                    ),
                    sent: c.bytes_sent(spread.ranks, 0) as f64,
                };
            }
            _ => {}
        }
    }
    all
}

/// Every choice that the graph allows is what `partition` makes of its annotations: the same bytes, the same seconds, accepted by the verifier.
/// What the graph does not allow is what annotations cannot say.
#[test]
fn options_cost_what_the_rewritten_programs_do() {
    let machine = Machine::named("a100-80gb").unwrap();
    let efficiency = Efficiency::default();
    let (mut compared, mut replicated) = (0, 0);
    for (name, model) in models() {
        for (tensor, recompute) in [(2, Recompute::None), (4, Recompute::Selective), (2, Recompute::Full)] {
            for sequence in [false, true] {
                let axes = ShardAxis::plane(tensor, 1, machine.node);
                let devices = Devices { machine: &machine, efficiency: &efficiency, axes: &axes };
                let alone =
                    Decoder::with_activations(&mut NullBackend::new(), &model, SHAPE, config(recompute));
                let recorded = units(&alone.unwrap()).unwrap();
                let graphs = [&recorded.embedding, &recorded.layer, &recorded.head]
                    .map(|unit| UnitGraph::new(unit, devices, Layouts::Partition { sequence }));
                for (number, graph) in graphs.iter().enumerate() {
                    for options in combinations(graph) {
                        let found = graph.micro_batch(&options);
                        if found.seconds.is_infinite() {
                            continue;
                        }
                        let choice = UnitChoice::of(graph, &options);
                        let mut annotations = Annotations::default();
                        for (parameter, place) in &choice.parameters {
                            let full = format!("{}{parameter}", prefix(number, 1));
                            let sharding =
                                model.shardings().into_iter().find(|s| s.spec.name == full).unwrap();
                            if *place == Place::Replicate && sharding.dim().is_some() {
                                annotations.0.insert(full, ParamLayout::Replicate);
                                replicated += 1;
                            }
                        }
                        let what =
                            format!("{name}, tensor {tensor}, {recompute}, sequence {sequence}, {choice:?}");
                        let shardings = model.annotated_shardings(&annotations, sequence);
                        if let Err(refusal) = &shardings {
                            // A tied table is read by the loss too, which cannot have it whole where rows are sharded.
                            assert!(model.tied_embeddings && sequence && number == 0, "{what}: {refusal}");
                            continue;
                        }
                        let shard = model.tensor_shard_of(shardings.unwrap(), tensor, 0).unwrap();
                        let line = if sequence { LineStream::Rows } else { LineStream::Whole };
                        let decoder = Decoder::of_stage(
                            &mut NullBackend::new(),
                            &shard,
                            Stream { line, ..Stream::WHOLE },
                            SHAPE,
                            config(recompute),
                            &StageConfig::whole(&model),
                            None,
                        )
                        .unwrap();
                        decoder.verify().unwrap();
                        let programs = decoder.programs_after(Rewrite::Partition).unwrap();
                        let wanted = of_program(&programs[number].1, devices);
                        assert_eq!(found.sent, wanted.sent, "{what}");
                        assert!(
                            (found.seconds / wanted.seconds - 1.0).abs() < 1e-9,
                            "{found:?} {wanted:?}: {what}"
                        );
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 200 && replicated > 100, "{compared} compared, {replicated} replicated");
}
