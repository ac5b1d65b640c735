//! The memory that is planned before a job is the memory that it takes.

use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{ContextMethod, Job, MemoryPlan, ParallelConfig, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, Cache, CacheShape, Decoder, Purpose, Shape};
use bessemer_tensor::Backend;
use bessemer_tensor::op::quantised_bytes;
use bessemer_units::{Bytes, ParamStorage, ReduceDType};

/// Bytes of the parameters of [`model`] in f32.
const PARAMETERS: u64 = 124_439_808 * 4;

fn model() -> Model {
    bessemer_arch::named("gpt2-124m").unwrap()
}

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap()
}

fn train(sequences: usize, seq: usize) -> Shape {
    Shape { sequences, seq, purpose: Purpose::Train }
}

#[test]
fn what_does_not_fit_is_refused_with_its_largest_consumers() {
    let (activations, optim) = (ActivationConfig::default(), OptimConfig::default());
    let plan = MemoryPlan::alone(&model(), train(4, 256), activations, &optim, None).unwrap();
    assert_eq!((plan.class("weights"), plan.class("gradients")), (Bytes(PARAMETERS), Bytes(PARAMETERS)));
    plan.fits(1, Bytes(1 << 40)).unwrap();
    let e = plan.fits(1, Bytes(1 << 30)).unwrap_err().to_string();
    assert!(e.contains("optimizer") && e.contains("1.00 GiB"), "{e}");
    // Two ranks of a process hold it twice.
    let one = plan.buffers.total();
    plan.fits(1, one).unwrap();
    plan.fits(2, one).unwrap_err();
}

#[test]
fn a_rank_of_a_job_is_planned_with_its_part() {
    let (model, optim) = (model(), OptimConfig::default());
    let held_as = |stage, reduce_dtype, ranks, class: &str| {
        let parallel = ParallelConfig { stage, reduce_dtype, ..ParallelConfig::default() };
        let layout = Plan::new(&parallel, ranks, &model, optim.optimizer).unwrap();
        let job = Job {
            model: &model,
            shape: train(1, 64),
            activations: ActivationConfig::default(),
            types: ParamStorage::default(),
            optim: &optim,
            losses: &[],
            plan: &layout,
            program: &layout.program(1, 1, None).unwrap(),
        };
        MemoryPlan::of_rank(&job, None, None).unwrap().class(class).0
    };
    let held = |stage, ranks, class: &str| held_as(stage, ReduceDType::Stored, ranks, class);
    let p = PARAMETERS;
    assert_eq!((held(Stage::Ddp, 1, "weights"), held(Stage::Ddp, 1, "in-flight buffers")), (p, 0));
    assert_eq!((held(Stage::Zero1, 4, "weights"), held(Stage::Zero1, 4, "gradients")), (p, p));
    assert_eq!(held(Stage::Zero3, 4, "weights"), p / 4);
    assert!(held(Stage::Zero3, 4, "optimizer") < p / 2 + 4096);
    assert!(held(Stage::Zero3, 4, "in-flight buffers") > 0);
    // Three staging buffers of a piece of 2^23 elements, as they are stored; or the codes and scales that each of four ranks is sent and
    // sends, on the host and on the device. One rank has none of them.
    assert_eq!(held(Stage::Ddp, 4, "in-flight buffers"), 3 * (4 << 23));
    let part = quantised_bytes(1 << 21) as u64;
    assert_eq!(held_as(Stage::Ddp, ReduceDType::Int8, 4, "in-flight buffers"), 2 * 3 * (4 + 4) * part);
    assert_eq!(held_as(Stage::Ddp, ReduceDType::Int8, 1, "in-flight buffers"), 0);
}

/// Ranks that share sequences hold the planned memory, whatever they exchange; half as many positions each take less.
#[test]
fn the_plan_of_ranks_that_share_sequences_is_what_the_device_holds() {
    let config = bessemer_arch::ModelConfig {
        architecture: "llama".into(),
        vocab_size: 300,
        layers: Some(2),
        width: Some(64),
        heads: Some(8),
        kv_heads: Some(2),
        context: Some(256),
        ..Default::default()
    };
    let (model, optim) = (config.resolve(None).unwrap(), OptimConfig::default());
    for context_method in
        [ContextMethod::AllGather, ContextMethod::Ulysses, ContextMethod::Ring, ContextMethod::LightSeq]
    {
        let mut activations = Vec::new();
        for context in [2, 4] {
            let parallel = ParallelConfig { context, context_method, ..ParallelConfig::default() };
            let ranks = context as usize;
            let plan = Plan::new(&parallel, ranks, &model, optim.optimizer).unwrap();
            let job = Job {
                model: &model,
                shape: train(1, 256),
                activations: ActivationConfig::default(),
                types: ParamStorage::default(),
                optim: &optim,
                losses: &[],
                plan: &plan,
                program: &plan.program(1, 1, None).unwrap(),
            };
            let planned = MemoryPlan::of_rank(&job, None, Some(&mut cpu())).unwrap().buffers;
            let (mut device, world) = (cpu(), Box::new(NullCommunicator::new("world", 0, ranks)));
            let _worker = Worker::new(&mut device, &job, world).unwrap();
            let held = device.memory();
            assert_eq!(planned.workspace, held.workspace);
            for (class, found) in &held.classes {
                let bytes = planned.classes.iter().find(|c| c.0 == *class).map_or(Bytes(0), |c| c.1);
                // The device rounds each buffer up to its alignment.
                let fits = *found >= bytes && found.0 <= bytes.0 + bytes.0 / 8 + 65536;
                assert!(fits, "{context_method:?} {context} {class}: {bytes} {found}");
                if *class == "activations" {
                    activations.push(bytes.0);
                }
            }
        }
        assert!(activations.len() == 2 && 10 * activations[1] < 7 * activations[0], "{activations:?}");
    }
}

/// With a device to query, the plan of a decoder is to the byte the memory that the device then holds: workspace and cache too.
#[test]
fn the_plan_of_a_decoder_is_what_the_device_holds() {
    let config = bessemer_arch::ModelConfig {
        architecture: "llama".into(),
        vocab_size: 300,
        layers: Some(2),
        width: Some(64),
        heads: Some(4),
        context: Some(96),
        ..Default::default()
    };
    let (model, shape) =
        (config.resolve(None).unwrap(), Shape { sequences: 2, seq: 48, purpose: Purpose::Score });
    let activations = ActivationConfig::default();
    for cached in
        [None, Some(CacheShape::one(96)), Some(CacheShape { logit_rows: 8, ..CacheShape::slots(3, 40) })]
    {
        let planned = MemoryPlan::of_decoder(&model, shape, activations.clone(), cached, Some(&mut cpu()))
            .unwrap()
            .buffers;
        let mut device = cpu();
        let decoder = Decoder::with_activations(&mut device, &model, shape, activations.clone()).unwrap();
        if let Some(cache) = cached {
            Cache::new(&mut device, &decoder, cache).unwrap();
        }
        let held = device.memory();
        assert!(planned.workspace > Bytes(0));
        assert_eq!(planned.workspace, held.workspace);
        for (class, bytes) in &planned.classes {
            let found = held.classes.iter().find(|c| c.0 == *class).map(|c| c.1);
            // The device rounds each buffer up to its alignment.
            assert!(
                found.is_some_and(|f| f >= *bytes && f.0 <= bytes.0 + bytes.0 / 8 + 65536),
                "{class}: {bytes} {found:?}"
            );
        }
        assert_eq!(planned.classes.iter().any(|c| c.0 == "cache"), cached.is_some());
    }
}
