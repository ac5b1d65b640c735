//! Experts train as on one rank in every layout in which each rank has all experts of its layers, and are refused in the others.

use crate::pipelines::{Layout, check, model, pipelined, single, train};
use bessemer_arch::{ExpertLayers, Experts, LayerRule, Model, QkNormSpan, SharedExpert};
use bessemer_collectives::NullCommunicator;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{Job, ParallelConfig, Plan, Stage, Worker};
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

/// With a block beside the experts, and QK-norm of all heads. Stages, chunks of stages and layers that take turns in gathered memory have one kind of layers, or both.
#[test]
fn experts_in_some_layers_train_as_one_rank_does() {
    let base = ParallelConfig::default;
    for layers in [ExpertLayers::Rule(LayerRule::Alternate), ExpertLayers::Numbers(vec![0, 1, 6])] {
        let gate = layers == ExpertLayers::Rule(LayerRule::Alternate);
        let shared_expert = Some(SharedExpert { width: 6, gate });
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
    let tensor = ParallelConfig { tensor: 2.into(), ..base() };
    let context = ParallelConfig { context: 2, ..base() };
    for config in [tensor, context] {
        let e = refused(config, 2, OptimizerChoice::AdamW);
        assert!(e.contains("experts of a layer are not shared by ranks yet"), "{e}");
    }
    let e = refused(base(), 1, OptimizerChoice::Kfac);
    assert!(e.contains("\"kfac\" with model.experts"), "{e}");
}
