//! Stages on submeshes of different sizes: never worse than equal ones, equal to the plans where sizes are alike, and the best of all.

use bessemer_arch::{Model, ModelConfig};
use bessemer_plan::sharding::{
    ShardingLayout, ShardingQuestion, UnequalStages, UnitPrograms, sharding_plans, unequal_stages,
};
use bessemer_plan::{Efficiency, Machine, ParameterBytes, ZeroStage};
use bessemer_runtime::{Decoder, Purpose, Rewrite, Shape, Unit};
use bessemer_tensor::null::NullBackend;
use bessemer_units::Recompute;
use std::convert::Infallible;

const SEQ: usize = 32;

/// A model whose head takes as long as some layers.
fn model() -> Model {
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: 4096,
        layers: Some(1),
        width: Some(256),
        heads: Some(4),
        kv_heads: Some(4),
        context: Some(SEQ as u64),
        tied_embeddings: Some(false),
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

fn programs(sequences: usize, _: Recompute) -> Result<UnitPrograms, Infallible> {
    let shape = Shape { sequences, seq: SEQ, purpose: Purpose::Train };
    let decoder = Decoder::new(&mut NullBackend::new(), &model(), shape).unwrap();
    let units = decoder.programs_after(Rewrite::Recompute).unwrap();
    let of = |wanted: Unit| units.iter().find(|(unit, ..)| *unit == wanted).unwrap().1.clone();
    Ok(UnitPrograms { embedding: of(Unit::Embedding), layer: of(Unit::Layer(0)), head: of(Unit::Head) })
}

/// Slow devices, on which computing takes longer than launches.
fn machine(node: usize) -> Machine {
    let machine = Machine::named("a100-80gb").unwrap();
    Machine { node, matrix_flops: 1e12, memory_bandwidth: 1e11, ..machine }
}

fn question<'a>(
    machine: &'a Machine,
    efficiency: &'a Efficiency,
    layers: usize,
    devices: usize,
) -> ShardingQuestion<'a> {
    ShardingQuestion {
        layers,
        tied: None,
        seq: SEQ,
        sequences: 32,
        devices,
        tensor: vec![1],
        micro_batches: vec![1, 2, 4],
        recompute: vec![Recompute::None],
        machine,
        efficiency,
        bytes: ParameterBytes { parameter: 4.0, gradient: 4.0, state: 8.0 },
        memory: 8e10,
        plans: 1000,
    }
}

fn unequal(question: &ShardingQuestion<'_>, layout: &ShardingLayout) -> UnequalStages {
    unequal_stages(question, layout, programs).unwrap().unwrap()
}

#[test]
fn submeshes_that_differ_are_never_worse_than_equal_ones_and_may_be_better() {
    let efficiency = Efficiency::default();
    let mut better = 0;
    for (node, devices, layers) in [(4, 4, 3), (4, 4, 5), (2, 4, 2), (8, 8, 5), (4, 8, 7)] {
        let machine = machine(node);
        let question = question(&machine, &efficiency, layers, devices);
        let plans = sharding_plans(&question, programs).unwrap().plans;
        for plan in plans.iter().filter(|plan| plan.layout.zero == ZeroStage::Zero1 || plan.layout.data == 1)
        {
            let found = unequal(&question, &plan.layout);
            assert!(found.seconds <= found.equal * (1.0 + 1e-12), "{found:?}");
            assert_eq!(found.stages.iter().map(|stage| stage.layers).sum::<usize>(), layers);
            assert_eq!(found.stages.iter().map(|stage| stage.tensor * stage.data).sum::<usize>(), devices);
            // Stages of one node have the prices of plans, which are one of the pipelines.
            if devices <= node {
                assert!(found.equal <= plan.seconds * (1.0 + 1e-9), "{found:?} {plan:?}");
            }
            better += usize::from(found.seconds < 0.99 * found.equal);
        }
    }
    assert!(better > 0, "no case gains");
}

/// The equal pipelines of one node are those of the search: the fastest with the same sequences of a micro-batch.
#[test]
fn equal_submeshes_have_the_seconds_of_plans() {
    let (machine, efficiency) = (machine(8), Efficiency::default());
    let question = question(&machine, &efficiency, 5, 8);
    let plans = sharding_plans(&question, programs).unwrap().plans;
    let first =
        plans.iter().find(|plan| plan.layout.data > 1 && plan.layout.zero == ZeroStage::Zero1).unwrap();
    let found = unequal(&question, &first.layout);
    let sequences = |layout: &ShardingLayout| layout.micro_batch * layout.data;
    let alike = plans.iter().filter(|plan| {
        sequences(&plan.layout) == sequences(&first.layout)
            && (plan.layout.data == 1 || plan.layout.zero == ZeroStage::Zero1)
    });
    let least = alike.map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
    assert!((found.equal / least - 1.0).abs() < 1e-9, "{} {least}", found.equal);
}

#[test]
fn what_cannot_be_compared_has_no_answer() {
    let (machine, efficiency) = (machine(8), Efficiency::default());
    let question = question(&machine, &efficiency, 4, 8);
    let layout = sharding_plans(&question, programs).unwrap().plans[0].layout;
    let none =
        |question: &ShardingQuestion<'_>| unequal_stages(question, &layout, programs).unwrap().is_none();
    assert!(!none(&question));
    assert!(none(&ShardingQuestion { tied: Some("embed.tokens"), ..question.clone() }));
    assert!(none(&ShardingQuestion { devices: 128, ..question.clone() }));
    assert!(none(&ShardingQuestion { memory: 1.0, ..question }));
}
