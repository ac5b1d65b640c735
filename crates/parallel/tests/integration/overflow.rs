//! A gradient that is not finite on one rank alone is seen by all ranks, on every axis: all of them leave the update out.

use bessemer_arch::{Model, ModelConfig};
use bessemer_collectives::Communicator;
use bessemer_fixture::{Repeated, on_ranks};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{Job, ParallelConfig, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext};
use bessemer_tensor::Backend;
use bessemer_units::{ParamDType, ParamStorage, ReduceDType};

const SEQ: usize = 16;

fn model() -> Model {
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: 48,
        layers: Some(2),
        width: Some(32),
        heads: Some(4),
        context: Some(SEQ as u64),
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

/// Ways in which the gradient of one rank breaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Broken {
    /// Nowhere.
    No,
    /// Inside the pass: this rank's gradients leave the range of f16.
    Pass(usize),
    /// Inside the memory of this rank, after all collectives.
    Memory(usize),
}

/// Norm, whether the update was skipped, and all parameters after it.
fn rank(config: &ParallelConfig, broken: Broken, world: Box<dyn Communicator>) -> (f64, bool, Vec<f32>) {
    let (model, optim) = (model(), OptimConfig::default());
    let plan = Plan::new(config, world.size(), &model, optim.optimizer).unwrap();
    let me = world.rank();
    let mut cpu = crate::instruction_set::cpu(1);
    let b: &mut dyn Backend = &mut cpu;
    let job = Job {
        model: &model,
        shape: Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::both(ParamDType::F16),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(plan.pipeline(), 1, None).unwrap(),
    };
    let mut worker = Worker::new(b, &job, world).unwrap();
    worker.init(b, 1).unwrap();
    worker.set_loss_scale(1024.0);
    let ids: Vec<u32> = (0..SEQ as u32).collect();
    let share = 1.0 / (SEQ * plan.pipeline() * plan.data_ranks()) as f32;
    let loss_scale = if broken == Broken::Pass(me) { 1e9 } else { share };
    let ctx = StepContext { seed: 1, step: 0, first_sequence: 0, loss_scale, accumulate: false };
    worker.gradients(b, &mut Repeated { ids, ctx }).unwrap();
    if broken == Broken::Memory(me) {
        // A write is taken up as far as this rank has a part of the tensor.
        for gradient in &worker.gradients_of_params() {
            worker.write(b, gradient, &vec![f32::INFINITY; gradient.len()]).unwrap();
        }
    }
    let norm = worker.grad_norm(b).unwrap();
    let stats = worker.apply(b, 1, 1e-2, norm).unwrap();
    let params = bessemer_fixture::params(b, &mut worker).unwrap();
    (norm, stats.skipped, params.into_values().flatten().collect())
}

fn job(config: &ParallelConfig, ranks: usize, broken: Broken) -> Vec<(f64, bool, Vec<f32>)> {
    on_ranks(ranks, |world| rank(config, broken, world))
}

#[test]
fn one_rank_that_overflows_stops_the_update_of_all() {
    let of =
        |stage, tensor: u64| ParallelConfig { stage, tensor: tensor.into(), ..ParallelConfig::default() };
    let hybrid = ParallelConfig { shard: 2, ..of(Stage::Zero3, 1) };
    let pipeline = ParallelConfig { pipeline: 2, ..of(Stage::Ddp, 2) };
    let int8 = |config| ParallelConfig { reduce_dtype: ReduceDType::Int8, ..config };
    for config in [
        of(Stage::Ddp, 1),
        of(Stage::Zero1, 1),
        of(Stage::Zero2, 2),
        hybrid.clone(),
        of(Stage::Ddp, 4),
        pipeline,
        int8(of(Stage::Ddp, 1)),
        int8(of(Stage::Zero1, 2)),
        int8(of(Stage::Zero2, 1)),
        int8(hybrid),
    ] {
        let fine = job(&config, 4, Broken::No);
        assert!(fine.iter().all(|r| r.0.is_finite() && !r.1), "{config:?}");
        // The loss scale is taken out of the norm.
        let model = model();
        let plan = Plan::new(&config, 4, &model, OptimConfig::default().optimizer).unwrap();
        assert!((1e-3..100.0).contains(&fine[0].0), "{config:?}: {}", fine[0].0);
        for at in 0..4 {
            // Only the last stage has the loss.
            let mut kinds = if plan.pipeline() == 1 { vec![Broken::Pass(at)] } else { Vec::new() };
            // A value that one copy alone has after the collectives cannot come from them.
            if plan.replicate() == 1 {
                kinds.push(Broken::Memory(at));
            }
            for broken in kinds {
                let found = job(&config, 4, broken);
                for (rank, (norm, skipped, values)) in found.iter().enumerate() {
                    assert!(!norm.is_finite() && *skipped, "{config:?}, {broken:?}, rank {rank}: {norm}");
                    assert_eq!(norm.is_nan(), found[0].0.is_nan());
                    assert!(*values == found[0].2, "{config:?}, {broken:?}: ranks differ");
                    assert!(*values != fine[0].2, "{config:?}, {broken:?}: an update was made");
                }
            }
        }
    }
}
