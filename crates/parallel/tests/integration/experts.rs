//! Experts train as on one rank in every layout in which each rank has all experts of its layers, and are refused in the others.

use crate::pipelines::{Layout, check, model, pipelined, single, train};
use bessemer_arch::{Annotations, Experts, Model, ParamLayout};
use bessemer_collectives::NullCommunicator;
use bessemer_mesh::ContextMethod;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{CubeConfig, Job, ParallelConfig, Plan, Stage, TensorConfig, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::Kind;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{ParamStorage, Recompute};

fn mixture(renormalise: bool) -> Model {
    let experts = Experts { count: 4, choices: 2, width: 8, renormalise };
    let model = Model { experts: Some(experts), ..model(false) };
    model.check().unwrap();
    model
}

fn ranks(ranks: usize, config: ParallelConfig) -> Layout {
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
    let replicated = Annotations([("layers.*.mlp.experts.*".to_owned(), ParamLayout::Replicate)].into());
    for sequence in [false, true] {
        let config = ParallelConfig { annotate: replicated.clone(), sequence, ..tensor.clone() };
        check(&model, &ranks(2, config), 4);
    }
    let mut piped = pipelined(Kind::ZbH1, 2, 4).with_tensor(true).with_data(2, Stage::Ddp, 0);
    piped.config.experts = 2;
    check(&model, &piped, 8);
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
        let program = plan.program(1, 1, None).unwrap();
        let shape = Shape { sequences: 1, seq: crate::pipelines::SEQ, purpose: Purpose::Train };
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
    let e = refused(base(), 1, OptimizerChoice::Kfac);
    assert!(e.contains("\"kfac\" with model.experts"), "{e}");
}
