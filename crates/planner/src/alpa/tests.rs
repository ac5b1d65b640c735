//! What the graph of operators says about options is what the rewritten programs do.

use super::*;
use bessemer_arch::{Annotations, ModelConfig, ParamLayout};
use bessemer_plan::sharding::{Decision, Price, Traffic};
use bessemer_plan::{ZeroStage, op_seconds};
use bessemer_program::{Node, UnitProgram};
use bessemer_runtime::{LineStream, Phase, StageConfig, Stream};

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
                let ShardAxis { axis, spread, .. } = devices.axes[0];
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
                let axes = [ShardAxis::tensor(Spread::consecutive(tensor, machine.node))];
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

/// Units joined to a chain have the least seconds of all combinations of their options, within every limit of memory.
#[test]
fn chains_of_units_are_the_best_of_all_combinations() {
    let (machine, efficiency) = (Machine::named("a100-80gb").unwrap(), Efficiency::default());
    let axes = [ShardAxis::tensor(Spread::consecutive(2, machine.node))];
    let devices = Devices { machine: &machine, efficiency: &efficiency, axes: &axes };
    let model = model("llama", &|config| config.kv_heads = Some(4));
    let alone =
        Decoder::with_activations(&mut NullBackend::new(), &model, SHAPE, config(Recompute::None)).unwrap();
    let recorded = units(&alone).unwrap();
    let [embedding, layer, head] = [&recorded.embedding, &recorded.layer, &recorded.head]
        .map(|unit| UnitGraph::new(unit, devices, Layouts::Partition { sequence: false }));
    let bytes = bessemer_plan::ParameterBytes { parameter: 4.0, gradient: 4.0, state: 8.0 };
    let data = Spread::consecutive(1, machine.node);
    let training = bessemer_plan::sharding::Training {
        zero: ZeroStage::Ddp,
        data,
        micro_batches: 1,
        in_flight: 1,
        bytes,
    };
    let prices = Prices::new(training, devices);
    let of_unit = |graph: &UnitGraph| {
        let costs = prices.graph(graph, BoundBy::Compute);
        let all = combinations(graph).into_iter().map(|options| costs.price(&options));
        all.filter(|price| price.seconds.is_finite()).collect::<Vec<_>>()
    };
    let (of_layer, mut all) = (of_unit(&layer), of_unit(&embedding));
    for unit in [&of_layer, &of_layer, &of_unit(&head)] {
        let sum =
            |a: &Price, b: &Price| Price { seconds: a.seconds + b.seconds, memory: a.memory + b.memory };
        all = all.iter().flat_map(|a| unit.iter().map(move |b| sum(a, b))).collect();
    }
    assert_eq!(all.len(), 2 * 4 * 4 * 2);
    let chain = Chain { embedding: &embedding, layer: &layer, layers: 2, head: &head, devices };
    let memories = all.iter().map(|price| price.memory);
    let (least, most) = (memories.clone().fold(f64::INFINITY, f64::min), memories.fold(0.0, f64::max));
    let mut binds = 0;
    for share in 0..=20 {
        let limit = least + (most - least) * f64::from(share) / 20.0;
        let within = all.iter().filter(|price| price.memory <= limit);
        let wanted = within.map(|price| price.seconds).fold(f64::INFINITY, f64::min);
        let found = chain.solve(&prices, BoundBy::Compute, limit).unwrap().unwrap();
        assert!((found.price.seconds / wanted - 1.0).abs() < 1e-12, "{found:?} for {wanted}");
        assert!(found.price.memory <= limit && found.bound <= wanted * (1.0 + 1e-12) && found.factor == 1.0);
        binds += usize::from(found.bound < wanted * (1.0 - 1e-9));
    }
    assert!(binds > 0, "memory binds nowhere");
    assert_eq!(chain.solve(&prices, BoundBy::Compute, least * 0.99).unwrap(), None);
    let fastest = all.iter().map(|price| price.seconds).fold(f64::INFINITY, f64::min);
    let free = chain.solve(&prices, BoundBy::Compute, f64::INFINITY).unwrap().unwrap();
    assert!((free.price.seconds / fastest - 1.0).abs() < 1e-12);
}

/// Sizes and times of graphs of all operators, on two axes of 8 devices. Times are of this build on this machine.
#[test]
#[ignore = "prints figures: cargo test -p bessemer --bin bessemer figures_of -- --ignored --nocapture"]
fn figures_of_operator_graphs() {
    let (machine, efficiency) = (Machine::named("a100-80gb").unwrap(), Efficiency::default());
    let axes = ShardAxis::plane(8, 8, machine.node);
    let devices = Devices { machine: &machine, efficiency: &efficiency, axes: &axes };
    let model = ModelConfig { architecture: "llama-8b".into(), layers: Some(1), ..ModelConfig::default() };
    let model = model.resolve(Some(128_256)).unwrap();
    let shape = Shape { sequences: 64, seq: 8192, purpose: Purpose::Train };
    let config = ActivationConfig { storage: bessemer_units::Storage::Bf16, ..config(Recompute::Selective) };
    let recorded = units(&Decoder::with_activations(&mut NullBackend::new(), &model, shape, config).unwrap());
    let recorded = recorded.unwrap();
    let bytes = bessemer_plan::ParameterBytes { parameter: 2.0, gradient: 2.0, state: 12.0 };
    for (layers, zero, limit) in [
        (32, ZeroStage::Zero1, f64::INFINITY),
        (32, ZeroStage::Zero1, 80e9),
        (32, ZeroStage::Zero1, 40e9),
        (100, ZeroStage::Zero3, f64::INFINITY),
        (100, ZeroStage::Zero3, 120e9),
        (100, ZeroStage::Zero1, 120e9),
    ] {
        let begun = Instant::now();
        let [embedding, layer, head] = [&recorded.embedding, &recorded.layer, &recorded.head]
            .map(|unit| UnitGraph::new(unit, devices, Layouts::Any));
        let build = begun.elapsed().as_secs_f64();
        let data = Spread::consecutive(1, machine.node);
        let training =
            bessemer_plan::sharding::Training { zero, data, micro_batches: 8, in_flight: 1, bytes };
        let chain = Chain { embedding: &embedding, layer: &layer, layers, head: &head, devices };
        let begun = Instant::now();
        let solved = chain.solve(&Prices::new(training, devices), BoundBy::Compute, limit).unwrap();
        let solve = begun.elapsed().as_secs_f64();
        let [decisions, options, pairs] = chain.size();
        let what = match solved {
            Some(s) => format!(
                "{:.6} s a micro-batch, bound {:.6} s, gap {:.4} %, {:.1} GB",
                s.price.seconds,
                s.bound,
                100.0 * gap(s.price.seconds, s.bound),
                s.price.memory / 1e9
            ),
            None => "does not fit".into(),
        };
        println!(
            "{layers} layers, {zero:?}, {:.0} GB: {decisions} decisions, {options} options, {pairs} pairs; built in {:.1} ms, solved in \
             {:.1} ms; {what}",
            limit / 1e9,
            1e3 * build,
            1e3 * solve
        );
    }
}
