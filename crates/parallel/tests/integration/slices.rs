//! Elements that each rank saves and loads of the job's state, in every kind of layout, on ranks that hold no memory.

#![allow(clippy::print_stdout, reason = "the dry run prints a table")]

use bessemer_arch::{Experts, Model, ModelConfig};
use bessemer_collectives::NullCommunicator;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{
    CubeConfig, Job, OwnSlices, ParallelConfig, ParallelError, Plan, PlaneConfig, Stage, StateTensor,
    TensorConfig, Worker,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_units::{ParamDType, ParamStorage};

/// Sequences of a micro-batch: as many as any grid here divides it by, or one that ranks share.
fn sequences(plan: &Plan) -> usize {
    if plan.context_ranks() > 1 { 1 } else { 8 }
}

/// The model of a layout: with experts where ranks share them.
fn of_layout(model: &Model, config: &ParallelConfig) -> Model {
    let experts = Experts::top_k([4, 2, 8], true);
    Model { experts: (config.experts > 1).then_some(experts), ..model.clone() }
}

fn model(kv_heads: u64) -> Model {
    ModelConfig {
        architecture: "llama".into(),
        vocab_size: 64,
        layers: Some(4),
        width: Some(16),
        ffn_width: Some(32),
        heads: Some(4),
        kv_heads: Some(kv_heads),
        head_dim: Some(4),
        context: Some(8),
        ..ModelConfig::default()
    }
    .resolve(None)
    .unwrap()
}

/// Elements that rank `rank` saves, the tensors of the state, and the elements that it loads.
fn rank_of(
    model: &Model,
    plan: &Plan,
    (optim, types, seq): (&OptimConfig, ParamStorage, usize),
    rank: usize,
) -> (OwnSlices, Vec<StateTensor>, usize) {
    let mut null = NullBackend::new();
    let program = plan.program(plan.pipeline() * 2, 1, None).unwrap();
    let job = Job {
        model,
        shape: Shape { sequences: sequences(plan), seq, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types,
        optim,
        losses: &[],
        plan,
        program: &program,
    };
    let world = Box::new(NullCommunicator::new("world", rank, plan.ranks()));
    let worker = Worker::new(&mut null, &job, world).unwrap();
    let tensors = worker.tensors(optim).unwrap();
    let slices = worker.own_slices(&tensors).unwrap();
    assert_eq!(worker.own_elements(&tensors).unwrap(), slices.elements());
    let loaded = worker.wanted_elements(&tensors);
    (slices, tensors, loaded)
}

/// Saved by all ranks together, each element of each tensor exactly once; and the elements of each rank.
fn saved_once(
    what: &str,
    model: &Model,
    config: &ParallelConfig,
    ranks: usize,
    optim: &OptimConfig,
) -> Vec<usize> {
    let types = match what.contains("bf16") {
        true => ParamStorage::both(ParamDType::Bf16),
        false => ParamStorage::default(),
    };
    let model = &of_layout(model, config);
    let plan = Plan::new(config, ranks, model, optim.optimizer).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut seen: Vec<Vec<u32>> = Vec::new();
    let mut counts = Vec::new();
    for rank in 0..ranks {
        let (slices, tensors, _) = rank_of(model, &plan, (optim, types, 8), rank);
        seen.resize_with(tensors.len(), Vec::new);
        let mut at = 0;
        for slice in slices.slices() {
            assert_eq!(slice.at.start, at, "{what}");
            at = slice.at.end;
            let tensor = &tensors[slice.tensor];
            let seen = &mut seen[slice.tensor];
            seen.resize(tensor.len(), 0);
            for range in slice.elements(&tensor.shape) {
                seen[range].iter_mut().for_each(|n| *n += 1);
            }
        }
        assert_eq!(at, slices.elements());
        counts.push(at);
    }
    for (index, seen) in seen.iter().enumerate() {
        assert!(!seen.is_empty() && seen.iter().all(|n| *n == 1), "{what}: tensor {index}: {seen:?}");
    }
    counts
}

fn layouts() -> Vec<(&'static str, ParallelConfig, usize)> {
    let base = ParallelConfig::default;
    let stage = |stage: Stage| ParallelConfig { stage, ..base() };
    let tensor = |degree: u64, stage: Stage| ParallelConfig { tensor: degree.into(), stage, ..base() };
    let plane = |rows, columns, depth| TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth });
    let grid = |tensor: TensorConfig, stage: Stage| ParallelConfig { tensor, stage, ..base() };
    let chunked = |schedule: &str, chunks, config: ParallelConfig| ParallelConfig {
        pipeline: 2,
        schedule: schedule.into(),
        chunks,
        ..config
    };
    let spread = |experts: u64, config: ParallelConfig| ParallelConfig { experts, ..config };
    vec![
        ("one rank", base(), 1),
        ("ddp", stage(Stage::Ddp), 4),
        ("ddp of 7", stage(Stage::Ddp), 7),
        ("zero1", stage(Stage::Zero1), 4),
        ("zero1, bf16", stage(Stage::Zero1), 4),
        ("zero2", stage(Stage::Zero2), 4),
        ("zero3", stage(Stage::Zero3), 4),
        ("hybrid", ParallelConfig { shard: 2, ..stage(Stage::Zero3) }, 8),
        ("hybrid zero1", ParallelConfig { shard: 2, ..stage(Stage::Zero1) }, 8),
        ("tensor", tensor(2, Stage::Ddp), 2),
        ("tensor, shared heads", tensor(4, Stage::Ddp), 4),
        ("tensor x ddp, shared heads", tensor(4, Stage::Ddp), 8),
        ("tensor x zero3, shared heads, bf16", tensor(4, Stage::Zero3), 8),
        ("context", ParallelConfig { context: 2, ..stage(Stage::Zero1) }, 4),
        ("context x tensor", ParallelConfig { context: 2, ..tensor(2, Stage::Ddp) }, 8),
        ("pipeline", ParallelConfig { pipeline: 2, ..stage(Stage::Zero1) }, 4),
        ("pipeline x tensor", ParallelConfig { pipeline: 2, ..tensor(2, Stage::Zero1) }, 8),
        ("grid 2 x 2", grid(plane(2, 2, 1), Stage::Ddp), 4),
        ("grid 1 x 2 x ddp", grid(plane(1, 2, 1), Stage::Ddp), 4),
        ("grid 2 x 1 x 2 layers x zero1", grid(plane(2, 1, 2), Stage::Zero1), 8),
        ("grid 2 x 2 x zero3", grid(plane(2, 2, 1), Stage::Zero3), 8),
        ("grid, cube", grid(TensorConfig::Cube(CubeConfig { cube: 2 }), Stage::Ddp), 8),
        ("grid 1 x 2 x pipeline", ParallelConfig { pipeline: 2, ..grid(plane(1, 2, 1), Stage::Ddp) }, 4),
        ("experts", spread(2, stage(Stage::Ddp)), 4),
        ("experts, zero1", spread(2, stage(Stage::Zero1)), 4),
        ("experts, hybrid zero3", spread(2, ParallelConfig { shard: 4, ..stage(Stage::Zero3) }), 8),
        ("experts, zero2, one copy", spread(4, stage(Stage::Zero2)), 4),
        ("experts x tensor", spread(2, tensor(2, Stage::Zero1)), 8),
        ("experts x context", spread(2, ParallelConfig { context: 2, ..stage(Stage::Ddp) }), 4),
        ("experts x pipeline", spread(2, ParallelConfig { pipeline: 2, ..stage(Stage::Zero1) }), 4),
        ("interleaved", chunked("interleaved", 2, stage(Stage::Ddp)), 2),
        ("interleaved x zero1", chunked("interleaved", 2, stage(Stage::Zero1)), 4),
        ("interleaved x tensor", chunked("interleaved", 2, tensor(2, Stage::Ddp)), 4),
        ("breadth-first x zero2", chunked("breadth-first", 2, stage(Stage::Zero2)), 4),
        ("zb-v", chunked("zb-v", 0, stage(Stage::Ddp)), 2),
        ("chimera x zero1", chunked("chimera", 0, stage(Stage::Zero1)), 4),
    ]
}

#[test]
fn every_element_is_saved_by_one_rank_and_the_work_is_even() {
    let (model, optim) = (model(2), OptimConfig::default());
    for (what, config, ranks) in layouts() {
        let total = 3 * of_layout(&model, &config).parameters();
        let counts = saved_once(what, &model, &config, ranks, &optim);
        let (most, all) = (counts.iter().max().unwrap(), counts.iter().sum::<usize>());
        assert!(all >= total, "{what}: {all} of {total}");
        // Grids hold vectors along one axis.
        if config.pipeline < 2 && config.tensor.grid().is_none() {
            // Lists of elements that the same ranks have differ by one element, and units that shards divide by a few. Where shards
            // divide units, one may get most of the elements that several ranks of a layer have.
            let slack = if what.contains("tensor x zero3") { all / ranks / 5 } else { all / 100 + 8 };
            assert!(*most <= all / ranks + slack, "{what}: {counts:?}");
        }
    }
    for optimizer in [OptimizerChoice::Muon, OptimizerChoice::Adafactor] {
        let optim = OptimConfig { optimizer, ..OptimConfig::default() };
        let zero1 = ParallelConfig { stage: Stage::Zero1, ..ParallelConfig::default() };
        saved_once("owned matrices", &model, &zero1, 4, &optim);
        saved_once(
            "owned matrices, tensor",
            &model,
            &ParallelConfig { tensor: 2.into(), ..zero1 },
            4,
            &optim,
        );
    }
}

/// A state that is written in a layout is saved by the ranks of that layout with the same bits: so every layout goes into every other. With some
/// layouts tensors have more elements than are written at a time.
#[test]
fn a_state_passes_through_every_layout_without_losing_a_bit() {
    let optim = OptimConfig::default();
    let value = |tensor: usize, element: usize| ((tensor * 7919 + element) % 65_521) as f32 / 64.0;
    for (what, config, ranks) in layouts() {
        if what.contains("bf16") {
            continue;
        }
        let is_large = ["one rank", "zero1", "zero3", "tensor", "grid 2 x 2"].contains(&what);
        let model = if is_large { Model { vocab_size: 40_000, ..model(2) } } else { model(2) };
        let model = of_layout(&model, &config);
        let plan = Plan::new(&config, ranks, &model, optim.optimizer).unwrap();
        let program = plan.program(plan.pipeline() * 2, 1, None).unwrap();
        bessemer_fixture::on_ranks(ranks, |world| {
            let mut cpu = crate::instruction_set::cpu(1);
            let job = Job {
                model: &model,
                shape: Shape { sequences: sequences(&plan), seq: 8, purpose: Purpose::Train },
                activations: ActivationConfig::default(),
                types: ParamStorage::default(),
                optim: &optim,
                losses: &[],
                plan: &plan,
                program: &program,
            };
            let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
            let tensors = worker.tensors(&optim).unwrap();
            let mut loaded = 0;
            for (number, tensor) in tensors.iter().enumerate() {
                let mut read = |runs: &[(usize, usize)], values: &mut [f32]| {
                    let elements = runs.iter().flat_map(|run| run.0..run.0 + run.1);
                    assert_eq!(elements.clone().count(), values.len());
                    loaded += values.len();
                    values.iter_mut().zip(elements).for_each(|(to, element)| *to = value(number, element));
                    Ok::<(), ParallelError>(())
                };
                worker.write_with(&mut cpu, tensor, &mut read).unwrap();
            }
            assert_eq!(loaded, worker.wanted_elements(&tensors));
            let slices = worker.own_slices(&tensors).unwrap();
            for slice in slices.slices() {
                let mut values = vec![0.0; slice.at.len()];
                slices.read(&mut cpu, slice.at.clone(), &mut values).unwrap();
                let elements = slice.elements(&tensors[slice.tensor].shape).into_iter().flatten();
                let wanted: Vec<f32> = elements.map(|element| value(slice.tensor, element)).collect();
                assert_eq!(values, wanted, "{what}: {:?}", tensors[slice.tensor].name);
            }
        });
    }
}

/// 7.5 billion parameters on 64 ranks: the bytes that each rank would write and read. Nothing is allocated.
#[test]
#[ignore = "prints a table; takes a minute"]
fn bytes_of_64_ranks_and_7_billion_parameters() {
    let model = Model { ffn_width: 13_056, ..bessemer_arch::named("llama2-7b").unwrap() };
    let optim = OptimConfig::default();
    println!(
        "{:.2} billion parameters, AdamW, f32: {} GB of state",
        model.parameters() as f64 / 1e9,
        12 * model.parameters() / 1_000_000_000
    );
    println!(
        "layout                                    written, least and most MB   read, least and most MB   slices of a rank"
    );
    for (what, stage, tensor, pipeline) in [
        ("ddp x 64", Stage::Ddp, 1, 1),
        ("zero1 x 64", Stage::Zero1, 1, 1),
        ("zero3 x 64", Stage::Zero3, 1, 1),
        ("tensor 8, zero1 x 8", Stage::Zero1, 8, 1),
        ("tensor 8, pipeline 4, zero1 x 2", Stage::Zero1, 8, 4),
    ] {
        let config = ParallelConfig { stage, tensor: tensor.into(), pipeline, ..ParallelConfig::default() };
        let plan = Plan::new(&config, 64, &model, optim.optimizer).unwrap();
        let (mut written, mut read, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..64 {
            let (own, _, loaded) = rank_of(&model, &plan, (&optim, ParamStorage::default(), 2048), rank);
            written.push(4 * own.elements() as u64);
            read.push(4 * loaded as u64);
            slices.push(own.slices().len());
        }
        assert!(written.iter().sum::<u64>() >= 12 * model.parameters() as u64);
        let range = |list: &[u64]| {
            let mb = |bytes: Option<&u64>| bytes.copied().unwrap_or(0) as f64 / 1e6;
            format!("{:.1} {:.1}", mb(list.iter().min()), mb(list.iter().max()))
        };
        println!(
            "{what:<40}  {:<27}  {:<24}  {:?} {:?}",
            range(&written),
            range(&read),
            slices.iter().min().unwrap(),
            slices.iter().max().unwrap()
        );
    }
}
