//! Groups of parameters: two with other shard and reduce axes, and frozen ones, in every ZeRO stage.

use crate::pipelines::{Layout, check, model, pipelined, single, train};
use bessemer_arch::{Model, ParamId, Unit};
use bessemer_collectives::NullCommunicator;
use bessemer_fixture::{SEQ, Text};
use bessemer_mesh::Axis;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{Job, ParallelConfig, ParamGroup, ParamGroups, Plan, Stage, StateTensor, Worker};
use bessemer_program::{Action, CollectiveKind};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::Kind;
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{ParamDType, ParamStorage, ReduceDType};
use std::collections::BTreeMap;

fn ids(model: &Model, of: impl Fn(&str) -> bool) -> Vec<ParamId> {
    model.params().into_iter().filter(|spec| of(&spec.name)).map(|spec| spec.id).collect()
}

fn is_frozen(name: &str) -> bool {
    name.contains("attention.") && !name.starts_with("layers.0.") || name.contains("positions")
}

/// Dense parameters; MLPs that are sharded over the replicate axis and reduced over the shard axis; frozen attention and positions.
pub(crate) fn groups(model: &Model) -> ParamGroups {
    let mut groups = ParamGroups::default();
    let crossed = ParamGroup {
        name: "crossed".into(),
        shard_axes: vec![Axis::Replicate],
        reduce_axes: vec![Axis::Shard],
        trainable: true,
        values: None,
    };
    groups.add(crossed, ids(model, |name| name.contains("mlp.")));
    let frozen = ParamGroup { name: "frozen".into(), trainable: false, ..ParamGroup::dense() };
    groups.add(frozen, ids(model, is_frozen));
    groups
}

fn data(stage: Stage, shard: u64) -> Layout {
    let config = ParallelConfig { stage, shard, ..ParallelConfig::default() };
    Layout { config, ranks: 4, micro_batches: 2, ..single() }
}

#[test]
fn groups_with_other_axes_train_as_one_rank_does_in_every_stage() {
    for tied in [true, false] {
        let model = model(tied);
        for (stage, shard) in [(Stage::Ddp, 0), (Stage::Zero1, 2), (Stage::Zero2, 2), (Stage::Zero3, 2)] {
            check(&model, &Layout { groups: groups(&model), ..data(stage, shard) }, 8);
        }
        let whole = Layout { groups: groups(&model), ..pipelined(Kind::OneFOneB, 2, 2) };
        check(&model, &whole.with_data(2, Stage::Zero1, 0), 8);
        let split = Layout { groups: groups(&model), ..pipelined(Kind::ZbH1, 2, 2) };
        check(&model, &split.with_data(2, Stage::Zero1, 0).with_tensor(false), 8);
    }
}

#[test]
fn frozen_parameters_keep_their_values_and_the_others_get_the_same_gradients() {
    let model = model(true);
    let frozen = &train(&model, &Layout { groups: groups(&model), ..single() }, 4)[0];
    let all = &train(&model, &single(), 4)[0];
    assert_eq!(frozen.losses[0], all.losses[0]);
    assert!(frozen.norms[0] < all.norms[0]);
    let initial = initial(&model);
    for (name, values) in &frozen.params {
        assert_eq!(*values == initial[name], is_frozen(name), "{name}");
        assert!(all.params[name] != initial[name], "{name}");
    }
    assert_eq!(gradients(&model, groups(&model)), {
        let mut all = gradients(&model, ParamGroups::default());
        all.retain(|name, _| !is_frozen(name));
        all
    });
}

fn job<'a>(
    model: &'a Model,
    optim: &'a OptimConfig,
    plan: &'a Plan,
    program: &'a bessemer_schedule::Program,
    types: ParamStorage,
) -> Job<'a> {
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let activations = ActivationConfig::default();
    Job { model, shape, activations, types, optim, losses: &[], plan, program }
}

fn initial(model: &Model) -> BTreeMap<String, Vec<f32>> {
    let (optim, plan) = (OptimConfig::default(), Plan::single());
    let program = plan.program(1, 1, None).unwrap();
    let mut cpu = crate::instruction_set::cpu(1);
    let world = Box::new(NullCommunicator::new("world", 0, 1));
    let job = job(model, &optim, &plan, &program, ParamStorage::default());
    let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
    worker.init(&mut cpu, 3).unwrap();
    let tensors = worker.params();
    read(&mut worker, &mut cpu, tensors)
}

/// The gradients of one micro-batch, by parameter.
fn gradients(model: &Model, groups: ParamGroups) -> BTreeMap<String, Vec<f32>> {
    let (optim, plan) = (OptimConfig::default(), Plan { groups, ..Plan::single() });
    let program = plan.program(1, 1, None).unwrap();
    let mut cpu = crate::instruction_set::cpu(1);
    let world = Box::new(NullCommunicator::new("world", 0, 1));
    let job = job(model, &optim, &plan, &program, ParamStorage::default());
    let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
    worker.init(&mut cpu, 3).unwrap();
    let mut text = Text { sequences: 2, all: 2, ..Text::default() };
    worker.gradients(&mut cpu, &mut text).unwrap();
    let tensors = worker.gradients_of_params();
    read(&mut worker, &mut cpu, tensors)
}

fn read(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    tensors: Vec<StateTensor>,
) -> BTreeMap<String, Vec<f32>> {
    let mut values = |tensor: StateTensor| {
        let mut values = vec![0.0; tensor.len()];
        worker.read(backend, &tensor, &mut values).unwrap();
        (tensor.name, values)
    };
    tensors.into_iter().map(&mut values).collect()
}

/// Frozen parameters have no gradient, no moments, no master and no reduction; every element of the state is saved once.
#[test]
fn frozen_parameters_have_values_only() {
    let model = model(false);
    let trained: u64 =
        model.params().iter().filter(|spec| !is_frozen(&spec.name)).map(|s| s.len() as u64).sum();
    let types = ParamStorage { weights: ParamDType::Bf16, ..ParamStorage::default() };
    let optim = OptimConfig { clip: 0.0, optimizer: OptimizerChoice::AdamW, ..OptimConfig::default() };
    for (stage, shard, reduce_dtype) in [
        (Stage::Ddp, 0, ReduceDType::Int8),
        (Stage::Zero1, 2, ReduceDType::Stored),
        (Stage::Zero2, 2, ReduceDType::Int8),
        (Stage::Zero3, 2, ReduceDType::Stored),
    ] {
        let config = ParallelConfig { stage, shard, reduce_dtype, ..ParallelConfig::default() };
        let plan = Plan::new(&config, 4, &model, optim.optimizer).unwrap();
        let plan = Plan { groups: groups(&model), ..plan };
        let program = plan.program(2, 1, None).unwrap();
        let mut seen: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let (mut states, mut gradients) = (0, 0);
        for rank in 0..4 {
            let mut null = NullBackend::new();
            let world = Box::new(NullCommunicator::new("world", rank, 4));
            let worker = Worker::new(&mut null, &job(&model, &optim, &plan, &program, types), world).unwrap();
            let chunks = worker.step_chunks();
            for node in worker.step_nodes() {
                if let Action::Start(transfer) = node.action
                    && transfer.kind != CollectiveKind::AllGather
                {
                    let flat = &chunks[0].data.flats[transfer.flat];
                    assert!(flat.gradients.is_some() && !flat.name.contains("frozen"), "{flat:?}");
                }
            }
            let tensors = worker.tensors(&optim).unwrap();
            assert!(tensors.iter().all(|tensor| {
                let state = tensor
                    .name
                    .split_once('.')
                    .is_some_and(|(kind, _)| ["exp_avg", "exp_avg_sq"].contains(&kind));
                !state || !is_frozen(&tensor.name)
            }));
            for piece in worker.own_pieces(&tensors).unwrap() {
                let tensor = &tensors[piece.tensor];
                let elements = seen.entry(tensor.name.clone()).or_insert_with(|| vec![0; tensor.len()]);
                piece
                    .runs
                    .iter()
                    .for_each(|(first, len)| elements[*first..first + len].iter_mut().for_each(|n| *n += 1));
            }
            let memory = null.memory();
            let class = |name: &str| memory.classes.iter().find(|c| c.0 == name).map_or(0, |c| c.1.0);
            states += class("optimizer");
            gradients += class("gradients");
            for tensor in &tensors {
                seen.entry(tensor.name.clone()).or_insert_with(|| vec![0; tensor.len()]);
            }
        }
        for (name, elements) in &seen {
            assert!(
                elements.iter().all(|n| *n == 1),
                "{stage:?}: {name} is saved {:?} times",
                elements.iter().max()
            );
        }
        // Two moments and a master, over as many ranks as the group is sharded over; and a few squares of gradients.
        let copies = 4 / shard.max(1);
        let wanted = 12 * trained * copies;
        assert!(states >= wanted && states < wanted + 4 * 4 * 400, "{stage:?}: {states}, wanted {wanted}");
        let whole = if stage >= Stage::Zero2 { copies } else { 4 };
        assert_eq!(gradients, 4 * trained * whole, "{stage:?}");
    }
}

#[test]
fn groups_that_do_not_cover_the_data_axes_are_refused() {
    let model = model(true);
    let layers = |layer: usize| ids(&model, move |name| name.starts_with(&format!("layers.{layer}.")));
    assert!(model.params().iter().any(|spec| spec.id.unit() == Unit::Layer(1)));
    let mut half = ParamGroups::default();
    half.add(ParamGroup { name: "half".into(), reduce_axes: vec![], ..ParamGroup::dense() }, layers(1));
    let refuse = |groups: ParamGroups, optimizer| {
        let (optim, plan) =
            (OptimConfig { optimizer, ..OptimConfig::default() }, Plan { groups, ..Plan::single() });
        let program = plan.program(1, 1, None).unwrap();
        let job = job(&model, &optim, &plan, &program, ParamStorage::default());
        let world = Box::new(NullCommunicator::new("world", 0, 1));
        Worker::new(&mut NullBackend::new(), &job, world).unwrap_err().to_string()
    };
    let e = refuse(half, OptimizerChoice::AdamW);
    assert!(e.contains("\"half\"") && e.contains("found shard"), "{e}");
    let mut twice = ParamGroups::default();
    twice.add(ParamGroup::dense(), layers(1));
    assert!(refuse(twice, OptimizerChoice::AdamW).contains("named \"dense\""));
    let mut two = ParamGroups::default();
    two.add(ParamGroup { name: "other".into(), ..ParamGroup::dense() }, layers(1));
    assert!(refuse(two, OptimizerChoice::Kfac).contains("kfac"));
}
