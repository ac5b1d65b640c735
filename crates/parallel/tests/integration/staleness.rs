//! Asynchronous schedules: copies agree with each other, and unsupported settings are refused. That they have the
//! bits of one process which reads weights as old is held by `bessemer-train`'s parity (`parity::`, `bessemer parity`).

use bessemer_arch::{Model, ModelConfig};
use bessemer_collectives::Communicator;
use bessemer_fixture::{SEQ, Text, model_config, on_ranks, params};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{Job, ParallelConfig, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, LossSum, Purpose, Shape};
use bessemer_schedule::{Kind, Program};
use bessemer_units::ParamStorage;
use std::collections::BTreeMap;

const WINDOWS: u64 = 2;
const SEED: u64 = 3;

type Values = BTreeMap<String, Vec<f32>>;

fn model() -> Model {
    let config = model_config("llama", 5, 16);
    ModelConfig { dropout: 0.1, tied_embeddings: Some(false), ..config }.resolve(None).unwrap()
}

fn optim() -> OptimConfig {
    OptimConfig { lr: 3e-3, clip: 0.0, ..OptimConfig::default() }
}

/// Learning rates that differ from step to step.
fn rate(t: u64) -> f64 {
    3e-3 / (1.0 + t as f64)
}

#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Kind,
    ranks: usize,
    /// Micro-batches of an update, updates of a window.
    every: usize,
    updates: usize,
    copies: usize,
    stage: Stage,
}

impl Case {
    fn plan(&self) -> Plan {
        let config = ParallelConfig {
            pipeline: self.ranks as u64,
            schedule: self.kind.name().into(),
            stage: self.stage,
            ..ParallelConfig::default()
        };
        Plan::new(&config, self.ranks * self.copies, &model(), optim().optimizer).unwrap()
    }

    fn program(&self) -> Program {
        self.plan().program(self.every, self.updates, None).unwrap()
    }

    fn text(&self, copy: usize) -> Text {
        let all = (self.every * self.copies) as u64;
        let first = (copy * self.every) as u64;
        Text { every: self.every, first, sequences: 1, all, ..Text::default() }
    }
}

const SHAPE: Shape = Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train };

fn cpu() -> CpuBackend {
    crate::instruction_set::cpu(1)
}

/// Losses of every update and the weights at the end, on one rank of the pipeline.
fn rank(case: Case, world: Box<dyn Communicator>) -> (Vec<LossSum>, Values) {
    let (model, optim, plan, program) = (&model(), &optim(), &case.plan(), &case.program());
    let activations = ActivationConfig::default();
    let job = Job {
        model,
        shape: SHAPE,
        activations,
        types: ParamStorage::default(),
        optim,
        losses: &[],
        plan,
        program,
    };
    let mut cpu = cpu();
    let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
    worker.init(&mut cpu, SEED).unwrap();
    let mut text = case.text(plan.data_index(worker.coord()));
    let mut losses = Vec::new();
    for window in 0..WINDOWS {
        text.step = window * case.updates as u64;
        let first = text.step + 1;
        let updates = worker.window(&mut cpu, &mut text, first, &rate).unwrap();
        assert!(updates.iter().all(|u| u.grad_norm > 0.0 && u.skipped == 0));
        losses.extend(updates.iter().map(|u| u.loss));
    }
    (losses, params(&mut cpu, &mut worker).unwrap())
}

fn train(case: Case) -> Vec<(Vec<LossSum>, Values)> {
    on_ranks(case.ranks * case.copies, |world| rank(case, world))
}

/// With data-parallel ranks sums are in another order; both copies compute the same.
#[test]
fn asynchronous_schedules_go_with_data_parallelism_and_zero_1() {
    for kind in [Kind::PipeDream, Kind::PipeDream2Bw] {
        let case = Case { kind, ranks: 2, every: 2, updates: 4, copies: 2, stage: Stage::Ddp };
        let copies = train(case);
        let cut = train(Case { stage: Stage::Zero1, ..case });
        for found in copies.iter().chain(&cut) {
            assert_eq!(found.0, copies[0].0, "{case:?}");
            assert!(found.1 == copies[0].1, "{case:?}: ranks disagree about the weights");
        }
        let alone = &train(Case { copies: 1, every: 4, ..case })[0];
        let first = |of: &[LossSum]| of[0].mean();
        assert!((first(&copies[0].0) / first(&alone.0) - 1.0).abs() < 1e-6);
    }
}

#[test]
fn what_an_asynchronous_schedule_cannot_keep_is_refused() {
    let case = Case { kind: Kind::PipeDream, ranks: 2, every: 2, updates: 2, copies: 1, stage: Stage::Ddp };
    let refusal = |model: &Model, optim: &OptimConfig| {
        let (plan, program) = (&case.plan(), &case.program());
        let activations = ActivationConfig::default();
        let job = Job {
            model,
            shape: SHAPE,
            activations,
            types: ParamStorage::default(),
            optim,
            losses: &[],
            plan,
            program,
        };
        let world = Box::new(bessemer_collectives::NullCommunicator::new("world", 0, 2));
        Worker::new(&mut bessemer_tensor::null::NullBackend::new(), &job, world).unwrap_err().to_string()
    };
    let e = refusal(&model(), &OptimConfig::default());
    assert!(e.contains("optim.clip") && e.contains("set optim.clip = 0"), "{e}");
    let tied = Model { tied_embeddings: true, ..model() };
    let e = refusal(&tied, &optim());
    assert!(e.contains("share the token table") && e.contains("1f1b"), "{e}");
}
