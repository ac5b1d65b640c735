//! Experts train as on one rank in every layout in which each rank has all experts of its layers, and are refused in the others.

#![allow(clippy::print_stdout, reason = "the test of all gates prints which one it is at")]

use crate::pipelines::{Layout, check, model, pipelined, single, train};
use bessemer_arch::{
    Annotations, BalanceCounts, BalanceOver, BalanceRule, Capacity, ChosenBy, DropChoice, ExpertLayers,
    Experts, Gate, GroupChoice, LayerRule, Model, Nodes, ParamLayout, QkNormSpan, ScoreChoice, SharedExpert,
};
use bessemer_collectives::{Communicator, Ledger, NullCommunicator};
use bessemer_fixture::{SEQ, Text};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_mesh::{Axis, ContextMethod};
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{CubeConfig, ExpertsOver, Job, ParallelConfig, Plan, Stage, TensorConfig, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::Kind;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{ParamStorage, Recompute};
use std::collections::BTreeMap;

pub(crate) fn mixture(renormalise: bool) -> Model {
    let experts = Experts::top_k([4, 2, 8], renormalise);
    let model = Model { experts: Some(experts), ..model(false) };
    model.check().unwrap();
    model
}

pub(crate) fn ranks(ranks: usize, config: ParallelConfig) -> Layout {
    Layout { config, ranks, micro_batches: 2, ..single() }
}

#[test]
fn experts_train_as_one_rank_does_with_data_parallelism_zero_and_pipelines() {
    let base = ParallelConfig::default;
    for renormalise in [true, false] {
        let model = mixture(renormalise);
        for (stage, shard) in [(Stage::Ddp, 0), (Stage::Zero1, 2), (Stage::Zero2, 0), (Stage::Zero3, 2)] {
            check(&model, &ranks(4, ParallelConfig { stage, shard, ..base() }), 8);
        }
        for kind in [Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1, Kind::DualPipe] {
            check(&model, &pipelined(kind, 2, 4), 8);
        }
        check(&model, &pipelined(Kind::OneFOneB, 2, 4).with_data(2, Stage::Zero2, 0), 8);
        let mut recomputed = ranks(2, base());
        recomputed.activations.recompute = Recompute::Full.into();
        check(&model, &recomputed, 8);
    }
}

/// Ranks that share experts, alone and among others that have copies of them or shard the state, with every schedule that flushes.
#[test]
fn experts_over_ranks_train_as_on_one_rank() {
    let base = ParallelConfig::default;
    for renormalise in [true, false] {
        let model = mixture(renormalise);
        for (count, experts, stage, shard) in [
            (2, 2, Stage::Ddp, 0),
            (4, 2, Stage::Ddp, 0),
            (4, 4, Stage::Ddp, 0),
            (4, 2, Stage::Zero1, 0),
            (4, 4, Stage::Zero1, 0),
            (4, 2, Stage::Zero1, 2),
            (4, 2, Stage::Zero2, 0),
            (4, 4, Stage::Zero2, 0),
            (4, 2, Stage::Zero2, 2),
            (4, 2, Stage::Zero3, 0),
            (4, 4, Stage::Zero3, 0),
            (4, 2, Stage::Zero3, 2),
        ] {
            check(&model, &ranks(count, ParallelConfig { stage, shard, experts, ..base() }), 8);
        }
    }
}

/// Ranks that share positions keep their tokens; those of a line share each expert's width.
#[test]
fn experts_go_with_tensor_sequence_and_context_parallelism() {
    let base = ParallelConfig::default;
    let model = mixture(true);
    for tensor in [2u64, 4] {
        for sequence in [false, true] {
            check(
                &model,
                &ranks(tensor as usize, ParallelConfig { tensor: tensor.into(), sequence, ..base() }),
                4,
            );
        }
    }
    for context_method in [ContextMethod::AllGather, ContextMethod::Ulysses, ContextMethod::Ring] {
        let config = ParallelConfig { context: 2, context_method, ..base() };
        check(&model, &Layout { micro_batches: 4, ..ranks(2, config) }, 4);
    }
    // Several at once, with experts over the ranks of data parallelism.
    let tensor = ParallelConfig { tensor: 2.into(), sequence: true, ..base() };
    let context = ParallelConfig { context: 2, ..base() };
    for (config, count, micro_batches) in [
        (ParallelConfig { experts: 2, ..tensor.clone() }, 4, 2),
        (ParallelConfig { experts: 2, tensor: 2.into(), ..base() }, 4, 2),
        (ParallelConfig { experts: 2, ..context.clone() }, 4, 4),
        (ParallelConfig { experts: 2, stage: Stage::Zero3, ..tensor.clone() }, 8, 2),
        (ParallelConfig { experts: 4, stage: Stage::Zero2, ..context.clone() }, 8, 2),
        (ParallelConfig { experts: 2, context: 2, ..tensor.clone() }, 8, 4),
    ] {
        check(&model, &Layout { micro_batches, ..ranks(count, config) }, 8);
    }
    // A shared block besides the experts, with experts in some layers.
    let shared = Model {
        shared_expert: Some(SharedExpert { width: 8, gate: true, mixed: false }),
        expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
        ..mixture(false)
    };
    for (config, count) in [
        (ParallelConfig { tensor: 2.into(), ..base() }, 2),
        (tensor.clone(), 2),
        (ParallelConfig { experts: 2, ..base() }, 2),
        (ParallelConfig { experts: 2, stage: Stage::Zero3, ..tensor.clone() }, 8),
    ] {
        check(&shared, &Layout { micro_batches: 2, ..ranks(count, config) }, 8);
    }
    let mut staged = pipelined(Kind::Interleaved, 2, 4).with_data(2, Stage::Zero1, 0);
    staged.config.experts = 2;
    check(&shared, &staged, 8);
    let replicated = Annotations([("layers.*.mlp.experts.*".to_owned(), ParamLayout::Replicate)].into());
    for sequence in [false, true] {
        let config = ParallelConfig { annotate: replicated.clone(), sequence, ..tensor.clone() };
        check(&model, &ranks(2, config), 4);
    }
    let mut piped = pipelined(Kind::ZbH1, 2, 4).with_tensor(true).with_data(2, Stage::Ddp, 0);
    piped.config.experts = 2;
    check(&model, &piped, 8);
}

/// A rank of tensor-parallel ones, with tokens of its own, that has whole experts.
pub(crate) fn folded_over_tensor(experts: u64) -> ParallelConfig {
    let (tensor, experts_over) = (2.into(), ExpertsOver::Tensor);
    ParallelConfig { tensor, sequence: true, experts, experts_over, ..ParallelConfig::default() }
}

/// Ranks that share sequences and have other experts, whole ones.
pub(crate) fn folded_over_context(experts: u64) -> ParallelConfig {
    ParallelConfig { context: 2, experts, experts_over: ExpertsOver::Context, ..ParallelConfig::default() }
}

/// Whole experts on ranks of a layer, alone and among data-parallel ranks, with ZeRO, pipelines and a block besides.
#[test]
fn whole_experts_over_ranks_of_a_layer_train_as_on_one_rank() {
    let zero = |stage, config| ParallelConfig { stage, ..config };
    let ring = |config| ParallelConfig { context_method: ContextMethod::Ring, ..config };
    let shared = Model {
        shared_expert: Some(SharedExpert { width: 8, gate: true, mixed: false }),
        expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
        ..mixture(false)
    };
    for model in [&mixture(true), &shared] {
        for (config, count, micro_batches) in [
            (folded_over_tensor(2), 2, 2),
            (folded_over_tensor(4), 4, 2),
            (folded_over_context(2), 2, 8),
            (ring(folded_over_context(4)), 4, 4),
            (zero(Stage::Zero3, folded_over_tensor(4)), 8, 2),
            (zero(Stage::Zero1, folded_over_context(2)), 4, 4),
            (ParallelConfig { context: 2, ..folded_over_tensor(4) }, 8, 4),
        ] {
            check(model, &Layout { micro_batches, ..ranks(count, config) }, 8);
        }
    }
    let mut piped = pipelined(Kind::ZbH1, 2, 4).with_tensor(true).with_data(2, Stage::Zero1, 0);
    (piped.config.experts, piped.config.experts_over) = (4, ExpertsOver::Tensor);
    check(&mixture(true), &piped, 8);
}

/// Mixtures by the gates of other papers.
pub(crate) fn gates() -> Vec<(&'static str, Model)> {
    let capacity =
        |millionths, drop, random_second| Some(Capacity { millionths, sequences: 1, drop, random_second });
    let top_k = Experts::top_k([4, 2, 8], true);
    let of = |gate| Some(Experts { gate, ..top_k });
    let raw = |choices, gate| Some(Experts { choices, renormalise: false, gate, ..top_k });
    let base = Gate::default();
    let switch = Gate { capacity: capacity(1_000_000, DropChoice::Position, false), jitter: 0.1, ..base };
    let gshard = Gate { capacity: capacity(750_000, DropChoice::Choice, true), ..base };
    let by_score = capacity(500_000, DropChoice::Score, false);
    let deepseek = Gate {
        score: ScoreChoice::Sigmoid,
        bias: true,
        groups: Some(GroupChoice { count: 2, kept: 1 }),
        scale: Some(2.5),
        balance_counts: BalanceCounts::Scores,
        ..base
    };
    let batch = Gate { balance_over: BalanceOver::Rule(BalanceRule::Batch), ..base };
    let choosing = Gate {
        chosen_by: ChosenBy::Experts,
        capacity: capacity(1_000_000, DropChoice::Score, false),
        ..base
    };
    let two_nodes = Nodes { count: 2, sequences: 2, leaving_millionths: 140_000 };
    let mixed = Some(SharedExpert { width: 8, gate: false, mixed: true });
    let with = |experts| {
        let model = Model { experts, ..mixture(true) };
        model.check().unwrap();
        model
    };
    let pyramid = Model {
        shared_expert: mixed,
        expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
        expert_counts: vec![2, 2, 4, 4],
        ..with(raw(1, Gate { bias: true, ..batch }))
    };
    pyramid.check().unwrap();
    vec![
        ("switch", with(raw(1, switch))),
        ("gshard", with(of(gshard))),
        ("best by score", with(of(Gate { capacity: by_score, ..base }))),
        ("deepseek", with(of(deepseek))),
        ("balance over a batch", with(of(batch))),
        ("expert choice", with(raw(2, choosing))),
        ("two nodes", with(of(Gate { nodes: Some(two_nodes), ..base }))),
        ("residual", Model { shared_expert: mixed, ..with(raw(1, base)) }),
        ("pyramid", pyramid),
    ]
}

/// Capacities, noise, biases and residual blocks are those of one rank in every kind of layout.
#[test]
fn every_gate_trains_as_on_one_rank() {
    let base = ParallelConfig::default;
    let tensor = |sequence| ParallelConfig { tensor: 2.into(), sequence, ..base() };
    for (name, model) in gates() {
        println!("{name}");
        for (config, count, micro_batches) in [
            (base(), 2, 2),
            (ParallelConfig { stage: Stage::Zero3, ..base() }, 2, 2),
            (ParallelConfig { experts: 2, ..base() }, 2, 2),
            (ParallelConfig { experts: 2, stage: Stage::Zero2, ..base() }, 4, 1),
            (tensor(false), 2, 2),
            (tensor(true), 2, 2),
            (ParallelConfig { experts: 2, ..tensor(true) }, 4, 2),
            (ParallelConfig { context: 2, ..base() }, 2, 8),
            (ParallelConfig { context: 2, experts: 2, ..base() }, 4, 4),
        ] {
            check(&model, &Layout { micro_batches, ..ranks(count, config) }, 8);
        }
        check(&model, &pipelined(Kind::ZbH1, 2, 4), 8);
        let mut staged = pipelined(Kind::Interleaved, 2, 4).with_data(2, Stage::Zero1, 0);
        staged.config.experts = 2;
        check(&model, &staged, 8);
        let mut recomputed = ranks(2, ParallelConfig { experts: 2, ..base() });
        recomputed.activations.recompute = Recompute::Full.into();
        check(&model, &recomputed, 8);
    }
}

/// Choices beyond a capacity are counted once, whichever ranks share the tokens.
#[test]
fn drops_are_those_of_one_rank() {
    let all = gates();
    for (name, model) in all.iter().filter(|(name, _)| ["switch", "gshard", "best by score"].contains(name)) {
        let drops = |config: &ParallelConfig, ranks, sequences| {
            let counted = |cpu: &mut CpuBackend, worker: &mut Worker, ledger: &Ledger| {
                worker_gradients(cpu, worker, sequences, ledger);
                let loads = worker.sum_loads().unwrap();
                (loads.choices.to_vec(), loads.dropped_and_kept.to_vec())
            };
            on_ranks(model, config, (ranks, sequences), counted).swap_remove(0)
        };
        let alone = drops(&ParallelConfig::default(), 1, 8);
        let choices = model.experts.unwrap().choices as u32;
        for [dropped, kept] in &alone.1 {
            assert!(*dropped > 0 && dropped + kept == 8 * SEQ as u32 * choices, "{name}: {alone:?}");
        }
        let base = ParallelConfig::default;
        let tensor = |sequence| ParallelConfig { tensor: 2.into(), sequence, ..base() };
        for (config, ranks) in [
            (ParallelConfig { experts: 2, ..base() }, 2),
            (tensor(false), 2),
            (ParallelConfig { experts: 2, ..tensor(true) }, 4),
        ] {
            assert_eq!(drops(&config, ranks, 8), alone, "{name}: {config:?}");
        }
    }
    let plain = mixture(true);
    let none = on_ranks(&plain, &ParallelConfig::default(), (1, 8), |cpu, worker, ledger| {
        worker_gradients(cpu, worker, 8, ledger);
        worker.sum_loads().unwrap().dropped_and_kept.to_vec()
    });
    assert!(none[0].iter().all(|layer| *layer == [0, 0]));
}

/// Corrections move by the rate against the loads, and loads are those of the step before; both are state of every layout.
#[test]
fn routing_state_follows_the_loads() {
    for (name, model) in gates() {
        let gate = model.experts.unwrap().gate;
        let done = &train(&model, &ranks(2, ParallelConfig::default()), 8)[0];
        let of = |end: &str| -> Vec<&Vec<f32>> {
            done.params.iter().filter(|(name, _)| name.ends_with(end)).map(|(_, values)| values).collect()
        };
        let layers = model.expert_layers_in(0..model.layers);
        assert_eq!(of("router.correction").len(), if gate.bias { layers } else { 0 }, "{name}");
        // Three steps of 0.05 up or down, or none where a load was the mean.
        let corrections: Vec<f32> = of("router.correction").into_iter().flatten().copied().collect();
        assert!(corrections.iter().any(|value| *value != 0.0) || !gate.bias);
        let steps = |value: &f32| (value / 0.05 - (value / 0.05).round()).abs() < 1e-3 && value.abs() < 0.16;
        assert!(corrections.iter().all(steps), "{name}: {corrections:?}");
        for values in of("router.loads") {
            let sum = values.iter().sum::<f32>();
            assert!((sum - values.len() as f32).abs() < 1e-5 && values.iter().any(|load| *load != 1.0));
        }
    }
}

#[test]
fn experts_over_ranks_go_with_pipelines_and_recomputation() {
    let model = mixture(true);
    let spread =
        |layout: Layout, experts| Layout { config: ParallelConfig { experts, ..layout.config }, ..layout };
    for kind in [
        Kind::GPipe,
        Kind::OneFOneB,
        Kind::Interleaved,
        Kind::BreadthFirst,
        Kind::Chimera,
        Kind::ZbH1,
        Kind::ZbH2,
        Kind::ZbV,
        Kind::DualPipe,
        Kind::DualPipeV,
    ] {
        check(&model, &spread(pipelined(kind, 2, 4).with_data(2, Stage::Ddp, 0), 2), 8);
    }
    for (stage, shard) in [(Stage::Zero1, 0), (Stage::Zero2, 2), (Stage::Zero3, 0)] {
        check(&model, &spread(pipelined(Kind::OneFOneB, 2, 2).with_data(4, stage, shard), 2), 8);
    }
    let mut recomputed = ranks(2, ParallelConfig { experts: 2, ..ParallelConfig::default() });
    recomputed.activations.recompute = Recompute::Full.into();
    check(&model, &recomputed, 8);
}

/// A job of these ranks, made and initialised: results of `with` for each rank's worker.
pub(crate) fn on_ranks<T: Send>(
    model: &Model,
    config: &ParallelConfig,
    (ranks, sequences): (usize, usize),
    with: impl Fn(&mut CpuBackend, &mut Worker, &Ledger) -> T + Sync,
) -> Vec<T> {
    let optim = OptimConfig::default();
    let plan = Plan::new(config, ranks, model, optim.optimizer).unwrap();
    let program = plan.program(1, 1, None).unwrap();
    let shape = Shape { sequences: sequences / plan.data_ranks(), seq: SEQ, purpose: Purpose::Train };
    let job = Job {
        model,
        shape,
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &program,
    };
    bessemer_fixture::on_ranks(ranks, |world: Box<dyn Communicator>| {
        let mut cpu = crate::instruction_set::cpu(1);
        let ledger = Ledger::new();
        let mut worker = Worker::new(&mut cpu, &job, ledger.wrap(world)).unwrap();
        worker.init(&mut cpu, 3).unwrap();
        with(&mut cpu, &mut worker, &ledger)
    })
}

/// The loss and every gradient of one step, by name.
pub(crate) fn gradients(
    cpu: &mut CpuBackend,
    worker: &mut Worker,
    sequences: usize,
) -> (f64, BTreeMap<String, Vec<f32>>) {
    let (loss, all, _) = worker_gradients(cpu, worker, sequences, &Ledger::new());
    (loss, all)
}

/// Returns the gradients, and the bytes that the rank has sent over the axis of experts.
pub(crate) fn worker_gradients(
    cpu: &mut CpuBackend,
    worker: &mut Worker,
    sequences: usize,
    ledger: &Ledger,
) -> (f64, BTreeMap<String, Vec<f32>>, u64) {
    let here = sequences / worker.plan().data_ranks();
    let first = (worker.plan().data_index(worker.coord()) * here) as u64;
    let mut text = Text { first, sequences: here as u64, all: sequences as u64, ..Text::default() };
    let sum = worker.gradients(cpu, &mut text).unwrap();
    let loss = worker.sum_over_data(sum).unwrap().mean();
    let sent = ledger.of(Axis::Expert.name()).volume.sent;
    let tensors = worker.gradients_of_params();
    let mut all = BTreeMap::new();
    for tensor in tensors {
        let mut values = vec![0.0; tensor.len()];
        worker.read(cpu, &tensor, &mut values).unwrap();
        all.insert(tensor.name, values);
    }
    (loss, all, sent)
}

/// With one micro-batch the gradients of experts are sums over the ranks of the data, in their order, whether rows or gradients are sent.
#[test]
fn experts_on_every_rank_and_over_all_ranks_have_the_same_bits() {
    let model = mixture(true);
    let of = |experts| {
        let config = ParallelConfig { experts, ..ParallelConfig::default() };
        on_ranks(&model, &config, (4, 8), |cpu, worker, _| gradients(cpu, worker, 8)).swap_remove(0)
    };
    let wanted = of(1);
    assert!(wanted.1.keys().any(|name| name.contains("experts")));
    for experts in [2, 4] {
        let found = of(experts);
        assert_eq!(found.0, wanted.0);
        for (name, values) in &found.1 {
            let apart =
                values.iter().zip(&wanted.1[name]).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            // Half of the ranks' rows are summed before the two halves are.
            let stacked = name.contains("mlp.experts");
            assert!(
                apart == 0 || stacked && experts == 2,
                "{experts}: {apart} of {} in {name}",
                values.len()
            );
        }
    }
}

/// Equal logits choose the first experts: one rank has all rows, the others none.
#[test]
fn all_tokens_may_go_to_one_rank() {
    let model = mixture(true);
    let without_router = |cpu: &mut CpuBackend, worker: &mut Worker, ledger: &Ledger| {
        for tensor in worker.params() {
            if tensor.name.contains("router") {
                worker.write(cpu, &tensor, &vec![0.0; tensor.len()]).unwrap();
            }
        }
        // Tokens and gradients travel to the ranks of the first two experts, which send back their results.
        let (experts, ranks) = (mixture(true).experts.unwrap(), worker.plan().experts());
        let tokens = 8 * SEQ / (worker.plan().data_ranks() * worker.plan().stream_parts());
        let rows = |expert: usize| match expert * ranks / experts.count == worker.rank() {
            true => (ranks - 1) * tokens,
            false => tokens,
        };
        let offsets = 4 * (experts.count + 1) * (ranks - 1);
        let bytes = 2 * (rows(0) + rows(1)) * worker.model().width * 4;
        let wanted = worker.model().layers * (offsets + bytes);
        ledger.clear();
        let made = worker_gradients(cpu, worker, 8, ledger);
        // Each layer has all choices at its first experts, whichever rank counted them.
        let tokens = (8 * SEQ) as u32;
        let loads = worker.sum_loads().unwrap().choices.to_vec();
        assert!(loads.chunks(4).all(|layer| layer == [tokens, tokens, 0, 0]), "{loads:?}");
        assert!(worker.sum_loads().unwrap().choices.iter().all(|load| *load == 0));
        assert_eq!(made.2, if ranks > 1 { wanted as u64 } else { 0 });
        (made.0, made.1)
    };
    let alone = on_ranks(&model, &ParallelConfig::default(), (1, 8), without_router).swap_remove(0);
    let base = ParallelConfig::default;
    for (config, count) in [
        (ParallelConfig { experts: 2, ..base() }, 2),
        (ParallelConfig { experts: 4, ..base() }, 4),
        (ParallelConfig { experts: 4, stage: Stage::Zero3, ..base() }, 4),
        (folded_over_tensor(2), 2),
        (folded_over_tensor(4), 4),
    ] {
        let experts = config.experts;
        let found = on_ranks(&model, &config, (count, 8), without_router).swap_remove(0);
        assert!((found.0 - alone.0).abs() < 1e-5 * alone.0, "{experts}: {} and {}", found.0, alone.0);
        for (name, values) in &found.1 {
            let most = alone.1[name].iter().fold(0f32, |most, x| most.max(x.abs()));
            let apart = values.iter().zip(&alone.1[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart <= 1e-4 * most, "{experts}: {name} is {apart} of {most} apart");
        }
        // Experts without tokens have gradients of zero.
        let down = &found.1["layers.0.mlp.experts.down.weight"];
        assert!(down[down.len() / 2..].iter().all(|x| *x == 0.0) && down[0] != 0.0);
    }
}

/// Covers a shared block besides the experts, and QK-norm of all heads. Stages, chunks of stages and layers that alternate in gathered memory
/// have one kind of layers, or both.
#[test]
fn experts_in_some_layers_train_as_one_rank_does() {
    let base = ParallelConfig::default;
    for layers in [ExpertLayers::Rule(LayerRule::Alternate), ExpertLayers::Numbers(vec![0, 1, 6])] {
        let gate = layers == ExpertLayers::Rule(LayerRule::Alternate);
        let shared_expert = Some(SharedExpert { width: 6, gate, mixed: false });
        let model = Model {
            expert_layers: layers,
            shared_expert,
            qk_norm: true,
            qk_norm_span: QkNormSpan::Width,
            ..mixture(true)
        };
        check(&model, &ranks(2, ParallelConfig { stage: Stage::Zero3, ..base() }), 8);
        check(&model, &pipelined(Kind::Interleaved, 2, 4), 8);
        check(&model, &pipelined(Kind::OneFOneB, 4, 4), 8);
        let mut recomputed = ranks(2, base());
        recomputed.activations.recompute = Recompute::Selective.into();
        check(&model, &recomputed, 8);
    }
}

/// Equal loads have a balance loss of 1 in each layer; a random router is near it.
#[test]
fn balance_and_router_z_loss_are_reported_by_name() {
    let done = &train(&mixture(true), &single(), 8)[0];
    let layers = 8.0;
    for losses in &done.auxiliary {
        assert!((layers..1.5 * layers).contains(&losses[2]), "{losses:?}");
        // lse of four logits near 0: ln 4.
        assert!((losses[3] / (layers * 4f64.ln().powi(2)) - 1.0).abs() < 0.2, "{losses:?}");
    }
    let dense = &train(&model(false), &single(), 8)[0];
    assert!(dense.auxiliary.iter().all(|losses| losses[2..] == [0.0, 0.0]));
}

#[test]
fn layouts_and_optimizers_that_experts_do_not_go_with_are_refused() {
    let model = mixture(true);
    let refused = |config: ParallelConfig, ranks: usize, optimizer| {
        let optim = OptimConfig { optimizer, ..OptimConfig::default() };
        let plan = match Plan::new(&config, ranks, &model, optimizer) {
            Ok(plan) => plan,
            Err(e) => return e.to_string(),
        };
        let program = plan.program(2 * plan.pipeline(), 1, None).unwrap();
        let shape = Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train };
        let job = Job {
            model: &model,
            shape,
            activations: ActivationConfig::default(),
            types: ParamStorage::default(),
            optim: &optim,
            losses: &[],
            plan: &plan,
            program: &program,
        };
        let world = Box::new(NullCommunicator::new("world", 0, ranks));
        Worker::new(&mut NullBackend::new(), &job, world)
            .map_or_else(|e| e.to_string(), |_| "accepted".into())
    };
    let base = ParallelConfig::default;
    let grid = ParallelConfig { tensor: TensorConfig::Cube(CubeConfig { cube: 2 }), ..base() };
    let e = refused(grid, 8, OptimizerChoice::AdamW);
    assert!(e.contains("does not share the experts of a layer"), "{e}");
    let experts = |experts| ParallelConfig { experts, ..base() };
    let e = refused(experts(3), 6, OptimizerChoice::AdamW);
    assert!(e.contains("parallel.experts = 3: wanted a divisor of the 4 experts"), "{e}");
    let e = refused(experts(4), 6, OptimizerChoice::AdamW);
    assert!(e.contains("parallel.experts = 4 does not divide data-parallel ranks = 6"), "{e}");
    let zero = ParallelConfig { stage: Stage::Zero1, shard: 2, ..experts(4) };
    let e = refused(zero, 4, OptimizerChoice::AdamW);
    assert!(e.contains("parallel.experts = 4 does not divide parallel.shard = 2"), "{e}");
    for (config, ranks, words) in [
        (
            ParallelConfig { sequence: false, ..folded_over_tensor(2) },
            2,
            "experts_over = \"tensor\" with parallel.sequence = false",
        ),
        (folded_over_tensor(1), 2, "wanted a multiple of the 2 ranks that share a layer"),
        (
            ParallelConfig { context: 3, ..folded_over_context(4) },
            6,
            "parallel.experts = 4: wanted a multiple of the 3",
        ),
        (
            folded_over_context(4),
            2,
            "parallel.experts = 4, of which 2 are data-parallel, does not divide data-parallel ranks = 1",
        ),
        (
            ParallelConfig {
                tensor: TensorConfig::Cube(CubeConfig { cube: 2 }),
                sequence: false,
                ..folded_over_tensor(8)
            },
            8,
            "wanted a number of ranks for parallel.tensor",
        ),
    ] {
        let e = refused(config, ranks, OptimizerChoice::AdamW);
        assert!(e.contains(words), "{e}");
    }
    let old = ParallelConfig { pipeline: 2, schedule: "pipedream-2bw".into(), ..experts(2) };
    let e = refused(old, 4, OptimizerChoice::AdamW);
    assert!(e.contains("\"pipedream-2bw\" lets stages step on their own"), "{e}");
    let e = refused(base(), 1, OptimizerChoice::Kfac);
    assert!(e.contains("\"kfac\" with model.experts"), "{e}");
}
