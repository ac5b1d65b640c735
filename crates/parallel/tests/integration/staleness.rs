//! Asynchronous schedules: copies agree with each other, and what such a schedule cannot keep is refused. That they have the
//! bits of one process which reads weights as old is held by `bessemer-train`'s parity (`parity::`, `bessemer parity`).

use bessemer_arch::{Model, ModelConfig};
use bessemer_collectives::{Communicator, ThreadCommunicator, ThreadSettings};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelConfig, ParallelError, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, LossSum, Purpose, Shape, StepContext, TokenBatch};
use bessemer_schedule::{Kind, Program};
use bessemer_tensor::rng::RngKey;
use bessemer_units::ParamStorage;
use std::collections::BTreeMap;
use std::time::Duration;

const SEQ: usize = 8;
const VOCAB: usize = 29;
const WINDOWS: u64 = 2;
const SEED: u64 = 3;

type Values = BTreeMap<String, Vec<f32>>;

fn model() -> Model {
    ModelConfig {
        architecture: "llama".into(),
        vocab_size: VOCAB as u64,
        layers: Some(5),
        width: Some(16),
        heads: Some(4),
        context: Some(SEQ as u64),
        dropout: 0.1,
        tied_embeddings: Some(false),
        ..ModelConfig::default()
    }
    .resolve(None)
    .unwrap()
}

fn optim() -> OptimConfig {
    OptimConfig { lr: 3e-3, clip: 0.0, ..OptimConfig::default() }
}

/// Learning rates that differ from step to step.
fn rate(t: u64) -> f64 {
    3e-3 / (1.0 + t as f64)
}

/// Made-up text of a window.
struct Text {
    /// Updates before the window.
    done: u64,
    /// Micro-batches of an update.
    every: usize,
    /// This rank's share of the sequences of an update, and sequences of a micro-batch.
    share: u64,
    sequences: u64,
    all: u64,
    ids: Vec<u32>,
    targets: Vec<u32>,
}

impl BatchSource for Text {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let step = self.done + (micro / self.every) as u64;
        let first = self.share + (micro % self.every) as u64 * self.sequences;
        self.ids.clear();
        self.targets.clear();
        for s in first..first + self.sequences {
            let key = RngKey::new(11, step, "text");
            let token = |t: usize| key.block(s * (SEQ as u64 + 1) + t as u64)[0] % VOCAB as u32;
            self.ids.extend((0..SEQ).map(token));
            self.targets.extend((1..=SEQ).map(token));
        }
        let loss_scale = 1.0 / (self.all as usize * SEQ) as f32;
        let ctx = StepContext { seed: 5, step, first_sequence: first, loss_scale, accumulate: false };
        Ok((TokenBatch { ids: &self.ids, targets: &self.targets, positions: None }, ctx))
    }
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
        let share = (copy * self.every) as u64;
        Text { done: 0, every: self.every, share, sequences: 1, all, ids: Vec::new(), targets: Vec::new() }
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
        text.done = window * case.updates as u64;
        let first = text.done + 1;
        let updates = worker.window(&mut cpu, &mut text, first, &rate).unwrap();
        assert!(updates.iter().all(|u| u.grad_norm > 0.0 && u.skipped == 0));
        losses.extend(updates.iter().map(|u| u.loss));
    }
    let mut values = Values::new();
    for tensor in worker.params() {
        let mut all = vec![0.0; tensor.len()];
        worker.read(&mut cpu, &tensor, &mut all).unwrap();
        values.insert(tensor.name, all);
    }
    (losses, values)
}

fn train(case: Case) -> Vec<(Vec<LossSum>, Values)> {
    let settings = ThreadSettings { patience: Duration::from_secs(60), ..ThreadSettings::default() };
    let worlds = ThreadCommunicator::world("world", case.ranks * case.copies, &settings);
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            worlds.into_iter().map(|world| scope.spawn(move || rank(case, Box::new(world)))).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// With data-parallel ranks sums are in another order; what one copy sees is what the other does.
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
